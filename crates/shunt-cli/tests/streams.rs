//! Standard streams that cannot be written, for each subcommand.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{EXE, Sandbox, any_library, text};
use shunt_bench::rig::ports::free_port;

/// A program that is ended when this value goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How standard output fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    Full,
    Closed,
    ReadOnly,
    /// A pipe that nobody reads, where SIGPIPE is ignored.
    Pipe,
    /// The same where it is not.
    PipeWithSignal,
}

use Broken::{Closed, Full, Pipe, PipeWithSignal, ReadOnly};

const ALL: [Broken; 5] = [Full, Closed, ReadOnly, Pipe, PipeWithSignal];

impl Broken {
    /// Runs `command` with such an output.
    fn run(self, command: &Command) -> Output {
        let script = match self {
            Full => "exec \"$@\" >/dev/full",
            Closed => "exec \"$@\" >&-",
            ReadOnly => "exec \"$@\" 1</dev/null",
            Pipe => "trap '' PIPE; exec \"$@\"",
            PipeWithSignal => "exec \"$@\"",
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        shell.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        shell.spawn().unwrap().wait_with_output().unwrap()
    }

    const fn errno(self) -> i32 {
        match self {
            Full => libc::ENOSPC,
            Closed | ReadOnly => libc::EBADF,
            Pipe | PipeWithSignal => libc::EPIPE,
        }
    }
}

/// What a subcommand does with an output that it cannot write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// Says so, and ends with 1. A pipe that nobody reads ends it by SIGPIPE, as it does other tools.
    Report,
    /// The same, but it ignores SIGPIPE, so as to end what it has started.
    ReportAlways,
    /// Does not write there, and succeeds.
    Nothing,
}

use Does::{Nothing, Report, ReportAlways};

const TABLE: &[(&[&str], Does)] = &[
    (&["--help"], Report),
    (&["--version"], Report),
    (&["run", "--summary", "--", "true"], Nothing),
    (&["agent", "--detach"], Nothing),
    (&["agent-key", "--file", "OUTPUT.key"], Report),
    (&["list"], Report),
    (&["list", "--json"], Report),
    (&["list", "--sort", "sent", "-l", "sport", "=", ":80"], Report),
    (&["top", "--once", "--interval", "0.1"], Report),
    (&["capture", "--extcap-interfaces"], Report),
    (&["capture", "-w", "-", "--duration", "0.1"], Report),
    (&["explain", "PORT"], Report),
    (&["explain", "--json", "PORT"], Report),
    (&["enable", "--status", "--directory", "OUTPUT.units"], Report),
    (&["disable", "--all", "--directory", "OUTPUT.units"], Report),
    (&["stats"], Report),
    (&["stats", "--json"], Report),
    (&["stats", "--interval", "0.1"], Report),
    (&["stats", "--interval", "0.1", "--json"], Report),
    (&["stats", "--verbose"], Report),
    (&["doctor"], Report),
    (&["doctor", "sh"], Report),
    (&["doctor", "--json", "sh"], Report),
    (&["doctor", "--pid", "1"], Report),
    (&["doctor", "--unit", "no-such-unit-here.service"], Report),
    (&["doctor", "--connect", "SERVER"], Report),
    (&["probe", "SERVER"], Report),
    (&["doctor", "no-such-program-here"], Report),
    (&["cdi", "generate"], Report),
    (&["cdi", "generate", "--output", "OUTPUT"], Nothing),
    (&["library", "install", "OUTPUT.so"], Report),
    (&["machines"], Report),
    (&["machines", "--json"], Report),
    (&["ivshmem-server", "--socket", "SOCKET", "status"], Report),
    (&["ivshmem-server", "--socket", "SOCKET", "status", "--json"], Report),
    (&["nvme", "target", "--check", "--null", "1MiB"], Report),
    (&["nvme", "discover", "--to", "TARGET"], Report),
    (&["nvme", "discover", "--to", "TARGET", "--json"], Report),
    (&["nvme", "list", "--to", "TARGET"], Report),
    (&["nvme", "list", "--to", "TARGET", "--json"], Report),
    (&["nvme", "read", "--to", "TARGET"], Report),
    (&["nvme", "write", "--to", "TARGET"], Nothing),
    (&["nvme", "bench", "--to", "TARGET", "--seconds", "0.01"], Report),
    (&["nvme", "bench", "--to", "TARGET", "--seconds", "0.01", "--json"], Report),
    (&["bench", "--list"], ReportAlways),
    (&["bench", "--quick"], ReportAlways),
    (&["load", "ping", "--to", "SERVER", "--seconds", "0.01"], Report),
    (&["docs", "OUTPUT.d"], Nothing),
];

/// What `shunt --help` names, and what it hides.
fn subcommands(sandbox: &Sandbox) -> BTreeSet<String> {
    let help = text(&sandbox.output(&["--help"]).stdout);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let named = commands.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    });
    named.chain(["load", "docs", "probe", "agent-key"].map(str::to_owned)).collect()
}

/// An ivshmem server, and an agent that has to do with it; a load program; an NVMe/TCP target.
fn surroundings(sandbox: &Sandbox, server: &str, target: &str) -> [Running; 3] {
    let socket = sandbox.path("SOCKET");
    let mut command = sandbox.command(&["ivshmem-server", "--size", "32M", "--socket"]);
    command.arg(&socket).stderr(Stdio::null());
    let ivshmem = Running(command.spawn().unwrap());
    until(|| socket.exists());
    let mut agent = sandbox.command(&["agent", "--detach", "--ivshmem"]);
    let agent = agent.arg(&socket).output().unwrap();
    assert!(agent.status.success(), "{agent:?}");
    // Which looks as if it ran under Shunt, as far as `explain` sees.
    let library = sandbox.path("libshunt.so");
    fs::copy(any_library(), &library).unwrap();
    let mut load = sandbox.command(&["load", "serve", "--at", server]);
    let load = Running(load.env("LD_PRELOAD", library).spawn().unwrap());
    until(|| std::net::TcpStream::connect(server).is_ok());
    let mut nvme = sandbox.command(&["nvme", "target", "--null", "1MiB", "--listen", target]);
    let nvme = Running(nvme.stderr(Stdio::null()).spawn().unwrap());
    until(|| std::net::TcpStream::connect(target).is_ok());
    [ivshmem, load, nvme]
}

fn until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_subcommand_says_that_its_output_is_lost() {
    let sandbox = Sandbox::new();
    let server = format!("127.0.0.1:{}", free_port().unwrap());
    let target = format!("127.0.0.1:{}", free_port().unwrap());
    let _surroundings = surroundings(&sandbox, &server, &target);
    let known = subcommands(&sandbox);
    let tried: BTreeSet<_> = TABLE.iter().map(|(args, _)| args[0].to_owned()).collect();
    let missing: Vec<_> = known.difference(&tried).collect();
    assert!(missing.is_empty(), "no row is for {missing:?}");
    let helps: Vec<_> = known.iter().map(|name| ([name.as_str(), "--help"], Report)).collect();
    let helps = helps.iter().map(|(args, does)| (&args[..], *does));
    for (args, does) in TABLE.iter().copied().chain(helps) {
        let mut command = sandbox.with_library(&[]);
        for arg in args {
            match *arg {
                "SERVER" => command.arg(&server),
                "PORT" => command.arg(server.rsplit(':').next().unwrap()),
                "TARGET" => command.arg(&target),
                name if name.starts_with("OUTPUT") || name == "SOCKET" => {
                    command.arg(sandbox.path(name))
                }
                other => command.arg(other),
            };
        }
        for broken in ALL {
            let output = broken.run(&command);
            let said = text(&output.stderr);
            let what = format!("{args:?}, {broken:?}: {:?}: {said}", output.status);
            match (does, broken) {
                (Nothing, _) => assert_eq!(output.status.code(), Some(0), "{what}"),
                (Report, PipeWithSignal) => {
                    assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{what}");
                    assert_eq!(said, "");
                }
                (Report | ReportAlways, _) => {
                    assert_eq!(output.status.code(), Some(1), "{what}");
                    assert_eq!(said.lines().count(), 1, "{what}");
                    assert!(said.contains(": standard output cannot be written: "), "{what}");
                    let errno = format!("(os error {})", broken.errno());
                    assert!(said.contains(&errno), "{what}");
                }
            }
        }
    }
}

#[test]
fn closed_streams_are_not_taken_for_the_agents_socket() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("log");
    let _agent =
        Running(sandbox.command(&["agent"]).stderr(File::create(&log).unwrap()).spawn().unwrap());
    until(|| sandbox.run_dir().join("agent.sock").exists());
    // Were the socket to the agent number 1 or 2, it would get the words meant for people, and drop the tool.
    let cases = [
        ("2>&-", true),
        ("<&- 2>&-", true),
        (">&-", false),
        ("<&- >&-", false),
        ("<&- >&- 2>&-", false),
    ];
    for (streams, is_open) in cases {
        let script = format!("exec {EXE} list --json {streams}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("SHUNT_RUN_DIR", sandbox.run_dir());
        let output = shell.output().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!is_open)), "{streams}: {output:?}");
        assert_eq!(text(&output.stdout).contains("\"connections\""), is_open, "{streams}");
    }
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("serving at") && !log.contains("dropped"), "{log}");
}

#[test]
fn servers_outlive_a_log_that_cannot_be_written() {
    let sandbox = Sandbox::new();
    let socket = sandbox.path("ivshmem.sock");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut server = sandbox.command(&["ivshmem-server", "--socket"]);
    let mut server = Running(server.arg(&socket).stderr(full()).spawn().unwrap());
    let mut agent = Running(sandbox.command(&["agent"]).stderr(full()).spawn().unwrap());
    until(|| sandbox.run_dir().join("agent.sock").exists() && socket.exists());
    let path = socket.to_str().unwrap();
    for args in [&["stats"][..], &["ivshmem-server", "--socket", path, "status"]] {
        let output = sandbox.output(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert_eq!(text(&output.stderr), "");
    }
    assert!(agent.0.try_wait().unwrap().is_none() && server.0.try_wait().unwrap().is_none());
}

#[test]
fn documents_that_cannot_be_written_are_reported() {
    for name in ["completions/shunt.bash", "man/shunt.1", "env.md"] {
        let sandbox = Sandbox::new();
        let path = sandbox.path("docs").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink("/dev/full", &path).unwrap();
        let output = sandbox.output(&["docs", sandbox.path("docs").to_str().unwrap()]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert_eq!(said.lines().count(), 1, "{name}: {said}");
    }
}
