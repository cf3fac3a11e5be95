//! The last commit of an older version, and this one, together: each as agent, as server and as client. `make test-upgrade`
//! builds the former, for each such version, and names it by `SHUNT_TEST_OLD_DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::{built, dir};
use shunt_functional::generator::{Server, records};
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::waiting::settles;

const CONNECTIONS: u64 = 20;
const TRAFFIC: [&str; 6] = ["-n", "20", "-b", "3000000", "--style", "epoll-et"];

fn old() -> PathBuf {
    std::env::var_os("SHUNT_TEST_OLD_DIR").expect("SHUNT_TEST_OLD_DIR: `make test-upgrade`").into()
}

fn generator(sandbox: &Sandbox, release: &Path) -> Command {
    let mut command = sandbox.plain(built("shunt-gen"));
    command.env("LD_PRELOAD", release.join("libshunt.so"));
    command
}

/// All connections are shunted, and every byte is the same.
fn are_shunted(agent: &Path, server: &Path, client: &Path) {
    let sandbox = Sandbox::new(Mode::Plain);
    let mut command = sandbox.plain(agent.join("shunt"));
    command.arg("agent");
    let mut process = sandbox.spawn(command);
    let socket = sandbox.run_dir().join("agent.sock");
    settles("the agent serves", &true, || socket.exists());
    let mut command = generator(&sandbox, server);
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(TRAFFIC);
    let server = Server::of(sandbox.spawn(command));
    let mut command = generator(&sandbox, client);
    command.args(["connect", "--to", &format!("127.0.0.1:{}", server.port)]).args(TRAFFIC);
    let clients = records(sandbox.spawn(command));
    compare(&clients, &server.finish()).expect("the same bytes");
    for release in [dir(), agent.to_path_buf()] {
        let mut stats = sandbox.plain(release.join("shunt"));
        stats.args(["stats", "--json"]);
        let said = sandbox.run(stats).stdout;
        let stats: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(stats["connections_shunted"], CONNECTIONS * 2, "{said}");
    }
    process.kill();
}

#[test]
fn an_older_agent_serves_newer_programs() {
    are_shunted(&old(), &dir(), &dir());
}

#[test]
fn older_programs_go_on_under_a_newer_agent() {
    are_shunted(&dir(), &old(), &old());
}

#[test]
fn programs_of_both_are_shunted_with_each_other() {
    for agent in [old(), dir()] {
        are_shunted(&agent, &old(), &dir());
        are_shunted(&agent, &dir(), &old());
    }
}
