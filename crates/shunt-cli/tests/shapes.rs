//! The servers of all shapes that `shunt bench` has, and their client, over plain TCP: right
//! answers, and nothing is left running.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use shunt_bench::load::Seen;
use shunt_bench::load::shapes::Shape;
use shunt_bench::rig::ports::{free_port, is_listening};

/// Far more than any of this takes.
const PATIENCE: Duration = Duration::from_secs(60);

const CONNECTIONS: &str = "13";

/// A server, which ends with this value.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    fn start(shape: Shape, args: &[&str]) -> Self {
        let at = SocketAddr::from(([127, 0, 0, 1], free_port().expect("a port")));
        let mut command = load();
        command.args(["serve-shape", "--at", &at.to_string(), "--shape", shape.name()]);
        let child = command.args(args).spawn().expect("a server");
        let server = Self { child, at };
        let pid = i32::try_from(server.child.id()).expect("a pid");
        wait_for(|| is_listening(pid, at.port()));
        server
    }

    /// Processes that it has forked.
    fn children(&self) -> Vec<u32> {
        let pid = self.child.id();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let text = text.expect("the kernel tells children");
        text.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.at).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn load() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shunt"));
    command.arg("load").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn wait_for(is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// True for a process that runs; the ended ones whose parent is gone may wait for init.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| {
        let state = rest.split_whitespace().next();
        state.is_some_and(|state| !["Z", "X"].contains(&state))
    })
}

fn drive(server: &Server, args: &[&str]) -> Output {
    let mut command = load();
    command.args(["drive", "--to", &server.at.to_string(), "--seconds", "0.1"]).args(args);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("a client");
    let until = Instant::now() + PATIENCE;
    while child.try_wait().expect("a status").is_none() {
        if Instant::now() > until {
            let _ended = child.kill();
            panic!("the client hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}

fn seen(output: &Output) -> Seen {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).expect("figures")
}

#[test]
fn all_shapes_serve_many_connections() {
    for shape in Shape::ALL {
        let sizes = ["--request", "64", "--response", "3000"];
        let few = [&sizes[..], &["--connections", CONNECTIONS]].concat();
        let mut server = Server::start(shape, &[&few[..], &["--work", "100"]].concat());
        // One client after the other: the ends of connections are no reason to end.
        for _ in 0..2 {
            let seen = seen(&drive(&server, &[&few[..], &["--threads", "3"]].concat()));
            assert!(seen.operations >= 13, "{shape}: {seen:?}");
            assert_eq!(seen.bytes, seen.operations * 3064, "{shape}");
            assert!(seen.latency.iter().any(|point| point.q == 0.999), "{shape}");
        }
        assert!(server.child.try_wait().expect("a status").is_none(), "{shape} has ended");
        wait_for(|| server.children().is_empty());
    }
}

#[test]
fn all_shapes_take_requests_in_pieces() {
    for shape in Shape::ALL {
        let server = Server::start(shape, &["--request", "20", "--response", "9"]);
        // One that gives up within its request, and one that ends at once.
        let mut broken = server.connect();
        broken.write_all(&[1; 5]).expect("a piece");
        drop(broken);
        drop(server.connect());
        let mut socket = server.connect();
        socket.set_nodelay(true).expect("no delay");
        for number in [0, 41, u64::MAX] {
            let request = [&number.to_be_bytes()[..], &[b'x'; 12]].concat();
            for piece in request.chunks(7) {
                socket.write_all(piece).expect("a piece");
                std::thread::sleep(Duration::from_millis(2));
            }
            let mut answer = [0; 9];
            socket.read_exact(&mut answer).expect("an answer");
            let (number_after, filling) = answer.split_at(8);
            assert_eq!(number_after, number.wrapping_add(1).to_be_bytes(), "{shape}");
            assert_eq!(filling, b"y", "{shape}");
        }
        // All that was sent is taken before the end is.
        let request = [&5_u64.to_be_bytes()[..], &[b'x'; 12]].concat();
        socket.write_all(&[&request[..], &request].concat()).expect("two requests");
        socket.shutdown(std::net::Shutdown::Write).expect("an end");
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).expect("the rest");
        assert_eq!(rest, [&6_u64.to_be_bytes()[..], b"y"].concat().repeat(2), "{shape}");
    }
}

#[test]
fn processes_end_with_their_server() {
    let server = Server::start(Shape::Process, &[]);
    let sockets: Vec<_> = (0..3).map(|_| server.connect()).collect();
    wait_for(|| server.children().len() == sockets.len());
    let children = server.children();
    assert!(children.iter().all(|pid| runs(*pid)));
    drop(server);
    wait_for(|| !children.iter().any(|pid| runs(*pid)));
    for mut socket in sockets {
        assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
    }
}

#[test]
fn what_served_is_there_until_its_costs_are_known() {
    const FULL: usize = 65_536;
    let server = Server::start(Shape::Process, &[]);
    // The client cannot print, and so not stop, until the pipe is emptied. If it let go of
    // anything before, it would have time to.
    let (mut output, mut full) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&full, FULL).expect("its size");
    full.write_all(&vec![b' '; FULL]).expect("it is filled");
    let mut command = load();
    command.args(["--stops", "drive", "--to", &server.at.to_string(), "--connections", "3"]);
    command.args(["--seconds", "0.05"]).stdout(full);
    let mut client = command.spawn().expect("a client");
    drop(command);
    let pid = i32::try_from(client.id()).expect("a pid");
    let group = rustix::process::Pid::from_raw(pid).expect("a pid");
    let go_on = || rustix::process::kill_process(group, rustix::process::Signal::CONT);
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    wait_for(is_stopped);
    let children = server.children();
    assert_eq!(children.len(), 3);
    go_on().expect("it goes on");
    std::thread::sleep(Duration::from_millis(400));
    output.read_exact(&mut vec![0; FULL]).expect("what was in the pipe");
    wait_for(is_stopped);
    assert_eq!(server.children(), children);
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").count();
    assert_eq!(threads, 3, "the client's two, and the first");
    go_on().expect("it goes on");
    assert!(client.wait().expect("its end").success());
    wait_for(|| server.children().is_empty());
}

#[test]
fn a_client_complains_of_wrong_answers() {
    // It is told to expect fewer bytes than come: the next answer begins within this one.
    let server = Server::start(Shape::Poll, &["--response", "24"]);
    let output = drive(&server, &["--response", "16", "--connections", "2"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && complaint.contains("wrong answer"), "{complaint}");

    let gone = server.at;
    drop(server);
    let mut command = load();
    command.args(["drive", "--to", &gone.to_string(), "--seconds", "0.1"]);
    let output = command.stderr(Stdio::null()).output().expect("a client");
    assert_eq!(output.status.code(), Some(1));
}
