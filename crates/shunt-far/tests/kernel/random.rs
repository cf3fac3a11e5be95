//! Any order of what programs, agents, kernels and devices do, with faults: bytes are those of the stream, and after all of it no
//! place, ring or key is left.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt_far::kernel::{Event, Reset, Settings};
use shunt_shm::region::RESET;
use shunt_verbs::fake::Faults;

use crate::host::OVER_TCP;
use crate::{World, size};

/// Connections that are there at the beginning, and one that comes later.
const CONNECTIONS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Action {
    Send(usize, usize),
    Take(usize, u64),
    Give(usize, u64),
    Read(usize, u32),
    Finish(usize),
    Close(usize),
    Reset(usize),
    Kill(usize),
    Mark(usize),
    KernelFinishes(usize),
    KernelCloses(usize),
    KernelAborts(usize),
    Work,
    KernelWorks,
    Devices(usize),
    Wait(u64),
    /// A further connection is opened, and declined.
    Decline,
}

/// `rudely`: connections end in all ways.
fn actions(rudely: bool) -> impl Strategy<Value = Action> {
    let slot = 0..CONNECTIONS;
    let ends = prop_oneof![
        slot.clone().prop_map(Action::Close),
        slot.clone().prop_map(Action::Reset),
        slot.clone().prop_map(Action::Kill),
        slot.clone().prop_map(Action::Mark),
        slot.clone().prop_map(Action::KernelCloses),
        slot.clone().prop_map(Action::KernelAborts),
    ];
    let ends = ends.prop_map(move |end| if rudely { end } else { Action::Work });
    prop_oneof![
        8 => (slot.clone(), 1..12_000_usize).prop_map(|(slot, len)| Action::Send(slot, len)),
        8 => (slot.clone(), 1..12_000_u64).prop_map(|(slot, len)| Action::Take(slot, len)),
        8 => (slot.clone(), 1..12_000_u64).prop_map(|(slot, len)| Action::Give(slot, len)),
        8 => (slot.clone(), 1..12_000_u32).prop_map(|(slot, len)| Action::Read(slot, len)),
        1 => slot.clone().prop_map(Action::Finish),
        1 => slot.prop_map(Action::KernelFinishes),
        3 => ends,
        12 => Just(Action::Work),
        12 => Just(Action::KernelWorks),
        12 => (1..60_usize).prop_map(Action::Devices),
        1 => (1..40_000_u64).prop_map(Action::Wait),
        1 => Just(Action::Decline),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let with = |not_ready, pair, withheld, cut| Faults { not_ready, pair, withheld, cut };
    prop_oneof![
        3 => Just(Faults::NONE),
        1 => Just(with(2_000, 0, 0, 0)),
        1 => Just(with(0, 40, 0, 0)),
        1 => Just(with(0, 0, 40, 0)),
        1 => Just(with(200, 15, 15, 15)),
    ]
}

/// What has become of a connection, as far as its ends know.
#[derive(Clone, Copy, Default, Debug)]
struct Known {
    /// The program has let go of it.
    is_left: bool,
    is_reset: bool,
    is_free: bool,
    /// An end has done what may end it in other ways than in good order.
    is_rude: bool,
}

struct History {
    world: World,
    known: [Known; CONNECTIONS],
    is_harmless: bool,
    outcome: Outcome,
}

impl History {
    fn act(&mut self, action: Action) {
        let world = &mut self.world;
        match action {
            Action::Send(slot, len) if !self.known[slot].is_left => {
                world.host.send(slot, len);
            }
            Action::Take(slot, len) if !self.known[slot].is_left => {
                world.host.take(slot, len);
            }
            Action::Finish(slot) if !self.known[slot].is_left => world.host.finish(slot),
            Action::Close(slot) if !self.known[slot].is_left => {
                world.host.close(slot);
                (self.known[slot].is_left, self.known[slot].is_rude) = (true, true);
            }
            Action::Reset(slot) if !self.known[slot].is_left => {
                world.host.close_as(slot, RESET);
                (self.known[slot].is_left, self.known[slot].is_rude) = (true, true);
            }
            Action::Kill(slot) if !self.known[slot].is_left => {
                world.host.link().end(slot);
                (self.known[slot].is_left, self.known[slot].is_rude) = (true, true);
            }
            Action::Mark(slot) if !self.known[slot].is_left => {
                world.host.set_mark(slot);
                self.known[slot].is_rude = true;
            }
            Action::Send(..)
            | Action::Take(..)
            | Action::Finish(_)
            | Action::Close(_)
            | Action::Reset(_)
            | Action::Kill(_)
            | Action::Mark(_) => {}
            Action::Give(line, len) => world.kernel.give(line, len),
            Action::Read(line, len) => {
                world.kernel.take(line, len);
            }
            Action::KernelFinishes(line) => world.kernel.finish(line),
            Action::KernelCloses(line) => {
                world.kernel.lines[line].connection().close();
                self.known[line].is_rude = true;
            }
            Action::KernelAborts(line) => {
                world.kernel.lines[line].connection().abort();
                self.known[line].is_rude = true;
            }
            Action::Work => {
                world.host.turn();
            }
            Action::KernelWorks => {
                world.kernel.turn();
            }
            Action::Devices(steps) => world.network.settle(steps),
            Action::Wait(milliseconds) => {
                world.host.now += core::time::Duration::from_millis(milliseconds);
                self.is_harmless &= milliseconds < 1_000;
            }
            Action::Decline => self.decline(),
        }
        self.note();
    }

    /// Opens a place, and abandons it again whatever has come of it.
    fn decline(&mut self) {
        let world = &mut self.world;
        let line = world.kernel.prepare(size(0));
        let accept = world.kernel.accept(line);
        let (now, port) = (world.host.now, world.host.port.clone());
        let rings = world.host.rings(CONNECTIONS);
        let opened = world.host.link().open(&port, CONNECTIONS, &rings, &accept, now);
        if opened.is_ok() {
            world.host.link().abandon(CONNECTIONS, now);
            assert!(!world.host.link().attach(CONNECTIONS, OVER_TCP));
        }
    }

    fn note(&mut self) {
        for event in self.world.events() {
            match event {
                Event::Reset { of, why } => {
                    let known = &mut self.known[of.slot];
                    assert!(!known.is_reset && !known.is_free, "{of:?} twice");
                    known.is_reset = true;
                    let is_ours = matches!(why, Reset::Violation(_) | Reset::Impossible(_));
                    assert!(!is_ours && !matches!(why, Reset::Broken(_)), "{why}");
                    let is_link = matches!(why, Reset::Link(_));
                    assert!(is_link || known.is_rude, "{why}");
                    self.outcome.resets.push(why);
                }
                Event::Free(of) => {
                    let known = &mut self.known[of.slot];
                    assert!(known.is_left && !known.is_free, "{of:?} is not left");
                    known.is_free = true;
                }
                Event::Down(cause) => {
                    assert!(!self.outcome.is_down && !self.is_harmless, "{cause}");
                    self.outcome.is_down = true;
                }
                Event::Confirmed | Event::Announced { .. } => {}
            }
        }
    }

    /// All that was sent is taken, as far as there is somebody to take it.
    fn drain(&mut self) {
        for _ in 0..200 {
            self.world.settle();
            let mut moved = 0;
            for slot in 0..CONNECTIONS {
                if !self.known[slot].is_left {
                    moved += self.world.host.take(slot, u64::MAX);
                }
                moved += u64::from(self.world.kernel.take(slot, u32::MAX));
            }
            if moved == 0 {
                break;
            }
        }
        self.note();
    }

    fn run(mut self, actions: &[Action]) -> Outcome {
        actions.iter().for_each(|action| self.act(*action));
        self.world.network.set_faults(Faults::NONE);
        self.drain();
        for slot in 0..CONNECTIONS {
            if !self.known[slot].is_rude && self.is_harmless {
                let (host, line) = (&self.world.host, &self.world.kernel.lines[slot]);
                assert_eq!(host.sent(slot), line.read, "to the kernel");
                assert_eq!(line.given, host.programs[slot].read, "to the program");
                assert!(!host.is_reset(slot));
            }
            self.outcome.bytes += self.world.kernel.lines[slot].read;
            self.outcome.bytes += self.world.host.programs[slot].read;
            self.outcome.is_whole &= !self.known[slot].is_reset && !self.known[slot].is_rude;
        }
        self.end();
        self.outcome
    }

    /// Both ends of all connections are closed: nothing is left.
    fn end(&mut self) {
        for slot in 0..CONNECTIONS {
            if !self.known[slot].is_left {
                self.world.host.close(slot);
                self.known[slot].is_left = true;
            }
            self.world.kernel.lines[slot].connection().close();
            // Both at once, and not all may have been sent.
            self.known[slot].is_rude = true;
        }
        // As long as it takes to find that a device tells of nothing.
        let patience = Settings::default().patience;
        for wait in [0, 0, 1, 1, 1, 1] {
            self.world.host.now +=
                (patience.quiet + patience.answer) * wait * u32::from(!self.is_harmless);
            self.drain();
        }
        assert!(self.known.iter().all(|known| known.is_free), "{:?}", self.known);
        let link = self.world.host.link();
        assert_eq!((link.connections(), link.registered()), (0, 0));
        assert_eq!(self.outcome.is_down, link.cause().is_some());
        if !self.outcome.is_down {
            assert_eq!(self.world.kernel.known(), []);
        }
    }
}

/// A history.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    faults: Faults,
    actions: Vec<Action>,
}

fn plans() -> impl Strategy<Value = Plan> {
    (any::<u64>(), faults(), any::<bool>()).prop_flat_map(|(seed, faults, rudely)| {
        let actions = prop::collection::vec(actions(rudely), 0..150);
        actions.prop_map(move |actions| Plan { seed, faults, actions })
    })
}

/// What has come of a history.
#[derive(Default)]
struct Outcome {
    is_down: bool,
    /// All connections ended in good order.
    is_whole: bool,
    bytes: u64,
    resets: Vec<Reset>,
}

fn run(plan: &Plan) -> Outcome {
    let mut world = World::new(plan.seed, Faults::NONE, size(0));
    (0..CONNECTIONS).for_each(|slot| {
        world.connect(slot, size(u8::from(slot == 1)));
    });
    world.network.set_faults(plan.faults);
    let Faults { pair, withheld, cut, .. } = plan.faults;
    let known = [Known::default(); CONNECTIONS];
    let is_harmless = pair + withheld + cut == 0;
    let outcome = Outcome { is_whole: true, ..Outcome::default() };
    History { world, known, is_harmless, outcome }.run(&plan.actions)
}

fn number<N: core::str::FromStr>(name: &str, by_default: N) -> N {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(by_default)
}

#[test]
fn any_history_ends_well() {
    let config = Config {
        cases: number("SIM_HISTORIES", 300),
        rng_seed: RngSeed::Fixed(number("SIM_SEED", 1)),
        failure_persistence: None,
        ..Config::default()
    };
    let runs = |plan| {
        run(&plan);
        Ok(())
    };
    TestRunner::new(config).run(&plans(), runs).unwrap();
}

/// Else the histories would prove little.
#[test]
fn histories_reach_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let (mut down, mut whole, mut bytes, mut resets) = (0, 0, 0, Vec::new());
    for _ in 0..300 {
        let plan = plans().new_tree(&mut runner).unwrap().current();
        let outcome = run(&plan);
        down += usize::from(outcome.is_down);
        whole += usize::from(outcome.is_whole);
        bytes += outcome.bytes;
        resets.extend(outcome.resets);
    }
    let of = |kind: fn(&Reset) -> bool| resets.iter().filter(|why| kind(why)).count();
    let seen = [
        of(|why| matches!(why, Reset::Program)),
        of(|why| matches!(why, Reset::Leaves)),
        of(|why| matches!(why, Reset::Aborted)),
        of(|why| matches!(why, Reset::PeerClosed)),
        of(|why| matches!(why, Reset::Link(_))),
    ];
    let enough = down > 20 && whole > 50 && bytes > 1_000_000 && seen.iter().all(|it| *it > 10);
    assert!(enough, "down {down}, whole {whole}, bytes {bytes}, resets {seen:?}");
}
