//! Running `shunt-gen` as both ends of many connections.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries;
use crate::record::{self, Event, Listening, Record, Totals};
use crate::sandbox::{Process, Sandbox};

/// Longest run of one pair; `shunt-gen` notices a stall much earlier.
const PATIENCE: Duration = Duration::from_secs(150);

/// A server that listens.
pub struct Server {
    process: Process,
    /// Its port.
    pub port: u16,
}

impl Server {
    /// Starts `shunt-gen serve`, under Shunt if the sandbox says so and `shunted` is true.
    #[must_use]
    pub fn start(sandbox: &Sandbox, shunted: bool, args: &[&str]) -> Self {
        Self::of(spawn(sandbox, shunted, "serve", args))
    }

    /// A `shunt-gen serve` that was started in another way.
    #[must_use]
    pub fn of(mut process: Process) -> Self {
        let port = process.wait_for_line(|line| {
            serde_json::from_str::<Listening>(line).ok().map(|listening| listening.port)
        });
        Self { process, port }
    }

    /// Waits for its end and returns what it says about its connections.
    #[must_use]
    pub fn finish(self) -> Vec<Record> {
        records(self.process)
    }

    /// The process alone.
    #[must_use]
    pub fn into_process(self) -> Process {
        self.process
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Waits until `servers`, which go on, have told of `count` connections together, and returns what
/// they said. A server tells of a connection when it has heard its end, which may be after its
/// client is gone.
///
/// # Panics
/// When one of them ends, or that takes too long.
#[must_use]
pub fn served(servers: &mut [Server], count: usize) -> Vec<Record> {
    let started = Instant::now();
    loop {
        let records: Vec<Record> =
            servers.iter().flat_map(|server| parse(&server.process.whole_lines())).collect();
        if records.len() >= count {
            return records;
        }
        for server in servers.iter_mut() {
            server.process.assert_running();
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{} of {count} connections: {}",
            records.len(),
            servers.iter().map(|server| server.process.describe()).collect::<String>()
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts `shunt-gen connect`.
#[must_use]
pub fn start_client(sandbox: &Sandbox, shunted: bool, to: SocketAddr, args: &[&str]) -> Process {
    let to = to.to_string();
    let args: Vec<&str> = ["--to", &to].into_iter().chain(args.iter().copied()).collect();
    spawn(sandbox, shunted, "connect", &args)
}

fn spawn(sandbox: &Sandbox, shunted: bool, role: &str, args: &[&str]) -> Process {
    let program = binaries::built("shunt-gen");
    let mut command = if shunted { sandbox.command(program) } else { sandbox.plain(program) };
    command.arg(role).args(args);
    sandbox.spawn(command)
}

/// Waits for a `shunt-gen` that must succeed, and parses what it printed.
///
/// # Panics
/// When it fails, or prints anything else.
#[must_use]
pub fn records(process: Process) -> Vec<Record> {
    records_or(process, String::new)
}

/// The same; what else there is to know when it fails.
///
/// # Panics
/// See there.
#[must_use]
pub fn records_or(process: Process, else_: impl FnOnce() -> String) -> Vec<Record> {
    let finished = process.wait_at_most(PATIENCE);
    assert!(finished.status.success(), "{finished}\n{}", else_());
    parse(&finished.stdout)
}

/// What `--survive` has printed so far: connections begun, and when and how they were lost.
#[must_use]
pub fn events(process: &Process) -> (usize, Vec<(u64, String)>) {
    let text = process.whole_lines();
    let events = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let (mut begun, mut lost) = (0, Vec::new());
    for event in events {
        match event {
            Event::Begun => begun += 1,
            Event::Lost { at, how } => lost.push((at, how)),
        }
    }
    (begun, lost)
}

/// Waits for a `shunt-gen --totals` that must succeed: what it says.
///
/// # Panics
/// When it fails, or says nothing.
#[must_use]
pub fn totals(process: Process, patience: Duration) -> Totals {
    let out = process.wait_at_most(patience).success();
    let last = out.stdout.lines().last().and_then(|line| serde_json::from_str(line).ok());
    last.unwrap_or_else(|| panic!("no totals: {out}"))
}

/// Parses what `shunt-gen` printed.
///
/// # Panics
/// When it is anything else than records.
#[must_use]
pub fn parse(printed: &str) -> Vec<Record> {
    printed
        .lines()
        .filter(|line| serde_json::from_str::<Listening>(line).is_err())
        .filter(|line| serde_json::from_str::<Event>(line).is_err())
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// Runs a server on `listen` and a client that connects to `to` (the port is the server's), both
/// in the sandbox's mode, and compares every byte. Returns the bytes that went over.
///
/// # Panics
/// On any difference or failure.
pub fn run_pair(
    sandbox: &Sandbox,
    listen: &str,
    mut to: SocketAddr,
    server_args: &[&str],
    client_args: &[&str],
) -> u64 {
    let args: Vec<&str> =
        ["--listen", listen].into_iter().chain(server_args.iter().copied()).collect();
    let server = Server::start(sandbox, true, &args);
    to.set_port(server.port);
    let clients = records(start_client(sandbox, true, to, client_args));
    let servers = server.finish();
    record::compare(&clients, &servers).unwrap_or_else(|e| {
        panic!("{e}\nserver {server_args:?}\nclient {client_args:?} [{}]", sandbox.mode)
    });
    clients.iter().map(|r| r.sent_bytes + r.received_bytes).sum()
}
