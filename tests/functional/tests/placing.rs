//! Threads go to the processor of those who wake them, and may run on all of them still.

use std::fs;
use std::num::NonZero;
use std::thread::available_parallelism;

use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Process, Sandbox};

/// Connections for each processor, so that all of them are wanted.
const EACH: usize = 8;
/// Beyond so many processors the machine is not filled.
const MOST: usize = 8;
/// Seconds of load, at the most. Whether a thread finds somebody elsewhere to follow is for the scheduler to say.
const PATIENCE: usize = 30;

fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// A server with a thread per connection, and its port.
fn server(sandbox: &Sandbox) -> (Process, u16) {
    let port = free_port();
    let mut command = sandbox.command(sandbox.shunt_path());
    command.args(["load", "serve-shape", "--shape", "thread-recv", "--at"]);
    command.arg(format!("127.0.0.1:{port}"));
    (sandbox.serve(command, port), port)
}

/// A second of load.
fn drive(sandbox: &Sandbox, port: u16) {
    let connections = processors().min(MOST) * EACH;
    let mut command = sandbox.command(sandbox.shunt_path());
    command.args(["load", "drive", "--seconds", "1", "--to", &format!("127.0.0.1:{port}")]);
    command.args(["--connections", &connections.to_string()]);
    drop(sandbox.run(command).success());
}

fn allowed(status: &str) -> String {
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
    line.expect("a list of processors").to_owned()
}

/// The processors that each thread may run on.
fn allowed_to(process: &Process) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).expect("it runs");
    // A thread may be over by now.
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    tasks.filter_map(|task| Some(allowed(&status(task.ok()?)?))).collect()
}

#[test]
fn threads_follow_those_who_wake_them_and_may_run_everywhere() {
    let mine = allowed(&fs::read_to_string("/proc/self/status").unwrap());
    let sandbox = Sandbox::new(Mode::Attach);
    let (server, port) = server(&sandbox);
    let placed = (0..PATIENCE).any(|_| {
        drive(&sandbox, port);
        let theirs = allowed_to(&server);
        assert!(!theirs.is_empty() && theirs.iter().all(|list| *list == mine), "{theirs:?}");
        sandbox.stats().get("threads_placed") > 0
    });
    assert!(sandbox.stats().get("connections_shunted") > 0);
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let is_whole = mine.split_whitespace().next_back() == Some(online.trim());
    if (2..=MOST).contains(&processors()) && is_whole {
        assert!(placed, "in {PATIENCE} s none has gone anywhere");
    }
}

#[test]
fn they_stay_where_the_user_wants_it() {
    let sandbox = Sandbox::new(Mode::Attach).with_env("SHUNT_PLACE", "never");
    let (_server, port) = server(&sandbox);
    drive(&sandbox, port);
    let stats = sandbox.stats();
    assert!(stats.get("connections_shunted") > 0);
    assert_eq!(stats.get("threads_placed"), 0);
}
