//! What lies unread when a program becomes another one, or starts one that has the descriptor, is read there: once,
//! in order, and before the end.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use shunt_functional::pattern;
use shunt_functional::sys::{self, Epoll};

use crate::exec_ends;
use crate::probe::{Pair, Probe, settle, show, warm_up};
use crate::processes::{close_on_exec, in_child};

/// The first argument of this program when it is one that reads.
pub const READER: &str = "as-reader";

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for start in START {
        for end in [End::Before, End::Half, End::After, End::More] {
            for (len, read) in [(1, 0), (777, 0), (300_000, 100_000)] {
                read_there(p, (start, end), "read", (len, read))?;
            }
        }
    }
    for how in READS {
        for end in [End::Before, End::After] {
            read_there(p, (Start::Fork, end), how, (3000, 100))?;
        }
    }
    // More than a ring holds.
    for (start, end) in
        [(Start::Fork, End::Before), (Start::Spawn, End::Half), (Start::Exec, End::More)]
    {
        for how in ["read", "epoll", "splice"] {
            read_there(p, (start, end), how, (1_500_000, 200_000))?;
        }
    }
    before_a_ring(p)?;
    other_direction(p)?;
    shared(p)?;
    kept(p)?;
    read_by_turns(p)?;
    failed(p)?;
    unseen(p)?;
    exec_ends::run(p)
}

/// How the program comes to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// A child that has the connection to itself becomes it.
    Exec,
    /// The same while its parent has it, too.
    Fork,
    Vfork,
    Spawn,
    System,
}

const START: [Start; 5] = [Start::Exec, Start::Fork, Start::Vfork, Start::Spawn, Start::System];

/// When the peer ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It has closed before the program starts.
    Before,
    /// It has half-closed by then.
    Half,
    /// It closes after the program has begun to read.
    After,
    /// It sends more then, and closes.
    More,
}

/// How the program reads.
const READS: &[&str] =
    &["read", "poll", "epoll", "edge", "count", "splice", "peek", "pieces", "vectors"];

/// This program, as one that reads from a descriptor.
fn reader(how: &str, fd: RawFd) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([READER, how, &fd.to_string()]);
    Ok(command)
}

/// Leaves a descriptor open at an exec.
fn keep_on_exec(fd: RawFd) {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
}

/// Bytes of a client's that it has sent, of which the server has read some.
fn with_unread(p: &Probe, (len, read): (usize, usize)) -> io::Result<Pair> {
    let pair = p.pair()?;
    for fd in [&pair.client, &pair.server] {
        close_on_exec(fd)?;
    }
    let mut bytes = vec![0; len];
    pattern::fill(len as u64, 0, &mut bytes);
    sys::write(pair.c(), &bytes)?;
    let mut first = vec![0; read];
    if read > 0 {
        sys::recv(pair.s(), &mut first, libc::MSG_WAITALL, false)?;
    }
    if first != bytes[..read] {
        p.say("wrong before the start", read);
    }
    Ok(pair)
}

fn read_there(
    p: &Probe,
    (start, end): (Start, End),
    how: &str,
    (len, read): (usize, usize),
) -> io::Result<()> {
    let Pair { client, server } = with_unread(p, (len, read))?;
    let mut client = Some(client);
    match end {
        End::Before => drop(client.take()),
        End::Half => sys::shutdown(client.as_ref().map_or(-1, OwnedFd::as_raw_fd), libc::SHUT_WR)?,
        End::After | End::More => {}
    }
    settle();
    let what = format!("{how} of {len} less {read}, {start:?}, {end:?}");
    let text = started(p, start, how, server, || {
        settle();
        if let Some(client) = client.take().filter(|_| end != End::Half) {
            if end == End::More {
                sys::write(client.as_raw_fd(), b"and more")?;
            }
            drop(client);
        }
        Ok(())
    })?;
    p.say(&what, text);
    Ok(())
}

/// What a program says that has the connection. `meanwhile`: once it is started.
fn started(
    p: &Probe,
    start: Start,
    how: &str,
    server: OwnedFd,
    meanwhile: impl FnOnce() -> io::Result<()> + Send,
) -> io::Result<String> {
    let fd = server.as_raw_fd();
    let (out, into) = sys::pipe()?;
    let mut meanwhile = Some(meanwhile);
    let mut go_on = || meanwhile.take().map_or(Ok(()), |meanwhile| meanwhile());
    let status = match start {
        Start::Exec | Start::Fork => {
            let (held, hold) = sys::pipe()?;
            close_on_exec(&hold)?;
            let child = in_child(|| {
                keep_on_exec(fd);
                sys::read(held.as_raw_fd(), &mut [0])?;
                Err(reader(how, fd)?.stdout(Stdio::from(into.try_clone()?)).exec())
            })?;
            let server = (start == Start::Fork).then_some(server);
            sys::write(hold.as_raw_fd(), b"x")?;
            drop(into);
            go_on()?;
            drop(server);
            child
        }
        Start::Vfork => {
            keep_on_exec(fd);
            keep_on_exec(into.as_raw_fd());
            let program = CString::new(std::env::current_exe()?.as_os_str().as_encoded_bytes())?;
            let number = CString::new(fd.to_string())?;
            let to = CString::new(into.as_raw_fd().to_string())?;
            let how = CString::new(how)?;
            let reader = CString::new(READER)?;
            let child = sys::exec_in_vfork(&program, &[&program, &reader, &how, &number, &to])?;
            drop((server, into));
            go_on()?;
            child
        }
        Start::Spawn => {
            let mut command = reader(how, 0)?;
            command.stdin(Stdio::from(server)).stdout(Stdio::from(into));
            let child = command.spawn()?;
            drop(command);
            go_on()?;
            libc::pid_t::try_from(child.id()).unwrap_or(0)
        }
        Start::System => {
            keep_on_exec(fd);
            keep_on_exec(into.as_raw_fd());
            let program = std::env::current_exe()?;
            let to = into.as_raw_fd();
            let command = format!("{} {READER} {how} {fd} {to}", program.display());
            // As this thread waits for the program.
            let status = thread::scope(|scope| {
                let peer = scope.spawn(&mut go_on);
                let status = sys::system(&CString::new(command)?);
                peer.join().unwrap_or(Ok(())).map(|()| status)
            })?;
            drop((server, into));
            if status != 0 {
                p.say("status", status);
            }
            in_child(|| Ok(()))?
        }
    };
    let mut text = String::new();
    File::from(out).read_to_string(&mut text)?;
    if sys::wait_for(status)? != 0 {
        p.say("no good end of", format!("{start:?}"));
    }
    Ok(text.trim().to_owned())
}

/// The program that reads: until the end, and says what it got.
pub fn read(args: &[String]) -> io::Result<()> {
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<RawFd>().ok());
    let how = args.first().map_or("read", String::as_str);
    let (fd, to) = (number(1).unwrap_or(0), number(2).unwrap_or(1));
    let mut said = Vec::new();
    let mut got = Vec::new();
    let poll = |events| {
        let mut fds = [libc::pollfd { fd, events, revents: 0 }];
        sys::poll(&mut fds, Some(Duration::from_secs(10))).map(|n| (n, fds[0].revents))
    };
    match how {
        "poll" => said.push(format!("told {:?}", poll(libc::POLLIN)?.1 & libc::POLLIN)),
        "count" => said.push(format!("counted {}", show(sys::fionread(fd)))),
        "peek" => {
            let mut seen = [0; 5000];
            let n = sys::recv(fd, &mut seen, libc::MSG_PEEK, false)?;
            said.push(format!("peeked {n} {}", sum(&seen[..n])));
        }
        _ => {}
    }
    let mut epoll = Epoll::new(4)?;
    let edge = if how == "edge" { libc::EPOLLET } else { 0 };
    if matches!(how, "epoll" | "edge") {
        epoll.control(libc::EPOLL_CTL_ADD, fd, (libc::EPOLLIN | edge).cast_unsigned(), 1)?;
        sys::set_nonblocking(fd, true)?;
    }
    let (from_pipe, pipe) = sys::pipe()?;
    let end = loop {
        let mut piece = vec![0; if how == "pieces" { 7 } else { 70_000 }];
        let read = match how {
            "splice" => match sys::splice(fd, pipe.as_raw_fd(), 10_000, 0) {
                Ok(0) => Ok(0),
                Ok(n) => sys::read(from_pipe.as_raw_fd(), &mut piece[..n]),
                Err(e) => Err(e),
            },
            "poll" => {
                poll(libc::POLLIN)?;
                sys::recv(fd, &mut piece, libc::MSG_DONTWAIT, false)
            }
            "vectors" => sys::recv(fd, &mut piece, 0, false),
            _ => sys::read(fd, &mut piece),
        };
        match read {
            Ok(0) => break "end".to_owned(),
            Ok(n) => got.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if epoll.wait(Some(Duration::from_secs(10)))?.is_empty() {
                    break "nothing more".to_owned();
                }
            }
            Err(e) => break sys::errno_name(&e),
        }
    };
    said.push(format!("{} bytes {} {end}", got.len(), sum(&got)));
    // Behind the end nothing comes.
    said.push(show(sys::recv(fd, &mut [0; 10], libc::MSG_DONTWAIT, false)));
    // As the program sees them: none but those that it was given.
    let is_open = |fd: &RawFd| {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(*fd, libc::F_GETFD) >= 0 }
    };
    let strange = (100..5000).filter(is_open).count();
    said.push(format!("{strange} strange"));
    sys::write(to, said.join(", ").as_bytes())?;
    Ok(())
}

/// Order matters.
fn sum(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(0x0100_0000_01b3).wrapping_add(u64::from(*byte) + 1)
    });
    format!("{sum:016x}")
}

/// A reader that has not come to the ring: in front of what lies there are bytes in the kernel socket.
fn before_a_ring(p: &Probe) -> io::Result<()> {
    for ends in [true, false] {
        let Pair { client, server } = p.pair()?;
        close_on_exec(&client)?;
        close_on_exec(&server)?;
        for n in 0..50_u8 {
            sys::write(client.as_raw_fd(), &[n; 20])?;
        }
        // Both know each other by then, and the sender goes on in the ring.
        sys::fionread(server.as_raw_fd())?;
        sys::fionread(client.as_raw_fd())?;
        for n in 50..100_u8 {
            sys::write(client.as_raw_fd(), &[n; 20])?;
        }
        let mut client = Some(client);
        if ends {
            drop(client.take());
        }
        settle();
        let text = started(p, Start::Spawn, "read", server, || {
            drop(client.take());
            Ok(())
        })?;
        p.say("what came both ways", text);
    }
    Ok(())
}

/// The connecting end's unread bytes.
fn other_direction(p: &Probe) -> io::Result<()> {
    for start in [Start::Fork, Start::Spawn] {
        for ends in [true, false] {
            let Pair { client, server } = p.pair()?;
            close_on_exec(&client)?;
            close_on_exec(&server)?;
            sys::write(server.as_raw_fd(), &[5; 5000])?;
            sys::recv(client.as_raw_fd(), &mut [0; 50], libc::MSG_WAITALL, false)?;
            let mut server = Some(server);
            if ends {
                drop(server.take());
            }
            settle();
            let text = started(p, start, "poll", client, || {
                settle();
                drop(server.take());
                Ok(())
            })?;
            p.say(&format!("of the connecting end, {start:?}"), text);
        }
    }
    Ok(())
}

/// What a script prints whose standard input is a connection with these bytes.
fn script(p: &Probe, sent: &[u8], ends: bool, script: &str) -> io::Result<String> {
    let Pair { client, server } = p.pair()?;
    close_on_exec(&client)?;
    close_on_exec(&server)?;
    warm_up(client.as_raw_fd(), server.as_raw_fd())?;
    sys::write(client.as_raw_fd(), sent)?;
    let mut client = Some(client);
    if ends {
        drop(client.take());
    }
    settle();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).stdin(Stdio::from(server)).stdout(Stdio::piped());
    let child = shell.spawn()?;
    drop(shell);
    settle();
    drop(client);
    let out = child.wait_with_output()?;
    Ok(format!("{} {:?}", out.status, String::from_utf8_lossy(&out.stdout)))
}

/// Programs that share what lies unread, one after the other, and one that starts the next before it has read anything.
fn shared(p: &Probe) -> io::Result<()> {
    let lines = b"one\ntwo\nthree\nfour\nfive\nsix\n";
    let scripts = [
        "exec cat",
        "exec sh -c 'exec sh -c \"exec cat\"'",
        "read a; echo \"[$a]\"; cat; read b; echo \"[$b]\"",
        "read a; dd bs=1 count=4 2>/dev/null; read b; echo \"[$a $b]\"; true; dd bs=1 count=5 2>/dev/null; cat",
        "exec 5<&0; dd bs=1 count=3 <&5 2>/dev/null; exec 0</dev/null; exec cat <&5",
        "(dd bs=1 count=4 2>/dev/null); (read a; echo \"[$a]\"); cat",
        "while read a; do echo \"<$a>\"; true; /bin/true; done",
        "while read a; do echo \"<$a>\"; dd bs=1 count=3 2>/dev/null; done",
        "head -n 1 >/dev/null; wc -c",
        "tail -n 2",
    ];
    for ends in [true, false] {
        for text in scripts {
            p.say(&format!("ended {ends}: {text}"), script(p, lines, ends, text)?);
        }
    }
    Ok(())
}

/// A program that keeps the descriptor, and runs others that do not read from it.
fn kept(p: &Probe) -> io::Result<()> {
    for ends in [true, false] {
        let mut pair = with_unread(p, (5000, 500))?;
        keep_on_exec(pair.s());
        if ends {
            pair.client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
            settle();
        }
        p.say("a command's status", sys::system(c"exit 3"));
        let printed = sys::popen(c"echo here")?;
        p.say("what another one has printed", String::from_utf8_lossy(&printed).trim());
        let mut rest = vec![0; 5000];
        let n = sys::recv(pair.s(), &mut rest, libc::MSG_DONTWAIT, false)?;
        p.say("read on", format!("{n} {}", sum(&rest[..n])));
        p.result("and then", sys::recv(pair.s(), &mut rest, libc::MSG_DONTWAIT, false));
    }
    Ok(())
}

/// A program, and those that it runs, read by turns, while the peer looks at the connection.
fn read_by_turns(p: &Probe) -> io::Result<()> {
    let pair = with_unread(p, (5000, 500))?;
    keep_on_exec(pair.s());
    p.say("a command that reads nothing", sys::system(c"true"));
    p.result("the peer looks", sys::recv(pair.c(), &mut [0; 1], libc::MSG_DONTWAIT, false));
    let (out, into) = sys::pipe()?;
    keep_on_exec(into.as_raw_fd());
    let mut piece = [0; 1000];
    for turn in 0..3 {
        let (from, to) = (pair.s(), into.as_raw_fd());
        let command = format!("dd bs=1 count=300 <&{from} >&{to} 2>/dev/null");
        p.say("a command that reads", sys::system(&CString::new(command)?));
        let n = sys::read(out.as_raw_fd(), &mut piece)?;
        p.say(&format!("read by it in turn {turn}"), sum(&piece[..n]));
        let n = sys::recv(pair.s(), &mut piece[..400], libc::MSG_WAITALL, false)?;
        p.say(&format!("read here in turn {turn}"), sum(&piece[..n]));
    }
    drop(pair.client);
    let mut rest = vec![0; 5000];
    let n = sys::recv(pair.server.as_raw_fd(), &mut rest, libc::MSG_WAITALL, false)?;
    p.say("and the rest", format!("{n} {}", sum(&rest[..n])));
    Ok(())
}

/// An exec that fails leaves all as it was.
fn failed(p: &Probe) -> io::Result<()> {
    for ends in [true, false] {
        let pair = with_unread(p, (5000, 500))?;
        let (server, mut client) = (pair.server, Some(pair.client));
        if ends {
            drop(client.take());
            settle();
        }
        sys::exec_nothing(server.as_raw_fd());
        let mut rest = vec![0; 1000];
        sys::recv(server.as_raw_fd(), &mut rest, libc::MSG_WAITALL, false)?;
        p.say("read after an exec that failed", sum(&rest));
        let text = started(p, Start::Fork, "read", server, || {
            drop(client.take());
            Ok(())
        })?;
        p.say("and what the next one found", text);
    }
    Ok(())
}

/// Programs that know nothing of it have no descriptor more; nor has one that was not given the connection.
fn unseen(p: &Probe) -> io::Result<()> {
    for (given, shunted) in [(true, false), (false, true)] {
        let pair = with_unread(p, (5000, 500))?;
        let mut command = Command::new("/bin/sh");
        if !shunted {
            command.env_clear();
        }
        if given {
            command.stdin(Stdio::from(pair.server));
        }
        let out = command.args(["-c", "exec ls /proc/self/fd | wc -l"]).output()?;
        let count = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        p.say(&format!("descriptors, given {given}"), count);
        drop(pair.client);
    }
    Ok(())
}
