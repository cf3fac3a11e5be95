//! PostgreSQL, a process per connection, and pgbench.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::connections::{CONNECTIONS, connections_text};
use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::rig::process::Process;
use crate::rig::{Budget, Place, Session, program};
use crate::workload::output::expect_number;
use crate::workload::row::{Better, Family, Outcome, Row};

static FAMILY: Family = Family {
    title: "PostgreSQL and pgbench",
    meaning: "pgbench -S, one SELECT by primary key at a time over each connection, by the simple protocol \
              and with prepared statements; two threads of pgbench. PostgreSQL has a process per \
              connection, which plans and runs the statement. Both run as the user postgres.",
};

/// The user of both, and of the database.
const USER: &str = "postgres";

/// How long a database may take to be made, and a server to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// In Debian's package, besides the server: pgbench is in the package of contributions.
const PACKAGE: &str = "postgresql";

const SETTINGS: &str = "unix_socket_directories = ''\nfsync = off\nssl = off\nautovacuum = off\n\
                        max_connections = 120\nshared_buffers = 64MB\n";

/// Runs the server on the database in `data` until the value is dropped.
fn serve(session: &Session<'_>, data: &Path) -> Result<(Process, [String; 2])> {
    let at = session.endpoint()?;
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let mut command = session.command(program("postgres", PACKAGE)?);
    command.arg("-D").arg(data).args(["-p", &port, "-c", &format!("listen_addresses={ip}")]);
    let server = session.serve(command, &at)?;
    // It listens before it is ready, and says so in this file: a connection to ask would count.
    let is_ready = |_: &Process| {
        let text = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        text.lines().any(|line| line.trim_end() == "ready")
    };
    server.wait_until(PATIENCE, is_ready)?;
    Ok((server, [ip, port]))
}

fn pgbench(session: &Session<'_>, [ip, port]: &[String; 2]) -> Result<Command> {
    let mut command = session.command(program("pgbench", "postgresql-contrib")?);
    command.args(["-h", ip, "-p", port, "-U", USER, "-n"]);
    Ok(command)
}

/// Makes the database, once in a run, over plain TCP.
fn prepare(session: &Session<'_>, data: &Path) -> Result<()> {
    let done = data.with_extension("made");
    if done.exists() {
        return Ok(());
    }
    let plain =
        session.rig().session(Contender::Tcp, Place { isolated: false, user: Some(USER) })?;
    let mut command = plain.command(program("initdb", PACKAGE)?);
    command.args(["-N", "-A", "trust", "-U", USER, "-E", "UTF8", "-D"]).arg(data);
    let _finished = plain.run(command, PATIENCE)?;
    fs::write(data.join("postgresql.auto.conf"), SETTINGS).context("PostgreSQL's settings")?;
    let (_server, at) = serve(&plain, data)?;
    let mut command = pgbench(&plain, &at)?;
    command.args(["-i", "-q", "postgres"]);
    let _finished = plain.run(command, PATIENCE)?;
    fs::write(done, []).context("a file")
}

/// Transactions, and their rate.
fn parse(text: &str) -> Result<(f64, f64)> {
    let failed = expect_number(text, "number of failed transactions:")?;
    if failed > 0.0 {
        return Err(Failure::failed(format!("pgbench: {failed} failed transactions")));
    }
    let done = expect_number(text, "number of transactions actually processed:")?;
    Ok((done, expect_number(text, "tps =")?))
}

fn run(session: &Session<'_>, budget: Budget, mode: &str, connections: u32) -> Result<Outcome> {
    let data = session.dir().join("postgres");
    prepare(session, &data)?;
    let (server, at) = serve(session, &data)?;
    let (finished, cost) = session.metered(|| {
        let mut command = pgbench(session, &at)?;
        command.args(["-S", "-M", mode, "-c", &connections.to_string()]);
        command.args(["-j", &connections.min(2).to_string()]);
        command.args(["-T", &budget.whole_seconds().to_string(), "postgres"]);
        session.run(command, budget.patience())
    })?;
    drop(server);
    let (operations, value) = parse(&finished.stdout)?;
    Ok(Outcome { value, operations, cost, ..Outcome::default() })
}

/// Simple and prepared, by connections.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for mode in ["simple", "prepared"] {
        for connections in CONNECTIONS {
            let drive = move |session: &Session<'_>, budget: Budget| {
                run(session, budget, mode, connections)
            };
            let id = format!("postgres.{mode}.c{connections}");
            let title = format!("pgbench -S, {mode}, {}", connections_text(connections));
            rows.push(
                Row::new(id, &FAMILY, title, drive).unit("tx/s", Better::Higher).user(USER).point(
                    &format!("pgbench -S, {mode}"),
                    "connections",
                    connections.into(),
                ),
            );
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
pgbench (15.13 (Debian 15.13-0+deb12u1))
transaction type: <builtin: select only>
scaling factor: 1
query mode: prepared
number of clients: 8
number of threads: 2
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 15811
number of failed transactions: 0 (0.000%)
latency average = 0.506 ms
initial connection time = 25.125 ms
tps = 15811.514871 (without initial connection time)
";

    #[test]
    fn what_pgbench_prints() {
        assert_eq!(parse(OUTPUT).unwrap(), (15811.0, 15811.514871));
        let failed = OUTPUT.replace("transactions: 0 (", "transactions: 3 (");
        assert!(parse(&failed).unwrap_err().why().contains("3 failed"));
        assert!(parse("pgbench: error").is_err());
    }
}
