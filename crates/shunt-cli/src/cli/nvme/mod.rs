//! The command line of `shunt nvme`.

mod control;
mod disk;
mod host;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use shunt_agent::metrics::Address;
use shunt_nvme_target::config::parse_size;
use shunt_nvme_target::store::BlockSize;

pub use control::{Control, ControlCommand};
pub use disk::Disk;
pub use host::{Bench, Discover, Host, List, Order, Read, Way, Write};

/// `shunt nvme`.
#[derive(Args, Debug)]
pub struct Nvme {
    /// What to do.
    #[command(subcommand)]
    pub command: NvmeCommand,
}

/// What `shunt nvme` can do.
#[derive(Subcommand, Debug)]
pub enum NvmeCommand {
    /// Serve disks to NVMe/TCP hosts: memory, files and block devices.
    Target(Box<Target>),
    /// Command a target that runs: change what it serves, or show it.
    Control(Control),
    /// Be a virtual machine's disk (vhost-user-blk, or an NVMe controller), kept by an NVMe/TCP target.
    Disk(Box<Disk>),
    /// Ask a target which subsystems this host may connect to.
    Discover(Discover),
    /// List the namespaces of a subsystem, and the paths to it.
    List(List),
    /// Copy blocks of a namespace to standard output.
    Read(Read),
    /// Copy standard input to blocks of a namespace.
    Write(Write),
    /// Measure reads and writes.
    Bench(Bench),
}

/// `shunt nvme target`.
#[derive(Args, Debug)]
#[command(after_help = "Without --config one namespace is served to everybody, as subsystem \
                  nqn.2024-01.org.shunt:target. SIGHUP, and `shunt nvme control reload`, read the file again: namespaces, sizes, hosts and \
                  addresses change while hosts are connected, and where something cannot be had everything stays \
                  as it is. SIGTERM ends the target after the commands that have begun. Under `shunt run`, \
                  connections from hosts that run under it, too, go through shared memory.")]
pub struct Target {
    /// What is served, where, and to whom: a TOML file, described in docs/nvme.md.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only say whether the configuration can be served.
    #[arg(long)]
    pub check: bool,
    /// Where hosts connect. May be given several times.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:4420",
        conflicts_with = "config"
    )]
    pub listen: Vec<SocketAddr>,
    /// What keeps the blocks.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Bytes of the file's beginning that are served; it is made, or made longer, where it has fewer. Default: all.
    #[arg(long, value_name = "SIZE", requires = "file", conflicts_with_all = ["null", "memory", "config"], value_parser = parse_size)]
    pub size: Option<u64>,
    /// Bytes of a block: 512 or 4096.
    #[arg(long, value_name = "BYTES", default_value = "4096", conflicts_with = "config", value_parser = block_size)]
    pub block_size: BlockSize,
    /// Take commands of `shunt nvme control` at this socket, which this user alone can reach. Default: none are taken.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Serve metrics over HTTP at `unix:/PATH`, `127.0.0.1:PORT` or `[::1]:PORT`. Default: no metrics.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// Also at an address that other hosts can reach. There is neither password nor encryption.
    #[arg(long, requires = "metrics")]
    pub metrics_public: bool,
}

/// One of these, unless there is a file.
#[derive(Args, Debug)]
#[group(multiple = false, conflicts_with = "config")]
pub struct StoreArgs {
    /// Serve so many bytes that nothing keeps: for measurements.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub null: Option<u64>,
    /// Serve so many bytes of memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Serve a file or a block device.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    let size = text.parse().ok().and_then(BlockSize::of);
    size.ok_or_else(|| "it must be 512 or 4096".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn target(args: &[&str]) -> Result<Target, clap::Error> {
        let args = ["shunt", "nvme", "target"].iter().chain(args);
        match Cli::try_parse_from(args)?.command {
            Command::Nvme(Nvme { command: NvmeCommand::Target(target) }) => Ok(*target),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn targets() {
        let quick = target(&["--memory", "1GiB", "--block-size", "512"]).unwrap();
        assert_eq!((quick.store.memory, quick.block_size), (Some(1 << 30), BlockSize::B512));
        assert_eq!(quick.listen, ["127.0.0.1:4420".parse().unwrap()]);
        let file = target(&["--file", "/x", "--size", "8M", "--listen", "[::1]:1"]).unwrap();
        assert_eq!((file.size, file.listen.len()), (Some(8 << 20), 1));
        assert!(target(&["--config", "/x", "--check"]).unwrap().check);
        for bad in [
            &["--config", "/x", "--null", "1G"][..],
            &["--config", "/x", "--listen", "127.0.0.1:1"],
            &["--null", "1G", "--memory", "1G"],
            &["--null", "1GB"],
            &["--memory", "1G", "--size", "1G"],
            &["--null", "1G", "--block-size", "520"],
            &["--listen", "localhost"],
            &["--null", "1G", "--metrics-public"],
        ] {
            assert_eq!(target(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn hosts() {
        let parse = |args: &[&str]| -> Result<NvmeCommand, clap::Error> {
            let args = ["shunt", "nvme"].iter().chain(args);
            match Cli::try_parse_from(args)?.command {
                Command::Nvme(nvme) => Ok(nvme.command),
                other => panic!("{other:?}"),
            }
        };
        let bench = parse(&["bench", "--size", "64KiB", "--reads", "30", "--order", "sequential"]);
        let Ok(NvmeCommand::Bench(bench)) = bench else { panic!("{bench:?}") };
        assert_eq!((bench.size, bench.reads, bench.order), (65536, 30, Order::Sequential));
        assert_eq!(bench.way.to, ["127.0.0.1:4420".parse().unwrap()]);
        let paths = parse(&["list", "--to", "127.0.0.1:1", "--to", "[::1]:2", "--json"]);
        let Ok(NvmeCommand::List(list)) = paths else { panic!("{paths:?}") };
        assert_eq!((list.way.to.len(), list.json), (2, true));
        for bad in [
            &["bench", "--reads", "101"][..],
            &["bench", "--depth", "0"],
            &["bench", "--threads", "33"],
            &["bench", "--seconds", "0"],
            &["list", "--subsystem", "disk"],
            &["read", "--offset", "1x"],
            &["write", "--controller-key-file", "/x"],
            &["discover", "--to", "localhost"],
        ] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
