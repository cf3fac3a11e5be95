//! PostgreSQL: pgbench over plain connections and over TLS, and its regression tests over TCP.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Process, Sandbox};
use shunt_functional::sources;

use crate::{Verdict, Verdicts, compare, in_full};

const PGBENCH: Subject = Subject {
    kind: Kind::Suites,
    name: "PostgreSQL pgbench",
    version: Version::Said("postgres", "--version"),
    done: "1 to 64 clients; TPC-B, select only, prepared, a connection per transaction",
    remark: "",
};

const REGRESS: Subject = Subject {
    name: "PostgreSQL pg_regress",
    done: "parallel_schedule over TCP, 20 sessions at once",
    ..PGBENCH
};

/// What the regression tests expect of a server's log and of its limits.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
max_connections = 150
max_prepared_transactions = 2
";

/// All of the regression tests at most.
const PATIENCE: Duration = Duration::from_secs(1800);

struct Server {
    process: Process,
    port: String,
}

impl Server {
    fn start(sandbox: &Sandbox, tls: bool) -> Self {
        let data = sandbox.path().join("data");
        // Of a run before this one.
        let _none = fs::remove_dir_all(&data);
        let mut command = sandbox.plain(program("initdb"));
        command.args(["-N", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-D"]);
        command.arg(&data);
        let _done = sandbox.run(command);
        let settings = format!("{SETTINGS}ssl = {}\n", if tls { "on" } else { "off" });
        fs::write(data.join("postgresql.auto.conf"), settings).expect("settings");
        if tls {
            let mut command = sandbox.plain(program("openssl"));
            command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shunt"]);
            command.arg("-keyout").arg(data.join("server.key"));
            command.arg("-out").arg(data.join("server.crt"));
            let _done = sandbox.run(command);
        }
        let port = free_port();
        let mut command = sandbox.command(program("postgres"));
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        let process = sandbox.serve(command, port);
        let port = port.to_string();
        // The port is open before the server is ready for queries.
        for _ in 0..2000 {
            let mut command = sandbox.plain(program("pg_isready"));
            command.args(["-q", "-h", "127.0.0.1", "-p", &port]);
            if sandbox.spawn(command).wait().status.success() {
                return Self { process, port };
            }
            thread::sleep(Duration::from_millis(25));
        }
        panic!("PostgreSQL does not get ready");
    }

    /// INT is PostgreSQL's fast shutdown.
    fn stop(mut self) {
        self.process.assert_running();
        self.process.terminate(libc::SIGINT);
    }
}

fn pgbench(sandbox: &Sandbox, server: &Server, tls: bool, args: &[&str]) -> (String, Verdict) {
    let mut command = sandbox.command(program("pgbench"));
    command.args(["-h", "127.0.0.1", "-p", &server.port, "-U", "postgres"]);
    command.env("PGSSLMODE", if tls { "require" } else { "disable" });
    // libpq looks for certificates there.
    command.env("HOME", sandbox.path()).args(args).arg("postgres");
    let out = sandbox.spawn(command).wait_at_most(PATIENCE);
    let passed = out.status.success()
        && (args.contains(&"-i") || out.stdout.contains("number of failed transactions: 0 "));
    println!("{out}");
    (args.join(" "), if passed { Verdict::Passed } else { Verdict::Failed })
}

fn benches(sandbox: &Sandbox, tls: bool) -> Verdicts {
    let server = Server::start(sandbox, tls);
    let mut verdicts = Verdicts::new();
    let scale = ["-i", "-q", "-s", if in_full() { "10" } else { "1" }];
    verdicts.extend([pgbench(sandbox, &server, tls, &scale)]);
    let clients: &[&str] = if in_full() { &["1", "4", "16", "64"] } else { &["1", "8"] };
    let count = if in_full() { "500" } else { "50" };
    for clients in clients {
        for kind in [&[][..], &["-S"], &["-S", "-M", "prepared"], &["-S", "-C"]] {
            let args = [&["-n", "-j", "2", "-c", clients, "-t", count], kind].concat();
            verdicts.extend([pgbench(sandbox, &server, tls, &args)]);
        }
    }
    server.stop();
    verdicts
}

#[test]
fn pgbench_plain() {
    compare(&PGBENCH, 500, account, |sandbox| benches(sandbox, false));
}

#[test]
fn pgbench_over_tls() {
    let subject = Subject { done: "the same over TLS", ..PGBENCH };
    compare(&subject, 500, account, |sandbox| benches(sandbox, true));
}

/// Short connections, too, are to be shunted: it is what becomes of their bytes that is looked at.
fn account(mode: Mode) -> Sandbox {
    Sandbox::for_user(mode, "postgres").with_env("SHUNT_SHORT_LIVED", "all")
}

fn succeeds(command: &mut Command) {
    assert!(command.status().is_ok_and(|status| status.success()), "{command:?}");
}

/// The headers of the installed server, unpacked and not installed: the package that holds them wants
/// a compiler of its own.
fn headers(place: &Path) -> Option<PathBuf> {
    let version = sources::version_of("postgresql-15")?;
    let package = format!("postgresql-server-dev-15={version}");
    let fetched =
        Command::new("apt-get").args(["-q", "download", &package]).current_dir(place).status();
    if !fetched.is_ok_and(|status| status.success()) {
        println!("skipped: no {package}");
        return None;
    }
    let deb = fs::read_dir(place).ok()?.flatten().map(|entry| entry.path());
    let deb = deb.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb"))?;
    succeeds(Command::new("dpkg-deb").arg("-x").arg(deb).arg(place.join("dev")));
    Some(place.join("dev/usr/include/postgresql/15/server"))
}

/// The inputs of the regression tests, with their library compiled; `None` when the distribution's
/// sources or headers cannot be had.
fn inputs(place: &Path) -> Option<PathBuf> {
    let source = sources::unpacked("postgresql-15", "postgresql-15")?;
    let headers = headers(place)?;
    let inputs = place.join("regress");
    succeeds(Command::new("cp").arg("-r").arg(source.join("src/test/regress")).arg(&inputs));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-fPIC", "-shared", "-I"]).arg(headers).arg("-o");
    succeeds(compiler.arg(inputs.join("regress.so")).arg(inputs.join("regress.c")));
    // Two more libraries that the tests load from there.
    for library in ["autoinc.so", "refint.so"] {
        succeeds(Command::new("cp").arg(LIBRARIES.to_owned() + library).arg(&inputs));
    }
    Some(inputs)
}

/// Of the version whose sources are taken.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const LIBRARIES: &str = "/usr/lib/postgresql/15/lib/";
const PG_REGRESS: &str = "/usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress";

fn regress(sandbox: &Sandbox, inputs: &Path) -> Verdicts {
    // It writes among its inputs, as the server's account.
    let place = sandbox.path().join("regress");
    let _none = fs::remove_dir_all(&place);
    succeeds(Command::new("cp").arg("-r").arg(inputs).arg(&place));
    succeeds(Command::new("chmod").args(["-R", "a+rwX"]).arg(&place));
    let server = Server::start(sandbox, false);
    let mut command = sandbox.command(PG_REGRESS);
    let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
    command.arg(option("bindir", Path::new(PROGRAMS)));
    for name in ["inputdir", "outputdir", "dlpath"] {
        command.arg(option(name, &place));
    }
    command.arg(option("schedule", &place.join("parallel_schedule")));
    command.args(["--host=127.0.0.1", "--user=postgres", "--max-concurrent-tests=20"]);
    command.arg(format!("--port={}", server.port));
    let out = sandbox.spawn(command).wait_at_most(PATIENCE);
    server.stop();
    // Lines such as `test boolean   ... ok   58 ms`, or `boolean   ... FAILED   58 ms` in a group.
    let verdict = |line: &str| {
        let (name, result) = line.split_once(" ... ")?;
        let passed = result.starts_with("ok");
        let name = name.split_whitespace().last()?;
        Some((name.to_owned(), if passed { Verdict::Passed } else { Verdict::Failed }))
    };
    println!("{out}");
    out.stdout.lines().filter_map(verdict).collect()
}

#[test]
fn pg_regress() {
    if !in_full() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let Some(inputs) = inputs(place.path()) else { return };
    compare(&REGRESS, 500, account, |sandbox| regress(sandbox, &inputs));
}
