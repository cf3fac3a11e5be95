//! Connections that are over before they have gained what the agent's part in them costs.

use serde_json::Value;
use shunt_functional::binaries::built;
use shunt_functional::container::{Container, Users};
use shunt_functional::generator::{Server, records};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::waiting::settles;

use crate::scene::{ANOTHER, SOMEBODY, can, connect, four, serve, traffic, verify};

/// Next to none of these is offered or claimed.
const SELDOM: (&str, &str) = ("SHUNT_SHORT_LIVED", "1");
const SHORT: [&str; 8] = ["-n", "200", "-b", "300", "--style", "epoll-et", "--at-once", "4"];
const LONG: [&str; 6] = ["-n", "8", "-b", "1000000", "--style", "epoll-et"];

#[test]
fn short_connections_are_left_to_tcp() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]).with_env(SELDOM.0, SELDOM.1);
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Of(ANOTHER)));
    let before = sandbox.stats();
    let listening = serve(&sandbox, &b, "10.77.0.2:8000", &SHORT[..6]);
    let clients = records(connect(&sandbox, &a, "10.77.0.2:8000".parse().unwrap(), &SHORT));
    verify(&clients, &listening.finish());
    let after = sandbox.stats();
    let short = after.declined("short-lived") - before.declined("short-lived");
    assert!(short > 100, "{:?}", after.reasons());
    // Those that last are shunted, every one.
    sandbox.expect(Expect::All(16), || {
        traffic(&sandbox, (&a, &b), ("10.77.0.2:0", "10.77.0.2:0"), &LONG);
    });
}

/// A client that does not care offers each of its connections: it does not keep the acceptor from being asked for by
/// others, nor busy with the agent.
#[test]
fn who_offers_short_connections_all_the_time_is_not_asked_for() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]).with_env("SHUNT_SHORT_LIVED", "all");
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Of(ANOTHER)));
    let c = at("c", Users::Own(ANOTHER));
    let mut command = b.command(built("shunt-gen"));
    command.args(["serve", "--listen", "10.77.0.2:8000", "--style", "epoll-et"]);
    command.args(["-n", "208", "-b", "300"]).env(SELDOM.0, SELDOM.1);
    let server = Server::of(sandbox.spawn(command));
    let to = "10.77.0.2:8000".parse().unwrap();
    let before = sandbox.stats();
    let mut clients = records(connect(&sandbox, &a, to, &SHORT));
    // Both ends of nearly all of them: the client's offers came to nothing.
    settles("the server's ends are counted", &true, || {
        sandbox.stats().declined("short-lived") - before.declined("short-lived") > 300
    });
    sandbox.expect(Expect::All(16), || {
        let long = [&LONG[..], &["--seed", "2"]].concat();
        clients.extend(records(connect(&sandbox, &c, to, &long)));
        verify(&clients, &server.finish());
    });
}

/// Short ones have used up what may be tried; one that lasts has made good for them before it ends, so that the next one that
/// lasts is shunted as well.
#[test]
fn what_lasts_makes_good_for_what_does_not() {
    const PYTHON: &str = "/usr/bin/python3";
    const SCRIPT: &str = include_str!("mixed.py");
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]).with_env(SELDOM.0, SELDOM.1);
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Own(ANOTHER)));
    let start = |at: &Container<'_>, role| {
        let mut command = at.command(PYTHON);
        command.args(["-c", SCRIPT, role, "10.77.0.2"]);
        sandbox.spawn(command)
    };
    let mut server = start(&b, "server");
    server.wait_for_line(|line| (line == "listening").then_some(()));
    let mut client = start(&a, "client");
    let ports = client.wait_for_line(|line| line.strip_prefix("ports ").map(str::to_owned));
    let ends: Vec<_> = ports.split(' ').map(|port| format!("10.77.0.1:{port}")).collect();
    settles("both ends of both are shunted", &4, || {
        let mut list = sandbox.plain(sandbox.shunt_path());
        list.args(["list", "--json"]);
        let report: Value = serde_json::from_str(&sandbox.run(list).stdout).unwrap();
        let lasts = |end: &&Value| {
            let is = |side: &str| ends.iter().any(|known| end[side] == **known);
            end["mode"] == "shunt-attach" && (is("local") || is("peer"))
        };
        report["connections"].as_array().unwrap().iter().filter(lasts).count()
    });
    client.kill();
    server.kill();
}
