//! The loop: accepts clients, takes their packets one at a time, sends the answers.
//!
//! The loop never waits for a client. Level-triggered epoll and one packet per turn keep a busy
//! client from holding up the others. The loop does not read a client that sends too much for a
//! while. It drops a client that does not read its answers, or does not identify itself. Inspectors
//! receive packets with descriptors, and let go of all that a client has had a hand in: either may
//! take as long as the client likes.

mod client;
mod clients;
mod exchange;
mod invitations;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shunt_inspector::{Claimant, Inspectors};
use shunt_sys::run_dir::TOTALS;
use tracing::{info, warn};

use crate::acceptor::Acceptor;
use crate::book::Book;
use crate::config::Config;
use crate::error::ServeError;
use crate::held::Grave;
use crate::membership::Membership;
use crate::metrics::{self, Exporter};
use crate::party::Account;
use crate::socket::Claim;
use crate::state::State;
use crate::wake_ups;

use client::{Client, Share};

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const METRICS: u64 = 2;
const RELOAD: u64 = 3;
const FABRIC: u64 = 4;
const INSPECTORS: u64 = 5;
const FIRST_CLIENT: u64 = 6;

/// Events taken from epoll at once.
const BATCH: usize = 64;

/// How long those who send too much are left alone before the next look at their allowance.
const PAUSE: Duration = Duration::from_millis(1);

/// How often the offers are looked through for those that are over.
const SWEEP: Duration = Duration::from_millis(50);

/// An agent at work.
#[derive(Debug)]
pub struct Server {
    config: Config,
    state: State,
    clients: HashMap<u64, Client>,
    /// How many of them are of a process. Those of pid namespaces that are not seen from here are all 0,
    /// and not counted.
    per_process: HashMap<i32, usize>,
    /// Invitations that are not used, by the process that has asked for them.
    invitations: HashMap<i32, usize>,
    /// Clients by account.
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
    inspectors: Inspectors<Account>,
    grave: Grave,
    acceptor: Acceptor,
    membership: Membership,
    metrics: Option<Exporter>,
    totals: PathBuf,
    claim: Claim,
}

impl Server {
    /// Sets up an agent that holds `claim` and ends when `stop` becomes readable.
    ///
    /// # Errors
    /// Those of epoll and of making the registry, and of metrics that are required.
    pub fn new(config: Config, claim: Claim, stop: OwnedFd) -> Result<Self, ServeError> {
        raise_descriptor_limit();
        // Its number is a low one, which is below the limit even where that has been lowered since.
        let acceptor = Acceptor::new();
        // Before there is anything that inspectors should not have.
        let inspectors = Inspectors::start(config.limits.of_inspectors(config.host.is_some()))?;
        let totals = config.run_dir.file(TOTALS).map_err(io::Error::other)?;
        let totals = PathBuf::from(OsStr::from_bytes(totals.as_bytes()));
        let ended = Book::load(&totals).unwrap_or_else(|e| {
            warn!("{} is not readable ({e}): totals start at zero", totals.display());
            Book::default()
        });
        let path = claim.path().display().to_string();
        let grave = Grave::default();
        let mut state =
            State::new(config.limits, config.host.as_ref(), ended, path, grave.clone())?;
        state.set_wake_ups(wake_ups::measure());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let sources = [
            (claim.socket().as_fd(), LISTENER),
            (stop.as_fd(), STOP),
            (inspectors.ear(), INSPECTORS),
        ];
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
        if let Some(rdma) = config.rdma.clone() {
            state.hear_peers(rdma, config.rdma_promote)?;
            if config.ivshmem.is_some() {
                warn!(
                    "memory is shared with other machines, so connections to other hosts stay on TCP"
                );
            } else {
                let data = epoll::EventData::new_u64(FABRIC);
                state.share_with_hosts(|ear| {
                    Ok(epoll::add(&epoll, ear, data, epoll::EventFlags::IN)?)
                })?;
            }
        }
        let membership = Membership::begin(config.ivshmem.clone(), &mut state, (&epoll, FABRIC))?;
        Ok(Self {
            config,
            state,
            clients: HashMap::new(),
            per_process: HashMap::new(),
            invitations: HashMap::new(),
            accounts: HashMap::new(),
            swept: Instant::now(),
            next_token: FIRST_CLIENT,
            nobodies: 0,
            paused: Vec::new(),
            last_used: Instant::now(),
            epoll,
            _stop: stop,
            reload: None,
            inspectors,
            grave,
            acceptor,
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
            let named = self.config.rdma.as_ref().map_or(&[][..], |rdma| &rdma.peers);
            self.state.reload_peers(named, self.config.rdma_promote);
        }
    }

    /// Serves until told to stop, or idle for too long.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub fn run(&mut self) -> io::Result<()> {
        info!("serving at {}", self.claim.path().display());
        while self.turn()? {}
        self.state.part_with_peers();
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
                INSPECTORS => self.hear_inspectors(),
                token if Exporter::owns(token) => self.serve_scraper(token),
                token => self.serve(token),
            }
        }
        self.state.hear();
        // Without a descriptor it is tried again when something happens next.
        let _ = self.state.tell_peers();
        self.membership.turn(&mut self.state, &self.epoll);
        self.drop_nobodies();
        self.state.end_bequests(Instant::now());
        if let Some(metrics) = &mut self.metrics {
            metrics.drop_late(&self.epoll);
        }
        self.bury_scrapers();
        self.resume();
        self.direct_inspectors();
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
        let bequests = self.state.next_bequest_ends(now);
        let server = self.membership.patience(&self.state, now);
        let inspectors = self.inspectors.patience();
        let waits =
            [introductions, paused, idle, scrapers, offers, shared, bequests, server, inspectors];
        waits.into_iter().flatten().min()
    }

    fn idle_for_too_long(&self) -> bool {
        let idle = self.config.idle_exit.filter(|_| self.clients.is_empty());
        idle.is_some_and(|d| self.last_used.elapsed() >= d)
    }

    /// Scrapers are no clients: they neither keep the agent from ending nor take a client's place.
    fn accept_scrapers(&mut self) {
        let Some(metrics) = &mut self.metrics else { return };
        for _ in 0..BATCH {
            if !metrics.accept(&mut self.acceptor, &self.epoll, &self.config.limits) {
                break;
            }
        }
    }

    fn serve_scraper(&mut self, token: u64) {
        if let Some(metrics) = &mut self.metrics {
            metrics.serve(token, &self.epoll, &self.state, &self.config.limits);
        }
    }

    /// Scrapers may have sent descriptors, too.
    fn bury_scrapers(&mut self) {
        let Some(metrics) = &mut self.metrics else { return };
        let left = metrics.take_left();
        if !left.is_empty() {
            let nobody = Claimant { process: 0, account: Account::User(u32::MAX) };
            self.inspectors.bury(&nobody, left);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.hang_up();
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
