//! The life of a region.

use std::sync::atomic::Ordering::Relaxed;

use shunt_shm::region::Side;

use crate::rig::{Rig, WAYS, attach, bytes, register};

/// Whoever attaches a region can tell that it is the one that was meant.
pub fn a_region_has_the_name_that_it_was_given<R: Rig>() {
    let rig = R::new();
    for name in [1, 7, u64::MAX >> 1] {
        let Ok(made) = rig.register(name) else { panic!("a region {name}") };
        assert_eq!(attach(&rig, &made, &[]).name(), name);
    }
}

/// Nothing of what the memory held before shows: neither bytes nor words.
pub fn a_region_begins_as_zeroes<R: Rig>() {
    let rig = R::new();
    for round in 0..3 {
        let made = register(&rig);
        let region = attach(&rig, &made, &[0]);
        let (view, ring) = (region.view(), region.view().geometry().ring());
        for receiver in [Side::Client, Side::Server] {
            assert!(bytes(view, (0, receiver), 0, ring) == vec![0; ring], "round {round}");
            let section = view.section(0, receiver);
            assert_eq!(section.setup.generation.swap(1, Relaxed), 0, "round {round}");
            assert_eq!(section.prod.prod.swap(9, Relaxed), 0, "round {round}");
            assert_eq!(section.ctl.closed.swap(1, Relaxed), 0, "round {round}");
            for way in WAYS {
                way.put(view, (0, receiver), 0, &vec![0xff; ring]);
            }
        }
        assert_eq!(view.lane(0).owner.swap(3, Relaxed), 0, "round {round}");
        drop(region);
        rig.unregister(made);
    }
}

/// The maker gives the region up: what a peer has attached stays.
pub fn attached_memory_outlives_its_registration<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let (mine, theirs) = (attach(&rig, &made, &[2]), attach(&rig, &made, &[2]));
    for way in WAYS {
        way.put(mine.view(), (2, Side::Client), 4095, &[42]);
    }
    drop(mine);
    rig.unregister(made);
    assert_eq!(bytes(theirs.view(), (2, Side::Client), 4095, 1), [42]);
    for way in WAYS {
        way.put(theirs.view(), (2, Side::Client), 0, &[1]);
    }
}

/// Who holds the memory can't shrink it under the other's feet.
pub fn memory_cannot_be_resized<R: Rig>() {
    let rig = R::new();
    let made = register(&rig);
    let region = attach(&rig, &made, &[0]);
    for len in [0, 1, 4096, 1 << 20] {
        assert!(rig.resize(&made, len).is_err(), "resized to {len}");
    }
    let last = region.view().geometry().ring() - 1;
    for way in WAYS {
        way.put(region.view(), (0, Side::Server), last, &[3]);
    }
    assert_eq!(bytes(region.view(), (0, Side::Server), last, 1), [3]);
}

/// Memory that has something else in it is not mapped as a region.
pub fn what_is_no_region_is_refused<R: Rig>() {
    assert!(R::new().attach_no_region().is_err());
}
