//! Guests that write anything anywhere: nothing but their own commands comes of it, and no address out of their memory.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shunt_guest::vfio::command;
use shunt_nvme::wire::opcode::admin;
use shunt_nvme::wire::registers::{ACQ, AQA, ASQ, CC, Configuration};
use shunt_nvme::wire::{Nqn, Sqe};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};
use zerocopy::IntoBytes;

use crate::port::{Completed, Lane, Memory, Op, Outcome, Request, Traffic, Wait};
use crate::tests::exact::geometry;
use crate::vfio::controller::Controller;
use crate::vfio::runner::Runner;

/// Bytes of each of the two pieces of memory.
const LEN: usize = 0x8000;
/// Where the second one is.
const FAR: u64 = 0x10_0000;

/// Lanes that check what they are given, and answer later.
struct Checking {
    memory: Arc<Memory>,
    waiting: Vec<Request>,
    outcomes: Arc<Mutex<usize>>,
}

impl Lane for Checking {
    fn has_room(&self) -> bool {
        self.waiting.len() < 8
    }

    fn submit(&mut self, request: Request) {
        assert!(self.has_room());
        let data = &request.data;
        for segment in data.segments() {
            let inside = self.memory.iter().any(|region| {
                let first = region.as_ptr() as usize;
                let (at, end) = (segment.address as usize, segment.address as usize + segment.len);
                first <= at && end <= first + LEN
            });
            assert!(inside, "{segment:?} is not the guest's");
        }
        let total: usize = data.segments().iter().map(|segment| segment.len).sum();
        assert_eq!(data.len(), total as u64);
        let disk = geometry();
        let inside = |block: u64, blocks: u64| assert!(block + blocks <= disk.blocks);
        match &request.op {
            Op::Read { block } | Op::Write { block } | Op::Compare { block } => {
                assert!(!data.is_empty() && data.len().is_multiple_of(512));
                inside(*block, data.len() / 512);
            }
            Op::Flush => {}
            Op::Discard(extents) | Op::WriteZeroes { extents, .. } => {
                extents.iter().for_each(|extent| inside(extent.block, extent.blocks));
            }
        }
        self.waiting.push(request);
    }

    fn poll(&mut self, completed: &mut Vec<Completed>) {
        let mut outcomes = self.outcomes.lock().unwrap();
        // One at a time, in any order, with any outcome.
        if let Some(request) = self.waiting.pop() {
            *outcomes += 1;
            let all = [Outcome::Done, Outcome::Done, Outcome::Failed, Outcome::Unsupported];
            let outcome = all[*outcomes % all.len()];
            completed.push(Completed { tag: request.tag, outcome, why: None, data: request.data });
        }
    }

    fn wait(&self, _wait: &mut Wait) {}

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// A command: opcode, flags, namespace, two addresses, dwords 10 to 12.
type Parts = (u8, u8, u32, [u64; 2], [u32; 3]);

fn sqe((opcode, flags, nsid, prps, [a, b, c]): Parts) -> Sqe {
    let mut sqe = command(opcode, nsid, prps);
    sqe.flags = flags;
    (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (a.into(), b.into(), c.into());
    sqe
}

/// What a guest does.
#[derive(Clone, Debug)]
enum Step {
    /// Any write to BAR0, and a read of as many bytes.
    Bar(u64, Vec<u8>),
    /// A write to a register or doorbell that there is.
    Register(u32, u32),
    /// Bytes in memory.
    Memory(u64, Vec<u8>),
    /// A command in a queue.
    Command(u16, Parts),
    /// The controller is set up and enabled, with its queues at these pages.
    Enable(u64, u64),
    /// Queues for I/O are made.
    Create(u16),
    /// The device has time, and the guest reads what has completed, or not.
    Turn(bool),
    /// It is reset, when nothing is under way.
    Reset,
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..8u64).prop_map(|page| page * 0x1000),
        2 => (0..0x1000u64).prop_map(|word| word * 8),
        2 => (0..8u64).prop_map(|page| FAR + page * 0x1000),
        1 => (0..0x20u64).prop_map(|word| 0x8000 - 0x80 + word * 8),
        1 => any::<u64>(),
    ]
}

fn parts(
    opcode: impl Strategy<Value = u8>,
    dword10: impl Strategy<Value = u32>,
) -> impl Strategy<Value = Parts> {
    let flags = prop_oneof![9 => Just(0), 1 => any::<u8>()];
    let nsid = prop_oneof![9 => Just(1), 1 => any::<u32>()];
    let dword11 = prop_oneof![
        6 => Just(0),
        3 => (0..4u32, 0..5u32).prop_map(|(a, b)| a << 16 | b),
        1 => any::<u32>()
    ];
    let dword12 = prop_oneof![6 => 0..16u32, 1 => 0..2100u32, 1 => any::<u32>()];
    let dwords = (dword10, dword11, dword12).prop_map(|(a, b, c)| [a, b, c]);
    (opcode, flags, nsid, [address(), address()], dwords)
}

fn step() -> impl Strategy<Value = Step> {
    let registers = prop_oneof![
        1 => Just(CC),
        1 => Just(AQA),
        1 => Just(ASQ),
        1 => Just(ACQ),
        8 => (0..16u32).prop_map(|n| 0x1000 + n * 4),
    ];
    let value = prop_oneof![4 => 0..20u32, 1 => any::<u32>(), 1 => Just(Configuration::ENABLE.0)];
    // Numbers and sizes of queues, features, pages.
    let queues = (0..4u32, 0..9u32).prop_map(|(id, last)| last << 16 | id);
    let admin = parts(
        prop_oneof![8 => 0..13u8, 1 => Just(admin::DOORBELL_BUFFER_CONFIG), 1 => any::<u8>()],
        prop_oneof![3 => queues, 2 => 0..16u32, 1 => any::<u32>()],
    );
    let block = prop_oneof![6 => 0..2048u32, 2 => 2030..2060u32, 1 => any::<u32>()];
    let io = parts(prop_oneof![20 => 0..10u8, 1 => any::<u8>()], block);
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    prop_oneof![
        1 => (0..0x4100u64, bytes(20)).prop_map(|(at, bytes)| Step::Bar(at, bytes)),
        2 => (registers, value).prop_map(|(at, value)| Step::Register(at, value)),
        2 => (address(), bytes(64)).prop_map(|(at, bytes)| Step::Memory(at, bytes)),
        4 => admin.prop_map(|parts| Step::Command(0, parts)),
        20 => (1..3u16, io).prop_map(|(queue, parts)| Step::Command(queue, parts)),
        2 => (0..4u64, 4..8u64).prop_map(|(commands, answers)| Step::Enable(commands, answers)),
        4 => (1..3u16).prop_map(Step::Create),
        10 => any::<bool>().prop_map(Step::Turn),
        1 => Just(Step::Reset),
    ]
}

/// A guest: where it has its queues, and how far they are.
struct Guest {
    runner: Runner,
    memory: Arc<Memory>,
    /// Submission queues; eight entries each.
    queues: [u64; 3],
    tails: [u32; 3],
}

impl Guest {
    fn set(&mut self, at: u32, bytes: &[u8]) {
        self.runner.controller().write(at.into(), bytes);
    }

    fn submit(&mut self, queue: u16, sqe: &Sqe) {
        let (at, tail) = (self.queues[usize::from(queue)], &mut self.tails[usize::from(queue)]);
        let at = GuestAddress(at + u64::from(*tail) * 64);
        *tail = (*tail + 1) % 8;
        let tail = *tail;
        self.memory.write_slice(sqe.as_bytes(), at).unwrap();
        self.set(0x1000 + u32::from(queue) * 8, &tail.to_le_bytes());
    }

    fn create(&mut self, queue: u16) {
        let id = 7 << 16 | u32::from(queue);
        let at = self.queues[usize::from(queue)];
        let zero = (admin::CREATE_COMPLETION_QUEUE, 0, 0, [at + 0x2000, 0], [id, 3, 0]);
        let one = u32::from(queue) << 16 | 1;
        for parts in [zero, (admin::CREATE_SUBMISSION_QUEUE, 0, 0, [at, 0], [id, one, 0])] {
            self.submit(0, &sqe(parts));
        }
        self.tails[usize::from(queue)] = 0;
    }

    fn enable(&mut self, commands: u64, answers: u64) {
        self.set(CC, &[0; 4]);
        self.set(AQA, &(7u32 << 16 | 7).to_le_bytes());
        self.set(ASQ, &(commands * 0x1000).to_le_bytes());
        self.set(ACQ, &(answers * 0x1000).to_le_bytes());
        self.set(CC, &Configuration::ENABLE.0.to_le_bytes());
        self.queues = [commands * 0x1000, FAR + 0x1000, FAR + 0x2000];
        self.tails = [0; 3];
    }

    fn turn(&mut self, reads: bool) {
        let mut interrupts = Vec::new();
        self.runner.take(&self.memory);
        self.runner.poll(&self.memory, true);
        self.runner.post(&self.memory, &mut interrupts);
        assert!(interrupts.iter().all(|vector| *vector < 3));
        // Nobody writes meanwhile, so that a controller that has looked can sleep.
        let controller = self.runner.controller();
        controller.look(&self.memory);
        let _may_wait_for_room = controller.arm(&self.memory);
        controller.disarm(&self.memory);
        // Up to the last one that was posted: what is beyond is refused.
        for (queue, head) in (0..3).flat_map(|queue| (0..8u32).map(move |head| (queue, head))) {
            if reads {
                self.set(0x1004 + queue * 8, &head.to_le_bytes());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_comes_of_anything(steps in prop::collection::vec(step(), 1..150)) {
        let ranges = [(GuestAddress(0), LEN), (GuestAddress(FAR), LEN)];
        let memory = Arc::new(Memory::from_ranges(&ranges).unwrap());
        let name = Nqn::new("nqn.2024-01.org.shunt:disk").unwrap();
        let outcomes = Arc::new(Mutex::new(0));
        let lane = || -> Box<dyn Lane> {
            Box::new(Checking {
                memory: Arc::clone(&memory),
                waiting: Vec::new(),
                outcomes: Arc::clone(&outcomes),
            })
        };
        let controller = Controller::new(name, 2);
        let runner =
            Runner::new(controller, vec![lane(), lane()], geometry(), |_| Arc::default());
        let memories = Arc::clone(&memory);
        let mut guest = Guest { runner, memory: memories, queues: [0; 3], tails: [0; 3] };
        guest.enable(0, 4);
        guest.create(1);
        for step in steps {
            match step {
                Step::Bar(at, mut bytes) => {
                    guest.runner.controller().write(at, &bytes);
                    guest.runner.controller().read(at, &mut bytes);
                }
                Step::Register(at, value) => guest.set(at, &value.to_le_bytes()),
                Step::Memory(at, bytes) => {
                    let _out_of_it = guest.memory.write_slice(&bytes, GuestAddress(at));
                }
                Step::Command(queue, parts) => guest.submit(queue, &sqe(parts)),
                Step::Enable(commands, answers) => guest.enable(commands, answers),
                Step::Create(queue) => guest.create(queue),
                Step::Turn(reads) => guest.turn(reads),
                Step::Reset => {
                    while guest.runner.in_flight() > 0 {
                        guest.runner.poll(&guest.memory, false);
                    }
                    guest.runner.controller().reset();
                }
            }
        }
        // All that was taken ends, and the memory is nobody's then.
        for _ in 0..1000 {
            guest.runner.poll(&guest.memory, false);
        }
        prop_assert_eq!(guest.runner.in_flight(), 0);
        let Guest { runner, memory: left, .. } = guest;
        drop(left);
        drop(runner.into_lanes());
        prop_assert_eq!(Arc::strong_count(&memory), 1);
    }
}
