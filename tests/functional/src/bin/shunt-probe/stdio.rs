//! Streams of stdio whose descriptors are, or were, connections.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use libc::{FILE, c_int};
use shunt_functional::sys;

use crate::probe::{Probe, address, listener, recv_soon, settle, try_recv};
use crate::processes::in_child;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    standard_output(p)?;
    standard_input(p)?;
    low_numbers(p)?;
    reopened(p)?;
    closed_streams(p)
}

unsafe extern "C" {
    static stdin: *mut FILE;
    static stdout: *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
}

/// An error for -1.
pub fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Closes a descriptor by its number.
pub fn close(fd: RawFd) {
    // SAFETY: the callers use it no more.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Puts a duplicate of a descriptor to a number.
pub fn put(fd: RawFd, number: RawFd) -> io::Result<RawFd> {
    // SAFETY: numbers.
    checked(unsafe { libc::dup2(fd, number) })
}

/// Does `body` in a child, and waits for it.
fn in_a_child(p: &Probe, what: &str, body: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let code = sys::wait_for(in_child(body)?)?;
    p.say(&format!("{what}: the child's end"), code);
    Ok(())
}

/// Prints by stdio, which does so with its first flush.
pub fn print(text: &CStr) {
    // SAFETY: the text and the stream are valid.
    unsafe {
        libc::fputs(text.as_ptr(), stdout);
        libc::fflush(stdout);
    }
}

/// All that comes until the end, as text.
pub fn all(fd: RawFd) -> io::Result<String> {
    let (mut text, mut part) = (Vec::new(), [0; 1000]);
    loop {
        match sys::read(fd, &mut part)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            n => text.extend_from_slice(&part[..n]),
        }
    }
}

fn standard_output(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    in_a_child(p, "printing", || {
        close(peer);
        sys::write(own, b"before, ")?;
        put(own, 1)?;
        print(c"by stdio, ");
        sys::write(own, b"by write, ")?;
        print(c"by stdio again, ");
        sys::write(1, b"and by number")?;
        Ok(())
    })?;
    drop(pair.client);
    p.say("what was printed", all(peer)?);
    Ok(())
}

fn line() -> String {
    let mut text = [0; 100];
    // SAFETY: the buffer is as long as said, the stream is valid.
    let got = unsafe { libc::fgets(text.as_mut_ptr(), 100, stdin) };
    if got.is_null() {
        return "(the end)".to_owned();
    }
    // SAFETY: fgets has ended it with a zero.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

fn standard_input(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.s(), pair.c());
    let (told, tell) = sys::pipe()?;
    let child = in_child(|| {
        put(own, 0)?;
        for _ in 0..3 {
            sys::write(tell.as_raw_fd(), line().replace('\n', "; ").as_bytes())?;
            sys::write(own, b"got")?;
        }
        Ok(())
    })?;
    drop(tell);
    for text in [&b"a line\n"[..], b"another line\n"] {
        sys::write(peer, text)?;
        p.result("an answer", recv_soon(peer, 10));
    }
    sys::shutdown(peer, libc::SHUT_WR)?;
    p.say("what was read", all(told.as_raw_fd())?);
    p.say("the child's end", sys::wait_for(child)?);
    p.result("the last answer", recv_soon(peer, 10));
    Ok(())
}

/// Connections that get the numbers of standard input and output.
fn low_numbers(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let to = address(&listener)?;
    let (ready, tell) = sys::pipe()?;
    let child = in_child(|| {
        close(0);
        let (accepted, _) = sys::accept(listener.as_raw_fd(), 0)?;
        close(1);
        let made = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        sys::connect(made.as_raw_fd(), to)?;
        if [accepted.as_raw_fd(), made.as_raw_fd()] != [0, 1] {
            return Err(io::Error::other("other numbers"));
        }
        sys::write(tell.as_raw_fd(), b"x")?;
        let text = line();
        sys::write(0, text.as_bytes())?;
        print(c"printed");
        mem::forget((accepted, made));
        Ok(())
    })?;
    let client = crate::probe::connect_to(&listener)?;
    sys::read(ready.as_raw_fd(), &mut [0])?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    sys::write(client.as_raw_fd(), b"a line\n")?;
    p.say("on number 0", all(client.as_raw_fd())?);
    p.say("on number 1", all(server.as_raw_fd())?);
    p.say("the child's end", sys::wait_for(child)?);
    Ok(())
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| e.to_string())
}

/// freopen(3) gives a connection's number to a file.
fn reopened(p: &Probe) -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("log");
    let path = CString::new(log.to_string_lossy().into_owned())?;
    type Reopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
    for (name, reopen, path) in [
        ("freopen", libc::freopen as Reopen, path.as_c_str()),
        ("freopen64", freopen64 as Reopen, path.as_c_str()),
        ("freopen of nothing", libc::freopen as Reopen, c"/nowhere/at/all"),
    ] {
        let pair = p.pair()?;
        let (own, peer) = (pair.c(), pair.s());
        in_a_child(p, name, || {
            close(peer);
            sys::write(own, b"before")?;
            put(own, 1)?;
            close(own);
            // SAFETY: C strings, and a stream that is open.
            let file = unsafe { reopen(path.as_ptr(), c"w".as_ptr(), stdout) };
            if !file.is_null() {
                sys::write(1, b"to the log\n")?;
                print(c"by stdio\n");
            }
            Ok(())
        })?;
        drop(pair.client);
        p.say("what the peer got", all(peer)?);
        p.say("what the log has", text_of(&log).replace('\n', "; "));
        let _ = std::fs::remove_file(&log);
    }
    // In this very process, whose table goes on.
    let pair = p.pair()?;
    let number = pair.c();
    // SAFETY: the stream takes the descriptor over, and is closed; C strings.
    unsafe {
        let file = libc::fdopen(pair.client.into_raw_fd(), c"w".as_ptr());
        libc::fputs(c"by fdopen".as_ptr(), file);
        libc::freopen(path.as_ptr(), c"w".as_ptr(), file);
        p.say("the number is the file's", libc::fileno(file) == number);
        p.result("write by number", sys::write(number, b"by number"));
        p.result("recv of it", try_recv(number, 10));
        libc::fclose(file);
    }
    p.say("what the peer got", all(pair.server.as_raw_fd())?);
    p.say("what the log has", text_of(&log));
    let next = p.pair()?;
    p.say("the number is used again", next.c() == number);
    sys::write(next.c(), b"another connection")?;
    settle();
    p.result("and carries bytes", try_recv(next.s(), 100));
    Ok(())
}

/// fclose(3) of streams that had their descriptors from the beginning.
fn closed_streams(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    let child = in_child(|| {
        close(peer);
        put(own, 0)?;
        close(own);
        sys::write(0, b"before")?;
        // SAFETY: an open stream.
        unsafe { libc::fclose(stdin) };
        let file = sys::memfd(c"inner")?;
        if file.as_raw_fd() != 0 {
            return Err(io::Error::other("another number"));
        }
        sys::write(0, b"to the file")?;
        // Until the other end has seen what there is to be seen.
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    })?;
    drop(pair.client);
    p.say("until fclose", all(peer)?);
    p.say("the child's end", sys::wait_for(child)?);
    Ok(())
}
