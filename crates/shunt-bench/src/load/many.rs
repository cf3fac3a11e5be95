//! Many open connections, of which some are active.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::Args;
use shunt_sys::epoll::{self, Epoll};

use super::arguments::Requests;
use super::gate::Gate;
use super::ping::record;
use super::seen::Seen;
use super::socket::Socket;
use crate::stats::Histogram;

/// Events that are taken at once.
const BATCH: usize = 256;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// `shunt load many`.
#[derive(Args, Clone, Debug)]
pub struct Many {
    /// Where to, and how much.
    #[command(flatten)]
    requests: Requests,
    /// Open connections.
    #[arg(long)]
    open: usize,
    /// Those that send requests, one at a time each.
    #[arg(long)]
    active: usize,
}

struct Conn {
    socket: Socket,
    answer: Vec<u8>,
    came: usize,
    asked: Instant,
}

impl Conn {
    /// Takes what is there; true when the answer is whole.
    fn take(&mut self) -> io::Result<bool> {
        match self.socket.read(&mut self.answer[self.came..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.came += n;
                Ok(self.came == self.answer.len())
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Many {
    /// Runs it.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let request = vec![b'x'; self.requests.size];
        let mut epoll = Epoll::new(BATCH)?;
        let mut conns = self.connect(&request, &epoll)?;
        gate.pass()?;
        let most = Duration::from_secs_f64(self.requests.seconds);
        let mut histogram = Histogram::default();
        let start = Instant::now();
        for conn in conns.iter_mut().take(self.active) {
            conn.asked = Instant::now();
            conn.socket.write_all(&request)?;
        }
        let mut operations = 0;
        let mut ready = Vec::with_capacity(BATCH);
        while start.elapsed() < most {
            ready.clear();
            ready.extend(epoll.wait(Some(PATIENCE))?.map(|event| event.data));
            if ready.is_empty() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answers"));
            }
            let now = Instant::now();
            for &data in &ready {
                let index = usize::try_from(data).unwrap_or(usize::MAX);
                let Some(conn) = conns.get_mut(index) else { continue };
                if conn.take()? {
                    record(&mut histogram, now - conn.asked);
                    operations += 1;
                    (conn.came, conn.asked) = (0, now);
                    conn.socket.write_all(&request)?;
                }
            }
        }
        Ok(Seen {
            operations,
            bytes: operations * 2 * self.requests.size as u64,
            seconds: start.elapsed().as_secs_f64(),
            latency: histogram.quantiles(),
        })
    }

    /// Opens all, and sends a request over each, so that each is what it will be.
    fn connect(&self, request: &[u8], epoll: &Epoll) -> io::Result<Vec<Conn>> {
        let mut conns = Vec::with_capacity(self.open);
        for index in 0..self.open {
            let mut socket = Socket::connect(&self.requests.to)?;
            let mut answer = vec![0; self.requests.size];
            for _ in 0..2 {
                socket.write_all(request)?;
                if !socket.read_message(&mut answer)? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            socket.set_nonblocking()?;
            epoll.add(socket.as_fd(), epoll::IN, index as u64)?;
            conns.push(Conn { socket, answer, came: 0, asked: Instant::now() });
        }
        Ok(conns)
    }
}
