//! The systemd units: what systemd itself thinks of them, and that they work.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use shunt_functional::binaries::{built, program};
use shunt_functional::booted::Booted;
use shunt_functional::generator::{Server, records};
use shunt_functional::installation::repository;
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Sandbox, traces_are_allowed};

const TRAFFIC: [&str; 6] = ["-n", "20", "-b", "1000000", "--style", "epoll-et"];

/// Users of the host; the first one has a name.
const GUEST: u32 = 61_001;
const OTHER: u32 = 61_002;

fn unit(name: &str) -> PathBuf {
    repository().join("dist/systemd").join(name)
}

/// From 0 (safe) to 10, as `systemd-analyze security` judges; and its table.
fn exposure(name: &str) -> (f64, String) {
    let output = Command::new(program("systemd-analyze"))
        .args(["security", "--offline=true", "--no-pager"])
        .arg(unit(name))
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, level) = text.split_once("Overall exposure level for ").expect("a verdict");
    let (_, level) = level.split_once(": ").unwrap();
    (level.split(' ').next().unwrap().parse().unwrap(), text)
}

#[test]
fn the_units_are_as_closed_as_they_can_be() {
    // The user's manager has no privileges to take namespaces and capabilities away with.
    for (name, most) in [
        ("shunt-agent.service", 1.1),
        ("shunt-host.service", 1.4),
        ("shunt-ivshmem.service", 0.7),
        ("shunt-nvme-target.service", 1.4),
        ("user/shunt-agent.service", 6.2),
    ] {
        let (exposure, table) = exposure(name);
        assert!(exposure <= most, "{name}: {exposure} of at most {most}\n{table}");
    }
}

/// `shunt-gen` in the system, under Shunt, with an agent's directory.
fn generator(booted: &Booted<'_>, uid: u32, run_dir: Option<&str>, role: &[&str]) -> Command {
    let mut command = booted.command_of(uid, "env");
    command.args(run_dir.map(|dir| format!("SHUNT_RUN_DIR={dir}")));
    command.args(["shunt", "run", "--"]).arg(built("shunt-gen")).args(role).args(TRAFFIC);
    command
}

/// Traffic of a program of one user with one of another, byte by byte.
fn traffic(sandbox: &Sandbox, booted: &Booted<'_>, users: [u32; 2], run_dir: Option<&str>) {
    let [server, client] = users;
    let listening = Server::of(sandbox.spawn(generator(booted, server, run_dir, &["serve"])));
    let to = SocketAddr::from(([127, 0, 0, 1], listening.port)).to_string();
    let clients =
        records(sandbox.spawn(generator(booted, client, run_dir, &["connect", "--to", &to])));
    compare(&clients, &listening.finish()).expect("the same bytes");
}

/// What `shunt NAME --json` says to a user.
fn report(booted: &Booted<'_>, uid: u32, run_dir: Option<&str>, name: &str) -> Value {
    let mut command = booted.command_of(uid, "env");
    command.args(run_dir.map(|dir| format!("SHUNT_RUN_DIR={dir}")));
    let output = command.args(["shunt", name, "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}\n{}", booted.logs());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sees that all connections of the agent's programs were shunted, so many ends.
fn assert_all_shunted(booted: &Booted<'_>, uid: u32, run_dir: Option<&str>, ends: u64) {
    let stats = report(booted, uid, run_dir, "stats");
    assert_eq!(stats["connections"], ends, "{stats}\n{}", booted.logs());
    assert_eq!(stats["connections_shunted"], ends, "{stats}\n{}", booted.logs());
}

/// What `shunt doctor` says to root.
fn doctor(booted: &Booted<'_>, run_dir: Option<&str>) -> String {
    let mut command = booted.command("env");
    command.args(run_dir.map(|dir| format!("SHUNT_RUN_DIR={dir}")));
    let output = command.args(["shunt", "doctor", "sh"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_hosts_agent_serves_all_users() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.start("shunt-host.service", "shunt-host.service");
    let run_dir = Some("/run/shunt");
    assert!(!booted.logs().contains("cannot be marked"), "{}", booted.logs());
    traffic(&sandbox, &booted, [GUEST, OTHER], run_dir);
    traffic(&sandbox, &booted, [OTHER, OTHER], run_dir);
    traffic(&sandbox, &booted, [0, GUEST], run_dir);
    assert_all_shunted(&booted, 0, run_dir, 120);
    booted.systemctl(&["reload", "shunt-host.service"]);
    booted.systemctl(&["restart", "shunt-host.service"]);
    traffic(&sandbox, &booted, [GUEST, OTHER], run_dir);
    assert_all_shunted(&booted, 0, run_dir, 160);
    assert_eq!(booted.systemctl(&["show", "-P", "NRestarts", "shunt-host.service"]), "0\n");
}

/// The socket is there before the agent, and while there is none.
#[test]
fn the_hosts_agent_starts_when_it_is_asked() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.start("shunt-host.socket", "shunt-host.service");
    let state = || booted.systemctl(&["show", "-P", "ActiveState", "shunt-host.service"]);
    assert_eq!(state(), "inactive\n");
    let run_dir = Some("/run/shunt");
    traffic(&sandbox, &booted, [GUEST, OTHER], run_dir);
    assert_eq!(state(), "active\n");
    assert_all_shunted(&booted, 0, run_dir, 40);
    booted.systemctl(&["stop", "shunt-host.service"]);
    traffic(&sandbox, &booted, [OTHER, 0], run_dir);
    assert_all_shunted(&booted, 0, run_dir, 80);
}

/// A client in a network, user and pid namespace of its own: what the agent knows of it comes from /proc.
#[test]
fn the_hosts_agent_serves_containers() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.start("shunt-host.service", "shunt-host.service");
    let mut network = booted.command("sh");
    let script = "set -e; ip netns add far; ip link add near type veth peer name there netns far\n\
                  ip address add 10.79.0.1/24 dev near; ip link set near up\n\
                  ip -n far address add 10.79.0.2/24 dev there; ip -n far link set there up\n\
                  ip -n far link set lo up";
    let _made = sandbox.run({
        network.args(["-c", script]);
        network
    });
    let serve = ["serve", "--listen", "10.79.0.1:0"];
    let server = generator(&booted, OTHER, Some("/run/shunt"), &serve);
    let listening = Server::of(sandbox.spawn(server));
    let mut client = booted.command("ip");
    // A user namespace that does not know root trusts a directory that nobody can write to. Only this program sees the mount.
    let closed = "set -e; mount --bind /run/shunt /run/shunt; mount -o remount,bind,ro /run/shunt; exec \"$@\"";
    client.args(["netns", "exec", "far", "sh", "-c", closed, "sh"]);
    client.args(["setpriv", "--reuid=61001", "--regid=61001"]);
    client.args(["--clear-groups", "unshare", "--user", "--map-root-user", "--pid", "--fork"]);
    client.args(["--kill-child", "env", "SHUNT_RUN_DIR=/run/shunt", "shunt", "run", "--"]);
    client.arg(built("shunt-gen")).args(["connect", "--to"]);
    client.arg(format!("10.79.0.1:{}", listening.port)).args(TRAFFIC);
    let clients = records(sandbox.spawn(client));
    compare(&clients, &listening.finish()).expect("the same bytes");
    assert_all_shunted(&booted, 0, Some("/run/shunt"), 40);
}

#[test]
fn roots_agent_serves_root_when_it_is_asked() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.start("shunt-agent.socket", "shunt-agent.service");
    traffic(&sandbox, &booted, [0, 0], None);
    assert_all_shunted(&booted, 0, None, 40);
    // It looks at programs that have all capabilities: what they may read of each other anyway need not be copied.
    let probe = built("shunt-probe");
    let mut command = booted.command("shunt");
    command.args(["run", "--"]).arg(probe).arg("found").env("SHUNT_GRANT_TIMEOUT", "300");
    let said = sandbox.run(command).stdout;
    let granted = report(&booted, 0, None, "stats")["bytes_granted"].as_u64().unwrap();
    assert_eq!(granted > 0, traces_are_allowed(), "{said}\n{}", booted.logs());
    let agent = booted.systemctl(&["show", "-P", "MainPID", "shunt-agent.service"]);
    assert!(doctor(&booted, None).contains(&format!("agent: pid {}, ", agent.trim())));
}

/// Root's own agent and the host's serve side by side, in whichever order they start and end.
#[test]
fn roots_agent_and_the_hosts_leave_each_other_alone() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    let host = Some("/run/shunt");
    for order in
        [["shunt-host.service", "shunt-agent.socket"], ["shunt-agent.socket", "shunt-host.service"]]
    {
        let mut ends = 0;
        for unit in order {
            booted.systemctl(&["start", unit]);
        }
        for _ in 0..2 {
            ends += 40;
            traffic(&sandbox, &booted, [0, 0], None);
            assert_all_shunted(&booted, 0, None, ends);
            traffic(&sandbox, &booted, [GUEST, 0], host);
            assert_all_shunted(&booted, 0, host, ends);
        }
        let said = doctor(&booted, None);
        assert!(said.contains("agent for the host: in /run/shunt; "), "{said}");
        // The socket would start the agent again.
        booted.systemctl(&["stop", "shunt-host.socket", "shunt-host.service"]);
        traffic(&sandbox, &booted, [0, 0], None);
        assert_all_shunted(&booted, 0, None, ends + 40);
        let said = doctor(&booted, host);
        assert!(said.contains("systemctl start shunt-host"), "{said}");
        booted.systemctl(&["stop", "shunt-agent.socket", "shunt-agent.service"]);
        let forget = ["-rf", "/run/shunt-root", "/run/shunt"];
        assert!(booted.command("rm").args(forget).status().unwrap().success());
    }
}

/// The drop-in below a heading of docs/systemd.md.
fn documented(heading: &str) -> String {
    let text = std::fs::read_to_string(repository().join("docs/systemd.md")).unwrap();
    let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```ini\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

#[test]
fn metrics_at_a_port_need_a_network() {
    const AT: &str = "127.0.0.1:9464";
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    let drop_in = documented("Metrics at a TCP port");
    assert!(drop_in.contains(AT));
    let metrics = || {
        let output = booted.command("curl").args(["-sS", &format!("http://{AT}/metrics")]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    for (service, run_dir) in
        [("shunt-agent.service", None), ("shunt-host.service", Some("/run/shunt"))]
    {
        // As somebody might write it at first.
        let half = drop_in.replace("PrivateNetwork=no\n", "");
        assert_ne!(half, drop_in);
        booted.drop_in(service, "metrics", &half);
        booted.start(service, service);
        assert!(metrics().is_empty(), "{}", booted.logs());
        let said = doctor(&booted, run_dir);
        assert!(said.contains("a network of its own (PrivateNetwork=)"), "{said}");
        booted.drop_in(service, "metrics", &drop_in);
        booted.systemctl(&["restart", service]);
        assert!(metrics().contains("shunt_connections_total"), "{}", booted.logs());
        let said = doctor(&booted, run_dir);
        assert!(said.contains(&format!("metrics: served at {AT}")), "{said}");
        assert!(!said.contains("network of its own"), "{said}");
        booted.systemctl(&["stop", "shunt-agent.socket", "shunt-host.socket", service]);
    }
}

#[test]
fn an_agent_shares_memory_with_machines_through_the_ivshmem_server() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.start("shunt-ivshmem.socket", "shunt-ivshmem.service");
    let drop_in = documented("Memory shared with virtual machines");
    let half = drop_in.replace("PrivateNetwork=no\n", "");
    for (text, is_apart) in [(half, true), (drop_in, false)] {
        booted.drop_in("shunt-agent.service", "ivshmem", &text);
        booted.start("shunt-agent.socket", "shunt-agent.service");
        let machines = report(&booted, 0, None, "machines");
        assert_eq!(machines["members"][0]["self"], true, "{machines}\n{}", booted.logs());
        let said = doctor(&booted, None);
        assert_eq!(said.contains("a network of its own (PrivateNetwork=)"), is_apart, "{said}");
        booted.systemctl(&["stop", "shunt-agent.socket", "shunt-agent.service"]);
    }
    let mut status = booted.command("shunt");
    let said = sandbox.run({
        status.args(["ivshmem-server", "status"]);
        status
    });
    assert!(said.stdout.contains("server    pid "), "{said}\n{}", booted.logs());
    assert_eq!(booted.systemctl(&["show", "-P", "NRestarts", "shunt-ivshmem.service"]), "0\n");
}

#[test]
fn a_users_agent_serves_that_user() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    // As user@.service has it.
    let manager = "[Service]\nUser=guest\nType=notify\nDelegate=yes\nEnvironment=XDG_RUNTIME_DIR=/run/guest\n\
                   Environment=SYSTEMD_UNIT_PATH=/etc/systemd/user:/usr/local/lib/systemd/user\n\
                   RuntimeDirectory=guest\nExecStart=/lib/systemd/systemd --user --unit=nothing.target\n";
    booted.write("/etc/systemd/system/guest.service", manager);
    for target in ["nothing", "basic", "sockets"] {
        let text = "[Unit]\nDefaultDependencies=no\n";
        booted.write(&format!("/etc/systemd/user/{target}.target"), text);
    }
    booted.systemctl(&["daemon-reload"]);
    booted.start("guest.service", "guest.service");
    let as_guest = |args: &[&str]| {
        let mut command = booted.command_of(GUEST, "env");
        command.args(["XDG_RUNTIME_DIR=/run/guest", "systemctl", "--user", "--no-pager"]);
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}\n{}", booted.logs());
        String::from_utf8(output.stdout).unwrap()
    };
    as_guest(&["start", "shunt-agent.socket"]);
    let run_dir = Some("/run/guest/shunt");
    traffic(&sandbox, &booted, [GUEST, GUEST], run_dir);
    assert_all_shunted(&booted, GUEST, run_dir, 40);
    assert_eq!(
        as_guest(&["show", "-P", "NRestarts,ActiveState", "shunt-agent.service"]),
        "0\nactive\n"
    );
}
