//! Connections and several processes: fork, exec, kill.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::pattern;
use shunt_functional::sys::{self, Forked};

use crate::epoll::look;
use crate::probe::{
    Pair, Probe, connect_to, drain, fill, listener, recv_soon, settle, try_recv, try_send, warm_up,
};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    shared_by_fork(p)?;
    edges_after_fork(p)?;
    set_of_two_processes(p)?;
    set_across_exec(p)?;
    accepted_after_fork(p)?;
    accepted_before_fork(p)?;
    closed_in_shared_memory(p)?;
    killed(p)?;
    killed_while_out_of_a_set(p)?;
    killed_after_its_end(p)?;
    handed_to_programs(p)?;
    left_after_hand_over(p)?;
    both_ends_handed_over(p)?;
    handed_to_a_slow_reader(p)?;
    handed_over_when_full(p)?;
    closed_on_exec(p)
}

/// Many children, one after the other in a moment, each with a connection that ends with it.
pub fn many(p: &mut Probe) -> io::Result<()> {
    const CHILDREN: u32 = 400;
    let listener = listener()?;
    let mut ended = 0;
    for _ in 0..CHILDREN {
        let child = in_child(|| {
            let client = connect_to(&listener)?;
            for _ in 0..4 {
                sys::write(client.as_raw_fd(), &[7; 100])?;
                sys::recv(client.as_raw_fd(), &mut [0; 100], libc::MSG_WAITALL, false)?;
            }
            Ok(())
        })?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let mut buffer = [0; 100];
        while sys::recv(server.as_raw_fd(), &mut buffer, libc::MSG_WAITALL, false)? > 0 {
            sys::write(server.as_raw_fd(), &buffer)?;
        }
        ended += u32::from(sys::wait_for(child)? == 0);
    }
    p.say("all came to their end", ended == CHILDREN);
    Ok(())
}

/// Runs `body` in a forked child, which must succeed.
pub fn in_child(body: impl FnOnce() -> io::Result<()>) -> io::Result<libc::pid_t> {
    match sys::fork()? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => {
            let code = match body() {
                Ok(()) => 0,
                Err(e) => {
                    eprintln!("shunt-probe child: {e}");
                    1
                }
            };
            sys::exit_now(code)
        }
    }
}

/// The same with a child that becomes another program; returns when it has.
fn exec_in_child(command: &mut Command) -> io::Result<libc::pid_t> {
    let (reader, writer) = sys::pipe()?;
    close_on_exec(&writer)?;
    let child = in_child(|| Err(command.exec()))?;
    drop(writer);
    sys::read(reader.as_raw_fd(), &mut [0])?;
    Ok(child)
}

/// Both processes use the same connection.
fn shared_by_fork(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"before the fork")?;
    settle();
    let child = in_child(|| {
        let mut buffer = [0; 6];
        sys::recv(pair.s(), &mut buffer, libc::MSG_WAITALL, false)?;
        sys::write(pair.s(), b"child")?;
        // The parent's bytes come after the child's.
        Ok(())
    })?;
    p.say("a child that uses the connection", sys::wait_for(child)?);
    p.result("what the child left", try_recv(pair.s(), 100));
    sys::write(pair.s(), b"parent")?;
    settle();
    p.result("what both have sent", try_recv(pair.c(), 100));
    p.result("no end when the child has ended", try_recv(pair.c(), 100));

    // The connection lives as long as one of them has it.
    let Pair { client, server } = p.pair()?;
    let number = server.as_raw_fd();
    let child = in_child(|| {
        let mut byte = [0; 1];
        sys::read(number, &mut byte)?;
        sys::write(number, b"from the child")?;
        Ok(())
    })?;
    drop(server);
    settle();
    p.result("no end when the parent has closed", try_recv(client.as_raw_fd(), 100));
    sys::write(client.as_raw_fd(), b"x")?;
    p.say("the child", sys::wait_for(child)?);
    settle();
    p.result("its bytes", try_recv(client.as_raw_fd(), 100));
    p.result("the end when the child has ended", try_recv(client.as_raw_fd(), 100));
    Ok(())
}

/// A child of vfork(2) has descriptors of its own, and its parent's memory: what it closes is the parent's still.
fn closed_in_shared_memory(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    for (how, close) in
        [("vfork", sys::close_in_vfork as fn(_) -> _), ("clone", sys::close_in_clone as fn(_) -> _)]
    {
        sys::write(pair.c(), b"unread")?;
        settle();
        p.say(&format!("a child by {how} that closes"), sys::wait_for(close(pair.s())?)?);
        sys::write(pair.c(), b" and after")?;
        settle();
        p.result("what was unread, and more", try_recv(pair.s(), 100));
        p.result("no end", try_recv(pair.s(), 100));
        sys::write(pair.s(), b"back")?;
        p.result("what is sent back", try_recv(pair.c(), 100));
    }
    Ok(())
}

/// A child that watches what it has inherited is told of each change once.
fn edges_after_fork(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let child = in_child(|| {
        let mut epoll = sys::Epoll::new(8)?;
        let interest = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
        epoll.control(libc::EPOLL_CTL_ADD, pair.s(), interest, 1)?;
        let mut look = |millis| epoll.wait(Some(Duration::from_millis(millis))).map(|e| e.len());
        for n in 0..2 {
            sys::write(pair.c(), b"x")?;
            settle();
            p.result(&format!("edge {n} in a child"), look(1000));
            p.result("again", look(0));
        }
        let n = sys::poll(
            &mut [libc::pollfd { fd: pair.s(), events: libc::POLLIN, revents: 0 }],
            Some(Duration::ZERO),
        );
        p.result("unread in a child", n);
        Ok(())
    })?;
    p.say("a child that watches", sys::wait_for(child)?);
    Ok(())
}

/// An epoll instance that parent and child share: what one takes out the other may have added since.
fn set_of_two_processes(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let mut epoll = sys::Epoll::new(8)?;
    let interest = (libc::EPOLLIN | libc::EPOLLRDHUP).cast_unsigned();
    epoll.control(libc::EPOLL_CTL_ADD, server.as_raw_fd(), interest, 1)?;
    epoll.control(libc::EPOLL_CTL_DEL, server.as_raw_fd(), 0, 0)?;
    let (ready, says_ready) = sys::pipe()?;
    let child = in_child(|| {
        // SAFETY: the child's copy, which nothing here uses.
        unsafe { libc::close(client.as_raw_fd()) };
        epoll.control(libc::EPOLL_CTL_ADD, server.as_raw_fd(), interest, 2)?;
        sys::write(says_ready.as_raw_fd(), b"x")?;
        sys::end_within(10);
        let found = epoll.wait(None)?;
        p.say("what a child hears in a shared set", found.len());
        p.result("the end, in the child", try_recv(server.as_raw_fd(), 10));
        Ok(())
    })?;
    sys::read(ready.as_raw_fd(), &mut [0])?;
    drop(server);
    settle();
    drop(client);
    p.say("a child that shares a set", sys::wait_for(child)?);
    Ok(())
}

/// A child that becomes a program hands over what it inherited, while the parent watches it. The peer accepts
/// before, or afterwards.
fn set_across_exec(p: &Probe) -> io::Result<()> {
    for (mode, before) in [
        (0, true),
        (0, false),
        (libc::EPOLLET, true),
        (libc::EPOLLET, false),
        (libc::EPOLLONESHOT, true),
        (libc::EPOLLONESHOT, false),
    ] {
        let listener = listener()?;
        let accept = || sys::accept(listener.as_raw_fd(), 0).map(|(server, _)| server);
        let mut client = connect_to(&listener)?;
        let mut server = None;
        if before {
            let pair = p.ready(Pair { client, server: accept()? })?;
            (client, server) = (pair.client, Some(pair.server));
        }
        let fd = client.as_raw_fd();
        let mut epoll = sys::Epoll::new(8)?;
        let interest = (libc::EPOLLIN | mode).cast_unsigned();
        epoll.control(libc::EPOLL_CTL_ADD, fd, interest, 1)?;
        let child = exec_in_child(&mut Command::new("true"))?;
        p.say("a child that becomes a program", sys::wait_for(child)?);
        let server = match server {
            Some(server) => server,
            None => accept()?,
        };
        for round in 0..3 {
            sys::write(server.as_raw_fd(), b"abc")?;
            settle();
            p.say(&format!("news {round}"), look(&mut epoll, 1000)?);
            p.result("read", try_recv(fd, 100));
            epoll.control(libc::EPOLL_CTL_MOD, fd, interest, 1)?;
            p.say("no more", look(&mut epoll, 0)?);
        }
    }
    Ok(())
}

/// A prefork worker: the listener is inherited.
fn accepted_after_fork(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    if p.warm {
        drop(p.pair_with(&listener)?);
    }
    let child = in_child(|| {
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        echo(&server)
    })?;
    let client = connect_to(&listener)?;
    for n in 0..5 {
        sys::write(client.as_raw_fd(), &[n; 1000])?;
        let mut back = [0; 1000];
        sys::recv(client.as_raw_fd(), &mut back, libc::MSG_WAITALL, false)?;
        p.say("echo of a worker", back == [n; 1000]);
    }
    sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
    p.result("the worker's end", sys::read(client.as_raw_fd(), &mut [0; 10]));
    p.say("the worker", sys::wait_for(child)?);
    Ok(())
}

/// A server that forks for each connection.
fn accepted_before_fork(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    for round in 0..3 {
        let pair = p.pair_with(&listener)?;
        let client = pair.client;
        let server = pair.server;
        let raw = client.as_raw_fd();
        let child = in_child(|| {
            // A child does not hold the client's end of its own connection.
            sys::dup2(2, &client)?;
            echo(&server)
        })?;
        drop(server);
        sys::write(raw, &[round; 5000])?;
        let mut back = [0; 5000];
        sys::recv(raw, &mut back, libc::MSG_WAITALL, false)?;
        p.say("echo of a forked child", back == [round; 5000]);
        sys::shutdown(raw, libc::SHUT_WR)?;
        p.result("the child's end", sys::read(raw, &mut [0; 10]));
        p.say("the child", sys::wait_for(child)?);
    }
    Ok(())
}

/// Sends back what comes until the end.
fn echo(fd: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match sys::read(fd.as_raw_fd(), &mut buffer)? {
            0 => return Ok(()),
            n => sys::write(fd.as_raw_fd(), &buffer[..n])?,
        };
    }
}

/// A peer that has half-closed, and reads nothing, is killed while this end waits for room, or before.
fn killed_after_its_end(p: &Probe) -> io::Result<()> {
    for how in ["a call", "poll", "epoll", "a call after that"] {
        let (child, server) = child_that_connects(p.warm, true)?;
        let fd = server.as_raw_fd();
        let mut words = [0; 10];
        sys::recv(fd, &mut words, libc::MSG_WAITALL, false)?;
        p.result("half-closed", sys::recv(fd, &mut words, 0, false));
        let kill = || {
            sys::kill(child, libc::SIGKILL)?;
            sys::wait_for(child)
        };
        let calls = matches!(how, "a call" | "a call after that");
        sys::set_nonblocking(fd, !calls)?;
        let patience = Some(Duration::from_secs(10));
        let error = thread::scope(|scope| {
            if how == "a call after that" {
                kill()?;
            } else {
                scope.spawn(|| {
                    // It is waiting by then.
                    thread::sleep(Duration::from_millis(300));
                    kill()
                });
            }
            let mut epoll = sys::Epoll::new(8)?;
            epoll.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT.cast_unsigned(), 1)?;
            loop {
                let flags = if calls { 0 } else { libc::MSG_DONTWAIT } | libc::MSG_NOSIGNAL;
                match sys::send(fd, &[0; 100_000], flags) {
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                        let n = match how {
                            "poll" => sys::poll(&mut fds, patience)?,
                            _ => epoll.wait(patience)?.len(),
                        };
                        if n == 0 {
                            return Ok("none".into());
                        }
                    }
                    Err(e) => return io::Result::Ok(sys::errno_name(&e)),
                }
            }
        })?;
        p.say(&format!("killed after its end, heard by {how}"), error);
    }
    Ok(())
}

/// A child that connects, says something (and that it has no more to say) and stays; and this end of the
/// connection.
fn child_that_connects(warm: bool, ends: bool) -> io::Result<(libc::pid_t, OwnedFd)> {
    let listener = listener()?;
    let addr = crate::probe::address(&listener)?;
    let child = in_child(|| {
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        sys::connect(client.as_raw_fd(), addr)?;
        if warm {
            let mut buffer = [0; 100];
            for _ in 0..4 {
                sys::write(client.as_raw_fd(), &[7; 100])?;
                sys::recv(client.as_raw_fd(), &mut buffer, libc::MSG_WAITALL, false)?;
            }
        }
        sys::write(client.as_raw_fd(), b"last words")?;
        if ends {
            sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
        }
        thread::sleep(Duration::from_secs(60));
        Ok(())
    })?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    let fd = server.as_raw_fd();
    if warm {
        let mut buffer = [0; 100];
        for _ in 0..4 {
            sys::recv(fd, &mut buffer, libc::MSG_WAITALL, false)?;
            sys::write(fd, &[7; 100])?;
        }
    }
    Ok((child, server))
}

/// The peer is killed while the connection is out of the epoll set: the kernel tells that once.
fn killed_while_out_of_a_set(p: &Probe) -> io::Result<()> {
    let (child, server) = child_that_connects(p.warm, false)?;
    let fd = server.as_raw_fd();
    let mut words = [0; 10];
    sys::recv(fd, &mut words, libc::MSG_WAITALL, false)?;
    let mut epoll = sys::Epoll::new(8)?;
    let interest = (libc::EPOLLIN | libc::EPOLLRDHUP).cast_unsigned();
    epoll.control(libc::EPOLL_CTL_ADD, fd, interest, 1)?;
    p.say("before its peer is killed", look(&mut epoll, 0)?);
    epoll.control(libc::EPOLL_CTL_DEL, fd, 0, 0)?;
    sys::kill(child, libc::SIGKILL)?;
    p.say("the killed one", sys::wait_for(child)?);
    settle();
    p.say("killed while it is out", look(&mut epoll, 0)?);
    epoll.control(libc::EPOLL_CTL_ADD, fd, interest, 2)?;
    p.say("added after that", look(&mut epoll, 1000)?);
    p.result("and read", try_recv(fd, 10));
    Ok(())
}

/// `kill -9` looks to the peer as it does over TCP.
fn killed(p: &Probe) -> io::Result<()> {
    for unread in [false, true] {
        let (child, server) = child_that_connects(p.warm, false)?;
        let fd = server.as_raw_fd();
        if unread {
            sys::write(fd, b"never read")?;
        }
        let mut words = [0; 10];
        sys::recv(fd, &mut words, libc::MSG_WAITALL | libc::MSG_PEEK, false)?;
        settle();
        sys::kill(child, libc::SIGKILL)?;
        p.say("the killed one", sys::wait_for(child)?);
        let mut fds = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let started = Instant::now();
        let n = sys::poll(&mut fds, Some(Duration::from_secs(5)));
        p.result("poll for its end", n);
        p.say("at once", started.elapsed() < Duration::from_secs(3));
        let what = if unread { "killed with unread data" } else { "killed" };
        p.result(&format!("{what}: read"), try_recv(fd, 100));
        p.result(&format!("{what}: read again"), try_recv(fd, 100));
        p.result(&format!("{what}: send"), try_send(fd, b"x"));
    }
    Ok(())
}

/// A connection as a program's standard input and output, with and without this environment.
fn handed_to_programs(p: &Probe) -> io::Result<()> {
    for same_environment in [true, false] {
        let pair = p.pair()?;
        let mut command = Command::new("/bin/cat");
        if !same_environment {
            command.env_clear();
        }
        let stdin = Stdio::from(pair.server.try_clone()?);
        // The child must not keep the peer's end open.
        close_on_exec(&pair.client)?;
        let mut cat = command.stdin(stdin).stdout(Stdio::from(pair.server)).spawn()?;
        // `command` still holds the descriptors that it gave.
        drop(command);
        let fd = pair.client.as_raw_fd();
        let mut right = 0;
        for n in 0..20u8 {
            sys::write(fd, &[n; 777])?;
            let mut back = [0; 777];
            sys::recv(fd, &mut back, libc::MSG_WAITALL, false)?;
            right += i32::from(back == [n; 777]);
        }
        p.say("echoes of cat", right);
        sys::shutdown(fd, libc::SHUT_WR)?;
        p.result("its end", sys::read(fd, &mut [0; 10]));
        p.say("its status", cat.wait()?);
    }

    // A program that this process becomes, as inetd's children do.
    let Pair { client, server } = p.pair()?;
    close_on_exec(&client)?;
    sys::write(client.as_raw_fd(), b"sent before the exec\n")?;
    settle();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read line; echo \"got $line\"; exec cat"]);
    shell.stdin(Stdio::from(server.try_clone()?)).stdout(Stdio::from(server.try_clone()?));
    let child = exec_in_child(&mut shell)?;
    drop((shell, server));
    // Under Shunt the rest of a ring is sent anew when this side next sends: before the FIN.
    sys::write(client.as_raw_fd(), b"and after it\n")?;
    sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
    p.say("a shell and cat", sys::wait_for(child)?);
    settle();
    p.result("what they have sent", drain(client.as_raw_fd()));
    Ok(())
}

/// A program that counts what it gets from `stdin`, after `nap` seconds.
fn counter(stdin: &OwnedFd, nap: &str) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", &format!("sleep {nap}; exec wc -c")])
        .stdin(Stdio::from(stdin.try_clone()?))
        .stdout(Stdio::piped())
        .spawn()
}

/// What the program has counted.
fn counted(child: Child) -> io::Result<String> {
    let output = child.wait_with_output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A connection whose server's end goes to a program that counts, after a pause, what was sent.
fn handed_over(p: &Probe, pause: &str) -> io::Result<(OwnedFd, Child)> {
    let Pair { client, server } = p.pair()?;
    close_on_exec(&client)?;
    close_on_exec(&server)?;
    sys::write(client.as_raw_fd(), &[7; 50_000])?;
    let child = counter(&server, pause)?;
    Ok((client, child))
}

/// The peer of a connection that was handed over closes without another look at it.
fn left_after_hand_over(p: &Probe) -> io::Result<()> {
    for half in [true, false] {
        let (client, child) = handed_over(p, "0")?;
        if half {
            sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
            p.say("sent before a hand-over and a half-close", counted(child)?);
            p.result("the end of the program that has it", try_recv(client.as_raw_fd(), 10));
        } else {
            drop(client);
            p.say("sent before a hand-over and a close", counted(child)?);
        }
    }
    Ok(())
}

/// Each end goes to a program; the second one without a look at what became of the first.
fn both_ends_handed_over(p: &Probe) -> io::Result<()> {
    for looks in [false, true] {
        let (client, child) = handed_over(p, "0.1")?;
        if looks {
            p.result("nothing to read yet", try_recv(client.as_raw_fd(), 10));
        }
        let mut writer = Command::new("/bin/sh");
        writer.args(["-c", "printf abc"]).stdout(Stdio::from(client));
        p.say("the writer's status", writer.status()?);
        drop(writer);
        p.say("sent before two hand-overs", counted(child)?);
    }
    Ok(())
}

/// More lies unread than a ring holds, so the rest came over TCP, when the server's end goes to a program:
/// with some of it read before, and beside a sender that is still at it.
fn handed_over_when_full(p: &Probe) -> io::Result<()> {
    const MANY: usize = 1_500_000;
    for (read, ends) in [(0, true), (100_000, true), (100_000, false)] {
        let Pair { client, server } = p.pair()?;
        close_on_exec(&client)?;
        close_on_exec(&server)?;
        let mut bytes = vec![0; MANY];
        pattern::fill(4, 0, &mut bytes);
        sys::write(client.as_raw_fd(), &bytes)?;
        let mut first = vec![0; read];
        p.result(
            "read before",
            sys::recv(server.as_raw_fd(), &mut first, libc::MSG_WAITALL, false),
        );
        let program = Command::new("/usr/bin/sha256sum")
            .stdin(Stdio::from(server))
            .stdout(Stdio::piped())
            .spawn()?;
        if ends {
            sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
        } else {
            // The descriptor is another program's, too, by which the end is the second one's.
            let mut writer = Command::new("/bin/sh");
            writer.args(["-c", "printf abc"]).stdout(Stdio::from(client));
            p.say("a writer's status", writer.status()?);
        }
        p.say("what the program got", counted(program)?);
    }
    // Read on by the program itself, without another one.
    let pair = p.pair()?;
    let mut bytes = vec![0; MANY];
    pattern::fill(5, 0, &mut bytes);
    sys::write(pair.c(), &bytes)?;
    let mut got = vec![0; MANY];
    p.result("waiting", sys::fionread(pair.s()).map(|n| n > 10_000));
    p.result("peeked", sys::recv(pair.s(), &mut got[..1000], libc::MSG_PEEK, false));
    p.result("received", sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false));
    p.say("right", got == bytes);
    let mut fds = [libc::pollfd { fd: pair.s(), events: libc::POLLIN, revents: 0 }];
    p.result("nothing else", sys::poll(&mut fds, Some(Duration::from_millis(20))));
    p.result("nor by recv", try_recv(pair.s(), 10));
    p.result("nor counted", sys::fionread(pair.s()));
    sys::write(pair.c(), b"on")?;
    p.result("goes on", recv_soon(pair.s(), 10));
    Ok(())
}

/// A program that lets long wait what was sent before it got the connection.
fn handed_to_a_slow_reader(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    close_on_exec(&client)?;
    close_on_exec(&server)?;
    let own = client.as_raw_fd();
    let sent = fill(own)?;
    // Too little for what lies unread.
    sys::set_option(own, libc::SOL_SOCKET, libc::SO_SNDBUF, 16 << 10)?;
    let child = counter(&server, "3")?;
    drop(server);
    let mut fds = [libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 }];
    p.result("nothing to read from a slow reader", sys::poll(&mut fds, Some(Duration::ZERO)));
    p.result("nothing to read, by recv", try_recv(own, 10));
    p.result("no room either", try_send(own, b"x"));
    p.result("a send that waits for it", sys::write(own, &[8; 1000]));
    drop(client);
    p.say("it gets all", counted(child)? == (sent + 1000).to_string());
    Ok(())
}

/// FD_CLOEXEC on a descriptor that was made without.
pub fn close_on_exec(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An exec closes what is marked so, and the peer sees the end.
fn closed_on_exec(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    close_on_exec(&server)?;
    close_on_exec(&client)?;
    warm_up(client.as_raw_fd(), server.as_raw_fd())?;
    let child = exec_in_child(Command::new("/bin/sleep").arg("60"))?;
    drop(server);
    p.result("the end, though a child of the time lives", recv_soon(client.as_raw_fd(), 10));
    sys::kill(child, libc::SIGKILL)?;
    p.say("the child", sys::wait_for(child)?);

    // The parent closes first, and the exec is the end.
    let Pair { client, server } = p.pair()?;
    close_on_exec(&server)?;
    close_on_exec(&client)?;
    warm_up(client.as_raw_fd(), server.as_raw_fd())?;
    let (held, hold) = sys::pipe()?;
    let child = in_child(|| {
        sys::read(held.as_raw_fd(), &mut [0])?;
        Err(Command::new("/bin/sleep").arg("60").exec())
    })?;
    drop(server);
    settle();
    p.result("no end before the exec", try_recv(client.as_raw_fd(), 10));
    sys::write(hold.as_raw_fd(), b"x")?;
    p.result("the end by an exec", recv_soon(client.as_raw_fd(), 10));
    sys::kill(child, libc::SIGKILL)?;
    p.say("the child that has become another program", sys::wait_for(child)?);
    Ok(())
}
