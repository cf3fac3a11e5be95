//! Requests over one connection, one at a time.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;

use super::arguments::Requests;
use super::gate::Gate;
use super::seen::Seen;
use super::socket::Socket;
use crate::stats::Histogram;

/// A clock is read for one of so many requests: reading it takes as long as a part of a request.
const TIMED: u64 = 16;

/// Rounds before the clock is started: the connection finds its way, caches fill.
pub const WARM_UP: u32 = 16;

/// `shunt load ping`.
#[derive(Args, Clone, Debug)]
pub struct Ping {
    /// Where to, and how much.
    #[command(flatten)]
    requests: Requests,
    /// End after so many requests.
    #[arg(long, default_value_t = u64::MAX)]
    rounds: u64,
    /// Send so many in a second, and sleep in between.
    #[arg(long)]
    per_second: Option<u32>,
}

impl Ping {
    /// Runs it.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let mut socket = Socket::connect(&self.requests.to)?;
        let mut buffer = vec![b'x'; self.requests.size];
        let mut round = || {
            socket.write_all(&buffer)?;
            if socket.read_message(&mut buffer)? {
                Ok(())
            } else {
                Err(io::Error::from(io::ErrorKind::UnexpectedEof))
            }
        };
        for _ in 0..WARM_UP {
            round()?;
        }
        gate.pass()?;
        let mut histogram = Histogram::default();
        let (operations, time) = match self.per_second {
            Some(rate) => self.paced(rate, &mut histogram, round)?,
            None => {
                let most = Duration::from_secs_f64(self.requests.seconds);
                closed_loop(most, self.rounds, &mut histogram, round)?
            }
        };
        Ok(Seen {
            operations,
            bytes: operations * 2 * self.requests.size as u64,
            seconds: time.as_secs_f64(),
            latency: histogram.quantiles(),
        })
    }

    /// A request each so often, the first one at some moment of the first period: many clients do not all ask at once.
    fn paced(
        &self,
        rate: u32,
        histogram: &mut Histogram,
        mut round: impl FnMut() -> io::Result<()>,
    ) -> io::Result<(u64, Duration)> {
        let most = Duration::from_secs_f64(self.requests.seconds);
        let period = Duration::from_secs(1) / rate.max(1);
        let start = Instant::now();
        let mut done = 0;
        let mut due = start + period.mul_f64(f64::from(std::process::id() % 1000) / 1000.0);
        std::thread::sleep(due.saturating_duration_since(start));
        while start.elapsed() < most && done < self.rounds {
            let before = Instant::now();
            round()?;
            record(histogram, before.elapsed());
            done += 1;
            due += period;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok((done, start.elapsed()))
    }
}

/// The next request as soon as the answer is there; ends after so long, or so many rounds.
pub fn closed_loop(
    most: Duration,
    rounds: u64,
    histogram: &mut Histogram,
    mut round: impl FnMut() -> io::Result<()>,
) -> io::Result<(u64, Duration)> {
    let start = Instant::now();
    let mut done = 0;
    loop {
        let before = Instant::now();
        round()?;
        let after = Instant::now();
        record(histogram, after - before);
        done += 1;
        if done >= rounds || after - start >= most {
            return Ok((done, after - start));
        }
        for _ in 1..TIMED.min(rounds - done + 1) {
            round()?;
            done += 1;
        }
        if done >= rounds {
            return Ok((done, start.elapsed()));
        }
    }
}

/// Adds a duration to a distribution.
pub fn record(histogram: &mut Histogram, time: Duration) {
    histogram.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}
