//! Connections that are lost, again and again, with commands that must not be done twice: host and controller against
//! each other, as a seed and the places of the losses say. What states the machines are in when a connection is
//! lost is counted: every one of a list is reached.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use common::{End, Memory, Random, connect_data, give, take};
use proptest::prelude::*;
use shunt_nvme::{
    controller, host,
    transport::{Command, Next, Piece},
    wire::{Sqe, Status, fabrics::Connect, opcode::io},
};

/// Operations of a run.
const OPS: u32 = 24;

/// What an operation does: none may be done twice, and each has bytes of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The controller appends the bytes, which come in the capsule or when it asks for them.
    Append { len: usize, in_capsule: bool },
    /// The controller gives bytes that are made of the operation's number, and notes that it did.
    Take { len: usize },
}

/// What has become of an operation at the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is to be sent, or sent again.
    Waiting,
    Submitted(Command),
    Acknowledged,
    /// The controller has said that it was not done.
    Refused,
    /// Nobody knows: it is not sent again.
    Unknown,
}

/// The bytes of an operation.
fn bytes_of(op: u32, len: usize) -> Vec<u8> {
    Random(u64::from(op)).bytes(len)
}

fn len_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

/// One connection.
struct Connection {
    host: host::Queue,
    controller: controller::Queue,
    host_memory: Memory,
    controller_memory: Memory,
    to_controller: Vec<u8>,
    to_host: Vec<u8>,
    entries: HashMap<Command, Sqe>,
    /// Commands whose data the controller waits for, and commands that it can do.
    awaited: Vec<Command>,
    ready: Vec<Command>,
    is_initialized: bool,
    is_connected: bool,
    /// The last bytes that each end took were data, or some of a digest.
    after_data: [bool; 2],
}

struct World {
    random: Random,
    ops: Vec<(Kind, Fate)>,
    /// What the controller has done, with the bytes that it got.
    done: BTreeMap<u32, Vec<u8>>,
    /// The connection is lost when it first comes into this state.
    fatal: Option<&'static str>,
    /// It has come into it.
    was_fatal: bool,
}

/// How an end receives, as far as its machine tells.
fn receiving(end: &impl End, after_data: bool) -> &'static str {
    match end.next() {
        Next::Header { len } if after_data && end.data_digest() && len <= 4 => "a data digest",
        // The common header, of which a part may have come.
        Next::Header { len: 8 } => "nothing",
        Next::Header { .. } => "a header",
        Next::Data(_) => "data",
        Next::Discard { .. } => "data that is thrown away",
        Next::Blocked | Next::Closed => "nothing more",
    }
}

/// True in the middle of a data digest: of a header more is missing.
fn amid(end: &impl End) -> bool {
    matches!(end.next(), Next::Header { len: ..4 })
}

fn sending(end: &impl End) -> &'static str {
    match end.pieces().first() {
        None => "nothing",
        Some(Piece::Bytes(_)) => "a header",
        Some(Piece::Data(_)) => "data",
        Some(Piece::Digest { .. }) => "a data digest",
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let op = |_| {
            let len = 1 + random.below(9000);
            let kind = match random.below(3) {
                0 => Kind::Append { len: 1 + len % 4096, in_capsule: true },
                1 => Kind::Append { len, in_capsule: false },
                _ => Kind::Take { len },
            };
            (kind, Fate::Waiting)
        };
        let ops = (0..OPS).map(op).collect();
        Self { random, ops, done: BTreeMap::new(), fatal: None, was_fatal: false }
    }

    fn connection(&mut self) -> Connection {
        let random = &mut self.random;
        let config = host::Config {
            header_digest: random.one_in(2),
            data_digest: random.one_in(2),
            alignment: u8::try_from(random.below(32)).unwrap(),
            max_r2t: 0,
            depth: 8,
        };
        let limits = controller::Limits {
            alignment: u8::try_from(random.below(32)).unwrap(),
            in_capsule: 4096,
            max_h2c_data: 4096,
            max_c2h_data: 512 + u32::try_from(random.below(4096)).unwrap(),
            max_in_flight: 1 + u32::try_from(random.below(12_000)).unwrap(),
            ..controller::Limits::default()
        };
        Connection {
            host: host::Queue::new(config),
            controller: controller::Queue::new(limits),
            host_memory: Memory::new(),
            controller_memory: Memory::new(),
            to_controller: Vec::new(),
            to_host: Vec::new(),
            entries: HashMap::new(),
            awaited: Vec::new(),
            ready: Vec::new(),
            is_initialized: false,
            is_connected: false,
            after_data: [false; 2],
        }
    }

    fn submit(&mut self, connection: &mut Connection) {
        let waiting = self.ops.iter().position(|(_, fate)| *fate == Fate::Waiting);
        let Some(index) = waiting else { return };
        let op = u32::try_from(index).unwrap();
        let (kind, fate) = &mut self.ops[index];
        let (opcode, transfer, bytes) = match *kind {
            Kind::Append { len, in_capsule } => {
                let bytes = bytes_of(op, len);
                let transfer = if in_capsule {
                    host::Transfer::InCapsule(len_of(&bytes))
                } else {
                    host::Transfer::ToController(len_of(&bytes))
                };
                (io::WRITE, transfer, bytes)
            }
            Kind::Take { len } => {
                (io::READ, host::Transfer::ToHost(u32::try_from(len).unwrap()), vec![0; len])
            }
        };
        let mut sqe = Sqe::new(opcode, 1);
        // The test knows it again by this.
        sqe.cdw15 = op.into();
        // The queue may be full.
        if let Ok(command) = connection.host.submit(&sqe, transfer) {
            connection.host_memory.insert(command, bytes);
            *fate = Fate::Submitted(command);
        }
    }

    fn host_events(&mut self, connection: &mut Connection) {
        while let Some(event) = connection.host.poll() {
            match event {
                host::Event::Ready(_) => {
                    connection.is_initialized = true;
                    let flow = self.random.one_in(2);
                    let connect =
                        Connect { recfmt: 0, qid: 1, sqsize: 31, no_flow_control: !flow, kato: 0 };
                    let transfer = host::Transfer::InCapsule(1024);
                    let command = connection.host.submit(&connect.sqe(), transfer).unwrap();
                    connection.host_memory.insert(command, connect_data(1));
                }
                host::Event::Completed { command, completion } => {
                    let found = self.ops.iter().position(|(_, f)| *f == Fate::Submitted(command));
                    match found {
                        None => connection.is_connected = true,
                        Some(index) => self.acknowledged(index, &completion, connection, command),
                    }
                    connection.host_memory.remove(&command);
                }
                other @ host::Event::Terminated(_) => panic!("{other:?}"),
            }
        }
    }

    fn acknowledged(
        &mut self,
        index: usize,
        completion: &host::Completion,
        connection: &Connection,
        command: Command,
    ) {
        let op = u32::try_from(index).unwrap();
        let (kind, fate) = &mut self.ops[index];
        assert!(!completion.damaged);
        if completion.cqe.status() == Status::ABORT_REQUESTED {
            assert!(!self.done.contains_key(&op), "{op} was refused, and done");
            *fate = Fate::Refused;
            return;
        }
        assert!(completion.cqe.status().is_success());
        assert!(self.done.contains_key(&op), "{op} was acknowledged, and not done");
        *fate = Fate::Acknowledged;
        if let Kind::Take { len } = kind {
            assert_eq!(completion.received as usize, *len);
            assert!(connection.host_memory[&command] == bytes_of(op, *len), "{op}");
        }
    }

    fn controller_events(connection: &mut Connection) {
        while let Some(event) = connection.controller.poll() {
            match event {
                controller::Event::Command { command, sqe, transfer } => {
                    let len = usize::try_from(transfer.len()).unwrap();
                    connection.controller_memory.insert(command, vec![0xee; len]);
                    connection.entries.insert(command, sqe);
                    match transfer {
                        controller::Transfer::FromHost(_) => {
                            connection.controller.receive(command);
                            connection.awaited.push(command);
                        }
                        controller::Transfer::InCapsule(_) => {}
                        _ => connection.ready.push(command),
                    }
                }
                controller::Event::Received(command) => {
                    connection.awaited.retain(|awaited| *awaited != command);
                    connection.ready.push(command);
                }
                controller::Event::Sent(command) => {
                    connection.controller_memory.remove(&command);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The controller does one of the commands that it can do, or gives up one that waits for data.
    fn work(&mut self, connection: &mut Connection) {
        if !connection.awaited.is_empty() && self.random.one_in(12) {
            let index = self.random.below(connection.awaited.len());
            let command = connection.awaited.swap_remove(index);
            connection.controller.respond(command, Status::ABORT_REQUESTED, 0, 0);
            return;
        }
        if connection.ready.is_empty() {
            return;
        }
        let index = self.random.below(connection.ready.len());
        let command = connection.ready.swap_remove(index);
        let sqe = connection.entries[&command];
        if sqe.fctype().is_some() {
            let connect = Connect::of(&sqe);
            assert_eq!(connection.controller_memory[&command], connect_data(1));
            let depth = connect.sqsize + 1;
            connection.controller.connected(depth, true, !connect.no_flow_control);
            connection.controller.respond(command, Status::SUCCESS, 1, 0);
            return;
        }
        let op = sqe.cdw15.get();
        let bytes = connection.controller_memory[&command].clone();
        let got = if sqe.opcode == io::WRITE { bytes } else { Vec::new() };
        assert!(self.done.insert(op, got).is_none(), "{op} was done twice");
        let mut len = 0;
        if let (Kind::Take { len: wanted }, _) = self.ops[usize::try_from(op).unwrap()] {
            len = u32::try_from(wanted).unwrap();
            connection.controller_memory.insert(command, bytes_of(op, wanted));
        }
        connection.controller.respond(command, Status::SUCCESS, 0, len);
    }

    /// One connection, lost when so many bytes have reached the controller, or the host; true if it has brought
    /// everything to an end before.
    fn connect(&mut self, mut left: [usize; 2]) -> bool {
        let mut connection = self.connection();
        let mut idle = 0;
        while left != [0, 0] && idle < 200 {
            let open =
                |(_, fate): &(Kind, Fate)| matches!(fate, Fate::Waiting | Fate::Submitted(_));
            if !self.ops.iter().any(open) {
                return true;
            }
            if connection.is_connected && self.random.one_in(2) {
                self.submit(&mut connection);
            }
            let moved = self.transport(&mut connection, &mut left);
            if self.random.one_in(2) {
                self.work(&mut connection);
                Self::controller_events(&mut connection);
            }
            idle = if moved { 0 } else { idle + 1 };
            if let Some(fatal) = self.fatal
                && self.states(&connection).contains(fatal)
            {
                self.was_fatal = true;
                break;
            }
        }
        for (command, fate) in connection.host.lose() {
            let found = self.ops.iter().position(|(_, f)| *f == Fate::Submitted(command));
            let Some(index) = found else { continue };
            let op = u32::try_from(index).unwrap();
            match fate {
                host::Fate::NeverSent => {
                    assert!(!self.done.contains_key(&op), "{op} was done, and called unsent");
                    self.ops[index].1 = Fate::Waiting;
                }
                host::Fate::MaybeExecuted => self.ops[index].1 = Fate::Unknown,
                host::Fate::Completed(completion) => {
                    self.acknowledged(index, &completion, &connection, command);
                }
            }
        }
        assert!(!self.ops.iter().any(|(_, fate)| matches!(fate, Fate::Submitted(_))));
        false
    }

    /// Moves some bytes in each direction; true if there were some.
    fn transport(&mut self, connection: &mut Connection, left: &mut [usize; 2]) -> bool {
        let before = *left;
        let max = self.chunk_of(&connection.host);
        let bytes = take(&mut connection.host, &connection.host_memory, max);
        let sent = bytes.len();
        connection.to_controller.extend(bytes);
        let max = self.chunk_of(&connection.controller);
        let bytes = take(&mut connection.controller, &connection.controller_memory, max);
        let sent = sent + bytes.len();
        connection.to_host.extend(bytes);
        Self::controller_events(connection);
        self.host_events(connection);

        let len = self.chunk().min(connection.to_controller.len()).min(left[0]);
        left[0] -= len;
        let chunk: Vec<u8> = connection.to_controller.drain(..len).collect();
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let was_data = matches!(connection.controller.next(), Next::Data(_));
            rest =
                give(&mut connection.controller, &mut connection.controller_memory, rest).unwrap();
            connection.after_data[0] = was_data || amid(&connection.controller);
            Self::controller_events(connection);
        }
        let len = self.chunk().min(connection.to_host.len()).min(left[1]);
        left[1] -= len;
        let chunk: Vec<u8> = connection.to_host.drain(..len).collect();
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let was_data = matches!(connection.host.next(), Next::Data(_));
            rest = give(&mut connection.host, &mut connection.host_memory, rest).unwrap();
            connection.after_data[1] = was_data || amid(&connection.host);
            self.host_events(connection);
        }
        sent > 0 || *left != before
    }

    /// Bytes that move at once: few, so that each state is seen, or many.
    fn chunk(&mut self) -> usize {
        let most = [4, 100, 3000][self.random.below(3)];
        1 + self.random.below(most)
    }

    /// Bytes that an end hands to its socket: up to a digest and into it, where that is what is wanted.
    fn chunk_of(&mut self, end: &impl End) -> usize {
        let pieces = end.pieces();
        let digest = pieces.iter().position(|piece| matches!(piece, Piece::Digest { .. }));
        let before = digest.map(|index| pieces[..index].iter().map(Piece::len).sum::<usize>());
        match before {
            Some(before) if self.fatal.is_some() && self.random.one_in(2) => {
                (before + self.random.below(4)).max(1)
            }
            _ => self.chunk(),
        }
    }

    /// The states that both ends are in.
    fn states(&self, connection: &Connection) -> BTreeSet<String> {
        let phase = match (connection.is_initialized, connection.is_connected) {
            (false, _) => "before its initialization",
            (true, false) => "before Connect has succeeded",
            (true, true) => "connected",
        };
        let [controller, host] = connection.after_data;
        let mut states = BTreeSet::from([
            phase.to_owned(),
            format!("the controller receives {}", receiving(&connection.controller, controller)),
            format!("the host receives {}", receiving(&connection.host, host)),
            format!("the controller sends {}", sending(&connection.controller)),
            format!("the host sends {}", sending(&connection.host)),
        ]);
        if !connection.awaited.is_empty() {
            states.insert("the controller waits for data".to_owned());
        }
        if !connection.ready.is_empty() {
            states.insert("the controller has commands to do".to_owned());
        }
        let done_unheard = |(index, (_, fate)): (usize, &(Kind, Fate))| {
            matches!(fate, Fate::Submitted(_))
                && self.done.contains_key(&u32::try_from(index).unwrap())
        };
        if self.ops.iter().enumerate().any(done_unheard) {
            states.insert("a command is done, and not acknowledged".to_owned());
        }
        states
    }

    /// Loses connections at these places, and then lets one be.
    fn run(&mut self, losses: &[[usize; 2]]) {
        for loss in losses {
            if self.connect(*loss) {
                break;
            }
        }
        self.fatal = None;
        self.connect([usize::MAX; 2]);
        for (op, (kind, fate)) in (0..).zip(&self.ops) {
            let done = self.done.get(&op);
            match fate {
                Fate::Acknowledged => assert!(done.is_some(), "{op}"),
                Fate::Refused => assert!(done.is_none(), "{op}"),
                Fate::Unknown => {}
                Fate::Waiting | Fate::Submitted(_) => panic!("{op} has no end: {fate:?}"),
            }
            if let (Kind::Append { len, .. }, Some(bytes)) = (kind, done) {
                assert!(*bytes == bytes_of(op, *len), "{op}: other bytes were appended");
            }
        }
    }
}

fn losses() -> impl Strategy<Value = Vec<[usize; 2]>> {
    // Many near the beginning, some after much has gone.
    let place = || prop_oneof![1..300_usize, 1..3000_usize, 1..60_000_usize];
    prop::collection::vec([place(), place()], 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_done_twice_and_nothing_is_made_up(seed: u64, losses in losses()) {
        World::new(seed).run(&losses);
    }
}

/// Each of these is a state in which a connection can be lost.
const STATES: [&str; 23] = [
    "before its initialization",
    "before Connect has succeeded",
    "connected",
    "the controller receives nothing",
    "the controller receives a header",
    "the controller receives data",
    "the controller receives a data digest",
    "the controller receives data that is thrown away",
    "the host receives nothing",
    "the host receives a header",
    "the host receives data",
    "the host receives a data digest",
    "the controller sends nothing",
    "the controller sends a header",
    "the controller sends data",
    "the controller sends a data digest",
    "the host sends nothing",
    "the host sends a header",
    "the host sends data",
    "the host sends a data digest",
    "the controller waits for data",
    "the controller has commands to do",
    "a command is done, and not acknowledged",
];

#[test]
fn connections_are_lost_in_every_state() {
    for state in STATES {
        let mut reached = 0;
        for seed in 0..30 {
            let mut world = World::new(seed);
            world.fatal = Some(state);
            // Again and again, while it comes into that state.
            world.run(&[[usize::MAX; 2]; 6]);
            reached += u32::from(world.was_fatal);
        }
        // Where it hangs on what was negotiated, half of the connections come there.
        assert!(reached >= 10, "{state}: {reached}");
    }
}
