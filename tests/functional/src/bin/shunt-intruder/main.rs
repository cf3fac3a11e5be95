//! Tries to get at what is not its own: as another user, or as another program of the same one.
//!
//! It prints one line for each thing that it tried, and what came of it; the tests judge. It speaks the
//! agent's protocol by hand, without the library.

mod agent;
mod ask;
mod flood;
mod look;
mod pass;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tries to get at what is not its own.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The run directory of somebody's agent.
    #[arg(long)]
    run_dir: PathBuf,
    /// What to try.
    #[command(subcommand)]
    attempt: Attempt,
}

#[derive(Subcommand)]
enum Attempt {
    /// Opens files, processes and what processes have open.
    Look {
        /// Whose descriptors and memory to look at.
        #[arg(long = "pid")]
        pids: Vec<i32>,
        /// What to open besides.
        #[arg(long = "file")]
        files: Vec<PathBuf>,
    },
    /// Asks the agent for what others have.
    Ask,
    /// Puts proposals of its own in the place of those for open connections to a listener.
    Forge {
        /// The listener.
        #[arg(long)]
        to: SocketAddr,
        /// How many to wait for.
        #[arg(long)]
        count: usize,
        /// A file that is made when it is over.
        #[arg(long)]
        until: PathBuf,
    },
    /// Keeps the agent busy until it is ended.
    Flood,
    /// Passes descriptors that block whoever closes them, or asks them something, until it is ended.
    Pass {
        /// A file that is made when it is time.
        #[arg(long)]
        go: PathBuf,
        /// Becomes this user first.
        #[arg(long)]
        user: Option<u32>,
    },
}

fn main() -> ExitCode {
    let Options { run_dir, attempt } = Options::parse();
    let result = match attempt {
        Attempt::Look { pids, files } => {
            look::run(&run_dir, &pids, &files);
            Ok(())
        }
        Attempt::Ask => ask::run(&run_dir),
        Attempt::Forge { to, count, until } => ask::forge(&run_dir, to, count, &until),
        Attempt::Flood => flood::run(&run_dir),
        Attempt::Pass { go, user } => pass::run(&run_dir, &go, user),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shunt-intruder: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Says what came of an attempt.
fn say(what: impl std::fmt::Display, outcome: impl std::fmt::Display) {
    println!("{what}\t{outcome}");
}
