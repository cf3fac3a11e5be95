use shunt_shm::region::{CLOSED, RESET, Side, shape};
use shunt_shm::ring::{Content, TxCursor, UNLIMITED};

use super::*;

const RING: u64 = 256;

/// Both hosts' lanes of a connection, with the sections of each: what the program there writes, and what it reads.
#[derive(Default)]
struct Both {
    lanes: [Lane; 2],
    mine: [Section; 2],
    theirs: [Section; 2],
    /// What the second one's agent was sent, and wrote into its ring.
    rest: Vec<Rest>,
    written: Vec<u8>,
}

impl Both {
    /// The first program's agent posts what it has published; the second one hears of it, or not.
    fn post(&mut self, arrives: bool) {
        let Some(posting) = self.lanes[0].gather(&self.mine[0], RING, 1000).unwrap() else {
            return;
        };
        self.lanes[0].post(&posting, RING);
        if arrives {
            let theirs = (&self.theirs[1], Side::Client);
            self.lanes[1].hear(&posting.words, theirs, RING).unwrap();
        }
    }

    fn publish(&self, prod: u64) {
        let program = TxCursor::default();
        let want = (prod, Content::Put);
        let wish = shape(Side::Server, RING);
        program.reserve(&self.theirs[0].cons, RING, wish, UNLIMITED, want).unwrap();
        program.publish(&self.mine[0].prod, prod);
    }

    fn mark(&self, at: u64) {
        TxCursor::set_mark(&self.mine[0].prod, at);
    }

    /// The link fails; how the first program's direction goes on, and whether the second one's host lacks nothing.
    fn fail(&mut self) -> (Settled, bool) {
        let settled = self.settle();
        if let Settled::EndsBehind(from) = settled {
            self.rest = self.read_rest(from).unwrap();
            for rest in core::mem::take(&mut self.rest) {
                self.take_rest(&rest).unwrap();
                self.rest.push(rest);
            }
        }
        (settled, self.lanes[1].part(&self.theirs[1], true))
    }

    fn settle(&mut self) -> Settled {
        let stands = [0, 1].map(|i| self.lanes[i].stand(&self.mine[i], &self.theirs[i]));
        let settled = [0, 1]
            .map(|i| self.lanes[i].settle(&stands[1 - i], (&self.mine[i], &self.theirs[i]), RING));
        assert_eq!(settled[1], Ok(Settled::GoesOn));
        settled[0].unwrap()
    }

    /// What the first program's agent sends, each byte being its place in the ring.
    fn read_rest(&self, from: u64) -> Option<Vec<Rest>> {
        self.lanes[0].rest(from, &self.mine[0], RING, |at, to| {
            (at..).zip(to).for_each(|(at, to)| *to = u8::try_from(at).unwrap());
            Some(())
        })
    }

    fn take_rest(&mut self, rest: &Rest) -> Result<(), Impossible> {
        let written = &mut self.written;
        self.lanes[1].take_rest(rest, &self.theirs[1], RING, |at, from| {
            from.iter().zip(at..).for_each(|(byte, at)| assert_eq!(usize::from(*byte), at));
            written.extend(from);
            Some(())
        })
    }

    /// The first program ends its direction.
    fn end(&self) {
        self.mine[0].prod.fin.store(1, Ordering::Relaxed);
        self.mine[0].ctl.closed.store(CLOSED, Ordering::Relaxed);
    }

    /// What the second program sees: bytes in the ring, marks, and whether they are the last ones.
    fn sees(&self) -> (u64, u32, bool) {
        let prod = &self.theirs[1].prod;
        let ended = prod.fin.load(Ordering::Relaxed) != 0;
        assert_eq!(ended, self.theirs[1].ctl.closed.load(Ordering::Relaxed) == CLOSED);
        (prod.prod.load(Ordering::Relaxed), prod.marks.load(Ordering::Relaxed), ended)
    }

    /// Where the sender is told that its receiver stopped; marks that the receiver sees, and where the last one is.
    fn outcome(&self) -> (u64, u32, u64) {
        let prod = &self.theirs[1].prod;
        let marks = prod.marks.load(Ordering::Relaxed);
        let at = prod.mark_at[marks as usize % MARKS].load(Ordering::Relaxed);
        (self.theirs[0].cons.cons.load(Ordering::Relaxed), marks, at)
    }
}

/// It goes on over TCP, and nothing is missing.
const OVER_TCP: (Settled, bool) = (Settled::GoesOn, true);

fn in_ring() -> Both {
    let mut both = Both::default();
    both.mark(5);
    both.post(true);
    both.publish(60);
    both.post(true);
    both
}

#[test]
fn a_direction_in_the_ring_goes_on_behind_what_was_heard() {
    let mut both = in_ring();
    both.publish(100);
    both.post(false);
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!(both.outcome(), (60, 2, 60));
    let left = &both.theirs[0].ctl.handed_over;
    assert!(handover::has_left(left) && !handover::stays(left));
    assert_eq!(both.theirs[0].cons.heard.load(Ordering::Relaxed), 0, "nothing waits any more");
}

#[test]
fn one_that_has_left_unheard_goes_on_at_its_own_mark() {
    let mut both = in_ring();
    both.mark(40);
    both.post(false);
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!(both.outcome(), (60, 2, 40), "the receiver drops what it has had");
    // One that sets its mark after the agent has looked begins where it is told.
    let mut both = in_ring();
    both.lanes[0].stand(&both.mine[0], &both.theirs[0]);
    both.mark(40);
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!(both.outcome(), (60, 2, 60));
    let repeats = handover::repeats(&both.theirs[0].ctl.handed_over, 2);
    assert_eq!(repeats, handover::Repeats::FromRest);
}

#[test]
fn one_that_has_left_and_was_heard_stays_as_it_is() {
    let mut both = in_ring();
    both.mark(60);
    both.post(true);
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!(both.outcome(), (60, 2, 60));
}

#[test]
fn of_one_that_has_entered_unheard_all_comes_over_tcp() {
    let mut both = Both::default();
    both.mark(5);
    both.publish(30);
    both.post(false);
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!(both.outcome(), (0, 0, 0));
    // Also where the bytes were heard of before the mark, and where it has left again.
    for leaves in [false, true] {
        let mut both = Both::default();
        both.publish(30);
        both.post(true);
        both.mark(5);
        if leaves {
            both.mark(0);
        }
        assert_eq!(both.fail(), OVER_TCP);
        assert_eq!(both.outcome(), (0, 0, 0), "{leaves}");
    }
}

#[test]
fn what_was_not_heard_before_an_end_is_sent_by_the_agent() {
    let mut both = in_ring();
    both.publish(100);
    both.end();
    assert_eq!(both.fail(), (Settled::EndsBehind(60), true));
    assert_eq!((both.sees(), both.written.len()), ((100, 1, true), 40));
    // All of it was heard: it goes on over TCP, which says the rest.
    let mut both = in_ring();
    both.end();
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!((both.sees(), both.outcome()), ((60, 2, false), (60, 2, 60)));
}

/// Also of a program that has entered the ring unheard, with bytes that were heard or not.
#[test]
fn a_stretch_that_ends_unheard_comes_whole() {
    for is_heard in [false, true] {
        let mut both = Both::default();
        both.publish(30);
        if is_heard {
            both.post(true);
        }
        both.mark(5);
        both.post(false);
        both.end();
        assert_eq!(both.fail(), (Settled::EndsBehind(0), true));
        assert_eq!((both.sees(), both.outcome().2), ((30, 1, true), 5), "{is_heard}");
        assert_eq!(both.written.len(), 30);
    }
}

#[test]
fn a_program_may_end_until_the_far_side_has_said_where_it_stood() {
    let mut both = in_ring();
    both.publish(100);
    for i in [0, 1] {
        both.lanes[i].stand(&both.mine[i], &both.theirs[i]);
    }
    both.end();
    assert_eq!(both.fail(), (Settled::EndsBehind(60), true));
    assert_eq!(both.sees(), (100, 1, true));
    // One that has followed before goes on over TCP.
    let mut both = in_ring();
    both.publish(100);
    for i in [0, 1] {
        both.lanes[i].stand(&both.mine[i], &both.theirs[i]);
    }
    both.mark(60);
    both.end();
    assert_eq!(both.fail(), OVER_TCP);
    assert_eq!(both.sees(), (60, 2, false));
}

/// It has looked before whether its peer has left, and does not look again.
#[test]
fn a_program_that_is_about_to_end_is_waited_for() {
    let ending = || {
        let mut both = in_ring();
        both.publish(100);
        both.mine[0].prod.ending.store(1, Ordering::Relaxed);
        assert_eq!(both.settle(), Settled::IsEnding);
        both
    };
    let both = ending();
    both.end();
    assert_eq!(both.lanes[0].settled(&both.mine[0]), Settled::EndsBehind(60));
    let both = ending();
    both.mark(60);
    assert_eq!(both.lanes[0].settled(&both.mine[0]), Settled::GoesOn, "it has followed");
    let both = ending();
    both.mine[0].prod.ending.store(0, Ordering::Relaxed);
    assert_eq!(both.lanes[0].settled(&both.mine[0]), Settled::GoesOn, "it does not end after all");
}

#[test]
fn what_does_not_come_is_missing() {
    let ended = || {
        let mut both = in_ring();
        both.publish(100);
        both.end();
        let Settled::EndsBehind(from) = both.settle() else { panic!() };
        let rest = both.read_rest(from).unwrap().remove(0);
        (both, rest)
    };
    let (both, _) = ended();
    assert!(!both.lanes[1].part(&both.theirs[1], true));
    assert_eq!(both.sees(), (60, 1, false), "no switch point leads past it");
    // Nor is a part all of it.
    let (mut both, mut rest) = ended();
    rest.end = None;
    both.take_rest(&rest).unwrap();
    assert!(!both.lanes[1].part(&both.theirs[1], true));
}

/// Its agent is gone before it has said that this was all: the program may have ended meanwhile, behind bytes that do not come.
#[test]
fn what_may_be_missing_is_not_left_to_tcp() {
    let mut both = in_ring();
    both.publish(100);
    assert_eq!(both.settle(), Settled::GoesOn);
    both.end();
    let before = both.sees();
    assert!(!both.lanes[1].part(&both.theirs[1], false));
    assert_eq!(both.sees(), before, "no switch point leads out of the ring");
    // What has come whole has.
    let mut both = in_ring();
    both.publish(100);
    both.end();
    let Settled::EndsBehind(from) = both.settle() else { panic!() };
    let rest = both.read_rest(from).unwrap().remove(0);
    both.take_rest(&rest).unwrap();
    assert!(both.lanes[1].part(&both.theirs[1], false));
}

#[test]
fn a_rest_that_cannot_be_is_not_believed() {
    let wrong: [fn(&mut Rest); 8] = [
        |rest| rest.at = 59,
        |rest| rest.at = 61,
        |rest| rest.at = u64::MAX,
        |rest| rest.bytes = vec![0; 257],
        |rest| rest.end.as_mut().unwrap().marks = 3,
        |rest| rest.end.as_mut().unwrap().marks = 2,
        |rest| rest.end.as_mut().unwrap().marks = 0,
        |rest| rest.end.as_mut().unwrap().closed = RESET + 9,
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let mut both = in_ring();
        both.publish(100);
        both.end();
        let Settled::EndsBehind(from) = both.settle() else { panic!() };
        let mut rest = both.read_rest(from).unwrap().remove(0);
        wrong(&mut rest);
        assert!(both.take_rest(&rest).is_err(), "{number}");
        assert!(!both.sees().2, "{number}");
    }
    // Nor one that nobody has spoken of, or that goes on behind the end.
    let mut both = in_ring();
    both.publish(100);
    both.end();
    let rest = Rest { at: 60, base: 0, bytes: Vec::new(), end: None };
    assert_eq!(both.take_rest(&rest), Err(Impossible::Producer));
    both.fail();
    assert_eq!(both.take_rest(&Rest { at: 100, ..rest }), Err(Impossible::Producer));
}

#[test]
fn a_far_side_that_stood_where_it_cannot_have_is_noticed() {
    let both = || {
        let mut both = in_ring();
        let stand = both.lanes[1].stand(&both.mine[1], &both.theirs[1]);
        (both, stand)
    };
    let (_, right) = both();
    for wrong in [
        Stand { received: 61, ..right },
        Stand { received: u64::MAX, ..right },
        Stand { marks: 7, ..right },
    ] {
        let (mut both, _) = both();
        let sections = (&both.mine[0], &both.theirs[0]);
        assert!(both.lanes[0].settle(&wrong, sections, RING).is_err(), "{wrong:?}");
    }
    let (mut both, _) = both();
    let far = both.lanes[0].stand(&both.mine[0], &both.theirs[0]);
    for own_at in [61, u64::MAX] {
        let wrong = Stand { own_marks: 2, own_at, ..far };
        let sections = (&both.mine[1], &both.theirs[1]);
        assert!(both.lanes[1].settle(&wrong, sections, RING).is_err(), "{own_at}");
    }
}
