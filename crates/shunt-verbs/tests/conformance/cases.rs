//! The cases. Each makes a connection of its own.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shunt_verbs::port::{Channel, Completions, Pair, Patience, Port, Queue, Region};
use shunt_verbs::value::{
    Access, Capacity, Completion, Done, Failure, Operation, PacketNumber, PairState, PeerPair,
    Piece, ReceiveRequest, Remote, SendRequest,
};
use shunt_verbs::{Memory, Refused};

use crate::rig::Rig;

/// Bytes of each end's memory: the first half is sent from, the second one received into and written.
const LEN: usize = 8192;
const HALF: usize = LEN / 2;
const CAPACITY: Capacity = Capacity { send: 8, receive: 8, pieces: 2 };
const PATIENCE: Patience = Patience { timeout: 8, retries: 2, not_ready: 7 };

/// One end of a connection.
struct End<P: Port> {
    channel: P::Channel,
    pair: P::Pair,
    queue: P::Queue,
    memory: Memory,
    from: P::Region,
    into: P::Region,
    port: P,
}

impl<P: Port> End<P> {
    fn new(port: P, vector: u32, name: u64) -> Self {
        let channel = port.channel().unwrap();
        let queue = port.queue(64, &channel, vector, name).unwrap();
        let pair = port.pair(&queue, CAPACITY).unwrap();
        let memory = Memory::new(LEN).unwrap();
        let from = port.register(&memory, 0..HALF, Access::Local).unwrap();
        let into = port.register(&memory, HALF..LEN, Access::RemoteWrite).unwrap();
        Self { channel, pair, queue, memory, from, into, port }
    }

    fn described(&self, first: u32) -> PeerPair {
        let (gid, mtu) = (self.port.gid(), self.port.mtu());
        PeerPair { gid, number: self.pair.number(), first_packet: PacketNumber::new(first), mtu }
    }

    fn send(&self, id: u64, operation: Operation, pieces: &[Piece]) -> Result<(), Refused> {
        let request = SendRequest { id, operation, pieces, signaled: true, solicited: false };
        self.pair.post_send(&request)
    }

    /// Puts bytes into what is sent from; the piece that they are.
    fn with(&self, at: usize, bytes: &[u8]) -> Piece {
        self.memory.write(at, bytes).unwrap();
        self.from.piece(at..at + bytes.len()).unwrap()
    }

    fn receive(&self, id: u64, len: usize) -> Result<(), Refused> {
        let at = usize::try_from(id).unwrap() * 64;
        self.pair
            .post_receive(&ReceiveRequest { id, piece: self.into.piece(at..at + len).unwrap() })
    }

    /// What lies where is received and written.
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(HALF + at, &mut bytes).unwrap();
        bytes
    }

    /// A place where is written, for the peer.
    fn remote(&self, at: usize) -> Remote {
        let Remote { address, key } = self.into.as_remote();
        Remote { address: address + at as u64, key }
    }

    /// The next so many completions.
    fn wait(&self, rig: &impl Rig, count: usize) -> Vec<Completion> {
        let (mut taken, mut into) = (Vec::new(), Completions::default());
        let end = Instant::now() + Duration::from_secs(20);
        while taken.len() < count {
            assert!(Instant::now() < end, "{} of {count}: {taken:?}", taken.len());
            self.queue.poll(&mut into).unwrap();
            taken.extend(into.drain());
            rig.go_on();
        }
        assert_eq!(taken.len(), count, "{taken:?}");
        taken
    }

    fn outcomes(&self, rig: &impl Rig, count: usize) -> Vec<(u64, Result<Done, Failure>)> {
        self.wait(rig, count).into_iter().map(|it| (it.id, it.outcome)).collect()
    }

    /// Nothing completes for a while.
    fn is_silent(&self, rig: &impl Rig) {
        let mut into = Completions::default();
        for _ in 0..50 {
            rig.go_on();
            self.queue.poll(&mut into).unwrap();
            assert_eq!(into.drain().next(), None);
        }
    }
}

fn unconnected<R: Rig>(rig: &R) -> (End<R::Port>, End<R::Port>) {
    let (one, two) = rig.hosts();
    (End::new(one, 0, 11), End::new(two, 1, 22))
}

fn connected_with<R: Rig>(rig: &R, patience: Patience) -> (End<R::Port>, End<R::Port>) {
    let (one, two) = unconnected(rig);
    one.pair.initialize().unwrap();
    two.pair.initialize().unwrap();
    one.pair.receive_from(&two.described(77)).unwrap();
    two.pair.receive_from(&one.described(33)).unwrap();
    one.pair.send_with(PacketNumber::new(33), patience).unwrap();
    two.pair.send_with(PacketNumber::new(77), patience).unwrap();
    (one, two)
}

fn connected<R: Rig>(rig: &R) -> (End<R::Port>, End<R::Port>) {
    connected_with(rig, PATIENCE)
}

pub fn states_come_in_order<R: Rig>(rig: &R) {
    let (one, two) = unconnected(rig);
    let piece = one.with(0, b"x");
    let state = || one.pair.state().unwrap();
    assert_eq!(state(), PairState::Reset);
    assert!(matches!(one.receive(0, 8), Err(Refused::State)));
    assert!(matches!(one.pair.receive_from(&two.described(1)), Err(Refused::State)));
    one.pair.initialize().unwrap();
    assert_eq!(state(), PairState::Initialized);
    assert!(matches!(one.pair.initialize(), Err(Refused::State)));
    one.receive(0, 8).unwrap();
    assert!(matches!(one.send(0, Operation::Send, &[piece]), Err(Refused::State)));
    one.pair.receive_from(&two.described(1)).unwrap();
    assert_eq!(state(), PairState::ReadyToReceive);
    assert!(matches!(one.send(0, Operation::Send, &[piece]), Err(Refused::State)));
    one.pair.send_with(PacketNumber::new(2), PATIENCE).unwrap();
    assert_eq!(state(), PairState::ReadyToSend);
    one.pair.fail().unwrap();
    assert_eq!(state(), PairState::Error);
    assert_eq!(one.outcomes(rig, 1), [(0, Err(Failure::Flushed))]);
}

pub fn a_message_arrives_whole<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    two.receive(3, 64).unwrap();
    one.send(9, Operation::Send, &[one.with(0, b"message")]).unwrap();
    let wc = two.wait(rig, 1)[0];
    assert_eq!((wc.id, wc.pair, wc.outcome), (3, two.pair.number(), Ok(Done::Received(7))));
    assert_eq!(two.bytes(3 * 64, 8), b"message\0");
    assert_eq!(one.outcomes(rig, 1), [(9, Ok(Done::Sent))]);
}

pub fn pieces_are_one_message<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    two.receive(0, 64).unwrap();
    let pieces = [one.with(100, b"one "), one.with(0, b"message")];
    one.send(0, Operation::Send, &pieces).unwrap();
    assert_eq!(two.outcomes(rig, 1), [(0, Ok(Done::Received(11)))]);
    assert_eq!(two.bytes(0, 11), b"one message");
}

pub fn a_write_is_there_when_a_later_message_is_told<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    two.receive(0, 64).unwrap();
    let bytes: Vec<u8> = (0..3000_u32).map(|n| (n % 251) as u8).collect();
    let (whole, said) = (one.with(0, &bytes), one.with(HALF - 8, b"there"));
    one.send(1, Operation::Write(two.remote(1000)), &[whole]).unwrap();
    one.send(2, Operation::Send, &[said]).unwrap();
    assert_eq!(two.outcomes(rig, 1), [(0, Ok(Done::Received(5)))]);
    assert_eq!(two.bytes(1000, 3000), bytes);
    assert_eq!(two.bytes(999, 1), [0]);
    assert_eq!(two.bytes(4000, 1), [0]);
    assert_eq!(one.outcomes(rig, 2), [(1, Ok(Done::Sent)), (2, Ok(Done::Sent))]);
}

pub fn a_write_with_immediate_tells<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    two.receive(5, 1).unwrap();
    let piece = one.with(0, b"0123456789");
    let operation = Operation::WriteWithImmediate(two.remote(2000), 0x0102_0304);
    one.send(1, operation, &[piece]).unwrap();
    let written = Done::Written { length: 10, immediate: 0x0102_0304 };
    assert_eq!(two.outcomes(rig, 1), [(5, Ok(written))]);
    assert_eq!(two.bytes(2000, 10), b"0123456789");
}

pub fn completions_keep_their_order<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    for (id, at) in (0..8).zip(0_usize..) {
        two.receive(id, 64).unwrap();
        one.send(id, Operation::Send, &[one.with(at * 8, &id.to_le_bytes())]).unwrap();
    }
    let ids = |all: Vec<Completion>| all.into_iter().map(|it| it.id).collect::<Vec<_>>();
    assert_eq!(ids(two.wait(rig, 8)), (0..8).collect::<Vec<_>>());
    assert_eq!(ids(one.wait(rig, 8)), (0..8).collect::<Vec<_>>());
    for (id, at) in (0..8_u64).zip(0_usize..) {
        assert_eq!(two.bytes(at * 64, 8), id.to_le_bytes());
    }
}

pub fn what_is_not_signaled_completes_in_silence<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    let pieces = [one.with(0, b"quiet")];
    let operation = Operation::Write(two.remote(0));
    let quiet =
        SendRequest { id: 1, operation, pieces: &pieces, signaled: false, solicited: false };
    one.pair.post_send(&quiet).unwrap();
    one.send(2, Operation::Write(two.remote(100)), &pieces).unwrap();
    assert_eq!(one.outcomes(rig, 1), [(2, Ok(Done::Sent))]);
    one.is_silent(rig);
}

pub fn an_armed_queue_tells_of_the_next_completion_once<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    let piece = one.with(0, b"x");
    let told = || {
        (0..200).find_map(|_| {
            rig.go_on();
            two.channel.next().unwrap()
        })
    };
    (0..4).for_each(|id| two.receive(id, 64).unwrap());
    one.send(0, Operation::Send, &[piece]).unwrap();
    two.wait(rig, 1);
    assert_eq!(told(), None, "it was not armed");
    one.send(1, Operation::Send, &[piece]).unwrap();
    one.wait(rig, 2);
    for _ in 0..200 {
        rig.go_on();
    }
    two.queue.arm().unwrap();
    assert_eq!(told(), None, "the completion was there before");
    one.send(2, Operation::Send, &[piece]).unwrap();
    one.send(3, Operation::Send, &[piece]).unwrap();
    assert_eq!(told(), Some(22));
    two.wait(rig, 3);
    assert_eq!(told(), None, "once");
}

pub fn queues_tell_their_own_channels<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    let piece = one.with(0, b"x");
    one.queue.arm().unwrap();
    two.queue.arm().unwrap();
    two.receive(0, 64).unwrap();
    one.send(0, Operation::Send, &[piece]).unwrap();
    one.wait(rig, 1);
    two.wait(rig, 1);
    for (end, name) in [(&one, 11), (&two, 22)] {
        assert!(is_readable(&end.channel));
        assert_eq!(end.channel.next().unwrap(), Some(name));
        assert_eq!(end.channel.next().unwrap(), None);
        assert!(!is_readable(&end.channel));
    }
}

/// True when a thread that sleeps on a channel would be woken.
fn is_readable(channel: &impl Channel) -> bool {
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).unwrap() == 1
}

pub fn a_full_queue_refuses<R: Rig>(rig: &R) {
    // The peer has no receive request, so nothing of it completes; devices may have more room than was asked for.
    let (one, two) = connected(rig);
    let pieces = [one.with(0, b"x")];
    let full = (0..10_000).find_map(|id| one.send(id, Operation::Send, &pieces).err());
    assert!(matches!(full, Some(Refused::Full)), "{full:?}");
    let full = (0..10_000).find_map(|id| two.receive(id % 8, 8).err());
    assert!(matches!(full, Some(Refused::Full)), "{full:?}");
}

pub fn failing_flushes_in_order<R: Rig>(rig: &R) {
    let (one, _two) = connected(rig);
    let pieces = [one.with(0, b"x")];
    (0..3).for_each(|id| one.receive(id, 8).unwrap());
    // Without a receive request at the peer they stay outstanding.
    (10..13).for_each(|id| one.send(id, Operation::Send, &pieces).unwrap());
    one.pair.fail().unwrap();
    let all = one.outcomes(rig, 6);
    assert!(all.iter().all(|(_, outcome)| *outcome == Err(Failure::Flushed)), "{all:?}");
    let ids = |from: u64| all.iter().map(|it| it.0).filter(move |id| id / 10 == from);
    assert!(ids(0).eq(0..3) && ids(1).eq(10..13), "{all:?}");
}

pub fn what_is_posted_after_a_failure_is_flushed<R: Rig>(rig: &R) {
    let (one, _two) = connected(rig);
    one.pair.fail().unwrap();
    one.receive(1, 8).unwrap();
    assert_eq!(one.outcomes(rig, 1), [(1, Err(Failure::Flushed))]);
    one.send(2, Operation::Send, &[one.with(0, b"x")]).unwrap();
    assert_eq!(one.outcomes(rig, 1), [(2, Err(Failure::Flushed))]);
}

pub fn a_peer_that_failed_does_not_answer<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    two.pair.fail().unwrap();
    let pieces = [one.with(0, b"x")];
    one.send(1, Operation::Write(two.remote(0)), &pieces).unwrap();
    one.send(2, Operation::Write(two.remote(0)), &pieces).unwrap();
    let ends = [(1, Err(Failure::Retries)), (2, Err(Failure::Flushed))];
    assert_eq!(one.outcomes(rig, 2), ends);
    assert_eq!(one.pair.state().unwrap(), PairState::Error);
    assert_eq!(two.bytes(0, 1), [0]);
}

pub fn a_message_without_a_receive_request_waits<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    one.send(1, Operation::Send, &[one.with(0, b"early")]).unwrap();
    one.is_silent(rig);
    two.receive(0, 64).unwrap();
    assert_eq!(two.outcomes(rig, 1), [(0, Ok(Done::Received(5)))]);
    assert_eq!(one.outcomes(rig, 1), [(1, Ok(Done::Sent))]);
}

pub fn a_message_without_a_receive_request_fails_in_the_end<R: Rig>(rig: &R) {
    let (one, _two) = connected_with(rig, Patience { not_ready: 1, ..PATIENCE });
    one.send(1, Operation::Send, &[one.with(0, b"early")]).unwrap();
    assert_eq!(one.outcomes(rig, 1), [(1, Err(Failure::ReceiverNotReady))]);
}

pub fn a_message_that_is_too_long_fails_both<R: Rig>(rig: &R) {
    let (one, two) = connected(rig);
    two.receive(4, 3).unwrap();
    one.send(1, Operation::Send, &[one.with(0, b"four")]).unwrap();
    assert_eq!(two.outcomes(rig, 1), [(4, Err(Failure::Length))]);
    assert_eq!(one.outcomes(rig, 1), [(1, Err(Failure::RemoteRequest))]);
    assert_eq!(two.bytes(4 * 64 + 3, 1), [0]);
}

/// A write that the peer's device refuses; the memory there stays as it was.
fn is_refused<R: Rig>(rig: &R, ends: &(End<R::Port>, End<R::Port>), to: Remote) {
    let (one, two) = ends;
    one.send(1, Operation::Write(to), &[one.with(0, b"wrong")]).unwrap();
    assert_eq!(one.outcomes(rig, 1), [(1, Err(Failure::RemoteAccess))]);
    let mut all = vec![0; LEN];
    two.memory.read(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0));
}

pub fn writes_stay_inside_of_what_is_registered<R: Rig>(rig: &R) {
    for at in [HALF - 4, HALF, usize::MAX] {
        let ends = connected(rig);
        let Remote { address, key } = ends.1.into.as_remote();
        let address = address.wrapping_add(at as u64);
        is_refused(rig, &ends, Remote { address, key });
    }
}

pub fn what_is_registered_for_sending_is_not_written<R: Rig>(rig: &R) {
    let ends = connected(rig);
    let to = ends.1.from.as_remote();
    is_refused(rig, &ends, to);
}

pub fn a_key_is_void_with_its_registration<R: Rig>(rig: &R) {
    let ends = connected(rig);
    let more = ends.1.port.register(&ends.1.memory, HALF..LEN, Access::RemoteWrite).unwrap();
    let to = more.as_remote();
    drop(more);
    is_refused(rig, &ends, to);
}

pub fn a_vector_that_there_is_not_is_refused<R: Rig>(rig: &R) {
    let (one, _) = rig.hosts();
    let channel = one.channel().unwrap();
    let vectors = one.limits().vectors;
    assert!(one.queue(16, &channel, vectors - 1, 0).is_ok());
    assert!(matches!(one.queue(16, &channel, vectors, 0), Err(Refused::Invalid(_))));
}
