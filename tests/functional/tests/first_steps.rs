//! The first steps that the documentation shows, `dist/examples/*.sh`: each script, as it is, where Shunt has just been
//! installed. Its connections are shunted, and afterwards nothing is left of it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::booted::Booted;
use shunt_functional::engine::Engine;
use shunt_functional::installation::repository;
use shunt_functional::mode::Mode;
use shunt_functional::network::Network;
use shunt_functional::sandbox::{Sandbox, is_root};
use shunt_functional::waiting::settles;

/// Most commands that it takes.
const MOST: usize = 10;

fn script(name: &str) -> String {
    let path = repository().join("dist/examples").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The lines that are commands. Settings are none.
fn commands(script: &str) -> Vec<&str> {
    let is_setting = |line: &str| line.starts_with("set ") || line.starts_with("export ");
    let lines = script.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter(|line| !is_setting(line)).collect()
}

/// Runs a script to its end and returns what it printed.
fn run(mut command: Command, text: &str) -> String {
    let output = command.args(["-c", text]).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A total in what `shunt stats` printed.
fn total(said: &str, name: &str) -> u64 {
    let mut lines = said.lines().filter_map(|line| line.trim().strip_prefix(name));
    let value =
        lines.find_map(|rest| rest.split_whitespace().next()?.replace(',', "").parse().ok());
    value.unwrap_or_else(|| panic!("no {name}: {said}"))
}

/// Both ends of one connection were shunted, and the capture shows two requests or more.
fn assert_shunted(said: &str, request: &str) {
    assert_eq!(total(said, "connections_shunted"), 2, "{said}");
    let requests = said.lines().filter(|line| line.contains(request)).count();
    assert!(requests >= 2, "{requests} requests: {said}");
}

#[test]
fn the_scripts_are_short() {
    for name in ["systemd.sh", "podman.sh"] {
        let script = script(name);
        let commands = commands(&script);
        assert!(commands.len() <= MOST, "{name}: {commands:#?}");
        let longest = script.lines().map(str::len).max();
        assert!(longest.is_some_and(|len| len <= 130), "{name}: {longest:?}");
    }
}

/// Files below places, but those of systemd and podman, processes, and those that have the library.
fn look(command: Command, places: &str) -> BTreeSet<String> {
    let theirs =
        "systemd|log-.*|containers|libpod|runc|crun|netns|networks|netavark.*|lock|xtables.lock";
    let script = format!(
        "find {places} -regextype posix-extended -not -regex '/run/({theirs})(/.*)?'; cat /proc/[0-9]*/comm; \
         grep -s libshunt /proc/[0-9]*/maps; true"
    );
    let own = ["sh", "find", "cat", "grep"];
    let said = run(command, &script);
    said.lines().filter(|line| !own.contains(line)).map(str::to_owned).collect()
}

/// What there was before is there again, once what ends meanwhile (a container's `conmon`) has ended.
fn assert_same(look: impl Fn() -> BTreeSet<String>, before: &BTreeSet<String>) {
    let changed = || -> Vec<_> { look().symmetric_difference(before).cloned().collect() };
    settles("left, or gone", &Vec::new(), changed);
}

#[test]
fn a_systemd_service() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.bring_unit("nginx.service");
    booted.bring("/etc/nginx");
    for place in ["lib/nginx", "log/nginx", "www/html"] {
        booted.write(&format!("/var/{place}/.keep"), "");
    }
    booted.write("/var/www/html/index.html", "it works\n");
    // Where systemd keeps what a service has as PrivateTmp=.
    booted.write("/var/tmp/.keep", "");
    booted.systemctl(&["daemon-reload"]);
    booted.systemctl(&["start", "nginx.service"]);
    let shell = || booted.command("sh");
    let places = "/etc /run /tmp /var";
    let before = look(shell(), places);
    let said = run(shell(), &script("systemd.sh"));
    assert_shunted(&said, "GET / HTTP/1.1");
    assert_same(|| look(shell(), places), &before);
    let status = booted.systemctl(&["status", "nginx.service"]);
    assert!(status.contains("active (running)") && !status.contains("shunt"), "{status}");
}

/// The host's own nginx in an image, in place of the one that others publish.
fn image(engine: &Engine<'_>) -> String {
    let config = "daemon off;\npid /tmp/nginx.pid;\nerror_log stderr;\nuser root;\nevents {}\nhttp { access_log off; \
                  server { listen 80; location / { return 200 'it works'; } } }\n";
    let files = [
        ("/etc/nginx/nginx.conf", config),
        ("/var/lib/nginx/.keep", ""),
        ("/tmp/.keep", ""),
        ("/etc/passwd", "root:x:0:0::/:/\n"),
        ("/etc/group", "root:x:0:\n"),
        ("/var/log/nginx/.keep", ""),
    ];
    engine.import("localhost/web", &[program("nginx")], &files)
}

#[test]
fn a_container() {
    if !is_root() {
        println!("left out: only root can make networks");
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = Network::new();
    let Some(engine) = Engine::new(&sandbox, &network, None) else { return };
    let image = image(&engine);
    let shell = || {
        let mut command = engine.shell();
        command.env("SHUNT_RUN_DIR", "/run/shunt").env("IMAGE", &image);
        command
    };
    // The engine's own device.
    run(shell(), "rm /run/cdi/shunt.json");
    let before = look(shell(), "/run");
    let said = run(shell(), &script("podman.sh"));
    assert_shunted(&said, "Flags [P.]");
    assert_same(|| look(shell(), "/run"), &before);
}
