//! Who is told, and when.

use std::thread;

use shunt_engine::ports::{Device, Token};

use crate::rig::{A_MOMENT, DmbOf, PATIENCE, Rig, bytes, register};

/// `move_data` tells the owner only when asked to; `signal` tells it without moving anything.
pub fn signals_are_given_when_asked_for<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, dmb) = register(&owner, 64);
    assert_eq!(peer.move_data(token, 0, &[5], false), Ok(()));
    assert!(!R::told(&owner, A_MOMENT));
    assert_eq!(peer.move_data(token, 1, &[6], true), Ok(()));
    assert!(R::told(&owner, PATIENCE));
    assert!(!R::told(&owner, A_MOMENT));
    assert_eq!(peer.signal(token), Ok(()));
    assert!(R::told(&owner, PATIENCE));
    assert_eq!(bytes::<R>(&dmb, 0, 3), [5, 6, 0]);
}

/// Neither the mover nor a third end hears it.
pub fn one_end_s_signal_wakes_only_the_owner<R: Rig>() {
    let rig = R::new();
    let (owner, peer, third) = (rig.end(), rig.end(), rig.end());
    let (token, _dmb) = register(&owner, 64);
    let (_, _other) = register(&third, 64);
    assert_eq!(peer.signal(token), Ok(()));
    assert!(R::told(&owner, PATIENCE));
    assert!(!R::told(&peer, A_MOMENT));
    assert!(!R::told(&third, A_MOMENT));
}

/// Two ends answer each other: whoever is told finds the bytes in place, all of them.
pub fn data_is_visible_before_its_signal<R: Rig>() {
    const ROUNDS: u32 = 500;
    const WORDS: usize = 128;

    fn play<R: Rig>(end: &R::Device, dmb: &DmbOf<R>, peer: Token, first: bool) {
        for round in 0..ROUNDS {
            let said = round.to_ne_bytes().repeat(WORDS);
            if first {
                assert_eq!(end.move_data(peer, 0, &said, true), Ok(()));
            }
            assert!(R::told(end, PATIENCE), "round {round}");
            assert!(bytes::<R>(dmb, 0, said.len()) == said, "round {round}");
            if !first {
                assert_eq!(end.move_data(peer, 0, &said, true), Ok(()));
            }
        }
    }

    let rig = R::new();
    let ends = [rig.end(), rig.end()];
    let (there, there_dmb) = register(&ends[1], WORDS * 4);
    let (here, here_dmb) = register(&ends[0], WORDS * 4);
    let (second, first) = (&ends[1], &ends[0]);
    thread::scope(|scope| {
        scope.spawn(|| play::<R>(second, &there_dmb, here, false));
        play::<R>(first, &here_dmb, there, true);
    });
}
