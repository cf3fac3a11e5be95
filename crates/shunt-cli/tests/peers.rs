//! Agents that meet each other over TCP, as processes, and what the tools show of that.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::open_metrics::Exposition;
use common::{Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use shunt_rdma::PublicKey;

const PATIENCE: Duration = Duration::from_secs(60);

/// An agent with a key, in a directory of its own.
struct Host {
    sandbox: Sandbox,
    key: PublicKey,
    agent: Option<Child>,
    /// KiB that its agent may lock.
    memory_limit: Option<u64>,
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let key = key(&sandbox, &["--file", path(&sandbox.path("key"))]);
        Self { sandbox, key, agent: None, memory_limit: None }
    }

    /// Two, of which the first one connects to the second.
    fn two() -> [Self; 2] {
        let (one, two) = (Self::new(), Self::new());
        if one.key < two.key { [one, two] } else { [two, one] }
    }

    /// Starts its agent in the foreground. The device is one that there is not.
    fn start(&mut self, peers: &[String], more: &[&str]) {
        self.start_with("nosuch0", None, peers, more);
    }

    /// The same with a device; with the stub of libibverbs in a directory, if one is given, which is also the wire.
    fn start_with(&mut self, device: &str, stub: Option<&Path>, peers: &[String], more: &[&str]) {
        let key = self.sandbox.path("key");
        let mut command = self.sandbox.command(&["agent", "--rdma", device]);
        if let Some(stub) = stub {
            command.env("LD_LIBRARY_PATH", stub).env("SHUNT_TEST_WIRE", stub);
        }
        command.args(["--rdma-listen", "127.0.0.1:0", "--rdma-key"]).arg(key);
        for peer in peers {
            command.args(["--peer", peer]);
        }
        command.args(more).stderr(File::create(self.sandbox.path("log")).unwrap());
        if let Some(limit) = self.memory_limit {
            command = limited(&command, limit);
            command.stderr(File::create(self.sandbox.path("log")).unwrap());
        }
        self.agent = Some(command.spawn().unwrap());
        self.until(|machines| machines["listen"].is_string());
    }

    /// As a peer of others.
    fn as_peer(&self) -> String {
        let listen = self.machines()["listen"].as_str().unwrap_or("127.0.0.1:1").to_owned();
        format!("{listen}={}", self.key)
    }

    /// What it serves, where it was told to.
    fn metrics(&self) -> Exposition {
        let mut stream = UnixStream::connect(self.sandbox.run_dir().join("metrics.sock")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        Exposition::parse(answer.split_once("\r\n\r\n").unwrap().1)
    }

    fn machines(&self) -> Value {
        let said = self.sandbox.output(&["machines", "--json"]).stdout;
        serde_json::from_slice(&said).unwrap_or_default()
    }

    fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let machines = self.machines();
            if wanted(&machines) {
                return machines;
            }
            assert!(Instant::now() < deadline, "{machines:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until its only peer is in a state.
    fn until_peer(&self, state: &str) -> Value {
        self.until(|machines| machines["peers"][0]["state"] == state)["peers"][0].clone()
    }

    /// Waits until it has said something in its log.
    fn until_said(&self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !fs::read_to_string(self.sandbox.path("log")).unwrap().contains(what) {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.agent.as_ref().unwrap()), signal).unwrap();
    }

    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.agent.take().unwrap().wait().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// A command that may lock so many KiB; its process is the shell's.
fn limited(command: &Command, limit: u64) -> Command {
    let mut shell = Command::new("sh");
    let script = format!("ulimit -l {limit}; exec \"$@\"");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn key(sandbox: &Sandbox, args: &[&str]) -> PublicKey {
    let args: Vec<_> = ["agent-key"].iter().chain(args).copied().collect();
    let output = sandbox.output(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim_end().parse().unwrap()
}

/// Both, connected.
fn met(more: &[&str]) -> [Host; 2] {
    let [mut dialer, mut answerer] = Host::two();
    answerer.start(&[dialer.as_peer()], more);
    dialer.start(&[answerer.as_peer()], more);
    dialer.until_peer("connected");
    answerer.until_peer("connected");
    [dialer, answerer]
}

#[test]
fn tools_show_peers_that_have_met() {
    let [dialer, answerer] = met(&["--metrics"]);
    for host in [&dialer, &answerer] {
        let doctor = text(&host.sandbox.with_library(&["doctor"]).output().unwrap().stdout);
        assert!(doctor.contains(": connected, calls itself "), "{doctor}");
        assert!(doctor.contains("rdma: nosuch0 cannot be used: "), "{doctor}");
        let machines = text(&host.sandbox.output(&["machines"]).stdout);
        assert!(
            machines.lines().nth(1).is_some_and(|line| line.contains("connected")),
            "{machines}"
        );
        let stats = host.sandbox.output(&["stats", "--json"]).stdout;
        let stats: Value = serde_json::from_slice(&stats).unwrap();
        assert_eq!(stats["rdma_peers"]["connected"], 1);
        let stats = text(&host.sandbox.output(&["stats"]).stdout);
        assert!(stats.contains("rdma_peers.connected"), "{stats}");
        let metrics = host.metrics();
        for (state, count) in [("connected", 1.0), ("refused", 0.0)] {
            let value = metrics.value("shunt_rdma_peers", &[("state", state)]);
            assert!((value - count).abs() < 0.5, "{state}");
        }
    }
}

#[test]
fn an_agent_without_peers_shows_none() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
    let doctor = text(&sandbox.with_library(&["doctor"]).output().unwrap().stdout);
    assert!(!doctor.contains("rdma:"), "{doctor}");
    let stats = text(&sandbox.output(&["stats"]).stdout);
    assert!(!stats.contains("rdma_peers"), "{stats}");
}

#[test]
fn an_agent_that_is_killed_is_met_again() {
    let [mut dialer, answerer] = met(&[]);
    dialer.end(Signal::KILL);
    let gone = answerer.until_peer("awaited");
    assert!(gone["reason"].as_str().unwrap().contains("closed the connection"), "{gone}");
    let doctor = text(&answerer.sandbox.with_library(&["doctor"]).output().unwrap().stdout);
    assert!(doctor.contains(": awaited: it closed the connection"), "{doctor}");
    dialer.start(&[answerer.as_peer()], &[]);
    dialer.until_peer("connected");
    answerer.until_peer("connected");
}

#[test]
fn an_agent_that_stands_still_is_given_up() {
    let [dialer, answerer] = met(&[]);
    dialer.signal(Signal::STOP);
    let silent = answerer.until_peer("awaited");
    assert!(silent["reason"].as_str().unwrap().contains("said nothing for too long"), "{silent}");
    dialer.signal(Signal::CONT);
    answerer.until_peer("connected");
}

#[test]
fn a_stranger_is_refused_and_the_doctor_says_why() {
    let [mut dialer, mut answerer] = Host::two();
    answerer.start(&[], &[]);
    dialer.start(&[answerer.as_peer()], &[]);
    dialer.until_peer("refused");
    let doctor =
        |host: &Host| text(&host.sandbox.with_library(&["doctor"]).output().unwrap().stdout);
    let (refused, refusing) = (doctor(&dialer), doctor(&answerer));
    assert!(refused.contains("refused: it closed the connection during the proof"), "{refused}");
    let named = format!("its key {} is no peer's: name it by --peer", dialer.key);
    assert!(refusing.contains(&named), "{refusing}");
}

/// A SIGHUP has an agent for the host read its peers anew; that agent is root's.
#[test]
fn peers_of_the_policy_come_and_go_with_a_reload() {
    let [mut dialer, mut answerer] = Host::two();
    let policy = answerer.sandbox.path("policy.toml");
    // Whole: the agent may just be reading it.
    let write = |text: &str| {
        let whole = policy.with_extension("new");
        fs::write(&whole, text).unwrap();
        fs::rename(whole, &policy).unwrap();
    };
    write("[rdma]\ndevice = 'nosuch0'\n");
    answerer.start(&[], &["--host", "--policy", path(&policy)]);
    dialer.start(&[answerer.as_peer()], &[]);
    dialer.until_peer("refused");
    let named = format!("[[rdma.peer]]\nhost = '127.0.0.1:1'\nkey = '{}'\n", dialer.key);
    write(&named);
    answerer.signal(Signal::HUP);
    answerer.until_peer("connected");
    // A mistake changes nothing.
    for (wrong, why) in [
        (named.replace("key =", "kee ="), "unknown field `kee`"),
        (named.repeat(2), "has the key of another peer"),
    ] {
        write(&wrong);
        answerer.signal(Signal::HUP);
        answerer.until_said(why);
        answerer.until_peer("connected");
    }
    write("");
    answerer.signal(Signal::HUP);
    let removed = dialer.until_peer("refused");
    assert!(removed["reason"].as_str().is_some());
    answerer.until(|machines| machines["peers"].as_array().is_some_and(Vec::is_empty));
}

/// The stub of libibverbs, where the agent's loader finds it.
fn stub() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shunt-verbs/tests/stub/stub.c");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o"]);
    let compiled = command.arg(dir.path().join("libibverbs.so.1")).arg(source).output().unwrap();
    let said = text(&compiled.stderr);
    assert!(compiled.status.success(), "the header of libibverbs-dev is needed:\n{said}");
    dir
}

/// Nothing is measured.
const ALWAYS: &[&str] = &["--rdma-promote", "always"];

fn until_linked(host: &Host) -> Value {
    host.until(|machines| machines["peers"][0]["link_groups"] == 1)
}

#[test]
fn agents_with_a_device_make_a_link_group_and_another_one_after_a_kill() {
    let (stub, [mut dialer, mut answerer]) = (stub(), Host::two());
    let stub = Some(stub.path());
    answerer.start_with("stub0", stub, &[dialer.as_peer()], &[]);
    dialer.start_with("stub0", stub, &[answerer.as_peer()], &[]);
    for host in [&dialer, &answerer] {
        let machines = until_linked(host);
        assert_eq!(machines["device_lacks"], Value::Null);
        assert_eq!(machines["device_address"], "::ffff:10.0.0.7");
        let doctor = text(&host.sandbox.with_library(&["doctor"]).output().unwrap().stdout);
        assert!(doctor.contains("rdma: stub0 can be used"), "{doctor}");
        assert!(doctor.contains("; 1 link group"), "{doctor}");
    }
    dialer.end(Signal::KILL);
    let alone = answerer.until(|machines| machines["peers"][0]["link_groups"] == 0);
    assert_eq!(alone["peers"][0]["state"], "awaited");
    answerer.until(|machines| machines["memory_registered"] == 0);
    dialer.start_with("stub0", stub, &[answerer.as_peer()], &[]);
    until_linked(&dialer);
    until_linked(&answerer);
}

#[test]
fn tools_say_why_connections_stay_on_tcp() {
    let (stub, [mut dialer, mut answerer]) = (stub(), Host::two());
    fs::write(stub.path().join("slow"), "").unwrap();
    let stub = Some(stub.path());
    // The one judges, and the other one promotes whatever was measured.
    answerer.start_with("stub0", stub, &[dialer.as_peer()], &["--metrics"]);
    let promotes = &["--metrics", "--rdma-promote", "always"];
    dialer.start_with("stub0", stub, &[answerer.as_peer()], promotes);
    for (host, promotion, why) in [
        (&answerer, "slower", "the link is slower than TCP: "),
        (&dialer, "refused", "the peer judges that the link is slower than TCP"),
    ] {
        let machines = host.until(|machines| machines["peers"][0]["promotion"] == promotion);
        let measured = &machines["peers"][0]["measured"];
        for name in
            ["link_round_trip_ns", "tcp_round_trip_ns", "link_bytes_per_s", "tcp_bytes_per_s"]
        {
            assert!(measured[name].as_u64().is_some_and(|figure| figure > 0), "{name}: {measured}");
        }
        let shown = text(&host.sandbox.output(&["machines"]).stdout);
        assert!(shown.contains(why), "{shown}");
        let doctor = text(&host.sandbox.with_library(&["doctor"]).output().unwrap().stdout);
        assert!(doctor.contains(&format!("new ones stay on TCP: {why}")), "{doctor}");
        let stats = host.sandbox.output(&["stats", "--json"]).stdout;
        let stats: Value = serde_json::from_slice(&stats).unwrap();
        assert_eq!(stats["rdma_promotion"][promotion], 1);
        let metrics = host.metrics();
        for (judgement, count) in [(promotion, 1.0), ("faster", 0.0)] {
            let value = metrics.value("shunt_rdma_promotion", &[("judgement", judgement)]);
            assert!((value - count).abs() < 0.5, "{judgement}");
        }
    }
}

#[test]
fn a_link_group_outlasts_the_agents_connection() {
    let (stub, [mut dialer, mut answerer]) = (stub(), Host::two());
    let stub = Some(stub.path());
    answerer.start_with("stub0", stub, &[dialer.as_peer()], ALWAYS);
    dialer.start_with("stub0", stub, &[answerer.as_peer()], ALWAYS);
    until_linked(&answerer);
    until_linked(&dialer);
    dialer.signal(Signal::STOP);
    answerer.until(|machines| machines["peers"][0]["state"] == "awaited");
    dialer.signal(Signal::CONT);
    for host in [&dialer, &answerer] {
        let again = host.until(|machines| machines["peers"][0]["resumptions_total"] == 1);
        assert_eq!(again["peers"][0]["state"], "connected");
        // Its link may have failed meanwhile, and goes on.
        until_linked(host);
        host.until(|machines| machines["memory_registered"] == 65536);
    }
}

#[test]
fn devices_that_do_not_reach_each_other_are_a_reason() {
    // Two wires.
    let (stubs, [mut dialer, mut answerer]) = ([stub(), stub()], Host::two());
    answerer.start_with("stub0", Some(stubs[0].path()), &[dialer.as_peer()], &[]);
    dialer.start_with("stub0", Some(stubs[1].path()), &[answerer.as_peer()], &[]);
    let has_reason = |machines: &Value| machines["peers"][0]["link_group_reason"].is_string();
    let machines = dialer.until(has_reason);
    let why = machines["peers"][0]["link_group_reason"].as_str().unwrap().to_owned();
    assert_eq!(why, "the peer's device does not answer");
    answerer.until(has_reason);
    let doctor = text(&dialer.sandbox.with_library(&["doctor"]).output().unwrap().stdout);
    assert!(doctor.contains(&format!("no link group: {why}")), "{doctor}");
}

#[test]
fn memory_that_may_not_be_registered_is_a_reason_at_both_ends() {
    let (stub, [mut dialer, mut answerer]) = (stub(), Host::two());
    answerer.memory_limit = Some(16);
    answerer.start_with("stub0", Some(stub.path()), &[dialer.as_peer()], &[]);
    dialer.start_with("stub0", Some(stub.path()), &[answerer.as_peer()], &[]);
    for (host, why) in [
        (&answerer, "65536 bytes cannot be registered: raise RLIMIT_MEMLOCK"),
        (&dialer, "the peer refuses: it may not register more memory"),
    ] {
        let machines = host.until(|machines| machines["peers"][0]["link_group_reason"].is_string());
        let said = machines["peers"][0]["link_group_reason"].as_str().unwrap();
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(answerer.machines()["memory_limit"], 16 * 1024);
}

/// What a command says on standard error, and its status.
fn said(command: &mut Command) -> (String, Option<i32>) {
    let output = command.output().unwrap();
    (text(&output.stderr), output.status.code())
}

#[test]
fn a_key_is_made_once_and_kept_from_others() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("config/shunt/rdma.key");
    let config = sandbox.path("config");
    let print = |sandbox: &Sandbox| {
        let mut command = sandbox.command(&["agent-key"]);
        text(&command.env("XDG_CONFIG_HOME", &config).output().unwrap().stdout)
    };
    let key = print(&sandbox);
    key.trim_end().parse::<PublicKey>().unwrap();
    assert_eq!(print(&sandbox), key);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&file).unwrap().starts_with("secret:"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for args in [&["agent-key", "--file"][..], &["agent", "--rdma", "x0", "--rdma-key"]] {
        let (why, status) = said(sandbox.command(args).arg(&file));
        assert_eq!(status, Some(1));
        assert!(why.contains("lets others read or write it"), "{why}");
    }
}

#[test]
fn mistakes_are_named() {
    let sandbox = Sandbox::new();
    let of = |args: &[&str]| said(&mut sandbox.command(args));
    let peer = format!("db1={}", Host::new().key);
    let (why, status) = of(&["agent", "--peer", &peer]);
    assert!(status == Some(1) && why.contains("add --rdma DEVICE"), "{why}");
    let missing = sandbox.path("none");
    let (why, status) = of(&["agent", "--rdma", "x0", "--rdma-key", path(&missing)]);
    assert!(status == Some(1) && why.contains("make one by `shunt agent-key`"), "{why}");
    let (why, status) = of(&["agent", "--rdma", "x0", "--rdma-promote", "never"]);
    assert!(status == Some(2) && why.contains("`faster` or `always`"), "{why}");
    let (why, status) = of(&["agent", "--rdma", "x0", "--peer", "db1"]);
    assert!(status == Some(2) && why.contains("HOST=KEY"), "{why}");
    let own = key(&sandbox, &["--file", path(&missing)]);
    let peer = format!("db1={own}");
    let (why, status) = of(&[
        "agent",
        "--rdma",
        "x0",
        "--rdma-listen",
        "127.0.0.1:0",
        "--rdma-key",
        path(&missing),
        "--peer",
        &peer,
    ]);
    assert!(status == Some(1) && why.contains("this agent's own key"), "{why}");
}
