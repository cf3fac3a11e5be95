//! The command line of the host's subcommands.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use shunt_nvme::wire::Nqn;
use shunt_nvme_target::config::parse_size;

/// How to reach a subsystem.
#[derive(Args, Clone, Debug)]
pub struct Way {
    /// Where the target listens. Given several times: paths to the same subsystem.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4420")]
    pub to: Vec<SocketAddr>,
    /// The subsystem.
    #[arg(long, value_name = "NQN", default_value = "nqn.2024-01.org.shunt:target", value_parser = nqn)]
    pub subsystem: Nqn,
    /// Who this host is.
    #[command(flatten)]
    pub host: Host,
    /// Have headers checked on the way.
    #[arg(long)]
    pub header_digest: bool,
    /// Have data checked on the way.
    #[arg(long)]
    pub data_digest: bool,
    /// Do not let the target read data in place: copy it.
    #[arg(long)]
    pub no_grant: bool,
}

/// Who this host is.
#[derive(Args, Clone, Debug)]
pub struct Host {
    /// This host's name. Default: that in /etc/nvme/hostnqn, else a random one.
    #[arg(long = "host", value_name = "NQN", value_parser = nqn)]
    pub name: Option<Nqn>,
    /// A file with this host's key (DHHC-1:...), for targets that want a proof.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// A file with the controller's key, which then has to prove who it is, too.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    pub controller_key_file: Option<PathBuf>,
}

/// `shunt nvme discover`.
#[derive(Args, Debug)]
pub struct Discover {
    /// Where the discovery service listens: any target of this project, and others at port 8009.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4420")]
    pub to: Vec<SocketAddr>,
    /// Who this host is.
    #[command(flatten)]
    pub host: Host,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `shunt nvme list`.
#[derive(Args, Debug)]
pub struct List {
    /// How to reach the subsystem.
    #[command(flatten)]
    pub way: Way,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `shunt nvme read`.
#[derive(Args, Debug)]
pub struct Read {
    /// How to reach the subsystem.
    #[command(flatten)]
    pub way: Way,
    /// The namespace's number.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub namespace: u32,
    /// Where to begin, in bytes.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// How many bytes. Default: up to the end.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
}

/// `shunt nvme write`.
#[derive(Args, Debug)]
#[command(
    after_help = "The input must fill whole blocks. It succeeds when all is on stable storage."
)]
pub struct Write {
    /// How to reach the subsystem.
    #[command(flatten)]
    pub way: Way,
    /// The namespace's number.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub namespace: u32,
    /// Where to begin, in bytes.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
}

/// Which blocks follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Order {
    /// Anywhere.
    Random,
    /// One behind the other.
    Sequential,
}

/// `shunt nvme bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "Writes destroy what is in the namespace. Latency is from submission to completion. \
                  Processor time is that of this process, in user and kernel mode."
)]
pub struct Bench {
    /// How to reach the subsystem.
    #[command(flatten)]
    pub way: Way,
    /// The namespace's number.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub namespace: u32,
    /// Bytes of a command.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_size)]
    pub size: u64,
    /// Commands at once of each thread.
    #[arg(long, value_name = "COMMANDS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,
    /// Threads, each with a queue.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub threads: u16,
    /// Reads, in percent of the commands; the others are writes.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,
    /// Which blocks.
    #[arg(long, value_name = "ORDER", default_value = "random")]
    pub order: Order,
    /// How long.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

pub fn nqn(text: &str) -> Result<Nqn, String> {
    Nqn::new(text).map_err(|e| e.to_string())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86400.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number from 0.01 to 86400".to_owned())
}
