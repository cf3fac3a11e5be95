//! PostgreSQL, which forks after accept, under pgbench and psql.

use std::fs;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::{Outcome, compare, field};

const POSTGRES: Subject = Subject {
    kind: Kind::Programs,
    name: "PostgreSQL, pgbench, psql",
    version: Version::Said("postgres", "--version"),
    done: "pgbench with 10 clients (read and write, prepared, a connection per transaction); long results; COPY",
    remark: "",
};

struct Client<'a> {
    sandbox: &'a Sandbox,
    port: String,
}

impl Client<'_> {
    fn run(&self, name: &str, args: &[&str]) -> String {
        let mut command = self.sandbox.command(program(name));
        command.args(["-h", "127.0.0.1", "-p", &self.port, "-U", "tester"]).args(args);
        self.sandbox.run(command).stdout
    }

    fn query(&self, sql: &str) -> String {
        self.run("psql", &["-X", "-A", "-t", "-c", sql, "postgres"])
    }

    fn pgbench(&self, args: &[&str]) -> String {
        let text = self.run("pgbench", &[&["-n"], args, &["postgres"]].concat());
        let failed = field(&text, "number of failed transactions:");
        // With -t the number of transactions is known, with -T it is not.
        let done = if args.contains(&"-T") {
            None
        } else {
            field(&text, "number of transactions actually processed:")
        };
        format!("pgbench {args:?}: failed {failed:?}, done {done:?}")
    }
}

fn scenario(sandbox: &Sandbox) -> Outcome {
    let data = sandbox.path().join("data");
    let mut command = sandbox.plain(program("initdb"));
    command.args(["-N", "-A", "trust", "-U", "tester", "-E", "UTF8", "-D"]).arg(&data);
    let _done = sandbox.run(command);
    let settings = "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n\
                    ssl = off\nautovacuum = off\nmax_connections = 60\nshared_buffers = 32MB\n";
    let file = data.join("postgresql.auto.conf");
    fs::write(&file, settings).expect("settings");

    let port = free_port();
    let mut command = sandbox.command(program("postgres"));
    command.arg("-D").arg(&data).args(["-p", &port.to_string()]);
    let mut server = sandbox.serve(command, port);
    let client = Client { sandbox, port: port.to_string() };
    wait_until_ready(sandbox, &client.port);

    let mut outcome = Outcome::new();
    outcome
        .push(sandbox.expect(Expect::Ends(2), || client.run("pgbench", &["-i", "-q", "postgres"])));
    let clients = ["-c", "10", "-j", "2"];
    for args in [&["-t", "100"][..], &["-S", "-T", "1"], &["-S", "-M", "prepared", "-t", "500"]] {
        let args = [&clients, args].concat();
        outcome.push(sandbox.expect(Expect::Ends(20), || client.pgbench(&args)));
    }
    outcome.push(sandbox.expect(Expect::Ends(2), || client.query(BALANCE)));
    // Many rows one way, and back in through COPY.
    outcome.push(sandbox.expect(Expect::Ends(2), || {
        client.query(
            "SELECT count(*), md5(string_agg(md5(n::text), '')) FROM generate_series(1, 200000) n",
        )
    }));
    let rows = client.query("SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 20000) n");
    let table = sandbox.path().join("rows");
    fs::write(&table, &rows).expect("rows");
    outcome.push(format!("{} bytes of rows, hash {:x}", rows.len(), hash(&rows)));
    let copy = format!("\\copy copied FROM '{}' WITH (DELIMITER '|')", table.display());
    let create = "CREATE TABLE copied (n int, t text)";
    let sum = "SELECT count(*), sum(n), md5(string_agg(t, '' ORDER BY n)) FROM copied";
    let args = ["-X", "-A", "-t", "-c", create, "-c", &copy, "-c", sum, "postgres"];
    outcome.push(sandbox.expect(Expect::Ends(2), || client.run("psql", &args)));
    // A connection for each transaction: after the first few its children leave them on TCP, as short ones.
    let args = [&clients, &["-S", "-C", "-t", "10"][..]].concat();
    outcome.push(sandbox.expect(Expect::Percent(3), || client.pgbench(&args)));
    server.assert_running();
    // INT is PostgreSQL's fast shutdown.
    server.terminate(libc::SIGINT);
    outcome
}

/// pgbench's own invariant: every change is in all four tables.
const BALANCE: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = \
    (SELECT sum(tbalance) FROM pgbench_tellers) AND (SELECT sum(bbalance) FROM pgbench_branches) = \
    (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)";

/// The port is open before the server is ready for queries.
fn wait_until_ready(sandbox: &Sandbox, port: &str) {
    for _ in 0..2000 {
        let mut command = sandbox.plain(program("pg_isready"));
        command.args(["-q", "-h", "127.0.0.1", "-p", port]);
        if sandbox.spawn(command).wait().status.success() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
    panic!("PostgreSQL does not get ready");
}

fn hash(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

#[test]
fn postgres() {
    compare(&POSTGRES, |mode| Sandbox::for_user(mode, "postgres"), scenario);
}
