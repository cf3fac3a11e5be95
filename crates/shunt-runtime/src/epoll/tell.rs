//! News for the instances about their connections.

use core::sync::atomic::Ordering;

use crate::conn::{Conn, Sock};
use crate::control::endpoint::Endpoint;
use crate::control::link::Link;
use crate::epoll::instance::{Instance, SEVERAL};
use crate::epoll::reentrancy;
use crate::epoll::table::{all, get};
use crate::point;
use crate::system::abi::c_int;
use crate::system::errno::KeepErrno;

/// Tells the watchers of a connection that there is something to look at. `by`: the instance that a thread is just looking at.
pub fn dispatch(link: &Link, slot: usize, by: Option<&Instance>) {
    point!(epoll_dispatch);
    let Some(word) = link.watch.get(slot) else { return };
    let packed = word.load(Ordering::Acquire);
    if packed & SEVERAL != 0 {
        for instance in all() {
            let watches = instance.lock().of_place(link, slot);
            watches.into_iter().for_each(|watch| instance.push_ready(watch, by));
        }
        return;
    }
    let watch = packed & 0xffff_ffff;
    if let Some(index) = (packed >> 32).checked_sub(1)
        && let Some(instance) = usize::try_from(index).ok().and_then(get)
        && let Ok(watch) = usize::try_from(watch)
    {
        instance.push_ready(watch, by);
    }
}

/// A descriptor that may be registered already is about to become a connection of this endpoint.
pub fn before_connect(fd: c_int, endpoint: &'static Endpoint) {
    if !reentrancy::is_told_later() {
        all().for_each(|instance| instance.prepare_for(fd, endpoint));
    }
}

/// A descriptor that may be registered already has become a shunted connection.
pub fn on_connected(conn: Conn) {
    if !reentrancy::is_told_later() {
        all().for_each(|instance| instance.convert(conn.descriptor(), Some(conn)));
    }
}

/// A sender found no room in the kernel socket: whoever watches the descriptor is told by the kernel
/// when there is some.
pub fn wants_room(fd: c_int) {
    let _keep = KeepErrno::new();
    if !reentrancy::is_told_later() {
        all().for_each(|instance| instance.ask_for_room(fd));
    }
}

/// The watches of a connection are looked at once more, and tell of what there is: a receiver has come to bytes
/// in the ring that have been told of already, or there is something on the error queue.
pub fn look_again(sock: &'static Sock) {
    let Some(link) = sock.link() else { return };
    if !reentrancy::is_told_later() {
        dispatch(link, sock.record().slot(), None);
    }
}

/// A connection is back on TCP for good.
pub fn on_declined(fd: c_int) {
    if !reentrancy::is_told_later() {
        all().for_each(|instance| instance.convert(fd, None));
    }
}

/// The connection is gone, and its descriptors stand for a fresh socket, which is watched on.
pub fn on_disconnected(sock: &'static Sock) {
    if reentrancy::is_told_later() {
        return;
    }
    all().for_each(|instance| instance.forget_orphans(&mut instance.lock(), sock));
}

/// The descriptor goes. The kernel forgets its registrations when it is the connection's last.
pub fn before_close(sock: &'static Sock, fd: c_int) {
    if reentrancy::is_told_later() {
        return;
    }
    let mut other = None;
    for (index, instance) in all().enumerate() {
        if index == 0 {
            other = sock.other_descriptor(fd);
        }
        instance.descriptor_closed(fd, other, sock);
    }
}
