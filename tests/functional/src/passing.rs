//! A program that passes the agent what blocks whoever closes it, and others beside it.

use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::SocketAddrUnix;
use serde_json::Value;
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_MESSAGE, Request, encode};

use crate::generator::{Server, records, start_client};
use crate::record::compare;
use crate::sandbox::{Expect, Process, Sandbox};

/// Runs `intruder`, a command line of `shunt-intruder pass` to which `--go` is still to be added. While the agent stands still
/// it passes all that it has, and lets go of it: so that the agent's are the last descriptors of each. Then others go on.
///
/// # Panics
/// When they do not.
pub fn others_are_served(sandbox: &Sandbox, mut intruder: Command) -> Process {
    let go = sandbox.path().join("go");
    let _gone = fs::remove_file(&go);
    intruder.arg("--go").arg(&go);
    let mut intruder = sandbox.spawn(intruder);
    intruder.wait_for_line(|line| line.starts_with("ready").then_some(()));
    sandbox.signal_agent(libc::SIGSTOP);
    fs::write(&go, "").expect("a file");
    let passed = intruder.wait_for_line(|line| line.strip_prefix("passed\t")?.parse::<u64>().ok());
    sandbox.signal_agent(libc::SIGCONT);
    assert!(passed > 1000, "only {passed} descriptors were passed");
    let mut longest = Duration::ZERO;
    for round in 1..=4 {
        let seed = round.to_string();
        let args = ["-n", "8", "-b", "300000", "--style", "epoll-lt", "--seed", &seed];
        // Nearly all: one that ends early is not shunted, whatever the agent does.
        sandbox.expect(Expect::Percent(75), || {
            let server = Server::start(sandbox, true, &args);
            let to = ([127, 0, 0, 1], server.port).into();
            let clients = records(start_client(sandbox, true, to, &args));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
        for _ in 0..20 {
            let asked = Instant::now();
            let status = status(sandbox);
            longest = longest.max(asked.elapsed());
            assert!(status["inspectors_stuck"].as_u64() <= Some(2), "of one process: {status}");
        }
    }
    println!("{passed} descriptors were passed; a status took {longest:?} at the most");
    intruder.assert_running();
    intruder
}

/// What the agent has to say once it has been patient for long enough.
///
/// # Panics
/// When it does not say it.
pub fn it_is_dropped_with_a_reason(sandbox: &Sandbox) {
    let started = Instant::now();
    loop {
        let status = status(sandbox);
        let rejected = &status["rejected"];
        if rejected["what it has passed is not let go of"].as_u64() > Some(0) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long an agent may take that others keep from nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// The agent's own state.
///
/// # Panics
/// When it does not say.
pub fn status(sandbox: &Sandbox) -> Value {
    ask(sandbox).unwrap_or_else(|e| panic!("the agent does not answer: {e}"))
}

fn ask(sandbox: &Sandbox) -> io::Result<Value> {
    let address = SocketAddrUnix::new(sandbox.run_dir().join("agent.sock"))?;
    let agent = seqpacket::connect_within(&address, PATIENCE)?;
    let (mut buf, mut fds) = ([0; MAX_MESSAGE], Fds::new());
    for request in [Request::Tool { version: PROTOCOL_VERSION }, Request::Status] {
        let packet = encode(&request, &mut buf).map_err(io::Error::other)?;
        seqpacket::send(&agent, packet, &[], PATIENCE)?;
        if seqpacket::recv(&agent, &mut buf, &mut fds, PATIENCE)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let report = fds.take().ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut report = fs::File::from(report);
    report.seek(SeekFrom::Start(0))?;
    Ok(serde_json::from_reader(report)?)
}
