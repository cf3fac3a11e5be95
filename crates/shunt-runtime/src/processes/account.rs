//! The contribution of an ending connection to the totals.

use core::sync::atomic::Ordering;

use shunt_shm::arena::{Arena, Record};
use shunt_shm::zerocopy::Tally;
use shunt_wire::counter::Counter;

use crate::calls::tid;
use crate::control::endpoint;

/// Adds what the connection did to the totals.
pub fn add(record: &Record, arena: &Arena) {
    let load = |word: &shunt_shm::sync::AtomicU32| u64::from(word.load(Ordering::Relaxed));
    let (rx, tx) = (&record.rx, &record.tx);
    let without_copies = arena.tallied(record).unwrap_or_default();
    let all = [
        (Counter::BytesSent, tx.bytes.load(Ordering::Relaxed)),
        (Counter::BytesReceived, rx.bytes.load(Ordering::Relaxed)),
        (Counter::MessagesSent, tx.messages.load(Ordering::Relaxed)),
        (Counter::MessagesReceived, rx.messages.load(Ordering::Relaxed)),
        (Counter::DoorbellsRung, load(&tx.rung)),
        (Counter::DoorbellsSaved, load(&tx.saved)),
        (Counter::RingFullWaits, load(&tx.full)),
        (Counter::SpinsPaid, load(&rx.spins[0])),
        (Counter::SpinsUnpaid, load(&rx.spins[1])),
    ];
    for (which, n) in all.into_iter().chain(Tally::COUNTERS.into_iter().zip(without_copies)) {
        endpoint::count(which, n);
    }
    arena.settle_waits(record, tid());
}
