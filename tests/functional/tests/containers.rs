//! Programs in containers: what `shunt cdi generate` says, applied by hand to namespaces.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use shunt_functional::binaries::{built, program};
use shunt_functional::generator::{parse, records};
use shunt_functional::mode::Mode;
use shunt_functional::record::{Listening, compare};
use shunt_functional::sandbox::{Expect, Sandbox, is_root};

const TRAFFIC: [&str; 6] = ["-n", "20", "-b", "1000000", "--style", "epoll-et"];

/// The specification that the sandbox's `shunt` writes.
fn specification(sandbox: &Sandbox) -> Value {
    let mut command = sandbox.plain(sandbox.shunt_path());
    let output = command.args(["cdi", "generate"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A command line that runs `shunt-gen` in mount, process and other namespaces of its own, but in this network,
/// edited as `spec` says. What is mounted is gone with it.
fn contained(sandbox: &Sandbox, spec: &Value, own_users: bool) -> Command {
    let edits = &spec["devices"][0]["containerEdits"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut script = String::from("set -e\n");
    for base in ["/opt", "/run"] {
        script.push_str(&format!("mount -t tmpfs tmpfs {base}\n"));
    }
    for mount in edits["mounts"].as_array().unwrap() {
        let (from, to) = (text(&mount["hostPath"]), text(&mount["containerPath"]));
        script.push_str(&if std::path::Path::new(&from).is_dir() {
            format!("mkdir -p '{to}'\n")
        } else {
            format!("mkdir -p \"$(dirname '{to}')\"; touch '{to}'\n")
        });
        script
            .push_str(&format!("mount --bind '{from}' '{to}'\nmount -o remount,bind,ro '{to}'\n"));
    }
    script.push_str("exec env \"$@\"");
    let mut command = sandbox.plain(program("unshare"));
    if own_users || !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc"]);
    command.args(["sh", "-c", &script, "sh"]);
    command.args(edits["env"].as_array().unwrap().iter().map(text)).arg(built("shunt-gen"));
    command
}

/// Both ends of some connections, in a container each.
fn between_containers(sandbox: &Sandbox, own_users: bool) {
    let spec = specification(sandbox);
    // A connection that is over before its client, stopped for a moment, could tell of it is missed.
    sandbox.expect(Expect::Percent(75), || {
        let mut command = contained(sandbox, &spec, own_users);
        command.arg("serve").args(TRAFFIC);
        let mut server = sandbox.spawn(command);
        let port = server.wait_for_line(|line| {
            serde_json::from_str::<Listening>(line).ok().map(|listening| listening.port)
        });
        let to = SocketAddr::from(([127, 0, 0, 1], port)).to_string();
        let mut command = contained(sandbox, &spec, own_users);
        command.args(["connect", "--to", &to]).args(TRAFFIC);
        let clients = records(sandbox.spawn(command));
        compare(&clients, &parse(&server.wait().success().stdout)).expect("the same bytes");
    });
}

#[test]
fn containers_of_one_network() {
    between_containers(&Sandbox::new(Mode::Attach), false);
}

/// As a runtime without root has it: root inside is the user outside, who has another number.
#[test]
fn containers_of_one_network_with_users_of_their_own() {
    let sandbox =
        if is_root() { Sandbox::for_uid(Mode::Attach, 61_001) } else { Sandbox::new(Mode::Attach) };
    between_containers(&sandbox, true);
}
