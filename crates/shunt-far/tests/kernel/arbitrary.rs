//! A kernel that says anything: whatever it is, the words of its sections are possible, and other connections' are not touched.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt_shm::sync::Ordering;
use shunt_smc::wire::cdc::{Cdc, Cursor, Producer, State};
use shunt_smc::wire::clc::End;

use crate::{World, size};

/// Of the connections that the kernel may speak of.
const CONNECTIONS: usize = 2;
/// One of which it says nothing.
const OTHER: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A message about a connection, by its place; the token may be another one.
    Cdc(usize, u32, Cdc),
    /// Any message about the link: its type, flags, and a byte of it that is another one.
    Llc(u8, u8, u8, u8),
    /// Bytes without any sense.
    Bytes([u8; 44], usize),
    /// A program sends, takes, or closes.
    Send(usize, usize),
    Take(usize, u64),
    Close(usize),
}

fn cursor() -> impl Strategy<Value = Cursor> {
    let wraps = prop_oneof![6 => 0..2_u16, 1 => any::<u16>()];
    let count = prop_oneof![6 => 0..16_384_u32, 1 => any::<u32>()];
    (wraps, count).prop_map(|(wraps, count)| Cursor { wraps, count })
}

fn steps() -> impl Strategy<Value = Step> {
    let slot = 0..CONNECTIONS;
    let flags = prop_oneof![5 => Just(0_u8), 1 => any::<u8>()];
    let cdc = (any::<u16>(), cursor(), cursor(), flags.clone(), flags).prop_map(
        |(number, produced, consumed, producer, state)| {
            let is = |flags: u8, bit: u32| flags >> bit & 1 != 0;
            let producer = Producer {
                is_blocked: is(producer, 0),
                is_urgent_pending: is(producer, 1),
                is_urgent: is(producer, 2),
                wants_update: is(producer, 3),
                is_failover: is(producer, 4) && is(producer, 5),
            };
            let state = State {
                is_finished: is(state, 0),
                is_closed: is(state, 1),
                is_aborted: is(state, 2),
            };
            Cdc { number: number % 64, token: 0, produced, consumed, producer, state }
        },
    );
    let token = prop_oneof![8 => Just(0_u32), 1 => 0..4_u32, 1 => any::<u32>()];
    prop_oneof![
        8 => (slot.clone(), token, cdc).prop_map(|(slot, token, cdc)| Step::Cdc(slot, token, cdc)),
        1 => (0x20..0x30_u8, any::<u8>(), 1..44_u8, any::<u8>())
            .prop_map(|(kind, flags, at, byte)| Step::Llc(kind, flags, at, byte)),
        1 => (prop::array::uniform32(any::<u8>()), 0..44_usize).prop_map(|(some, length)| {
            let mut bytes = [0; 44];
            bytes[..32].copy_from_slice(&some);
            Step::Bytes(bytes, length)
        }),
        3 => (slot.clone(), 1..20_000_usize).prop_map(|(slot, len)| Step::Send(slot, len)),
        3 => (slot.clone(), 1..20_000_u64).prop_map(|(slot, len)| Step::Take(slot, len)),
        1 => slot.prop_map(Step::Close),
    ]
}

struct Checked {
    world: World,
    ends: Vec<End>,
    /// Bytes in both directions, as the words said last.
    said: [(u64, u64); CONNECTIONS],
    taken: [u64; CONNECTIONS],
    closed: [bool; CONNECTIONS],
}

impl Checked {
    fn run(&mut self, step: Step) {
        let world = &mut self.world;
        match step {
            Step::Cdc(slot, token, cdc) => {
                let token = self.ends[slot].token ^ token;
                if token != self.ends[OTHER].token {
                    world.kernel.send(&Cdc { token, ..cdc }.bytes());
                }
            }
            Step::Llc(kind, flags, at, byte) => {
                let mut bytes = [0; 44];
                (bytes[0], bytes[1], bytes[3]) = (kind, 44, flags);
                bytes[usize::from(at)] = byte;
                world.kernel.send(&bytes);
            }
            Step::Bytes(bytes, length) => {
                world.kernel.send(&bytes[..length]);
            }
            Step::Send(slot, len) if !self.closed[slot] => {
                world.host.send(slot, len);
            }
            Step::Take(slot, len) if !self.closed[slot] && !world.host.is_reset(slot) => {
                // Bytes that the kernel speaks of were never written.
                self.taken[slot] += len.min(world.host.readable_from(slot, self.taken[slot]));
                let cons = &world.host.mine(slot).cons.cons;
                cons.store(self.taken[slot], Ordering::Release);
                world.host.tell(slot);
            }
            Step::Close(slot) if !self.closed[slot] => {
                world.host.close_as(slot, 1);
                self.closed[slot] = true;
            }
            Step::Send(..) | Step::Take(..) | Step::Close(_) => {}
        }
        for _ in 0..3 {
            world.network.settle(1_000);
            world.host.turn();
        }
        world.kernel.drain();
    }

    fn check(&mut self) {
        for slot in 0..CONNECTIONS {
            let host = &self.world.host;
            if host.is_reset(slot) {
                continue;
            }
            let (mine, theirs) = (host.mine(slot), host.theirs(slot));
            let (prod, cons) = &mut self.said[slot];
            let said = theirs.prod.prod.load(Ordering::Acquire);
            assert!(said >= *prod && said - self.taken[slot] <= 16_384, "{said} after {prod}");
            *prod = said;
            let said = theirs.cons.cons.load(Ordering::Acquire);
            let sent = mine.prod.prod.load(Ordering::Acquire);
            assert!(said >= *cons && said <= sent, "{said} of {sent} after {cons}");
            *cons = said;
            let marks = [&theirs.prod.marks, &theirs.cons.marks_passed];
            assert!(marks.iter().all(|marks| marks.load(Ordering::Acquire) <= 1));
        }
        let other = self.world.host.theirs(OTHER);
        let words = [&other.prod.fin, &other.ctl.closed];
        let is_untouched = other.prod.prod.load(Ordering::Acquire) == 0
            && words.iter().all(|word| word.load(Ordering::Acquire) == 0);
        assert!(is_untouched);
        let is_reset = self.world.host.is_reset(OTHER);
        assert_eq!(is_reset, self.world.host.link().cause().is_some());
    }
}

#[test]
fn whatever_a_kernel_says_is_possible() {
    let config = Config {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    };
    let runs = |steps: Vec<Step>| {
        let mut world = World::connected(0, size(0));
        let ends = (0..=OTHER).map(|slot| {
            world.connect(slot, size(0));
            world.kernel.client(slot)
        });
        let ends = ends.collect();
        world.settle();
        let (said, taken, closed) = Default::default();
        let mut checked = Checked { world, ends, said, taken, closed };
        for step in steps {
            checked.run(step);
            checked.check();
        }
        Ok(())
    };
    TestRunner::new(config).run(&prop::collection::vec(steps(), 0..60), runs).unwrap();
}
