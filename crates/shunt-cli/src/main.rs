//! The `shunt` command.
//!
//! It has a C entry point of its own. Rust's runtime would ignore SIGPIPE and open `/dev/null` on
//! closed descriptors before `main`, and the program that `shunt run` becomes would inherit both
//! (property P1).
#![cfg_attr(not(test), no_main)]

mod agent;
mod capture;
mod cdi;
mod cli;
mod directory;
mod docs;
mod doctor;
mod elf;
mod explain;
mod files;
mod glibc;
mod ivshmem;
mod library;
mod list;
mod listing;
mod machines;
mod man;
mod nvme;
mod output;
#[cfg(test)]
mod pages;
mod profile;
mod program;
mod rdma;
mod run;
mod settings;
mod stats;
mod systemd;
mod table;
mod top;
mod waits;

use std::ffi::c_int;
use std::io::{self, Write};

use clap::Parser;
use shunt_sys::stdio::{self, Unwritable};

use cli::{Cli, Command};
use output::USAGE;

/// Exit status for a fault in this program, as Rust's runtime has it.
const PANIC: u8 = 101;

fn start() -> u8 {
    // Before anything is opened.
    stdio::occupy();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() => {
            let _ = e.print();
            return u8::try_from(e.exit_code()).unwrap_or(USAGE);
        }
        Err(help) => {
            // Rust's own stream takes a closed standard output for a good one.
            let printed = || help.print().and_then(|()| io::stdout().flush());
            return output::said(stdio::print("").and_then(|()| printed().map_err(Unwritable)));
        }
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::List(args) => list::run(&args),
        Command::Machines(args) => machines::run(&args),
        Command::AgentKey(args) => rdma::print_key(&args),
        Command::Top(args) => top::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Enable(args) => systemd::enable(&args),
        Command::Disable(args) => systemd::disable(&args),
        Command::Cdi(args) => cdi::run(&args),
        Command::Library(args) => library::run(&args),
        Command::IvshmemServer(args) => ivshmem::run(args),
        Command::Nvme(args) => nvme::run(args),
        Command::Bench(options) => bench(&options),
        Command::Probe(args) => doctor::probe(&args.to),
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
    // A panic must not reach C: the process would abort.
    c_int::from(std::panic::catch_unwind(start).unwrap_or(PANIC))
}
