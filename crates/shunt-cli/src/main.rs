//! The `shunt` command.
//!
//! The C entry point is ours instead of Rust's: Rust's runtime would ignore SIGPIPE and open
//! `/dev/null` on closed descriptors before `main`, and the program that `shunt run` becomes would
//! inherit both (property P1).
#![cfg_attr(not(test), no_main)]

mod agent;
mod cdi;
mod cli;
mod directory;
mod docs;
mod doctor;
mod elf;
mod glibc;
mod ivshmem;
mod library;
mod list;
mod machines;
mod program;
mod run;
mod stats;
mod table;

use std::ffi::c_int;
use std::io::Write;

use clap::Parser;

use cli::{Cli, Command};

/// Exit status for a command line that makes no sense.
const USAGE: u8 = 2;

fn start() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return u8::try_from(e.exit_code()).unwrap_or(USAGE);
        }
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::List(args) => list::run(&args),
        Command::Machines(args) => machines::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Cdi(args) => cdi::run(&args),
        Command::IvshmemServer(args) => ivshmem::run(args),
        Command::Bench(options) => bench(&options),
        Command::Load(load) => shunt_bench::load::run(load),
        Command::Docs(args) => docs::run(&args),
    }
}

/// A pipe that nobody reads is no reason to leave programs running.
fn bench(options: &shunt_bench::Options) -> u8 {
    // SAFETY: changes this process's disposition of one signal, before any thread is made.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    shunt_bench::runner::run(options)
}

/// The entry point that libc calls. `std::env::args` works without Rust's own: glibc hands the
/// arguments to constructors, of which std has one.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_argc: c_int, _argv: *const *const std::ffi::c_char) -> c_int {
    let status = start();
    let _ = std::io::stdout().flush();
    c_int::from(status)
}

/// Says what went wrong, on standard error.
fn complain(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "shunt: {what}");
}
