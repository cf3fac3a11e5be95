//! Who is woken, and how, by each kind of news.

use core::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::{AWAKE, ON_BELL, ON_FUTEX, ON_QUEUE, arm, arm_bell};
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::tell::{
    Armed, Cost, Untold, Wake, data, own, queue, queue_again, space, those_on_futexes, untold,
};

/// Notes what wakes.
#[derive(Default)]
struct Waker {
    /// The connection has a completion queue.
    is_queued: bool,
    /// The vector whose owner sleeps at that queue.
    sleeper: Option<usize>,
    /// The library panics in the middle.
    panics: bool,
    is_halfway: Cell<bool>,
    /// It tells above another one.
    is_above: bool,
    futexes: Cell<u32>,
    /// Ten for one that comes again.
    pushes: Cell<u32>,
    rung: RefCell<Vec<usize>>,
}

impl Wake for Waker {
    fn futex(&self, _: &AtomicU32) {
        assert!(self.is_halfway.get() || self.is_above);
        self.futexes.set(self.futexes.get() + 1);
    }

    fn ring(&self, vectors: impl Iterator<Item = usize>) {
        self.rung.borrow_mut().extend(vectors);
    }

    fn is_queued(&self) -> bool {
        self.is_queued
    }

    fn push(&self) -> Option<usize> {
        self.pushes.set(self.pushes.get() + 1);
        assert!(!self.panics);
        self.sleeper
    }

    fn push_again(&self) -> Option<usize> {
        self.pushes.set(self.pushes.get() + 10);
        self.sleeper
    }

    fn ring_all(&self) {
        self.rung.borrow_mut().push(usize::MAX);
    }

    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T {
        assert!(!self.is_halfway.replace(true));
        let result = halves();
        self.is_halfway.set(false);
        result
    }
}

impl Waker {
    /// Futex wake-ups, pushes, and the vectors that were rung, since this was last asked.
    fn did(&self) -> (u32, u32, Vec<usize>) {
        (self.futexes.take(), self.pushes.take(), self.rung.take())
    }
}

/// A side's words.
#[derive(Default)]
struct Words {
    word: AtomicU32,
    bells: AtomicU64,
}

impl Words {
    fn armed(&self) -> Armed<'_> {
        Armed { word: &self.word, bells: &self.bells }
    }
}

#[test]
fn nobody_who_is_awake_is_woken() {
    let (words, waker) = (Words::default(), Waker::default());
    assert_eq!(data(words.armed(), &waker), Cost::Saved);
    space(words.armed(), &waker);
    own([words.armed(), words.armed()], &waker);
    those_on_futexes([words.armed(), words.armed()], &waker);
    assert_eq!(waker.did(), (0, 0, vec![]));
}

#[test]
fn bytes_wake_all_who_have_armed_the_word_once() {
    let (words, waker) = (Words::default(), Waker::default());
    arm(&words.word, ON_FUTEX);
    arm_bell(&words.word, &words.bells, 3);
    arm_bell(&words.word, &words.bells, 9);
    assert_eq!(data(words.armed(), &waker), Cost::Rung);
    assert_eq!(waker.did(), (1, 0, vec![3, 9]));
    assert_eq!((words.word.load(Relaxed), words.bells.load(Relaxed)), (AWAKE, 0));
    assert_eq!(data(words.armed(), &waker), Cost::Saved, "they are told");
    assert_eq!(waker.did(), (0, 0, vec![]));
}

#[test]
fn bytes_go_into_the_queue_whose_owner_is_rung_if_it_sleeps() {
    let words = Words::default();
    let awake = Waker { is_queued: true, ..Waker::default() };
    assert_eq!(data(words.armed(), &awake), Cost::Saved);
    assert_eq!(awake.did(), (0, 1, vec![]));
    let asleep = Waker { is_queued: true, sleeper: Some(5), ..Waker::default() };
    assert_eq!(data(words.armed(), &asleep), Cost::Rung);
    assert_eq!(asleep.did(), (0, 1, vec![5]));
    // A thread of the same process sleeps in a call, too.
    arm(&words.word, ON_FUTEX);
    assert_eq!(data(words.armed(), &asleep), Cost::Rung);
    assert_eq!(asleep.did(), (1, 1, vec![5]));
}

#[test]
fn room_goes_into_the_queue_for_those_who_asked_for_that() {
    let (words, waker) = (Words::default(), Waker { sleeper: Some(2), ..Waker::default() });
    arm(&words.word, ON_FUTEX);
    space(words.armed(), &waker);
    assert_eq!(waker.did(), (1, 0, vec![]), "nobody has asked for the queue");
    arm(&words.word, ON_QUEUE);
    space(words.armed(), &waker);
    assert_eq!(waker.did(), (0, 1, vec![2]));
    arm(&words.word, ON_QUEUE);
    arm_bell(&words.word, &words.bells, 7);
    space(words.armed(), &waker);
    assert_eq!(waker.did(), (0, 1, vec![2, 7]));
    assert_eq!(words.word.load(Relaxed), AWAKE);
}

#[test]
fn own_threads_are_told_by_either_word() {
    let (reads, writes) = (Words::default(), Words::default());
    let waker = Waker { sleeper: Some(1), ..Waker::default() };
    arm(&writes.word, ON_QUEUE | ON_FUTEX);
    own([reads.armed(), writes.armed()], &waker);
    assert_eq!(waker.did(), (1, 1, vec![1]));
    arm_bell(&reads.word, &reads.bells, 4);
    arm_bell(&writes.word, &writes.bells, 6);
    own([reads.armed(), writes.armed()], &waker);
    assert_eq!(waker.did(), (0, 0, vec![4, 6]));
}

#[test]
fn only_those_on_futexes_are_told_of_what_the_kernel_tells_the_others() {
    let (reads, writes) = (Words::default(), Words::default());
    arm(&reads.word, ON_FUTEX);
    arm_bell(&reads.word, &reads.bells, 4);
    arm_bell(&writes.word, &writes.bells, 4);
    let waker = Waker::default();
    those_on_futexes([reads.armed(), writes.armed()], &waker);
    assert_eq!(waker.did(), (1, 0, vec![]));
    assert_eq!(reads.word.load(Relaxed), ON_BELL, "who waits otherwise stays armed");
    assert_eq!((writes.word.load(Relaxed), writes.bells.load(Relaxed)), (ON_BELL, 1 << 4));
}

#[test]
fn a_queued_connection_leaves_its_place() {
    let (line, lane, place) = (CqLine::default(), ArmLine::default(), AtomicU32::new(u32::MAX));
    assert_eq!(queue(&line, &lane, 8, Some(&place)), Push::Saved, "the owner is awake");
    let first = place.load(Relaxed);
    lane.arm();
    assert_eq!(queue(&line, &lane, 9, Some(&place)), Push::Ring);
    assert!(place.load(Relaxed) > first, "in the order in which they came");
    assert_eq!(queue(&line, &lane, 9, None), Push::Saved, "it is there already");
}

#[test]
fn a_handler_between_the_halves_of_telling_wakes_all_who_may_be_meant() {
    const NOTHING: Untold = Untold { data: false, room: false };
    let (reads, writes) = (Words::default(), Words::default());
    let waker = Waker { is_above: true, ..Waker::default() };
    let both = || [reads.armed(), writes.armed()];
    untold(NOTHING, false, both(), &waker);
    untold(Untold { data: true, room: true }, false, both(), &waker);
    assert_eq!(waker.did(), (0, 0, vec![]), "nobody waits");
    untold(NOTHING, true, both(), &waker);
    assert_eq!(waker.did(), (2, 0, vec![usize::MAX; 2]));
    let queued = Waker { is_queued: true, sleeper: Some(3), is_above: true, ..Waker::default() };
    untold(NOTHING, true, both(), &queued);
    assert_eq!(queued.did(), (2, 20, vec![usize::MAX; 2]));
    // What is in the queue may not have been rung for.
    untold(Untold { data: true, room: false }, false, both(), &queued);
    assert_eq!(queued.did(), (0, 11, vec![3, 3]));
}

#[test]
fn one_that_panics_between_the_halves_of_telling_wakes_all_who_may_be_meant() {
    let (words, waker) =
        (Words::default(), Waker { panics: true, is_above: true, ..Waker::default() });
    arm(&words.word, ON_QUEUE);
    arm_bell(&words.word, &words.bells, 4);
    let result = catch_unwind(AssertUnwindSafe(|| space(words.armed(), &waker)));
    assert!(result.is_err());
    assert_eq!(waker.did(), (1, 1, vec![usize::MAX]));
}

#[test]
fn one_that_is_queued_and_was_not_rung_for_is_rung_for_again() {
    let (line, lane) = (CqLine::default(), ArmLine::default());
    assert_eq!(queue_again(&line, &lane, 8, None), Push::Saved, "the owner is awake");
    lane.arm();
    assert_eq!(queue(&line, &lane, 9, None), Push::Ring);
    assert_eq!(queue(&line, &lane, 9, None), Push::Saved);
    assert_eq!(queue_again(&line, &lane, 9, None), Push::Ring);
}
