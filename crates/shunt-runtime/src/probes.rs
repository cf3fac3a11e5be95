//! USDT probes, for bpftrace, perf and SystemTap. Each is an instruction that does nothing, and a
//! note in the library's file with its place and arguments
//! ([docs/explain.md](../../../docs/explain.md)).

use probe::probe;
use shunt_engine::wait::Way;
use shunt_wire::addr::FourTuple;
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;

/// A decision about a connection: its descriptor, both ports and, where there is one, the reason's code.
pub fn decided(decision: Decision, why: Option<Reason>, fd: i32, tuple: &FourTuple) {
    let (local, peer) = (tuple.local.port, tuple.peer.port);
    let why = why.map_or(0, |why| why as u8);
    match decision {
        Decision::Promoted => probe!(shunt, promote, fd, local, peer),
        Decision::Demoted | Decision::Followed => probe!(shunt, demote, fd, local, peer, why),
        Decision::Declined => probe!(shunt, decline, fd, local, peer, why),
        Decision::Listening
        | Decision::Unregistered
        | Decision::Proposed
        | Decision::Offered
        | Decision::Accepted
        | Decision::Broken
        | Decision::Ended => {}
    }
}

/// A thread that waits for a connection goes to sleep: 0 on a futex, 1 in poll or epoll_wait.
#[inline]
pub fn sleeps(way: Way) {
    let way = u8::from(way == Way::Kernel);
    probe!(shunt, sleep, way);
}

/// It has woken up.
#[inline]
pub fn wakes() {
    probe!(shunt, wake);
}
