//! How bytes get into a peer's RMB: exact bytes, exact bounds.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use shunt_shm::region::{Side, shape};
use shunt_shm::ring::{Content, RxCursor, TxCursor};

use crate::rig::{PATIENCE, Rig, WAYS, Way, attach, bytes, pattern, register};

const RECEIVERS: [Side; 2] = [Side::Client, Side::Server];

/// Both ways and both ends lead to the same bytes.
pub fn one_memory_at_both_ends<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let ends = [attach(&rig, &made, &[3]), attach(&rig, &made, &[3])];
    for round in 0..100 {
        for (way, from) in [(Way::Attach, 0), (Way::Copy, 1), (Way::Attach, 1), (Way::Copy, 0)] {
            let data = pattern(round * 4 + from as u64, 333);
            way.put(ends[from].view(), (3, Side::Client), 77, &data);
            assert!(bytes(ends[1 - from].view(), (3, Side::Client), 77, 333) == data, "{way:?}");
        }
    }
}

/// No two rings have a byte in common.
pub fn every_ring_is_its_own<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let slots: Vec<_> = {
        let all = attach(&rig, &made, &[]).view().geometry().slots();
        [0, 1, 2, 7, 8, 9].into_iter().filter(|slot| *slot < all - 1).chain([all - 1]).collect()
    };
    let region = attach(&rig, &made, &slots);
    let (view, ring) = (region.view(), region.view().geometry().ring());
    for way in WAYS {
        let seed = |slot: usize, receiver: Side| (slot * 4 + receiver as usize * 2) as u64 + 1;
        for slot in &slots {
            for receiver in RECEIVERS {
                let data = pattern(seed(*slot, receiver), ring);
                way.put(view, (*slot, receiver), 0, &data);
            }
        }
        for slot in &slots {
            for receiver in RECEIVERS {
                let found = bytes(view, (*slot, receiver), 0, ring);
                assert!(found == pattern(seed(*slot, receiver), ring), "{way:?} slot {slot}");
            }
        }
    }
}

/// At every offset, with every length, the bytes arrive and their neighbours stay.
pub fn bytes_arrive_exactly<R: Rig>() {
    const LEN: usize = 9_000;
    let rig = R::new();
    let made = register(&rig);
    let (from, to) = (attach(&rig, &made, &[1]), attach(&rig, &made, &[1]));
    for (way, receiver) in WAYS.into_iter().zip(RECEIVERS) {
        let mut expected = vec![0; LEN];
        let lengths = [0, 1, 2, 3, 7, 8, 63, 64, 65, 255, 4095, 4096, 4097, LEN];
        for (i, len) in lengths.into_iter().enumerate() {
            for offset in [0, 1, 5, 64, 4090, 4096, LEN - len] {
                let Some(place) = expected.get_mut(offset..).and_then(|rest| rest.get_mut(..len))
                else {
                    continue;
                };
                let data = pattern((i * LEN + offset) as u64, len);
                place.copy_from_slice(&data);
                way.put(from.view(), (1, receiver), offset, &data);
                let found = bytes(to.view(), (1, receiver), 0, LEN);
                assert!(found == expected, "{way:?}: {len} bytes at {offset}");
            }
        }
    }
}

/// What a device is asked to move out of bounds, by a byte or by all of the address space: no byte is moved.
pub fn what_does_not_fit_is_refused_whole<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let region = attach(&rig, &made, &[0]);
    let (view, geometry) = (region.view(), region.view().geometry());
    let (first, of_slot) = (view.buffer_offset(0, Side::Client), 2 * geometry.ring());
    let after = first + of_slot;
    for way in WAYS {
        way.put(view, (0, Side::Server), geometry.ring() - 2, &[8, 8]);
        way.put(view, (0, Side::Client), 0, &[8, 8]);
    }
    let data = vec![1; of_slot + 1];
    for (offset, len) in [
        (0, 1),
        (first - 1, 1),
        (first - 1, 2),
        (after - 1, 2),
        (first, of_slot + 1),
        (geometry.data_end(), 1),
        (geometry.data_end() - 1, 2),
        (geometry.size(), 1),
        (usize::MAX, 1),
        (usize::MAX - 4096, 4096),
        (isize::MAX.cast_unsigned(), 64),
    ] {
        assert_eq!(view.move_data(offset, &data[..len]), None, "{len} bytes at {offset}");
    }
    assert_eq!(bytes(view, (0, Side::Client), 0, 2), [8, 8]);
    assert_eq!(bytes(view, (0, Side::Server), geometry.ring() - 2, 2), [8, 8]);
    // The very end is inside.
    assert_eq!(view.move_data(after - 1, &[9]), Some(()));
    assert_eq!(bytes(view, (0, Side::Server), geometry.ring() - 1, 1), [9]);
}

/// Bytes of one direction, sent and received over the cursors that a connection has.
fn stream(way: Way, from: &shunt_shm::region::Region, to: &shunt_shm::region::Region, slot: usize) {
    const BYTES: u64 = 3 << 20;
    let (view, receiver) = (from.view(), Side::Server);
    let len = view.geometry().ring() as u64;
    let wish = shape(receiver, len);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mine, theirs) = (view.section(slot, Side::Client), view.section(slot, receiver));
            let (tx, mut sent) = (TxCursor::default(), 0);
            let all = pattern(slot as u64, 40_000);
            while sent < BYTES {
                let at = usize::try_from(sent % 30_011).unwrap_or(0);
                let most = (all.len() - at).min(usize::try_from(BYTES - sent).unwrap_or(1));
                let span =
                    tx.reserve(&theirs.cons, len, wish, u64::MAX, (most as u64, Content::Put));
                let Ok(span) = span else { panic!("{span:?}") };
                let mut done = at;
                for (to, n) in [span.head, span.tail] {
                    way.put(view, (slot, receiver), to, &all[done..done + n]);
                    done += n;
                }
                tx.publish(&mine.prod, (done - at) as u64);
                sent += (done - at) as u64;
                if done == at {
                    thread::yield_now();
                }
            }
        });
        let view = to.view();
        let (mine, theirs) = (view.section(slot, receiver), view.section(slot, Side::Client));
        let (rx, mut got, mut chunk, mut whole) = (RxCursor::default(), 0_u64, 0, Vec::new());
        let started = std::time::Instant::now();
        while got < BYTES {
            let span = rx.readable(&theirs.prod, len, 17_000);
            let Ok(span) = span else { panic!("{span:?}") };
            for (at, n) in [span.head, span.tail] {
                whole.extend(bytes(view, (slot, receiver), at, n));
            }
            let _ = rx.consume(&mine.cons, len, span.len() as u64);
            got += span.len() as u64;
            chunk += usize::from(!span.is_empty());
            if span.is_empty() {
                assert!(started.elapsed() < PATIENCE, "{way:?} after {got} bytes");
                thread::yield_now();
            }
        }
        assert!(chunk > 1 && mine.cons.cons.load(Relaxed) == BYTES);
        // What was sent at each place, told by the place alone: pieces are cut differently at either end.
        let all = pattern(slot as u64, 40_000);
        let mut sent = 0;
        while sent < whole.len() {
            let at = sent % 30_011;
            let same = whole[sent..].iter().zip(&all[at..]).take_while(|(a, b)| a == b).count();
            assert!(same > 0, "{way:?}: byte {sent}");
            sent += same;
        }
    });
}

/// A stream much longer than the ring arrives in order.
pub fn streams_go_round_the_ring<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let (from, to) = (attach(&rig, &made, &[0, 5]), attach(&rig, &made, &[0, 5]));
    for (way, slot) in WAYS.into_iter().zip([0, 5]) {
        stream(way, &from, &to, slot);
    }
}

/// Senders into neighbouring RMBs.
pub fn concurrent_senders_do_not_disturb_each_other<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let (from, to) = (attach(&rig, &made, &[1, 2, 3, 4]), attach(&rig, &made, &[1, 2, 3, 4]));
    thread::scope(|scope| {
        for slot in 1..=4 {
            let (from, to) = (&from, &to);
            scope.spawn(move || stream(WAYS[slot % 2], from, to, slot));
        }
    });
}
