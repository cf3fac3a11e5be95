//! Small tools that relay, copy and encrypt: socat, netcat, ncat, openssl, memcached, rsync, tcpdump.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};
use shunt_functional::waiting::settles;

use crate::proxies::certificate;
use crate::{Outcome, compare, content};

const SOCAT: Subject = Subject {
    kind: Kind::Programs,
    name: "socat, netcat, ncat",
    version: Version::Packaged("socat"),
    done: "a process per connection: EXEC and SYSTEM of a program, also with nofork; a relay; a file",
    remark: "what a program inherits over exec stays on TCP",
};

const OPENSSL: Subject = Subject {
    kind: Kind::Programs,
    name: "OpenSSL",
    version: Version::Said("openssl", "version"),
    done: "s_server under s_client and curl",
    remark: "",
};

const MEMCACHED: Subject = Subject {
    kind: Kind::Programs,
    name: "memcached",
    version: Version::Said("memcached", "--version"),
    done: "values of 1 to 500,000 bytes, set and read by ncat; as another user than root (-u)",
    remark: "",
};

const MEMCACHED_DAEMON: Subject = Subject {
    name: "memcached -d",
    done: "the same, where it forks after it has become another user (-d -u)",
    ..MEMCACHED
};

const RSYNC: Subject = Subject {
    kind: Kind::Programs,
    name: "rsync",
    version: Version::Said("rsync", "--version"),
    done: "a daemon, copies from it and to it",
    remark: "",
};

const TCPDUMP: Subject = Subject {
    kind: Kind::Programs,
    name: "tcpdump",
    version: Version::Packaged("tcpdump"),
    done: "shows the handshake and the end of connections whose bytes it does not see",
    remark: "",
};

const LEN: usize = 3 << 20;

/// A file to send, and its bytes.
fn file(sandbox: &Sandbox) -> (PathBuf, Vec<u8>) {
    let path = sandbox.path().join("sent");
    let bytes = content(LEN);
    fs::write(&path, &bytes).expect("sent");
    (path, bytes)
}

/// Runs a client that sends a file, and keeps what comes back in another one.
fn round(sandbox: &Sandbox, from: &PathBuf, mut command: Command) -> Vec<u8> {
    command.stdin(File::open(from).expect("sent"));
    let log = sandbox.path().join("came.out");
    let _done = sandbox.start(command, &log).wait().success();
    fs::read(log).expect("came")
}

fn socat(sandbox: &Sandbox) -> Outcome {
    let (sent, bytes) = file(sandbox);
    let start = |to: &str| {
        let port = free_port();
        let mut command = sandbox.command(program("socat"));
        // How long it waits, after the end of one direction, for that of the other.
        command.arg("-t20").arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork")).arg(to);
        (sandbox.serve(command, port), port)
    };
    let mut outcome = Outcome::new();
    let mut servers = Vec::new();
    let mut cat = 0;
    // A server whose own process uses the connection; one whose connection the program inherits.
    for (to, ends) in [
        ("EXEC:cat", Some(2)),
        ("SYSTEM:cat", Some(2)),
        ("EXEC:cat,nofork", None),
        ("relay", Some(4)),
    ] {
        let to = if to == "relay" { format!("TCP:127.0.0.1:{cat}") } else { to.to_owned() };
        let (server, port) = start(&to);
        servers.push(server);
        cat = if cat == 0 { port } else { cat };
        let address = port.to_string();
        for (client, args) in [
            ("socat", vec!["-t20".to_owned(), "-".to_owned(), format!("TCP:127.0.0.1:{port}")]),
            ("nc.openbsd", vec!["-N".to_owned(), "127.0.0.1".to_owned(), address.clone()]),
            ("ncat", vec!["127.0.0.1".to_owned(), address]),
        ] {
            let mut command = sandbox.command(program(client));
            command.args(args);
            let expect = ends.map_or(Expect::Ends(0), Expect::Ends);
            let got = sandbox.expect(expect, || round(sandbox, &sent, command));
            outcome.push(format!("{client} to {}: right {}", to_name(&to), got == bytes));
        }
    }
    let (server, port) = start(&format!("OPEN:{},rdonly", sent.display()));
    servers.push(server);
    let mut command = sandbox.command(program("socat"));
    command.args(["-u", &format!("TCP:127.0.0.1:{port}"), "-"]);
    let got = sandbox.expect(Expect::Ends(2), || round(sandbox, &sent, command));
    outcome.push(format!("a file: right {}", got == bytes));
    servers.iter_mut().for_each(Process::assert_running);
    outcome
}

/// Ports differ from run to run.
fn to_name(to: &str) -> &str {
    if to.starts_with("TCP") { "a relay" } else { to }
}

#[test]
fn socat_and_netcats() {
    compare(&SOCAT, Sandbox::new, socat);
}

fn openssl(sandbox: &Sandbox) -> Outcome {
    let (_, bytes) = file(sandbox);
    let [certificate, key] = certificate(sandbox);
    let start = |mode: &str| {
        let port = free_port();
        let mut command = sandbox.command(program("openssl"));
        command.args(["s_server", "-quiet", "-cert", &certificate, "-key", &key, mode]);
        command.args(["-accept", &format!("127.0.0.1:{port}")]);
        (sandbox.serve(command, port), port)
    };
    let (mut files, files_port) = start("-WWW");
    let (mut reverser, reverser_port) = start("-rev");
    let out = sandbox.path().join("fetched");
    let mut command = sandbox.command(program("curl"));
    command.args(["-sSk", "--fail", "-o"]).arg(&out);
    command.arg(format!("https://127.0.0.1:{files_port}/sent"));
    let _done = sandbox.expect(Expect::Ends(2), || sandbox.run(command));
    let right = fs::read(&out).expect("fetched") == bytes;

    let mut command = sandbox.command(program("openssl"));
    command.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{reverser_port}")]);
    let words = sandbox.path().join("words");
    // The server answers each line, and ends after this one.
    fs::write(&words, "shunt\nover and over\nCLOSE\n").expect("words");
    let came = sandbox.expect(Expect::Ends(2), || round(sandbox, &words, command));
    files.assert_running();
    reverser.assert_running();
    vec![format!("curl: right {right}"), String::from_utf8_lossy(&came).into_owned()]
}

#[test]
fn openssl_both_ends() {
    compare(&OPENSSL, Sandbox::new, openssl);
}

/// As root it becomes another user before it listens, for whom the agent's directory is closed.
fn memcached_at(sandbox: &Sandbox, port: u16) -> Command {
    let mut command = sandbox.command(program("memcached"));
    command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    command.args(if is_root() { &["-u", "nobody"][..] } else { &[] });
    command
}

/// What `ncat` gets of it.
fn talk(sandbox: &Sandbox, port: u16) -> Outcome {
    let talk = sandbox.path().join("talk");
    let mut text = String::new();
    let sizes = [1, 100, 10_000, 500_000];
    for size in sizes {
        text += &format!("set key{size} 0 0 {size}\r\n{}\r\n", "v".repeat(size));
    }
    for size in sizes {
        text += &format!("get key{size}\r\n");
    }
    fs::write(&talk, text + "quit\r\n").expect("talk");
    let mut command = sandbox.command(program("ncat"));
    command.args(["127.0.0.1", &port.to_string()]);
    let came = sandbox.expect(Expect::All(2), || round(sandbox, &talk, command));
    let text = String::from_utf8_lossy(&came);
    text.lines().map(|line| format!("{} {}", line.len(), &line[..line.len().min(20)])).collect()
}

fn memcached(sandbox: &Sandbox) -> Outcome {
    let port = free_port();
    let mut server = sandbox.serve(memcached_at(sandbox, port), port);
    let outcome = talk(sandbox, port);
    server.assert_running();
    outcome
}

/// After it has become another user it forks, and the child listens.
fn memcached_as_a_daemon(sandbox: &Sandbox) -> Outcome {
    let port = free_port();
    let mut command = memcached_at(sandbox, port);
    command.arg("-d");
    let _daemon = sandbox.run(command);
    settles("it listens", &true, || {
        let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        table.contains(&format!(" 0100007F:{port:04X} 00000000:0000 0A "))
    });
    let outcome = talk(sandbox, port);
    assert_eq!(sandbox.end_strays("memcached", 1), 1);
    outcome
}

#[test]
fn memcached_and_ncat() {
    compare(&MEMCACHED, Sandbox::new, memcached);
}

#[test]
fn memcached_as_a_daemon_and_ncat() {
    compare(&MEMCACHED_DAEMON, Sandbox::new, memcached_as_a_daemon);
}

/// An agent for the host knows it as the user that it becomes.
#[test]
fn memcached_as_a_daemon_with_an_agent_for_the_host() {
    if !is_root() {
        println!("left out: an agent for the host has to be root");
        return;
    }
    let plain = memcached_as_a_daemon(&Sandbox::new(Mode::Plain));
    for mode in Mode::enabled_shunted() {
        assert_eq!(memcached_as_a_daemon(&Sandbox::for_host(mode, &[])), plain);
    }
}

fn rsync(sandbox: &Sandbox) -> Outcome {
    let (sent, bytes) = file(sandbox);
    let port = free_port();
    let [module, local] = ["module", "local"].map(|name| sandbox.path().join(name));
    fs::create_dir(&module).expect("module");
    fs::create_dir(&local).expect("local");
    let file = sandbox.path().join("rsyncd.conf");
    let user = if is_root() { "uid = root\ngid = root\n" } else { "" };
    let text =
        format!("use chroot = no\n{user}[module]\npath = {}\nread only = no\n", module.display());
    fs::write(&file, text).expect("rsyncd.conf");
    let mut command = sandbox.command(program("rsync"));
    command.args(["--daemon", "--no-detach", "--address=127.0.0.1", &format!("--port={port}")]);
    command.arg(format!("--config={}", file.display()));
    let mut server = sandbox.serve(command, port);
    let remote = format!("rsync://127.0.0.1:{port}/module/");
    for (from, to) in [(sent.clone(), PathBuf::from(&remote)), (remote.into(), local.clone())] {
        let mut command = sandbox.command(program("rsync"));
        command.arg("-a").arg(from).arg(to);
        let _done = sandbox.expect(Expect::Ends(2), || sandbox.run(command));
    }
    server.assert_running();
    let right = |dir: &PathBuf| fs::read(dir.join("sent")).is_ok_and(|got| got == bytes);
    vec![format!("to the daemon {}, back {}", right(&module), right(&local))]
}

#[test]
fn rsync_daemon() {
    compare(&RSYNC, Sandbox::new, rsync);
}

/// The packets that begin and end connections are there, on shunted ones, too; the bytes are not.
fn tcpdump(sandbox: &Sandbox) -> Outcome {
    let (sent, bytes) = file(sandbox);
    let port = free_port();
    let mut command = sandbox.command(program("socat"));
    command.arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork")).arg("EXEC:cat");
    let mut server = sandbox.serve(command, port);
    let mut command = sandbox.plain(program("tcpdump"));
    command.args(["-l", "-n", "-i", "lo", "--immediate-mode", "-Z", "root"]);
    command.arg(format!("tcp port {port} and tcp[tcpflags] & (tcp-syn|tcp-fin) != 0"));
    let listens = sandbox.path().join("tcpdump.out");
    let mut dump = sandbox.start(command, &listens);
    while !dump.describe().contains("listening on") {
        dump.assert_running();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut command = sandbox.command(program("socat"));
    command.args(["-t20", "-", &format!("TCP:127.0.0.1:{port}")]);
    let got = sandbox.expect(Expect::Ends(2), || round(sandbox, &sent, command));
    let flags = |line: &str| line.split_once("Flags ")?.1.split(',').next().map(str::to_owned);
    let seen: Outcome = dump.wait_for_text(|text| {
        let seen: Outcome = text.lines().filter_map(flags).collect();
        (seen.iter().filter(|flags| flags.contains('F')).count() > 1).then_some(seen)
    });
    server.assert_running();
    // Whether data is in the packet that ends a direction is the kernel's affair.
    let seen = seen.iter().map(|flags| flags.replace('P', "")).collect::<Vec<_>>();
    vec![format!("right {}, packets {seen:?}", got == bytes)]
}

#[test]
fn tcpdump_shows_the_handshake() {
    if !is_root() {
        println!("only root can look at packets");
        return;
    }
    compare(&TCPDUMP, Sandbox::new, tcpdump);
}
