//! The client: several connections, over each of which the next request goes as soon as the answer
//! to the last one has come.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use shunt_sys::epoll::{self, Epoll};

use super::sizes::Sizes;
use crate::load::gate::Gate;
use crate::load::ping::record;
use crate::load::seen::Seen;
use crate::stats::Histogram;

/// Events that are taken at once.
const BATCH: usize = 256;

/// How long no answer at all may come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests over each connection before the clock is started, so that each is what it will be.
const WARM_UP: usize = 3;

/// What a server understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// A number and filling; the answer begins with the number after it.
    Numbers,
    /// memcached's: get a value of as many bytes as an answer is to have.
    Memcached,
}

/// `shunt load drive`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Drive {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    /// Connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Threads, among which the connections are dealt out.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Of the messages.
    #[command(flatten)]
    sizes: Sizes,
    /// What the server understands.
    #[arg(long, value_enum, default_value_t = Protocol::Numbers)]
    protocol: Protocol,
    /// Send requests for so long before the clock is started: until a server's code is compiled.
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// End after so long.
    #[arg(long)]
    seconds: f64,
}

/// The key of the value in memcached.
const KEY: &str = "shunt-bench";

/// Requests, and the answers that are right.
#[derive(Clone, Debug)]
struct Talk {
    protocol: Protocol,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Talk {
    fn new(protocol: Protocol, sizes: Sizes) -> Self {
        let value = "y".repeat(sizes.response);
        let (request, answer) = match protocol {
            Protocol::Numbers => (vec![b'x'; sizes.request], value.into_bytes()),
            Protocol::Memcached => {
                let answer = format!("VALUE {KEY} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                (format!("get {KEY}\r\n").into_bytes(), answer.into_bytes())
            }
        };
        Self { protocol, request, answer }
    }

    /// Makes the request of this number.
    fn number(&mut self, number: u64) {
        let place = self.request.first_chunk_mut().filter(|_| self.protocol == Protocol::Numbers);
        if let Some(place) = place {
            *place = number.to_be_bytes();
        }
    }

    /// An error unless it answers the request of this number.
    fn check(&self, number: u64, answer: &[u8]) -> io::Result<()> {
        let right = match self.protocol {
            Protocol::Numbers => {
                let came = answer.first_chunk().map(|came| u64::from_be_bytes(*came));
                came == Some(number.wrapping_add(1)) && answer.last() == self.answer.last()
            }
            Protocol::Memcached => answer == self.answer,
        };
        if right { Ok(()) } else { Err(io::Error::other("a wrong answer has come")) }
    }

    /// What a connection has to say before its first request, and what is answered.
    fn greeting(&self, sizes: Sizes) -> Option<(Vec<u8>, &'static [u8])> {
        let value = "y".repeat(sizes.response);
        let set = || format!("set {KEY} 0 0 {}\r\n{value}\r\n", value.len()).into_bytes();
        (self.protocol == Protocol::Memcached).then(|| (set(), &b"STORED\r\n"[..]))
    }
}

struct Conn {
    socket: TcpStream,
    answer: Vec<u8>,
    came: usize,
    number: u64,
    /// A request is under way.
    waits: bool,
    /// Since then, if that was while the clock ran.
    asked: Option<Instant>,
}

impl Conn {
    fn open(to: SocketAddr, len: usize, first: u64) -> io::Result<Self> {
        let socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        let answer = vec![0; len];
        Ok(Self { socket, answer, came: 0, number: first, waits: false, asked: None })
    }

    fn ask(&mut self, talk: &mut Talk, now: Instant) -> io::Result<()> {
        (self.came, self.waits, self.asked) = (0, true, Some(now));
        self.number = self.number.wrapping_add(1);
        talk.number(self.number);
        // A request is small beside what any connection takes at once, while none is unanswered.
        self.socket.write_all(&talk.request)
    }

    /// Takes what is there; true when the answer is whole, and right.
    fn take(&mut self, talk: &Talk) -> io::Result<bool> {
        match self.socket.read(&mut self.answer[self.came..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.came += n,
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(false),
                _ => return Err(e),
            },
        }
        if self.came < self.answer.len() {
            return Ok(false);
        }
        talk.check(self.number, &self.answer)?;
        self.waits = false;
        Ok(true)
    }
}

/// What a thread has seen.
struct Share {
    operations: u64,
    time: Duration,
    histogram: Histogram,
}

impl Drive {
    /// Runs it.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let threads = self.threads.min(self.connections);
        let (ready, are_ready) = mpsc::channel();
        let (done, are_done) = mpsc::channel();
        let start = Arc::new(Barrier::new(threads as usize + 1));
        for thread in 0..threads {
            let (drive, ready, done) = (*self, ready.clone(), done.clone());
            let start = Arc::clone(&start);
            thread::Builder::new()
                .spawn(move || drive.thread(thread, threads, &ready, &start, &done))?;
        }
        for _ in 0..threads {
            are_ready.recv().map_err(io::Error::other)??;
        }
        gate.pass()?;
        start.wait();
        let mut seen = Seen::default();
        let mut histogram = Histogram::default();
        for _ in 0..threads {
            let share = are_done.recv().map_err(io::Error::other)??;
            seen.operations += share.operations;
            seen.seconds = seen.seconds.max(share.time.as_secs_f64());
            histogram.merge(&share.histogram);
        }
        seen.bytes = seen.operations * (self.sizes.request + self.sizes.response) as u64;
        seen.latency = histogram.quantiles();
        Ok(seen)
    }

    /// One of so many threads: connects, says that it is ready, goes on with the others, and says
    /// what it has seen. It stays with its connections until the program ends: what threads and
    /// processes have used is looked up while they are there.
    fn thread(
        &self,
        thread: u32,
        threads: u32,
        ready: &Sender<io::Result<()>>,
        start: &Barrier,
        done: &Sender<io::Result<Share>>,
    ) {
        let mut talk = Talk::new(self.protocol, self.sizes);
        let connected = Epoll::new(BATCH).and_then(|epoll| {
            let conns = self.connect((thread..self.connections).step_by(threads as usize));
            let mut conns = conns.and_then(|conns| self.begin(conns, &mut talk, &epoll))?;
            let mut epoll = epoll;
            if self.warm_up > 0.0 {
                exchange(&mut conns, &mut talk, &mut epoll, self.warm_up)?;
            }
            Ok((epoll, conns))
        });
        // The program has ended with another thread's error if nothing listens any more.
        match connected {
            Ok((mut epoll, mut conns)) => {
                let _gone = ready.send(Ok(()));
                start.wait();
                let _gone = done.send(exchange(&mut conns, &mut talk, &mut epoll, self.seconds));
                loop {
                    thread::park();
                }
            }
            Err(e) => {
                let _gone = ready.send(Err(e));
            }
        }
    }

    fn connect(&self, numbers: impl Iterator<Item = u32>) -> io::Result<Vec<Conn>> {
        let len = Talk::new(self.protocol, self.sizes).answer.len();
        numbers.map(|n| Conn::open(self.to, len, u64::from(n) << 32)).collect()
    }

    /// Some requests over each connection. A server may take its connections in turn, so all are
    /// asked before one is answered.
    fn begin(&self, mut conns: Vec<Conn>, talk: &mut Talk, epoll: &Epoll) -> io::Result<Vec<Conn>> {
        if let Some((greeting, answer)) = talk.greeting(self.sizes) {
            for conn in &mut conns {
                conn.socket.write_all(&greeting)?;
                let mut came = vec![0; answer.len()];
                conn.socket.read_exact(&mut came)?;
                if came != answer {
                    return Err(io::Error::other(String::from_utf8_lossy(&came).into_owned()));
                }
            }
        }
        for _ in 0..WARM_UP {
            let now = Instant::now();
            conns.iter_mut().try_for_each(|conn| conn.ask(talk, now))?;
            for conn in &mut conns {
                while !conn.take(talk)? {}
            }
        }
        for (index, conn) in conns.iter().enumerate() {
            conn.socket.set_nonblocking(true)?;
            epoll.add(conn.socket.as_fd(), epoll::IN, index as u64)?;
        }
        Ok(conns)
    }
}

/// The load. What is under way at the end is left so; what was under way before does not count.
fn exchange(
    conns: &mut [Conn],
    talk: &mut Talk,
    epoll: &mut Epoll,
    seconds: f64,
) -> io::Result<Share> {
    let mut share = Share { operations: 0, time: Duration::ZERO, histogram: Histogram::default() };
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    for conn in &mut *conns {
        if conn.waits {
            conn.asked = None;
        } else {
            conn.ask(talk, start)?;
        }
    }
    let mut ready = Vec::with_capacity(BATCH);
    let mut last = start;
    loop {
        // A thread may have to wait for the end: a server that takes its connections in turn stops
        // when another thread has sent its last request.
        let now = Instant::now();
        let left = end.saturating_duration_since(now);
        if left.is_zero() {
            share.time = now - start;
            return Ok(share);
        }
        ready.clear();
        let patience = left.min(PATIENCE) + Duration::from_millis(1);
        ready.extend(epoll.wait(Some(patience))?.map(|event| event.data));
        let now = Instant::now();
        if now.saturating_duration_since(last) > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answers"));
        }
        for &data in &ready {
            let index = usize::try_from(data).unwrap_or(usize::MAX);
            let Some(conn) = conns.get_mut(index) else { continue };
            if conn.take(talk)? {
                if let Some(asked) = conn.asked {
                    record(&mut share.histogram, now - asked);
                    share.operations += 1;
                }
                last = now;
                conn.ask(talk, now)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked() {
        let sizes = Sizes { request: 10, response: 12 };
        let mut talk = Talk::new(Protocol::Numbers, sizes);
        talk.number(7);
        assert_eq!(talk.request, b"\0\0\0\0\0\0\0\x07xx");
        assert!(talk.check(7, b"\0\0\0\0\0\0\0\x08yyyy").is_ok());
        assert!(talk.check(7, b"\0\0\0\0\0\0\0\x07yyyy").is_err());
        assert!(talk.check(7, b"\0\0\0\0\0\0\0\x08yyyx").is_err());
        assert!(talk.greeting(sizes).is_none());

        let mut talk = Talk::new(Protocol::Memcached, sizes);
        talk.number(7);
        assert_eq!(talk.request, b"get shunt-bench\r\n");
        let (greeting, stored) = talk.greeting(sizes).unwrap();
        assert_eq!(greeting, b"set shunt-bench 0 0 12\r\nyyyyyyyyyyyy\r\n");
        assert_eq!(stored, b"STORED\r\n");
        let answer = b"VALUE shunt-bench 0 12\r\nyyyyyyyyyyyy\r\nEND\r\n";
        assert!(talk.check(7, answer).is_ok() && talk.check(7, &answer[1..]).is_err());
    }
}
