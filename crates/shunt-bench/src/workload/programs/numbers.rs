//! Servers under the bench's own client: small ones in Java and Python, and memcached.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::connections::{CONNECTIONS, connections_text};
use crate::contender::Contender;
use crate::failure::{Context, Result};
use crate::rig::endpoint::Endpoint;
use crate::rig::{Budget, Place, Session, program};
use crate::workload::ipc::outcome;
use crate::workload::row::{Better, Family, Outcome, Row};

static JAVA: Family = Family {
    title: "Java",
    meaning: "The client of `shapes` sends requests of 100 B to a server in Java, which answers with 100 B: \
              with a thread per connection that waits in read, and with NIO, one thread and a selector \
              for all. The clock is started after a second of load, when the code is compiled.",
};

static PYTHON: Family = Family {
    title: "Python threads",
    meaning: "The same with a server in Python with a thread per connection. Its threads take turns at the \
              interpreter, so each wakes another.",
};

static MEMCACHED: Family = Family {
    title: "memcached",
    meaning: "The client of `shapes` gets a value of 100 B over each of its connections, one request at a \
              time. memcached has four threads, its default, each with connections of its own.",
};

/// Bytes of requests, answers, and values.
const SIZE: &str = "100";

/// Seconds until a virtual machine has compiled what it runs.
const WARM_UP: &str = "1";

/// How long a compiler may take.
const COMPILING: Duration = Duration::from_secs(60);

/// A server in Java; its classes are compiled once in a run.
fn java(session: &Session<'_>, at: &Endpoint, how: &str) -> Result<Command> {
    let (java, javac) =
        (program("java", "default-jre-headless")?, program("javac", "default-jdk-headless")?);
    let classes = session.rig().path().join("java");
    if !classes.join("Server.class").exists() {
        fs::create_dir_all(&classes).context("a directory for classes")?;
        let source = classes.join("Server.java");
        fs::write(&source, include_str!("Server.java")).context("Server.java")?;
        let plain = session.rig().session(Contender::Tcp, Place::default())?;
        let mut command = plain.command(javac);
        command.arg("-d").arg(&classes).arg(source);
        let _finished = plain.run(command, COMPILING)?;
    }
    let mut command = session.command(java);
    command.arg("-cp").arg(classes).args(["Server", how]);
    command.args([at.ip().to_string(), at.port().to_string(), SIZE.to_owned()]);
    Ok(command)
}

fn java_threads(session: &Session<'_>, at: &Endpoint) -> Result<Command> {
    java(session, at, "threads")
}

fn java_nio(session: &Session<'_>, at: &Endpoint) -> Result<Command> {
    java(session, at, "nio")
}

fn python(session: &Session<'_>, at: &Endpoint) -> Result<Command> {
    let file = session.rig().new_path("server").with_extension("py");
    fs::write(&file, include_str!("server.py")).context("server.py")?;
    let mut command = session.command(program("python3", "python3")?);
    command.arg(file).args([at.ip().to_string(), at.port().to_string(), SIZE.to_owned()]);
    Ok(command)
}

fn memcached(session: &Session<'_>, at: &Endpoint) -> Result<Command> {
    let mut command = session.command(program("memcached", "memcached")?);
    command.args(["-l", &at.ip().to_string(), "-p", &at.port().to_string(), "-U", "0"]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    Ok(command)
}

/// A server, and what its client is told.
type Serve = fn(&Session<'_>, &Endpoint) -> Result<Command>;
type Told = &'static [&'static str];

const NUMBERS: Told = &["--request", SIZE, "--response", SIZE];
const COMPILED: Told = &["--request", SIZE, "--response", SIZE, "--warm-up", WARM_UP];
const VALUES: Told = &["--protocol", "memcached", "--response", SIZE];

fn run(
    session: &Session<'_>,
    budget: Budget,
    (serve, told): (Serve, Told),
    connections: u32,
) -> Result<Outcome> {
    let at = session.endpoint()?;
    let command = serve(session, &at)?;
    let _server = session.serve(command, &at)?;
    let mut command = session.load("drive");
    command.args(["--to", &at.to_string(), "--connections", &connections.to_string()]);
    command.args(["--seconds", &budget.seconds.to_string()]).args(told);
    let (seen, cost) = session.drive(vec![command], budget)?;
    Ok(outcome(&seen, cost))
}

/// All of them, by connections.
pub fn rows() -> Vec<Row> {
    let all: [(_, _, _, (Serve, Told)); 4] = [
        ("java.threads", &JAVA, "Java, a thread per connection", (java_threads, COMPILED)),
        ("java.nio", &JAVA, "Java, NIO", (java_nio, COMPILED)),
        ("python.threads", &PYTHON, "Python, a thread per connection", (python, NUMBERS)),
        ("memcached", &MEMCACHED, "memcached", (memcached, VALUES)),
    ];
    let mut rows = Vec::new();
    for (name, family, title, ends) in all {
        for connections in CONNECTIONS {
            let drive = move |session: &Session<'_>, budget: Budget| {
                run(session, budget, ends, connections)
            };
            let text = format!("{title}, {}", connections_text(connections));
            rows.push(
                Row::new(format!("{name}.c{connections}"), family, text, drive)
                    .unit("req/s", Better::Higher)
                    .point(title, "connections", connections.into()),
            );
        }
    }
    rows
}
