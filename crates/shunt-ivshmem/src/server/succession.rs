//! How a server begins, and how it leaves what it has to the next.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shunt_inspector::Inspectors;
use tracing::{error, info, warn};

use super::{CONTROL, FIRST_REQUEST, INSPECTORS, LISTENER, STOP, Server, doors};
use crate::Error;
use crate::config::{Config, Start};
use crate::control::Unreachable;
use crate::endpoint::Endpoint;
use crate::handover::{self, HandoverError, Kept};
use crate::memory::{self, Region};
use crate::message::{MAX_VECTORS, Vector};
use crate::name::Name;
use crate::notify::Notifier;
use crate::peer::{End, Peer};
use crate::reason::{Fault, Totals};
use crate::snapshot::Snapshot;
use crate::state::State;

/// Descriptors that are not clients': sockets, requests, what the process has open anyway.
const RESERVE: u64 = 64;

/// How many processes may be stuck with what clients have sent.
const INSPECTORS_MAX: shunt_inspector::Limits = shunt_inspector::Limits {
    of_process: 2,
    of_account: 8,
    inspectors: 32,
    hurry: Duration::from_millis(10),
    patience: Duration::from_secs(2),
};

impl Server {
    /// Sets up a server, with what was `passed` to this process and with what the server before it hands
    /// over, that ends when `stop` becomes readable.
    ///
    /// # Errors
    /// Why it cannot serve.
    pub fn start(
        config: Config,
        passed: Vec<(String, OwnedFd)>,
        stop: OwnedFd,
    ) -> Result<Self, Error> {
        let limit = raise_descriptor_limit();
        // Before there is anything that they should not have.
        let inspectors = Inspectors::start(INSPECTORS_MAX)?;
        let (kept, sockets) = handover::sort(passed);
        if config.start == Start::TakeOver {
            let (kept, socket) = handover::request(&config.socket)?;
            let (listener, control) = (kept.snapshot.owns_listener, kept.snapshot.owns_control);
            let mut server = Self::resume(config, kept, Vec::new(), stop, limit, inspectors)?;
            handover::go_on(&socket)?;
            server.endpoint.take_files(listener, control);
            info!(clients = server.peers.len(), "has taken over");
            return Ok(server);
        }
        if kept.is_empty() {
            return Self::fresh(config, sockets, stop, limit, inspectors);
        }
        match Kept::new(kept) {
            Ok(kept) => Self::resume(config, kept, sockets, stop, limit, inspectors),
            Err(why) => {
                error!("the clients that the service manager kept are lost: {why}");
                Self::fresh(config, sockets, stop, limit, inspectors)
            }
        }
    }

    fn fresh(
        config: Config,
        sockets: Vec<OwnedFd>,
        stop: OwnedFd,
        limit: u64,
        inspectors: Inspectors<u32>,
    ) -> Result<Self, Error> {
        let vectors = config.vectors.clamp(1, MAX_VECTORS);
        let config = bounded(config, vectors, limit)?;
        // Before the memory, which may be all that there is of huge pages.
        let endpoint = Endpoint::claim(&config.socket, config.mode, sockets)?;
        let region = Region::create(&config)?;
        let state = State::new(vectors, config.limits);
        Ok(Self::new(config, state, endpoint, region, stop, inspectors)?)
    }

    /// Goes on with what another server has left.
    fn resume(
        config: Config,
        mut kept: Kept,
        sockets: Vec<OwnedFd>,
        stop: OwnedFd,
        limit: u64,
        inspectors: Inspectors<u32>,
    ) -> Result<Self, Error> {
        let Snapshot { size, vectors, huge_pages, since, totals, .. } = kept.snapshot;
        let memory = kept.take(Name::Memory);
        let region =
            memory.and_then(|fd| Region::adopt(fd, size, huge_pages)).ok_or_else(|| {
                HandoverError::Unusable("the memory is missing, or is not what it was".to_owned())
            })?;
        let config = bounded(config, vectors, limit)?;
        let endpoint = match (kept.take(Name::Listener), kept.take(Name::Control)) {
            (Some(listener), Some(control)) => Endpoint::adopt(&config.socket, listener, control)?,
            _ => Endpoint::claim(&config.socket, config.mode, sockets)?,
        };
        if config.start == Start::Fresh && (config.size, config.vectors) != (size, vectors) {
            warn!("size and vectors stay {size} and {vectors} until the service is stopped");
        }
        let now = Instant::now();
        let state = kept.snapshot.state(config.limits, now);
        let mut server = Self::new(config, state, endpoint, region, stop, inspectors)?;
        (server.since, server.totals) = (since, totals);
        for peer in std::mem::take(&mut kept.snapshot.peers) {
            let bells = (0..vectors).map(|vector| kept.take(Name::Bell(peer.id, vector)));
            let bells: Option<Vec<_>> = bells.collect();
            let entered =
                kept.take(Name::Peer(peer.id)).zip(bells).is_some_and(|(socket, bells)| {
                    let entering = Peer::new(socket, peer.cred(), peer.since, bells);
                    server.enter(peer.id, entering).is_ok()
                });
            if !entered {
                server.state.leave(peer.id, now);
                server.count(peer.id, End::Dropped(Fault::Incomplete));
                server.write_off(peer.id);
            }
        }
        Ok(server)
    }

    fn new(
        config: Config,
        state: State,
        endpoint: Endpoint,
        region: Region,
        stop: OwnedFd,
        inspectors: Inspectors<u32>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sources = [
            (endpoint.listener.socket().as_fd(), LISTENER),
            (endpoint.control.socket().as_fd(), CONTROL),
            (stop.as_fd(), STOP),
            (inspectors.ear(), INSPECTORS),
        ];
        for (fd, token) in sources {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            config,
            state,
            totals: Totals::default(),
            since: super::seconds(),
            region,
            peers: HashMap::new(),
            askers: HashMap::new(),
            next_asker: FIRST_REQUEST,
            starved: None,
            last_word: None,
            unsaid: 0,
            epoll,
            _stop: stop,
            spare: doors::spare(),
            inspectors,
            endpoint,
        })
    }

    fn snapshot(&self) -> io::Result<OwnedFd> {
        let mut snapshot = Snapshot {
            size: self.region.size,
            huge_pages: self.region.huge_pages,
            owns_listener: self.endpoint.listener.owns_file(),
            owns_control: self.endpoint.control.owns_file(),
            since: self.since,
            totals: self.totals,
            ..Snapshot::of(&self.state)
        };
        for kept in &mut snapshot.peers {
            let Some(Peer { cred, since, .. }) = self.peers.get(&kept.id) else { continue };
            (kept.pid, kept.uid, kept.gid, kept.since) = (cred.pid, cred.uid, cred.gid, *since);
        }
        memory::of_text(&snapshot.text()?)
    }

    /// What outlives this process in any case, with its names.
    fn belongings<'a>(&'a self, state: &'a OwnedFd) -> Vec<(Name, BorrowedFd<'a>)> {
        let mut all = vec![(Name::State, state.as_fd()), (Name::Memory, self.region.fd.as_fd())];
        for id in self.state.peers() {
            let Some(peer) = self.peers.get(&id) else { continue };
            all.push((Name::Peer(id), peer.socket.as_fd()));
            let bells = (0..Vector::MAX).zip(&peer.bells);
            all.extend(bells.map(|(vector, bell)| (Name::Bell(id, vector), bell.as_fd())));
        }
        all
    }

    /// Afterwards all is the next server's, also the care for the files.
    pub(super) fn hand_over(&mut self, to: &OwnedFd) -> Result<(), Unreachable> {
        let state = self.snapshot().map_err(|e| Unreachable::Broken(e.to_string()))?;
        let mut all = self.belongings(&state);
        all.push((Name::Listener, self.endpoint.listener.socket().as_fd()));
        all.push((Name::Control, self.endpoint.control.socket().as_fd()));
        handover::give(to, &all)?;
        self.endpoint.take_files(false, false);
        Ok(())
    }

    /// Leaves the clients with the service manager.
    pub(super) fn store(&self, notifier: &mut Notifier) -> io::Result<()> {
        let state = self.snapshot()?;
        for (name, fd) in self.belongings(&state) {
            notifier.store(&name.to_string(), fd);
        }
        notifier.settle();
        info!(clients = self.peers.len(), "has left them with the service manager");
        Ok(())
    }
}

/// Each client costs a descriptor and one per vector, so the limit is raised as far as it goes.
fn raise_descriptor_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// With no more clients than `limit` descriptors are enough for.
fn bounded(mut config: Config, vectors: Vector, limit: u64) -> Result<Config, Error> {
    let clients = limit.saturating_sub(RESERVE) / (u64::from(vectors) + 1);
    if clients == 0 {
        return Err(Error::Descriptors(limit));
    }
    let clients = usize::try_from(clients).unwrap_or(usize::MAX);
    config.limits.peers = config.limits.peers.min(clients);
    Ok(config)
}
