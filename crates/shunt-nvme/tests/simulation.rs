//! Host and controller against each other: chunks cut at random, completions out of order, the
//! connection cut at every byte. Each run is that of its seed.

mod common;

use common::{Memory, Random, connect_data, give, take};
use shunt_nvme::{
    controller, host,
    transport::Command,
    wire::{Sqe, Status, fabrics::Connect, opcode::io},
};
use std::collections::{HashMap, HashSet};

const STORE: usize = 64 * 1024;
const BLOCK: usize = 512;

/// A command as the host knows it.
#[derive(Clone, Copy, Debug)]
struct Op {
    number: u32,
    opcode: u8,
    at: usize,
    len: usize,
}

struct World {
    random: Random,
    host: host::Queue,
    controller: controller::Queue,
    host_memory: Memory,
    controller_memory: Memory,
    /// Bytes on their way.
    to_controller: Vec<u8>,
    to_host: Vec<u8>,
    ops: HashMap<Command, Op>,
    /// Commands that the controller has, ready to be done.
    ready: Vec<(Command, Sqe)>,
    entries: HashMap<Command, Sqe>,
    store: Vec<u8>,
    /// The store as it has to become.
    model: Vec<u8>,
    /// Commands that the controller was told of.
    seen: HashSet<u32>,
    completed: HashSet<u32>,
    submitted: u32,
    is_connected: bool,
    /// Bytes that reached the controller; it gets none beyond the limit.
    delivered: usize,
    cut: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let config = host::Config {
            header_digest: random.one_in(2),
            data_digest: random.one_in(2),
            alignment: u8::try_from(random.below(32)).unwrap(),
            max_r2t: 0,
            depth: 16,
        };
        let limits = controller::Limits {
            alignment: u8::try_from(random.below(32)).unwrap(),
            in_capsule: 4096,
            max_h2c_data: 4096 + 4 * u32::try_from(random.below(4096)).unwrap(),
            max_c2h_data: 512 + u32::try_from(random.below(16384)).unwrap(),
            max_in_flight: 1 + u32::try_from(random.below(40_000)).unwrap(),
            ..controller::Limits::default()
        };
        let store = random.bytes(STORE);
        Self {
            random,
            host: host::Queue::new(config),
            controller: controller::Queue::new(limits),
            host_memory: Memory::new(),
            controller_memory: Memory::new(),
            to_controller: Vec::new(),
            to_host: Vec::new(),
            ops: HashMap::new(),
            ready: Vec::new(),
            entries: HashMap::new(),
            model: store.clone(),
            store,
            seen: HashSet::new(),
            completed: HashSet::new(),
            submitted: 0,
            is_connected: false,
            delivered: 0,
            cut: usize::MAX,
        }
    }

    fn connect(&mut self) {
        let flow = self.random.one_in(2);
        let connect = Connect { recfmt: 0, qid: 1, sqsize: 31, no_flow_control: !flow, kato: 0 };
        let data = connect_data(1);
        let command = self.host.submit(&connect.sqe(), host::Transfer::InCapsule(1024)).unwrap();
        self.host_memory.insert(command, data);
        let op = Op { number: 0, opcode: 0x7f, at: 0, len: 0 };
        self.ops.insert(command, op);
        self.submitted = 1;
    }

    /// Submits a command on blocks that no other command uses.
    fn submit(&mut self) {
        let blocks = 1 + self.random.below(40);
        let at = self.random.below(STORE / BLOCK - blocks) * BLOCK;
        let len = blocks * BLOCK;
        if self.ops.values().any(|op| at < op.at + op.len && op.at < at + len) {
            return;
        }
        let number = self.submitted;
        let wide = u32::try_from(len).unwrap();
        let (opcode, transfer) = match self.random.below(5) {
            0 | 1 if len <= 4096 => (io::WRITE, host::Transfer::InCapsule(wide)),
            0..=2 => (io::WRITE, host::Transfer::ToController(wide)),
            3 => (io::READ, host::Transfer::ToHost(wide)),
            _ => (io::FLUSH, host::Transfer::None),
        };
        let mut sqe = Sqe::new(opcode, 1);
        sqe.set_cdw10_64((at / BLOCK) as u64);
        sqe.cdw12 = (u32::try_from(blocks).unwrap() - 1).into();
        // Not a field of the command: the test knows it again by this.
        sqe.cdw15 = number.into();
        let Ok(command) = self.host.submit(&sqe, transfer) else { return };
        let bytes = if opcode == io::WRITE { self.random.bytes(len) } else { vec![0; len] };
        self.host_memory.insert(command, bytes);
        self.ops.insert(command, Op { number, opcode, at, len });
        self.submitted += 1;
    }

    fn controller_events(&mut self) {
        while let Some(event) = self.controller.poll() {
            match event {
                controller::Event::Command { command, sqe, transfer } => {
                    if sqe.fctype().is_none() {
                        assert!(self.seen.insert(sqe.cdw15.get()), "a command came twice");
                    }
                    let len = usize::try_from(transfer.len()).unwrap();
                    self.controller_memory.insert(command, vec![0xee; len]);
                    self.entries.insert(command, sqe);
                    match transfer {
                        controller::Transfer::FromHost(_) => self.controller.receive(command),
                        controller::Transfer::InCapsule(_) => {}
                        _ => self.ready.push((command, sqe)),
                    }
                }
                controller::Event::Received(command) => {
                    self.ready.push((command, self.entries[&command]));
                }
                controller::Event::Sent(command) => {
                    self.controller_memory.remove(&command);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Does one of the commands that are ready, any of them.
    fn work(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let index = self.random.below(self.ready.len());
        let (command, sqe) = self.ready.swap_remove(index);
        if sqe.fctype().is_some() {
            let connect = Connect::of(&sqe);
            assert_eq!(self.controller_memory[&command], connect_data(1));
            self.controller.connected(connect.sqsize + 1, true, !connect.no_flow_control);
            self.is_connected = true;
            self.controller.respond(command, Status::SUCCESS, 1, 0);
            return;
        }
        let at = usize::try_from(sqe.cdw10_64()).unwrap() * BLOCK;
        let len = (usize::try_from(sqe.cdw12.get()).unwrap() + 1) * BLOCK;
        let mut data_len = 0;
        match sqe.opcode {
            io::WRITE => {
                self.store[at..at + len].copy_from_slice(&self.controller_memory[&command]);
            }
            io::READ => {
                let bytes = self.store[at..at + len].to_vec();
                self.controller_memory.insert(command, bytes);
                data_len = u32::try_from(len).unwrap();
            }
            _ => {}
        }
        self.controller.respond(command, Status::SUCCESS, 0, data_len);
    }

    fn host_events(&mut self) {
        while let Some(event) = self.host.poll() {
            match event {
                host::Event::Ready(_) => self.connect(),
                host::Event::Completed { command, completion } => {
                    let op = self.ops.remove(&command).unwrap();
                    let bytes = self.host_memory.remove(&command).unwrap();
                    assert!(completion.cqe.status().is_success() && !completion.damaged);
                    self.completed.insert(op.number);
                    match op.opcode {
                        io::WRITE => self.model[op.at..op.at + op.len].copy_from_slice(&bytes),
                        io::READ => {
                            assert_eq!(completion.received as usize, op.len);
                            assert!(bytes == self.model[op.at..op.at + op.len], "{op:?}");
                        }
                        _ => {}
                    }
                }
                other @ host::Event::Terminated(_) => panic!("{other:?}"),
            }
        }
    }

    /// Moves some bytes in each direction.
    fn transport(&mut self) {
        let max = 1 + self.random.below(9000);
        let bytes = take(&mut self.host, &self.host_memory, max);
        self.to_controller.extend(bytes);
        let max = 1 + self.random.below(9000);
        let bytes = take(&mut self.controller, &self.controller_memory, max);
        self.to_host.extend(bytes);
        self.controller_events();

        let max = 1 + self.random.below(5000);
        let len = max.min(self.to_controller.len()).min(self.cut - self.delivered);
        let chunk: Vec<u8> = self.to_controller.drain(..len).collect();
        self.delivered += len;
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            rest = give(&mut self.controller, &mut self.controller_memory, rest).unwrap();
            self.controller_events();
        }
        let len = (1 + self.random.below(5000)).min(self.to_host.len());
        let chunk: Vec<u8> = self.to_host.drain(..len).collect();
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            rest = give(&mut self.host, &mut self.host_memory, rest).unwrap();
            self.host_events();
        }
    }

    fn run(&mut self, commands: u32) {
        let mut idle = 0;
        while self.completed.len() < commands as usize && idle < 80 {
            let before = (self.delivered, self.completed.len(), self.to_host.len());
            if self.is_connected && self.submitted < commands && !self.random.one_in(3) {
                self.submit();
            }
            self.transport();
            if self.random.one_in(2) {
                self.work();
            }
            let after = (self.delivered, self.completed.len(), self.to_host.len());
            idle = if before == after { idle + 1 } else { 0 };
        }
    }
}

#[test]
fn every_byte_arrives() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        world.run(80);
        assert_eq!(world.completed.len(), 80, "seed {seed}");
        assert!(world.store == world.model, "seed {seed}");
        assert_eq!(world.host.outstanding(), 0, "seed {seed}");
        world.transport();
        assert_eq!(world.controller.outstanding(), 0, "seed {seed}");
    }
}

/// The connection is lost after each byte: what was never sent was not seen, what was seen is not
/// called unsent, and each command has one fate.
#[test]
fn cut_at_every_byte() {
    let mut whole = World::new(4);
    whole.run(12);
    assert_eq!(whole.completed.len(), 12);
    let step = if cfg!(debug_assertions) { 211 } else { 1 };
    // Around the beginning every byte, then in steps.
    let positions = (0..1400).chain((1400..whole.delivered).step_by(step));
    for cut in positions {
        let mut world = World::new(4);
        world.cut = cut;
        world.run(12);
        let submitted = world.submitted;
        let mut fates = HashSet::new();
        for (command, fate) in world.host.lose() {
            let number = world.ops[&command].number;
            assert!(fates.insert(number), "cut {cut}");
            assert!(!world.completed.contains(&number), "cut {cut}");
            if fate == host::Fate::NeverSent {
                assert!(!world.seen.contains(&number), "cut {cut}");
            }
        }
        assert_eq!(fates.len() + world.completed.len(), submitted as usize, "cut {cut}");
        assert!(world.host.lose().is_empty());
        let refused = world.host.submit(&Sqe::new(0, 1), host::Transfer::None);
        assert_eq!(refused, Err(host::SubmitError::Closed));
    }
}
