//! One agent per directory; totals outlive it; what the tools read.

mod common;

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Agent, as_user, new_eventfd, run_dir};
use rustix::net::bind;
use shunt_agent::socket::{Access, Claim, ClaimError};
use shunt_shm::arena::Arena;
use shunt_shm::holders::Member;
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::Request;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

#[test]
fn there_is_one_agent_and_its_socket_goes_with_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    let mut agent = Agent::at(&path, |_| {});
    let second = Claim::take(run_dir(&path), Access::User, Duration::from_millis(50));
    assert!(matches!(second, Err(ClaimError::AlreadyRunning(_))));
    let mode = |name| std::fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("agent.sock")), (0o700, 0o600));
    agent.stop();
    assert!(!path.join("agent.sock").exists());
    drop(Claim::take(run_dir(&path), Access::User, Duration::ZERO).unwrap());
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Where root's own agent is, one for the host changes nothing, and says whom it has met.
#[test]
fn an_agent_for_the_host_leaves_the_directory_of_roots_own_as_it_is() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: an agent for the host has to be root");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    let agent = Agent::at(&path, |_| {});
    let host = Claim::take(run_dir(&path), Access::All, Duration::ZERO).unwrap_err();
    assert_eq!(mode(&path), 0o700, "others were let in");
    let me = std::process::id();
    let said = host.to_string();
    assert!(said.contains(&format!("root's own agent (pid {me})")), "{said}");
    assert!(said.contains(&format!("`kill {me}`")), "{said}");
    assert!(said.contains(path.to_str().unwrap()), "{said}");
    // Root's programs go on with their agent.
    drop(agent.library());
    drop(agent);
    let host = Claim::take(run_dir(&path), Access::All, Duration::ZERO).unwrap();
    assert_eq!((mode(&path), mode(host.path())), (0o755, 0o666));
}

/// A user's own agent, root's among them, has no business in the directory of one for the host, whether
/// that runs or is only being restarted.
#[test]
fn a_users_own_agent_leaves_the_directory_of_the_hosts_as_it_is() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: an agent for the host has to be root");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = temp.path().join("run");
    let host = Claim::take(run_dir(&path), Access::All, Duration::ZERO).unwrap();
    let refused = || Claim::take(run_dir(&path), Access::User, Duration::ZERO).unwrap_err();
    for said in [refused().to_string(), as_user(61_003, || refused().to_string())] {
        let agent = format!("the agent for the host (pid {})", std::process::id());
        assert!(said.contains(&agent) && said.contains("nothing needs to be done"), "{said}");
        assert!(!said.contains("0700"), "it would close it to all others: {said}");
    }
    let second = Claim::take(run_dir(&path), Access::All, Duration::ZERO).unwrap_err();
    let said = format!("an agent (pid {}) is running already", std::process::id());
    assert!(second.to_string().contains(&said), "{second}");
    drop(host);
    let said = refused().to_string();
    assert!(said.contains("no such agent is running"), "{said}");
    assert!(said.contains("systemctl start shunt-host"), "{said}");
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn a_socket_left_by_a_crash_is_replaced() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o700)).unwrap();
    // As after a crash: the file is there, and nobody listens. A socket that has listened would go on with
    // that in the inspectors that other tests fork just now, until they close it.
    let stale = seqpacket::socket().unwrap();
    bind(&stale, &run_dir(temp.path()).socket().unwrap()).unwrap();
    drop(stale);
    assert!(temp.path().join("agent.sock").exists());
    drop(Agent::at(temp.path(), |_| {}).tool());
}

#[test]
fn a_directory_open_to_others_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o775)).unwrap();
    let refused = Claim::take(run_dir(temp.path()), Access::User, Duration::ZERO).unwrap_err();
    assert!(matches!(refused, ClaimError::RunDir(..)));
    assert!(refused.to_string().contains("0700"), "{refused}");
}

#[test]
fn it_ends_when_nobody_needs_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    // Long enough for this test's client to come in time.
    let agent = Agent::at(&path, |c| c.idle_exit = Some(Duration::from_secs(2)));
    let client = agent.library();
    std::thread::sleep(Duration::from_secs(3));
    assert!(!agent.ended());
    drop(client);
    let deadline = Instant::now() + common::PATIENCE;
    while !agent.ended() {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!path.join("agent.sock").exists());
}

/// A program that counts: its client and its arena.
fn counting(agent: &Agent, run: u64) -> (common::Client, Arena) {
    let (client, bell) = (agent.client(), new_eventfd());
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "counter", run };
    let (_, fds) = client.call(&hello, &[bell.as_fd()]);
    (client, Arena::map(&fds[1]).unwrap())
}

#[test]
fn totals_are_of_live_and_ended_programs_and_survive_a_restart() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    let mut agent = Agent::at(&path, |_| {});
    let (first, counts) = counting(&agent, 7);
    counts.counters().of(7).add(Counter::Shunted, 5);
    counts.counters().of(1).decline(Reason::Remote);
    let mut hint = 0;
    let record = counts.allocate(Member::UNNAMED, &mut hint).unwrap();
    record.tx.bytes.store(1000, shunt_shm::sync::Ordering::Relaxed);
    let stats = |agent: &Agent, run| agent.tool().report(&Request::Stats { run });
    let seen = stats(&agent, 7);
    assert_eq!(seen["connections_shunted"], 5);
    assert_eq!(seen["bytes_sent"], 1000, "of open connections too");
    assert_eq!(seen["declined"]["remote"], 1);
    assert_eq!((&seen["programs_live"], &seen["programs_ended"]), (&1.into(), &0.into()));

    drop(first);
    agent.until("the program has ended", |s| s["endpoints"] == 0);
    let (_second, counts) = counting(&agent, 8);
    counts.counters().of(7).add(Counter::Shunted, 30);
    assert_eq!(stats(&agent, 7)["programs_ended"], 1);
    assert_eq!(stats(&agent, 8)["connections_shunted"], 30);
    assert_eq!(stats(&agent, 9)["connections_shunted"], 0);
    assert_eq!(stats(&agent, 0)["connections_shunted"], 35);

    agent.stop();
    let agent = Agent::at(&path, |_| {});
    let after = stats(&agent, 0);
    assert_eq!(after["connections_shunted"], 35);
    assert_eq!(after["bytes_sent"], 1000);
    assert_eq!(stats(&agent, 8)["connections_shunted"], 30);
}

#[test]
fn corrupt_totals_do_not_keep_it_from_starting() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    run_dir(&path).create().unwrap();
    std::fs::write(path.join("totals.json"), "{\"all\":").unwrap();
    let agent = Agent::at(&path, |_| {});
    assert_eq!(agent.tool().report(&Request::Stats { run: 0 })["connections"], 0);
}

#[test]
fn a_listing_names_both_programs() {
    use shunt_shm::arena::Mode;
    use shunt_shm::sync::Ordering;
    use shunt_wire::addr::{Addr, FourTuple};
    let agent = Agent::start();
    let (_a, client) = counting(&agent, 0);
    let (_b, server) = counting(&agent, 0);
    let tuple = FourTuple { local: Addr::any_v4(1111), peer: Addr::any_v4(2222) };
    let fill = |arena: &Arena, tuple: &FourTuple, pid, mode, reason| {
        let record = arena.allocate(Member::UNNAMED, &mut 0).unwrap();
        record.id.set_tuple(tuple);
        record.id.pid.store(pid, Ordering::Relaxed);
        record.id.mode.store(mode, Ordering::Relaxed);
        record.id.reason.store(reason, Ordering::Relaxed);
    };
    fill(&client, &tuple, 10, Mode::Attach as u32, 0);
    fill(&server, &tuple.reversed(), 20, Mode::Tcp as u32, Reason::Pending as u32);
    let list = agent.tool().report(&Request::List);
    let ends = list["connections"].as_array().unwrap();
    let end = |pid: u32| ends.iter().find(|e| e["pid"] == pid).unwrap();
    assert_eq!(end(10)["local"], "0.0.0.0:1111");
    assert_eq!(end(10)["mode"], "shunt-attach");
    assert_eq!(end(10)["reason"], serde_json::Value::Null);
    assert_eq!((&end(10)["peer_pid"], &end(20)["peer_pid"]), (&20.into(), &10.into()));
    assert_eq!(end(20)["reason"], "pending");
    assert_eq!(end(20)["peer_program"], "counter");
}

#[test]
fn the_status_is_complete() {
    let agent = Agent::start();
    let status = agent.status();
    for name in ["version", "uptime_s", "pid", "socket", "endpoints", "listeners", "regions"] {
        assert!(!status[name].is_null(), "{name}");
    }
    assert!(Path::new(status["socket"].as_str().unwrap()).exists());
}
