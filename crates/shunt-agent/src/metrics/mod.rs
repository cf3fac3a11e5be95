//! Metrics for a monitoring system: OpenMetrics text over HTTP, within the agent's one loop.
//!
//! [`shunt_metrics`] parses the address, makes the listening socket, and turns bytes into a request
//! and an answer into bytes. `text` renders the agent's knowledge. This file holds the clients: few
//! at a time, each with few bytes and little time to send them. A library's packet never waits for
//! any of them.

mod text;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use shunt_metrics::Listener;
use shunt_metrics::http::{self, Parsed, Status};
use shunt_sys::run_dir::{METRICS, RunDir};
use shunt_sys::seqpacket;
use tracing::debug;

pub use shunt_metrics::{Address, BadAddress, MetricsError};

use crate::acceptor::{Accepted, Acceptor};
use crate::allowance::{Allowance, REPORT_COST};
use crate::config::{Limits, Metrics};
use crate::state::State;

/// Tokens of scrapers have this bit, those of others do not.
const SCRAPER: u64 = 1 << 63;

/// Longest request that is read. Prometheus sends some 300 bytes.
const MAX_REQUEST: usize = 4096;

/// How much is read of one who goes on talking after the answer. Closing a socket with unread bytes would
/// take the answer back.
const MAX_IGNORED: usize = 64 << 10;

/// What a scraper and the agent are about.
#[derive(Debug)]
enum Phase {
    /// It asks.
    Asking(Vec<u8>),
    /// It is being answered; so many bytes are sent.
    Answering(Vec<u8>, usize),
    /// It has its answer, and so many bytes of it were thrown away since.
    Leaving(usize),
}

#[derive(Debug)]
struct Scraper {
    socket: OwnedFd,
    phase: Phase,
    /// When it is dropped, however far it has come.
    until: Instant,
}

/// The end of a scraper's connection.
struct Ended;

/// Those who ask for metrics.
#[derive(Debug)]
pub(crate) struct Exporter {
    listener: Listener,
    scrapers: HashMap<u64, Scraper>,
    next: u64,
    /// Connections that are over. Who has sent descriptors along must not have them closed here.
    left: Vec<OwnedFd>,
    /// That of all of them together: a loop of scrapes must not take the time of libraries.
    allowance: Allowance,
}

impl Exporter {
    pub(crate) fn open(
        wanted: &Metrics,
        run_dir: &RunDir,
        limits: &Limits,
    ) -> Result<Self, MetricsError> {
        let usual = || {
            let path = run_dir.file(METRICS).map_err(|why| io::Error::other(why.to_string()))?;
            Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
        };
        let listener = Listener::open(&wanted.address, wanted.public, usual)?;
        let allowance = Allowance::new(limits, Instant::now());
        Ok(Self { listener, scrapers: HashMap::new(), next: SCRAPER, left: Vec::new(), allowance })
    }

    /// Where it is to be reached.
    pub(crate) fn address(&self) -> &Address {
        self.listener.address()
    }

    /// The listening socket.
    pub(crate) fn socket(&self) -> &OwnedFd {
        self.listener.socket()
    }

    /// True for a scraper's token.
    pub(crate) const fn owns(token: u64) -> bool {
        token & SCRAPER != 0
    }

    /// How long until somebody's time is up.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        let until = self.scrapers.values().map(|s| s.until).min()?;
        Some(until.saturating_duration_since(now))
    }

    /// Lets somebody in. False when nobody is waiting.
    pub(crate) fn accept(
        &mut self,
        acceptor: &mut Acceptor,
        epoll: &OwnedFd,
        limits: &Limits,
    ) -> bool {
        match acceptor.accept(self.listener.socket()) {
            Accepted::Connection(socket) => self.admit(socket, epoll, limits),
            Accepted::Aborted => {}
            Accepted::Exhausted(socket) => {
                self.left.extend(socket);
                return false;
            }
            Accepted::Nothing => return false,
        }
        true
    }

    fn admit(&mut self, socket: OwnedFd, epoll: &OwnedFd, limits: &Limits) {
        if self.scrapers.len() >= limits.scrapers {
            debug!("too many scrapers: one was turned away");
            self.hang_up_on(epoll, socket);
            return;
        }
        let token = self.next;
        self.next = self.next.wrapping_add(1) | SCRAPER;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            return self.hang_up_on(epoll, socket);
        }
        let until = Instant::now() + limits.scrape;
        self.scrapers.insert(token, Scraper { socket, phase: Phase::Asking(Vec::new()), until });
    }

    fn hang_up_on(&mut self, epoll: &OwnedFd, socket: OwnedFd) {
        // It stays open for a moment.
        let _ = epoll::delete(epoll, &socket);
        let _ = shutdown(&socket, Shutdown::Both);
        self.left.push(socket);
    }

    /// Connections that are over, to be buried.
    pub(crate) fn take_left(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.left)
    }

    /// The agent ends: all connections, and the listening socket, at which there may be others.
    pub(crate) fn hang_up(&mut self) -> Vec<OwnedFd> {
        let mut left = self.take_left();
        left.extend(self.scrapers.drain().map(|(_, scraper)| scraper.socket));
        left.extend(self.listener.socket().try_clone());
        left
    }

    /// Goes on with one scraper, as far as can be without waiting.
    pub(crate) fn serve(&mut self, token: u64, epoll: &OwnedFd, state: &State, limits: &Limits) {
        let Some(scraper) = self.scrapers.get_mut(&token) else { return };
        let allowance = &mut self.allowance;
        let answer = |asked: Parsed| answer(asked, allowance, state, limits);
        match scraper.proceed(answer) {
            Ok(events) => {
                let data = epoll::EventData::new_u64(token);
                let _ = epoll::modify(epoll, &scraper.socket, data, events);
            }
            Err(Ended) => {
                if let Some(scraper) = self.scrapers.remove(&token) {
                    self.hang_up_on(epoll, scraper.socket);
                }
            }
        }
    }

    /// Drops those whose time is up.
    pub(crate) fn drop_late(&mut self, epoll: &OwnedFd) {
        if self.scrapers.is_empty() {
            return;
        }
        let now = Instant::now();
        let late: Vec<_> = self.scrapers.extract_if(|_, scraper| scraper.until <= now).collect();
        for (_, scraper) in late {
            self.hang_up_on(epoll, scraper.socket);
        }
    }
}

impl Scraper {
    /// One step of what is to be done now; returns what it waits for next.
    fn proceed(
        &mut self,
        answer: impl FnOnce(Parsed) -> Vec<u8>,
    ) -> Result<epoll::EventFlags, Ended> {
        if let Phase::Asking(request) = &mut self.phase {
            let mut room = [0; MAX_REQUEST];
            let room = &mut room[..MAX_REQUEST - request.len()];
            match receive(&self.socket, room)? {
                None => return Ok(epoll::EventFlags::IN),
                Some(part) => request.extend_from_slice(part),
            }
            let asked = match http::parse(request) {
                Parsed::Incomplete if request.len() < MAX_REQUEST => {
                    return Ok(epoll::EventFlags::IN);
                }
                Parsed::Incomplete => Parsed::Refused(Status::TooLong),
                asked => asked,
            };
            self.phase = Phase::Answering(answer(asked), 0);
        }
        if let Phase::Answering(answer, sent) = &mut self.phase {
            while let Some(rest) = answer.get(*sent..).filter(|rest| !rest.is_empty()) {
                match send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(count) => *sent += count,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(epoll::EventFlags::OUT),
                    Err(_) => return Err(Ended),
                }
            }
            shutdown(&self.socket, Shutdown::Write).map_err(|_| Ended)?;
            self.phase = Phase::Leaving(0);
        }
        if let Phase::Leaving(ignored) = &mut self.phase {
            let mut room = [0; MAX_REQUEST];
            if let Some(part) = receive(&self.socket, &mut room)? {
                *ignored += part.len();
            }
            if *ignored > MAX_IGNORED {
                return Err(Ended);
            }
        }
        Ok(epoll::EventFlags::IN)
    }
}

/// What has come; `None`: nothing yet. Bytes with descriptors are left where they are.
fn receive(socket: impl AsFd, room: &mut [u8]) -> Result<Option<&[u8]>, Ended> {
    match seqpacket::peek(&socket, room) {
        Ok(peeked) if peeked.len == 0 || peeked.has_fds => Err(Ended),
        // No more than was looked at.
        Ok(peeked) => match recv(socket, &mut room[..peeked.len], RecvFlags::DONTWAIT) {
            Ok((count, _)) => Ok(room.get(..count)),
            Err(_) => Err(Ended),
        },
        Err(Errno::AGAIN) => Ok(None),
        Err(_) => Err(Ended),
    }
}

fn answer(asked: Parsed, allowance: &mut Allowance, state: &State, limits: &Limits) -> Vec<u8> {
    let with_body = match asked {
        Parsed::Metrics { with_body } => with_body,
        Parsed::Refused(status) => return http::refusal(status),
        Parsed::Incomplete => return http::refusal(Status::Malformed),
    };
    if !allowance.take(REPORT_COST, limits, Instant::now()) {
        return http::refusal(Status::TooOften);
    }
    match text::render(state) {
        Ok(text) => http::metrics(&text, with_body),
        Err(std::fmt::Error) => http::refusal(Status::Failed),
    }
}

/// Has epoll report those who want to come in under `token`.
pub(crate) fn watch(epoll: &OwnedFd, exporter: &Exporter, token: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(token);
    Ok(epoll::add(epoll, exporter.socket(), data, epoll::EventFlags::IN)?)
}
