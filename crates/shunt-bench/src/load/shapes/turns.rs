//! Servers that wait in recv(2): one thread for all connections in turn, a thread for each, a
//! process for each.

use std::io;
use std::net::TcpListener;
use std::thread;

use rustix::process::getpid;
use shunt_sys::{process, signals};

use super::conn::{Conn, Service};

/// One thread: takes so many connections, then one request of each in turn until all have ended.
/// Such a server needs clients that send on all of them.
pub fn in_turn(listener: &TcpListener, service: Service, connections: u32) -> io::Result<()> {
    loop {
        let mut conns = Vec::new();
        while conns.len() < connections as usize {
            conns.extend(Conn::accept(listener, service)?);
        }
        while !conns.is_empty() {
            // A connection that breaks is no reason to end.
            conns.retain_mut(|conn| conn.turn().unwrap_or(false));
        }
    }
}

/// What a thread or a process does with its connection until that ends.
pub fn session(mut conn: Conn) -> io::Result<()> {
    while conn.receive()? {}
    Ok(())
}

/// A thread per connection.
pub fn threads(
    listener: &TcpListener,
    service: Service,
    session: fn(Conn) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let Some(conn) = Conn::accept(listener, service)? else { continue };
        // What becomes of a connection is of no interest to the others.
        thread::Builder::new().spawn(move || session(conn))?;
    }
}

/// A process per connection.
#[expect(unsafe_code, reason = "fork(2) is what this shape is about")]
pub fn processes(listener: TcpListener, service: Service) -> io::Result<()> {
    signals::forget_children();
    let parent = getpid();
    let mut listener = Some(listener);
    loop {
        let Some(open) = &listener else { return Ok(()) };
        let Some(conn) = Conn::accept(open, service)? else { continue };
        let child = || {
            // The child's own copy of the descriptor.
            drop(listener.take());
            // What becomes of a connection is of no interest to the others.
            let _ended = process::end_with_parent(parent).map(|()| session(conn));
        };
        // SAFETY: this program has started no other thread, so no lock is held by one.
        unsafe { process::fork_to(child)? };
    }
}
