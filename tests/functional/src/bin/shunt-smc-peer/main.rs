//! Both ends of SMC-R connections between two hosts: a kernel's `AF_SMC` server, and a client that
//! is made of `shunt-smc` over verbs and needs no `smc` module. The client's bytes come back, and
//! both ends compare them.

mod client;
mod netlink;
mod server;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Enter an EID of the host.
    Eid { name: String },
    /// Say what every SMC socket of the host is: a line each.
    List,
    /// Say how many link groups of SMC-R the host has.
    Groups,
    /// Serve at a port until it is killed.
    Serve {
        port: u16,
        /// Not by SMC.
        #[arg(long)]
        tcp: bool,
        /// With an urgent byte in each direction.
        #[arg(long)]
        urgent: bool,
        /// Speak first.
        #[arg(long)]
        greets: bool,
    },
    /// Connect, and compare what comes back.
    Connect(client::Options),
    /// Connect over TCP without a word of SMC.
    Plain {
        to: SocketAddr,
        bytes: u64,
        /// Connections, all at once.
        #[arg(short = 'n', default_value_t = 1)]
        connections: u64,
        /// When all bytes are sent, keep the connection until this file is there.
        #[arg(long)]
        hold: Option<PathBuf>,
    },
    /// Connect without a word of SMC, and wait for what the server says first, by poll(2) and by epoll(7).
    Await { to: SocketAddr },
}

fn main() -> ExitCode {
    let done = match Options::parse().role {
        Role::Eid { name } => netlink::add_eid(&name),
        Role::List => netlink::list(),
        Role::Groups => netlink::groups(),
        Role::Serve { port, tcp, urgent, greets } => server::serve(port, tcp, urgent, greets),
        Role::Connect(options) => client::run(&options),
        Role::Plain { to, bytes, connections, hold } => {
            client::plain(to, bytes, connections, hold.as_deref())
        }
        Role::Await { to } => client::greeted(to),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
