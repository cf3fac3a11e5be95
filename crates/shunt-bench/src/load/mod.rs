//! The load programs of the bench's own: ordinary clients and servers on sockets, which know
//! nothing of Shunt. They are hidden subcommands of `shunt`, so that an installed `shunt` needs
//! nothing else.

mod arguments;
mod exec;
mod gate;
mod guest;
mod in_place;
mod many;
mod ping;
mod reader;
mod reconnect;
mod seen;
mod serve;
pub mod shapes;
mod socket;
mod stream;
pub mod work;
mod zerocopy;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use shunt_sys::stdio;

use arguments::{Serve, Sink};
use gate::Gate;
pub use seen::Seen;

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
    Exec(exec::Exec),
    /// Serve requests of a fixed size, one connection after the other, with blocking calls.
    Serve(Serve),
    /// Serve requests on many connections at once, with epoll.
    ServeMany(Serve),
    /// Read and count what comes, one connection after the other; say at its end how much it was.
    Sink(Sink),
    /// Serve requests that are granted and looked at in place, with answers of the same kind.
    ServeInPlace(Serve),
    /// Serve requests in one of the shapes that servers have.
    ServeShape(shapes::Serve),
    /// Send requests over several connections, one at a time over each.
    Drive(shapes::Drive),
    /// Send requests over one connection, one at a time.
    Ping(ping::Ping),
    /// Send such requests over one connection, one at a time.
    PingInPlace(in_place::Ping),
    /// Send as much as the connection takes.
    Stream(stream::Stream),
    /// Connect, send one request, close; again and again.
    Reconnect(reconnect::Reconnect),
    /// Keep many connections open, of which some are active.
    Many(many::Many),
    /// Write to an emulated disk as a guest without a processor.
    Guest(guest::Guest),
}

/// Runs one; the exit status.
#[must_use]
pub fn run(load: Load) -> u8 {
    let gate = Gate { stops: load.stops };
    let seen = match load.program {
        Program::Exec(exec) => return fail(&exec.run()),
        Program::Serve(serve) => serve::blocking(&serve).map(|()| None),
        Program::ServeMany(serve) => serve::epoll(&serve).map(|()| None),
        Program::Sink(serve) => serve::sink(&serve).map(|()| None),
        Program::ServeInPlace(serve) => in_place::serve(&serve).map(|()| None),
        Program::ServeShape(serve) => serve.run().map(|()| None),
        Program::Drive(drive) => drive.run(gate).map(Some),
        Program::Ping(ping) => ping.run(gate).map(Some),
        Program::PingInPlace(ping) => ping.run(gate).map(Some),
        Program::Stream(stream) => stream.run(gate).map(Some),
        Program::Reconnect(reconnect) => reconnect.run(gate).map(Some),
        Program::Many(many) => many.run(gate).map(Some),
        Program::Guest(guest) => guest.run(gate).map(Some),
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
