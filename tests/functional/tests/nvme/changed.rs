//! Configurations that change while hosts are connected.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use shunt_functional::binaries::built;
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::nvme::{Host, Queue, Way};
use shunt_functional::sandbox::{Finished, Sandbox};
use shunt_nvme::host::Transfer;
use shunt_nvme::wire::{Sqe, Status, opcode};

use crate::{QUICK, Target, configure, control_socket};

const HOST: &str = "{ nqn = \"nqn.2024-01.org.shunt:test-host\" }";
/// Of 32 zero bytes and their CRC-32.
const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

/// A disk of 1 MiB for these hosts, and what else there is to say of its subsystem.
fn disk(hosts: &str, more: &str) -> String {
    format!(
        "[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = {hosts}\n{more}\n\
         [[subsystem.namespace]]\nstore = \"memory\"\nsize = \"1MiB\"\nana-group = 2\n"
    )
}

fn control(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.plain(built("shunt"));
    command.args(["nvme", "control", "--socket"]).arg(control_socket(sandbox)).args(args);
    command
}

fn refused(sandbox: &Sandbox, args: &[&str]) -> Finished {
    let finished = sandbox.spawn(control(sandbox, args)).wait();
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    finished
}

fn shown(sandbox: &Sandbox) -> Value {
    let finished = sandbox.run(control(sandbox, &["show", "--json"]));
    serde_json::from_str(&finished.stdout).unwrap()
}

/// Has the target serve this, from a file of its own; its address stays.
pub fn apply(sandbox: &Sandbox, port: u16, text: &str) {
    let file = sandbox.path().join("new.toml");
    std::fs::write(&file, format!("listen = [\"127.0.0.1:{port}\"]\nthreads = 2\n{text}")).unwrap();
    let applied = sandbox.run(control(sandbox, &["apply", file.to_str().unwrap()]));
    assert_eq!(applied.stdout, "The configuration is taken over.\n");
}

fn read(queue: &mut Queue) -> Status {
    let read = Sqe::new(opcode::io::READ, 1);
    let ended = queue.run(&read, Transfer::ToHost(4096), vec![0; 4096]).unwrap();
    ended.completion.cqe.status()
}

#[test]
fn a_running_target_is_commanded() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &disk("\"any\"", ""));
    let host = Host::connect(&target.way()).unwrap();
    let before = shown(&sandbox);
    let address = format!("127.0.0.1:{}", target.port);
    assert_eq!((&before["listening"], &before["connections"]), (&json!([address]), &json!(1)));
    let subsystem = &before["subsystems"][0];
    assert_eq!(subsystem["nqn"], QUICK);
    assert_eq!(subsystem["controllers"][0]["host"], "nqn.2024-01.org.shunt:test-host");
    assert_eq!(subsystem["namespaces"][0]["bytes"], 1 << 20);
    assert!(
        sandbox
            .run(control(&sandbox, &["show"]))
            .stdout
            .contains("1048576 bytes in blocks of 4096")
    );

    // What cannot be is said with its line and its reason, and changes nothing: neither the listener nor the disk.
    let file = configure(&sandbox, target.port, &disk("\"any\"", "").replace("1MiB", "1001"));
    let wrong = refused(&sandbox, &["reload"]);
    let place = format!("shunt: {}:9:8: 1001 bytes cannot be the size", file.display());
    assert!(wrong.stderr.starts_with(&place), "{wrong}");
    let port = free_port();
    let other = sandbox.path().join("other.toml");
    let nowhere = disk("\"any\"", "").replace("\"memory\"", "\"file\"\npath = \"none\"");
    let text = format!("listen = [\"127.0.0.1:{port}\"]\n{nowhere}");
    std::fs::write(&other, text).unwrap();
    let missing = refused(&sandbox, &["apply", other.to_str().unwrap()]);
    assert!(missing.stderr.contains("there is no none: make it"), "{missing}");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(shown(&sandbox), before);

    // Another address, another disk; then back to what the file says.
    let text = disk("\"any\"", "") + "[[subsystem.namespace]]\nstore = \"null\"\nsize = \"8MiB\"\n";
    apply(&sandbox, port, &text);
    let after = shown(&sandbox);
    assert_eq!(after["listening"], json!([format!("127.0.0.1:{port}")]));
    assert_eq!(after["subsystems"][0]["namespaces"][1]["bytes"], 8 << 20);
    assert_eq!(after["connections"], 1, "who is connected stays");
    assert!(std::net::TcpStream::connect(("127.0.0.1", target.port)).is_err());
    let way = Way { to: SocketAddr::from(([127, 0, 0, 1], port)), ..target.way() };
    assert_eq!(Host::connect(&way).unwrap().disks().unwrap().len(), 2);
    configure(&sandbox, target.port, &disk("\"any\"", ""));
    let reloaded = sandbox.run(control(&sandbox, &["reload"]));
    assert_eq!(reloaded.stdout, "The file is taken over.\n");
    assert_eq!(Host::connect(&target.way()).unwrap().disks().unwrap().len(), 1);
    assert_eq!(target.count(&sandbox, "reloads"), 2);
    assert_eq!(target.count(&sandbox, "failed_reloads"), 2);
    drop(host);
    target.end();
    let gone = refused(&sandbox, &["show"]);
    assert!(gone.stderr.contains("no target is commanded at"), "{gone}");
}

#[test]
fn hosts_that_are_allowed_no_more_are_disconnected() {
    let sandbox = Sandbox::new(Mode::Plain);
    let keyed = HOST.replace(" }", &format!(", key = \"{KEY}\" }}"));
    let granted = HOST.replace(" }", ", grant = true }");
    let other = HOST.replace("test-host", "other");
    let list = |host: &str| format!("[{host}]");
    for (before, after, reason) in [
        (list(HOST), list(&other), "Connect Invalid Host"),
        ("\"any\"".to_owned(), list(&other), "Connect Invalid Host"),
        // It has not proved who it is.
        (list(HOST), list(&keyed), "Authentication Required"),
        // It has the memory mapped.
        (list(&granted), list(HOST), ""),
        (list(&granted), "\"any\"".to_owned(), ""),
    ] {
        let target = Target::configured(&sandbox, &disk(&before, ""));
        let mut host = Host::connect(&target.way()).unwrap();
        let mut queue = host.queue().unwrap();
        assert!(read(&mut queue).is_success());
        apply(&sandbox, target.port, &disk(&after, ""));
        assert!(host.admin.wait().is_err(), "{before} {after}");
        assert!(queue.wait().is_err(), "{before} {after}");
        let again = Host::connect(&target.way()).map(drop).map_err(|e| e.to_string());
        assert_eq!(again.is_ok(), reason.is_empty(), "{again:?}");
        assert!(again.err().unwrap_or_default().contains(reason), "{before} {after}");
        target.end();
    }
}

#[test]
fn hosts_that_stay_allowed_stay_connected() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &disk(&format!("[{HOST}]"), ""));
    let mut host = Host::connect(&target.way()).unwrap();
    let mut queue = host.queue().unwrap();
    let granted = HOST.replace(" }", ", grant = true }");
    let other = HOST.replace("test-host", "other");
    for hosts in [format!("[{HOST}, {other}]"), "\"any\"".to_owned(), format!("[{granted}]")] {
        apply(&sandbox, target.port, &disk(&hosts, ""));
        assert!(read(&mut queue).is_success(), "{hosts}");
    }
    drop((host, queue));
    target.end();
}

#[test]
fn paths_are_closed_and_opened() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &disk("\"any\"", ""));
    let mut host = Host::connect(&target.way()).unwrap();
    let mut queue = host.queue().unwrap();
    let at = format!("at = \"127.0.0.1:{}\"\n", target.port);
    for (state, at, status) in [
        ("inaccessible", "", Status::ANA_INACCESSIBLE),
        ("persistent-loss", at.as_str(), Status::ANA_PERSISTENT_LOSS),
        ("change", at.as_str(), Status::ANA_TRANSITION),
        ("non-optimized", "", Status::SUCCESS),
    ] {
        let ana = format!("[[subsystem.ana]]\ngroup = 2\n{at}state = \"{state}\"");
        apply(&sandbox, target.port, &disk("\"any\"", &ana));
        assert_eq!(read(&mut queue), status);
        assert_eq!(shown(&sandbox)["subsystems"][0]["ana"][0]["state"], state);
    }
    apply(&sandbox, target.port, &disk("\"any\"", ""));
    assert!(read(&mut queue).is_success());
    drop((host, queue));
    target.end();
}
