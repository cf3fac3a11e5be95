//! The command line.

mod live;
pub mod nvme;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use shunt_agent::config::Place;
use shunt_agent::metrics::Address;
use shunt_ivshmem::message::MAX_VECTORS;
use shunt_rdma::device::Wanted;
use shunt_rdma::{PeerName, Promote};

pub use live::{Capture, Explain, Extcap, Top};
use live::{host_and_port, pause};

/// Moves the TCP connections between unmodified programs of one host into shared memory.
#[derive(Parser, Debug)]
#[command(
    name = "shunt",
    version,
    disable_help_subcommand = true,
    after_help = "The exit status is 0, or 1 when a line on standard error says what could not be done: also \
                  that standard output could not be written. 2: the command line makes no sense. A reader \
                  that goes away ends the command by SIGPIPE; where SIGPIPE is ignored the status is 1."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `shunt` can do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program whose connections to other such programs go through shared memory.
    Run(Run),
    /// Run the agent that lets programs find each other. `shunt run` starts it when it is needed.
    Agent(Agent),
    /// List live connections, as `ss` does, and how their bytes go.
    ///
    /// Below them, listeners of programs under Shunt that clients do not find, so that all of their connections
    /// are TCP, each with the reason. With --json these are `listeners_unregistered`.
    List(List),
    /// Show what happens now: messages and bytes a second, what is shunted and what is not, and why.
    Top(Top),
    /// Capture what goes over shunted connections, as packets that TCP would have carried: lines as tcpdump's, or a pcapng file
    /// for Wireshark and tshark.
    Capture(Capture),
    /// Show totals, also of programs that have ended.
    Stats(Stats),
    /// Say how a connection or a listener that there is goes, why, and what to do about it.
    Explain(Explain),
    /// Say whether, and why or why not, a program would be shunted.
    Doctor(Doctor),
    /// Give Shunt to whole systemd services, by a drop-in.
    Enable(Enable),
    /// Take Shunt from systemd services again.
    Disable(Disable),
    /// Give Shunt to containers, as a device of the Container Device Interface.
    Cdi(Cdi),
    /// Put the library where programs and containers find it, also while programs run with an older one.
    Library(Library),
    /// Show the machines with which this one's agent shares memory through an ivshmem device.
    Machines(Format),
    /// Print by which key agents of other hosts know this one, and make it where there is none (experimental).
    AgentKey(AgentKey),
    /// Give virtual machines shared memory and doorbells: a server for QEMU's ivshmem-doorbell devices.
    IvshmemServer(IvshmemServer),
    /// Disks over NVMe/TCP.
    Nvme(nvme::Nvme),
    /// Measure this machine: kernel TCP, UNIX sockets, eBPF sockmap and Shunt side by side.
    Bench(shunt_bench::Options),
    /// The program that `shunt doctor --connect` looks at.
    #[command(hide = true)]
    Probe(Probe),
    /// One of the load programs of `shunt bench`.
    #[command(hide = true)]
    Load(shunt_bench::load::Load),
    /// Write man pages, shell completions and the generated documents into a directory.
    #[command(hide = true)]
    Docs(Docs),
}

/// `shunt run`.
#[derive(Args, Debug)]
#[command(
    override_usage = "shunt run [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = "The exit status is the program's; 128+N when signal N ended it, 125 when \
                  --require keeps it from being started, 126 when it cannot be executed, 127 when it is not found. Connections that cannot be \
                  shunted stay on kernel TCP; `shunt doctor PROGRAM` says why."
)]
pub struct Run {
    /// How long a waiting call spins before it sleeps: auto, never, or microseconds.
    #[arg(long, value_name = "auto|never|MICROSECONDS", value_parser = spin)]
    pub spin: Option<String>,
    /// How bytes reach the peer's memory. Default: attach.
    #[arg(long, value_enum)]
    pub dmb: Option<Dmb>,
    /// Settings for one end at the cost of others; variables and options that are given win. See docs/profiles.md.
    #[arg(long, value_enum)]
    pub profile: Option<crate::profile::Profile>,
    /// At the end, print on standard error how many connections were shunted, and why others not.
    #[arg(long)]
    pub summary: bool,
    /// Do not start the program where it would run on kernel TCP: say why, and end with status 125. Of connections whose
    /// peers do not run under Shunt nothing is known before.
    #[arg(long)]
    pub require: bool,
    /// The program, looked up as a shell does, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    pub command: Vec<OsString>,
}

/// How bytes reach the peer's memory.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dmb {
    /// The sender writes straight into the receiver's memory.
    Attach,
    /// The sender writes into a buffer of its own, from which the bytes are copied once more, as by other devices than memory.
    Copy,
}

impl Dmb {
    /// Its value in `SHUNT_DMB`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Copy => "copy",
        }
    }
}

fn spin(value: &str) -> Result<String, String> {
    match value {
        "auto" | "never" => Ok(value.to_owned()),
        _ => match value.parse::<u32>() {
            Ok(_) => Ok(value.to_owned()),
            Err(_) => Err("it must be auto, never, or a number of microseconds".to_owned()),
        },
    }
}

/// `shunt agent`.
#[derive(Args, Debug)]
pub struct Agent {
    /// End when no program has been connected for so many seconds. Default: stay.
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// Go to the background and return once the agent serves.
    #[arg(long)]
    pub detach: bool,
    /// End the agent that is there instead, and return once it is gone. Connections live on; new ones are TCP.
    #[arg(long, exclusive = true)]
    pub stop: bool,
    /// Serve all users and containers of this host, and shunt connections between them: needs root. The run
    /// directory is open to all, and is /run/shunt unless SHUNT_RUN_DIR names another; programs use it with
    /// SHUNT_RUN_DIR=/run/shunt, root's too.
    #[arg(long, conflicts_with = "idle_exit")]
    pub host: bool,
    /// Who may be shunted with whom, see shunt-policy(5); SIGHUP reads it anew. Default: /etc/shunt/policy.toml if
    /// there is such a file, else all with all.
    #[arg(long, value_name = "FILE", requires = "host")]
    pub policy: Option<PathBuf>,
    /// Mark only connections of this control group (a directory of the unified hierarchy) and those below it.
    #[arg(long, value_name = "DIRECTORY", requires = "host")]
    pub cgroup: Option<PathBuf>,
    /// Serve metrics over HTTP at `unix:/PATH`, `127.0.0.1:PORT` or `[::1]:PORT`; without an address at the
    /// socket metrics.sock in the agent's directory. Default: SHUNT_METRICS, or no metrics.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "unix")]
    pub metrics: Option<Address>,
    /// Also at an address that other hosts can reach. There is neither password nor encryption.
    #[arg(long, requires = "metrics")]
    pub metrics_public: bool,
    /// Share memory with other machines through an ivshmem device: the socket of an ivshmem server, by its
    /// path, or the PCI address of the device of this guest.
    /// Not by an agent for the whole host. Default: SHUNT_IVSHMEM, or none.
    #[arg(long, value_name = "DEVICE", conflicts_with = "host")]
    pub ivshmem: Option<Place>,
    /// Carry connections to other hosts over this RDMA device: NAME, NAME/PORT, or auto for the first one that is hardware.
    /// Of several, with commas between, the first one that works is used, and another one when that is lost.
    /// Experimental: no hardware has carried any yet.
    #[arg(long, value_name = "DEVICE")]
    pub rdma: Option<Wanted>,
    /// Another host's agent: its host, with a port or without, and the key that `shunt agent-key` prints there.
    /// Experimental.
    #[arg(long, value_name = "HOST=KEY")]
    pub peer: Vec<PeerName>,
    /// Where agents of other hosts are heard. Default: port 7609 of all addresses. Experimental.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub rdma_listen: Option<SocketAddr>,
    /// The file with this agent's key. Default: that of `shunt agent-key`. Experimental.
    #[arg(long, value_name = "FILE")]
    pub rdma_key: Option<PathBuf>,
    /// When connections to other hosts are promoted: where the link was measured and is not slower than TCP (faster), or
    /// wherever there is one (always). The peer's agent has to agree. Default: faster. Experimental.
    #[arg(long, value_name = "faster|always")]
    pub rdma_promote: Option<Promote>,
}

/// `shunt agent-key`.
#[derive(Args, Debug)]
pub struct AgentKey {
    /// Of the agent for the host: /etc/shunt/rdma.key.
    #[arg(long, conflicts_with = "file")]
    pub host: bool,
    /// Another file. Default: shunt/rdma.key in XDG_CONFIG_HOME or ~/.config.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `shunt list`.
#[derive(Args, Debug, Default)]
#[command(after_help = crate::list::HELP)]
pub struct List {
    /// Print JSON for other programs.
    #[arg(long)]
    pub json: bool,
    /// Print exact numbers of bytes. Without: three digits at the most, and K, M, G, T, powers of 1000.
    #[arg(short, long)]
    pub bytes: bool,
    /// Only listeners that clients do not find.
    #[arg(short, long)]
    pub listeners: bool,
    /// Also how long calls have waited for each connection: quantiles of whole waits, and of the wake-up at their end.
    #[arg(short = 'W', long)]
    pub wide: bool,
    /// List again and again, so many seconds apart.
    #[arg(short, long, value_name = "SECONDS", value_parser = pause)]
    pub watch: Option<f64>,
    /// The order of connections: the most bytes first, else the alphabet's.
    #[arg(long, value_enum)]
    pub sort: Option<Sort>,
    /// Only connections of which this is true: `sport = :80`, `not program nginx`, and so on.
    pub filter: Vec<String>,
}

/// By what connections are sorted.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Bytes sent.
    Sent,
    /// Bytes received.
    Received,
    /// Number of the process.
    Pid,
    /// Name of the program.
    Program,
    /// How bytes go.
    Mode,
    /// Why not through shared memory.
    Reason,
    /// How long the longest hundredth of its waits takes.
    Wait,
}

/// `shunt machines`.
#[derive(Args, Debug)]
pub struct Format {
    /// Print JSON for other programs.
    #[arg(long)]
    pub json: bool,
}

/// `shunt stats`.
#[derive(Args, Debug)]
pub struct Stats {
    /// Print JSON for other programs. The names are stable.
    #[arg(long)]
    pub json: bool,
    /// Only the programs of one `shunt run`: the value of SHUNT_RUN_ID in it.
    #[arg(long, value_name = "ID", default_value_t = 0, hide_default_value = true)]
    pub run: u64,
    /// Only the programs of this name, ended ones included: "redis-server". `other` is all those beyond the first 32.
    #[arg(long, value_name = "NAME", conflicts_with = "run")]
    pub program: Option<String>,
    /// Print what is added, again and again, so many seconds apart; what adds nothing is left out. With --json, a line each.
    #[arg(short, long, value_name = "SECONDS", value_parser = pause)]
    pub interval: Option<f64>,
    /// Explain every counter, and show reasons that did not occur.
    #[arg(short, long)]
    pub verbose: bool,
}

/// `shunt doctor`.
#[derive(Args, Debug)]
#[command(
    after_help = "The exit status is 0 for yes, 1 for no, and 3 where it cannot be told: a shell's script or a shim \
                  of a version manager starts programs that have to be asked about, for example."
)]
pub struct Doctor {
    /// The program, looked up as a shell does. Without it, only this machine is looked at.
    #[arg(conflicts_with_all = ["pid", "unit", "connect"])]
    pub program: Option<OsString>,
    /// Look at a process that runs: whether it has the library, which agent it finds, and how its connections go.
    #[arg(long, value_name = "PID", conflicts_with_all = ["unit", "connect"])]
    pub pid: Option<u32>,
    /// Look at a systemd service: its environment, what its sandbox takes away, its program and its process.
    #[arg(long, value_name = "NAME", conflicts_with = "connect")]
    pub unit: Option<String>,
    /// Connect, as a program under Shunt does, send nothing, and say what became of the connection.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub connect: Option<String>,
    /// Print JSON for other programs. It names the version of its schema.
    #[arg(long)]
    pub json: bool,
}

/// What `shunt doctor --connect` starts.
#[derive(Args, Debug)]
pub struct Probe {
    /// Where to.
    pub to: String,
}

/// `shunt enable`.
#[derive(Args, Debug)]
#[command(
    after_help = "A drop-in (50-shunt.conf) gives the service the library and the agent for the host (shunt-host.socket), and \
                  what its sandbox would take from both. It comes in with the next start of the service. What could not be \
                  shunted is refused, and nothing is written: static and Go programs, for example. Services of \
                  which one is refused do not keep others from being enabled; the exit status is 1 then."
)]
pub struct Enable {
    /// Services; `.service` may be left out.
    #[arg(required_unless_present = "status", value_name = "UNIT", value_parser = service)]
    pub units: Vec<String>,
    /// Print what would be written, and change nothing.
    #[arg(short = 'n', long, conflicts_with_all = ["status", "restart"])]
    pub dry_run: bool,
    /// Say which services are enabled, and whether they run with the library.
    #[arg(long, conflicts_with_all = ["units", "restart"])]
    pub status: bool,
    /// Settings for one end at the cost of others; these win over the variables of the unit. See docs/profiles.md.
    #[arg(long, value_enum)]
    pub profile: Option<crate::profile::Profile>,
    /// Restart those that run, and see that they have the library then.
    #[arg(long)]
    pub restart: bool,
    /// Where drop-ins are: /run/systemd/system, for until the next boot, or another directory in which systemd looks.
    #[arg(long, value_name = "DIRECTORY", default_value = crate::systemd::DIRECTORY)]
    pub directory: PathBuf,
}

/// `shunt disable`.
#[derive(Args, Debug)]
#[command(
    after_help = "Services that run go on as they are until they are restarted. Files that `shunt enable` has not \
                        written are left alone."
)]
pub struct Disable {
    /// Services; `.service` may be left out.
    #[arg(required_unless_present = "all", value_name = "UNIT", value_parser = service)]
    pub units: Vec<String>,
    /// All that are enabled.
    #[arg(long, conflicts_with = "units")]
    pub all: bool,
    /// Print what would be removed, and change nothing.
    #[arg(short = 'n', long, conflicts_with = "restart")]
    pub dry_run: bool,
    /// Restart those that run.
    #[arg(long)]
    pub restart: bool,
    /// Where drop-ins are.
    #[arg(long, value_name = "DIRECTORY", default_value = crate::systemd::DIRECTORY)]
    pub directory: PathBuf,
}

/// The name of a service, in full.
fn service(value: &str) -> Result<String, String> {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if value.is_empty() || value.starts_with(['-', '.', '@']) || !value.chars().all(is_of_names) {
        return Err("it is no name of a unit".to_owned());
    }
    const OTHERS: [&str; 8] =
        [".socket", ".target", ".timer", ".path", ".mount", ".slice", ".scope", ".device"];
    if OTHERS.iter().any(|kind| value.ends_with(kind)) {
        return Err("it is no service: programs are started by services".to_owned());
    }
    let stem = value.strip_suffix(".service").unwrap_or(value);
    Ok(format!("{stem}.service"))
}

/// `shunt cdi`.
#[derive(Args, Debug)]
pub struct Cdi {
    /// What to do.
    #[command(subcommand)]
    pub command: CdiCommand,
}

/// What `shunt cdi` can do.
#[derive(Subcommand, Debug)]
pub enum CdiCommand {
    /// Write the specification of the device shunt.dev/socket=default.
    Generate(CdiGenerate),
}

/// `shunt cdi generate`.
#[derive(Args, Debug)]
#[command(
    after_help = "Container runtimes look in /etc/cdi and /var/run/cdi: `shunt cdi generate --output \
                  /etc/cdi/shunt.json`, then `podman run --device shunt.dev/socket=default ...`. The \
                  container's programs find the agent of the user who generates, and must run as this \
                  user; only those that share a network namespace find each other."
)]
pub struct CdiGenerate {
    /// Write to this file. Default: standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `shunt library`.
#[derive(Args, Debug)]
pub struct Library {
    /// What to do.
    #[command(subcommand)]
    pub command: LibraryCommand,
}

/// What `shunt library` can do.
#[derive(Subcommand, Debug)]
pub enum LibraryCommand {
    /// Put the library (SHUNT_LIB, else the one that belongs to this command) into a directory.
    Install(LibraryInstall),
}

/// `shunt library install`.
#[derive(Args, Debug)]
#[command(
    after_help = "Programs that run with the library of that directory keep it, and go on; those that start from \
                  then on get the new one. An older version can be put in place of a newer one just so. Never \
                  copy over a library: programs that have it mapped crash, whatever the bytes."
)]
pub struct LibraryInstall {
    /// Where to: it is made if it is missing. LD_PRELOAD='DIRECTORY/$LIB/libshunt.so' names the library.
    pub directory: PathBuf,
}

/// `shunt ivshmem-server`.
#[derive(Args, Debug)]
#[command(
    after_help = "Every client can read and write all of the memory: run one server for each group of \
                  virtual machines that trust each other. SIGTERM ends the server, and then those \
                  that are connected go on without news of each other."
)]
pub struct IvshmemServer {
    /// Where virtual machines connect: the path of a UNIX socket. PATH.control beside it is for
    /// `status` and --take-over.
    #[arg(long, value_name = "PATH", default_value = IVSHMEM_SOCKET, global = true)]
    pub socket: PathBuf,
    /// Access rights of the socket, in octal: who may write to it may connect.
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    pub mode: u32,
    /// Bytes of shared memory, a power of two; K, M, G and T are units.
    #[arg(long, default_value = "4M", value_parser = size)]
    pub size: u64,
    /// Take the memory from a mounted file system of huge pages instead of a sealed memfd.
    #[arg(long, value_name = "DIRECTORY")]
    pub hugetlbfs: Option<PathBuf>,
    /// Interrupt vectors of each virtual machine, as its device has them (vectors=N).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = vectors())]
    pub vectors: u16,
    /// Turn clients away beyond so many. Default: 65536, or what the limit on descriptors allows.
    #[arg(long, value_name = "N")]
    pub max_peers: Option<usize>,
    /// Give the ID of one who has left to the next client as soon as all others know. QEMU (7.2 was
    /// tried) does not bear that; without, the ID rests until those have left who knew its owner.
    #[arg(long)]
    pub reuse_ids: bool,
    /// Drop a client for which more messages wait than so many. Default: 65536.
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Drop a client that takes none of the messages that wait for so long. Default: 60.
    #[arg(long, value_name = "SECONDS")]
    pub stall_timeout: Option<u64>,
    /// Take clients, memory and sockets over from the server that runs at PATH, which ends.
    #[arg(long, conflicts_with_all = ["size", "hugetlbfs", "vectors", "mode"])]
    pub take_over: bool,
    /// At the end, leave clients with systemd (FileDescriptorStoreMax=) for the next start.
    #[arg(long)]
    pub fd_store: bool,
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<IvshmemCommand>,
}

/// Where the server of the systemd unit is.
const IVSHMEM_SOCKET: &str = "/run/shunt-ivshmem/ivshmem.sock";

/// What else `shunt ivshmem-server` can do.
#[derive(Subcommand, Debug)]
pub enum IvshmemCommand {
    /// Say who is connected to the server that runs at PATH, and what has happened.
    Status(IvshmemStatus),
}

/// `shunt ivshmem-server status`.
#[derive(Args, Debug)]
pub struct IvshmemStatus {
    /// Print JSON for other programs. The names are stable.
    #[arg(long)]
    pub json: bool,
}

fn vectors() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(MAX_VECTORS))
}

fn mode(value: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "it must be an octal number up to 0777".to_owned())
}

fn size(value: &str) -> Result<u64, String> {
    let (digits, bits) = match value.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&value[..at], 10),
        Some((at, 'M' | 'm')) => (&value[..at], 20),
        Some((at, 'G' | 'g')) => (&value[..at], 30),
        Some((at, 'T' | 't')) => (&value[..at], 40),
        _ => (value, 0),
    };
    let size = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << bits));
    let possible = size.filter(|size| size.is_power_of_two());
    possible.ok_or_else(|| "it must be a power of two, such as 256M".to_owned())
}

/// `shunt docs`.
#[derive(Args, Debug)]
pub struct Docs {
    /// Where to write.
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(args: &[&str]) -> Result<Run, clap::Error> {
        let args = ["shunt", "run"].iter().chain(args);
        match Cli::try_parse_from(args)?.command {
            Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        let parsed = run(&["--spin", "7", "nginx", "-g", "x", "--summary", "--", "--dmb"]).unwrap();
        assert_eq!(parsed.command, ["nginx", "-g", "x", "--summary", "--", "--dmb"]);
        assert!(!parsed.summary);
        assert_eq!(run(&["--", "--odd-name", "a"]).unwrap().command, ["--odd-name", "a"]);
        assert_eq!(run(&["--summary", "--dmb=copy", "p"]).unwrap().dmb, Some(Dmb::Copy));
    }

    fn ivshmem(args: &[&str]) -> Result<IvshmemServer, clap::Error> {
        let args = ["shunt", "ivshmem-server"].iter().chain(args);
        match Cli::try_parse_from(args)?.command {
            Command::IvshmemServer(server) => Ok(server),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_ivshmem_server_is_described_as_people_write() {
        let args = ["--socket", "/x", "--size", "256M", "--vectors", "256", "--mode", "660"];
        let server = ivshmem(&args).unwrap();
        assert_eq!((server.size, server.vectors, server.mode), (256 << 20, 256, 0o660));
        assert_eq!(ivshmem(&["--size=4096"]).unwrap().size, 4096);
        for args in [&["status", "--socket", "/x"][..], &["--socket", "/x", "status", "--json"]] {
            let server = ivshmem(args).unwrap();
            assert!(matches!(server.command, Some(IvshmemCommand::Status(_))));
            assert_eq!(server.socket, PathBuf::from("/x"));
        }
        for bad in [
            &["--size", "3M"][..],
            &["--size", "0"],
            &["--size", "M"],
            &["--size", "99999999T"],
            &["--vectors", "0"],
            &["--vectors", "257"],
            &["--mode", "999"],
            &["--mode", "4755"],
            &["--take-over", "--size", "4M"],
        ] {
            assert_eq!(ivshmem(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn metrics() {
        let agent = |args: &[&str]| {
            let args = ["shunt", "agent"].iter().chain(args);
            match Cli::try_parse_from(args)?.command {
                Command::Agent(agent) => Ok(agent),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(agent(&[]).unwrap().metrics, None);
        assert_eq!(agent(&["--metrics", "--detach"]).unwrap().metrics, Some(Address::RunDir));
        let socket = Some(Address::Unix("/a".into()));
        assert_eq!(agent(&["--metrics", "unix:/a"]).unwrap().metrics, socket);
        for bad in [&["--metrics", "everywhere"][..], &["--metrics-public"]] {
            let why: clap::Error = agent(bad).unwrap_err();
            assert_eq!(why.exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn mistakes_are_noticed() {
        for bad in [&["--bogus", "p"][..], &[], &["--spin", "often", "p"], &["--dmb", "x", "p"]] {
            assert_eq!(run(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
