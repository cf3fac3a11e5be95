//! Servers that wait in epoll_wait(2).

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::conn::{Conn, Next, Service};

/// Threads and epoll instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// So many threads, an instance for each.
    Each(usize),
    /// So many threads, one instance for all.
    Shared(usize),
    /// One thread, one instance, edge-triggered.
    Edge,
    /// One thread, one instance, in which are a timerfd and a pipe, too.
    Mixed,
}

/// Numbers of what is no connection.
const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const PIPE: u64 = u64::MAX - 2;

/// Events that are taken at once.
const BATCH: usize = 256;

/// How often the timer expires, as those of event loops do.
const TICK: Duration = Duration::from_millis(10);

type Shared<T> = Arc<Mutex<T>>;

/// A server.
struct Server {
    listener: TcpListener,
    service: Service,
    layout: Layout,
    instances: Vec<Epoll>,
    /// Connections by their numbers; those of ended ones are used again.
    conns: RwLock<Vec<Option<Shared<Conn>>>>,
    /// Connections so far.
    accepted: AtomicUsize,
}

/// The descriptors of the kernel's that [`Layout::Mixed`] waits for. Whenever the timer expires, a
/// byte goes through the pipe.
struct Clockwork {
    timer: TimerFd,
    reader: PipeReader,
    writer: PipeWriter,
}

/// Serves until something goes wrong.
pub fn serve(listener: TcpListener, service: Service, layout: Layout) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let (instances, threads) = match layout {
        Layout::Each(threads) => (threads, threads),
        Layout::Shared(threads) => (1, threads),
        Layout::Edge | Layout::Mixed => (1, 1),
    };
    let instance = |_| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
    let instances = (0..instances).map(instance).collect::<nix::Result<Vec<_>>>()?;
    let clockwork = match layout {
        Layout::Mixed => Some(Clockwork::new(&instances[0])?),
        _ => None,
    };
    instances[0].add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let (conns, accepted) = (RwLock::default(), AtomicUsize::new(0));
    let server = Server { listener, service, layout, instances, conns, accepted };
    thread::scope(|scope| -> io::Result<()> {
        for thread in 1..threads {
            let server = &server;
            scope.spawn(move || give_up(&server.work(thread, None)));
        }
        give_up(&server.work(0, clockwork))
    })
}

/// Ends the whole server when one of its threads cannot go on.
fn give_up(error: &io::Error) -> ! {
    let _ = writeln!(io::stderr(), "shunt load: {error}");
    std::process::exit(1)
}

impl Clockwork {
    fn new(epoll: &Epoll) -> io::Result<Self> {
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        timer.set(Expiration::Interval(TICK.into()), TimerSetTimeFlags::empty())?;
        let (reader, writer) = io::pipe()?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        epoll.add(&reader, EpollEvent::new(EpollFlags::EPOLLIN, PIPE))?;
        Ok(Self { timer, reader, writer })
    }

    fn tick(&mut self) -> io::Result<()> {
        match self.timer.wait() {
            Ok(()) => self.writer.write_all(b"t"),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Server {
    /// What a thread does; returns what kept it from going on.
    fn work(&self, thread: usize, clockwork: Option<Clockwork>) -> io::Error {
        let instance = &self.instances[thread % self.instances.len()];
        match self.take_events(instance, clockwork) {
            Ok(never) => match never {},
            Err(e) => e,
        }
    }

    fn take_events(
        &self,
        instance: &Epoll,
        mut clockwork: Option<Clockwork>,
    ) -> io::Result<std::convert::Infallible> {
        let mut room = [EpollEvent::empty(); BATCH];
        loop {
            let n = match instance.wait(&mut room, EpollTimeout::NONE) {
                Ok(n) => n,
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e.into()),
            };
            for event in &room[..n] {
                match (event.data(), &mut clockwork) {
                    (LISTENER, _) => self.accept()?,
                    (TIMER, Some(clockwork)) => clockwork.tick()?,
                    (PIPE, Some(clockwork)) => clockwork.reader.read_exact(&mut [0])?,
                    (number, _) => self.step(instance, number)?,
                }
            }
        }
    }

    /// What a connection is watched for; none if that does not change.
    fn watch(&self, next: Next) -> Option<EpollFlags> {
        let wanted = if next == Next::Write { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
        match self.layout {
            // It is watched for both all the time.
            Layout::Edge => None,
            Layout::Shared(_) => Some(wanted | EpollFlags::EPOLLONESHOT),
            Layout::Each(_) | Layout::Mixed => Some(wanted),
        }
    }

    /// Takes all that want to connect, and deals them out.
    fn accept(&self) -> io::Result<()> {
        while let Some(conn) = Conn::accept(&self.listener, self.service)? {
            conn.set_nonblocking()?;
            let turn = self.accepted.fetch_add(1, Ordering::Relaxed);
            let instance = &self.instances[turn % self.instances.len()];
            let conn = Arc::new(Mutex::new(conn));
            let number = {
                let mut conns = self.conns.write().unwrap_or_else(PoisonError::into_inner);
                let free = conns.iter().position(Option::is_none).unwrap_or(conns.len());
                if free == conns.len() {
                    conns.push(None);
                }
                conns[free] = Some(Arc::clone(&conn));
                free as u64
            };
            let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
            let flags = self.watch(Next::Read).unwrap_or(edge);
            let conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
            instance.add(conn.as_fd(), EpollEvent::new(flags, number))?;
        }
        Ok(())
    }

    fn step(&self, instance: &Epoll, number: u64) -> io::Result<()> {
        let Ok(index) = usize::try_from(number) else { return Ok(()) };
        let conns = self.conns.read().unwrap_or_else(PoisonError::into_inner);
        // It may have ended since the event was taken.
        let Some(Some(conn)) = conns.get(index) else { return Ok(()) };
        let conn = Arc::clone(conn);
        drop(conns);
        let mut conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
        let was_writing = conn.is_answering();
        let next = conn.step(self.layout == Layout::Edge);
        if next == Next::Close {
            let mut conns = self.conns.write().unwrap_or_else(PoisonError::into_inner);
            conns[index] = None;
            return Ok(());
        }
        let oneshot = matches!(self.layout, Layout::Shared(_));
        let changed = oneshot || was_writing != (next == Next::Write);
        if let Some(flags) = self.watch(next).filter(|_| changed) {
            instance.modify(conn.as_fd(), &mut EpollEvent::new(flags, number))?;
        }
        Ok(())
    }
}
