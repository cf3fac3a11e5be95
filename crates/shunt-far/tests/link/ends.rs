//! Connections that end, or come to nothing, at a link that is over or about to be.

use shunt_far::link::{Ended, Rings};
use shunt_far::message::{Kind, Words};
use shunt_far::{Cause, Mirror, News};
use shunt_shm::region::Side;
use shunt_shm::ring::TxCursor;
use shunt_shm::sync::Ordering;

use crate::hostile::{Hostile, LANE, RING, TEN, cursors, says};

/// Its program took the proposal back while it was taken up here.
#[test]
fn a_far_side_that_leaves_without_an_end_has_nobody_wait_for_it() {
    let mut far = Hostile::new();
    assert_eq!(says(&far, 0), (1, false));
    far.say(0, 0, Kind::Leave(LANE));
    assert_eq!(says(&far, 0), (0, true));
    assert_eq!(far.link.mirror().woken, [(0, News { bytes: true, room: true })]);
    // One that has said its end before has left nothing open.
    let mut far = Hostile::new();
    far.say(0, 0, cursors(Words { fin: 1, ..TEN }));
    far.say(1, 0, Kind::Leave(LANE));
    assert_eq!(says(&far, 0), (0, false));
}

#[test]
fn a_connection_that_is_taken_up_behind_a_failure_stays_on_tcp() {
    for was_told in [true, false] {
        let mut far = Hostile::new();
        let port = far.port.clone();
        let both = Rings { memory: far.rings.clone(), outgoing: 0..RING, incoming: RING..2 * RING };
        far.link.open(&port, 1, 9, &both).unwrap();
        far.link.fail(Cause::Told);
        assert_eq!(far.link.halts().len(), 1);
        assert!(!far.link.attach(1, 9, far.ring));
        assert_eq!(far.link.halts().len(), 1, "as it was said");
        assert_eq!(says(&far, 1), (0, false));
        if was_told {
            far.link.abandon(1);
        } else {
            far.link.part(true);
        }
        assert_eq!(says(&far, 1), (0, true));
        let theirs = far.link.mirror().section(1, Side::Server);
        assert_eq!(theirs.setup.done.load(Ordering::Relaxed), 1);
    }
}

/// The link failed before that: what this side's program has sent goes over TCP.
#[test]
fn a_connection_that_the_far_side_has_not_opened_goes_on_over_tcp() {
    let mut far = Hostile::new();
    let sends = |far: &Hostile| {
        let mine = far.link.mirror().section(0, Side::Client);
        TxCursor::set_mark(&mine.prod, 5);
        mine.prod.prod.store(20, Ordering::Release);
    };
    sends(&far);
    far.link.mark(0);
    far.turn();
    far.link.fail(Cause::Told);
    let settlement = far.link.settle(&[]);
    assert_eq!((settlement.ended.as_slice(), settlement.rests.len()), (&[][..], 0));
    assert_eq!(far.link.part(true), []);
    assert_eq!(says(&far, 0), (0, true));
    let theirs = far.link.mirror().section(0, Side::Server);
    assert_eq!(theirs.cons.cons.load(Ordering::Relaxed), 0, "from the first byte on");
    // One that has taken something had opened it.
    let mut far = Hostile::new();
    sends(&far);
    far.link.mark(0);
    far.turn();
    far.say(0, 1, cursors(Words { cons: 20, marks_passed: 1, prod: 0, ..TEN }));
    far.link.fail(Cause::Told);
    let ended = far.link.settle(&[]).ended;
    assert!(matches!(ended[..], [(0, Ended::Impossible(_))]), "{ended:?}");
}

/// It heard the last of it in time, this side did not.
#[test]
fn a_connection_that_is_over_at_the_far_side_ends_as_if_the_link_had_not_failed() {
    let mut far = Hostile::new();
    far.link.mirror().section(0, Side::Client).prod.prod.store(20, Ordering::Release);
    far.link.leave(0);
    far.turn();
    far.turn();
    far.say(0, 2, cursors(Words { cons: 20, prod: 0, ..TEN }));
    far.link.fail(Cause::Told);
    assert_eq!(far.link.settle(&[]).ended, []);
    assert_eq!(far.link.part(true), []);
    let theirs = far.link.mirror().section(0, Side::Server);
    assert_eq!(theirs.setup.done.load(Ordering::Relaxed), 1);
}
