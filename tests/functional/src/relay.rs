//! Stands between the agents of two hosts, and does something to one of them, or to their connection, just before a certain message.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::sandbox::{Process, Sandbox};

/// The agent of machine n is reached at this port and n, in the first machine's network.
pub const RELAYED: u16 = 7700;

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strikes {
    /// This process is killed.
    Kill(i32),
    /// The agents' connection is reset.
    Drop,
    /// Nothing arrives by RDMA any more.
    Cut,
    /// The agents do not hear each other for so long.
    Hush(Duration),
}

/// A relay. It ends with this value.
pub struct Relay {
    process: Process,
    place: PathBuf,
}

/// Counts the packets of both directions from when there is a file `strike`, which says before which of them to do what. What only says
/// that a side is there has 25 bytes and counts for nothing. A preamble is as long as 16 bytes.
const SCRIPT: &str = r#"
import os, signal, socket, struct, sys, threading, time
place, base = sys.argv[1], int(sys.argv[2])
lock, state = threading.Lock(), {"count": 0, "done": False, "hushed": 0}
pairs = []
def lose(*_):
    for one in pairs:
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
signal.signal(signal.SIGUSR1, lose)
def strike():
    with lock:
        if state["done"] or not os.path.exists(place + "/strike"):
            return
        at, how, what = open(place + "/strike").read().split(" ", 2)
        state["count"] += 1
        if state["count"] != int(at):
            return
        state["done"] = True
    if how == "kill":
        os.kill(int(what), signal.SIGKILL)
    elif how == "cut":
        open(what, "w").close()
    elif how == "hush":
        state["hushed"] = time.monotonic() + int(what)
    else:
        lose()
    open(place + "/struck", "w").close()
def whole(conn, n):
    data = b""
    while len(data) < n:
        piece = conn.recv(n - len(data))
        if not piece:
            raise OSError
        data += piece
    return data
def carry(one, two):
    try:
        two.sendall(whole(one, 16))
        while True:
            head = whole(one, 2)
            data = whole(one, int.from_bytes(head, "big"))
            if len(data) != 25:
                strike()
            time.sleep(max(0, state["hushed"] - time.monotonic()))
            two.sendall(head + data)
    except OSError:
        pass
    for conn in (one, two):
        try:
            conn.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(machine):
    listener = socket.create_server(("10.77.0.1", base + machine))
    print("ready", flush=True)
    while True:
        one = listener.accept()[0]
        try:
            two = socket.create_connection((f"10.77.0.{machine}", 7609))
        except OSError:
            one.close()
            continue
        pairs.extend((one, two))
        for conn in (one, two):
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((one, two), (two, one)):
            threading.Thread(target=carry, args=ends, daemon=True).start()
threading.Thread(target=serve, args=(2,), daemon=True).start()
serve(1)
"#;

impl Relay {
    /// Starts one in the network of a process.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub(crate) fn start(sandbox: &Sandbox, mut command: Command) -> Self {
        let place = sandbox.path().to_owned();
        command.args(["python3", "-c", SCRIPT]).arg(&place).arg(RELAYED.to_string());
        let mut process = sandbox.spawn(command);
        process.wait_for_text(|text| (text.matches("ready").count() == 2).then_some(()));
        Self { process, place }
    }

    /// Has something happen before the message of this number from now on, counted from 1.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn strike_at(&self, message: usize, what: Strikes, cut: &Path) {
        let what = match what {
            Strikes::Kill(pid) => format!("kill {pid}"),
            Strikes::Drop => "drop it".to_owned(),
            Strikes::Cut => format!("cut {}", cut.display()),
            Strikes::Hush(time) => format!("hush {}", time.as_secs()),
        };
        let file = self.place.join("strike.new");
        fs::write(&file, format!("{message} {what}")).expect("a file");
        fs::rename(file, self.place.join("strike")).expect("a file");
    }

    /// The agents lose each other now.
    pub fn lose(&self) {
        self.process.signal(libc::SIGUSR1);
    }

    /// True when it has happened.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.place.join("struck").exists()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.process.terminate(libc::SIGTERM);
    }
}
