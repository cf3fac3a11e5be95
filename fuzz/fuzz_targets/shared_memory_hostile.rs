//! Memory that machines share, with anything in it: every operation of an agent comes to an end, and stays inside.
#![no_main]

use std::os::fd::OwnedFd;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_shm::ivshmem::{
    Control, EXTENT, Home, LISTENERS, MEMBERS, Published, offset, table_offset,
};
use shunt_shm::memfd::create_sealed;
use shunt_shm::reach::WHOLE;
use shunt_shm::region::{Region, Side};
use shunt_shm::table::Table;
use shunt_wire::addr::{Addr, FourTuple};

const LEN: usize = 5 * EXTENT;

/// Bytes that somebody else has left, the control area's from its second page on: with another magic nothing else is
/// looked at.
#[derive(Arbitrary, Debug)]
struct Left {
    members: Vec<u8>,
    extents: Vec<u8>,
    home: Vec<u8>,
    listeners: Vec<u8>,
    table: Vec<u8>,
    region: Vec<u8>,
}

thread_local! {
    static MEMORY: OwnedFd = create_sealed("fuzz", LEN).unwrap();
}

/// Puts bytes to a place of `room` bytes.
fn leave(memory: &OwnedFd, at: usize, room: usize, bytes: &[u8]) {
    let mut all = vec![0; room];
    for (byte, left) in all.iter_mut().zip(bytes) {
        *byte = *left;
    }
    rustix::io::pwrite(memory, &all, at as u64).unwrap();
}

fuzz_target!(|left: Left| {
    MEMORY.with(|memory| {
        let control = Control::map(memory, LEN).unwrap();
        leave(memory, 4096, MEMBERS * 64, &left.members);
        leave(memory, 4096 + MEMBERS * 64, 5 * 64, &left.extents);
        let members: Vec<_> = control.members().collect();
        assert!(members.len() <= MEMBERS);
        for member in &members {
            let _ = control.home_of(*member);
            let _ = control.member(member.index).peer();
        }
        for extent in 0..10 {
            let entry = control.extent(extent);
            assert!(entry.len() <= EXTENT);
            let _ = control.find_extent(entry.name());
            if let Some(owner) = members.first() {
                let _ = control.hold(extent, (*owner, entry.name()), *owner);
            }
        }
        control.has_left(0);
        if let Some(me) = control.join(0x1234_5678, Some(7), 2) {
            assert!(control.lives(me));
            if let Some(extent) = control.take_extent(me) {
                assert!((1..5).contains(&extent));
                control.give_extent(extent, me);
            }
        }

        leave(memory, EXTENT, 24_576, &left.home);
        leave(memory, EXTENT + 24_576, LISTENERS * 64, &left.listeners);
        let home = Home::map(memory, offset(1)).unwrap();
        assert!(home.addresses().len() <= shunt_shm::ivshmem::ADDRESSES);
        assert!(home.listeners().count() <= LISTENERS);
        home.take_pending(|place, _| assert!(place < shunt_shm::ivshmem::ENDPOINTS));
        assert!(!home.has_pending());
        let _ = home.find_endpoint(u64::MAX);
        for place in [0, 1, usize::MAX] {
            let _ = home.endpoint(place);
            assert!(home.interrupt_of(place, usize::MAX).is_none());
            let _ = (0..8).filter_map(|vector| home.interrupt_of(place, vector)).count();
        }
        home.publish(
            usize::MAX,
            &Published { id: 1, addr: Addr::any_v6(1), v6only: false, bits: WHOLE },
        );

        let table = Table::create_in_device(memory, offset(2) + table_offset(3)).unwrap();
        leave(memory, offset(2) + table_offset(3) + 64, 512 + 64 * 32, &left.table);
        let tuple = FourTuple::default();
        if let Some(ticket) = table.find(&tuple) {
            let _ = table.take(&ticket);
        }
        table.scrub_where(|region| control.find_extent(region).is_none());

        if let Ok(region) = Region::map_device(memory, offset(3)) {
            let _ = region.name();
        }
        leave(memory, offset(3), 64, &0x5348_554e_545f_4c47_u64.to_ne_bytes());
        leave(memory, offset(3) + 34_880, 30 * 256, &left.region);
        let region = Region::map_device(memory, offset(3)).unwrap();
        let view = region.view();
        for slot in 0..view.geometry().slots() {
            let _ = view.section(slot, Side::Client).setup.tuple();
        }
        assert!(view.break_all().all(|slot| slot < view.geometry().slots()));
    });
});
