//! Generator and verifier of TCP traffic.
//!
//! Both ends send a stream of known bytes over each connection with a random mix of calls, verify
//! what they receive byte by byte, and print a hash of both streams, so that a test can compare
//! what one end sent with what the other received. The sockets are plain: nothing here knows of
//! Shunt.

mod board;
mod client;
mod conn;
mod driver;
mod half;
mod hand_over;
mod options;
mod server;
mod waiter;
mod watchdog;
mod zero;

use std::process::ExitCode;

use clap::Parser;

use options::{Options, Role};

fn main() -> ExitCode {
    let result = match Options::parse().role {
        Role::Serve(options) => server::run(&options),
        Role::Connect(options) => client::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shunt-gen {}: {e}", std::process::id());
            ExitCode::FAILURE
        }
    }
}
