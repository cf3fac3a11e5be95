//! Threads that own connections: each waits for its sockets, its stores and news in one epoll instance, and for
//! nothing else.

mod block_io;
mod commands;
mod conn;
mod context;
mod link;
mod pending;
mod task;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shunt_sys::epoll::{self, Epoll};
use tracing::error;

use crate::buffers::Buffers;
use crate::metrics::{Counter, Counts};
use crate::server::Ticket;
use crate::site::Site;
use crate::store::{Done, Mailbox};
use conn::{Conn, Over};
use context::Context;
use pending::Pending;

/// The mailbox's token; connections have others.
const MAILBOX: u64 = u64::MAX;
/// Events taken from epoll at once.
const BATCH: usize = 128;
/// How often connections are looked through for those that have taken too long, while there are some.
const SWEEP: Duration = Duration::from_millis(500);

/// What a thread is told.
#[derive(Debug)]
pub enum News {
    /// A host has connected.
    Came(TcpStream, SocketAddr, Ticket),
    /// The target ends: commands that have begun are answered until then.
    End(Instant),
}

#[derive(Debug)]
struct Inbox {
    news: Mutex<Vec<News>>,
    mailbox: Arc<Mailbox>,
}

/// A handle on a thread.
#[derive(Debug)]
pub struct Worker {
    inbox: Arc<Inbox>,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the `n`th of so many threads.
    ///
    /// # Errors
    /// Those of making its memory, its descriptors and the thread.
    pub fn start(n: usize, of: NonZeroUsize, site: &Arc<Site>) -> io::Result<Self> {
        let limits = *site.limits();
        let bytes = usize::try_from(limits.in_flight).unwrap_or(usize::MAX) / of;
        let mailbox = Arc::new(Mailbox::new()?);
        let inbox = Arc::new(Inbox { news: Mutex::default(), mailbox });
        let counts = Arc::new(Counts::default());
        let (site, given, counted) = (Arc::clone(site), Arc::clone(&inbox), Arc::clone(&counts));
        let post = site.register(&given.mailbox);
        let epoll = Epoll::new(BATCH)?;
        epoll.add(given.mailbox.bell(), epoll::IN, MAILBOX)?;
        let run = move || {
            // Of this thread alone: made in it.
            let largest = limits.transfer as usize;
            let run = Buffers::new(bytes.max(largest), largest).and_then(|buffers| {
                let context = Context {
                    site,
                    buffers,
                    mailbox: Arc::clone(&given.mailbox),
                    post,
                    pending: Pending::default(),
                    counts: counted,
                };
                Thread { inbox: given, epoll, context, conns: Vec::new(), until: None }.run()
            });
            if let Err(e) = run {
                error!("a thread of the target failed: {e}");
                // Half a target would serve some hosts and leave others waiting.
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().name(format!("nvme-{n}")).spawn(run)?;
        Ok(Self { inbox, counts, thread })
    }

    /// What it counts.
    #[must_use]
    pub const fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Tells it something.
    pub fn tell(&self, news: News) {
        self.inbox.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.inbox.mailbox.ring();
    }

    /// Waits for its end.
    pub fn join(self) {
        let _panicked = self.thread.join();
    }
}

/// A place for a connection, and how often it was used: so no event is taken for one of another connection.
#[derive(Debug, Default)]
struct Place {
    used: u32,
    conn: Option<Conn>,
}

struct Thread {
    inbox: Arc<Inbox>,
    epoll: Epoll,
    context: Context,
    conns: Vec<Place>,
    /// It is to end then, or when all connections have.
    until: Option<Instant>,
}

const fn token(index: u32, used: u32) -> u64 {
    (used as u64) << 32 | index as u64
}

impl Thread {
    fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::with_capacity(BATCH);
        let mut done = Vec::new();
        let mut swept = Instant::now();
        loop {
            let busy = self.conns.iter().any(|place| place.conn.is_some());
            let idle = !busy && self.context.pending.is_empty();
            if self.until.is_some_and(|until| idle || until <= Instant::now()) {
                return Ok(());
            }
            ready.clear();
            let timeout = (busy || self.until.is_some()).then_some(SWEEP);
            ready.extend(self.epoll.wait(timeout)?.map(|event| event.data));
            for &token in &ready {
                if token == MAILBOX {
                    self.context.mailbox.take(&mut done);
                    self.complete(&mut done)?;
                    self.news()?;
                } else {
                    self.serve(token)?;
                }
            }
            self.feed()?;
            let now = Instant::now();
            if now - swept >= SWEEP {
                swept = now;
                self.sweep(now)?;
            }
        }
    }

    fn at(&mut self, token: u64) -> Option<(&mut Conn, &mut Context)> {
        let index = usize::try_from(token & u64::from(u32::MAX)).ok()?;
        let place = self.conns.get_mut(index)?;
        let conn = place.conn.as_mut().filter(|_| u64::from(place.used) == token >> 32)?;
        Some((conn, &mut self.context))
    }

    fn serve(&mut self, token: u64) -> io::Result<()> {
        let Some((conn, context)) = self.at(token) else { return Ok(()) };
        let went = conn.serve(context);
        self.settle(token, went)
    }

    /// After a connection was served: it waits for other events, or it is over.
    fn settle(&mut self, token: u64, went: Result<(), Over>) -> io::Result<()> {
        if let Err(over) = went {
            self.remove(token, &over);
            return Ok(());
        }
        let index = usize::try_from(token & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let conn = self.conns.get_mut(index).and_then(|place| place.conn.as_mut());
        match conn.and_then(|conn| conn.watch().map(|events| (conn, events))) {
            Some((conn, events)) => self.epoll.modify(conn.fd(), events, token),
            None => Ok(()),
        }
    }

    fn remove(&mut self, token: u64, over: &Over) {
        let index = usize::try_from(token & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let Some(place) = self.conns.get_mut(index) else { return };
        if let Some(conn) = place.conn.take() {
            place.used = place.used.wrapping_add(1);
            conn.end(over, &mut self.context);
            self.context.counts.one(Counter::Ended);
        }
    }

    fn complete(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let mut served = Vec::new();
        for done in done.drain(..) {
            let Some(entry) = self.context.pending.remove(done.tag) else { continue };
            let token = entry.token;
            // Of a connection that is over, the buffers go back now.
            let Some((conn, context)) = self.at(token) else { continue };
            conn.completed(entry, done.outcome, context);
            if !served.contains(&token) {
                served.push(token);
            }
        }
        // Answers to several commands go out together.
        served.into_iter().try_for_each(|token| self.serve(token))
    }

    fn news(&mut self) -> io::Result<()> {
        let inbox = Arc::clone(&self.inbox);
        let news = std::mem::take(&mut *inbox.news.lock().unwrap_or_else(PoisonError::into_inner));
        for notice in self.context.post.take() {
            self.each(|conn, context| conn.notice(notice, context))?;
        }
        for news in news {
            match news {
                News::Came(socket, from, ticket) => self.admit(socket, from, ticket)?,
                News::End(until) => {
                    self.until = Some(until);
                    self.each(Conn::finish)?;
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, socket: TcpStream, from: SocketAddr, ticket: Ticket) -> io::Result<()> {
        let free = self.conns.iter().position(|place| place.conn.is_none());
        let index = free.unwrap_or_else(|| {
            self.conns.push(Place::default());
            self.conns.len() - 1
        });
        let place = &mut self.conns[index];
        let token = token(u32::try_from(index).unwrap_or(u32::MAX), place.used);
        let conn = Conn::new(token, (socket, from, ticket), &self.context);
        self.epoll.add(conn.fd(), epoll::IN, token)?;
        place.conn = Some(conn);
        if self.until.is_some() {
            self.each(Conn::finish)?;
        }
        Ok(())
    }

    /// Does something with each connection.
    fn each(
        &mut self,
        mut what: impl FnMut(&mut Conn, &mut Context) -> Result<(), Over>,
    ) -> io::Result<()> {
        for index in 0..self.conns.len() {
            let place = &mut self.conns[index];
            let token = token(u32::try_from(index).unwrap_or(u32::MAX), place.used);
            let Some(conn) = &mut place.conn else { continue };
            let went = what(conn, &mut self.context);
            self.settle(token, went)?;
        }
        Ok(())
    }

    /// Goes on with connections that waited for a buffer, if there are buffers again.
    fn feed(&mut self) -> io::Result<()> {
        if !self.context.buffers.take_freed() {
            return Ok(());
        }
        self.each(Conn::feed)
    }

    fn sweep(&mut self, now: Instant) -> io::Result<()> {
        for conn in self.conns.iter_mut().filter_map(|place| place.conn.as_mut()) {
            conn.report(&self.context);
        }
        self.context.site.expire();
        self.each(|conn, context| conn.sweep(now, context))
    }
}
