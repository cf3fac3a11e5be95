//! Fabrics, tokens, and the life of a DMB.

use std::collections::HashSet;

use shunt_engine::ports::{Device, DeviceError, Token};

use crate::rig::{Rig, assert_unknown, bytes, register};

/// Two ends can talk when their gids are equal, and only then.
pub fn ends_of_one_fabric_share_its_gid<R: Rig>() {
    let (here, elsewhere) = (R::new(), R::new());
    assert_eq!(here.end().query_gid(), here.end().query_gid());
    assert_ne!(here.end().query_gid(), elsewhere.end().query_gid());
}

/// A token means nothing in another fabric.
pub fn a_stranger_s_tokens_are_unknown<R: Rig>() {
    let (here, elsewhere) = (R::new(), R::new());
    let owner = here.end();
    let (token, dmb) = register(&owner, 64);
    assert_unknown(&elsewhere.end(), token);
    assert_eq!(bytes::<R>(&dmb, 0, 64), [0; 64]);
}

/// Nothing of what the memory held before shows.
pub fn a_dmb_begins_as_zeroes<R: Rig>() {
    let rig = R::new();
    let end = rig.end();
    for len in [1, 4096, 100_000] {
        let (token, dmb) = register(&end, len);
        assert_eq!(bytes::<R>(&dmb, 0, len), vec![0; len]);
        R::write(&dmb, 0, &vec![0xff; len]);
        assert_eq!(end.unregister_dmb(token), Ok(()));
    }
}

/// A length that cannot be had is an error, and the device goes on.
pub fn a_dmb_that_is_too_large_is_refused<R: Rig>() {
    let rig = R::new();
    let end = rig.end();
    for len in [usize::MAX, usize::MAX - 4096, isize::MAX.cast_unsigned()] {
        assert_eq!(end.register_dmb(len).map(|(token, _)| token), Err(DeviceError::NoResources));
    }
    register(&end, 4096);
}

/// Neither while a DMB is registered nor afterwards does another one get its token.
pub fn tokens_are_never_reused<R: Rig>() {
    let rig = R::new();
    let ends = [rig.end(), rig.end()];
    let mut seen = HashSet::new();
    let mut dead = Vec::new();
    for round in 0..32 {
        for (i, end) in ends.iter().enumerate() {
            let (token, _dmb) = register(end, 64);
            assert!(seen.insert(token), "{token:?} was given out twice");
            // Known to the peer before it dies: what the peer remembers must not serve any more.
            assert_eq!(ends[1 - i].move_data(token, 0, &[1], false), Ok(()));
            if round % 2 == 0 {
                assert_eq!(end.unregister_dmb(token), Ok(()));
                dead.push(token);
            }
        }
    }
    for token in dead {
        ends.iter().for_each(|end| assert_unknown(end, token));
    }
}

/// Tokens that were never given out, as a hostile peer would name them.
pub fn unknown_tokens_are_refused<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, _dmb) = register(&owner, 64);
    for hostile in [0, token.0.wrapping_add(1), token.0 | 1 << 63, u64::MAX] {
        if hostile != token.0 {
            assert_unknown(&owner, Token(hostile));
            assert_unknown(&peer, Token(hostile));
        }
    }
}

/// A peer that knows the token can use the DMB, not end it.
pub fn only_its_owner_unregisters_a_dmb<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, dmb) = register(&owner, 64);
    assert_eq!(peer.unregister_dmb(token), Err(DeviceError::UnknownToken));
    assert_eq!(peer.move_data(token, 0, &[7], false), Ok(()));
    assert_eq!(peer.unregister_dmb(token), Err(DeviceError::UnknownToken));
    assert_eq!(peer.move_data(token, 1, &[8], false), Ok(()));
    assert_eq!(bytes::<R>(&dmb, 0, 2), [7, 8]);
    assert_eq!(owner.unregister_dmb(token), Ok(()));
    assert_eq!(owner.unregister_dmb(token), Err(DeviceError::UnknownToken));
    assert_unknown(&peer, token);
}

/// Who holds the memory can't shrink it under the other's feet.
pub fn memory_cannot_be_resized<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, dmb) = register(&owner, 10_000);
    for len in [0, 1, 4096, 1 << 20] {
        if let Some(resized) = rig.resize(token, len) {
            assert!(resized.is_err(), "resized to {len}");
        }
    }
    assert_eq!(peer.move_data(token, 9_999, &[3], false), Ok(()));
    assert_eq!(bytes::<R>(&dmb, 9_999, 1), [3]);
}

/// What needs the fabric says that it is gone; ending one's own DMBs does not need it.
pub fn a_fabric_that_is_gone_is_noticed<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    let (token, _dmb) = register(&owner, 64);
    rig.die();
    assert_eq!(owner.register_dmb(64).map(|(token, _)| token), Err(DeviceError::Gone));
    assert_eq!(peer.move_data(token, 0, &[1], true), Err(DeviceError::Gone));
    assert_eq!(peer.signal(token), Err(DeviceError::Gone));
    if peer.support_attach() {
        assert_eq!(peer.attach_dmb(token).map(drop), Err(DeviceError::Gone));
    }
    assert_eq!(owner.unregister_dmb(token), Ok(()));
}
