//! The loop: accepts clients, moves their messages, answers on the control socket.
//!
//! Nothing here waits for a client. What a client does not take waits in [`State`], and one that takes
//! nothing for too long is dropped. Alone a hand-over holds up everything else, for as long as the next
//! server, which is trusted, takes.

mod asker;
mod doors;
mod succession;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use shunt_inspector::{Claimant, Inspectors};
use shunt_shm::ivshmem::Control;
use shunt_sys::seqpacket::{PeerCred, peer_cred};
use tracing::{info, warn};

use crate::Error;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::memory::Region;
use crate::message::{Attached, PeerId};
use crate::notify::Notifier;
use crate::peer::{End, Pause, Peer, Unsent, claimant};
use crate::reason::{Fault, Totals};
use crate::state::State;

use asker::Asker;

/// Clients are known to epoll by their IDs; these are above.
const LISTENER: u64 = 1 << 32;
const CONTROL: u64 = LISTENER + 1;
const STOP: u64 = LISTENER + 2;
const INSPECTORS: u64 = LISTENER + 3;
const FIRST_REQUEST: u64 = LISTENER + 4;

/// Events taken from epoll, and connections accepted, at once.
const BATCH: usize = 64;
/// Messages to one client before it is the others' turn.
const BURST: usize = 64;
/// How long until another try where the kernel has no room for descriptors in flight.
const STARVED: Duration = Duration::from_millis(20);
/// What is to happen after a turn.
enum Next {
    GoOn,
    Stop,
    HandOver(OwnedFd),
}

/// A server at work.
#[derive(Debug)]
pub struct Server {
    config: Config,
    state: State,
    totals: Totals,
    /// When the region was made, in seconds since 1970.
    since: u64,
    region: Region,
    peers: HashMap<PeerId, Peer>,
    askers: HashMap<u64, Asker>,
    next_asker: u64,
    /// When those may go on for whom the kernel had no room.
    starved: Option<Instant>,
    /// When it was last said that clients are turned away, and how many have been since.
    last_word: Option<Instant>,
    unsaid: u64,
    epoll: OwnedFd,
    /// Kept open, so that epoll goes on watching it.
    _stop: OwnedFd,
    /// Given up for a moment when descriptors run out, to turn a client away in good order.
    spare: Option<OwnedFd>,
    /// They close what clients have had a hand in, which may take as long as these like.
    inspectors: Inspectors<u32>,
    endpoint: Endpoint,
}

impl Server {
    /// Serves until told to stop, or until the next server has taken over.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub fn run(&mut self, notifier: &mut Notifier) -> Result<(), Error> {
        let (size, vectors) = (self.region.size, self.state.vectors());
        info!(size, vectors, "serving at {}", self.config.socket.display());
        loop {
            match self.turn()? {
                Next::GoOn => {}
                Next::Stop => break,
                Next::HandOver(socket) => {
                    notifier.tell("RELOADING=1");
                    match self.hand_over(&socket) {
                        Ok(()) => {
                            // The next server is the service's main process now.
                            if let Ok(cred) = peer_cred(&socket) {
                                notifier.tell(&format!("MAINPID={}\nREADY=1", cred.pid));
                            }
                            info!(clients = self.peers.len(), "has handed over");
                            return Ok(());
                        }
                        Err(e) => {
                            warn!("nothing was handed over, serving goes on: {e}");
                            notifier.tell("READY=1");
                        }
                    }
                }
            }
        }
        notifier.tell("STOPPING=1");
        if self.config.fd_store && notifier.is_there() {
            self.store(notifier)?;
        } else {
            // Inspectors may have the connections a while longer.
            for peer in self.peers.values() {
                let _ = shutdown(&peer.socket, Shutdown::Both);
            }
        }
        info!("ended");
        Ok(())
    }

    /// Waits for events and handles them.
    fn turn(&mut self) -> io::Result<Next> {
        let mut room = [epoll::Event { flags: epoll::EventFlags::empty(), data: NO_DATA }; BATCH];
        let timeout = self.timeout();
        let count = match epoll::wait(&self.epoll, &mut room[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        let mut next = Next::GoOn;
        for event in &room[..count] {
            match event.data.u64() {
                STOP => return Ok(Next::Stop),
                LISTENER => self.accept(),
                CONTROL => self.accept_asker(),
                INSPECTORS => self.inspectors.hear(|_, _| {}),
                token => match PeerId::try_from(token) {
                    Ok(id) => self.attend(id, event.flags),
                    Err(_) => {
                        if let Some(socket) = self.answer(token) {
                            next = Next::HandOver(socket);
                        }
                    }
                },
            }
        }
        self.settle();
        Ok(next)
    }

    /// How long to wait: without end, unless something can be done before somebody does anything.
    fn timeout(&self) -> Option<Timespec> {
        let now = Instant::now();
        let able = |id| self.peers.get(&id).is_some_and(|peer| peer.pause == Pause::None);
        let at_once = self.state.backlog().any(able).then_some(Duration::ZERO);
        let starved = self.starved.map(|until| until.saturating_duration_since(now));
        let askers = self.askers.values().map(|asker| asker.since + self.config.limits.request);
        let askers = askers.min().map(|until| until.saturating_duration_since(now));
        let inspectors = self.inspectors.patience();
        let wait = [at_once, starved, askers, self.state.patience(now), inspectors];
        let wait = wait.into_iter().flatten();
        // Rounded up, so that the deadline has passed when the wait is over.
        let wait = wait.min()?;
        let wait = if wait.is_zero() { wait } else { wait + Duration::from_millis(1) };
        Some(Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    /// Something has happened on a client's connection.
    fn attend(&mut self, id: PeerId, flags: epoll::EventFlags) {
        let Some(peer) = self.peers.get(&id) else { return };
        let looked = peer.look();
        if flags.contains(epoll::EventFlags::OUT) {
            // At once: what waited may have been taken back, and then nothing is sent.
            self.watch(id, Pause::None);
        }
        if let Err(end) = looked {
            self.remove(id, end);
        }
    }

    /// Sends what can be sent, and drops those who do not keep up.
    fn settle(&mut self) {
        let now = Instant::now();
        if self.starved.is_some_and(|until| now >= until) {
            self.starved = None;
            for peer in self.peers.values_mut().filter(|peer| peer.pause == Pause::Starved) {
                peer.pause = Pause::None;
            }
        }
        let backlog: Vec<_> = self.state.backlog().collect();
        for id in backlog {
            if self.peers.get(&id).is_some_and(|peer| peer.pause == Pause::None)
                && let Err(end) = self.flush(id, now)
            {
                self.remove(id, end);
            }
        }
        for (id, why) in self.state.overdue(now) {
            self.remove(id, End::Dropped(why));
        }
        let patience = self.config.limits.request;
        let late: Vec<_> =
            self.askers.extract_if(|_, asker| asker.since.elapsed() >= patience).collect();
        for (_, Asker { socket, cred, .. }) in late {
            self.bury(Some(&cred), vec![socket]);
        }
        self.inspectors.turn(|_| None, |_, _| {});
    }

    /// Hangs up and lets go of connections, with all that may lie in their queues.
    fn bury(&mut self, of: Option<&PeerCred>, fds: Vec<OwnedFd>) {
        for fd in &fds {
            // Whoever has it from now on is not to be heard of.
            let _ = epoll::delete(&self.epoll, fd);
            let _ = shutdown(fd, Shutdown::Both);
        }
        let nobody = Claimant { process: 0, account: u32::MAX };
        self.inspectors.bury(&of.map_or(nobody, claimant), fds);
    }

    fn flush(&mut self, id: PeerId, now: Instant) -> Result<(), End> {
        let mut pause = Pause::None;
        for _ in 0..BURST {
            let Some(message) = self.state.front(id) else { break };
            let attached = match message.attached {
                Attached::Nothing => None,
                Attached::Memory => Some(self.region.fd.as_fd()),
                Attached::Bell(of, vector) => {
                    let bells = self.peers.get(&of).map(|peer| &peer.bells);
                    let bell = bells.and_then(|bells| bells.get(usize::from(vector)));
                    // The state names no others than those who are there.
                    Some(bell.ok_or(End::Dropped(Fault::Failed))?.as_fd())
                }
            };
            let Some(peer) = self.peers.get(&id) else { break };
            match peer.send(&message, attached) {
                Ok(()) => self.state.sent(id, now),
                Err(Unsent::Full) => {
                    pause = Pause::Full;
                    break;
                }
                Err(Unsent::Starved) => {
                    pause = Pause::Starved;
                    self.state.excuse(id, now);
                    self.starved.get_or_insert(now + STARVED);
                    break;
                }
                Err(Unsent::Ended(end)) => return Err(end),
            }
        }
        self.watch(id, pause);
        Ok(())
    }

    /// Has epoll tell of room if a client waits for that.
    fn watch(&mut self, id: PeerId, pause: Pause) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.pause = pause;
        let room = epoll::EventFlags::OUT;
        let flags = if pause == Pause::Full { WATCHED | room } else { WATCHED };
        let data = epoll::EventData::new_u64(id.into());
        let _ = epoll::modify(&self.epoll, &peer.socket, data, flags);
    }

    fn remove(&mut self, id: PeerId, end: End) {
        if let Some(peer) = self.peers.remove(&id) {
            let _ = epoll::delete(&self.epoll, &peer.socket);
            let _ = shutdown(&peer.socket, Shutdown::Both);
            let (claimant, left) = peer.leave();
            self.inspectors.bury(&claimant, left);
            self.state.leave(id, Instant::now());
            self.count(id, end);
            self.write_off(id);
        }
    }

    /// Where agents of Shunt share the memory, says there that this one is gone: a device in a guest does not tell
    /// the guest.
    fn write_off(&self, id: PeerId) {
        let size = usize::try_from(self.region.size).unwrap_or(0);
        if let Some(control) = Control::look(&self.region.fd, size) {
            control.has_left(id);
        }
    }

    fn count(&mut self, id: PeerId, end: End) {
        match end {
            End::Left => {
                self.totals.leave();
                info!(id, "client left");
            }
            End::Dropped(why) => {
                self.totals.drop(why);
                warn!(id, "client dropped: {}", why.explain());
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut left: Vec<_> = self.peers.drain().flat_map(|(_, peer)| peer.leave().1).collect();
        left.extend(self.askers.drain().map(|(_, asker)| asker.socket));
        // Of those who have not been accepted yet there may be something, too.
        left.extend(self.endpoint.listener.socket().try_clone());
        left.extend(self.endpoint.control.socket().try_clone());
        self.inspectors.end(left);
    }
}

const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);

/// What is always of interest on a client's connection.
const WATCHED: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

/// Seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
