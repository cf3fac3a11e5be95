//! The command line of `shunt nvme disk`.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use shunt_metrics::Address;
use shunt_nvme::wire::Nqn;

use super::host::{Host, nqn};

/// `shunt nvme disk`.
#[derive(Args, Debug)]
#[command(
    after_help = "QEMU needs memory that can be shared, and granted without copies, and a device:\n\n  \
                  qemu-system-x86_64 -object memory-backend-memfd,id=m,size=2G,share=on -machine q35,memory-backend=m \\\n    \
                  -m 2G -chardev socket,id=d,path=PATH,reconnect=1 -device vhost-user-blk-pci,chardev=d ...\n\n\
                  With --vfio-user the guest has an NVMe controller (cloud-hypervisor, or QEMU from 10.1 on), and its memory \
                  has to be shared, too:\n\n  \
                  cloud-hypervisor --memory size=2G,shared=on --user-device socket=PATH ...\n\n  \
                  qemu-system-x86_64 -object memory-backend-memfd,id=m,size=2G,share=on -machine q35,memory-backend=m \\\n    \
                  -m 2G -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"PATH\"}}' ...\n\n\
                  One virtual machine uses the disk at a time; the next one is served when it is gone. While the target \
                  is away, requests wait. SIGTERM ends the process after the requests that have begun. Under `shunt \
                  run`, the connection to a target that runs under it, too, goes through shared memory."
)]
pub struct Disk {
    /// Where QEMU connects to a vhost-user-blk device: a socket that is made there.
    #[arg(long, value_name = "PATH", required_unless_present = "vfio_user")]
    pub socket: Option<PathBuf>,
    /// Where a monitor connects to an NVMe controller, by vfio-user, instead: a socket that is made there.
    #[arg(long, value_name = "PATH", conflicts_with = "socket")]
    pub vfio_user: Option<PathBuf>,
    /// Permissions of the socket. Who can connect can read and write the disk.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    pub socket_mode: u32,
    /// Where the target is. Several are paths to the same subsystem.
    #[arg(long, visible_alias = "to", value_name = "ADDRESS:PORT", required = true)]
    pub target: Vec<SocketAddr>,
    /// The subsystem's name.
    #[arg(
        long,
        visible_alias = "subsystem",
        value_name = "NQN",
        default_value = "nqn.2024-01.org.shunt:target",
        value_parser = nqn
    )]
    pub nqn: Nqn,
    /// The namespace's number.
    #[arg(long, visible_alias = "namespace", value_name = "NUMBER", default_value = "1")]
    pub nsid: NonZeroU32,
    /// Who this host is.
    #[command(flatten)]
    pub host: Host,
    /// Checksums over headers on the connections.
    #[arg(long)]
    pub header_digest: bool,
    /// Checksums over data, which is then copied.
    #[arg(long)]
    pub data_digest: bool,
    /// Let the target read what is written where it is, in the guest's memory. It can then read all of that memory.
    #[arg(long)]
    pub grant: bool,
    /// Let the guest write nothing.
    #[arg(long)]
    pub read_only: bool,
    /// Most queues of the guest's, each with a connection, and with a thread where it is no NVMe controller's. QEMU makes one
    /// per virtual processor, unless its device is told `num-queues`. Default: one per core.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: Option<u16>,
    /// Commands at once on a connection.
    #[arg(long, value_name = "NUMBER", default_value = "128")]
    pub queue_depth: NonZeroU16,
    /// Fail requests that have waited so many seconds for the target to come back. Default: they wait for ever.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub give_up: Option<Duration>,
    /// Serve metrics over HTTP at `unix:/PATH`, `127.0.0.1:PORT` or `[::1]:PORT`. Default: no metrics.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// Also at an address that other hosts can reach. There is neither password nor encryption.
    #[arg(long, requires = "metrics")]
    pub metrics_public: bool,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "it must be permissions such as 660".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|e| format!("it must be seconds: {e}"))?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::nvme::{Nvme, NvmeCommand};
    use crate::cli::{Cli, Command};

    fn disk(args: &[&str]) -> Result<Disk, clap::Error> {
        let args = ["shunt", "nvme", "disk"].iter().chain(args);
        match Cli::try_parse_from(args)?.command {
            Command::Nvme(Nvme { command: NvmeCommand::Disk(disk) }) => Ok(*disk),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn disks() {
        let needed = ["--socket", "/s", "--target", "127.0.0.1:4420"];
        let with = |more: &[&str]| disk(&[&needed, more].concat());
        let quick = with(&[]).unwrap();
        assert_eq!((quick.socket_mode, quick.nsid.get()), (0o600, 1));
        assert!(!quick.grant && quick.give_up.is_none() && quick.queues.is_none());
        let more = with(&["--target", "[::1]:1", "--socket-mode", "660", "--give-up", "30"]);
        let more = more.unwrap();
        assert_eq!((more.target.len(), more.socket_mode), (2, 0o660));
        assert_eq!(more.give_up, Some(Duration::from_secs(30)));
        for bad in [
            &["--socket-mode", "1000"][..],
            &["--socket-mode", "rw"],
            &["--nsid", "0"],
            &["--queues", "0"],
            &["--queues", "65"],
            &["--controller-key-file", "/x"],
            &["--give-up", "-1"],
            &["--nqn", "disk"],
            &["--metrics", "here"],
            &["--metrics-public"],
        ] {
            assert_eq!(with(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
        assert_eq!(disk(&["--socket", "/s"]).unwrap_err().exit_code(), 2);
        let nvme = disk(&["--vfio-user", "/v", "--target", "127.0.0.1:1"]).unwrap();
        assert_eq!((nvme.socket, nvme.vfio_user), (None, Some("/v".into())));
        assert_eq!(with(&["--vfio-user", "/v"]).unwrap_err().exit_code(), 2);
        assert_eq!(disk(&["--target", "127.0.0.1:1"]).unwrap_err().exit_code(), 2);
    }
}
