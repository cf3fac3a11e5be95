//! `shunt capture`: what it shows of real programs' connections is what went over them, as tshark reads it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Process, Sandbox};
use shunt_functional::servers;

const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that do not repeat.
fn content(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
    bytes
}

/// A capture that is under way.
fn capture(sandbox: &Sandbox, args: &[&str]) -> Process {
    let mut command = sandbox.plain(sandbox.shunt_path());
    command.arg("capture").args(args);
    let mut process = sandbox.spawn(command);
    let begun = Instant::now();
    while !process.describe().contains("capturing") {
        assert!(begun.elapsed() < PATIENCE, "{}", process.describe());
        process.assert_running();
        std::thread::sleep(Duration::from_millis(5));
    }
    process
}

/// Ends it as Ctrl-C does. Standard error says how much it was.
fn end(capture: Process) -> String {
    capture.signal(libc::SIGINT);
    capture.wait().success().stderr
}

/// What tshark says of a file.
fn tshark(file: &Path, args: &[&str]) -> String {
    let out = Command::new(program("tshark")).arg("-r").arg(file).args(args).output();
    let out = out.expect("tshark");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The bytes of both directions of the first connection.
fn followed(file: &Path) -> (Vec<u8>, Vec<u8>) {
    let text = tshark(file, &["-q", "-z", "follow,tcp,raw,0"]);
    let (mut client, mut server) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let (to, digits) = match line.strip_prefix('\t') {
            Some(digits) => (&mut server, digits),
            None => (&mut client, line),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            continue;
        }
        let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).expect("hexadecimal");
        to.extend((0..digits.len()).step_by(2).map(byte));
    }
    (client, server)
}

/// Nothing that TCP would not have carried, and nothing missing.
fn assert_flawless(file: &Path) {
    let flaws = "tcp.analysis.lost_segment || tcp.analysis.retransmission || tcp.analysis.out_of_order || \
                 tcp.analysis.ack_lost_segment || tcp.checksum.status == 0 || ip.checksum.status == 0";
    let checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
    assert_eq!(tshark(file, &[&checks[..], &["-Y", flaws]].concat()), "");
}

fn path(sandbox: &Sandbox, name: &str) -> (PathBuf, String) {
    let path = sandbox.path().join(name);
    let text = path.display().to_string();
    (path, text)
}

#[test]
fn http_is_decoded_and_its_bytes_are_those_that_came() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        // Both of them fit into a ring, so nothing is lost however slow the reader is.
        let (port, body) = (free_port(), content(1_500_000));
        // nginx sends it by sendfile(2).
        let _nginx = servers::nginx(&sandbox, port, 1, None, &[("body", &body)]);
        let url = format!("http://127.0.0.1:{port}/body");
        let try_it = |name: &str| {
            let (file, name) = path(&sandbox, name);
            let capture = capture(&sandbox, &["-w", &name, "program", "curl"]);
            let mut command = sandbox.command(program("curl"));
            command.args(["-sS", "-o", "first", &url, "-o", "second", &url]);
            let _done = sandbox.run(command);
            let said = end(capture);
            assert!(said.contains(" 0 sends of 0 bytes lost"), "{said}");
            for name in ["first", "second"] {
                assert!(
                    fs::read(sandbox.path().join(name)).expect("curl's") == body,
                    "{mode} {name}"
                );
            }
            let decode = format!("tcp.port=={port},http");
            let asked =
                ["-d", &decode, "-Y", "http.request", "-T", "fields", "-e", "http.request.uri"];
            let uris = tshark(&file, &asked);
            if uris.is_empty() {
                println!("nothing of curl: {said}{}", tshark(&file, &["-c", "20"]));
            }
            (file, uris)
        };
        // A capture now and then misses so short a program: docs/design/unfinished.md.
        let tries = ["out.pcapng", "again.pcapng", "once-more.pcapng"];
        let found = tries.into_iter().map(try_it).find(|(_, uris)| !uris.is_empty());
        let (file, uris) = found.expect("a capture with requests");
        assert_eq!(uris, "/body\n/body\n", "{mode}");
        let flags = tshark(&file, &["-T", "fields", "-e", "tcp.flags.str"]);
        for flags_of in ["S·", "A··S·", "F"] {
            assert!(flags.contains(flags_of), "{mode} {flags}");
        }
        assert_flawless(&file);
        let (request, response) = followed(&file);
        assert!(request.starts_with(b"GET /body HTTP/1.1\r\n"), "{mode}");
        let found = response.windows(64).filter(|w| *w == &body[..64]).count();
        assert!(found == 2 && response.ends_with(&body), "{mode}: the bytes differ");
        let comment =
            tshark(&file, &["-Y", "tcp.flags.syn == 1", "-T", "fields", "-e", "frame.comment"]);
        assert_eq!(comment.matches("made by shunt").count(), 2, "{mode} {comment}");
    }
}

#[test]
fn redis_is_decoded() {
    let sandbox = Sandbox::new(Mode::Attach);
    let port = free_port();
    let _redis = servers::redis(&sandbox, port);
    let (file, name) = path(&sandbox, "out.pcapng");
    let conditions = port.to_string();
    let capture = capture(&sandbox, &["-w", &name, "port", &conditions]);
    let lines = capture_lines(&sandbox, &conditions);
    let mut command = sandbox.command(program("redis-cli"));
    command.args(["-p", &conditions, "set", "a-key", "some-value"]);
    let _done = sandbox.run(command);
    end(capture);
    let decode = format!("tcp.port=={port},resp");
    let of = |field| tshark(&file, &["-d", &decode, "-Y", "resp", "-T", "fields", "-e", field]);
    let hex: String = b"some-value".iter().map(|b| format!("{b:02x}")).collect();
    assert!(of("resp.bulk_string.value").contains(&hex), "{}", of("resp.bulk_string.value"));
    assert!(of("resp.string").contains("OK"));
    assert_flawless(&file);
    // The same as lines.
    lines.signal(libc::SIGTERM);
    let lines = lines.wait().success().stdout;
    let packets = tshark(&file, &["-T", "fields", "-e", "frame.number"]).lines().count();
    assert_eq!(lines.lines().count(), packets, "{lines}");
    assert!(lines.contains(&format!("> 127.0.0.1.{port}: Flags [S], seq 0, length 0")), "{lines}");
}

fn capture_lines(sandbox: &Sandbox, port: &str) -> Process {
    capture(sandbox, &["dport", "=", port])
}

#[test]
fn tls_is_decoded() {
    let sandbox = Sandbox::new(Mode::Attach);
    let port = free_port();
    let mut command = sandbox.plain(program("openssl"));
    command
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert"]);
    command.args(["-days", "2", "-subj", "/CN=localhost"]);
    let _done = sandbox.run(command);
    let mut command = sandbox.command(program("openssl"));
    command.args([
        "s_server",
        "-accept",
        &format!("127.0.0.1:{port}"),
        "-cert",
        "cert",
        "-key",
        "key",
    ]);
    command.args(["-www", "-quiet"]);
    let _server = sandbox.serve(command, port);
    let (file, name) = path(&sandbox, "out.pcapng");
    let capture = capture(&sandbox, &["-w", &name, "program", "openssl"]);
    let mut command = sandbox.command(program("curl"));
    command.args(["-sSk", &format!("https://127.0.0.1:{port}/")]);
    let _done = sandbox.run(command);
    end(capture);
    let port = format!("tcp.port=={port},tls");
    let types = tshark(&file, &["-d", &port, "-T", "fields", "-e", "tls.handshake.type"]);
    assert!(
        types.lines().any(|l| l == "1") && types.lines().any(|l| l.starts_with('2')),
        "{types}"
    );
    assert_flawless(&file);
}

#[test]
fn a_slow_reader_loses_packets_and_holds_nobody_up() {
    let sandbox = Sandbox::new(Mode::Attach);
    let (port, body) = (free_port(), content(64 << 20));
    let _nginx = servers::nginx(&sandbox, port, 1, None, &[("body", &body)]);
    let (fifo, name) = path(&sandbox, "fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a fifo");
    // Whoever opens it waits for the other end, but not so.
    let mut reader = File::options().read(true).write(true).open(&fifo).expect("the fifo");
    let capture = capture(&sandbox, &["-w", &name]);
    let mut command = sandbox.command(program("curl"));
    command.args(["-sS", "-o", "copy", &format!("http://127.0.0.1:{port}/body")]);
    let _done = sandbox.run(command);
    assert!(fs::read(sandbox.path().join("copy")).expect("curl's") == body, "the bytes differ");
    // Now it reads.
    capture.signal(libc::SIGINT);
    let out = sandbox.path().join("out.pcapng");
    let mut to = File::create(&out).expect("a file");
    let drained = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let n = reader.read(&mut bytes).expect("the fifo");
            if bytes[..n].ends_with(b"end of the test") {
                return to;
            }
            std::io::Write::write_all(&mut to, &bytes[..n]).expect("the file");
        }
    });
    let said = capture.wait().success().stderr;
    fs::write(&fifo, "end of the test").expect("the fifo");
    drop(drained.join().expect("the thread"));
    let lost = said.split(" packets captured, ").nth(1).and_then(|rest| rest.split(' ').next());
    let lost: u64 = lost.and_then(|lost| lost.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    assert!(lost > 0, "{said}");
    // What came is whole packets, and the gap shows.
    let flaws =
        tshark(&out, &["-Y", "tcp.analysis.lost_segment", "-T", "fields", "-e", "frame.number"]);
    assert!(!flaws.is_empty(), "{said}");
}

#[test]
fn connections_that_were_there_are_seen_and_a_killed_capture_leaves_nothing() {
    let sandbox = Sandbox::new(Mode::Attach);
    let port = free_port();
    let script = "import socket, sys\n\
        l = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n\
        s = l.accept()[0]\n\
        while (got := s.recv(100)): s.sendall(got.upper())\n";
    let mut command = sandbox.command(program("python3"));
    command.args(["-c", script, &port.to_string()]);
    let _server = sandbox.serve(command, port);
    let client = "import socket, sys, os, time\n\
        s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        n = 0\n\
        while True:\n\
        \x20   s.sendall(b'message %d' % n); assert s.recv(100) == b'MESSAGE %d' % n\n\
        \x20   n += 1\n\
        \x20   if n % 20 == 0: print(n, flush=True)\n\
        \x20   time.sleep(0.001)\n";
    let mut command = sandbox.command(program("python3"));
    command.args(["-c", client, &port.to_string()]);
    let mut client = sandbox.spawn(command);
    let mut goes_on = || {
        let before = client.whole_lines().lines().count();
        client.wait_for_text(|text| (text.lines().count() > before + 1).then_some(()));
    };
    goes_on();
    // More of them than there are places.
    for _ in 0..6 {
        let mut capture = capture(&sandbox, &["port", &port.to_string()]);
        capture.wait_for_text(|text| text.contains("length 1").then_some(()));
        capture.kill();
        goes_on();
    }
    let (file, name) = path(&sandbox, "out.pcapng");
    let capture = capture(&sandbox, &["-w", &name, "-c", "200"]);
    let _done = capture.wait().success();
    assert_eq!(tshark(&file, &["-T", "fields", "-e", "frame.number"]).lines().count(), 200);
    let comments =
        tshark(&file, &["-Y", "tcp.flags.syn == 1", "-T", "fields", "-e", "frame.comment"]);
    assert_eq!(comments.matches("was there before").count(), 2, "{comments}");
    assert_flawless(&file);
    // The server may have been captured some messages before the client was.
    let (said, answered) = followed(&file);
    let said = said.to_ascii_uppercase();
    let begins = answered.windows(7).enumerate().filter(|(_, bytes)| *bytes == b"MESSAGE");
    let mut rests = begins.map(|(at, _)| &answered[at..]);
    let rest = rests.find(|rest| said.starts_with(rest));
    assert!(rest.is_some_and(|rest| rest.len() > 500), "{said:?} {answered:?}");
    // The agent ends: so does the capture, and the connection goes on.
    let capture = self::capture(&sandbox, &[]);
    sandbox.kill_agent();
    assert_eq!(capture.wait().status.code(), Some(1));
    goes_on();
}

#[test]
fn wireshark_is_answered() {
    let sandbox = Sandbox::new(Mode::Attach);
    let ask = |args: &[&str]| {
        let mut command = sandbox.plain(sandbox.shunt_path());
        command.arg("capture").args(args);
        sandbox.run(command).stdout
    };
    assert!(
        ask(&["--extcap-interfaces", "--extcap-version=4.0"]).contains("interface {value=shunt}")
    );
    let dlts = ask(&["--extcap-dlts", "--extcap-interface", "shunt"]);
    assert!(dlts.contains("dlt {number=101}"), "{dlts}");
    let config = ask(&["--extcap-config", "--extcap-interface", "shunt"]);
    assert!(config.contains("{call=--conditions}"), "{config}");
    let port = free_port();
    let _redis = servers::redis(&sandbox, port);
    let (fifo, name) = path(&sandbox, "fifo");
    let condition = format!("port {port}");
    let capture = capture(
        &sandbox,
        &[
            "--capture",
            "--extcap-interface",
            "shunt",
            "--conditions",
            &condition,
            "--fifo",
            &name,
            "-c",
            "8",
        ],
    );
    let mut command = sandbox.command(program("redis-cli"));
    command.args(["-p", &port.to_string(), "ping"]);
    let _done = sandbox.run(command);
    let _done = capture.wait().success();
    assert!(tshark(&fifo, &["-T", "fields", "-e", "tcp.len"]).contains("14"));
}
