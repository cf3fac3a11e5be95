//! The load programs of the bench's own: ordinary clients and servers on sockets, which know
//! nothing of Shunt. They are hidden subcommands of `shunt`, so that an installed `shunt` needs
//! nothing else.

mod enter;
mod gate;
mod lent;
mod many;
mod ping;
mod rate;
mod reader;
mod serve;
mod socket;
mod stream;
mod zerocopy;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use shunt_sys::stdio;

use crate::rig::endpoint::Endpoint;
use crate::stats::Quantile;
use gate::Gate;
use reader::Reading;

/// `shunt load`.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// A client stops when it is ready and when it is done, until it is sent on.
    #[arg(long)]
    stops: bool,
    /// Which.
    #[command(subcommand)]
    pub program: Program,
}

/// The load programs.
#[derive(Subcommand, Clone, Debug)]
pub enum Program {
    /// Become a program that ends with its parent and may open many files.
    Enter(enter::Enter),
    /// Serve requests of a fixed size, one connection after the other, with blocking calls.
    Serve(Serve),
    /// Serve requests on many connections at once, with epoll.
    ServeMany(Serve),
    /// Read and count what comes, one connection after the other; say at its end how much it was.
    Sink(Sink),
    /// Serve requests that are granted and looked at in place, with answers of the same kind.
    ServeLent(Serve),
    /// Send requests over one connection, one at a time.
    Ping(ping::Ping),
    /// Send such requests over one connection, one at a time.
    PingLent(lent::Ping),
    /// Send as much as the connection takes.
    Stream(stream::Stream),
    /// Connect, send one request, close; again and again.
    Rate(rate::Rate),
    /// Keep many connections open, of which some are active.
    Many(many::Many),
}

/// What all clients that send requests have in common.
#[derive(Args, Clone, Debug)]
pub struct Requests {
    /// The server.
    #[arg(long)]
    to: Endpoint,
    /// Bytes of a request, and of the answer to it.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// End after so long.
    #[arg(long)]
    seconds: f64,
}

/// A server.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// Where to listen.
    #[arg(long)]
    pub at: Endpoint,
    /// Bytes of a request, and of the answer to it.
    #[arg(long, default_value_t = 100)]
    pub size: usize,
}

/// A sink.
#[derive(Args, Clone, Debug)]
pub struct Sink {
    /// Where to listen.
    #[arg(long)]
    pub at: Endpoint,
    /// How it reads.
    #[command(flatten)]
    pub reading: Reading,
}

/// What a client has seen; the one line that it prints.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Requests, messages or connections.
    pub operations: u64,
    /// Bytes of payload, of both directions.
    pub bytes: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// How long a request took, from the first byte of the request to the last of the answer.
    pub latency: Vec<Quantile>,
}

impl Seen {
    /// Operations in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

/// Runs one; the exit status.
#[must_use]
pub fn run(load: Load) -> u8 {
    let gate = Gate { stops: load.stops };
    let seen = match load.program {
        Program::Enter(enter) => return fail(&enter.run()),
        Program::Serve(serve) => serve::blocking(&serve).map(|()| None),
        Program::ServeMany(serve) => serve::epoll(&serve).map(|()| None),
        Program::Sink(serve) => serve::sink(&serve).map(|()| None),
        Program::ServeLent(serve) => lent::serve(&serve).map(|()| None),
        Program::Ping(ping) => ping.run(gate).map(Some),
        Program::PingLent(ping) => ping.run(gate).map(Some),
        Program::Stream(stream) => stream.run(gate).map(Some),
        Program::Rate(rate) => rate.run(gate).map(Some),
        Program::Many(many) => many.run(gate).map(Some),
    };
    match seen {
        Ok(Some(seen)) => match serde_json::to_string(&seen) {
            Ok(line) => {
                let printed = stdio::print(&(line + "\n")).map_err(io::Error::other);
                printed.and_then(|()| gate.pass()).map_or_else(|e| fail(&e), |()| 0)
            }
            Err(e) => fail(&e.into()),
        },
        Ok(None) => 0,
        Err(e) => fail(&e),
    }
}

fn fail(error: &io::Error) -> u8 {
    let _ = writeln!(io::stderr(), "shunt load: {error}");
    1
}
