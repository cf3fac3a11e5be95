//! Images that podman runs, with one flag: `--device shunt.dev/socket=default`.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;
use shunt_functional::binaries::built;
use shunt_functional::engine::Engine;
use shunt_functional::generator::{Server, records};
use shunt_functional::installation::repository;
use shunt_functional::mode::Mode;
use shunt_functional::network::Network;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};
use shunt_functional::waiting::settles;

/// A user of the host without a name.
const SOMEBODY: u32 = 61_001;
/// Each connection is longer than what the kernel takes in advance: else all of it may be over, on a busy machine, before
/// the ends know of each other.
const TRAFFIC: [&str; 6] = ["-n", "20", "-b", "3000000", "--style", "epoll-et"];
/// The port that servers have in their container, and the one that it is published at.
const INSIDE: &str = "0.0.0.0:8000";
const PUBLISHED: &str = "9000:8000";

/// False, and says so, where no namespaces can be made.
fn can() -> bool {
    let root = is_root();
    if !root {
        println!("left out: only root can make networks");
    }
    root
}

/// Who goes by addresses misses a connection that is over before its client, stopped for a moment, could tell of it.
const BY_ADDRESS: Expect = Expect::Percent(75);

/// A server in a container that is called so.
fn serve(sandbox: &Sandbox, engine: &Engine<'_>, name: &str, flags: &[&str]) -> Server {
    let mut command = engine.generator(&[&["--name", name], flags].concat());
    command.args(["serve", "--listen", INSIDE]).args(TRAFFIC);
    Server::of(sandbox.spawn(command))
}

/// The address of a container at a bridge.
fn address(engine: &Engine<'_>, name: &str) -> SocketAddr {
    let all = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    format!("{}:8000", engine.inspect(name, all)).parse().unwrap()
}

/// Clients in a container.
fn connect(sandbox: &Sandbox, engine: &Engine<'_>, flags: &[&str], to: SocketAddr) -> Process {
    let mut command = engine.generator(flags);
    command.args(["connect", "--to", &to.to_string()]).args(TRAFFIC);
    sandbox.spawn(command)
}

/// Clients in no container.
fn connect_beside(sandbox: &Sandbox, engine: &Engine<'_>, to: SocketAddr) -> Process {
    let mut command = engine.beside();
    command.args(["connect", "--to", &to.to_string()]).args(TRAFFIC);
    sandbox.spawn(command)
}

fn verify(clients: Process, server: Server) {
    compare(&records(clients), &server.finish()).unwrap_or_else(|e| panic!("{e}"));
}

/// Where published ports are from inside of containers: the host's end of their bridge.
fn gateway(engine: &Engine<'_>, name: &str) -> SocketAddr {
    let all = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}";
    format!("{}:9000", engine.inspect(name, all)).parse().unwrap()
}

/// What the specification says, as flags of `podman run` and `docker run`.
fn flags(spec: &str) -> Vec<String> {
    let spec: Value = serde_json::from_str(spec).unwrap();
    let edits = &spec["devices"][0]["containerEdits"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let volumes = edits["mounts"].as_array().unwrap().iter().map(|mount| {
        let [from, to] = ["hostPath", "containerPath"].map(|end| text(&mount[end]));
        format!("--volume={from}:{to}:ro")
    });
    let variables = edits["env"].as_array().unwrap().iter();
    volumes.chain(variables.map(|variable| format!("--env={}", text(variable)))).collect()
}

/// At podman's bridge; through a published port (an address that is rewritten, at both ends), from a container and
/// from the host.
#[test]
fn roots_containers_with_the_hosts_agent() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = Network::new();
    let Some(engine) = Engine::new(&sandbox, &network, None) else { return };
    let all = Expect::All(40);
    sandbox.expect(all, || {
        let server = serve(&sandbox, &engine, "near", &[]);
        let clients = connect(&sandbox, &engine, &[], address(&engine, "near"));
        verify(clients, server);
    });
    sandbox.expect(all, || {
        let server = serve(&sandbox, &engine, "published", &["--publish", PUBLISHED]);
        let clients = connect(&sandbox, &engine, &[], gateway(&engine, "published"));
        verify(clients, server);
    });
    // By the flags that do the same, for engines that know no such devices.
    sandbox.expect(all, || {
        let server = serve(&sandbox, &engine, "by-flags", &[]);
        let flags = flags(&engine.spec);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let mut command = engine.run(&flags);
        let to = address(&engine, "by-flags").to_string();
        command.args(["connect", "--to", &to]).args(TRAFFIC);
        verify(sandbox.spawn(command), server);
    });
    sandbox.expect(all, || {
        let server = serve(&sandbox, &engine, "to-host", &["--publish", PUBLISHED]);
        verify(connect_beside(&sandbox, &engine, "127.0.0.1:9000".parse().unwrap()), server);
    });
}

/// dist/containers/Containerfile makes an image of an installation; from it compose and Kubernetes put the library on the host.
#[test]
fn the_containerfile_makes_an_image_that_has_the_library() {
    const BASE: &str = "localhost/shunt-base";
    const IMAGE: &str = "localhost/shunt";
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = Network::new();
    let Some(engine) = Engine::new(&sandbox, &network, None) else { return };
    // A glibc, and what the command needs beside it.
    let _base = engine.import(BASE, &[built("shunt")], &[]);
    let context = sandbox.path().join("image");
    for (name, place) in [("shunt", "usr/bin"), ("libshunt.so", "usr/lib/shunt")] {
        let place = context.join(place);
        fs::create_dir_all(&place).unwrap();
        fs::copy(built(name), place.join(name)).unwrap();
    }
    let mut build = engine.podman(&["build", "--layers=false", "--network", "none"]);
    build.args(["--build-arg", &format!("BASE={BASE}"), "--tag", IMAGE, "--file"]);
    build.arg(repository().join("dist/containers/Containerfile")).arg(&context);
    let _ = sandbox.run(build).success();

    let host = sandbox.path().join("opt");
    fs::create_dir(&host).unwrap();
    let volume = format!("{}:/opt/shunt", host.display());
    let mut install = engine.podman(&["run", "--rm", "--network", "none", "--volume", &volume]);
    install.args([IMAGE, "library", "install", "/opt/shunt"]);
    let said = sandbox.run(install).success().stdout;
    assert!(said.contains("/opt/shunt/libshunt.so is in place"), "{said}");
    let installed = fs::read(host.join("lib64/libshunt.so")).unwrap();
    assert!(installed == fs::read(built("libshunt.so")).unwrap());
}

/// `shunt list` on the host calls them as podman does.
#[test]
fn containers_are_listed_by_their_names() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = Network::new();
    let Some(engine) = Engine::new(&sandbox, &network, None) else { return };
    let for_ever = ["--survive", "-n", "1", "-b", "1000000000000"];
    let mut command = engine.generator(&["--name", "server"]);
    command.args(["serve", "--listen", INSIDE]).args(for_ever);
    let mut server = Server::of(sandbox.spawn(command));
    let mut command = engine.generator(&["--name", "client"]);
    command.args(["connect", "--to", &address(&engine, "server").to_string()]).args(for_ever);
    let mut client = sandbox.spawn(command);
    let ids = ["server", "client"].map(|name| {
        settles("it runs", &true, || {
            let out = engine.podman(&["container", "exists", name]).status();
            out.is_ok_and(|status| status.success())
        });
        engine.inspect(name, "{{.Id}}")[..12].to_owned()
    });
    settles("both are listed", &true, || {
        let mut list = sandbox.plain(sandbox.shunt_path());
        list.args(["list", "--json"]);
        let report: Value = serde_json::from_str(&sandbox.run(list).stdout).unwrap();
        let is = |end: &Value, whose: [usize; 2]| {
            end["container"] == ids[whose[0]] && end["peer_container"] == ids[whose[1]]
        };
        let ends = report["connections"].as_array().unwrap();
        [[0, 1], [1, 0]].iter().all(|whose| ends.iter().any(|end| is(end, *whose)))
    });
    client.kill();
    server.process().kill();
}

/// Networks of a user's own (a bridge within a network namespace of theirs), pods, and published ports.
#[test]
fn a_users_containers_with_the_hosts_agent() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = Network::new();
    let Some(engine) = Engine::new(&sandbox, &network, Some(SOMEBODY)) else { return };
    let _ = sandbox.run(engine.podman(&["network", "create", "--disable-dns", "own"]));
    let own = ["--network", "own"];
    sandbox.expect(Expect::All(40), || {
        let server = serve(&sandbox, &engine, "near", &own);
        verify(connect(&sandbox, &engine, &own, address(&engine, "near")), server);
    });
    pod(&sandbox, &engine);
    published(&sandbox, &engine);
}

/// The same with an agent of that user, which knows programs by network and address.
#[test]
fn a_users_containers_with_the_users_agent() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_uid(Mode::Attach, SOMEBODY);
    let network = Network::new();
    let Some(engine) = Engine::new(&sandbox, &network, Some(SOMEBODY)) else { return };
    pod(&sandbox, &engine);
    let host = ["--network", "host"];
    sandbox.expect(BY_ADDRESS, || {
        let server = serve(&sandbox, &engine, "host", &host);
        verify(connect_beside(&sandbox, &engine, "127.0.0.1:8000".parse().unwrap()), server);
    });
    let _ = sandbox.run(engine.podman(&["network", "create", "--disable-dns", "own"]));
    let own = ["--network", "own"];
    stays_on_tcp(&sandbox, || {
        let server = serve(&sandbox, &engine, "near", &own);
        verify(connect(&sandbox, &engine, &own, address(&engine, "near")), server);
    });
    published(&sandbox, &engine);
}

/// Two containers in one network namespace, once with root's number inside, once with the user's own. The namespace is a
/// third one's, as in a pod: podman 4.3 may wait for long where a container ends at the same time as another one that has
/// its network.
fn pod(sandbox: &Sandbox, engine: &Engine<'_>) {
    for users in ["--userns=host", "--userns=keep-id"] {
        engine.hold("pod", &[users]);
        let joined = [users, "--network", "container:pod"];
        sandbox.expect(BY_ADDRESS, || {
            let server = serve(sandbox, engine, "server", &joined);
            verify(connect(sandbox, engine, &joined, "127.0.0.1:8000".parse().unwrap()), server);
        });
        engine.remove("pod");
    }
}

/// Through a port that is published by a program (rootlessport, slirp4netns), which ends the connection and makes
/// another one.
fn published(sandbox: &Sandbox, engine: &Engine<'_>) {
    stays_on_tcp(sandbox, || {
        let server = serve(sandbox, engine, "published", &["--publish", PUBLISHED]);
        verify(connect_beside(sandbox, engine, "127.0.0.1:9000".parse().unwrap()), server);
    });
}

/// All is TCP, and each end says why.
fn stays_on_tcp(sandbox: &Sandbox, body: impl FnOnce()) {
    let before = sandbox.stats().reasons().values().sum::<u64>();
    sandbox.expect(Expect::Nothing, body);
    settles("each end has a reason", &(before + 40), || sandbox.stats().reasons().values().sum());
}
