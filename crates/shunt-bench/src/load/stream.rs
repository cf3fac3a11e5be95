//! As many bytes as the connection takes.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;

use super::gate::Gate;
use super::seen::Seen;
use super::socket::Socket;
use super::zerocopy::{From, Sender};
use crate::rig::endpoint::Endpoint;

/// Sends between two looks at the clock.
const BATCH: u32 = 16;

/// `shunt load stream`.
#[derive(Args, Clone, Debug)]
pub struct Stream {
    /// A sink.
    #[arg(long)]
    to: Endpoint,
    /// Bytes of each send.
    #[arg(long, default_value_t = 64_000)]
    size: usize,
    /// Send from so many buffers in turn.
    #[arg(long, default_value_t = 1)]
    buffers: usize,
    /// End after so long.
    #[arg(long)]
    seconds: f64,
    /// Send with `MSG_ZEROCOPY`, from registered memory where there is any.
    #[arg(long)]
    zerocopy: bool,
    /// The same, from private memory.
    #[arg(long, conflicts_with = "zerocopy")]
    zerocopy_private: bool,
}

impl Stream {
    /// Runs it. What counts is what has arrived when the sink has seen the end.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let mut socket = Socket::connect(&self.to)?;
        let buffers = vec![b'x'; self.size * self.buffers];
        let mut turn = buffers.chunks_exact(self.size).cycle();
        let from = match (self.zerocopy, self.zerocopy_private) {
            (true, _) => Some(From::Registered),
            (_, true) => Some(From::Private),
            _ => None,
        };
        let sender = |from| Sender::new(&socket, from, (self.size, self.buffers));
        let mut sender = from.map(sender).transpose()?;
        let most = Duration::from_secs_f64(self.seconds);
        gate.pass()?;
        let start = Instant::now();
        while start.elapsed() < most {
            for _ in 0..BATCH {
                match (&mut sender, turn.next()) {
                    (Some(sender), _) => sender.send(&socket)?,
                    (None, buffer) => socket.write_all(buffer.unwrap_or_default())?,
                }
            }
        }
        socket.shutdown_write()?;
        let mut arrived = [0; 8];
        if !socket.read_message(&mut arrived)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (bytes, time) = (u64::from_be_bytes(arrived), start.elapsed());
        Ok(Seen {
            operations: bytes / self.size as u64,
            bytes,
            seconds: time.as_secs_f64(),
            latency: Vec::new(),
        })
    }
}
