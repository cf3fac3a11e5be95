//! A handler of a signal reads a connection while its program hands it over to one that it starts: that one has what comes behind.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use shunt_functional::sys::{self, points};

use crate::steps::{Ends, send};
use crate::watch;

const SIGNAL: i32 = libc::SIGUSR2;
/// What lies unread, and what comes when the other program runs.
const UNREAD: &[u8] = b"0123456789";
const TAIL: &[u8] = b"tail";
/// Most bytes of a read in the handler.
const READ: usize = 4;

/// The connection that the handler reads; -1: none.
static CURRENT: AtomicI32 = AtomicI32::new(-1);
/// Where the handler says what it has read: how many bytes, and these.
static SAYS: AtomicI32 = AtomicI32::new(-1);

/// It reads what is about to be another program's.
extern "C" fn reads(_: libc::c_int) {
    let _keep = sys::KeepErrno::now();
    let mut said = [0; 1 + READ];
    let n = sys::recv(CURRENT.load(Ordering::Relaxed), &mut said[1..], libc::MSG_DONTWAIT, false)
        .unwrap_or(0);
    said[0] = u8::try_from(n).unwrap_or(u8::MAX);
    // A pipe with room.
    let _ = sys::write(SAYS.load(Ordering::Relaxed), &said[..=n]);
}

/// The handler runs once at this point.
fn interrupted_at(ends: &Ends, point: &str) -> io::Result<()> {
    watch::begin(&format!("a hand-over interrupted at {point}"));
    let (client, server) = ends.pair()?;
    send(client.as_raw_fd(), UNREAD)?;
    let (heard, says) = sys::pipe()?;
    SAYS.store(says.as_raw_fd(), Ordering::Relaxed);
    // Not its standard input, which is handed over more than once.
    let read = sys::dup(server.as_raw_fd())?;
    CURRENT.store(read.as_raw_fd(), Ordering::Relaxed);
    drop(server);
    let mut cat = Command::new("sh");
    let script = format!("exec cat <&{}", read.as_raw_fd());
    cat.args(["-c", &script]).env_remove("LD_PRELOAD").stdout(Stdio::piped());
    points::plan(&format!("{point}=signal:{SIGNAL}@1"));
    let mut cat = cat.spawn()?;
    points::plan("");
    drop(says);
    send(client.as_raw_fd(), TAIL)?;
    sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
    let mut said = Vec::new();
    std::fs::File::from(heard).read_to_end(&mut said)?;
    let Some((n, taken)) = said.split_first() else {
        return Err(io::Error::other("the handler has not run"));
    };
    let mut all = taken.to_vec();
    if let Some(mut out) = cat.stdout.take() {
        out.read_to_end(&mut all)?;
    }
    cat.wait()?;
    if all != [UNREAD, TAIL].concat() {
        let all = String::from_utf8_lossy(&all);
        return Err(io::Error::other(format!("{n} bytes, then what follows: {all:?}")));
    }
    // The end alone is left for this one.
    let left = sys::recv(read.as_raw_fd(), &mut [0; 100], libc::MSG_DONTWAIT, false)?;
    if left != 0 {
        return Err(io::Error::other(format!("{left} bytes come once more")));
    }
    println!("{point}: {n}");
    Ok(())
}

/// At each point of a hand-over.
pub fn all() -> io::Result<bool> {
    sys::on_signal(SIGNAL, reads)?;
    let ends = Ends::new()?;
    let mut is_right = true;
    for point in ["exec.hands_over", "leave.frozen", "leave.said", "leave.marked", "exec.passes"] {
        if let Err(e) = interrupted_at(&ends, point) {
            is_right = false;
            eprintln!("a hand-over interrupted at {point}: {e}");
        }
    }
    Ok(is_right)
}
