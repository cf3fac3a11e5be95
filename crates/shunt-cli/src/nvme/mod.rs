//! `shunt nvme`.

mod bench;
mod control;
mod copy;
mod disk;
mod latency;
mod show;
mod target;
mod way;

use crate::cli::nvme::{Nvme, NvmeCommand};

/// Runs the subcommand.
pub fn run(args: Nvme) -> u8 {
    match args.command {
        NvmeCommand::Target(args) => target::run(*args),
        NvmeCommand::Control(args) => control::run(args),
        NvmeCommand::Disk(args) => disk::run(&args),
        NvmeCommand::Discover(args) => show::discover(&args),
        NvmeCommand::List(args) => show::list(&args),
        NvmeCommand::Read(args) => copy::read(&args),
        NvmeCommand::Write(args) => copy::write(&args),
        NvmeCommand::Bench(args) => bench::run(&args),
    }
}
