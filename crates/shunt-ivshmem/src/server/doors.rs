//! Who comes in: clients, and those who ask something on the control socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket::{self, peer_cred};
use tracing::{debug, info, warn};

use super::{BATCH, Server, WATCHED, seconds};
use crate::control::{MAX_PACKET, MAX_REQUEST, Request, Said, is_trusted};
use crate::memory;
use crate::message::{MESSAGE, PeerId};
use crate::peer::{Peer, bells};
use crate::reason::Refusal;
use crate::report::{PeerReport, Report};
use crate::state::Full;

/// How often it is said that clients are turned away.
const WORD: Duration = Duration::from_secs(1);

/// Somebody who may ask something.
#[derive(Debug)]
pub(super) struct Asker {
    socket: OwnedFd,
    pub(super) since: Instant,
}

/// What an accept has brought.
enum Come {
    Connection(OwnedFd),
    /// Somebody for whom there is no descriptor, who has been turned away.
    TooMany,
    Nobody,
}

impl Server {
    /// As many clients as of other events at once.
    pub(super) fn accept(&mut self) {
        for _ in 0..BATCH {
            match accept_from(self.endpoint.listener.socket(), &mut self.spare) {
                Come::Connection(socket) => self.admit(socket),
                Come::TooMany => return self.refuse(Refusal::Resources),
                Come::Nobody => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        // Before descriptors are made for it: a flood of those who are too many is to cost little.
        if self.state.len() >= self.config.limits.peers {
            return self.refuse(Refusal::Full);
        }
        let (Ok(cred), Ok(bells)) = (peer_cred(&socket), bells(self.state.vectors())) else {
            return self.refuse(Refusal::Resources);
        };
        let now = Instant::now();
        let id = match self.state.join(now) {
            Ok(id) => id,
            Err(Full::Peers) => return self.refuse(Refusal::Full),
            Err(Full::Ids) => return self.refuse(Refusal::Ids),
        };
        if self.enter(id, Peer::new(socket, cred, seconds(), bells)).is_err() {
            self.state.leave(id, now);
            return self.refuse(Refusal::Resources);
        }
        self.totals.accept();
        info!(id, pid = cred.pid, uid = cred.uid, "client joined");
    }

    pub(super) fn enter(&mut self, id: PeerId, peer: Peer) -> io::Result<()> {
        let data = epoll::EventData::new_u64(id.into());
        epoll::add(&self.epoll, &peer.socket, data, WATCHED)?;
        self.peers.insert(id, peer);
        Ok(())
    }

    /// Counts a client that is turned away, and says so now and then.
    fn refuse(&mut self, why: Refusal) {
        self.totals.refuse(why);
        self.unsaid += 1;
        if self.last_word.is_none_or(|at| at.elapsed() >= WORD) {
            self.last_word = Some(Instant::now());
            warn!(clients = std::mem::take(&mut self.unsaid), "turned away: {}", why.explain());
        }
    }

    pub(super) fn accept_asker(&mut self) {
        let come = accept_from(self.endpoint.control.socket(), &mut self.spare);
        let Come::Connection(socket) = come else { return };
        let Ok(cred) = peer_cred(&socket) else { return };
        if !is_trusted(&cred) || self.askers.len() >= self.config.limits.controls {
            warn!(pid = cred.pid, uid = cred.uid, "somebody was turned away at the control socket");
            return;
        }
        let token = self.next_asker;
        self.next_asker += 1;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            self.askers.insert(token, Asker { socket, since: Instant::now() });
        }
    }

    /// Hears a request. To report takes no time; who asks for a hand-over is left to the loop.
    pub(super) fn answer(&mut self, token: u64) -> Option<OwnedFd> {
        let Asker { socket, .. } = self.askers.remove(&token)?;
        let (mut packet, mut fds) = ([0; MAX_REQUEST], Fds::new());
        let len = seqpacket::recv(&socket, &mut packet, &mut fds, Duration::ZERO).unwrap_or(0);
        let answered = match Request::parse(&packet[..len]) {
            Some(Request::TakeOver) => return Some(socket),
            Some(Request::Status) => self.report(&socket),
            None => {
                let why = "it knows no such request; it is of another version".to_owned();
                let refused = Said::Refused(why).text();
                seqpacket::send(&socket, refused.as_bytes(), &[], Duration::ZERO)
                    .map_err(Into::into)
            }
        };
        if let Err(e) = answered {
            debug!("a request was not answered: {e}");
        }
        None
    }

    fn report(&self, to: &OwnedFd) -> io::Result<()> {
        let peers = self.state.peers().filter_map(|id| {
            let (peer, (queued, messages)) = (self.peers.get(&id)?, self.state.counts(id));
            Some(PeerReport {
                id,
                pid: peer.cred.pid,
                uid: peer.cred.uid,
                since: peer.since,
                queued,
                messages,
                bytes: messages.saturating_mul(MESSAGE as u64),
            })
        });
        let report = Report {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: self.config.socket.display().to_string(),
            size: self.region.size,
            huge_pages: self.region.huge_pages,
            vectors: self.state.vectors(),
            since: self.since,
            peers_max: self.config.limits.peers,
            ids_left: self.state.ids_left(),
            peers: peers.collect(),
            totals: self.totals,
        };
        let text = serde_json::to_string(&report)?;
        // A descriptor cannot be sent when the kernel has no room for more in flight.
        let said = Said::Report(text.clone()).text();
        if said.len() <= MAX_PACKET {
            return Ok(seqpacket::send(to, said.as_bytes(), &[], Duration::ZERO)?);
        }
        let (said, fd) = (Said::Report(String::new()).text(), memory::of_text(text.as_bytes())?);
        Ok(seqpacket::send(to, said.as_bytes(), &[fd.as_fd()], Duration::ZERO)?)
    }
}

fn accept_from(listener: &OwnedFd, spare_fd: &mut Option<OwnedFd>) -> Come {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        match accept_with(listener, flags) {
            Ok(socket) => return Come::Connection(socket),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                // Without this whoever waits would go on, and epoll would report it again and again.
                if spare_fd.take().is_some() {
                    drop(accept_with(listener, flags));
                }
                *spare_fd = spare();
                return Come::TooMany;
            }
            Err(Errno::CONNABORTED) => {}
            Err(_) => return Come::Nobody,
        }
    }
}

/// A descriptor to be given up for a moment when they run out.
pub(super) fn spare() -> Option<OwnedFd> {
    seqpacket::socket().ok()
}
