//! Others that try to get at connections which are not their own: of another user, and of the same.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, records, start_client};
use shunt_functional::mode::Mode;
use shunt_functional::passing;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};

/// Whose programs are attacked.
const VICTIM: &str = "nobody";
/// Who attacks.
const OTHER: &str = "daemon";

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// False, and says so, where nobody can be another user.
fn two_users() -> bool {
    let root = is_root();
    if !root {
        println!("left out: only root can be two users");
    }
    root
}

/// A program of another user, which has no agent.
fn other_user() -> Sandbox {
    Sandbox::for_user(Mode::Plain, OTHER)
}

fn open_up(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

/// Connections between two programs, which stand still in the middle of their bytes.
struct Victims {
    server: Server,
    client: Process,
}

impl Victims {
    fn start(sandbox: &Sandbox) -> Self {
        // So much that none is done before it is stopped.
        let args = ["-n", "6", "-b", "40000000", "--style", "epoll-lt", "--pause", "2000"];
        let run = |role: &[&str]| {
            let mut command = sandbox.command(sandbox.path().join("shunt-gen"));
            command.args(role).args(args);
            sandbox.spawn(command)
        };
        let _copy = sandbox.readable_copy(&built("shunt-gen"));
        let server = Server::of(run(&["serve"]));
        let to = at(server.port).to_string();
        let mut client = sandbox.expect(Expect::Ends(12), || run(&["connect", "--to", &to]));
        client.signal(libc::SIGSTOP);
        client.assert_running();
        Self { server, client }
    }

    /// They go on, and every byte is right.
    fn finish(self, sandbox: &Sandbox) {
        self.client.signal(libc::SIGCONT);
        let clients = records(self.client);
        compare(&clients, &self.server.finish())
            .unwrap_or_else(|e| panic!("{e} [{}]", sandbox.mode));
        sandbox.expect(Expect::All(0), || ());
    }

    fn pids(&mut self) -> [i32; 2] {
        [self.server.process().pid(), self.client.pid()]
    }
}

/// `shunt-intruder` as a program of a sandbox's user, without Shunt.
fn intruder(by: &Sandbox, run_dir: &Path, args: &[&str]) -> Command {
    let program = by.path().join("shunt-intruder");
    if !program.exists() {
        let _copy = by.readable_copy(&built("shunt-intruder"));
    }
    let mut command = by.plain(program);
    command.arg("--run-dir").arg(run_dir).args(args);
    command
}

/// What it tried, and what came of it.
fn attempts(stdout: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (what, outcome) = line.split_once('\t').unwrap_or_else(|| panic!("{line:?}"));
        (what.to_owned(), outcome.to_owned())
    };
    stdout.lines().map(line).collect()
}

fn try_all(by: &Sandbox, run_dir: &Path, args: &[&str]) -> BTreeMap<String, String> {
    attempts(&by.run(intruder(by, run_dir, args)).stdout)
}

fn assert_refused(attempts: &BTreeMap<String, String>, at_least: usize) {
    assert!(attempts.len() >= at_least, "only {} attempts", attempts.len());
    for (what, outcome) in attempts {
        assert!(outcome.starts_with("refused"), "{what}: {outcome}");
    }
}

/// Shared memory that processes have mapped or open.
fn memory(pids: &[i32]) -> Vec<PathBuf> {
    let of_process = |pid: &i32| {
        ["fd", "map_files"]
            .map(|dir| fs::read_dir(format!("/proc/{pid}/{dir}")).expect("a process"))
    };
    let entries = pids.iter().flat_map(of_process).flatten().flatten().map(|entry| entry.path());
    let is_memory = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:shunt-"))
    };
    entries.filter(is_memory).collect()
}

#[test]
fn another_user_reaches_nothing() {
    if !two_users() {
        return;
    }
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::for_user(mode, VICTIM);
        // What is closed is the agent's directory by itself, not what it lies in.
        open_up(sandbox.path(), 0o755);
        let mut victims = Victims::start(&sandbox);
        let [server, client] = victims.pids();
        let agent = sandbox.agent_pid().expect("an agent");
        let files = memory(&[agent, server, client]);
        for kind in ["link-group", "proposals", "registry", "arena"] {
            let is_there = |file: &PathBuf| {
                fs::read_link(file).is_ok_and(|to| to.to_string_lossy().contains(kind))
            };
            assert!(files.iter().any(is_there), "no {kind} in {files:?}");
        }
        let pids = [agent, server, client].map(|pid| format!("--pid={pid}"));
        let files: Vec<_> = files.iter().map(|f| format!("--file={}", f.display())).collect();
        let args = ["look"].into_iter().chain(pids.iter().chain(&files).map(String::as_str));
        let args: Vec<_> = args.collect();

        let other = other_user();
        assert_refused(&try_all(&other, &sandbox.run_dir(), &args), 7 + 3 * 7 + 2 * files.len());

        // The attempts are none that fail in any case.
        let own = try_all(&sandbox, &sandbox.run_dir(), &args);
        let done = |what: String| own.get(&what).is_some_and(|outcome| outcome == "done");
        let run_dir = sandbox.run_dir().display().to_string();
        assert!(done(format!("list {run_dir}")), "{own:#?}");
        assert!(done(format!("connect to {run_dir}/agent.sock")), "{own:#?}");
        assert!(done(format!("list /proc/{server}/fd")), "{own:#?}");
        victims.finish(&sandbox);
    }
}

#[test]
fn another_user_is_refused_by_the_agent_where_all_is_open() {
    if !two_users() {
        return;
    }
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::for_user(mode, VICTIM);
        let victims = Victims::start(&sandbox);
        let run_dir = sandbox.run_dir();
        let paths = [sandbox.path().to_owned(), run_dir.clone(), run_dir.join("agent.sock")];
        let before =
            paths.clone().map(|path| fs::metadata(path).expect("it is there").permissions());
        paths.iter().for_each(|path| open_up(path, 0o777));
        let other = other_user();
        assert_refused(&try_all(&other, &run_dir, &["ask"]), 5);
        for (path, mode) in paths.iter().zip(before) {
            fs::set_permissions(path, mode).expect("chmod");
        }
        assert_eq!(sandbox.stats().get("programs_live"), 2);
        victims.finish(&sandbox);
    }
}

/// Somebody lays out a directory for others, with an agent of its own in it.
#[test]
fn an_agent_of_another_user_is_not_spoken_to() {
    if !two_users() {
        return;
    }
    for mode in Mode::enabled_shunted() {
        let (victim, impostor) = (Sandbox::for_user(mode, VICTIM), Sandbox::for_user(mode, OTHER));
        let run_dir = impostor.run_dir();
        for path in [impostor.path(), &run_dir, &run_dir.join("agent.sock")] {
            open_up(path, 0o777);
        }
        let generator = victim.readable_copy(&built("shunt-gen"));
        let run = |role: &[&str]| {
            let mut command = victim.preloaded(&generator);
            command.args(role).args(["-n", "4", "-b", "300000"]).env("SHUNT_RUN_DIR", &run_dir);
            victim.spawn(command)
        };
        let server = Server::of(run(&["serve"]));
        let clients = records(run(&["connect", "--to", &at(server.port).to_string()]));
        compare(&clients, &server.finish()).expect("the same bytes");
        let mut tool = victim.plain(victim.shunt_path());
        tool.args(["stats", "--json"]).env("SHUNT_RUN_DIR", &run_dir);
        let refused = victim.spawn(tool).wait();
        assert!(!refused.status.success(), "{refused}");
        assert!(refused.stderr.contains("belongs to another user"), "{refused}");
        open_up(&run_dir, 0o700);
        let seen = impostor.stats();
        assert_eq!(seen.get("programs_live") + seen.get("programs_ended"), 0);
    }
}

/// A third program of the same user asks the agent for everything that is not its own.
#[test]
fn a_third_program_is_given_nothing() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let victims = Victims::start(&sandbox);
        let mut tried = try_all(&sandbox, &sandbox.run_dir(), &["ask"]);
        assert_refused(&tried, 2000);
        // The names were those of others, not just any.
        tried.retain(|what, outcome| what.starts_with("Bells") && outcome == "refused: refused");
        assert!(tried.len() > 100);
        victims.finish(&sandbox);
    }
}

/// A program that may write the listener's table puts itself in the place of clients.
#[test]
fn forged_proposals_lead_nowhere() {
    const COUNT: &str = "6";
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let args = ["-n", COUNT, "-b", "300000"];
        let mut server = Server::start(&sandbox, true, &args);
        let to = at(server.port);
        // It accepts when the forger is done.
        server.process().signal(libc::SIGSTOP);
        sandbox.expect(Expect::Nothing, || {
            let until = sandbox.path().join("over");
            let forge = ["forge", "--count", COUNT, "--to", &to.to_string(), "--until"];
            let mut command = intruder(&sandbox, &sandbox.run_dir(), &forge);
            command.arg(&until);
            let client = start_client(&sandbox, true, to, &args);
            let mut forger = sandbox.spawn(command);
            forger.wait_for_line(|line| line.starts_with("forged").then_some(()));
            server.process().signal(libc::SIGCONT);
            compare(&records(client), &server.finish()).expect("the same bytes");
            fs::write(&until, "").expect("a file");
            let mut tried = attempts(&forger.wait().success().stdout);
            let placed = tried.values().filter(|outcome| *outcome == "placed").count();
            assert_eq!(placed, 6, "{tried:#?}");
            assert_eq!(tried.remove("answers").as_deref(), Some("0"));
            tried.retain(|what, _| what.starts_with("Bells"));
            assert_refused(&tried, 100);
        });
        assert!(sandbox.stats().declined("refused") > 0);
    }
}

/// Memory of a process in kilobytes: what is its own, and what it has touched of what it shares.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    of("RssAnon:") + of("RssShmem:")
}

/// A program floods the agent in every way: others go on being served, and it grows only so far.
#[test]
fn a_flood_leaves_others_served() {
    const MOST: u64 = 64 << 10;
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let agent = sandbox.agent_pid().expect("an agent");
        let before = resident(agent);
        let mut flood = sandbox.spawn(intruder(&sandbox, &sandbox.run_dir(), &["flood"]));
        flood.wait_for_line(|line| line.starts_with("flood").then_some(()));
        for round in 1..=5 {
            let seed = round.to_string();
            let args = ["-n", "8", "-b", "1000000", "--style", "epoll-lt", "--seed", &seed];
            let server = Server::start(&sandbox, true, &args);
            let clients = records(start_client(&sandbox, true, at(server.port), &args));
            compare(&clients, &server.finish()).expect("the same bytes");
            let now = resident(agent);
            assert!(now < before + MOST, "from {before} to {now} kB");
            let open = fs::read_dir(format!("/proc/{agent}/fd")).expect("it runs").count();
            assert!(open < 2000, "{open} descriptors");
        }
        flood.kill();
        let stats = sandbox.stats();
        println!(
            "{mode}: {} ends shunted, {} kB",
            stats.get("connections_shunted"),
            resident(agent) - before
        );
        sandbox.assert_shunted(1);
        assert_eq!(sandbox.agent_pid(), Some(agent));
    }
}

/// A program passes the agent sockets that linger, files that hang and what else there is that blocks whoever closes it. Others
/// are served, the agent ends when it is told to, and the next one begins.
#[test]
fn what_a_program_passes_holds_nobody_up() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let command = intruder(&sandbox, &sandbox.run_dir(), &["pass"]);
        let mut hostile = passing::others_are_served(&sandbox, command);
        passing::it_is_dropped_with_a_reason(&sandbox);
        sandbox.stop_agent();
        sandbox.start_agent();
        let args = ["-n", "8", "-b", "300000"];
        sandbox.expect(Expect::Percent(75), || {
            let server = Server::start(&sandbox, true, &args);
            let clients = records(start_client(&sandbox, true, at(server.port), &args));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
        hostile.assert_running();
        hostile.kill();
    }
}
