//! Connections begin.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use shunt_shm::arena::Record;
use shunt_wire::addr::FourTuple;

use crate::conn::Sock;
use crate::control::agent_client;
use crate::processes::fork_sharing;
use crate::system::clock;

/// A record and a handle for a connection.
pub fn track(fd: c_int, tuple: &FourTuple) -> Option<&'static Sock> {
    let endpoint = agent_client::endpoint().ok()?;
    let record: &'static Record = fork_sharing::new_record(endpoint)?;
    record.id.set_tuple(tuple);
    record.id.fd.store(fd, Ordering::Relaxed);
    record.id.since.store(clock::now(), Ordering::Relaxed);
    let sock = Sock::new(record, endpoint);
    if sock.is_none() {
        record.id.live.store(0, Ordering::Release);
    }
    sock
}
