//! Who comes in: clients, and those who ask something on the control socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use shunt_sys::seqpacket::{self, peer_cred};
use tracing::{debug, info, warn};

use super::asker::Asker;
use super::{BATCH, Server, WATCHED, seconds};
use crate::control::{MAX_PACKET, Request, Said, is_trusted};
use crate::memory;
use crate::message::{MESSAGE, PeerId};
use crate::peer::{Peer, bells};
use crate::reason::Refusal;
use crate::report::{PeerReport, Report};
use crate::state::Full;

/// How often it is said that clients are turned away.
const WORD: Duration = Duration::from_secs(1);

/// What an accept has brought.
enum Come {
    Connection(OwnedFd),
    /// Somebody for whom there is no descriptor, who is to be turned away: the connection, if it could be had.
    TooMany(Option<OwnedFd>),
    Nobody,
}

impl Server {
    /// As many clients as of other events at once.
    pub(super) fn accept(&mut self) {
        for _ in 0..BATCH {
            match accept_from(self.endpoint.listener.socket(), &mut self.spare) {
                Come::Connection(socket) => self.admit(socket),
                Come::TooMany(socket) => {
                    self.bury(None, socket.into_iter().collect());
                    self.spare = self.spare.take().or_else(spare);
                    return self.refuse(Refusal::Resources);
                }
                Come::Nobody => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        // Before descriptors are made for it: a flood of those who are too many is to cost little.
        let cred = peer_cred(&socket).ok();
        let turn_away = |server: &mut Self, socket, why| {
            // Whatever it has sent already is in the connection's queue.
            server.bury(cred.as_ref(), vec![socket]);
            server.refuse(why);
        };
        if self.state.len() >= self.config.limits.peers {
            return turn_away(self, socket, Refusal::Full);
        }
        let (Some(cred), Ok(bells)) = (cred, bells(self.state.vectors())) else {
            return turn_away(self, socket, Refusal::Resources);
        };
        let now = Instant::now();
        let id = match self.state.join(now) {
            Ok(id) => id,
            Err(Full::Peers) => return turn_away(self, socket, Refusal::Full),
            Err(Full::Ids) => return turn_away(self, socket, Refusal::Ids),
        };
        if let Err(socket) = self.enter(id, Peer::new(socket, cred, seconds(), bells)) {
            self.state.leave(id, now);
            return turn_away(self, socket, Refusal::Resources);
        }
        self.totals.accept();
        info!(id, pid = cred.pid, uid = cred.uid, "client joined");
    }

    /// Gives the connection back where it cannot be watched.
    pub(super) fn enter(&mut self, id: PeerId, peer: Peer) -> Result<(), OwnedFd> {
        let data = epoll::EventData::new_u64(id.into());
        if epoll::add(&self.epoll, &peer.socket, data, WATCHED).is_err() {
            return Err(peer.socket);
        }
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
        let socket = match come {
            Come::Connection(socket) => socket,
            Come::TooMany(socket) => {
                self.bury(None, socket.into_iter().collect());
                self.spare = self.spare.take().or_else(spare);
                return;
            }
            Come::Nobody => return,
        };
        let Ok(cred) = peer_cred(&socket) else { return self.bury(None, vec![socket]) };
        if !is_trusted(&cred) || self.askers.len() >= self.config.limits.controls {
            warn!(pid = cred.pid, uid = cred.uid, "somebody was turned away at the control socket");
            return self.bury(Some(&cred), vec![socket]);
        }
        let token = self.next_asker;
        self.next_asker += 1;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            self.askers.insert(token, Asker { socket, cred, since: Instant::now() });
        } else {
            self.bury(Some(&cred), vec![socket]);
        }
    }

    /// Hears a request. To report takes no time; who asks for a hand-over is left to the loop.
    pub(super) fn answer(&mut self, token: u64) -> Option<OwnedFd> {
        let asker = self.askers.remove(&token)?;
        let _ = epoll::delete(&self.epoll, &asker.socket);
        let request = asker.request();
        let Asker { socket, cred, .. } = asker;
        let answered = match request {
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
        self.bury(Some(&cred), vec![socket]);
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
                let had_one = spare_fd.take().is_some();
                return Come::TooMany(accept_with(listener, flags).ok().filter(|_| had_one));
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
