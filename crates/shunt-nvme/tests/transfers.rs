//! Rules of data on its way, one by one: digests, limits, responses before the data.

mod common;

use common::{Memory, connect_data, give, take};
use shunt_nvme::{
    controller, host,
    transport::{Command, Next, Piece},
    wire::{C2hData, CapsuleResp, R2t, Sqe, Status, Violation, fabrics::Connect, opcode::io},
};
use zerocopy::FromBytes;

/// Both ends, with the Connect of an I/O queue behind them.
struct Pair {
    host: host::Queue,
    controller: controller::Queue,
    host_memory: Memory,
    controller_memory: Memory,
    events: Vec<controller::Event>,
}

impl Pair {
    fn new(config: host::Config, limits: controller::Limits, flow_control: bool) -> Self {
        let mut pair = Self {
            host: host::Queue::new(config),
            controller: controller::Queue::new(limits),
            host_memory: Memory::new(),
            controller_memory: Memory::new(),
            events: Vec::new(),
        };
        pair.up();
        pair.down();
        let connect =
            Connect { recfmt: 0, qid: 1, sqsize: 7, no_flow_control: !flow_control, kato: 0 };
        pair.submit(&connect.sqe(), host::Transfer::InCapsule(1024), connect_data(1));
        pair.up();
        let Some(controller::Event::Received(command)) = pair.events.pop() else { panic!() };
        pair.controller.connected(8, true, flow_control);
        pair.controller.respond(command, Status::SUCCESS, 1, 0);
        pair.down();
        pair.events.clear();
        while pair.host.poll().is_some() {}
        pair
    }

    fn submit(&mut self, sqe: &Sqe, transfer: host::Transfer, bytes: Vec<u8>) -> Command {
        let command = self.host.submit(sqe, transfer).unwrap();
        self.host_memory.insert(command, bytes);
        command
    }

    fn write(&mut self, len: u32, in_capsule: bool) -> Command {
        let transfer = if in_capsule {
            host::Transfer::InCapsule(len)
        } else {
            host::Transfer::ToController(len)
        };
        self.submit(&Sqe::new(io::WRITE, 1), transfer, vec![0x77; len as usize])
    }

    fn give_up(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut rest = bytes;
        while !rest.is_empty() && self.controller.next() != Next::Closed {
            rest = give(&mut self.controller, &mut self.controller_memory, rest)?;
            while let Some(event) = self.controller.poll() {
                self.events.push(event);
            }
        }
        Ok(())
    }

    /// Everything from the host to the controller.
    fn up(&mut self) {
        let bytes = take(&mut self.host, &self.host_memory, usize::MAX);
        self.give_up(&bytes).unwrap();
    }

    fn give_down(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = give(&mut self.host, &mut self.host_memory, rest).unwrap();
        }
    }

    /// Everything from the controller to the host.
    fn down(&mut self) -> Vec<u8> {
        let bytes = take(&mut self.controller, &self.controller_memory, usize::MAX);
        self.give_down(&bytes);
        bytes
    }

    /// The command that the controller was told of last.
    fn command(&self) -> Command {
        let command = self.events.iter().rev().find_map(|event| match event {
            controller::Event::Command { command, .. } => Some(*command),
            _ => None,
        });
        command.unwrap()
    }

    fn completion(&mut self) -> Option<host::Completion> {
        match self.host.poll()? {
            host::Event::Completed { completion, .. } => Some(completion),
            other => panic!("{other:?}"),
        }
    }
}

const DIGESTS: host::Config =
    host::Config { header_digest: true, data_digest: true, alignment: 0, max_r2t: 0, depth: 8 };

fn plain() -> host::Config {
    host::Config { header_digest: false, data_digest: false, ..DIGESTS }
}

fn limits() -> controller::Limits {
    controller::Limits::default()
}

/// TCP 3.3.1.1, 3.5: damaged data fails its command, and no other.
#[test]
fn damaged_data_to_the_controller() {
    for in_capsule in [true, false] {
        let mut pair = Pair::new(DIGESTS, limits(), false);
        pair.write(512, in_capsule);
        if !in_capsule {
            pair.up();
            pair.controller.receive(pair.command());
            pair.down();
        }
        let mut bytes = take(&mut pair.host, &pair.host_memory, usize::MAX);
        // Data, and four bytes of digest behind it.
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
        pair.give_up(&bytes).unwrap();
        assert!(matches!(pair.events.last(), Some(controller::Event::Damaged(_))));
        pair.down();
        let status = pair.completion().unwrap().cqe.status();
        assert_eq!(status, Status::TRANSIENT_TRANSPORT_ERROR);
        // The next is fine.
        pair.write(512, true);
        pair.up();
        assert!(matches!(pair.events.last(), Some(controller::Event::Received(_))));
    }
}

#[test]
fn damaged_data_to_the_host() {
    for success in [true, false] {
        let mut pair = Pair::new(DIGESTS, limits(), !success);
        pair.submit(&Sqe::new(io::READ, 1), host::Transfer::ToHost(512), vec![0; 512]);
        pair.up();
        let command = pair.command();
        pair.controller_memory.insert(command, vec![0x77; 512]);
        pair.controller.respond(command, Status::SUCCESS, 0, 512);
        let mut bytes = take(&mut pair.controller, &pair.controller_memory, usize::MAX);
        bytes[100] ^= 1;
        pair.give_down(&bytes);
        let completion = pair.completion().unwrap();
        assert!(completion.damaged && completion.received == 512);
    }
}

/// TCP 3.5: a damaged header ends the connection.
#[test]
fn damaged_header() {
    let mut pair = Pair::new(DIGESTS, limits(), false);
    pair.write(512, true);
    let mut bytes = take(&mut pair.host, &pair.host_memory, usize::MAX);
    // NSID, which no other rule looks at.
    bytes[12] ^= 1;
    let expected = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
    assert_eq!(pair.give_up(&bytes), Err(Violation::HeaderDigest(expected)));
    assert_eq!(pair.controller.next(), Next::Closed);
}

/// R2Ts ask for no more than the limit at any time, however much is wanted.
#[test]
fn data_in_flight() {
    let limits = controller::Limits { max_in_flight: 4096, ..limits() };
    let mut pair = Pair::new(plain(), limits, false);
    for len in [3000, 2000, 10_000] {
        pair.write(len, false);
        pair.up();
        pair.controller.receive(pair.command());
    }
    let mut asked = Vec::new();
    loop {
        let bytes = take(&mut pair.controller, &pair.controller_memory, usize::MAX);
        if bytes.is_empty() {
            break;
        }
        let (r2ts, _) = bytes.as_chunks::<24>();
        let lengths: Vec<u32> =
            r2ts.iter().map(|r2t| R2t::ref_from_bytes(r2t).unwrap().r2tl.get()).collect();
        assert!(lengths.iter().sum::<u32>() <= 4096, "{lengths:?}");
        asked.extend(lengths);
        pair.give_down(&bytes);
        pair.up();
    }
    assert_eq!(asked.iter().sum::<u32>(), 15_000);
    let received =
        pair.events.iter().filter(|event| matches!(event, controller::Event::Received(_)));
    assert_eq!(received.count(), 3);
}

/// TCP 3.6.2.9, Base 3.3.3.2: the response is left out only where SQHD is not needed and there is
/// nothing to say but success.
#[test]
fn success_without_a_response() {
    for (flow_control, result, len) in
        [(false, 0, 24 + 512), (true, 0, 24 + 512 + 24), (false, 7, 24 + 512 + 24)]
    {
        let mut pair = Pair::new(plain(), limits(), flow_control);
        pair.submit(&Sqe::new(io::READ, 1), host::Transfer::ToHost(512), vec![0; 512]);
        pair.up();
        let command = pair.command();
        pair.controller_memory.insert(command, vec![0x77; 512]);
        pair.controller.respond(command, Status::SUCCESS, result, 512);
        let bytes = pair.down();
        assert_eq!(bytes.len(), len);
        let (data, rest) = C2hData::ref_from_prefix(&bytes).unwrap();
        assert!(data.is_last());
        assert_eq!(data.is_success(), len == 24 + 512);
        if let Ok(response) = CapsuleResp::ref_from_bytes(&rest[512..]) {
            // Connect and the read: two entries were taken.
            let head = if flow_control { 2 } else { 0 };
            assert_eq!(response.cqe.sqhd.get(), head);
        }
        let completion = pair.completion().unwrap();
        assert_eq!((completion.cqe.result.get(), completion.received), (result, 512));
        assert_eq!(pair.controller.poll(), Some(controller::Event::Sent(command)));
    }
}

/// The response comes while the host still has data to send: the command is over, and its memory
/// the caller's, when the data is sent.
#[test]
fn completed_before_the_data_is_sent() {
    let mut pair = Pair::new(plain(), limits(), false);
    let command = pair.write(9000, false);
    pair.up();
    let on_controller = pair.command();
    pair.controller.receive(on_controller);
    let r2t = take(&mut pair.controller, &pair.controller_memory, usize::MAX);
    pair.give_down(&r2t);
    // Some of the data goes out.
    let some = take(&mut pair.host, &pair.host_memory, 4000);
    pair.give_up(&some).unwrap();
    // A controller that doesn't wait for the rest; this crate's would.
    let cid = pair.host.cid(command).unwrap();
    let cqe = shunt_nvme::wire::Cqe::new(cid, Status::ABORT_REQUESTED, 0, 0);
    let rules = shunt_nvme::wire::Rules::initial(shunt_nvme::wire::Receiver::Host);
    let response = CapsuleResp::new(cqe, &rules);
    pair.give_down(zerocopy::IntoBytes::as_bytes(&response));
    assert_eq!(pair.completion(), None);
    let reads = |pair: &Pair| {
        pair.host
            .pieces()
            .any(|piece| matches!(piece, Piece::Data(range) if range.command == command))
    };
    assert!(reads(&pair));
    pair.up();
    assert!(!reads(&pair));
    let status = pair.completion().unwrap().cqe.status();
    assert_eq!(status, Status::ABORT_REQUESTED);
}

/// The controller responds in the middle of a PDU: the rest of its data is thrown away.
#[test]
fn answered_in_the_middle_of_data() {
    for in_capsule in [true, false] {
        let mut pair = Pair::new(plain(), limits(), false);
        pair.write(4096, in_capsule);
        if !in_capsule {
            pair.up();
            pair.controller.receive(pair.command());
            pair.down();
        }
        let bytes = take(&mut pair.host, &pair.host_memory, usize::MAX);
        let (some, rest) = bytes.split_at(1000);
        pair.give_up(some).unwrap();
        let command = pair.command();
        pair.controller.respond(command, Status::ABORT_REQUESTED, 0, 0);
        assert!(matches!(pair.controller.next(), Next::Discard { .. }));
        let before = pair.controller_memory.get(&command).cloned();
        pair.give_up(rest).unwrap();
        assert_eq!(pair.controller_memory.get(&command).cloned(), before);
        assert!(matches!(pair.controller.next(), Next::Header { len: 8 }));
        pair.down();
        let status = pair.completion().unwrap().cqe.status();
        assert_eq!(status, Status::ABORT_REQUESTED);
        assert_eq!(pair.controller.outstanding(), 0);
    }
}

/// A command of which nothing was sent can be taken back; one on its way can't.
#[test]
fn withdrawn() {
    let mut pair = Pair::new(plain(), limits(), false);
    let first = pair.write(512, true);
    let second = pair.write(512, true);
    let some = take(&mut pair.host, &pair.host_memory, 10);
    pair.give_up(&some).unwrap();
    assert!(!pair.host.withdraw(first));
    assert!(pair.host.withdraw(second));
    assert!(!pair.host.withdraw(second));
    let third = pair.write(512, true);
    pair.up();
    let commands =
        pair.events.iter().filter(|event| matches!(event, controller::Event::Received(_)));
    assert_eq!(commands.count(), 2);
    assert!(!pair.host.withdraw(third));
    let fates = pair.host.lose();
    assert_eq!(fates.len(), 2);
    assert!(fates.iter().all(|(_, fate)| *fate == host::Fate::MaybeExecuted));
}
