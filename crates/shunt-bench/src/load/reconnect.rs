//! Connections that live for one request.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;

use super::arguments::Requests;
use super::gate::Gate;
use super::ping::record;
use super::seen::Seen;
use super::socket::Socket;
use crate::stats::Histogram;

/// `shunt load reconnect`.
#[derive(Args, Clone, Debug)]
pub struct Reconnect {
    /// Where to, and how much.
    #[command(flatten)]
    requests: Requests,
    /// End after so many connections: the ports of closed ones are taken for a minute.
    #[arg(long, default_value_t = u64::MAX)]
    most: u64,
}

impl Reconnect {
    /// Runs it.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let mut buffer = vec![b'x'; self.requests.size];
        let limit = Duration::from_secs_f64(self.requests.seconds);
        let mut histogram = Histogram::default();
        gate.pass()?;
        let start = Instant::now();
        let mut operations = 0;
        while start.elapsed() < limit && operations < self.most {
            let before = Instant::now();
            let mut socket = Socket::connect(&self.requests.to)?;
            socket.write_all(&buffer)?;
            if !socket.read_message(&mut buffer)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            drop(socket);
            record(&mut histogram, before.elapsed());
            operations += 1;
        }
        Ok(Seen {
            operations,
            bytes: operations * 2 * self.requests.size as u64,
            seconds: start.elapsed().as_secs_f64(),
            latency: histogram.quantiles(),
        })
    }
}
