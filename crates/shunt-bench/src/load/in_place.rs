//! Requests and answers that are granted by the sender and looked at in place by the receiver, one at a time. An
//! answer says that the request has been read, so nobody asks to be told so once more.

use std::io::{self, IoSlice};
use std::time::Duration;

use clap::Args;
use shunt_api::send::{self, Completion, Hint};
use shunt_api::{Memory, Released, Room};

use super::arguments::{Requests, Serve};
use super::gate::Gate;
use super::ping::{WARM_UP, closed_loop};
use super::seen::Seen;
use super::socket::{Listener, Socket};
use crate::stats::Histogram;

/// One end of such a connection.
struct End {
    socket: Socket,
    memory: Memory,
    room: Room,
}

impl End {
    fn new(socket: Socket, size: usize) -> io::Result<Self> {
        send::allow(&socket)?;
        let mut memory = Memory::new(size)?;
        memory.bytes().fill(b'x');
        Ok(Self { socket, memory, room: Room::new(size) })
    }

    fn send(&mut self) -> io::Result<()> {
        let mut left = &*self.memory.bytes();
        while !left.is_empty() {
            let part = [IoSlice::new(left)];
            let n = send::hinted(&self.socket, &part, &[Hint::Auto], Completion::Quiet)?;
            left = &left[n..];
        }
        Ok(())
    }

    /// Looks at a message of `len` bytes; false at the end.
    fn look(&mut self, len: usize) -> io::Result<bool> {
        let mut left = len;
        while left > 0 {
            let borrowed = self.room.borrow(&self.socket)?;
            if borrowed.is_empty() {
                return Ok(false);
            }
            let n = borrowed.len().min(left);
            if borrowed.release(n)? == Released::Whole {
                left -= n;
            }
        }
        Ok(true)
    }
}

/// One connection after the other. A connection that breaks is no reason to end.
pub fn serve(serve: &Serve) -> io::Result<()> {
    let listener = Listener::bind(&serve.at)?;
    loop {
        let mut end = End::new(listener.accept()?, serve.size)?;
        while let Ok(true) = end.look(serve.size) {
            if end.send().is_err() {
                break;
            }
        }
    }
}

/// `shunt load ping-in-place`.
#[derive(Args, Clone, Debug)]
pub struct Ping {
    /// Where to, and how much.
    #[command(flatten)]
    requests: Requests,
}

impl Ping {
    /// Runs it.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let size = self.requests.size;
        let mut end = End::new(Socket::connect(&self.requests.to)?, size)?;
        let mut round = || {
            end.send()?;
            if end.look(size)? { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        };
        for _ in 0..WARM_UP {
            round()?;
        }
        gate.pass()?;
        let mut histogram = Histogram::default();
        let most = Duration::from_secs_f64(self.requests.seconds);
        let (operations, time) = closed_loop(most, u64::MAX, &mut histogram, round)?;
        Ok(Seen {
            operations,
            bytes: operations * 2 * size as u64,
            seconds: time.as_secs_f64(),
            latency: histogram.quantiles(),
        })
    }
}
