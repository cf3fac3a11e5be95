//! The rules of the waiter, with a clock that stands still until something takes time, and sleeps that are told what they
//! come to.

mod lasting;
mod placing;
mod spins;

use core::cell::{Cell, RefCell};

use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};
use shunt_shm::waker::Waker;
use shunt_wire::waits::Part;

use super::*;
use crate::call::{Direction, Until};
use crate::spin::{Mode, Nanos};

const MS: Nanos = 1_000_000;

/// What happened, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Spin,
    GiveWay,
    LookAfter,
    Arm(Way),
    Look,
    AskWay,
    Alarm,
    Sleep(Way, Option<Nanos>),
    Awake,
    Disarm,
    Visit(Slept),
    GoTo(u32),
}

/// A process.
#[derive(Default)]
struct Process {
    now: Cell<Nanos>,
    /// How long each look at the clock takes, and each time the processor is given away.
    tick: Cell<Nanos>,
    away: Cell<Nanos>,
    mode: Cell<Mode>,
    far: AtomicU32,
    wake_up: [AtomicU32; 2],
    spinners: [AtomicU64; 1],
    rested: Cell<Nanos>,
    offers: AtomicU64,
    yields: AtomicU32,
    has_one_processor: Cell<bool>,
    alarm: Option<Nanos>,
    doubt: Option<Nanos>,
    counted: [Cell<u32>; 2],
    /// How often one was woken.
    woken: Cell<u32>,
    placing: Cell<Placing>,
    processor: Cell<u32>,
    steps: RefCell<Vec<Step>>,
}

impl Process {
    fn does(&self, step: Step) {
        self.steps.borrow_mut().push(step);
    }

    fn steps(&self) -> Vec<Step> {
        self.steps.take()
    }
}

impl Spinner for Process {
    fn now(&self) -> Nanos {
        let now = self.now.get();
        self.now.set(now + self.tick.get());
        now
    }

    fn mode(&self) -> Mode {
        self.mode.get()
    }

    fn far_answer(&self) -> &AtomicU32 {
        &self.far
    }

    fn wake_up(&self, way: Way) -> &AtomicU32 {
        &self.wake_up[usize::from(way == Way::Kernel)]
    }

    fn spinners(&self) -> &[AtomicU64] {
        &self.spinners
    }

    fn rested(&self) -> Nanos {
        self.rested.get()
    }

    fn rests(&self, now: Nanos) {
        self.rested.set(now);
    }

    fn offers(&self) -> &AtomicU64 {
        &self.offers
    }

    fn has_one_processor(&self) -> bool {
        self.has_one_processor.get()
    }

    fn yields(&self) -> &AtomicU32 {
        &self.yields
    }

    fn give_way(&self) {
        self.does(Step::GiveWay);
        self.now.set(self.now.get() + self.away.get());
    }
}

impl Host for Process {
    fn look_after(&self, _: Nanos) {
        self.does(Step::LookAfter);
    }

    fn alarm(&self) -> Option<Nanos> {
        self.does(Step::Alarm);
        self.alarm
    }

    fn awake(&self) {
        self.does(Step::Awake);
    }

    fn doubt(&self) -> Option<Nanos> {
        self.doubt
    }

    fn placing(&self) -> Placing {
        self.placing.get()
    }

    fn learns_place(&self, placing: Placing) {
        self.placing.set(placing);
    }

    fn processor(&self) -> u32 {
        self.processor.get()
    }

    fn goes_to(&self, processor: u32) {
        self.does(Step::GoTo(processor));
        self.processor.set(processor);
    }

    fn sleeps(&self, way: Way) {
        let counted = &self.counted[usize::from(way == Way::Kernel)];
        counted.set(counted.get() + 1);
    }
}

/// What is waited for. `SET`: several connections.
struct What<'a, const SET: bool> {
    process: &'a Process,
    /// After so many looks there is something.
    ready_after: u32,
    spins: Spun,
    way: Result<Way, Woken>,
    hearing: Hearing,
    /// Of what it armed for.
    is_heard: bool,
    limits: Limits,
    slept: Slept,
    /// How long a sleep takes.
    takes: Nanos,
    ran: bool,
    teaches: bool,
    /// How long before the sleep ended somebody began to wake it.
    rang: Option<Nanos>,
    /// On which processor that one ran.
    from: Option<u32>,
    follows: bool,
    stopwatch: Stopwatch,
    /// What it was told to have lasted.
    lasted: Vec<(Part, Nanos)>,
}

impl<'a, const SET: bool> What<'a, SET> {
    fn new(process: &'a Process) -> Self {
        Self {
            process,
            ready_after: u32::MAX,
            spins: Spun::Not,
            way: Ok(Way::Kernel),
            hearing: Hearing::Woken,
            is_heard: true,
            limits: Limits::default(),
            slept: Slept::Woken,
            takes: 0,
            ran: false,
            teaches: true,
            rang: None,
            from: None,
            follows: true,
            stopwatch: Stopwatch::default(),
            lasted: Vec::new(),
        }
    }

    fn longest(&mut self) -> Option<Nanos> {
        assert_eq!(wait(self, self.process), Woken::Look);
        let slept = |step: &Step| match step {
            Step::Sleep(_, longest) => Some(*longest),
            _ => None,
        };
        self.process.steps().iter().find_map(slept).expect("it sleeps")
    }
}

impl<const SET: bool> Wait for What<'_, SET> {
    const DEAF_LOOK: Nanos = 7 * MS;
    const HEEDS_DOUBTS: bool = SET;

    fn spin(&mut self) -> bool {
        self.process.does(Step::Spin);
        self.spun(self.spins)
    }

    fn turn_in(&mut self) -> Result<Way, Woken> {
        self.way
    }

    fn arm<T>(&mut self, way: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        self.process.does(Step::Arm(way));
        let hearing = self.hearing;
        let came = rest(self, hearing);
        self.process.does(Step::Disarm);
        came
    }

    fn is_ready(&mut self) -> bool {
        self.process.does(Step::Look);
        self.ready_after = self.ready_after.saturating_sub(1);
        self.ready_after == 0
    }

    fn is_heard(&mut self, _: Way) -> bool {
        self.process.does(Step::AskWay);
        self.is_heard
    }

    fn limits(&mut self, _: Way) -> Limits {
        self.limits
    }

    fn sleep(
        &mut self,
        way: Way,
        longest: Option<Nanos>,
        awake: impl FnOnce(&mut Self, Slept),
    ) -> Slept {
        self.process.does(Step::Sleep(way, longest));
        self.process.now.set(self.process.now.get() + self.takes);
        let slept = self.slept;
        awake(self, slept);
        slept
    }

    fn visit(&mut self, slept: Slept) {
        self.process.does(Step::Visit(slept));
    }

    fn was_woken(&mut self) {
        self.process.woken.set(self.process.woken.get() + 1);
    }

    fn teaches(&self) -> bool {
        self.teaches
    }

    fn rang(&self, _: Way, _: Nanos) -> Option<Waker> {
        Some(Waker { at: self.process.now.get() - self.rang?, cpu: self.from })
    }

    fn follows(&self) -> bool {
        self.follows
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        &mut self.stopwatch
    }

    fn lasted(&mut self, part: Part, nanos: Nanos) {
        self.lasted.push((part, nanos));
    }

    fn handlers(&mut self, slept: Slept) -> Handlers {
        Handlers::of_a_set(slept, self.ran)
    }
}

type Call<'a> = What<'a, false>;
type Several<'a> = What<'a, true>;

#[test]
fn who_waits_arms_looks_and_sleeps_in_that_order() {
    use Step::{Alarm, Arm, AskWay, Awake, Disarm, Look, Sleep, Spin};
    let process = Process::default();
    let mut call = Call::new(&process);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let armed = [Spin, Arm(Way::Kernel), Look, AskWay];
    let expected = [&armed[..], &[Alarm, Sleep(Way::Kernel, None), Awake, Disarm]].concat();
    assert_eq!(process.steps(), expected);
    (call.way, call.ready_after) = (Ok(Way::Futex), 2);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let armed = [Spin, Arm(Way::Futex), Look, AskWay];
    let expected = [&armed[..], &[Sleep(Way::Futex, None), Disarm, Look]].concat();
    assert_eq!(process.steps(), expected, "a short nap needs no alarm");
    (call.limits.is_long, call.ready_after) = (true, 2);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let sleep = Sleep(Way::Futex, None);
    let expected = [&armed[..], &[Alarm, sleep, Awake, Disarm, Look]].concat();
    assert_eq!(process.steps(), expected, "a long one does");
    assert_eq!(process.counted.each_ref().map(Cell::get), [2, 1]);
}

#[test]
fn after_a_nap_in_which_nothing_came_the_kernel_is_asked() {
    for (slept, visits) in [
        (Slept::Woken, true),
        (Slept::Over, true),
        (Slept::Interrupted, false),
        (Slept::NotAtAll, false),
    ] {
        for (way, ready_after) in [(Way::Futex, 0), (Way::Futex, 2), (Way::Kernel, 0)] {
            let process = Process::default();
            let ready_after = if ready_after == 0 { u32::MAX } else { ready_after };
            let mut call = Call { slept, way: Ok(way), ready_after, ..Call::new(&process) };
            wait(&mut call, &process);
            let expected = visits && way == Way::Futex && ready_after == u32::MAX;
            assert_eq!(
                process.steps().contains(&Step::Visit(slept)),
                expected,
                "{slept:?} {way:?}"
            );
            // Also where it has found something, and sleeps on after that.
            let was_woken = slept == Slept::Woken;
            assert_eq!(process.woken.get(), u32::from(was_woken), "{slept:?} {way:?}");
        }
    }
}

#[test]
fn what_came_before_it_armed_ends_the_wait_without_a_sleep() {
    let process = Process::default();
    let mut call = Call { ready_after: 1, ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let steps = process.steps();
    assert_eq!(steps, [Step::Spin, Step::Arm(Way::Kernel), Step::Look, Step::Disarm]);
    assert_eq!(process.counted[1].get(), 0);
}

#[test]
fn one_whose_way_to_be_told_is_old_by_the_time_it_has_armed_does_not_sleep() {
    let process = Process::default();
    let mut set = Several { way: Ok(Way::Futex), is_heard: false, ..Several::new(&process) };
    assert_eq!(wait(&mut set, &process), Woken::Look);
    let steps = process.steps();
    let looked = [Step::Spin, Step::Arm(Way::Futex), Step::Look, Step::AskWay, Step::Disarm];
    assert_eq!(steps, looked, "behind the look, which may pass a mark");
}

#[test]
fn a_spin_that_finds_something_and_a_wait_that_is_over_arm_nothing() {
    let process = Process::default();
    let mut call = Call { spins: Spun::Found(Spell::default()), ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::Look);
    assert_eq!(process.steps(), [Step::Spin]);
    let mut call = Call { way: Err(Woken::TimedOut), ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::TimedOut);
    assert_eq!(process.steps(), [Step::Spin]);
}

#[test]
fn a_sleep_ends_at_the_soonest_of_its_limits() {
    let limits =
        Limits { now: 100 * MS, deadline: Some(150 * MS), look: Some(60 * MS), is_long: false };
    let process = Process::default();
    assert_eq!(Call { limits, ..Call::new(&process) }.longest(), Some(50 * MS));
    let sooner = Limits { look: Some(20 * MS), ..limits };
    assert_eq!(Call { limits: sooner, ..Call::new(&process) }.longest(), Some(20 * MS));
    let past = Limits { deadline: Some(99 * MS), ..limits };
    assert_eq!(Call { limits: past, ..Call::new(&process) }.longest(), Some(0));

    let process = Process { alarm: Some(30 * MS), doubt: Some(10 * MS), ..Process::default() };
    assert_eq!(Call { limits, ..Call::new(&process) }.longest(), Some(30 * MS), "the alarm");
    assert_eq!(Several { limits, ..Several::new(&process) }.longest(), Some(10 * MS), "a doubt");
    let hearing = Hearing::Deaf;
    assert_eq!(Call { limits, hearing, ..Call::new(&process) }.longest(), Some(7 * MS));
    let way = Ok(Way::Futex);
    let on_futex = Several { limits, hearing, way, ..Several::new(&process) }.longest();
    assert_eq!(on_futex, Some(10 * MS), "a short nap heeds doubts, and no alarm");
    let on_futex = Call { limits, hearing, way, ..Call::new(&process) }.longest();
    assert_eq!(on_futex, Some(50 * MS), "and one for a single connection heeds neither");
    let long = Limits { is_long: true, ..limits };
    let on_futex = Call { limits: long, hearing, way, ..Call::new(&process) }.longest();
    assert_eq!(on_futex, Some(30 * MS), "the alarm");
    assert_eq!(Call::new(&Process::default()).longest(), None, "for ever");
}

#[test]
fn what_a_sleep_came_to_decides_with_the_handlers_that_ran() {
    use Woken::{Interrupted, Look};
    for (slept, alone, with_handler) in [
        (Slept::Woken, Look, Look),
        (Slept::Over, Look, Interrupted),
        (Slept::Interrupted, Interrupted, Interrupted),
        (Slept::Failed, Interrupted, Interrupted),
        (Slept::NotAtAll, Interrupted, Interrupted),
    ] {
        for (ran, expected) in [(false, alone), (true, with_handler)] {
            let process = Process::default();
            let mut set = Several { slept, ran, ..Several::new(&process) };
            assert_eq!(wait(&mut set, &process), expected, "{slept:?} {ran}");
            let looks_after = process.steps().contains(&Step::LookAfter);
            assert_eq!(looks_after, slept == Slept::Over, "whose alarm it was looks: {slept:?}");
        }
    }
    assert_eq!(Slept::by_call(None, || true), Slept::NotAtAll);
    assert_eq!(Slept::by_call(Some(2), || true), Slept::Woken);
    assert_eq!(Slept::by_call(Some(0), || true), Slept::Over);
    assert_eq!(Slept::by_call(Some(-1), || true), Slept::Interrupted);
    assert_eq!(Slept::by_call(Some(-1), || false), Slept::Failed);
}

#[test]
fn a_call_whose_number_is_anothers_is_begun_anew_there() {
    assert_eq!(Handlers::of_a_call(true, true, || false), Handlers::End);
    assert_eq!(Handlers::of_a_call(false, true, || false), Handlers::Restart);
    assert_eq!(Handlers::of_a_call(false, true, || true), Handlers::Continue);
    let unasked = || panic!("no handler ran: the kernel does not look the number up");
    assert_eq!(Handlers::of_a_call(false, false, unasked), Handlers::Continue);
}

#[test]
fn spins_are_learnt_from_sleeps_that_were_woken_from_afar() {
    let takes = 400_000;
    let learnt = |known: u32, slept, teaches| {
        let process = Process { far: AtomicU32::new(known), ..Process::default() };
        wait(&mut Call { slept, teaches, takes, ..Call::new(&process) }, &process);
        process.far.load(Ordering::Relaxed)
    };
    assert_eq!(learnt(200_000, Slept::Woken, true), 250_000, "quick to grow");
    assert_eq!(learnt(800_000, Slept::Woken, true), 775_000, "slow to shrink");
    assert_eq!(learnt(200_000, Slept::Woken, false), 200_000);
    assert_eq!(learnt(200_000, Slept::Over, true), 200_000);
    assert_eq!(learnt(0, Slept::Woken, true), 0, "all are near");
    let process = Process { far: AtomicU32::new(200_000), ..Process::default() };
    process.now.set(3 * MS);
    learn(&process, 0);
    assert_eq!(process.far.load(Ordering::Relaxed), 200_000, "that was no answer");
    let answer = AtomicU32::new(0);
    far_guess(&answer);
    assert_eq!(answer.swap(5, Ordering::Relaxed), 200_000);
    far_guess(&answer);
    assert_eq!(answer.load(Ordering::Relaxed), 5, "what was measured stays");
}

/// Looks, until there is something at the third look.
struct Looks<'a>(Several<'a>, u32);

impl Wait for Looks<'_> {
    fn spin(&mut self) -> bool {
        self.0.spin()
    }
    fn turn_in(&mut self) -> Result<Way, Woken> {
        self.0.turn_in()
    }
    fn arm<T>(&mut self, _: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        rest(self, Hearing::Woken)
    }
    fn is_ready(&mut self) -> bool {
        self.0.is_ready()
    }
    fn limits(&mut self, way: Way) -> Limits {
        self.0.limits(way)
    }
    fn sleep(&mut self, _: Way, _: Option<Nanos>, awake: impl FnOnce(&mut Self, Slept)) -> Slept {
        let slept = self.0.slept;
        awake(self, slept);
        slept
    }
    fn visit(&mut self, slept: Slept) {
        self.0.visit(slept);
    }
    fn teaches(&self) -> bool {
        false
    }
    fn follows(&self) -> bool {
        true
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        self.0.stopwatch()
    }
    fn handlers(&mut self, slept: Slept) -> Handlers {
        self.0.handlers(slept)
    }
}

impl Set for Looks<'_> {
    type Answer = Result<u32, Woken>;

    fn look(&mut self) -> Option<Self::Answer> {
        self.1 += 1;
        (self.1 == 3).then_some(Ok(self.1))
    }

    fn ended(&mut self, woken: Woken) -> Self::Answer {
        Err(woken)
    }
}

#[test]
fn a_set_is_looked_at_after_each_sleep_until_there_is_an_answer() {
    let process = Process::default();
    assert_eq!(wait_for(&mut Looks(Several::new(&process), 0), &process), Ok(3));
    assert_eq!(process.counted[1].get(), 2);
    assert_eq!(wait_for(&mut Looks(Several::new(&process), 2), &process), Ok(3), "at once");
    assert_eq!(process.counted[1].get(), 2);
    let interrupted = Several { slept: Slept::Interrupted, ..Several::new(&process) };
    assert_eq!(wait_for(&mut Looks(interrupted, 0), &process), Err(Woken::Interrupted));
}

#[test]
fn blocking_calls_spin_for_the_ring_and_for_the_first_byte() {
    use Direction::{Receiving, Sending};
    for direction in [Receiving, Sending] {
        for is_first in [false, true] {
            assert!(spins(direction, Until::Ring, is_first));
            assert!(!spins(direction, Until::Kernel, is_first));
            assert!(!spins(direction, Until::More(0), is_first));
            let for_the_first_byte = is_first && direction == Receiving;
            assert_eq!(spins(direction, Until::Both, is_first), for_the_first_byte);
        }
    }
}

/// How a blocking call turns in at this time.
fn turns_in(
    times: &mut Blocking,
    process: &Process,
    until: Until,
    timeout: Option<Nanos>,
) -> Result<Way, Woken> {
    times.turn_in(
        until,
        process,
        Ears { ring: true, ..Ears::default() },
        || timeout,
        || false,
        |_, _| {},
    )
}

fn never_yields() -> Process {
    let process = Process { mode: Cell::new(Mode::Never), ..Process::default() };
    process.now.set(1000 * MS);
    process
}

#[test]
fn a_blocking_call_sleeps_on_the_futex_unless_the_kernel_has_something_to_tell() {
    let process = never_yields();
    let mut times = Blocking::default();
    let mut turns = || turns_in(&mut times, &process, Until::Ring, None);
    assert_eq!(turns(), Ok(Way::Futex));
    process.now.set(1000 * MS + SELDOM * 100);
    assert_eq!(turns(), Ok(Way::Futex));
    for until in [Until::Both, Until::Kernel, Until::More(0)] {
        let way = turns_in(&mut Blocking::default(), &process, until, None);
        assert_eq!(way, Ok(Way::Kernel), "what the kernel may tell is heard there: {until:?}");
    }
    let far = Ears { ring: true, is_far: true, ..Ears::default() };
    for ears in [Ears::default(), far] {
        let way =
            Blocking::default().turn_in(Until::Ring, &process, ears, || None, || false, |_, _| {});
        assert_eq!(way, Ok(Way::Kernel), "without a ring, or from afar: {ears:?}");
    }
    let told = Ears { ring: true, kernel: true, ..Ears::default() };
    process.now.set(1000 * MS);
    let mut times = Blocking::default();
    let mut turns = || times.turn_in(Until::Ring, &process, told, || None, || false, |_, _| {});
    assert_eq!(turns(), Ok(Way::Futex));
    process.now.set(1000 * MS + SOON);
    assert_eq!(turns(), Ok(Way::Kernel), "it has told of something before");
}

#[test]
fn a_blocking_call_sleeps_no_longer_than_its_timeout_and_a_nap() {
    let process = never_yields();
    let mut times = Blocking::default();
    assert_eq!(turns_in(&mut times, &process, Until::Ring, Some(5 * MS)), Ok(Way::Futex));
    let until = |limits: Limits| limits.deadline.map(|deadline| deadline - limits.now);
    assert_eq!(until(times.limits(Way::Futex, None)), Some(5 * MS));
    assert!(times.always_ends(false), "a call with a timeout is not begun anew");
    process.now.set(1005 * MS);
    let again = turns_in(&mut times, &process, Until::Ring, Some(MS));
    assert_eq!(again, Err(Woken::TimedOut), "the timeout is asked for once");
    assert_eq!(times.waited(), 5 * MS);

    let mut times = Blocking::default();
    assert_eq!(turns_in(&mut times, &process, Until::Ring, None), Ok(Way::Futex));
    assert_eq!(until(times.limits(Way::Futex, None)), Some(SOON));
    let limits = times.limits(Way::Kernel, Some(3));
    assert_eq!((limits.deadline, limits.look), (None, Some(3)));
    assert!(!times.always_ends(false) && times.always_ends(true));
}

#[test]
fn a_blocking_call_whose_agent_is_gone_looks_each_second() {
    let process = never_yields();
    let napped = |agent| {
        let (mut times, mut last) = (Blocking::default(), None);
        let ears = Ears { ring: true, agent, ..Ears::default() };
        for _ in 0..9 {
            let way = times.turn_in(Until::Ring, &process, ears, || None, || false, |_, _| {});
            assert_eq!(way, Ok(Way::Futex));
            let limits = times.limits(Way::Futex, None);
            last = limits.deadline.map(|deadline| deadline - limits.now);
            process.now.set(limits.deadline.unwrap_or_default());
            times.looks(&process);
        }
        last
    };
    assert_eq!((napped(true), napped(false)), (Some(SELDOM), Some(UNATTENDED)));
}

#[test]
fn a_blocking_call_that_handlers_keep_from_its_nap_looks_when_that_should_be_over() {
    let (process, mut times) = (never_yields(), Blocking::default());
    let mut longest = |now| {
        process.now.set(now);
        assert_eq!(turns_in(&mut times, &process, Until::Ring, None), Ok(Way::Futex));
        let limits = times.limits(Way::Futex, None);
        limits.deadline.map(|deadline| deadline.saturating_sub(limits.now))
    };
    let each = 3 * SOON / 4;
    assert_eq!(longest(1000 * MS), Some(SOON));
    assert_eq!(longest(1000 * MS + each), Some(SOON - each));
    assert_eq!(longest(1000 * MS + 2 * each), Some(0), "and so asks the kernel");
}

#[test]
fn a_blocking_call_gives_way_once_and_not_with_a_timeout() {
    let process = Process::default();
    process.now.set(1000 * MS);
    process.away.set(10_000);
    let gives_way = |times: &mut Blocking, until, timeout| {
        // It has learnt nothing against it.
        process.yields.store(6 << 16, Ordering::Relaxed);
        let woken = times.turn_in(
            until,
            &process,
            Ears { ring: true, ..Ears::default() },
            || timeout,
            || true,
            |_, _| {},
        );
        (woken == Err(Woken::Look), process.steps().contains(&Step::GiveWay))
    };
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Ring, None), (true, true));
    assert_eq!(gives_way(&mut times, Until::Ring, None), (false, false), "once");
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Ring, Some(MS)), (false, false), "with a timeout");
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Both, None), (false, false));
    process.has_one_processor.set(true);
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Ring, None), (false, false), "with one processor");
}

#[test]
fn long_spins_heed_the_timeout_and_one_for_the_first_byte_is_short() {
    let process = never_yields();
    let spins_until = |mode, until| {
        process.mode.set(mode);
        Blocking::default().spins_until(until, &process, || Some(30 * MS))
    };
    assert_eq!(spins_until(Mode::Auto, Until::Ring), None, "the timeout is not asked for");
    assert_eq!(spins_until(Mode::Fixed(50 * MS), Until::Ring), Some(1030 * MS));
    assert_eq!(spins_until(Mode::Auto, Until::Both), Some(1000 * MS + 50_000));
}
