//! Who is told, and when.

use std::thread;

use shunt_shm::region::{Region, Side};

use crate::rig::{A_MOMENT, PATIENCE, Rig, WAYS, Way, attach, bytes, register};

/// Nobody else hears it, and it is heard once.
pub fn a_signal_wakes_only_the_one_it_is_for<R: Rig>() {
    let rig = R::new();
    let ((mut one, bell), (mut other, _kept)) = (rig.ear(), rig.ear());
    assert!(!R::told(&mut one, A_MOMENT));
    for _ in 0..3 {
        R::signal(&bell);
        assert!(R::told(&mut one, PATIENCE));
        assert!(!R::told(&mut one, A_MOMENT));
        assert!(!R::told(&mut other, A_MOMENT));
    }
}

/// Two ends answer each other: whoever is told finds the bytes in place, all of them.
pub fn data_is_visible_before_its_signal<R: Rig>() {
    const ROUNDS: u32 = 500;
    const WORDS: usize = 128;

    fn play<R: Rig>(way: Way, region: &Region, me: Side, ear: &mut R::Ear, peer: &R::Bell) {
        let view = region.view();
        for round in 0..ROUNDS {
            let said = round.to_ne_bytes().repeat(WORDS);
            let say = || {
                way.put(view, (0, me.other()), 0, &said);
                R::signal(peer);
            };
            if me == Side::Client {
                say();
            }
            assert!(R::told(ear, PATIENCE), "round {round}");
            assert!(bytes(view, (0, me), 0, said.len()) == said, "round {round}");
            if me == Side::Server {
                say();
            }
        }
    }

    for way in WAYS {
        let rig = R::new();
        let made = register(&rig);
        let (client, server) = (attach(&rig, &made, &[0]), attach(&rig, &made, &[0]));
        let ((mut first, first_bell), (mut second, second_bell)) = (rig.ear(), rig.ear());
        let (second, server, first_bell) = (&mut second, &server, &first_bell);
        thread::scope(|scope| {
            scope.spawn(move || play::<R>(way, server, Side::Server, second, first_bell));
            play::<R>(way, &client, Side::Client, &mut first, &second_bell);
        });
    }
}
