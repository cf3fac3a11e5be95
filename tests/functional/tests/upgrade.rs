//! Libraries and commands that meet an agent of another version: one that is played here, by the bytes that it sends.

use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::net::{SocketAddrUnix, accept, bind, listen};
use shunt_functional::binaries::{built, program};
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket;
use shunt_wire::version::SPOKEN;

const PATIENCE: Duration = Duration::from_secs(10);
/// `Refused { version-mismatch }` and `Done`, as agents of versions 6 to 8 encode them.
const REFUSED: [u8; 2] = [7, 3];
const DONE: [u8; 1] = [1];

/// What clients have said: the kind of the first message, 0 for libraries and 1 for tools, and the version.
type Heard = Arc<Mutex<Vec<[u8; 2]>>>;

/// An agent that speaks one version with tools, and with libraries none.
fn play(dir: &Path, version: u32) -> Heard {
    DirBuilder::new().mode(0o700).create(dir).unwrap();
    let socket = seqpacket::socket().unwrap();
    bind(&socket, &SocketAddrUnix::new(dir.join("agent.sock")).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    ioctl_fionbio(&socket, false).unwrap();
    let heard = Heard::default();
    let hears = Arc::clone(&heard);
    thread::spawn(move || {
        while let Ok(client) = accept(&socket) {
            answer(&client, version, &hears);
        }
    });
    heard
}

fn answer(client: &OwnedFd, version: u32, heard: &Heard) {
    let mut packet = [0; 1024];
    let len = seqpacket::recv(client, &mut packet, &mut Fds::new(), PATIENCE);
    if len.is_ok_and(|len| len >= 2) {
        heard.lock().unwrap().push([packet[0], packet[1]]);
        let is_spoken = packet[0] == 1 && u32::from(packet[1]) == version;
        let said = if is_spoken { &DONE[..] } else { &REFUSED };
        let _left = seqpacket::send(client, said, &[], PATIENCE);
    }
}

fn said_by(heard: &Heard, kind: u8) -> Vec<u32> {
    let all = heard.lock().unwrap();
    all.iter().filter(|[is, _]| *is == kind).map(|[_, version]| u32::from(*version)).collect()
}

/// One answer over HTTP, at a port.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _request = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nit works").unwrap();
    });
    port
}

#[test]
fn a_library_asks_in_older_versions_and_stays_on_tcp() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let heard = play(&dir, SPOKEN.start() - 1);
    let mut curl = Command::new(program("curl"));
    curl.env("LD_PRELOAD", built("libshunt.so")).env("SHUNT_RUN_DIR", &dir);
    curl.env("SHUNT_AGENT_TIMEOUT", "10000").arg("-sS");
    let output = curl.arg(format!("http://127.0.0.1:{}/", serve())).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it works", "{output:?}");
    let versions = said_by(&heard, 0);
    assert!(versions.starts_with(&SPOKEN.rev().collect::<Vec<_>>()), "{versions:?}");
}

#[test]
fn a_command_says_which_side_is_the_older_one() {
    for (version, says) in [
        (SPOKEN.start() - 1, "the agent is the older one"),
        (SPOKEN.end() + 1, "this command is the older one"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        let heard = play(&dir, version);
        let mut shunt = Command::new(built("shunt"));
        let output = shunt.arg("list").env("SHUNT_RUN_DIR", &dir).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let theirs = format!("speaks version {version} of the protocol");
        assert!(said.contains(&theirs) && said.contains(says), "{said}");
        assert!(said_by(&heard, 1).starts_with(&SPOKEN.rev().collect::<Vec<_>>()));
    }
}
