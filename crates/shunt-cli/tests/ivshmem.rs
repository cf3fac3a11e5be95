//! `shunt ivshmem-server` as a service manager and people see it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{IoSliceMut, fcntl_dupfd_cloexec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const EXE: &str = env!("CARGO_BIN_EXE_shunt");
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that is killed when this value goes.
struct Server(Child);

impl Server {
    fn ask_to_end(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
    }

    /// Sees that it ends in good order.
    fn wait(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ivshmem.sock");
    (dir, path)
}

fn shunt(path: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(EXE);
    command.args(["ivshmem-server", "--socket"]).arg(path).args(args);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn status(path: &Path, args: &[&str]) -> Output {
    let mut command = shunt(path, &["status"]);
    command.args(args).stderr(Stdio::piped()).output().unwrap()
}

fn until(path: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = status(path, &["--json"]);
        let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if wanted(&report) {
            return report;
        }
        assert!(Instant::now() < deadline, "{report}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The next so many numbers that a client is sent.
fn numbers<const N: usize>(client: &mut UnixStream) -> [i64; N] {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    [(); N].map(|()| {
        let mut bytes = [0; 8];
        client.read_exact(&mut bytes).unwrap();
        i64::from_le_bytes(bytes)
    })
}

#[test]
fn a_server_serves_says_so_and_ends() {
    let (dir, path) = place();
    let nobody = status(&path, &[]);
    let said = String::from_utf8_lossy(&nobody.stderr);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(said.starts_with("shunt: no ivshmem server is running at "), "{said}");

    let server = Server(shunt(&path, &["--size", "1M", "--vectors", "2"]).spawn().unwrap());
    let report = until(&path, |report| report["vectors"] == 2);
    assert_eq!((&report["size"], &report["huge_pages"]), (&(1 << 20).into(), &false.into()));
    let mut client = UnixStream::connect(&path).unwrap();
    assert_eq!(numbers(&mut client), [0, 0, -1, 0, 0]);
    let report = until(&path, |report| report["peers"][0]["queued"] == 0);
    assert_eq!(report["peers"][0]["pid"], std::process::id());
    assert_eq!(report["peers"][0]["bytes"], 40);
    let text = String::from_utf8(status(&path, &[]).stdout).unwrap();
    assert!(text.contains("peers     1 of at most "), "{text}");

    let second = shunt(&path, &[]).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("is in use by another server"), "{said}");

    let next = Server(shunt(&path, &["--take-over"]).spawn().unwrap());
    let pid = next.0.id();
    until(&path, |report| report["pid"] == pid);
    server.wait();
    let mut other = UnixStream::connect(&path).unwrap();
    assert_eq!(numbers(&mut other), [0, 1, -1, 0, 0, 1, 1]);
    assert_eq!(numbers(&mut client), [1, 1]);
    next.ask_to_end();
    next.wait();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Starts a server as systemd does, with descriptors from 3 on.
fn start_with(path: &Path, notify: &Path, passed: &[(String, OwnedFd)]) -> Server {
    let names: Vec<_> = passed.iter().map(|(name, _)| name.as_str()).collect();
    // Above all places where they are to be.
    let copies: Vec<_> =
        passed.iter().map(|(_, fd)| fcntl_dupfd_cloexec(fd, 100).unwrap()).collect();
    let mut command = Command::new("sh");
    command.args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh"]);
    command.args([EXE, "ivshmem-server", "--fd-store", "--vectors", "2", "--socket"]).arg(path);
    command.stdin(Stdio::null()).stderr(Stdio::null()).env("NOTIFY_SOCKET", notify);
    command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    let raw: Vec<_> = copies.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: the closure makes system calls alone.
    unsafe {
        command.pre_exec(move || {
            for (to, from) in (3..).zip(&raw) {
                if libc::dup2(*from, to) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Server(command.spawn().unwrap())
}

/// What a server tells the service manager up to `last`, and what it has it keep.
fn heard(socket: &UnixDatagram, last: &str) -> (Vec<String>, BTreeMap<String, OwnedFd>) {
    let (mut said, mut kept) = (Vec::new(), BTreeMap::new());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    while said.last().is_none_or(|text| text != last) {
        let mut bytes = [0; 1024];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let text = String::from_utf8(bytes[..got.bytes].to_vec()).unwrap();
        for part in control.drain() {
            let RecvAncillaryMessage::ScmRights(mut rights) = part else { continue };
            if let Some(name) = text.lines().find_map(|line| line.strip_prefix("FDNAME=")) {
                kept.insert(name.to_owned(), rights.next().unwrap());
            }
        }
        said.push(text);
    }
    (said, kept)
}

#[test]
fn a_service_manager_starts_it_and_keeps_its_clients_over_a_restart() {
    let (dir, path) = place();
    let notify = dir.path().join("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let socket = || ("x.socket".to_owned(), OwnedFd::from(listener.try_clone().unwrap()));

    let first = start_with(&path, &notify, &[socket()]);
    assert_eq!(heard(&manager, "READY=1").0, ["READY=1"]);
    let mut client = UnixStream::connect(&path).unwrap();
    assert_eq!(numbers(&mut client), [0, 0, -1, 0, 0]);
    first.ask_to_end();
    let (said, kept) = heard(&manager, "BARRIER=1");
    first.wait();
    assert_eq!(said[0], "STOPPING=1");
    assert_eq!(
        kept.keys().collect::<Vec<_>>(),
        ["bell.0.0", "bell.0.1", "memory", "peer.0", "state"]
    );

    // It connects while no server is there.
    let mut other = UnixStream::connect(&path).unwrap();
    let mut passed: Vec<_> = kept.into_iter().collect();
    passed.push(socket());
    let second = start_with(&path, &notify, &passed);
    let (said, _) = heard(&manager, "READY=1");
    for (name, _) in &passed[..5] {
        assert!(said.contains(&format!("FDSTOREREMOVE=1\nFDNAME={name}")), "{said:?}");
    }
    drop(passed);
    assert_eq!(numbers(&mut other), [0, 1, -1, 0, 0, 1, 1]);
    assert_eq!(numbers(&mut client), [1, 1]);
    drop(other);
    assert_eq!(numbers(&mut client), [1]);
    second.ask_to_end();
    let (_, kept) = heard(&manager, "BARRIER=1");
    second.wait();
    assert_eq!(kept.len(), 5, "one is gone");
    assert!(path.exists(), "the service manager's");
}
