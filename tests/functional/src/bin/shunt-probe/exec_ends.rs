//! Connections of which an exec closes the last descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use shunt_functional::sys::{self, ExecList};

use crate::probe::{Pair, Probe, done, recv_soon, settle, try_recv, try_send, warm_up};
use crate::processes::{close_on_exec, in_child};

/// The checks.
pub fn run(p: &Probe) -> io::Result<()> {
    for (name, with_relative, unread) in [
        ("an exec", false, false),
        ("an exec over a byte", false, true),
        ("an exec behind a relative that was killed", true, false),
    ] {
        ends(p, name, with_relative, unread)?;
    }
    for how in [ExecList::Path, ExecList::Sought, ExecList::Environment] {
        outlives(p, how)?;
    }
    fails(p)
}

/// A child that has become another program does not have the connection that its parent closes.
fn outlives(p: &Probe, how: ExecList) -> io::Result<()> {
    let Pair { client, server } = used_and_closed_on_exec(p)?;
    let (reader, writer) = sys::pipe()?;
    close_on_exec(&writer)?;
    let child = in_child(|| Err(sys::exec_to_sleep(how)))?;
    drop(writer);
    sys::read(reader.as_raw_fd(), &mut [0])?;
    drop(server);
    sends(p, &format!("a close after {how:?}"), &client);
    ended(p, child)
}

/// Of its end by an exec also those hear who send.
fn ends(p: &Probe, name: &str, with_relative: bool, unread: bool) -> io::Result<()> {
    let Pair { client, server } = used_and_closed_on_exec(p)?;
    let (held, hold) = sys::pipe()?;
    let child = in_child(|| {
        if with_relative {
            let relative = in_child(|| sys::kill(sys::pid(), libc::SIGKILL))?;
            sys::wait_for(relative)?;
        }
        sys::read(held.as_raw_fd(), &mut [0])?;
        Err(Command::new("/bin/sleep").arg("60").exec())
    })?;
    drop(server);
    if unread {
        sys::write(client.as_raw_fd(), b"x")?;
    }
    sys::write(hold.as_raw_fd(), b"x")?;
    while is_established(&client)? {
        settle();
    }
    sends(p, name, &client);
    ended(p, child)
}

/// By sending first, which asks nobody whether it is the end.
fn sends(p: &Probe, name: &str, client: &OwnedFd) {
    for n in 1..=3 {
        p.result(&format!("send {n} behind {name}"), try_send(client.as_raw_fd(), b"too late"));
        settle();
    }
    p.result(&format!("the end by {name}"), try_recv(client.as_raw_fd(), 100));
}

fn ended(p: &Probe, child: libc::pid_t) -> io::Result<()> {
    sys::kill(child, libc::SIGKILL)?;
    p.say("the child that has become another program", sys::wait_for(child)?);
    Ok(())
}

/// One that fails ends nothing.
fn fails(p: &Probe) -> io::Result<()> {
    let pair = used_and_closed_on_exec(p)?;
    sys::write(pair.c(), b"unread")?;
    p.result("an exec of nothing", Err::<i32, _>(Command::new("/nowhere").exec()));
    p.say("SO_LINGER behind it", sys::get_option(pair.s(), libc::SOL_SOCKET, libc::SO_LINGER)?);
    p.result("what lay unread", recv_soon(pair.s(), 100));
    p.say("bytes go on", done(warm_up(pair.c(), pair.s())));
    let Pair { client, server } = pair;
    drop(server);
    p.result("the end behind it", recv_soon(client.as_raw_fd(), 100));
    Ok(())
}

fn used_and_closed_on_exec(p: &Probe) -> io::Result<Pair> {
    let pair = p.pair()?;
    close_on_exec(&pair.server)?;
    close_on_exec(&pair.client)?;
    warm_up(pair.c(), pair.s())?;
    Ok(pair)
}

/// Whether neither end of the kernel's connection has ended (`tcpi_state`).
fn is_established(fd: &OwnedFd) -> io::Result<bool> {
    const ESTABLISHED: u8 = 1;
    let info = sys::get_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(info.to_ne_bytes().first() == Some(&ESTABLISHED))
}
