//! Exec, spawn, system, popen.
//!
//! What stays open across it is handed over first: the new program may not run Shunt. What lies
//! unread goes along, in case that it does ([`crate::stream::leftover`]).

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::conn::{Conn, Sock};
use crate::contain::contain;
use crate::control::endpoint::Uncounted;
use crate::fds::fd_table::{self, Entry};
use crate::fds::owner;
use crate::memory::address_limit::AsAsked;
use crate::point;
use crate::processes::fork_sharing;
use crate::stream::hand_over;
use crate::stream::in_doubt;
use crate::stream::leftover::Program;
use crate::stream::leftover::pass::{self, Passed};
use crate::stream::tcp;
use crate::system::errno::KeepErrno;

/// Becomes another program, by `exec`, which comes back where it fails.
///
/// # Safety
/// The program is what execve(2) wants.
pub unsafe fn become_program(program: &Program, exec: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let _passed = unsafe { before_program(program) };
    // SAFETY: the caller's promise.
    let _closed = unsafe { ClosedByExec::by(program) };
    let _limited = AsAsked::begin();
    let _uncounted = uncounted();
    exec()
}

/// Runs a program in a child, by `start`.
///
/// # Safety
/// The program is what execve(2) wants.
pub unsafe fn run_program<T>(program: &Program, start: impl FnOnce() -> T) -> T {
    // SAFETY: the caller's promise.
    let _passed = unsafe { before_program(program) };
    uncounted().has_started();
    start()
}

/// Spawns a program with the actions at this address, if any, by `spawn`.
///
/// # Safety
/// The program is what execve(2) wants.
pub unsafe fn spawn_program(
    program: &Program,
    actions: usize,
    spawn: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let _passed = unsafe { before_spawn(program, actions) };
    let uncounted = uncounted();
    let result = spawn();
    if result == 0 {
        uncounted.has_started();
    }
    result
}

/// What `shunt run --summary` is to say of a program that starts now.
fn uncounted() -> Uncounted {
    let _keep = KeepErrno::new();
    Uncounted::begin()
}

/// A spawn with the actions at this address will duplicate `fd`. They are opaque, so what it will duplicate is handed over
/// when that is ordered: `fd` itself may be close-on-exec, its duplicate is not.
pub fn will_duplicate(actions: usize, fd: c_int) {
    let entry = fd_table::lookup(fd);
    if entry.is_object() {
        let _keep = KeepErrno::new();
        hand_over::hand_over(fd, entry);
        if let Some(sock) = Sock::of(entry) {
            sock.spawned.store(actions, Ordering::Relaxed);
        }
    }
}

/// Connections of which the exec will close every descriptor, while it is tried: where a relative
/// holds one, too, this process no longer counts. Taken back when the exec fails. Of the others the exec is the end, which can
/// be announced neither before, as it may fail, nor after: they go back to TCP, where the kernel says it.
struct ClosedByExec {
    shared: Vec<&'static Sock>,
    /// With bytes that nobody has read: what `SO_LINGER` was.
    unread: Vec<(c_int, Option<Duration>)>,
}

impl ClosedByExec {
    /// # Safety
    /// The program is what execve(2) wants.
    unsafe fn by(program: &Program) -> Self {
        let mut closed = Self { shared: Vec::new(), unread: Vec::new() };
        if !owner::owns_process_state() {
            return closed;
        }
        let _keep = KeepErrno::new();
        let mut socks = BTreeMap::new();
        for (fd, entry) in fd_table::of_program() {
            if let Some(sock) = Sock::of(entry) {
                let place = socks.entry(ptr::from_ref(sock)).or_insert((sock, (fd, entry), false));
                place.2 |= pass::survives(fd);
            }
        }
        for (sock, (fd, entry), _) in socks.into_values().filter(|(.., stays)| !stays) {
            if fork_sharing::let_go_if_shared(sock) {
                closed.shared.push(sock);
            // SAFETY: the caller's promise.
            } else if !unsafe { program.is_missing() } {
                closed.is_last(fd, entry);
            }
        }
        fork_sharing::leave();
        closed
    }

    /// No other process has the connection.
    fn is_last(&mut self, fd: c_int, entry: Entry) {
        let leaves_unread = Conn::of(fd, entry).is_some_and(|conn| {
            let _lock = conn.lock_rx();
            conn.end().is_some_and(|end| end.leaves_unread())
        });
        hand_over::hand_over(fd, entry);
        // The peer may send them once more only behind the exec.
        if leaves_unread {
            self.unread.push((fd, tcp::linger(fd)));
            tcp::reset_on_close(fd);
        }
    }
}

impl Drop for ClosedByExec {
    fn drop(&mut self) {
        let _keep = KeepErrno::new();
        for (fd, linger) in &self.unread {
            tcp::set_linger(*fd, *linger);
        }
        for sock in &self.shared {
            let again = || {
                point!(exec_failed);
                fork_sharing::hold_again(sock);
            };
            if !contain(again) {
                in_doubt::reset(Conn::gone(sock));
            }
        }
    }
}

/// Hands over every connection that stays open across an exec. If the exec then fails they go on
/// where they were handed to.
fn before_exec() {
    let _keep = KeepErrno::new();
    for (fd, entry) in fd_table::of_program() {
        if entry.is_object() && pass::survives(fd) {
            hand_over::hand_over(fd, entry);
        }
    }
}

/// The same, and what lies unread goes along, as long as the result is kept.
///
/// # Safety
/// The program is what execve(2) wants.
unsafe fn before_program(program: &Program) -> Passed {
    let hand_over = || {
        before_exec();
        // SAFETY: the caller's promise.
        unsafe { pass::pass(program, |_| false) }
    };
    hand_over::until_none_comes_back(hand_over, has_one_come_back)
}

/// This program reads on in the ring of one that it has handed over.
fn has_one_come_back() -> bool {
    let mut all = fd_table::of_program();
    all.any(|(_, entry)| Sock::of(entry).is_some_and(hand_over::has_come_back))
}

/// The same for a spawn with these actions, which may duplicate what exec would close.
///
/// # Safety
/// As for [`before_program`].
unsafe fn before_spawn(program: &Program, actions: usize) -> Passed {
    let is_named = |sock: &Sock| actions != 0 && sock.spawned.load(Ordering::Relaxed) == actions;
    let hand_over = || {
        before_exec();
        for (fd, entry) in fd_table::of_program() {
            if Sock::of(entry).is_some_and(is_named) {
                let _keep = KeepErrno::new();
                hand_over::hand_over(fd, entry);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { pass::pass(program, is_named) }
    };
    hand_over::until_none_comes_back(hand_over, has_one_come_back)
}

/// Has a shell run a command (system(3), popen(3)). Without one system(3) only asks whether there is a shell.
pub fn run_shell<T>(has_command: bool, start: impl FnOnce() -> T) -> T {
    if !has_command {
        return start();
    }
    // SAFETY: a shell, with this program's environment.
    unsafe { run_program(&Program::sought(ptr::null()), start) }
}

/// Before wordexp(3), which has a shell run the commands in its words.
///
/// # Safety
/// `words` is null or a C string.
pub unsafe fn before_words(words: *const c_char, flags: c_int) {
    const NOCMD: c_int = 1 << 2;
    // SAFETY: the caller's promise.
    let text = || unsafe { CStr::from_ptr(words) }.to_bytes();
    if flags & NOCMD == 0 && !words.is_null() && run_commands(text()) {
        before_exec();
    }
}

/// Whether these words of a shell run a command.
fn run_commands(words: &[u8]) -> bool {
    words.contains(&b'`') || words.windows(2).any(|pair| pair == b"$(")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_run_commands_by_backquotes_and_brackets() {
        assert!(run_commands(b"a `date`") && run_commands(b"$(date)"));
        for harmless in [&b"a b"[..], b"$HOME", b"$ (", b"(", b"$", b""] {
            assert!(!run_commands(harmless));
        }
    }
}
