//! What a host does with a disk: looks at it, fills it, reads it, waits for news of it. The sockets are plain: nothing
//! here knows of Shunt. Prints JSON, a line for each thing that happens.

mod load;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde_json::json;
use shunt_functional::nvme::{Host, Way};

/// A host.
#[derive(Parser)]
struct Options {
    /// Where to.
    #[arg(long)]
    to: SocketAddr,
    /// To which subsystem.
    #[arg(long, default_value = "nqn.2024-01.org.shunt:target")]
    nqn: String,
    /// As which host.
    #[arg(long, default_value = "nqn.2024-01.org.shunt:test-host")]
    host: String,
    /// With header digests.
    #[arg(long)]
    header_digest: bool,
    /// With data digests.
    #[arg(long)]
    data_digest: bool,
    /// Commands at once.
    #[arg(long, default_value_t = 64)]
    depth: u16,
    /// What to do.
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Say what there is.
    Identify,
    /// Write and read at random, and compare each byte.
    Verify(load::Verify),
    /// Write each block once, from the first on, and say which writes were acknowledged when the connection ends.
    Fill(load::Fill),
    /// Say what becomes of the first namespace.
    Watch,
    /// Say what the discovery service says.
    Discover,
    /// Compare and write in one step.
    Exchange,
}

/// Which namespace.
#[derive(Args)]
pub struct Place {
    /// Its number.
    #[arg(long, default_value_t = 1)]
    pub nsid: u32,
}

fn run(options: &Options) -> io::Result<()> {
    let way = Way {
        to: options.to,
        nqn: options.nqn.clone(),
        host: options.host.clone(),
        digests: (options.header_digest, options.data_digest),
        depth: options.depth,
    };
    match &options.role {
        Role::Discover => watch::discover(&way),
        Role::Identify => identify(&mut Host::connect(&way)?),
        Role::Verify(verify) => verify.run(&mut Host::connect(&way)?, way.depth),
        Role::Fill(fill) => fill.run(&mut Host::connect(&way)?, way.depth),
        Role::Watch => watch::watch(&mut Host::connect(&way)?),
        Role::Exchange => load::exchange(&mut Host::connect(&way)?),
    }
}

fn identify(host: &mut Host) -> io::Result<()> {
    let controller = host.identify(1, 0)?;
    let text = |range: std::ops::Range<usize>| {
        String::from_utf8_lossy(&controller[range]).trim_end_matches([' ', '\0']).to_owned()
    };
    let disks: Vec<_> = host
        .disks()?
        .iter()
        .map(|disk| json!({ "nsid": disk.nsid, "blocks": disk.blocks, "block": disk.block }))
        .collect();
    let (serial, model, nqn) = (text(4..24), text(24..64), text(768..1024));
    println!("{}", json!({ "serial": serial, "model": model, "nqn": nqn, "disks": disks }));
    Ok(())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shunt-nvme-io {}: {e}", std::process::id());
            ExitCode::FAILURE
        }
    }
}
