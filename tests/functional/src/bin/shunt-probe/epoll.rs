//! epoll over time: edges, one-shots, members that come and go.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use libc::c_int;
use shunt_functional::sys::{self, Epoll};

use crate::nested;
use crate::probe::{
    Pair, Probe, address, done, drain, fill, listener, recv_soon, settle, try_recv,
};
use crate::readiness::bits;

/// Of the C name.
pub const IN: u32 = libc::EPOLLIN.cast_unsigned();
const OUT: u32 = libc::EPOLLOUT.cast_unsigned();
/// Of the C name.
pub const RDHUP: u32 = libc::EPOLLRDHUP.cast_unsigned();
/// Of the C name.
pub const ET: u32 = libc::EPOLLET.cast_unsigned();
/// Of the C name.
pub const ONESHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE.cast_unsigned();
/// Of the C name.
pub const ADD: i32 = libc::EPOLL_CTL_ADD;
/// Of the C name.
pub const MOD: i32 = libc::EPOLL_CTL_MOD;
/// Of the C name.
pub const DEL: i32 = libc::EPOLL_CTL_DEL;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    edges(p)?;
    edges_of_room(p)?;
    one_shots(p)?;
    asked_for_nothing(p)?;
    control(p)?;
    taken_out_and_added(p)?;
    members_that_go(p)?;
    mixed(p)?;
    order(p)?;
    nested::run(p)?;
    exclusive(p)?;
    exclusive_before_connect(p)?;
    no_room(p)?;
    two_sets(p)?;
    two_sets_of_a_copy(p)?;
    unknown_set(p)?;
    from_other_threads(p)?;
    counted(p)
}

/// What a set has to say within `millis`.
pub fn look(epoll: &mut Epoll, millis: u64) -> io::Result<String> {
    let mut found = epoll.wait(Some(Duration::from_millis(millis)))?;
    found.sort_by_key(|e| e.data);
    let shown: Vec<String> =
        found.iter().map(|e| format!("{}={}", e.data, bits(e.events.cast_signed()))).collect();
    Ok(if shown.is_empty() { "nothing".into() } else { shown.join(" ") })
}

/// Sends, and lets it arrive.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    sys::write(fd, bytes)?;
    settle();
    Ok(())
}

/// Who has news first is told of first, among connections from one program to one listener.
fn order(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let pairs = (0..8).map(|_| p.pair_with(&listener)).collect::<io::Result<Vec<_>>>()?;
    let mut epoll = Epoll::new(8)?;
    for (n, pair) in pairs.iter().enumerate() {
        epoll.control(ADD, pair.s(), IN, n as u64)?;
    }
    // A look after what is new in the set.
    p.say("order: nothing", look(&mut epoll, 0)?);
    for order in [[5, 2, 7, 0, 3, 6, 1, 4], [1, 0, 4, 7, 6, 5, 2, 3]] {
        for n in order {
            sys::write(pairs[n].c(), b"x")?;
        }
        settle();
        let found = epoll.wait(Some(Duration::ZERO))?;
        p.say("order", format!("{:?}", found.iter().map(|e| e.data).collect::<Vec<_>>()));
        for pair in &pairs {
            try_recv(pair.s(), 10)?;
        }
        p.say("order: nothing", look(&mut epoll, 0)?);
    }
    Ok(())
}

/// A buffer for the events that cannot be written: no event is lost by it.
fn no_room(p: &Probe) -> io::Result<()> {
    // SAFETY: a new mapping.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0)
    };
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, pair.s(), IN | ET, 1)?;
    let fd = epoll.as_raw_fd();
    let try_it = |millis| {
        // SAFETY: the kernel, or who stands for it, refuses the address.
        let n = unsafe { libc::epoll_wait(fd, at.cast(), 8, millis) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    };
    send(pair.c(), b"data")?;
    p.result("no room for an event", try_it(0));
    p.result("again", try_it(-1));
    p.say("with room", look(&mut epoll, 0)?);
    p.say("again", look(&mut epoll, 0)?);
    send(pair.c(), b"data")?;
    p.result("without room", try_it(0));
    p.say("with room", look(&mut epoll, 0)?);
    p.result("read", try_recv(pair.s(), 100));
    Ok(())
}

fn edges(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, pair.s(), IN | OUT | RDHUP | ET, 1)?;
    p.say("edge: after add", look(&mut epoll, 0)?);
    p.say("edge: again", look(&mut epoll, 0)?);
    send(pair.c(), b"0123456789")?;
    p.say("edge: data", look(&mut epoll, 0)?);
    p.say("edge: again", look(&mut epoll, 0)?);
    p.result("read a part", try_recv(pair.s(), 4));
    p.say("edge: after a part", look(&mut epoll, 0)?);
    send(pair.c(), b"more")?;
    p.say("edge: more data upon unread data", look(&mut epoll, 0)?);
    p.result("read the rest", try_recv(pair.s(), 100));
    p.say("edge: after the rest", look(&mut epoll, 0)?);
    send(pair.c(), b"again")?;
    epoll.control(MOD, pair.s(), IN | RDHUP | ET, 2)?;
    p.say("edge: after MOD", look(&mut epoll, 0)?);
    p.say("edge: again", look(&mut epoll, 0)?);
    epoll.control(MOD, pair.s(), IN | RDHUP | ET, 3)?;
    p.say("edge: after MOD with unread data", look(&mut epoll, 0)?);
    p.result("read", try_recv(pair.s(), 100));
    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    settle();
    p.say("edge: peer half-closed", look(&mut epoll, 0)?);
    p.say("edge: again", look(&mut epoll, 0)?);
    drop(pair.client);
    settle();
    p.say("edge: peer closed", look(&mut epoll, 0)?);
    Ok(())
}

fn edges_of_room(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, pair.c(), OUT | ET, 1)?;
    p.say("edge of room: after add", look(&mut epoll, 0)?);
    let sent = fill(pair.c())?;
    p.say("edge of room: full", look(&mut epoll, 0)?);
    p.say("edge of room: all arrived", drain(pair.s())? == sent);
    p.say("edge of room: drained", look(&mut epoll, 2000)?);
    p.say("edge of room: again", look(&mut epoll, 0)?);
    Ok(())
}

fn one_shots(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, pair.s(), IN | ONESHOT, 1)?;
    send(pair.c(), b"one")?;
    p.say("one-shot: data", look(&mut epoll, 0)?);
    send(pair.c(), b"two")?;
    p.say("one-shot: more data", look(&mut epoll, 0)?);
    epoll.control(MOD, pair.s(), IN | ONESHOT, 2)?;
    p.say("one-shot: armed again", look(&mut epoll, 0)?);
    p.result("read", try_recv(pair.s(), 100));
    epoll.control(MOD, pair.s(), IN | ONESHOT, 3)?;
    p.say("one-shot: armed, nothing to read", look(&mut epoll, 0)?);
    send(pair.c(), b"three")?;
    p.say("one-shot: data for the armed one", look(&mut epoll, 0)?);
    drop(pair.client);
    settle();
    p.say("one-shot: peer closed, not armed", look(&mut epoll, 0)?);
    Ok(())
}

fn control(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    p.say("MOD before ADD", done(epoll.control(MOD, pair.s(), IN, 1)));
    p.say("DEL before ADD", done(epoll.control(DEL, pair.s(), IN, 1)));
    p.say("ADD", done(epoll.control(ADD, pair.s(), IN, 1)));
    p.say("ADD again", done(epoll.control(ADD, pair.s(), IN, 1)));
    p.say("MOD to nothing", done(epoll.control(MOD, pair.s(), 0, 1)));
    send(pair.c(), b"x")?;
    p.say("set for nothing", look(&mut epoll, 0)?);
    p.say("MOD", done(epoll.control(MOD, pair.s(), IN, 5)));
    p.say("now for something", look(&mut epoll, 0)?);
    p.say("DEL", done(epoll.control(DEL, pair.s(), 0, 0)));
    p.say("after DEL", look(&mut epoll, 0)?);
    p.say("DEL again", done(epoll.control(DEL, pair.s(), 0, 0)));
    p.say("ADD of itself", done(epoll.control(ADD, epoll.as_raw_fd(), IN, 0)));
    let file = sys::memfd(c"probe")?;
    p.say("ADD of a file", done(epoll.control(ADD, file.as_raw_fd(), IN, 0)));
    p.say("ADD of a closed descriptor", done(epoll.control(ADD, 9999, IN, 0)));
    p.say("control of a socket", done(not_epoll(pair.c(), pair.s())));
    Ok(())
}

/// Members that are taken out, and added again for something else: programs do it for each request.
fn taken_out_and_added(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let (peer, fd) = (client.as_raw_fd(), server.as_raw_fd());
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, fd, OUT, 1)?;
    p.say("to be added again: room", look(&mut epoll, 0)?);
    epoll.control(DEL, fd, 0, 0)?;
    p.say("MOD of one that was taken out", done(epoll.control(MOD, fd, IN, 2)));
    p.say("ADD of it", done(epoll.control(ADD, fd, IN, 3)));
    p.say("ADD of it again", done(epoll.control(ADD, fd, IN, 4)));
    p.say("MOD of it", done(epoll.control(MOD, fd, IN, 5)));
    p.say("nothing for it", look(&mut epoll, 0)?);
    send(peer, b"one")?;
    p.say("data for it", look(&mut epoll, 0)?);
    epoll.control(DEL, fd, 0, 0)?;
    p.say("taken out with data", look(&mut epoll, 0)?);
    // More than a set bears of one that it does not watch.
    for _ in 0..20 {
        send(peer, b"more")?;
        p.result("read while it is out", try_recv(fd, 100));
        p.say("said while it is out", look(&mut epoll, 0)?);
    }
    send(peer, b"last")?;
    epoll.control(ADD, fd, IN | RDHUP | ET, 6)?;
    p.say("added with data", look(&mut epoll, 0)?);
    epoll.control(DEL, fd, 0, 0)?;
    drop(client);
    settle();
    p.say("the end of one that was taken out", look(&mut epoll, 0)?);
    epoll.control(ADD, fd, IN | RDHUP, 7)?;
    p.say("added after the end", look(&mut epoll, 0)?);
    epoll.control(DEL, fd, 0, 0)?;
    p.say("DEL of it twice", done(epoll.control(DEL, fd, 0, 0)));
    Ok(())
}

/// epoll_ctl on something else.
fn not_epoll(fd: RawFd, member: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: IN, u64: 0 };
    // SAFETY: event is valid.
    match unsafe { libc::epoll_ctl(fd, ADD, member, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn members_that_go(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, pair.s(), IN, 1)?;
    send(pair.c(), b"x")?;
    let copy = sys::dup(pair.s())?;
    drop(pair.server);
    p.say("the descriptor is closed, a duplicate is open", look(&mut epoll, 0)?);
    p.result("read through the duplicate", try_recv(copy.as_raw_fd(), 10));
    p.say("after the read", look(&mut epoll, 0)?);
    send(pair.client.as_raw_fd(), b"y")?;
    p.say("more data for the duplicate", look(&mut epoll, 0)?);
    drop(copy);
    p.say("all are closed", look(&mut epoll, 0)?);

    // A number that is used again is a new member.
    let first = p.pair()?;
    let number = first.s();
    epoll.control(ADD, number, IN, 10)?;
    drop(first);
    let second = p.pair()?;
    p.say("not a member yet", done(epoll.control(MOD, second.s(), IN, 11)));
    p.say("add it", done(epoll.control(ADD, second.s(), IN, 11)));
    send(second.c(), b"z")?;
    p.say("the new member", look(&mut epoll, 0)?);
    Ok(())
}

fn mixed(p: &Probe) -> io::Result<()> {
    let (one, two) = (p.pair()?, p.pair()?);
    let (read, write) = sys::pipe()?;
    let event = sys::eventfd()?;
    let mut epoll = Epoll::new(8)?;
    for (n, fd) in [one.s(), two.s(), read.as_raw_fd(), event.as_raw_fd()].into_iter().enumerate() {
        epoll.control(ADD, fd, IN, n as u64)?;
    }
    p.say("mixed: nothing", look(&mut epoll, 0)?);
    sys::write(write.as_raw_fd(), b"x")?;
    p.say("mixed: pipe", look(&mut epoll, 0)?);
    send(one.c(), b"x")?;
    p.say("mixed: pipe and socket", look(&mut epoll, 0)?);
    sys::write(event.as_raw_fd(), &1u64.to_ne_bytes())?;
    send(two.c(), b"x")?;
    p.say("mixed: everything", look(&mut epoll, 0)?);
    // With room for one event per wait, each gets its turn.
    let mut narrow = Epoll::new(1)?;
    for (n, fd) in [one.s(), two.s(), read.as_raw_fd(), event.as_raw_fd()].into_iter().enumerate() {
        narrow.control(ADD, fd, IN, n as u64)?;
    }
    let mut seen = [false; 4];
    for _ in 0..40 {
        for found in narrow.wait(Some(Duration::ZERO))? {
            if let Some(one) = usize::try_from(found.data).ok().and_then(|n| seen.get_mut(n)) {
                *one = true;
            }
        }
    }
    p.say("narrow: everyone gets a turn", format!("{seen:?}"));
    try_recv(one.s(), 10)?;
    try_recv(two.s(), 10)?;
    p.say("mixed: sockets read", look(&mut epoll, 0)?);
    Ok(())
}

/// Who asks for no events hears of the end all the same.
fn asked_for_nothing(p: &Probe) -> io::Result<()> {
    for modified in [false, true] {
        let pair = p.pair()?;
        let mut epoll = Epoll::new(8)?;
        epoll.control(ADD, pair.s(), if modified { IN } else { 0 }, 1)?;
        if modified {
            epoll.control(MOD, pair.s(), 0, 1)?;
        }
        send(pair.c(), b"x")?;
        p.say("nothing asked: data", look(&mut epoll, 20)?);
        sys::shutdown(pair.s(), libc::SHUT_WR)?;
        sys::shutdown(pair.c(), libc::SHUT_WR)?;
        p.say("nothing asked: both ends", look(&mut epoll, 1000)?);
    }
    Ok(())
}

fn exclusive(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    p.say("exclusive: ADD", done(epoll.control(ADD, pair.s(), IN | EXCLUSIVE, 1)));
    p.say("exclusive: MOD", done(epoll.control(MOD, pair.s(), IN | EXCLUSIVE, 1)));
    p.say("exclusive: MOD without", done(epoll.control(MOD, pair.s(), IN, 1)));
    p.say("exclusive: nothing", look(&mut epoll, 0)?);
    send(pair.c(), b"x")?;
    p.say("exclusive: data", look(&mut epoll, 0)?);
    p.say("exclusive: DEL", done(epoll.control(DEL, pair.s(), 0, 0)));
    p.say(
        "exclusive and one-shot",
        done(epoll.control(ADD, pair.s(), IN | EXCLUSIVE | ONESHOT, 1)),
    );
    Ok(())
}

/// Registered before it is connected, as Traffic Server does it.
fn exclusive_before_connect(p: &Probe) -> io::Result<()> {
    for edge in [0, ET] {
        let listener = listener()?;
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
        let mut epoll = Epoll::new(8)?;
        epoll.control(ADD, client.as_raw_fd(), IN | EXCLUSIVE | edge, 1)?;
        let at = sys::local_addr(listener.as_raw_fd())?.get();
        sys::connect(client.as_raw_fd(), at.ok_or(io::ErrorKind::AddrNotAvailable)?)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let pair = p.ready(Pair { client, server })?;
        for round in 0..3 {
            send(pair.c(), b"request")?;
            try_recv(pair.s(), 10)?;
            send(pair.s(), b"answer")?;
            p.say(&format!("exclusive before connect: {round}"), look(&mut epoll, 1000)?);
            try_recv(pair.c(), 10)?;
        }
    }
    Ok(())
}

/// One socket in two sets, and in one set under two numbers.
fn two_sets(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (mut lt, mut et) = (Epoll::new(8)?, Epoll::new(8)?);
    lt.control(ADD, pair.s(), IN, 1)?;
    et.control(ADD, pair.s(), IN | ET, 2)?;
    let copy = sys::dup(pair.s())?;
    lt.control(ADD, copy.as_raw_fd(), IN | OUT, 3)?;
    send(pair.c(), b"x")?;
    p.say("two sets: level", look(&mut lt, 0)?);
    p.say("two sets: edge", look(&mut et, 0)?);
    p.say("two sets: level again", look(&mut lt, 0)?);
    p.say("two sets: edge again", look(&mut et, 0)?);
    try_recv(copy.as_raw_fd(), 10)?;
    p.say("two sets: level after the read", look(&mut lt, 0)?);
    send(pair.c(), b"y")?;
    p.say("two sets: edge after more", look(&mut et, 0)?);
    Ok(())
}

/// One socket in two sets, under a number that is not its first.
fn two_sets_of_a_copy(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let copy = sys::dup(pair.s())?;
    drop(pair.server);
    let (mut lt, mut et) = (Epoll::new(8)?, Epoll::new(8)?);
    lt.control(ADD, copy.as_raw_fd(), IN, 1)?;
    et.control(ADD, copy.as_raw_fd(), IN | ET, 2)?;
    for round in 0..3 {
        send(pair.client.as_raw_fd(), b"x")?;
        p.say(&format!("two sets of a copy: level {round}"), look(&mut lt, 1000)?);
        p.say(&format!("two sets of a copy: edge {round}"), look(&mut et, 1000)?);
        try_recv(copy.as_raw_fd(), 10)?;
    }
    Ok(())
}

/// A set that was made by a raw system call, as one that came from another process.
fn unknown_set(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    // SAFETY: no pointers; the number is a new descriptor, or -1.
    let set = unsafe { libc::syscall(libc::SYS_epoll_create1, 0) };
    let set =
        c_int::try_from(set).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: new, and nobody else's.
    let set = unsafe { OwnedFd::from_raw_fd(set) };
    let mut event = libc::epoll_event { events: IN, u64: 7 };
    // SAFETY: event is valid.
    let added = unsafe { libc::epoll_ctl(set.as_raw_fd(), ADD, pair.s(), &raw mut event) };
    p.say("unknown set: ADD", added);
    for round in 0..3 {
        send(pair.c(), b"x")?;
        event.u64 = 0;
        // SAFETY: room for one event.
        let n = unsafe { libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, 1000) };
        let data = event.u64;
        p.say(&format!("unknown set: data {round}"), format!("{n} {data}"));
        p.result("unknown set: read", try_recv(pair.s(), 10));
    }
    told_by_the_kernel(p, &pair)
}

/// The connection is on TCP for good; its other end is told of each change, though little is asked.
fn told_by_the_kernel(p: &Probe, pair: &Pair) -> io::Result<()> {
    for (how, mode) in [("level", 0), ("edge", ET)] {
        let mut epoll = Epoll::new(8)?;
        epoll.control(ADD, pair.c(), IN | RDHUP | mode, 1)?;
        for round in 0..3 {
            p.say(&format!("over TCP, {how}: silent {round}"), look(&mut epoll, 0)?);
            send(pair.s(), b"x")?;
            p.say(&format!("over TCP, {how}: data {round}"), look(&mut epoll, 1000)?);
            p.result("read", try_recv(pair.c(), 10));
        }
        p.say(&format!("over TCP, {how}: nothing more"), look(&mut epoll, 0)?);
    }
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, pair.c(), IN | OUT, 1)?;
    for round in 0..3 {
        p.say(&format!("over TCP: room {round}"), look(&mut epoll, 0)?);
        fill(pair.c())?;
        p.say(&format!("over TCP: no room {round}"), look(&mut epoll, 0)?);
        drain(pair.s())?;
        p.say(&format!("over TCP: room again {round}"), look(&mut epoll, 1000)?);
    }
    Ok(())
}

/// A wait is woken by what other threads do.
fn from_other_threads(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(8)?;
    let (control, member, peer) = (epoll.as_raw_fd(), pair.s(), pair.c());
    let nap = Duration::from_millis(30);
    let found = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(nap);
            let mut event = libc::epoll_event { events: IN, u64: 7 };
            // SAFETY: event is valid, and the set outlives the scope.
            unsafe { libc::epoll_ctl(control, ADD, member, &raw mut event) };
            thread::sleep(nap);
            sys::write(peer, b"x")
        });
        look(&mut epoll, 3000)
    })?;
    p.say("woken for a member that was added meanwhile", found);
    try_recv(pair.s(), 10)?;
    let found = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(nap);
            sys::shutdown(peer, libc::SHUT_WR)
        });
        look(&mut epoll, 3000)
    })?;
    p.say("woken by a half-close", found);
    Ok(())
}

/// A sender whose bytes wait for room below the receiver, and who goes on (under Shunt: in the ring).
fn counted(p: &Probe) -> io::Result<()> {
    const ALL: usize = 300_000;
    for more in [5_000, 20_000, 50_000, 100_000, 200_000] {
        let listener = listener()?;
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        sys::set_option(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 20_000)?;
        sys::connect(client.as_raw_fd(), address(&listener)?)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        sys::set_option(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20)?;
        let pair = Pair { client, server };
        sys::write(pair.s(), &vec![1; ALL])?;
        // Now the client's side is there for certain.
        sys::write(pair.c(), b"go on")?;
        p.result("heard", recv_soon(pair.s(), 100));
        sys::write(pair.s(), &vec![2; more])?;
        let got = receive_by_count(pair.c(), ALL + more)?;
        p.say("received by edges and counts", format!("{got} of {}", ALL + more));
    }
    Ok(())
}

/// Receives as nginx does: after an edge, until a call receives less than it asked for, or as many bytes
/// were taken as were counted after the first call. What comes after the count has an edge of its own.
fn receive_by_count(fd: RawFd, all: usize) -> io::Result<usize> {
    const CALL: usize = 4096;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, fd, IN | RDHUP | ET, 1)?;
    let mut got = 0;
    while got < all && !epoll.wait(Some(Duration::from_secs(2)))?.is_empty() {
        let mut left = None;
        while left != Some(0) {
            let n = match try_recv(fd, CALL) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                result => result?,
            };
            got += n;
            left = match left {
                _ if n < CALL => Some(0),
                Some(left) => Some(usize::saturating_sub(left, n)),
                None => Some(sys::fionread(fd)?.unsigned_abs() as usize),
            };
        }
    }
    Ok(got)
}
