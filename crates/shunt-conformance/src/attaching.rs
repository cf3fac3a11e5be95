//! `attach_dmb`: the sender's sndbuf is the peer's RMB. Devices without it pass by saying so.

use shunt_engine::ports::{Device, DeviceError};

use crate::rig::{Rig, attach, bytes, pattern, register};

/// Two ends of a fabric whose device can attach; `None` when it can't.
fn attaching_pair<R: Rig>(rig: &R) -> Option<(R::Device, R::Device)> {
    let (owner, peer) = (rig.end(), rig.end());
    peer.support_attach().then_some((owner, peer))
}

/// What `support_attach` says is what `attach_dmb` does.
pub fn a_device_that_cannot_attach_says_so<R: Rig>() {
    let rig = R::new();
    let (owner, peer) = (rig.end(), rig.end());
    assert_eq!(owner.support_attach(), peer.support_attach());
    let (token, dmb) = register(&owner, 64);
    let attached = peer.attach_dmb(token).map(drop);
    if peer.support_attach() {
        assert_eq!(attached, Ok(()));
    } else {
        assert_eq!(attached, Err(DeviceError::Unsupported));
        assert_eq!(peer.detach_dmb(token), Err(DeviceError::UnknownToken));
        // It can move all the same.
        assert_eq!(peer.move_data(token, 0, &[4], false), Ok(()));
        assert_eq!(bytes::<R>(&dmb, 0, 1), [4]);
    }
}

/// One memory by two ways.
pub fn attached_memory_and_moved_bytes_are_the_same<R: Rig>() {
    const LEN: usize = 70_000;
    let rig = R::new();
    let Some((owner, peer)) = attaching_pair(&rig) else { return };
    let (token, dmb) = register(&owner, LEN);
    let attached = attach(&peer, token);
    let data = pattern(11, LEN);
    assert_eq!(rig.end().move_data(token, 0, &data, false), Ok(()));
    assert!(bytes::<R>(&attached, 0, LEN) == data);
    let data = pattern(12, 100);
    R::write(&attached, LEN - 100, &data);
    assert_eq!(peer.move_data(token, LEN - 1, &[data[99]], false), Ok(()));
    assert!(bytes::<R>(&dmb, LEN - 100, 100) == data);
}

/// Both directions, without a call in between.
pub fn what_is_written_to_attached_memory_reaches_its_owner<R: Rig>() {
    let rig = R::new();
    let Some((owner, peer)) = attaching_pair(&rig) else { return };
    let (token, dmb) = register(&owner, 4096);
    let attached = attach(&peer, token);
    for round in 0..100 {
        let data = pattern(round, 333);
        R::write(&attached, 77, &data);
        assert!(bytes::<R>(&dmb, 77, 333) == data);
        let answer = pattern(round + 1000, 333);
        R::write(&dmb, 900, &answer);
        assert!(bytes::<R>(&attached, 900, 333) == answer);
    }
}

/// Attached twice, it is detached twice and not a third time; moving does not need it.
pub fn detaching_undoes_one_attaching<R: Rig>() {
    let rig = R::new();
    let Some((owner, peer)) = attaching_pair(&rig) else { return };
    let (token, dmb) = register(&owner, 64);
    assert_eq!(peer.detach_dmb(token), Err(DeviceError::UnknownToken));
    let first = attach(&peer, token);
    let second = attach(&peer, token);
    assert_eq!(peer.detach_dmb(token), Ok(()));
    drop(first);
    R::write(&second, 0, &[1]);
    assert_eq!(peer.detach_dmb(token), Ok(()));
    drop(second);
    assert_eq!(peer.detach_dmb(token), Err(DeviceError::UnknownToken));
    assert_eq!(peer.move_data(token, 1, &[2], false), Ok(()));
    assert_eq!(peer.detach_dmb(token), Err(DeviceError::UnknownToken));
    let again = attach(&peer, token);
    assert_eq!(bytes::<R>(&again, 0, 2), [1, 2]);
    assert_eq!(bytes::<R>(&dmb, 0, 2), [1, 2]);
    assert_eq!(owner.detach_dmb(token), Err(DeviceError::UnknownToken));
}

/// The owner goes away: the peer reads what is there to its end, but can't attach it anew.
pub fn attached_memory_outlives_its_registration<R: Rig>() {
    let rig = R::new();
    let Some((owner, peer)) = attaching_pair(&rig) else { return };
    let (token, dmb) = register(&owner, 4096);
    let attached = attach(&peer, token);
    R::write(&dmb, 4095, &[42]);
    assert_eq!(owner.unregister_dmb(token), Ok(()));
    drop((dmb, owner));
    assert_eq!(bytes::<R>(&attached, 4095, 1), [42]);
    R::write(&attached, 0, &[1]);
    assert_eq!(peer.attach_dmb(token).map(drop), Err(DeviceError::UnknownToken));
    assert_eq!(peer.move_data(token, 0, &[1], false), Err(DeviceError::UnknownToken));
    assert_eq!(peer.detach_dmb(token), Ok(()));
    assert_eq!(peer.detach_dmb(token), Err(DeviceError::UnknownToken));
}
