//! The loop: accepts clients, takes their packets one at a time, sends the answers.
//!
//! Nothing here waits for a client. Level-triggered epoll and one packet per turn keep a busy client
//! from holding up the others; one that sends too much is not read for a while, one that does not
//! read its answers, or does not say who it is, is dropped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use shunt_sys::fds::Fds;
use shunt_sys::run_dir::TOTALS;
use shunt_sys::seqpacket::{self, PeerCred};
use shunt_sys::sockinfo;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_MESSAGE, Request, decode, encode, stated_version};
use shunt_wire::reason::Reason;
use tracing::{debug, info, warn};

use crate::ServeError;
use crate::allowance::{Allowance, INTRODUCTION_COST, REPORT_COST};
use crate::config::Config;
use crate::door::{Door, Knock};
use crate::metrics::{self, Exporter};
use crate::party::{Account, Origin};
use crate::sharing::Membership;
use crate::socket::Claim;
use crate::state::{Answer, Misconduct, Peer, Role, State};
use crate::totals::Book;

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const METRICS: u64 = 2;
const RELOAD: u64 = 3;
const FABRIC: u64 = 4;
const FIRST_CLIENT: u64 = 5;

/// Events taken from epoll at once.
const BATCH: usize = 64;

/// How long those who send too much are left alone before the next look at their allowance.
const PAUSE: Duration = Duration::from_millis(1);

/// How often the offers are looked through for those that are over.
const SWEEP: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    cred: PeerCred,
    origin: Origin,
    netns: u64,
    role: Role,
    since: Instant,
    allowance: Allowance,
    /// Its packets wait until its allowance has grown.
    paused: bool,
}

impl Client {
    /// What its next message costs itself, and what all clients of its account.
    fn cost(&self) -> (u32, u32) {
        match self.role {
            Role::Nobody => (1, INTRODUCTION_COST),
            Role::Tool => (REPORT_COST, REPORT_COST),
            Role::Endpoint(_) => (1, 1),
        }
    }
}

/// What an account has of the agent.
#[derive(Debug)]
struct Share {
    clients: usize,
    allowance: Allowance,
}

/// An agent at work.
#[derive(Debug)]
pub struct Server {
    config: Config,
    state: State,
    clients: HashMap<u64, Client>,
    /// How many of them are of a process. Those of pid namespaces that are not seen from here are all 0,
    /// and not counted.
    per_process: HashMap<i32, usize>,
    /// The same by account.
    accounts: HashMap<Account, Share>,
    next_token: u64,
    /// Clients that have not said who they are.
    nobodies: usize,
    /// Clients that are not read just now.
    paused: Vec<u64>,
    last_used: Instant,
    /// When offers were last looked through.
    swept: Instant,
    epoll: OwnedFd,
    /// Kept open, so that epoll goes on watching it.
    _stop: OwnedFd,
    /// Readable when the policy is to be read anew.
    reload: Option<OwnedFd>,
    door: Door,
    membership: Membership,
    metrics: Option<Exporter>,
    totals: PathBuf,
    claim: Claim,
}

/// Why a client's connection ends.
enum End {
    /// It closed.
    Left,
    /// The agent drops it.
    Dropped(&'static str),
}

impl Server {
    /// Sets up an agent that holds `claim` and ends when `stop` becomes readable.
    ///
    /// # Errors
    /// Those of epoll and of making the registry, and of metrics that are required.
    pub fn new(config: Config, claim: Claim, stop: OwnedFd) -> Result<Self, ServeError> {
        raise_descriptor_limit();
        let totals = config.run_dir.file(TOTALS).map_err(io::Error::other)?;
        let totals = PathBuf::from(OsStr::from_bytes(totals.as_bytes()));
        let ended = Book::load(&totals).unwrap_or_else(|e| {
            warn!("{} is not readable ({e}): totals start at zero", totals.display());
            Book::default()
        });
        let path = claim.path().display().to_string();
        let mut state = State::new(config.limits, config.host.as_ref(), ended, path)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let sources = [(claim.socket().as_fd(), LISTENER), (stop.as_fd(), STOP)];
        for (fd, token) in sources {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(io::Error::from)?;
        }
        let metrics = exporter(&config)?;
        if let Some(exporter) = &metrics {
            metrics::watch(&epoll, exporter, METRICS)?;
            info!("serving metrics at {}", exporter.address());
            state.metrics = Some(exporter.address().to_string());
        }
        let membership = Membership::begin(config.ivshmem.clone(), &mut state, (&epoll, FABRIC))?;
        Ok(Self {
            config,
            state,
            clients: HashMap::new(),
            per_process: HashMap::new(),
            accounts: HashMap::new(),
            swept: Instant::now(),
            next_token: FIRST_CLIENT,
            nobodies: 0,
            paused: Vec::new(),
            last_used: Instant::now(),
            epoll,
            _stop: stop,
            reload: None,
            door: Door::new(),
            membership,
            metrics,
            totals,
            claim,
        })
    }

    /// Reads the policy anew whenever `signal`, a signalfd(2), becomes readable.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn reload_on(&mut self, signal: OwnedFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(RELOAD);
        epoll::add(&self.epoll, &signal, data, epoll::EventFlags::IN)?;
        self.reload = Some(signal);
        Ok(())
    }

    fn reload(&mut self) {
        let mut told = [0; 128];
        let read = self.reload.as_ref().map(|signal| rustix::io::read(signal, &mut told[..]));
        if read.is_some_and(|read| read.is_ok()) {
            self.state.reload();
        }
    }

    /// Serves until told to stop, or idle for too long.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub fn run(&mut self) -> io::Result<()> {
        info!("serving at {}", self.claim.path().display());
        while self.turn()? {}
        let ended = self.state.end();
        if let Err(e) = ended.save(&self.totals) {
            warn!("totals could not be written to {}: {e}", self.totals.display());
        }
        info!("ended");
        Ok(())
    }

    /// Waits for events and handles them. `false`: time to end.
    fn turn(&mut self) -> io::Result<bool> {
        let mut room = [epoll::Event { flags: epoll::EventFlags::empty(), data: NO_DATA }; BATCH];
        let count = match wait(&self.epoll, &mut room[..], self.timeout()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        for event in &room[..count] {
            match event.data.u64() {
                STOP => return Ok(false),
                RELOAD => self.reload(),
                LISTENER => self.accept(),
                METRICS => self.accept_scrapers(),
                FABRIC => {}
                token if Exporter::owns(token) => self.serve_scraper(token),
                token => self.serve(token),
            }
        }
        self.state.hear();
        self.membership.turn(&mut self.state, &self.epoll);
        self.drop_nobodies();
        if let Some(metrics) = &mut self.metrics {
            metrics.drop_late();
        }
        self.resume();
        if self.state.has_offers() && self.swept.elapsed() >= SWEEP {
            self.state.sweep();
            self.swept = Instant::now();
        }
        Ok(!self.idle_for_too_long())
    }

    /// How long to wait: without end, unless a deadline is open.
    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let introductions = (self.nobodies > 0).then_some(Duration::from_millis(500));
        let paused = (!self.paused.is_empty()).then_some(PAUSE);
        let idle = self.config.idle_exit.filter(|_| self.clients.is_empty());
        let idle = idle.map(|d| (self.last_used + d).saturating_duration_since(now));
        let scrapers = self.metrics.as_ref().and_then(|metrics| metrics.patience(now));
        let offers = self.state.has_offers().then(|| SWEEP.saturating_sub(self.swept.elapsed()));
        let shared = self.state.patience(now);
        let server = self.membership.patience(&self.state, now);
        let waits = [introductions, paused, idle, scrapers, offers, shared, server];
        waits.into_iter().flatten().min()
    }

    fn idle_for_too_long(&self) -> bool {
        let idle = self.config.idle_exit.filter(|_| self.clients.is_empty());
        idle.is_some_and(|d| self.last_used.elapsed() >= d)
    }

    /// As many as of other events at once: a client finds the backlog full (it does not wait then) when
    /// somebody connects faster than is accepted.
    fn accept(&mut self) {
        for _ in 0..BATCH {
            if !self.accept_one() {
                break;
            }
        }
    }

    /// False when there is nobody to accept.
    fn accept_one(&mut self) -> bool {
        match self.door.open(self.claim.socket()) {
            Knock::Came(socket) => self.admit(socket),
            Knock::Left => {}
            Knock::TurnedAway => {
                self.state.count_rejected();
                warn!("out of descriptors or memory: a client was turned away");
                return false;
            }
            Knock::Nobody => return false,
        }
        true
    }

    /// Scrapers are no clients: they neither keep the agent from ending nor take a client's place.
    fn accept_scrapers(&mut self) {
        let Some(metrics) = &mut self.metrics else { return };
        for _ in 0..BATCH {
            if !metrics.accept(&mut self.door, &self.epoll, &self.config.limits) {
                break;
            }
        }
    }

    fn serve_scraper(&mut self, token: u64) {
        if let Some(metrics) = &mut self.metrics {
            metrics.serve(token, &self.epoll, &self.state, &self.config.limits);
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        self.last_used = Instant::now();
        if self.clients.len() >= self.config.limits.clients {
            self.state.count_rejected();
            warn!("too many clients: one was turned away");
            return;
        }
        let Ok(cred) = seqpacket::peer_cred(&socket) else { return };
        let of_process = self.per_process.get(&cred.pid).copied().unwrap_or(0);
        if of_process >= self.config.limits.clients_per_process {
            self.state.count_rejected();
            warn!(pid = cred.pid, "too many clients of one process: one was turned away");
            return;
        }
        let Some(origin) = self.origin(&socket, cred) else {
            self.state.count_rejected();
            return;
        };
        let most = self.config.limits.clients / self.config.limits.share;
        let share = self.accounts.get(&origin.account).map_or(0, |share| share.clients);
        let bounded = self.config.host.is_some() && origin.account != Account::Host;
        if bounded && share >= most.max(1) {
            self.state.count_rejected();
            warn!(account = ?origin.account, "too many clients of one account: one was turned away");
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            self.state.count_rejected();
            return;
        }
        let since = Instant::now();
        let client = Client {
            netns: sockinfo::netns_cookie(&socket),
            socket,
            cred,
            origin,
            role: Role::Nobody,
            since,
            allowance: Allowance::new(&self.config.limits, since),
            paused: false,
        };
        let limits = &self.config.limits;
        let new = || Share { clients: 0, allowance: Allowance::of_account(limits, since) };
        let account = client.origin.account.clone();
        if bounded {
            // Who comes back at once is not given the allowance anew.
            self.accounts.retain(|_, share| share.clients > 0 || !share.allowance.is_full(limits));
            self.accounts.entry(account).or_insert_with(new).clients += 1;
        }
        self.clients.insert(token, client);
        self.nobodies += 1;
        if cred.pid != 0 {
            self.per_process.insert(cred.pid, of_process + 1);
        }
    }

    /// Where a client comes from; `None`, which is told, when it has no business here.
    fn origin(&self, socket: &OwnedFd, cred: PeerCred) -> Option<Origin> {
        if self.config.host.is_none() {
            // The directory keeps other users out, unless somebody has opened it since it was looked at.
            // A worker that has changed its user said Hello before.
            if cred.uid != geteuid().as_raw() {
                let PeerCred { pid, uid, .. } = cred;
                warn!(pid, uid, "a client of another user was turned away");
                return None;
            }
            return Some(Origin::own(cred));
        }
        let seen = Origin::of_process(cred);
        // What was seen is of that process if its pid was not another's meanwhile.
        match seen {
            Ok(origin) if seqpacket::peer_lives(socket) => Some(origin),
            Ok(_) => None,
            Err(e) => {
                warn!(pid = cred.pid, uid = cred.uid, "a client that cannot be looked at: {e}");
                None
            }
        }
    }

    /// One packet of one client.
    fn serve(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.paused {
            // What is told of a client that is not read is that it has left.
            self.remove(token, &End::Left);
            return;
        }
        let ((cost, of_account), now) = (client.cost(), Instant::now());
        let limits = &self.config.limits;
        let share = self.accounts.get_mut(&client.origin.account);
        let shared = share.is_none_or(|share| share.allowance.covers(of_account, limits, now));
        if !shared || !client.allowance.take(cost, limits, now) {
            self.pause(token);
            return;
        }
        if let Some(share) = self.accounts.get_mut(&client.origin.account) {
            share.allowance.take(of_account, limits, now);
        }
        let was_nobody = client.role == Role::Nobody;
        let end = exchange(client, &mut self.state).err();
        if was_nobody && client.role != Role::Nobody {
            self.nobodies -= 1;
        }
        if let Some(end) = end {
            self.remove(token, &end);
        }
    }

    /// Leaves a client's packets where they are; when its socket is full it waits.
    fn pause(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.paused = true;
        self.paused.push(token);
        let data = epoll::EventData::new_u64(token);
        let _ = epoll::modify(&self.epoll, &client.socket, data, epoll::EventFlags::empty());
    }

    /// Reads those again who may send by now.
    fn resume(&mut self) {
        let (clients, epoll, limits) = (&mut self.clients, &self.epoll, &self.config.limits);
        let (accounts, now) = (&mut self.accounts, Instant::now());
        self.paused.retain(|token| {
            let Some(client) = clients.get_mut(token) else { return false };
            let ((cost, of_account), account) = (client.cost(), &client.origin.account);
            let share = accounts.get_mut(account);
            if !client.allowance.covers(cost, limits, now)
                || share.is_some_and(|share| !share.allowance.covers(of_account, limits, now))
            {
                return true;
            }
            client.paused = false;
            let data = epoll::EventData::new_u64(*token);
            let _ = epoll::modify(epoll, &client.socket, data, epoll::EventFlags::IN);
            false
        });
    }

    fn remove(&mut self, token: u64, end: &End) {
        let Some(client) = self.clients.remove(&token) else { return };
        if client.role == Role::Nobody {
            self.nobodies -= 1;
        }
        if let Entry::Occupied(mut count) = self.per_process.entry(client.cred.pid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Entry::Occupied(mut share) = self.accounts.entry(client.origin.account.clone()) {
            share.get_mut().clients -= 1;
        }
        match end {
            End::Left => debug!(pid = client.cred.pid, "client left"),
            End::Dropped(why) => {
                self.state.count_rejected();
                warn!(pid = client.cred.pid, uid = client.cred.uid, "client dropped: {why}");
            }
        }
        self.state.gone(client.role);
        self.last_used = Instant::now();
    }

    fn drop_nobodies(&mut self) {
        if self.nobodies == 0 {
            return;
        }
        let patience = self.config.limits.introduction;
        let late = |c: &Client| c.role == Role::Nobody && c.since.elapsed() >= patience;
        let late: Vec<_> =
            self.clients.iter().filter(|(_, c)| late(c)).map(|(token, _)| *token).collect();
        for token in late {
            self.remove(token, &End::Dropped("it did not say who it is"));
        }
    }
}

const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);

/// Waits for so long, without end for `None`.
fn wait(
    epoll: &OwnedFd,
    room: &mut [epoll::Event],
    patience: Option<Duration>,
) -> Result<usize, Errno> {
    let as_time = |wait: Duration| Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    let time = patience.map(as_time);
    // epoll_wait(2) counts milliseconds, and is told more rather than less of them. Who looks for itself waits for less.
    if patience.is_some_and(|wait| wait < Duration::from_millis(1)) {
        poll(&mut [PollFd::new(epoll, PollFlags::IN)], time.as_ref())?;
        return epoll::wait(epoll, room, Some(&as_time(Duration::ZERO)));
    }
    epoll::wait(epoll, room, time.as_ref())
}

/// Takes one packet and sends its answer.
fn exchange(client: &mut Client, state: &mut State) -> Result<(), End> {
    let mut buf = [0; MAX_MESSAGE];
    let mut fds = Fds::new();
    let len = match seqpacket::recv(&client.socket, &mut buf, &mut fds, Duration::ZERO) {
        Ok(0) => return Err(End::Left),
        Ok(len) => len,
        Err(Errno::AGAIN) => return Ok(()),
        Err(Errno::MSGSIZE) => return Err(End::Dropped("its message is too long")),
        Err(Errno::CONNRESET) => return Err(End::Left),
        Err(_) => return Err(End::Dropped("its connection failed")),
    };
    let packet = &buf[..len];
    let first = client.role == Role::Nobody;
    if first && stated_version(packet).is_some_and(|version| version != PROTOCOL_VERSION) {
        // Whatever else another version says cannot be understood; this much can be.
        send(client, &Answer::refused(Reason::VersionMismatch))?;
        return Err(End::Left);
    }
    let Ok(request) = decode::<Request<'_>>(packet) else {
        return Err(End::Dropped("its message is malformed"));
    };
    debug!(pid = client.cred.pid, ?request);
    let Client { cred, netns, ref origin, .. } = *client;
    let peer = Peer { socket: client.socket.as_fd(), cred, origin, netns };
    match state.handle(&mut client.role, peer, &request, &mut fds) {
        Ok(answer) => send(client, &answer),
        Err(Misconduct(why)) => Err(End::Dropped(why)),
    }
}

fn send(client: &Client, answer: &Answer) -> Result<(), End> {
    let mut buf = [0; MAX_MESSAGE];
    let Ok(bytes) = encode(&answer.reply, &mut buf) else {
        return Err(End::Dropped("its answer is too long"));
    };
    let fds: Vec<_> = answer.fds.iter().map(|fd| fd.as_fd()).collect();
    match seqpacket::send(&client.socket, bytes, &fds, Duration::ZERO) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => Err(End::Dropped("it does not read its answers")),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(End::Left),
        Err(_) => Err(End::Dropped("its answer could not be sent")),
    }
}

fn exporter(config: &Config) -> Result<Option<Exporter>, ServeError> {
    let Some(wanted) = &config.metrics else { return Ok(None) };
    match Exporter::open(wanted, &config.run_dir, &config.limits) {
        Ok(exporter) => Ok(Some(exporter)),
        Err(why) if wanted.required => Err(ServeError::Metrics(why)),
        Err(why) => {
            warn!("{why}");
            Ok(None)
        }
    }
}

/// Each program costs the agent a dozen descriptors, so the limit is raised as far as it goes.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
