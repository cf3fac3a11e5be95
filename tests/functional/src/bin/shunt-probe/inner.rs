//! Functions of libc that use, replace or close descriptors by its inner calls.

use std::ffi::{CString, c_void};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::c_int;
use shunt_functional::sys;

use crate::probe::{Pair, Probe, address, done, drain, listener, recv_soon, settle, try_recv};
use crate::processes::in_child;
use crate::stdio::{all, checked, close, print, put};

/// Functions that take any descriptor.
pub fn run(p: &mut Probe) -> io::Result<()> {
    counters(p)?;
    traces(p)?;
    urgent(p)?;
    own_duplicates(p)?;
    words(p)?;
    harmless(p)
}

/// Functions that put other files in the place of standard input, output and error.
pub fn replaced(p: &mut Probe) -> io::Result<()> {
    daemons(p)?;
    terminals(p)
}

unsafe extern "C" {
    fn backtrace(frames: *mut *mut c_void, count: c_int) -> c_int;
    fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int);
    fn eventfd_read(fd: c_int, value: *mut u64) -> c_int;
    fn eventfd_write(fd: c_int, value: u64) -> c_int;
    fn sockatmark(fd: c_int) -> c_int;
    fn wordexp(words: *const libc::c_char, into: *mut [usize; 3], flags: c_int) -> c_int;
    fn wordfree(words: *mut [usize; 3]);
}

/// daemon(3) puts /dev/null in the place of connections and listeners.
fn daemons(p: &Probe) -> io::Result<()> {
    for noclose in [0, 1] {
        let pair = p.pair()?;
        let listener = listener()?;
        let to = address(&listener)?;
        let (own, peer) = (pair.c(), pair.s());
        let (told, tell) = sys::pipe()?;
        let (go, let_go) = sys::pipe()?;
        let child = in_child(|| {
            close(peer);
            close(let_go.as_raw_fd());
            sys::write(own, b"before, ")?;
            put(own, 1)?;
            put(listener.as_raw_fd(), 0)?;
            close(own);
            close(listener.as_raw_fd());
            // SAFETY: numbers.
            checked(unsafe { libc::daemon(1, noclose) })?;
            sys::write(1, b"by number, ")?;
            print(c"by stdio");
            sys::write(tell.as_raw_fd(), b"x")?;
            sys::read(go.as_raw_fd(), &mut [0])?;
            Ok(())
        })?;
        drop(listener);
        drop(pair.client);
        let what = format!("daemon(1, {noclose})");
        p.say(&format!("{what}: the child's end"), sys::wait_for(child)?);
        sys::read(told.as_raw_fd(), &mut [0])?;
        settle();
        let mut text = [0; 100];
        let n = sys::recv(peer, &mut text, libc::MSG_DONTWAIT, false)?;
        p.say(&format!("{what}: arrives"), String::from_utf8_lossy(&text[..n]));
        p.result(&format!("{what}: then"), try_recv(peer, 100));
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        p.say(&format!("{what}: connect"), done(sys::connect(client.as_raw_fd(), to)));
        drop(let_go);
        p.result(&format!("{what}: at its end"), recv_soon(peer, 100));
    }
    Ok(())
}

/// login_tty(3) and forkpty(3) put a terminal in the place of connections.
fn terminals(p: &Probe) -> io::Result<()> {
    let null = ptr::null_mut::<u8>();
    for is_terminal in [true, false] {
        let pair = p.pair()?;
        let (own, peer) = (pair.c(), pair.s());
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: two numbers to be written.
        checked(unsafe {
            libc::openpty(&raw mut master, &raw mut slave, null.cast(), null.cast(), null.cast())
        })?;
        let (go, let_go) = sys::pipe()?;
        let (told, tell) = sys::pipe()?;
        let child = in_child(|| {
            close(peer);
            close(let_go.as_raw_fd());
            sys::write(own, b"before")?;
            put(own, 1)?;
            close(own);
            let other = if is_terminal { slave } else { go.as_raw_fd() };
            // SAFETY: a number.
            let result = checked(unsafe { libc::login_tty(other) });
            let text = crate::probe::show(result);
            sys::write(1, b", behind")?;
            sys::write(tell.as_raw_fd(), text.as_bytes())?;
            close(tell.as_raw_fd());
            if !is_terminal {
                sys::read(go.as_raw_fd(), &mut [0])?;
            }
            Ok(())
        })?;
        drop(tell);
        drop(pair.client);
        p.say("login_tty", all(told.as_raw_fd())?);
        drop(let_go);
        p.say("the child's end", sys::wait_for(child)?);
        p.say("what the peer got", all(peer)?);
        let mut text = [0; 100];
        sys::set_nonblocking(master, true)?;
        let n = sys::read(master, &mut text).unwrap_or(0);
        p.say("what the terminal got", String::from_utf8_lossy(&text[..n]));
        close(master);
        close(slave);
    }
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    let (told, tell) = sys::pipe()?;
    let outer = in_child(|| {
        close(peer);
        sys::write(own, b"before")?;
        put(own, 1)?;
        close(own);
        let mut master = -1;
        // SAFETY: a number to be written.
        let pid = checked(unsafe {
            libc::forkpty(&raw mut master, null.cast(), null.cast(), null.cast())
        })?;
        if pid == 0 {
            sys::write(1, b"to the terminal")?;
            return Ok(());
        }
        let mut text = [0; 100];
        let n = sys::read(master, &mut text)?;
        sys::write(tell.as_raw_fd(), &text[..n])?;
        sys::wait_for(pid)?;
        sys::write(1, b", behind")?;
        Ok(())
    })?;
    drop(tell);
    drop(pair.client);
    p.say("what the terminal of forkpty got", all(told.as_raw_fd())?);
    p.say("the child's end", sys::wait_for(outer)?);
    p.say("what the peer got", all(peer)?);
    Ok(())
}

/// A request of POSIX asynchronous I/O.
fn request(fd: RawFd, buffer: &mut [u8], opcode: c_int) -> libc::aiocb {
    // SAFETY: all zero is a valid request.
    let mut request: libc::aiocb = unsafe { mem::zeroed() };
    request.aio_fildes = fd;
    request.aio_buf = buffer.as_mut_ptr().cast();
    request.aio_nbytes = buffer.len();
    request.aio_lio_opcode = opcode;
    request.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    request
}

/// Waits for a request that was begun with this result.
fn finished(request: &mut libc::aiocb, begun: c_int) -> io::Result<isize> {
    checked(begun)?;
    let list = [ptr::from_ref(request)];
    // SAFETY: the request is valid until it is complete.
    unsafe {
        while libc::aio_error(request) == libc::EINPROGRESS {
            libc::aio_suspend(list.as_ptr(), 1, ptr::null());
        }
        match libc::aio_error(request) {
            0 => Ok(libc::aio_return(request)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// POSIX asynchronous I/O.
pub fn asynchronous(p: &mut Probe) -> io::Result<()> {
    for turned in [false, true] {
        let pair = p.pair()?;
        let (own, peer) = if turned { (pair.s(), pair.c()) } else { (pair.c(), pair.s()) };
        sys::write(own, b"before, ")?;
        let mut text = *b"by aio, ";
        let mut write = request(own, &mut text, libc::LIO_WRITE);
        // SAFETY: the request is complete before it goes, as everywhere here.
        let begun = unsafe { libc::aio_write(&raw mut write) };
        p.result("aio_write", finished(&mut write, begun));
        sys::write(own, b"and behind")?;
        let mut got = [0; 26];
        sys::recv(peer, &mut got, libc::MSG_WAITALL, false)?;
        p.say("arrives", String::from_utf8_lossy(&got));
    }

    let pair = p.pair()?;
    let mut buffer = [0; 20];
    let mut read = request(pair.s(), &mut buffer, libc::LIO_READ);
    // SAFETY: request and buffer stay where they are until it is finished.
    let begun = unsafe { libc::aio_read(&raw mut read) };
    settle();
    sys::write(pair.c(), b"read by aio")?;
    p.result("aio_read that waits", finished(&mut read, begun));
    p.say("what it read", String::from_utf8_lossy(&buffer[..11]));
    sys::write(pair.c(), b"more")?;
    settle();
    p.result("recv behind it", try_recv(pair.s(), 10));
    let mut read = request(pair.s(), &mut buffer, libc::LIO_READ);
    sys::write(pair.c(), b"and more")?;
    // SAFETY: request and buffer stay where they are until it is finished.
    let begun = unsafe { libc::aio_read(&raw mut read) };
    p.result("aio_read", finished(&mut read, begun));

    let pair = p.pair()?;
    let (mut one, mut two) = (*b"one ", *b"two ");
    let mut requests = [
        request(pair.c(), &mut one, libc::LIO_WRITE),
        request(pair.c(), &mut two, libc::LIO_WRITE),
    ];
    let mut list = [ptr::null_mut(); 3];
    for (to, request) in list.iter_mut().skip(1).zip(&mut requests) {
        *to = ptr::from_mut(request);
    }
    sys::write(pair.c(), b"zero ")?;
    // SAFETY: requests and buffers stay where they are; the call waits for them.
    let result = unsafe { libc::lio_listio(libc::LIO_WAIT, list.as_ptr(), 3, ptr::null_mut()) };
    p.result("lio_listio", checked(result));
    sys::write(pair.c(), b"three")?;
    let mut got = [0; 18];
    sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false)?;
    p.say("arrives", String::from_utf8_lossy(&got));
    Ok(())
}

/// eventfd's functions read and write any descriptor.
fn counters(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"8 before")?;
    // SAFETY: a number.
    p.result("eventfd_write", checked(unsafe { eventfd_write(pair.c(), 0x4141_4141_4141_4141) }));
    let mut got = [0; 16];
    sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false)?;
    p.say("arrives", String::from_utf8_lossy(&got));
    let pair = p.pair()?;
    let mut value = 0;
    let n = std::thread::scope(|scope| {
        scope.spawn(|| {
            settle();
            sys::write(pair.c(), b"8 behind")
        });
        // SAFETY: a number to be written.
        checked(unsafe { eventfd_read(pair.s(), &raw mut value) })
    });
    p.result("eventfd_read", n);
    p.say("what it read", String::from_utf8_lossy(&value.to_ne_bytes()));
    Ok(())
}

fn traces(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"before")?;
    let mut frames = [ptr::null_mut(); 3];
    // SAFETY: room for so many frames.
    unsafe {
        let n = backtrace(frames.as_mut_ptr(), 3);
        backtrace_symbols_fd(frames.as_ptr(), n, pair.c());
    }
    sys::write(pair.c(), b"behind")?;
    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    let text = all(pair.s())?;
    p.say("a trace in between", text.starts_with("before") && text.ends_with("behind"));
    p.say("with its lines", text.lines().count());
    Ok(())
}

/// sockatmark(3), with bytes in front of the mark.
fn urgent(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let at_mark = |what: &str| {
        // SAFETY: a number.
        p.result(what, checked(unsafe { sockatmark(pair.s()) }));
        let mut at: c_int = -1;
        // SAFETY: a number to be written.
        let n = checked(unsafe { libc::ioctl(pair.s(), 0x8905, &raw mut at) });
        p.result(what, n.map(|_| at));
    };
    at_mark("at the mark, without one");
    sys::write(pair.c(), b"before")?;
    sys::send(pair.c(), b"!", libc::MSG_OOB)?;
    sys::write(pair.c(), b"after")?;
    settle();
    at_mark("at the mark, before all");
    p.result("a part", try_recv(pair.s(), 3));
    at_mark("at the mark, after a part");
    p.result("up to it", try_recv(pair.s(), 100));
    at_mark("at the mark");
    p.result("behind it", try_recv(pair.s(), 100));
    at_mark("at the mark, behind it");
    Ok(())
}

/// pidfd_getfd(2) of this very process.
fn own_duplicates(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    // SAFETY: numbers; what comes out is nobody else's.
    let twin = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        let pidfd = OwnedFd::from_raw_fd(RawFd::try_from(pidfd).unwrap_or(-1));
        let twin = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), pair.c(), 0);
        OwnedFd::from_raw_fd(RawFd::try_from(twin).unwrap_or(-1))
    };
    sys::write(pair.c(), b"by the one, ")?;
    sys::write(twin.as_raw_fd(), b"by the other, ")?;
    sys::write(pair.c(), b"by the one")?;
    drop(pair.client);
    sys::write(twin.as_raw_fd(), b", and the end")?;
    sys::write(pair.server.as_raw_fd(), b"back")?;
    settle();
    p.result("the other reads", try_recv(twin.as_raw_fd(), 10));
    drop(twin);
    p.say("what the peer got", all(pair.server.as_raw_fd())?);
    Ok(())
}

/// wordexp(3) starts a shell, which has what is not closed in time.
fn words(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let twin = sys::dup(pair.c())?;
    sys::write(pair.c(), b"before, ")?;
    let command =
        CString::new(format!("$(printf 'by a shell' >&{}; echo word)", twin.as_raw_fd()))?;
    let mut found = [0; 3];
    // SAFETY: a C string, and room for a wordexp_t.
    unsafe {
        let result = wordexp(command.as_ptr(), &raw mut found, 0);
        p.say("wordexp", format!("{result}, words {}", found[0]));
        wordfree(&raw mut found);
    }
    sys::write(pair.c(), b", behind")?;
    drop(twin);
    drop(pair.client);
    p.say("what the peer got", all(pair.server.as_raw_fd())?);
    Ok(())
}

/// Calls that a socket refuses, or that are about the inode.
fn harmless(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"unread")?;
    settle();
    type Call = fn(RawFd) -> c_int;
    // SAFETY: numbers, and C strings and structures that are valid.
    let calls: [(&str, Call); 24] = unsafe {
        [
            ("isatty", |fd| libc::isatty(fd)),
            ("ttyname", |fd| c_int::from(!libc::ttyname(fd).is_null()) - 1),
            ("tcgetattr", |fd| libc::tcgetattr(fd, ptr::from_mut(&mut mem::zeroed()))),
            ("tcdrain", |fd| libc::tcdrain(fd)),
            ("tcgetpgrp", |fd| libc::tcgetpgrp(fd)),
            ("lockf", |fd| libc::lockf(fd, libc::F_TEST, 0)),
            ("flock", |fd| libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB)),
            ("fsync", |fd| libc::fsync(fd)),
            ("fdatasync", |fd| libc::fdatasync(fd)),
            ("ftruncate", |fd| libc::ftruncate(fd, 0)),
            ("posix_fallocate", |fd| libc::posix_fallocate(fd, 0, 10)),
            ("posix_fadvise", |fd| libc::posix_fadvise(fd, 0, 10, 0)),
            ("readahead", |fd| c_int::try_from(libc::readahead(fd, 0, 10)).unwrap_or(-2)),
            ("sync_file_range", |fd| libc::sync_file_range(fd, 0, 10, 0)),
            ("lseek", |fd| c_int::try_from(libc::lseek(fd, 0, libc::SEEK_CUR)).unwrap_or(-2)),
            ("fdopendir", |fd| c_int::from(!libc::fdopendir(fd).is_null()) - 1),
            ("fchdir", |fd| libc::fchdir(fd)),
            ("fchmod", |fd| libc::fchmod(fd, 0o600)),
            ("fstat", |fd| libc::fstat(fd, ptr::from_mut(&mut mem::zeroed()))),
            ("fstatfs", |fd| libc::fstatfs(fd, ptr::from_mut(&mut mem::zeroed()))),
            ("syncfs", |fd| libc::syncfs(fd)),
            ("openat", |fd| libc::openat(fd, c"x".as_ptr(), libc::O_RDONLY)),
            ("timerfd_settime", |fd| {
                libc::timerfd_settime(fd, 0, ptr::from_ref(&mem::zeroed()), ptr::null_mut())
            }),
            ("signalfd", |fd| libc::signalfd(fd, ptr::from_ref(&mem::zeroed()), 0)),
        ]
    };
    for (name, call) in calls {
        p.result(name, checked(call(pair.s())));
    }
    p.result("what is unread", drain(pair.s()));
    let Pair { client, server } = pair;
    sys::write(server.as_raw_fd(), b"back")?;
    settle();
    p.result("and the other way", try_recv(client.as_raw_fd(), 10));
    Ok(())
}
