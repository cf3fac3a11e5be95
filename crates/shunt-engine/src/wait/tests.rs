//! The rules of the waiter, with a clock that stands still until something takes time, and sleeps that are told what they
//! come to.

use core::cell::{Cell, RefCell};

use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};

use super::*;
use crate::call::{Direction, Until};
use crate::spin::{KEPT, Mode, Nanos};

const MS: Nanos = 1_000_000;

/// What happened, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Spin,
    GiveWay,
    LookAfter,
    Arm(Way),
    Look,
    Alarm,
    Sleep(Way, Option<Nanos>),
    Awake,
    Disarm,
    Visit(Slept),
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
    offers: AtomicU32,
    yields: AtomicU32,
    alarm: Option<Nanos>,
    doubt: Option<Nanos>,
    counted: [Cell<u32>; 2],
    /// How often one was woken.
    woken: Cell<u32>,
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

    fn offers(&self) -> &AtomicU32 {
        &self.offers
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
    spins: bool,
    way: Result<Way, Woken>,
    hearing: Hearing,
    limits: Limits,
    slept: Slept,
    /// How long a sleep takes.
    takes: Nanos,
    ran: bool,
    teaches: bool,
    /// How long before the sleep ended somebody began to wake it.
    rang: Option<Nanos>,
}

impl<'a, const SET: bool> What<'a, SET> {
    fn new(process: &'a Process) -> Self {
        Self {
            process,
            ready_after: u32::MAX,
            spins: false,
            way: Ok(Way::Kernel),
            hearing: Hearing::Woken,
            limits: Limits::default(),
            slept: Slept::Woken,
            takes: 0,
            ran: false,
            teaches: true,
            rang: None,
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
        self.spins
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

    fn rang(&self, _: Way, _: Nanos) -> Option<Nanos> {
        Some(self.process.now.get() - self.rang?)
    }

    fn handlers(&mut self, slept: Slept) -> Handlers {
        Handlers::of_a_set(slept, self.ran)
    }
}

type Call<'a> = What<'a, false>;
type Several<'a> = What<'a, true>;

#[test]
fn who_waits_arms_looks_and_sleeps_in_that_order() {
    use Step::{Alarm, Arm, Awake, Disarm, Look, Sleep, Spin};
    let process = Process::default();
    let mut call = Call::new(&process);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let expected = [Spin, Arm(Way::Kernel), Look, Alarm, Sleep(Way::Kernel, None), Awake, Disarm];
    assert_eq!(process.steps(), expected);
    (call.way, call.ready_after) = (Ok(Way::Futex), 2);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let expected = [Spin, Arm(Way::Futex), Look, Sleep(Way::Futex, None), Disarm, Look];
    assert_eq!(process.steps(), expected, "a short nap needs no alarm");
    (call.limits.is_long, call.ready_after) = (true, 2);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let sleep = Sleep(Way::Futex, None);
    let expected = [Spin, Arm(Way::Futex), Look, Alarm, sleep, Awake, Disarm, Look];
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
fn a_spin_that_finds_something_and_a_wait_that_is_over_arm_nothing() {
    let process = Process::default();
    let mut call = Call { spins: true, ..Call::new(&process) };
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
    times.turn_in(until, process, Ears { ring: true, ..Ears::default() }, || timeout, || false)
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
        let way = Blocking::default().turn_in(Until::Ring, &process, ears, || None, || false);
        assert_eq!(way, Ok(Way::Kernel), "without a ring, or from afar: {ears:?}");
    }
    let told = Ears { ring: true, kernel: true, ..Ears::default() };
    process.now.set(1000 * MS);
    let mut times = Blocking::default();
    let mut turns = || times.turn_in(Until::Ring, &process, told, || None, || false);
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
        let mut times = Blocking::default();
        let ears = Ears { ring: true, agent, ..Ears::default() };
        let mut turns_in = |now| {
            process.now.set(now);
            let way = times.turn_in(Until::Ring, &process, ears, || None, || false);
            assert_eq!(way, Ok(Way::Futex));
            let limits = times.limits(way.unwrap_or(Way::Kernel), None);
            limits.deadline.map(|deadline| deadline - limits.now)
        };
        turns_in(1000 * MS);
        turns_in(1000 * MS + SELDOM)
    };
    assert_eq!((napped(true), napped(false)), (Some(SELDOM), Some(UNATTENDED)));
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

#[test]
fn a_spin_ends_when_it_has_found_something_or_its_budget_is_over() {
    let process = Process::default();
    process.tick.set(1_000);
    let learnt = AtomicU32::new(0);
    let mut looks = 0;
    let found_at = |at| {
        looks = 0;
        let spun = spin(&process, Way::Futex, &learnt, None, || {
            looks += 1;
            looks == at
        });
        (spun, looks)
    };
    let mut found_at = found_at;
    assert_eq!(found_at(3), (Spun::Found, 3));
    let (spun, looks) = found_at(u32::MAX);
    assert!(spun == Spun::Vain && looks > 100, "{looks}");
    assert_eq!(spin(&process, Way::Futex, &learnt, Some(0), || false), Spun::Vain);
    process.mode.set(Mode::Never);
    assert_eq!(spin(&process, Way::Futex, &learnt, None, || panic!("it does not look")), Spun::Not);
}

#[test]
fn a_spinner_that_loses_the_processor_again_and_again_does_not_spin_next_time() {
    let process = Process::default();
    process.tick.set(MS);
    let learnt = AtomicU32::new(0);
    assert_eq!(spin(&process, Way::Futex, &learnt, None, || true), Spun::Found);
    assert_eq!(spin(&process, Way::Futex, &learnt, None, || true), Spun::Found);
    assert_eq!(spin(&process, Way::Futex, &learnt, None, || true), Spun::Not);
}

#[test]
fn one_spins_for_longer_than_a_moment_where_one_may() {
    let process = Process::default();
    process.tick.set(1_000);
    let spins = |learnt: &AtomicU32| {
        let mut looks = 0;
        spin(&process, Way::Futex, learnt, None, || {
            looks += 1;
            false
        });
        looks
    };
    let alone = spins(&AtomicU32::new(0));
    process.spinners[0].store(process.now.get(), Ordering::Relaxed);
    let beside_another = spins(&AtomicU32::new(0));
    assert!(beside_another < alone / 2, "{alone}, {beside_another}");
}

#[test]
fn a_sleeper_learns_what_a_wake_up_takes_each_way_by_itself() {
    let process = Process { now: Cell::new(MS), ..Process::default() };
    let mut call = Call::new(&process);
    (call.way, call.rang) = (Ok(Way::Futex), Some(20_000));
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let known = |way| process.wake_up(way).load(Ordering::Relaxed);
    assert_eq!((known(Way::Futex), known(Way::Kernel)), (20_000, 0));
    // A sleep that ends for another reason teaches nothing.
    (call.slept, call.rang) = (Slept::Over, Some(90_000));
    wait(&mut call, &process);
    assert_eq!(known(Way::Futex), 20_000);
    (call.way, call.slept) = (Ok(Way::Kernel), Slept::Woken);
    wait(&mut call, &process);
    assert_eq!((known(Way::Futex), known(Way::Kernel)), (20_000, 90_000));
}

/// What a thread that always finds something at once does in a second, where offers of its processor take so long.
fn restless(away: Nanos) -> (usize, usize) {
    let process = Process { now: Cell::new(1000 * MS), ..Process::default() };
    process.away.set(away);
    process.tick.set(1_000);
    let learnt = AtomicU32::new(0);
    let (mut slept, mut offered) = (0, 0);
    while process.now.get() < 2000 * MS {
        slept += usize::from(spin(&process, Way::Futex, &learnt, None, || true) == Spun::Not);
        offered += process.steps().len();
    }
    (slept, offered)
}

#[test]
fn a_thread_that_never_needs_to_sleep_lets_others_have_its_processor() {
    let (slept, offered) = restless(500);
    assert!(slept == 0 && (1_000..1_700).contains(&offered), "nobody wants it: {offered}");
    let (slept, offered) = restless(3 * MS);
    assert!((1_000..1_700).contains(&slept) && (2..6).contains(&offered), "{slept}, {offered}");
}

#[test]
fn who_sleeps_now_and_then_need_not_rest() {
    let process = Process { now: Cell::new(1000 * MS), ..Process::default() };
    let learnt = AtomicU32::new(0);
    for _ in 0..100 {
        process.now.set(process.now.get() + MS / 2);
        wait(&mut Call::new(&process), &process);
        process.steps();
        spin(&process, Way::Futex, &learnt, None, || true);
        assert_eq!(process.steps(), []);
    }
}

#[test]
fn patience_is_a_habit_that_has_to_pay() {
    let process = Process::default();
    process.tick.set(1_000);
    let habit = AtomicU32::new(0);
    let spun: Vec<_> = (0..20).map(|_| spin_patiently(&process, &habit, 5_000, || false)).collect();
    assert_eq!(spun[0], Spun::Vain);
    assert_eq!(spun[19], Spun::Not, "it has not paid");
    assert_eq!(spin_patiently(&process, &AtomicU32::new(0), 5_000, || true), Spun::Found);
    process.mode.set(Mode::Never);
    assert_eq!(spin_patiently(&process, &AtomicU32::new(0), 5_000, || true), Spun::Not);
}

#[test]
fn giving_way_ends_soon_when_nobody_wants_the_processor_or_somebody_keeps_it() {
    let go = 6 << 16;
    let yields = |away: Nanos, found: bool| {
        let process = Process { yields: AtomicU32::new(go), ..Process::default() };
        process.away.set(away);
        let is_found = give_way(&process, || found);
        (is_found, process.steps().len(), process.yields.load(Ordering::Relaxed) & 0xffff)
    };
    assert_eq!(yields(1_000, true), (true, 1, 0));
    let (found, times, pause) = yields(1_000, false);
    assert!(!found && (30..=31).contains(&times) && pause > 0, "alone: {times}");
    let (found, times, pause) = yields(KEPT + 1, false);
    assert!(!found && times == 1 && pause > 100, "kept: {pause}");
    let (found, times, _) = yields(50_000, false);
    assert!(!found && (4..=5).contains(&times), "in vain: {times}");
    let process = Process { mode: Cell::new(Mode::Fixed(1)), ..Process::default() };
    process.yields.store(go, Ordering::Relaxed);
    assert!(!give_way(&process, || true), "the user has chosen");
}
