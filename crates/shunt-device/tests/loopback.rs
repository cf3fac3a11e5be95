//! What only the loopback device promises: it checks memory that a peer made, and established
//! connections outlive the fabric.

mod fabric;

use std::fs::File;

use fabric::Fabric;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use shunt_device::loopback::{Exchange, Loopback, Mode, move_into};
use shunt_engine::ports::{Device, DeviceError};
use shunt_shm::dmb::Dmb;
use shunt_shm::memfd;
use shunt_shm::region::{self, Region, Side};

#[test]
fn memory_that_is_no_dmb_names_none() {
    let fabric = Fabric::new();
    let victim = Loopback::new(fabric.join(), Mode::Attach).unwrap();
    let unsealed = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(unsealed.try_clone().unwrap()).set_len(1 << 20).unwrap();
    let shrinkable = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(shrinkable.try_clone().unwrap()).set_len(1 << 20).unwrap();
    fcntl_add_seals(&shrinkable, SealFlags::GROW | SealFlags::SEAL).unwrap();
    for memory in [
        memfd::create_sealed("no-magic", 1 << 20).unwrap(),
        memfd::create_sealed("too-short", 4095).unwrap(),
        memfd::create_sealed("empty", 0).unwrap(),
        unsealed,
        shrinkable,
        rustix::pipe::pipe().unwrap().0,
        File::open("/").unwrap().into(),
    ] {
        let token = fabric.join().publish(memory).unwrap();
        assert_eq!(victim.attach_dmb(token).map(drop), Err(DeviceError::UnknownToken));
        assert_eq!(victim.move_data(token, 0, &[1], true), Err(DeviceError::UnknownToken));
    }
}

/// Whoever maps the memory can write to it that it has ended: that ends it for its users alone.
#[test]
fn a_forged_end_is_an_end() {
    let fabric = Fabric::new();
    let (owner, peer) = (fabric.join(), fabric.join());
    let (owner, peer) =
        (Loopback::new(owner, Mode::Copy).unwrap(), Loopback::new(peer, Mode::Copy).unwrap());
    let (token, _dmb) = owner.register_dmb(64).unwrap();
    let (other, _other) = owner.register_dmb(64).unwrap();
    Dmb::map(fabric.memory(token).unwrap()).unwrap().end();
    assert_eq!(peer.move_data(token, 0, &[1], false), Err(DeviceError::UnknownToken));
    assert_eq!(peer.move_data(other, 0, &[1], false), Ok(()));
}

#[test]
fn what_is_established_outlives_the_fabric() {
    let fabric = Fabric::new();
    let owner = Loopback::new(fabric.join(), Mode::Attach).unwrap();
    let peer = Loopback::new(fabric.join(), Mode::Attach).unwrap();
    let (token, dmb) = owner.register_dmb(64).unwrap();
    let attached = peer.attach_dmb(token).unwrap();
    fabric.die();
    assert_eq!(peer.move_data(token, 0, &[1], true), Ok(()));
    attached.write(1, &[2]).unwrap();
    let mut got = [0; 2];
    dmb.read(0, &mut got).unwrap();
    assert_eq!(got, [1, 2]);
    assert_eq!(owner.unregister_dmb(token), Ok(()));
    assert_eq!(peer.signal(token), Err(DeviceError::UnknownToken));
    assert!(matches!(Loopback::new(fabric.join(), Mode::Copy), Err(DeviceError::Gone)));
}

#[test]
fn moves_on_the_data_path_stay_in_the_region() {
    let region = Region::map(region::create(1).unwrap()).unwrap();
    let view = region.view();
    assert_eq!(move_into(view, view.buffer_offset(2, Side::Client), &[1, 2]), Some(()));
    assert_eq!(view.copy_to(2, Side::Client, 0, &mut [0; 2]), [1, 2]);
    assert_eq!(move_into(view, region::LEN - 1, &[1, 2]), None);
    assert_eq!(move_into(view, usize::MAX, &[1]), None);
    assert_eq!(move_into(view, region::LEN, &[]), Some(()));
}
