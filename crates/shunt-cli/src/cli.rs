//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use shunt_agent::metrics::Address;

/// Runs unmodified programs with their local TCP connections in shared memory.
/// Moves the TCP connections between unmodified programs of one host into shared memory
#[derive(Parser, Debug)]
#[command(name = "shunt", version, disable_help_subcommand = true)]
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
    List(Format),
    /// Show totals, also of programs that have ended.
    Stats(Stats),
    /// Say whether, and why or why not, a program would be shunted.
    Doctor(Doctor),
    /// Give Shunt to containers, as a device of the Container Device Interface.
    Cdi(Cdi),
    /// Measure this machine: kernel TCP, UNIX sockets, eBPF sockmap and Shunt side by side.
    Bench(shunt_bench::Options),
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
    after_help = "The exit status is the program's; 128+N when signal N ended it, 126 when it \
                  cannot be executed, 127 when it is not found. Connections that cannot be \
                  shunted stay on kernel TCP; `shunt doctor PROGRAM` says why."
)]
pub struct Run {
    /// How long a waiting call spins before it sleeps: auto, never, or microseconds.
    #[arg(long, value_name = "auto|never|MICROSECONDS", value_parser = spin)]
    pub spin: Option<String>,
    /// How bytes reach the peer's memory.
    #[arg(long, value_enum)]
    pub dmb: Option<Dmb>,
    /// At the end, print on standard error how many connections were shunted, and why others not.
    #[arg(long)]
    pub summary: bool,
    /// The program, looked up as a shell does, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    pub command: Vec<OsString>,
}

/// How bytes reach the peer's memory.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dmb {
    /// Written straight into the peer's RMB.
    Attach,
    /// Through an own sndbuf that the device moves.
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
    /// Serve metrics over HTTP at unix:/PATH, 127.0.0.1:PORT or [::1]:PORT; without an address at the
    /// socket metrics.sock in the agent's directory. Default: SHUNT_METRICS, or no metrics.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "unix")]
    pub metrics: Option<Address>,
    /// Also at an address that other hosts can reach. There is neither password nor encryption.
    #[arg(long, requires = "metrics")]
    pub metrics_public: bool,
}

/// `shunt list`.
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
    /// Explain every counter, and show reasons that did not occur.
    #[arg(short, long)]
    pub verbose: bool,
}

/// `shunt doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// The program, looked up as a shell does. Without it, only this machine is looked at.
    pub program: Option<OsString>,
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
