//! `move_data`: exact bytes, exact bounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use shunt_engine::ports::{Device, DeviceError};

use crate::rig::{Rig, bytes, pattern, register};

/// At every offset, with every length, the bytes arrive and their neighbours stay.
pub fn bytes_arrive_exactly<R: Rig>() {
    const LEN: usize = 9_000;
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, dmb) = register(&owner, LEN);
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
            assert_eq!(peer.move_data(token, offset, &data, false), Ok(()));
            assert!(bytes::<R>(&dmb, 0, LEN) == expected, "{len} bytes at {offset}");
        }
    }
}

/// A sndbuf that wraps is moved in two pieces, the second to the start.
pub fn a_ring_s_pieces_arrive_in_place<R: Rig>() {
    const CAP: usize = 1024;
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, dmb) = register(&owner, CAP);
    let mut at = 0;
    for round in 0..40 {
        let data = pattern(round, 300 + usize::try_from(round).unwrap_or(0) * 17);
        let (head, tail) = data.split_at(data.len().min(CAP - at));
        assert_eq!(peer.move_data(token, at, head, false), Ok(()));
        assert_eq!(peer.move_data(token, 0, tail, false), Ok(()));
        let got = [bytes::<R>(&dmb, at, head.len()), bytes::<R>(&dmb, 0, tail.len())].concat();
        assert!(got == data, "round {round} at {at}");
        at = (at + data.len()) % CAP;
    }
}

/// Out of bounds by a byte or by all of the address space: an error, no byte moved, nobody told.
pub fn what_does_not_fit_is_refused_whole<R: Rig>() {
    const LEN: usize = 5_000;
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, dmb) = register(&owner, LEN);
    let before = pattern(1, LEN);
    R::write(&dmb, 0, &before);
    let data = pattern(2, LEN + 1);
    for (offset, len) in [
        (LEN, 1),
        (LEN - 1, 2),
        (0, LEN + 1),
        (1, LEN),
        (LEN + 1, 0),
        (usize::MAX, 1),
        (usize::MAX, 0),
        (usize::MAX - 4096, 4096),
        (isize::MAX.cast_unsigned(), 64),
    ] {
        let moved = peer.move_data(token, offset, &data[..len], true);
        assert_eq!(moved, Err(DeviceError::OutOfBounds), "{len} bytes at {offset}");
    }
    assert!(bytes::<R>(&dmb, 0, LEN) == before);
    assert!(!R::told(&owner, crate::rig::A_MOMENT));
    // The very end is inside.
    assert_eq!(peer.move_data(token, LEN, &[], false), Ok(()));
    assert_eq!(peer.move_data(token, LEN - 1, &[9], false), Ok(()));
    assert_eq!(bytes::<R>(&dmb, LEN - 1, 1), [9]);
}

/// A program that connects to itself is both ends.
pub fn an_end_moves_data_to_itself<R: Rig>() {
    let rig = R::new();
    let end = rig.end();
    let (token, dmb) = register(&end, 64);
    assert_eq!(end.move_data(token, 3, &[1, 2, 3], true), Ok(()));
    assert_eq!(bytes::<R>(&dmb, 3, 3), [1, 2, 3]);
    assert!(R::told(&end, crate::rig::PATIENCE));
}

/// Several threads of several ends move into their own parts of one DMB at once.
pub fn concurrent_movers_do_not_disturb_each_other<R: Rig>() {
    const MOVERS: usize = 6;
    const PART: usize = 3_001;
    let rig = R::new();
    let owner = rig.end();
    let peers = [rig.end(), rig.end()];
    let (token, dmb) = register(&owner, MOVERS * PART);
    thread::scope(|scope| {
        for mover in 0..MOVERS {
            let peer = &peers[mover % peers.len()];
            scope.spawn(move || {
                for round in 0..200 {
                    let data = pattern((mover * 1000 + round) as u64, PART);
                    let cut = round * 15 % PART;
                    let at = mover * PART;
                    assert_eq!(peer.move_data(token, at + cut, &data[cut..], false), Ok(()));
                    assert_eq!(peer.move_data(token, at, &data[..cut], false), Ok(()));
                }
            });
        }
    });
    for mover in 0..MOVERS {
        let expected = pattern((mover * 1000 + 199) as u64, PART);
        assert!(bytes::<R>(&dmb, mover * PART, PART) == expected, "part {mover}");
    }
}

/// While a DMB is ended, movers get an answer: moved, or unknown. Afterwards it is unknown.
pub fn moving_meets_unregistering<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    for round in 0..20 {
        let (token, dmb) = register(&owner, 4096);
        let began = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match peer.move_data(token, 0, &[round; 4096], false) {
                        Ok(()) => began.store(true, Ordering::Relaxed),
                        Err(e) => break assert_eq!(e, DeviceError::UnknownToken),
                    }
                }
            });
            while !began.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            assert_eq!(owner.unregister_dmb(token), Ok(()));
            drop(dmb);
        });
        assert_eq!(peer.move_data(token, 0, &[round], false), Err(DeviceError::UnknownToken));
    }
}
