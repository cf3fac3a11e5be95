//! The memory that machines share.

use std::os::fd::OwnedFd;

use shunt_shm::ivshmem::{
    Control, ENDPOINTS, EXTENT, Home, Kind, LISTENERS, MEMBERS, Published, offset, table_offset,
};
use shunt_shm::memfd::create_sealed;
use shunt_shm::reach::WHOLE;
use shunt_shm::region::{self, Geometry, Side};
use shunt_shm::sync::Ordering::Relaxed;
use shunt_shm::table::{Place, Table};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::clc::Answer;

const EXTENTS: usize = 8;

fn memory() -> OwnedFd {
    create_sealed("test", EXTENTS * EXTENT).unwrap()
}

fn control(memory: &OwnedFd) -> Control {
    Control::map(memory, EXTENTS * EXTENT).unwrap()
}

#[test]
fn memory_of_another_kind_or_too_little_is_refused() {
    let memory = memory();
    assert!(Control::map(&memory, 2 * EXTENT).is_err());
    assert!(Control::look(&memory, EXTENTS * EXTENT).is_none(), "nothing");
    rustix::io::pwrite(&memory, &[1], 0).unwrap();
    assert!(Control::look(&memory, EXTENTS * EXTENT).is_none());
    assert!(Control::map(&memory, EXTENTS * EXTENT).is_err());
}

/// In that layout all of a word was the number of an endpoint's completion vectors, of which one byte is left; and a ring
/// could be any of a machine's interrupts, most of which are programs' now.
#[test]
fn memory_of_the_first_layout_is_refused() {
    let memory = memory();
    let first = 0x5348_4e54_4956_0001_u64;
    rustix::io::pwrite(&memory, &first.to_ne_bytes(), 0).unwrap();
    let refused = Control::map(&memory, EXTENTS * EXTENT).unwrap_err().to_string();
    assert!(refused.contains("another version"), "{refused}");
    assert!(Control::look(&memory, EXTENTS * EXTENT).is_none());
}

#[test]
fn members_come_and_go() {
    let memory = memory();
    let control = control(&memory);
    let one = control.join(11, Some(3), 2).unwrap();
    let two = control.join(12, Some(4), 2).unwrap();
    assert_eq!(control.members().collect::<Vec<_>>(), [one, two]);
    assert_eq!(control.member(two.index).peer(), Some(4));
    assert_eq!(control.living(), 0b11);
    // The same machine, started anew.
    let again = control.join(13, Some(3), 2).unwrap();
    assert!(!control.lives(one) && control.lives(again));
    assert_eq!(again.index, one.index, "its place is free");
    assert!(Control::look(&memory, EXTENTS * EXTENT).unwrap().has_left(4), "the server's word");
    assert!(!control.has_left(4) && !control.has_left(9));
    assert_eq!((control.find(12), control.find(13)), (None, Some(again)));
    control.is_gone(one);
    assert!(control.lives(again), "what is said of the one before does not concern it");
    for name in 100..99 + MEMBERS as u64 {
        assert!(control.join(name, None, 1).is_some());
    }
    assert_eq!(control.join(7, None, 1), None);
}

#[test]
fn an_extent_is_free_when_nobody_has_it() {
    let memory = memory();
    let control = control(&memory);
    let [a, b] = [1, 2].map(|name| control.join(name, None, 1).unwrap());
    let taken: Vec<_> = std::iter::from_fn(|| control.take_extent(a)).collect();
    assert_eq!(taken, (1..EXTENTS).collect::<Vec<_>>());
    control.describe(3, Kind::Region, 100, 9, 77);
    assert_eq!(control.find_extent(77), Some((3, a)));
    assert!(control.hold(3, (a, 77), b));
    assert!(!control.hold(3, (a, 78), b) && !control.hold(4, (a, 77), b));
    assert_eq!(control.extent(3).holders(), 0, "a hold that fails takes another back of the same");
    assert!(control.hold(3, (a, 77), b));
    control.give_extent(3, a);
    control.give_extent(4, b);
    control.give_extent(5, a);
    assert_eq!((control.take_extent(b), control.take_extent(b)), (Some(5), None));
    assert_eq!(control.find_extent(77), None);
    control.extent(3).release(b.index);
    assert_eq!(control.take_extent(b), Some(3));
    assert_eq!(control.extent(3).kind(), Kind::Region, "what it was");
    // All that a machine had is free when it is gone.
    assert!(!control.hold(6, (b, 0), b));
    control.is_gone(a);
    assert_eq!(std::iter::from_fn(|| control.take_extent(b)).collect::<Vec<_>>(), [1, 2, 4, 6, 7]);
    // What a machine holds is let go of with it.
    control.describe(1, Kind::Region, 1, 0, 5);
    let c = control.join(3, Some(9), 1).unwrap();
    assert!(control.hold(1, (b, 5), c));
    control.give_extent(1, b);
    assert_eq!(control.take_extent(b), None);
    control.is_gone(c);
    assert_eq!(control.take_extent(b), Some(1));
}

#[test]
fn a_home_tells_of_listeners_and_of_what_is_pending() {
    let memory = memory();
    let home = Home::map(&memory, offset(2)).unwrap();
    let other = Home::map(&memory, offset(2)).unwrap();
    let addr = Addr { ip: [1; 16], port: 80 };
    let listener = Published { id: 5, addr, v6only: true, bits: WHOLE };
    let before = other.news();
    home.publish(LISTENERS - 1, &listener);
    assert_ne!(other.news(), before);
    assert_eq!(other.listeners().collect::<Vec<_>>(), [(LISTENERS - 1, listener)]);
    home.withdraw(LISTENERS - 1);
    assert_eq!(other.listeners().count(), 0);
    home.set_addresses(&vec![[2; 16]; 100]);
    assert_eq!(other.addresses().len(), shunt_shm::ivshmem::ADDRESSES);

    home.set_endpoint(ENDPOINTS - 1, 42, 3, &(5..7));
    assert_eq!(other.find_endpoint(42), Some(ENDPOINTS - 1));
    assert_eq!(other.endpoint(ENDPOINTS - 1), (42, 3));
    let interrupts = [0, 1, 2, usize::MAX].map(|vector| other.interrupt_of(ENDPOINTS - 1, vector));
    assert_eq!(interrupts, [Some(5), Some(6), None, None]);
    assert_eq!(other.interrupt_of(3, 0), None, "nobody");
    assert!(other.notify(ENDPOINTS - 1, 2), "to be told");
    assert!(!other.notify(ENDPOINTS - 1, 0), "is told");
    assert!(other.notify(3, 1) && home.has_pending());
    let mut seen = Vec::new();
    home.take_pending(|place, vectors| seen.push((place, vectors)));
    assert_eq!(seen, [(3, 2), (ENDPOINTS - 1, 5)]);
    assert!(!home.has_pending());
    // Any place and vector is one that there is.
    other.notify(usize::MAX, usize::MAX);
}

#[test]
fn tables_of_a_home_are_apart() {
    let memory = memory();
    let tuple = FourTuple::default();
    let tables: Vec<_> = (0..LISTENERS)
        .map(|i| Table::create_in_device(&memory, offset(1) + table_offset(i)).unwrap())
        .collect();
    let place = Place { region: 6, slot: 1, generation: 1 };
    assert!(tables[1].post(&tuple, place).is_some());
    assert!(tables[0].find(&tuple).is_none() && tables[2].find(&tuple).is_none());
    let same = Table::map_device(&memory, offset(1) + table_offset(1)).unwrap();
    assert_eq!(same.find(&tuple).unwrap().place(), place);
    same.scrub_where(|region| region == 6);
    assert!(tables[1].find(&tuple).is_none());
}

#[test]
fn a_region_is_wiped_before_it_is_used_again() {
    let memory = memory();
    let slot = Geometry::Device.slots() - 1;
    for before in [Kind::Region, Kind::Home] {
        let made = region::create_in_device(&memory, EXTENT, 7, Kind::Fresh).unwrap();
        let view = made.view();
        view.move_data(view.buffer_offset(slot, Side::Server), b"secret").unwrap();
        view.section(slot, Side::Client).setup.generation.store(1, Relaxed);
        view.section(slot, Side::Server).ctl.closed.store(1, Relaxed);
        let made = region::create_in_device(&memory, EXTENT, 8, before).unwrap();
        let mut read = [1; 6];
        assert_eq!(made.view().copy_to(slot, Side::Server, 0, &mut read), [0; 6], "{before:?}");
        assert_eq!(made.view().section(slot, Side::Server).ctl.closed.load(Relaxed), 0);
        assert_eq!(made.name(), 8);
    }
}

#[test]
fn what_was_agreed_on_breaks_and_what_was_not_does_not() {
    let memory = memory();
    let region = region::create_in_device(&memory, EXTENT, 7, Kind::Fresh).unwrap();
    let view = region.view();
    for slot in [4, 6, 7] {
        view.section(slot, Side::Server).setup.state.store(Answer::Accepted as u32, Relaxed);
    }
    // Nothing more comes through the ring where a side has let go.
    view.section(6, Side::Server).setup.done.store(1, Relaxed);
    view.section(7, Side::Client).setup.done.store(1, Relaxed);
    assert_eq!(view.break_all().collect::<Vec<_>>(), [4]);
    for side in [Side::Client, Side::Server] {
        let possible =
            |slot| shunt_shm::grants::Grants::are_possible(&view.section(slot, side).prod, 0);
        assert!(!possible(4) && possible(5) && possible(6) && possible(7));
    }
}
