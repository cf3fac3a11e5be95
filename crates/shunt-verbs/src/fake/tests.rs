//! What the fake alone can do: faults, and replays.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{FakePair, FakePort, FakeQueue, FakeRegion, Faults, Network};
use crate::memory::Memory;
use crate::port::{Completions, Pair, Patience, Port, Queue, Region};
use crate::value::{
    Access, Capacity, Completion, Done, Event, Failure, Loss, Operation, PacketNumber, PeerPair,
    ReceiveRequest, SendRequest,
};

const CAPACITY: Capacity = Capacity { send: 16, receive: 16, pieces: 1 };

struct End {
    port: FakePort,
    pair: FakePair,
    queue: FakeQueue,
    memory: Memory,
    region: FakeRegion,
}

impl End {
    fn new(port: FakePort) -> Self {
        let channel = port.channel().unwrap();
        let queue = port.queue(64, &channel, 0, 0).unwrap();
        let pair = port.pair(&queue, CAPACITY).unwrap();
        let memory = Memory::new(4096).unwrap();
        let region = port.register(&memory, 0..4096, Access::RemoteWrite).unwrap();
        pair.initialize().unwrap();
        for id in 0..8 {
            let piece = region.piece(0..8).unwrap();
            pair.post_receive(&ReceiveRequest { id, piece }).unwrap();
        }
        Self { port, pair, queue, memory, region }
    }

    fn meet(&self, other: &Self) {
        let (gid, mtu) = (other.port.gid(), other.port.mtu());
        let (number, first_packet) = (other.pair.number(), PacketNumber::new(0));
        self.pair.receive_from(&PeerPair { gid, number, first_packet, mtu }).unwrap();
        let patience = Patience { timeout: 0, retries: 2, not_ready: 2 };
        self.pair.send_with(PacketNumber::new(0), patience).unwrap();
    }

    fn send(&self, id: u64, operation: Operation, len: usize) {
        let pieces = [self.region.piece(2048..2048 + len).unwrap()];
        let (signaled, solicited) = (true, false);
        let request = SendRequest { id, operation, pieces: &pieces, signaled, solicited };
        self.pair.post_send(&request).unwrap();
    }

    fn completions(&self) -> Vec<Completion> {
        let mut into = Completions::default();
        self.queue.poll(&mut into).unwrap();
        into.drain().collect()
    }
}

fn ends(network: &Network) -> (End, End) {
    let (one, two) = (End::new(network.host()), End::new(network.host()));
    one.meet(&two);
    two.meet(&one);
    (one, two)
}

/// What becomes of ten messages and a write each, with these faults.
fn history(seed: u64, faults: Faults) -> Vec<Vec<Completion>> {
    let network = Network::new(seed, faults);
    let (one, two) = ends(&network);
    for id in 0..5 {
        one.send(id, Operation::Write(two.region.as_remote()), 64);
        one.send(100 + id, Operation::Send, 8);
    }
    network.settle(10_000);
    // Numbers differ between networks in no way.
    vec![one.completions(), two.completions()]
}

#[test]
fn a_seed_replays() {
    let faults = Faults { not_ready: 500, pair: 100, withheld: 100, cut: 100 };
    let histories: Vec<_> = (0..200).map(|seed| history(seed, faults)).collect();
    assert!((0..).zip(&histories).all(|(seed, first)| history(seed, faults) == *first));
    let differ = histories.iter().filter(|history| **history != histories[0]).count();
    assert!(differ > 50, "only {differ} differ");
}

#[test]
fn bytes_of_a_write_get_into_memory_in_any_order() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let network = Network::new(seed, Faults::NONE);
        let (one, two) = ends(&network);
        one.memory.write(2048, &[7; 96]).unwrap();
        one.send(0, Operation::Write(two.region.as_remote()), 96);
        while network.step() {
            let mut bytes = [0; 96];
            two.memory.read(0, &mut bytes).unwrap();
            let placed: Vec<bool> = bytes.iter().step_by(48).map(|byte| *byte == 7).collect();
            orders.insert(placed);
        }
    }
    // The first half first, and the second half first.
    assert!(orders.contains(&vec![true, false]) && orders.contains(&vec![false, true]));
}

#[test]
fn a_sender_s_completion_does_not_say_that_bytes_are_there() {
    let missing = (0..100).any(|seed| {
        let network = Network::new(seed, Faults::NONE);
        let (one, two) = ends(&network);
        one.memory.write(2048, &[7; 96]).unwrap();
        one.send(0, Operation::Write(two.region.as_remote()), 96);
        while one.completions().is_empty() {
            assert!(network.step());
        }
        let mut bytes = [0; 96];
        two.memory.read(0, &mut bytes).unwrap();
        bytes != [7; 96]
    });
    assert!(missing);
}

#[test]
fn memory_is_read_after_the_request_was_posted() {
    let network = Network::new(1, Faults::NONE);
    let (one, two) = ends(&network);
    one.send(0, Operation::Send, 8);
    one.memory.write(2048, b"later on").unwrap();
    network.settle(100);
    let mut bytes = [0; 8];
    two.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"later on");
}

#[test]
fn a_cut_wire_uses_up_the_tries() {
    let network = Network::new(1, Faults::NONE);
    let (one, two) = ends(&network);
    network.set_cut(true);
    one.send(0, Operation::Send, 8);
    network.settle(100);
    assert_eq!(one.completions()[0].outcome, Err(Failure::Retries));
    assert_eq!(two.completions(), []);
}

#[test]
fn a_receiver_that_is_never_ready_fails_the_sender() {
    let network = Network::new(1, Faults { not_ready: 10_000, ..Faults::NONE });
    let (one, _two) = ends(&network);
    one.send(0, Operation::Send, 8);
    network.settle(100);
    assert_eq!(one.completions()[0].outcome, Err(Failure::ReceiverNotReady));
}

#[test]
fn withheld_completions_come_with_the_failure_and_first() {
    let network = Network::new(3, Faults::NONE);
    let (one, two) = ends(&network);
    network.withhold(two.pair.number());
    one.send(0, Operation::Send, 8);
    network.settle(100);
    assert_eq!(two.completions(), []);
    network.break_pair(two.pair.number());
    let all = two.completions();
    assert_eq!(all.iter().map(|it| it.id).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(all[1..].iter().all(|it| it.outcome == Err(Failure::Flushed)));
    assert_eq!(two.port.event(), Some(Event::Pair(two.pair.number())));
}

#[test]
fn a_peer_may_have_had_what_was_flushed() {
    let both = (0..200).any(|seed| {
        let network = Network::new(seed, Faults::NONE);
        let (one, two) = ends(&network);
        one.send(0, Operation::Send, 8);
        let _ = network.step();
        network.break_pair(one.pair.number());
        network.settle(100);
        let has = two.completions().first().map(|it| it.outcome) == Some(Ok(Done::Received(8)));
        has && one.completions().iter().any(|it| it.id == 0 && it.outcome == Err(Failure::Flushed))
    });
    assert!(both);
}

#[test]
fn memory_that_may_be_registered_is_bounded() {
    let network = Network::new(0, Faults::NONE);
    let port = network.host_with_limit(6000);
    let memory = Memory::new(4096).unwrap();
    let first = port.register(&memory, 0..4096, Access::Local).unwrap();
    assert!(port.register(&memory, 0..4096, Access::Local).is_err());
    drop(first);
    assert!(port.register(&memory, 0..4096, Access::Local).is_ok());
}

#[test]
fn a_queue_without_room_is_broken() {
    let network = Network::new(0, Faults::NONE);
    let port = network.host();
    let channel = port.channel().unwrap();
    let queue = port.queue(1, &channel, 0, 0).unwrap();
    let pair = port.pair(&queue, CAPACITY).unwrap();
    let memory = Memory::new(4096).unwrap();
    let region = port.register(&memory, 0..4096, Access::LocalWrite).unwrap();
    pair.initialize().unwrap();
    for id in 0..2 {
        let piece = region.piece(0..8).unwrap();
        pair.post_receive(&ReceiveRequest { id, piece }).unwrap();
    }
    pair.fail().unwrap();
    assert!(queue.poll(&mut Completions::default()).is_err());
    assert_eq!(port.event(), Some(Event::Queue));
}

fn is_readable(port: &FakePort) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(port.events(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn a_device_that_is_lost_tells_of_it_or_not() {
    for (loss, event) in [
        (Loss::Removed, None),
        (Loss::Failed, Some(Event::Device)),
        (Loss::PortDown, Some(Event::PortDown(1))),
        (Loss::Address, Some(Event::Addresses(1))),
        (Loss::Overrun, Some(Event::Queue)),
    ] {
        let network = Network::new(1, Faults::NONE);
        let (one, two) = ends(&network);
        assert_eq!((two.port.loss(), is_readable(&two.port)), (None, false));
        two.port.lose(loss);
        assert_eq!((two.port.loss(), is_readable(&two.port)), (Some(loss), event.is_some()));
        assert_eq!(two.port.event(), event);
        assert!(!is_readable(&two.port) && two.port.event().is_none());
        assert_eq!((one.port.loss(), one.port.event()), (None, None));
        // Over a port that is down nothing goes.
        one.send(0, Operation::Send, 8);
        network.settle(1000);
        let arrives = !matches!(loss, Loss::Failed | Loss::PortDown);
        assert_eq!(one.completions()[0].outcome.is_ok(), arrives, "{loss}");
        let (port, objects) = (two.port.clone(), two.port.objects());
        drop(two);
        assert!(objects > 0 && port.objects() == 0);
    }
}
