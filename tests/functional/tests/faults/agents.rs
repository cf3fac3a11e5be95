//! An agent that dies and comes back, again and again, while connections come and go.

use std::thread;
use std::time::Duration;

use fastrand::Rng;
use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, records, start_client, totals};
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Expect, Process, Sandbox};

use crate::rounds::{rounds, seed};

const PATIENCE: Duration = Duration::from_secs(100);

/// Connections come and go between two programs.
struct Churn {
    server: Server,
    client: Process,
}

impl Churn {
    fn start(sandbox: &Sandbox) -> Self {
        let args = ["-n", "6000", "-b", "20000", "--totals", "--style", "epoll-lt"];
        let server = Server::start(sandbox, true, &args);
        // Not by `shunt run`, which would start an agent of its own.
        let mut command = sandbox.preloaded(built("shunt-gen"));
        command.args(["connect", "--to", &format!("127.0.0.1:{}", server.port)]).args(args);
        command.args(["--at-once", "8"]);
        Self { server, client: sandbox.spawn(command) }
    }

    /// All bytes of all connections have come in, at both ends.
    fn finish(self) {
        let client = totals(self.client, PATIENCE);
        let server = totals(self.server.into_process(), PATIENCE);
        assert_eq!(client.connections, 6000);
        assert_eq!(server.connections, 6000);
        assert_eq!(client.sent_bytes, server.received_bytes);
        assert_eq!(server.sent_bytes, client.received_bytes);
    }
}

#[test]
fn agents_come_and_go() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut rng = Rng::with_seed(seed());
        let mut churn = Churn::start(&sandbox);
        let (mut restarts, mut runs) = (0, 1);
        for _ in rounds(12, 100) {
            let mut nap = || thread::sleep(Duration::from_millis(rng.u64(..80)));
            nap();
            sandbox.kill_agent();
            nap();
            sandbox.start_agent();
            restarts += 1;
            if !churn.client.is_running() {
                churn.finish();
                churn = Churn::start(&sandbox);
                runs += 1;
            }
        }
        churn.finish();
        println!("{mode}: {restarts} restarts, {} connections", runs * 6000);
        let args = ["-n", "10", "-b", "100000"];
        sandbox.expect(Expect::Ends(10), || {
            let server = Server::start(&sandbox, true, &args);
            let to = ([127, 0, 0, 1], server.port).into();
            let clients = records(start_client(&sandbox, true, to, &args));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
    }
}

/// One pair of programs lives through it, and its connections are shunted again afterwards.
#[test]
fn programs_find_each_new_agent() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        for _ in rounds(2, 20) {
            let churn = Churn::start(&sandbox);
            thread::sleep(Duration::from_millis(30));
            sandbox.kill_agent();
            sandbox.start_agent();
            // Those that the new agent has counted.
            let before = sandbox.stats();
            sandbox.expect(Expect::Ends(100), || churn.finish());
            let (ends, shunted) = sandbox.stats().since(&before);
            println!("{mode}: {shunted} of {ends} ends shunted after the restart");
        }
    }
}
