//! Writes and reads a disk at random by the project's own host, on several queues and paths, and compares each byte.
//!
//! Prints JSON: a line `{"going": true}` when every thread has written, and a summary at the end, which comes after so
//! many commands, or when standard input is closed. Then all that was acknowledged is read once more.

mod model;

use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use shunt_nvme::wire::Nqn;
use shunt_nvme_host::{Identity, Options, Subsystem};

/// A verifier.
#[derive(Parser)]
struct Arguments {
    /// Paths to the subsystem.
    #[arg(long, required = true)]
    to: Vec<SocketAddr>,
    /// Which one.
    #[arg(long, default_value = "nqn.2024-01.org.shunt:target")]
    nqn: String,
    /// Threads, with a queue each.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Commands at once of each.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Commands of each thread; without it until standard input is closed.
    #[arg(long)]
    commands: Option<u64>,
    /// Most bytes of a command.
    #[arg(long, default_value_t = 256 << 10)]
    longest: u32,
    /// Header and data digests.
    #[arg(long)]
    digests: bool,
    /// Seconds before a command is aborted.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
    /// Where the random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let nqn = Nqn::new(&arguments.nqn).map_err(|e| text(&e))?;
    let mut options = Options::new(arguments.to.clone(), nqn);
    options.identity = Identity::named("nqn.2024-01.org.shunt:test-host").map_err(|e| text(&e))?;
    options.depth = arguments.depth;
    (options.header_digest, options.data_digest) = (arguments.digests, arguments.digests);
    options.command_timeout = Duration::from_secs_f64(arguments.timeout);
    options.keep_alive = Duration::from_secs(2);
    let subsystem = Subsystem::connect(options).map_err(|e| text(&e))?;
    let ends = AtomicBool::new(false);
    let going = AtomicUsize::new(0);
    let threads = u64::from(arguments.threads);
    let results: Result<Vec<_>, String> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|n| {
                let (subsystem, ends, going) = (&subsystem, &ends, &going);
                scope.spawn(move || {
                    let disk = subsystem.namespace(1).ok_or("there is no namespace 1")?;
                    let share = disk.blocks / threads;
                    let mut model = model::Model::new(
                        subsystem.queue().map_err(|e| e.to_string())?,
                        disk,
                        (n * share, share),
                        (arguments.depth, arguments.longest),
                        arguments.seed << 8 | n,
                    )?;
                    model.run(arguments.commands, ends, || {
                        if going.fetch_add(1, Ordering::Relaxed) + 1 == arguments.threads as usize {
                            println!("{}", json!({ "going": true }));
                        }
                    })?;
                    Ok(model.counts)
                })
            })
            .collect();
        if arguments.commands.is_none() {
            let _closed = std::io::stdin().read_to_end(&mut Vec::new());
            ends.store(true, Ordering::Relaxed);
        }
        handles.into_iter().map(|handle| handle.join().expect("a thread")).collect()
    });
    let counts = results?;
    let sum = |of: fn(&model::Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let connects: Vec<_> = subsystem.paths().iter().map(|path| path.connects).collect();
    let failures: Vec<_> = counts.iter().flat_map(|counts| counts.failures.clone()).collect();
    let summary = json!({
        "reads": sum(|c| c.reads),
        "writes": sum(|c| c.writes),
        "blocks_kept": sum(|c| c.kept),
        "failures": failures,
        "connects": connects,
    });
    println!("{summary}");
    subsystem.close();
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
