//! The region of a link group.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use shunt_shm::doorbell::{ON_FUTEX, arm, futex_wait, futex_wake};
use shunt_shm::ivshmem::{EXTENT, Kind};
use shunt_shm::memfd::{Map, create_sealed};
use shunt_shm::region::{
    self, Geometry, LANES, LEN, RING, Region, RegionView, SLOTS, Setup, Side, queue_code,
    queue_place,
};
use shunt_shm::sync::Ordering::Relaxed;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::MAX_VECTORS;
use shunt_wire::clc::Proposal;

fn mapped() -> Region {
    Region::map(region::create(7).unwrap()).unwrap()
}

/// A region in a device's memory.
fn in_device() -> Region {
    let memory = create_sealed("test", 3 * EXTENT).unwrap();
    let made = region::create_in_device(&memory, EXTENT, 7, Kind::Fresh).unwrap();
    made.view().section(0, Side::Server).ctl.rx_arm.store(5, Relaxed);
    let region = Region::map_device(&memory, EXTENT).unwrap();
    assert_eq!(region.view().section(0, Side::Server).ctl.rx_arm.load(Relaxed), 5);
    assert!(Region::map_device(&memory, 0).is_err(), "no magic");
    region
}

fn byte(view: RegionView, slot: usize, receiver: Side, at: usize) -> u8 {
    assert!(at < RING);
    // SAFETY: inside the buffer; nobody writes meanwhile.
    unsafe { view.buffer(slot, receiver).add(at).read_volatile() }
}

#[test]
fn other_memory_is_refused() {
    assert!(Region::map(create_sealed("test", LEN).unwrap()).is_err(), "no magic");
    assert!(Region::map(create_sealed("test", LEN - 1).unwrap()).is_err(), "too short");
}

#[test]
fn two_maps_are_one_memory() {
    let fd = region::create(7).unwrap();
    let maps = [Region::map(&fd).unwrap(), Region::map(&fd).unwrap()];
    let [a, b] = maps.each_ref().map(Region::view);
    a.section(SLOTS - 1, Side::Server).ctl.rx_arm.store(5, Relaxed);
    assert_eq!(b.section(SLOTS - 1, Side::Server).ctl.rx_arm.load(Relaxed), 5);
    a.move_data(a.buffer_offset(3, Side::Client) + 10, &[9]).unwrap();
    assert_eq!(byte(b, 3, Side::Client, 10), 9);
}

#[test]
fn a_slot_proposes_one_connection_and_once() {
    let region = mapped();
    let setup = &region.view().section(3, Side::Client).setup;
    let (mine, another) = (crate::tuple(6), crate::tuple(7));
    setup.set_tuple(&mine);
    setup.generation.store(5, Relaxed);
    for state in [Proposal::Proposed, Proposal::Used] {
        setup.state.store(state as u32, Relaxed);
        assert!(setup.proposes(5, &mine.reversed()));
        assert!(!setup.proposes(5, &another.reversed()), "of another connection");
        assert!(!setup.proposes(5, &mine), "of the other direction");
        assert!(!setup.proposes(4, &mine.reversed()), "of an earlier use");
    }
    for state in [0, Proposal::Active as u32, 77] {
        setup.state.store(state, Relaxed);
        assert!(!setup.proposes(5, &mine.reversed()));
    }
}

#[test]
fn no_two_parts_overlap() {
    parts_do_not_overlap(&in_device());
}

/// Whichever slots come first.
#[test]
fn rings_that_are_mapped_late_are_those_of_their_slots() {
    let fd = region::create(7).unwrap();
    let (region, whole) = (Region::map(&fd).unwrap(), Map::new(&fd, LEN, true).unwrap());
    let view = region.view();
    assert!(region.has(0) && !region.has(100));
    assert!(region.open(SLOTS).is_err());
    for (slot, n) in [100, 254, 0, 9, 8, 7, 99, 253, 101].into_iter().zip(1_u8..) {
        region.open(slot).unwrap();
        region.open(slot).unwrap();
        assert!(region.has(slot));
        for side in [Side::Client, Side::Server] {
            let at = view.buffer_offset(slot, side);
            for byte in [0, 5000, RING - 1] {
                // SAFETY: inside of the ring.
                unsafe { view.buffer(slot, side).add(byte).write(n) };
                let mut found = [0];
                whole.read(at + byte, &mut found).unwrap();
                assert_eq!(found, [n], "{slot} {side:?} {byte}");
            }
        }
    }
}

/// What a forked child holds stays, and what it does not is not there.
#[test]
fn only_what_is_held_stays_mapped() {
    let region = mapped();
    let view = region.view();
    for slot in [0, 1, 2, 20, 40] {
        region.open(slot).unwrap();
        view.move_data(view.buffer_offset(slot, Side::Server) + 5, &[7]).unwrap();
    }
    let address = |slot| view.buffer(slot, Side::Server).addr().get() + 5;
    let before = [0, 1, 2, 20, 40].map(address);
    // SAFETY: only slot 1 and 40 are used from now on.
    unsafe { region.keep_only(|slot| slot == 1 || slot == 40) };
    let is_there = before.map(is_mapped);
    assert_eq!(is_there, [false, true, false, false, true]);
    for side in [Side::Client, Side::Server] {
        let ring = view.buffer(1, side).addr().get();
        assert!(
            is_mapped(ring) && is_mapped(ring + RING - 1),
            "with what it has in common with others"
        );
        assert!(
            [0, 3, 7].iter().all(|slot| !is_mapped(view.buffer(*slot, side).addr().get() + 4096))
        );
    }
    assert_eq!(byte(view, 1, Side::Server, 5), 7);
    assert_eq!(byte(view, 40, Side::Server, 5), 7);
    assert!(!region.has(20));
    view.section(3, Side::Client).ctl.rx_arm.store(5, Relaxed);
    // SAFETY: nothing of the region is used from now on but its sections.
    unsafe { region.blank() };
    assert_eq!(view.section(3, Side::Client).ctl.rx_arm.load(Relaxed), 0);
    assert_eq!(before.map(is_mapped), [false; 5]);
}

/// True for an address that can be read.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut ranges = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-').filter(|_| rest.starts_with('r'))?;
        let number = |hex| usize::from_str_radix(hex, 16).ok();
        Some(number(from)?..number(to)?)
    });
    ranges.any(|range| range.contains(&address))
}

fn parts_do_not_overlap(region: &Region) {
    let geometry = region.view().geometry();
    let view = region.view();
    let base = std::ptr::from_ref(view.lane(0).owner).addr() - RegionView::lanes_at().start;
    let mut parts = Vec::new();
    for slot in 0..geometry.slots() {
        for side in [Side::Client, Side::Server] {
            let section = view.section(slot, side);
            parts.push((std::ptr::from_ref(section).addr() - base, size_of_val(section)));
            let buffer = view.buffer(slot, side).addr().get() - base;
            assert_eq!(buffer, view.buffer_offset(slot, side));
            parts.push((buffer, geometry.ring()));
            let grants = view.grants(slot, side);
            parts.push((std::ptr::from_ref(grants).addr() - base, size_of_val(grants)));
        }
    }
    for lane in 0..LANES {
        let lane = view.lane(lane);
        parts.push((std::ptr::from_ref(lane.owner).addr() - base, size_of_val(lane.owner)));
        for vector in (0..MAX_VECTORS).map(|vector| lane.vector(vector)) {
            parts.push((std::ptr::from_ref(vector).addr() - base, size_of_val(vector)));
        }
    }
    parts.sort_unstable();
    assert!(parts.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    assert!(parts.last().is_some_and(|(at, len)| at + len <= geometry.size()));
}

#[test]
fn writes_stay_inside() {
    let region = mapped();
    let view = region.view();
    region.open(SLOTS - 1).unwrap();
    let end = view.buffer_offset(SLOTS - 1, Side::Server) + RING;
    assert_eq!(end, Geometry::Host.data_end());
    for offset in [end - 1, end, end + 1, usize::MAX, usize::MAX - 1] {
        assert_eq!(view.move_data(offset, &[1, 1]), None, "at {offset}");
    }
    assert_eq!(byte(view, SLOTS - 1, Side::Server, RING - 1), 0, "nothing, not even a part");
    view.move_data(end - 2, &[1, 2]).unwrap();
    assert_eq!(byte(view, SLOTS - 1, Side::Server, RING - 1), 2);
}

#[test]
fn each_process_claims_a_lane_of_its_own() {
    let region = mapped();
    let view = region.view();
    assert_eq!(view.claim_lane(Side::Client, 1), Some(0));
    assert_eq!(view.claim_lane(Side::Client, 2), None);
    let lanes: HashSet<_> = (1..LANES as u64)
        .map(|endpoint| view.claim_lane(Side::Server, endpoint).unwrap())
        .collect();
    assert_eq!(lanes, (1..LANES).collect());
    assert_eq!(view.claim_lane(Side::Server, 99), None);
    view.lane(5).owner.store(0, Relaxed);
    assert_eq!(view.claim_lane(Side::Server, 99), Some(5));
    assert_eq!(view.lane(LANES + 5).owner.load(Relaxed), 99, "taken modulo");
}

#[test]
fn queue_codes_name_a_lane_and_a_vector() {
    assert_eq!(queue_place(0), None);
    for lane in 0..LANES {
        for vector in 0..MAX_VECTORS {
            assert_eq!(queue_place(queue_code(lane, vector)), Some((lane, vector)));
        }
    }
}

#[test]
fn sides_survive_the_arena() {
    for side in [Side::Client, Side::Server] {
        assert_eq!(Side::from_code(side as u32), side);
        assert_eq!(side.other().other(), side);
    }
    assert_eq!(Side::from_code(u32::MAX), Side::Server);
}

#[test]
fn a_copy_stays_inside_of_the_ring() {
    let region = mapped();
    let view = region.view();
    let ring = view.buffer(3, Side::Server);
    // SAFETY: the first and the last byte of the ring.
    unsafe {
        ring.write(1);
        ring.add(RING - 1).write(2);
    }
    let copy = |at, len| view.copy_to(3, Side::Server, at, &mut vec![7; len]).to_vec();
    assert_eq!(copy(0, 2), [1, 0]);
    assert_eq!(copy(RING - 1, 100), [2]);
    assert!(copy(RING, 1).is_empty() && copy(usize::MAX, 100).is_empty());
}

#[test]
fn a_reset_section_keeps_only_its_generation() {
    let region = mapped();
    let section = region.view().section(0, Side::Client);
    let clean = format!("{section:?}");
    section.prod.prod.store(1, Relaxed);
    section.prod.mark_at[1].store(2, Relaxed);
    section.prod.fin.store(3, Relaxed);
    section.cons.marks_passed.store(4, Relaxed);
    section.ctl.closed.store(5, Relaxed);
    section.setup.set_tuple(&crate::tuple(6));
    section.setup.endpoint.store(7, Relaxed);
    section.setup.generation.store(8, Relaxed);
    section.reset();
    assert_eq!(section.setup.generation.load(Relaxed), 8);
    section.setup.generation.store(0, Relaxed);
    assert_eq!(format!("{section:?}"), clean);
}

fn addr() -> impl Strategy<Value = Addr> {
    any::<([u8; 16], u16)>().prop_map(|(ip, port)| Addr { ip, port })
}

proptest! {
    #[test]
    fn a_tuple_is_read_as_it_was_written(local in addr(), peer in addr()) {
        let setup = Setup::default();
        let tuple = FourTuple { local, peer };
        setup.set_tuple(&tuple);
        prop_assert_eq!(setup.tuple(), tuple);
    }

    #[test]
    fn any_queue_code_is_inside(code in any::<u32>()) {
        if let Some((lane, vector)) = queue_place(code) {
            prop_assert!(lane < LANES && vector < MAX_VECTORS);
        }
    }
}

/// Memory that a file in memory takes, in bytes.
fn taken(fd: impl std::os::fd::AsFd) -> u64 {
    u64::try_from(rustix::fs::fstat(fd).unwrap().st_blocks).unwrap() * 512
}

fn fill(view: RegionView, slot: usize, receiver: Side, with: u8) {
    // SAFETY: inside the buffer; nobody reads meanwhile.
    unsafe { view.buffer(slot, receiver).write_bytes(with, RING) };
}

#[test]
fn a_ring_is_given_back_and_its_neighbours_are_not() {
    let fd = region::create(7).unwrap();
    let (one, other) = (Region::map(&fd).unwrap(), Region::map(&fd).unwrap());
    // In the first window and behind it, at its ends and in the middle.
    for slot in [0, 3, 7, 8, SLOTS - 1] {
        let before = taken(&fd);
        let all = [slot.checked_sub(1), Some(slot), Some(slot + 1)];
        let near: Vec<usize> = all.into_iter().flatten().filter(|slot| *slot < SLOTS).collect();
        let sides = [Side::Client, Side::Server];
        for slot in &near {
            one.open(*slot).unwrap();
            other.open(*slot).unwrap();
            sides.iter().for_each(|side| fill(one.view(), *slot, *side, 3));
        }
        for side in sides {
            let filled = taken(&fd);
            // SAFETY: nobody uses it.
            unsafe { one.view().discard(slot, side) };
            assert_eq!(filled - taken(&fd), RING as u64 - 4096, "{slot} {side:?}");
            let look = |at| byte(other.view(), slot, side, at);
            let kept = 2048;
            assert_eq!([look(0), look(kept - 1), look(RING - kept), look(RING - 1)], [3; 4]);
            assert_eq!([look(kept), look(RING / 2), look(RING - kept - 1)], [0; 3]);
            let others = near.iter().flat_map(|slot| sides.map(|side| (*slot, side)));
            for (near, of) in
                others.filter(|(near, of)| *near != slot || (*of as u32) > side as u32)
            {
                let ends = [0, RING / 2, RING - 1].map(|at| byte(other.view(), near, of, at));
                assert_eq!(ends, [3; 3], "{near} {of:?}");
            }
            // What was looked at is memory again.
            // SAFETY: nobody else uses the ring, whose bytes were looked at.
            unsafe { other.view().discard(slot, side) };
        }
        for slot in near {
            for side in sides {
                // SAFETY: nobody else uses these rings, whose bytes were looked at.
                unsafe { one.view().discard(slot, side) };
            }
        }
        assert!(taken(&fd) - before < 64 << 10, "what was filled here is gone");
        fill(one.view(), slot, Side::Client, 4);
        assert_eq!(byte(other.view(), slot, Side::Client, RING / 2), 4, "it is of use again");
        // SAFETY: nobody else uses the ring, whose byte was looked at.
        unsafe { one.view().discard(slot, Side::Client) };
    }
}

#[test]
fn memory_of_a_device_is_not_given_back() {
    let region = in_device();
    let view = region.view();
    view.move_data(view.buffer_offset(1, Side::Server) + 10_000, &[9]).unwrap();
    // SAFETY: nobody uses it.
    unsafe { view.discard(1, Side::Server) };
    assert_eq!(byte(view, 1, Side::Server, 10_000), 9);
}

#[test]
fn those_whose_peer_is_gone_are_roused_also_when_they_are_only_about_to_sleep() {
    let region = mapped();
    let view = region.view();
    for slot in 0..2 {
        view.section(slot, Side::Client).setup.generation.store(1, Relaxed);
    }
    let words = [Side::Client, Side::Server].map(|side| &view.section(1, side).ctl.rx_arm);
    thread::scope(|scope| {
        for word in words {
            arm(word, ON_FUTEX);
        }
        let sleep = |word| futex_wait(word, ON_FUTEX, Some(Duration::from_secs(60)));
        let [one, other] = words.map(|word| scope.spawn(move || sleep(word)));
        let before = view.gone();
        view.rouse(Side::Client);
        assert_ne!(view.gone(), before);
        // Asleep already or not yet: it is woken, or finds the word changed.
        let _ = one.join().unwrap();
        assert!(!other.is_finished(), "the other side");
        assert_eq!(words.map(|word| word.load(Relaxed)), [0, ON_FUTEX]);
        words[1].store(0, Relaxed);
        futex_wake(words[1], u32::MAX);
        let _ = other.join().unwrap();
    });
}
