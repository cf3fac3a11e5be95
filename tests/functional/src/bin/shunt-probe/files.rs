//! sendfile(2) from what can be sent, and from what cannot.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, raw};

use crate::probe::{Pair, Probe, drain, fill, settle, show, try_recv};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    ordinary(p)?;
    odd_files(p)?;
    odd_outputs(p)?;
    addresses(p)?;
    large(p)?;
    until_the_end(p)?;
    timeouts(p)?;
    from_connections(p)
}

const CONTENTS: &[u8] = b"The contents of a file, of which parts are sent.";

fn file() -> io::Result<OwnedFd> {
    let file = sys::memfd(c"files")?;
    sys::pwrite_all(file.as_raw_fd(), CONTENTS)?;
    Ok(file)
}

/// A call of sendfile, and what it comes to: its result, the offset or position after it, and what
/// arrives.
fn send(
    p: &Probe,
    pair: &Pair,
    (name, input): (&str, RawFd),
    at: Option<i64>,
    len: usize,
) -> io::Result<()> {
    let mut offset = at;
    let n = sys::sendfile_from(pair.c(), input, offset.as_mut(), len);
    let after = offset.map_or_else(|| show(sys::position(input)), |at| at.to_string());
    let mut bytes = vec![0; *n.as_ref().unwrap_or(&0)];
    if !bytes.is_empty() {
        sys::recv(pair.s(), &mut bytes, libc::MSG_WAITALL, false)?;
    }
    let what = format!("sendfile of {len} from {name} at {at:?}");
    let text = String::from_utf8_lossy(&bytes);
    // What the kernel makes up is not the same twice.
    let text = if CONTENTS.ends_with(&bytes) || CONTENTS.starts_with(&bytes) { &*text } else { "" };
    p.say(&what, format!("{}, then at {after}, {text:?}", show(n)));
    Ok(())
}

/// Offsets and lengths.
fn ordinary(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let file = file()?;
    let raw = file.as_raw_fd();
    let size = i64::try_from(CONTENTS.len()).unwrap_or(0);
    let ats = [0, 4, size - 1, size, size + 1, i64::MAX - 1, i64::MAX, -1, -8, i64::MIN];
    for at in ats.map(Some).into_iter().chain([None]) {
        for len in [0, 3, 48, 49, 1_000_000, isize::MAX as usize, usize::MAX - 7, usize::MAX] {
            sys::seek(raw, 2)?;
            send(p, &pair, ("a file", raw), at, len)?;
        }
    }
    for at in [0, size, 3 * size] {
        sys::seek(raw, at)?;
        send(p, &pair, ("a file by its position", raw), None, 100)?;
    }
    let mut at = 5;
    p.result("sendfile64", sys::sendfile64_from(pair.c(), raw, Some(&mut at), 6));
    p.say("sendfile64: the offset", at);
    settle();
    p.result("sendfile64: arrives", try_recv(pair.s(), 100));
    p.result("nothing else arrives", try_recv(pair.s(), 100));
    Ok(())
}

fn opened(path: &str, flags: i32) -> io::Result<OwnedFd> {
    File::options().read(true).custom_flags(flags).open(path).map(OwnedFd::from)
}

fn timer() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a new descriptor is nobody else's.
    unsafe {
        match libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn by_path_only(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a C string; a new descriptor is nobody else's.
    unsafe {
        match libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// What is no file, or not an ordinary one.
fn odd_files(p: &Probe) -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("file");
    std::fs::write(&path, CONTENTS)?;
    let empty = directory.path().join("empty");
    std::fs::write(&empty, [])?;
    let (read, write) = sys::pipe()?;
    sys::write(write.as_raw_fd(), b"piped")?;
    let event = sys::eventfd()?;
    let (unix, other) = sys::pair(libc::SOCK_STREAM)?;
    sys::write(other.as_raw_fd(), b"UNIX")?;
    let timer = timer()?;
    let epoll = Epoll::new(1)?;
    let another = p.pair()?;
    sys::write(another.c(), b"TCP")?;
    settle();
    let [writable, appended] = [libc::O_WRONLY, libc::O_RDWR | libc::O_APPEND].map(|flags| {
        let mut options = File::options();
        options.write(true).read(flags & libc::O_APPEND != 0).append(flags & libc::O_APPEND != 0);
        options.open(&path).map(OwnedFd::from)
    });
    let named = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let direct = opened(&named(&path), libc::O_DIRECT).or_else(|_| opened(&named(&path), 0))?;
    let files = [
        ("a directory", opened(&named(directory.path()), libc::O_DIRECTORY)?),
        ("an empty file", opened(&named(&empty), 0)?),
        ("a file with O_PATH", by_path_only(c"/etc/passwd")?),
        ("a file to write to", writable?),
        ("a file to append to", appended?),
        ("a file with O_DIRECT", direct),
        ("/dev/null", opened("/dev/null", 0)?),
        ("/dev/zero", opened("/dev/zero", 0)?),
        ("/proc/self/status", opened("/proc/self/status", 0)?),
        ("/proc/version", opened("/proc/version", 0)?),
        ("/proc/self/maps", opened("/proc/self/maps", 0)?),
        ("/sys/kernel/mm/transparent_hugepage/enabled", {
            opened("/sys/kernel/mm/transparent_hugepage/enabled", 0)
                .or_else(|_| opened("/dev/null", 0))?
        }),
    ];
    let mut all: Vec<(&str, RawFd)> =
        files.iter().map(|(name, file)| (*name, file.as_raw_fd())).collect();
    all.extend([
        ("a pipe", read.as_raw_fd()),
        ("a pipe's other end", write.as_raw_fd()),
        ("an eventfd", event.as_raw_fd()),
        ("a timerfd", timer.as_raw_fd()),
        ("an epoll instance", epoll.fd()),
        ("a UNIX socket", unix.as_raw_fd()),
        ("another connection", another.s()),
        ("a closed descriptor", 1_000_000),
        ("-1", -1),
    ]);
    for (name, fd) in all {
        let pair = p.pair()?;
        // What the kernel makes of an offset into zeros is its own business.
        let given = if name == "/dev/zero" { vec![] } else { vec![Some(0), Some(1), Some(-1)] };
        for at in given.into_iter().chain([None]) {
            for len in [0, 8, 5000] {
                send(p, &pair, (name, fd), at, len)?;
            }
        }
        sys::write(pair.c(), b"behind")?;
        settle();
        p.result(&format!("{name}: the connection works"), try_recv(pair.s(), 100));
    }
    let pair = p.pair()?;
    send(p, &pair, ("the connection itself", pair.c()), None, 8)?;
    send(p, &pair, ("its other end", pair.s()), None, 8)?;
    p.result("left in the pipe", sys::fionread(read.as_raw_fd()));
    p.result("left in the UNIX socket", try_recv(unix.as_raw_fd(), 10));
    p.result("left in the other connection", try_recv(another.s(), 10));
    Ok(())
}

fn set_status_flags(fd: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connections that take nothing.
fn odd_outputs(p: &Probe) -> io::Result<()> {
    sys::set_signal_counter(libc::SIGPIPE)?;
    let file = file()?;
    let raw = file.as_raw_fd();
    let pair = p.pair()?;
    set_status_flags(pair.c(), libc::O_APPEND)?;
    for (name, fd) in [("a file", raw), ("nothing", 1_000_000)] {
        let what = format!("with O_APPEND, from {name}");
        p.result(&what, sys::sendfile_from(pair.c(), fd, None, 8));
        p.result(&what, sys::sendfile_from(pair.c(), fd, Some(&mut 0), 0));
    }
    let (read, write) = sys::pipe()?;
    sys::write(write.as_raw_fd(), b"piped")?;
    p.result("splice to it", sys::splice(read.as_raw_fd(), pair.c(), 10, 0));
    p.result("write to it", sys::write(pair.c(), b"abc"));
    // What is noted of the one is not to change what is noted of the other.
    sys::set_option(pair.c(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2)?;
    let mut fds = [libc::pollfd { fd: pair.c(), events: libc::POLLIN, revents: 0 }];
    p.result("poll with SO_RCVLOWAT", sys::poll(&mut fds, Some(Duration::ZERO)));
    p.result("with O_APPEND still", sys::sendfile_from(pair.c(), raw, Some(&mut 0), 8));
    set_status_flags(pair.c(), 0)?;
    p.result("without again", sys::sendfile_from(pair.c(), raw, Some(&mut 0), 8));
    p.result("splice to it", sys::splice(read.as_raw_fd(), pair.c(), 10, 0));
    settle();
    p.result("arrives", try_recv(pair.s(), 100));

    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    p.say("SIGPIPEs", sys::signal_count());
    p.result("after shutdown", sys::sendfile_from(pair.c(), raw, Some(&mut 0), 8));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("after shutdown, of nothing", sys::sendfile_from(pair.c(), raw, Some(&mut 0), 0));
    p.result("after shutdown, at the end", sys::sendfile_from(pair.c(), raw, Some(&mut 100), 8));
    p.say("SIGPIPEs", sys::signal_count());
    sys::write(write.as_raw_fd(), b"more")?;
    p.result("splice after shutdown", sys::splice(read.as_raw_fd(), pair.c(), 10, 0));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("left in the pipe", sys::fionread(read.as_raw_fd()));

    let pair = p.pair()?;
    drop(pair.server);
    settle();
    let fd = pair.client.as_raw_fd();
    p.result("to a peer that has closed", sys::sendfile_from(fd, raw, Some(&mut 0), 8));
    settle();
    p.result("once more", sys::sendfile_from(fd, raw, Some(&mut 0), 8));
    p.result("splice to it", sys::splice(read.as_raw_fd(), fd, 10, 0));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("left in the pipe", sys::fionread(read.as_raw_fd()));
    drop(pair.client);
    p.result("to a closed descriptor", sys::sendfile_from(fd, raw, Some(&mut 0), 8));
    let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    p.result("before connect", sys::sendfile_from(fresh.as_raw_fd(), raw, Some(&mut 0), 8));
    p.say("SIGPIPEs", sys::signal_count());
    sys::reset_signal(libc::SIGPIPE)
}

/// An offset that is nowhere.
fn addresses(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let file = file()?;
    for at in [8, usize::MAX] {
        let at = std::ptr::without_provenance_mut(at);
        // SAFETY: the kernel, or who stands for it, refuses the address.
        let n = unsafe { libc::sendfile(pair.c(), file.as_raw_fd(), at, 8) };
        p.say(
            "an offset that is nowhere",
            if n < 0 { show::<i32>(Err(io::Error::last_os_error())) } else { n.to_string() },
        );
    }
    p.result("nothing arrives", try_recv(pair.s(), 10));
    Ok(())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 16)).to_le_bytes()[0]).collect()
}

/// More than all buffers hold, to a peer that reads slowly.
fn large(p: &Probe) -> io::Result<()> {
    const SIZE: usize = 12 << 20;
    let bytes = pattern(SIZE);
    let file = sys::memfd(c"large")?;
    sys::pwrite_all(file.as_raw_fd(), &bytes)?;
    for (name, begin) in [("a large file", 0), ("a part of it", 77_777)] {
        let pair = p.pair()?;
        let (own, peer) = (pair.c(), pair.s());
        let got = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                let (mut all, mut part) = (Vec::new(), vec![0; 100_000]);
                while let Ok(n @ 1..) = sys::read(peer, &mut part) {
                    all.extend_from_slice(&part[..n]);
                }
                all
            });
            let mut at = begin;
            let n = sys::sendfile_from(own, file.as_raw_fd(), Some(&mut at), SIZE);
            p.result(name, n);
            p.say("the offset", at);
            let _ = sys::shutdown(own, libc::SHUT_WR);
            reader.join()
        });
        let begin = usize::try_from(begin).unwrap_or(0);
        p.say("all bytes arrive", got.is_ok_and(|got| got == bytes[begin..]));
    }
    Ok(())
}

/// In a loop, as programs do, without waiting.
fn until_the_end(p: &Probe) -> io::Result<()> {
    const SIZE: usize = 6 << 20;
    let bytes = pattern(SIZE);
    let file = sys::memfd(c"loop")?;
    sys::pwrite_all(file.as_raw_fd(), &bytes)?;
    let pair = p.pair()?;
    sys::set_nonblocking(pair.c(), true)?;
    let (mut at, mut sent, mut all) = (0, 0, Vec::new());
    let mut buffer = vec![0; 64 << 10];
    let end = loop {
        match sys::sendfile_from(pair.c(), file.as_raw_fd(), Some(&mut at), SIZE) {
            Ok(0) => break "its end".to_owned(),
            Ok(n) => sent += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let n = sys::recv(pair.s(), &mut buffer, libc::MSG_DONTWAIT, false).unwrap_or(0);
                all.extend_from_slice(&buffer[..n]);
            }
            Err(e) => break sys::errno_name(&e),
        }
        if usize::try_from(at) != Ok(sent) {
            break format!("{sent} sent, and the offset at {at}");
        }
    };
    p.say("it ends by", end);
    p.say("sent", sent);
    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    while let Ok(n @ 1..) = sys::read(pair.s(), &mut buffer) {
        all.extend_from_slice(&buffer[..n]);
    }
    p.say("all bytes arrive", all == bytes);
    Ok(())
}

/// `SO_SNDTIMEO` and `SO_RCVTIMEO`.
fn timeouts(p: &Probe) -> io::Result<()> {
    const SOON: Duration = Duration::from_millis(60);
    let pair = p.pair()?;
    let file = sys::memfd(c"timeouts")?;
    sys::pwrite_all(file.as_raw_fd(), &pattern(16 << 20))?;
    sys::set_timeout(pair.c(), libc::SO_SNDTIMEO, SOON)?;
    let mut at = 0;
    let part = sys::sendfile_from(pair.c(), file.as_raw_fd(), Some(&mut at), 16 << 20)?;
    p.say("a part is sent before the time is over", part > 10_000 && part < 16 << 20);
    p.say("the offset says which", usize::try_from(at) == Ok(part));
    let mut rest = 0;
    // Buffers grow while the peer does not read.
    let end = loop {
        match sys::sendfile_from(pair.c(), file.as_raw_fd(), Some(&mut at), 16 << 20) {
            Ok(n @ 1..) => rest += n,
            other => break show(other),
        }
    };
    p.say("into a full connection", end);
    let (read, write) = sys::pipe()?;
    sys::write(write.as_raw_fd(), b"piped")?;
    p.result("splice into it", sys::splice(read.as_raw_fd(), pair.c(), 100, 0));
    p.result("left in the pipe", sys::fionread(read.as_raw_fd()));
    p.say("all that was sent arrives", drain(pair.s())? == part + rest);
    p.result("then the pipe", sys::splice(read.as_raw_fd(), pair.c(), 100, 0));

    let pair = p.pair()?;
    sys::set_timeout(pair.s(), libc::SO_RCVTIMEO, SOON)?;
    p.result("splice from nothing", sys::splice(pair.s(), write.as_raw_fd(), 100, 0));
    sys::write(pair.c(), b"abc")?;
    p.result("splice from something", sys::splice(pair.s(), write.as_raw_fd(), 100, 0));
    sys::set_nonblocking(pair.s(), true)?;
    p.result("splice that does not wait", sys::splice(pair.s(), write.as_raw_fd(), 100, 0));

    let pair = p.pair()?;
    let sent = fill(pair.c())?;
    sys::set_nonblocking(pair.c(), true)?;
    p.result("sendfile that does not wait", {
        sys::sendfile_from(pair.c(), file.as_raw_fd(), Some(&mut 0), 8)
    });
    p.say("all of it arrives", drain(pair.s())? == sent);
    Ok(())
}

/// A connection as the input: sendfile(2) takes it where the output is a pipe.
fn from_connections(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = sys::pipe()?;
    let out = write.as_raw_fd();
    let file = file()?;
    sys::write(pair.c(), b"0123456789")?;
    settle();
    p.result("to a file", sys::sendfile_from(file.as_raw_fd(), pair.s(), None, 4));
    p.result("to a pipe", sys::sendfile_from(out, pair.s(), None, 4));
    p.result("to a pipe, of nothing", sys::sendfile_from(out, pair.s(), None, 0));
    p.result("to a pipe, with an offset", sys::sendfile_from(out, pair.s(), Some(&mut 0), 4));
    p.result("to a pipe's other end", sys::sendfile_from(read.as_raw_fd(), pair.s(), None, 4));
    p.result("to a pipe, by number", raw::sendfile(out, pair.s(), 1));
    p.result("to a pipe, the rest", sys::sendfile_from(out, pair.s(), None, 100));
    let mut bytes = [0; 100];
    let n = sys::read(read.as_raw_fd(), &mut bytes)?;
    p.say("in the pipe", String::from_utf8_lossy(&bytes[..n]));
    sys::set_nonblocking(pair.s(), true)?;
    p.result("to a pipe, when there is nothing", sys::sendfile_from(out, pair.s(), None, 4));
    drop(pair.client);
    settle();
    p.result("to a pipe, at the end", sys::sendfile_from(out, pair.server.as_raw_fd(), None, 4));
    Ok(())
}
