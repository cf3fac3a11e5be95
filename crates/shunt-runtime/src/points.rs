//! Places in calls at which a test stops, interrupts or ends a thread.
//!
//! Only a library that is built with the feature `points` has them (`make points`): in the product `point!`
//! expands to nothing, and this module holds no more than the list. A test says what happens where by `SHUNT_POINTS`, or, as the
//! program goes, by `shunt_points`, a function that such a library exports:
//!
//! ```text
//! send.copied=panic@3,recv.taken=hold:/tmp/x/here@1,sleep.armed=signal:10
//! ```
//!
//! * `panic` panics.
//! * `hold:PATH` makes the file `PATH.there`, and waits until there is a file `PATH`.
//! * `signal:N` sends the thread a signal.
//! * `cancel` cancels the thread.
//! * `kill` kills the process, `exit` ends it by `_exit`.
//!
//! `@N`: at the Nth pass alone; `%N`: at each Nth pass; else at each.

/// Calls the macro `$then` with the list of points: name in the code, name in a test, and where it is.
macro_rules! for_each_point {
    ($then:ident) => {
        $then! {
            /// An end looks for the proposal or its answer, with the lock of the handshake.
            promote_locked = "promote.locked";
            /// An acceptor has the region, and has not taken the proposal yet.
            promote_attached = "promote.attached";
            /// It has taken the proposal out of the table.
            promote_taken = "promote.taken";
            /// The connection has its place in the link group; the client does not know yet.
            promote_settled = "promote.settled";
            /// The client knows; the acceptor's end is not active yet.
            promote_answered = "promote.answered";
            /// The client has the acceptor's doorbells, and has not said so.
            promote_acquainted = "promote.acquainted";
            /// It has said so; its own end is not active yet.
            promote_met = "promote.met";
            /// The client is about to take its proposal back.
            promote_withdraws = "promote.withdraws";
            /// It has taken the entry out of the table.
            promote_withdrawn = "promote.withdrawn";

            /// A receiving call begins.
            recv_begins = "recv.begins";
            /// It has the direction's lock.
            recv_locked = "recv.locked";
            /// It has copied bytes out of the ring; the cursor has not passed them.
            recv_copied = "recv.copied";
            /// The cursor has passed them.
            recv_taken = "recv.taken";
            /// It has told the sender of room.
            recv_told = "recv.told";
            /// It has read bytes from the kernel socket.
            recv_read = "recv.read";
            /// It has passed a mark.
            recv_passed = "recv.passed";
            /// A step is over, and the call is not.
            recv_between = "recv.between";

            /// A sending call begins.
            send_begins = "send.begins";
            /// It has the direction's lock.
            send_locked = "send.locked";
            /// It has reserved a place in the ring.
            send_reserved = "send.reserved";
            /// It has copied bytes there.
            send_copied = "send.copied";
            /// The receiver can see them.
            send_published = "send.published";
            /// It has told the receiver.
            send_told = "send.told";
            /// The kernel socket has taken bytes.
            send_written = "send.written";
            /// A step is over, and the call is not.
            send_between = "send.between";
            /// The sender has set a mark, and not noted it itself.
            mark_set = "mark.set";

            /// A side that leaves the ring takes nothing from it any more.
            leave_frozen = "leave.frozen";
            /// It has marked the end of what it sends there.
            leave_marked = "leave.marked";
            /// It has said so.
            leave_said = "leave.said";
            /// A side that follows has the lock.
            follow_locked = "follow.locked";
            /// It has set its mark, and not noted what it sends once more.
            follow_marked = "follow.marked";
            /// It has noted it.
            follow_noted = "follow.noted";
            /// It has sent a piece once more, and noted that.
            flush_sent = "flush.sent";

            /// A waiter has armed its wake-up, and not looked again.
            sleep_armed = "sleep.armed";
            /// It has looked again.
            sleep_begins = "sleep.begins";
            /// It was woken.
            sleep_woken = "sleep.woken";

            /// poll(2) begins.
            poll_begins = "poll.begins";
            /// It has looked once.
            poll_looked = "poll.looked";
            /// It holds its connections.
            poll_held = "poll.held";
            /// It is about to sleep in the kernel, as it has found nothing with its wake-up armed.
            poll_found_nothing = "poll.found-nothing";
            /// It has armed its wake-up.
            poll_armed = "poll.armed";
            /// It was woken.
            poll_woken = "poll.woken";

            /// epoll_wait(2) begins.
            epoll_begins = "epoll.begins";
            /// It is about to look at what is ready, with the lock.
            epoll_looks = "epoll.looks";
            /// It has found no room in a connection.
            epoll_found_no_room = "epoll.found-no-room";
            /// It has looked.
            epoll_looked = "epoll.looked";
            /// It has said how to be woken.
            epoll_armed = "epoll.armed";
            /// The kernel has told events, which are not taken up.
            epoll_woken = "epoll.woken";
            /// A connection is out of the completion queue; its watches do not know.
            epoll_dispatch = "epoll.dispatch";
            /// epoll_ctl(2) has the lock; the kernel's call is next.
            epoll_ctl_locked = "epoll.ctl.locked";
            /// The kernel has done it.
            epoll_ctl_done = "epoll.ctl.done";
            /// The watch is entered; the call still has the lock.
            epoll_ctl_entered = "epoll.ctl.entered";
            /// The kernel has made an instance.
            epoll_created = "epoll.created";

            /// The kernel has made a socket.
            socket_made = "socket.made";
            /// listen(2) has succeeded.
            listen_done = "listen.done";
            /// The kernel has accepted a connection.
            accept_done = "accept.done";
            /// It has a record, and is not in the table.
            accept_tracked = "accept.tracked";
            /// It is in the table.
            accept_entered = "accept.entered";
            /// connect(2) has its plan, and has not asked the kernel.
            connect_planned = "connect.planned";
            /// The kernel has connected it.
            connect_done = "connect.done";
            /// The proposal is posted; the socket is not in the table.
            connect_posted = "connect.posted";
            /// It is in the table.
            connect_entered = "connect.entered";
            /// connect(2) has disconnected a socket.
            connect_undone = "connect.undone";

            /// A descriptor is out of the table, and still open.
            close_taken = "close.taken";
            /// No step uses its number any more.
            close_settled = "close.settled";
            /// The connection's last descriptor goes; the peer does not know.
            close_ends = "close.ends";
            /// The peer knows.
            close_ended = "close.ended";
            /// The kernel has duplicated a descriptor; the table does not know.
            dup_done = "dup.done";
            /// The descriptor that dup2(2) closes is out of the table; the kernel is asked next.
            dup_displaced = "dup.displaced";
            /// shutdown(2) has announced the end in the ring; the kernel is asked next.
            shutdown_announced = "shutdown.announced";
            /// The kernel has ended it.
            shutdown_done = "shutdown.done";

            /// The library is ready for a fork.
            fork_prepared = "fork.prepared";
            /// In the parent after a fork, with all locks.
            fork_parent = "fork.parent";
            /// The parent has let go of them.
            fork_settles = "fork.settles";
            /// In the child, whose state is its parent's.
            fork_child = "fork.child";
            /// It knows who it is.
            fork_counted = "fork.counted";
            /// It has made its epoll instances its own.
            fork_adopted = "fork.adopted";
            /// A connection is about to be handed over (exec, `SCM_RIGHTS`, stdio).
            exec_hands_over = "exec.hands_over";
            /// What lies unread on one goes along with the next program.
            exec_passes = "exec.passes";
            /// An exec has failed.
            exec_failed = "exec.failed";

            /// The program's bytes are granted; the cursor is not there yet.
            grant_put = "grant.put";
            /// The program's bytes are in a pipe; no grant says so yet.
            pin_put = "pin.put";
            /// A `MSG_ZEROCOPY` call has its number; the receiver cannot see its bytes.
            zerocopy_numbered = "zerocopy.numbered";
            /// It has sent all, and is about to tell the program.
            zerocopy_settles = "zerocopy.settles";
            /// A completion is out of the list, and not told.
            zerocopy_taken = "zerocopy.taken";

            /// A part of a file is in the ring; the receiver cannot see it.
            sendfile_read = "sendfile.read";
            /// A part is sent, and the call is not over.
            sendfile_between = "sendfile.between";
            /// splice(2) has looked at the connection's bytes.
            splice_peeked = "splice.peeked";
            /// They are in the pipe, and in the connection.
            splice_written = "splice.written";
            /// They are out of the pipe, and not in the connection.
            splice_read = "splice.read";

            /// The agent was asked, and has not answered.
            agent_asked = "agent.asked";
        }
    };
}

/// A place where a test may have something happen.
#[cfg(feature = "points")]
#[macro_export]
macro_rules! point {
    ($name:ident) => {
        $crate::points::pass($crate::points::Point::$name)
    };
}
/// Nothing.
#[cfg(not(feature = "points"))]
#[macro_export]
macro_rules! point {
    ($name:ident) => {{}};
}

macro_rules! names {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal;)*) => {
        /// The names of all points.
        pub const NAMES: &[&str] = &[$($text,)*];

        /// A point.
        #[cfg(any(feature = "points", test))]
        #[allow(non_camel_case_types, reason = "as `point!` has them")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Point {
            $($(#[doc = $doc])* $name,)*
        }
    };
}
for_each_point!(names);

#[cfg(any(feature = "points", test))]
pub use plan::{pass, shunt_points, shunt_points_names, shunt_points_passed, take_up};

#[cfg(any(feature = "points", test))]
mod plan {
    use core::ffi::{CStr, c_char, c_int, c_ulong};
    use core::ptr;
    use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
    use std::ffi::CString;

    use rustix::fs::{Access, Mode, OFlags};
    use rustix::process::{Signal, getpid, kill_process};
    use rustix::thread::{NanosleepRelativeResult, nanosleep};

    use super::{NAMES, Point};
    use crate::system::errno::KeepErrno;

    /// What happens at a point.
    #[derive(Clone, PartialEq, Eq, Debug)]
    enum Action {
        Panic,
        Hold(CString),
        Signal(c_int),
        Cancel,
        Kill,
        Exit,
    }

    /// When.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum When {
        /// At this pass.
        At(u64),
        /// At each multiple of it.
        Each(u64),
    }

    struct Place {
        passes: AtomicU64,
        /// Null: nothing happens. What was there once is never freed.
        plan: AtomicPtr<(Action, When)>,
    }

    static PLACES: [Place; NAMES.len()] =
        [const { Place { passes: AtomicU64::new(0), plan: AtomicPtr::new(ptr::null_mut()) } };
            NAMES.len()];

    /// Says what happens where, from now on; passes are counted anew.
    ///
    /// A specification that makes no sense changes nothing.
    fn set(text: &str) -> Option<()> {
        let mut plan = Vec::new();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            plan.push(parse(entry)?);
        }
        for place in &PLACES {
            place.plan.store(ptr::null_mut(), Ordering::Release);
            place.passes.store(0, Ordering::Relaxed);
        }
        for (index, what) in plan {
            let place: &Place = PLACES.get(index)?;
            place.plan.store(Box::into_raw(Box::new(what)), Ordering::Release);
        }
        Some(())
    }

    fn parse(entry: &str) -> Option<(usize, (Action, When))> {
        let (name, rest) = entry.split_once('=')?;
        let index = NAMES.iter().position(|known| *known == name)?;
        let number = |text: &str| text.parse().ok().filter(|n| *n > 0);
        let (action, when) = match (rest.rsplit_once('@'), rest.rsplit_once('%')) {
            (Some((action, n)), _) => (action, When::At(number(n)?)),
            (None, Some((action, n))) => (action, When::Each(number(n)?)),
            (None, None) => (rest, When::Each(1)),
        };
        let action = match action.split_once(':') {
            Some(("hold", path)) => Action::Hold(CString::new(path).ok()?),
            Some(("signal", n)) => Action::Signal(n.parse().ok()?),
            None if action == "panic" => Action::Panic,
            None if action == "cancel" => Action::Cancel,
            None if action == "kill" => Action::Kill,
            None if action == "exit" => Action::Exit,
            _ => return None,
        };
        Some((index, (action, when)))
    }

    /// Heeds `SHUNT_POINTS` among the variables of the environment; for the constructor.
    pub fn take_up(variable: &[u8]) {
        let text = variable.strip_prefix(b"SHUNT_POINTS=").map(core::str::from_utf8);
        if let Some(Ok(text)) = text {
            set(text);
        }
    }

    /// A thread comes to a point.
    pub fn pass(point: Point) {
        let Some(place) = PLACES.get(point as usize) else { return };
        let n = place.passes.fetch_add(1, Ordering::Relaxed) + 1;
        // SAFETY: null, or what `set` has put there, which is never freed.
        let Some((action, when)) = (unsafe { place.plan.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        let is_due = match when {
            When::At(at) => n == *at,
            When::Each(each) => n.is_multiple_of(*each),
        };
        if is_due {
            action.happens(point);
        }
    }

    impl Action {
        fn happens(&self, point: Point) {
            let _keep = KeepErrno::new();
            match self {
                // A second one, while the first unwinds, would be the program's end.
                Self::Panic if std::thread::panicking() => {}
                Self::Panic => panic!("asked for at {point:?}"),
                Self::Hold(path) => hold(path),
                Self::Signal(signal) => {
                    // SAFETY: this very thread. What the signal does is the test's business.
                    unsafe { libc::pthread_kill(libc::pthread_self(), *signal) };
                }
                Self::Cancel => {
                    unsafe extern "C" {
                        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
                    }
                    // SAFETY: this very thread lives. The call marks it, which goes on to the next point of cancellation.
                    unsafe { pthread_cancel(libc::pthread_self()) };
                }
                Self::Kill => {
                    let _ = kill_process(getpid(), Signal::KILL);
                }
                // The hook on it, as the library is looked at first.
                // SAFETY: ends the process.
                Self::Exit => unsafe { libc::_exit(0) },
            }
        }
    }

    /// Says that a thread is here, and waits. By the kernel's calls alone: the test may be about any other.
    fn hold(path: &CStr) {
        let there = [path.to_bytes(), b".there\0"].concat();
        let there = CStr::from_bytes_until_nul(&there).unwrap_or_default();
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(there, flags, Mode::RWXU) {
            shunt_sys::fds::close(file);
        }
        while rustix::fs::access(path, Access::EXISTS).is_err() {
            let moment = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 500_000 };
            let (NanosleepRelativeResult::Ok
            | NanosleepRelativeResult::Interrupted(_)
            | NanosleepRelativeResult::Err(_)) = nanosleep(&moment);
        }
    }

    /// Says what happens where, from now on. -1: the text makes no sense.
    ///
    /// # Safety
    /// A C string.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn shunt_points(text: *const c_char) -> c_int {
        // SAFETY: the caller promises a C string.
        let text = unsafe { CStr::from_ptr(text) };
        match text.to_str().ok().and_then(set) {
            Some(()) => 0,
            None => -1,
        }
    }

    /// How often a point was passed since its plan was made.
    ///
    /// # Safety
    /// A C string.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn shunt_points_passed(name: *const c_char) -> c_ulong {
        // SAFETY: the caller promises a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let place =
            NAMES.iter().zip(&PLACES).find(|(known, _)| known.as_bytes() == name.to_bytes());
        place.map_or(0, |(_, place)| place.passes.load(Ordering::Relaxed))
    }

    /// The names of all points, with commas between them.
    #[unsafe(no_mangle)]
    pub extern "C" fn shunt_points_names() -> *const c_char {
        static TEXT: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
        let known = TEXT.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let text = CString::new(NAMES.join(",")).unwrap_or_default().into_raw();
        TEXT.store(text, Ordering::Release);
        text
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn plans_are_read() {
            let index = NAMES.iter().position(|name| *name == "recv.taken");
            let read = |entry| parse(entry).map(|(at, what)| (Some(at), what));
            let expected = |action, when| Some((index, (action, when)));
            let path = c"/a/b=c".to_owned();
            assert_eq!(read("recv.taken=panic@3"), expected(Action::Panic, When::At(3)));
            assert_eq!(read("recv.taken=kill%2"), expected(Action::Kill, When::Each(2)));
            assert_eq!(read("recv.taken=hold:/a/b=c"), expected(Action::Hold(path), When::Each(1)));
            assert_eq!(read("recv.taken=signal:10@1"), expected(Action::Signal(10), When::At(1)));
            for nonsense in ["recv.taken", "x=panic", "recv.taken=x", "recv.taken=panic@0"] {
                assert_eq!(read(nonsense), None, "{nonsense}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn no_name_is_listed_twice() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
    }
}
