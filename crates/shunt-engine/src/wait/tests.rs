//! The rules of the waiter, with a clock that stands still until something takes time, and sleeps that are told what they
//! come to.

mod blocking;
mod lasting;
mod placing;
mod sets;
mod spins;
mod waits;

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
