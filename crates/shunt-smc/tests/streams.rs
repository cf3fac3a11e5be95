//! Two ends with memory and a queue pair between them: every byte of a stream is a function of its
//! place, so one that is lost, repeated or moved is found. What a peer says that cannot be is
//! refused.

mod common;

use std::collections::VecDeque;

use common::end;
use proptest::prelude::*;
use shunt_smc::Connection;
use shunt_smc::connection::{News, Violation};
use shunt_smc::wire::RmbSize;
use shunt_smc::wire::cdc::{Cdc, Cursor, Producer, State};

const SIZES: [RmbSize; 2] = [RmbSize::SMALLEST, RmbSize::of_exponent(1).unwrap()];

fn byte(stream: usize, place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).to_le_bytes()[stream]
}

/// What one end has posted: the device carries it out in this order.
enum Posted {
    Write(u64, Vec<u8>),
    Message(Vec<u8>),
}

struct End {
    stream: usize,
    connection: Connection,
    base: u64,
    ring: Vec<u8>,
    posted: VecDeque<Posted>,
    /// Bytes that the program has given so far, and been given.
    given: u64,
    read: u64,
    /// Where its urgent bytes were, and the peer's.
    urgent: Vec<u64>,
    heard_urgent: Vec<u64>,
}

impl End {
    fn pair() -> [Self; 2] {
        let ends = [0_u8, 1].map(|n| end(2 + n, 1 + u32::from(n), SIZES[usize::from(n)]));
        [0, 1].map(|n| {
            let (own, peer) = (&ends[n], &ends[1 - n]);
            Self {
                stream: n,
                connection: Connection::new(own.size, peer),
                base: own.ring().address,
                ring: vec![0; own.size.bytes() as usize],
                posted: VecDeque::new(),
                given: 0,
                read: 0,
                urgent: Vec::new(),
                heard_urgent: Vec::new(),
            }
        })
    }

    /// Places what was given and posts it.
    fn send(&mut self, sent: &mut u64) {
        while let Some(placement) = self.connection.produce(self.given - *sent) {
            assert_eq!(placement.place, *sent);
            for (to, length) in placement.parts {
                let bytes =
                    (*sent..*sent + u64::from(length)).map(|place| byte(self.stream, place));
                if length > 0 {
                    self.posted.push_back(Posted::Write(to.address, bytes.collect()));
                }
                *sent += u64::from(length);
            }
            self.tell();
        }
        self.tell();
    }

    fn tell(&mut self) {
        if let Some(message) = self.connection.message() {
            self.posted.push_back(Posted::Message(message.to_vec()));
        }
    }

    fn read(&mut self, most: u32) {
        let mut left = most.min(self.connection.readable());
        let parts = self.connection.unread();
        assert_eq!(parts[0].len() + parts[1].len(), self.connection.readable() as usize);
        if let Some(until) = self.connection.urgent() {
            // The byte in front of that place.
            let end = self.read + u64::from(until);
            if self.heard_urgent.last() != Some(&end) {
                self.heard_urgent.push(end);
            }
        }
        let taken = left;
        for part in parts {
            for at in part.take(left as usize) {
                assert_eq!(
                    self.ring[at as usize],
                    byte(1 - self.stream, self.read),
                    "{}",
                    self.read
                );
                self.read += 1;
                left -= 1;
            }
        }
        self.connection.consume(taken);
        self.tell();
    }

    /// Something that the peer has posted arrives.
    fn arrives(&mut self, posted: Posted) {
        match posted {
            Posted::Write(address, bytes) => {
                let at = usize::try_from(address - self.base).unwrap();
                self.ring[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Posted::Message(bytes) => {
                let message = Cdc::parse(&bytes).unwrap();
                assert_eq!(message.token, 1 + u32::from(self.stream == 1));
                self.connection.receive(&message).unwrap();
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Give(usize, u32),
    Urgent(usize, u32),
    Read(usize, u32),
    Arrive(usize, usize),
    Finish(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let end = 0_usize..2;
    prop_oneof![
        (end.clone(), 0_u32..60_000).prop_map(|(end, bytes)| Step::Give(end, bytes)),
        (end.clone(), 1_u32..30_000).prop_map(|(end, bytes)| Step::Urgent(end, bytes)),
        (end.clone(), 0_u32..40_000).prop_map(|(end, bytes)| Step::Read(end, bytes)),
        (end.clone(), 0_usize..6).prop_map(|(end, count)| Step::Arrive(end, count)),
        // Rarely: what comes behind moves nothing more.
        end.prop_map(Step::Finish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_byte_arrives(steps in proptest::collection::vec(step(), 1..200)) {
        let mut ends = End::pair();
        let mut sent = [0; 2];
        let mut finishes = [false; 2];
        let wind_up = (0..4000).flat_map(|_| {
            [Step::Arrive(0, 9), Step::Arrive(1, 9), Step::Read(0, 7000), Step::Read(1, 7000)]
        });
        let count = steps.len();
        for (at, step) in steps.into_iter().chain(wind_up).enumerate() {
            match step {
                Step::Give(end, bytes) if !finishes[end] => ends[end].given += u64::from(bytes),
                Step::Urgent(end, bytes) if !finishes[end] => {
                    let waiting = ends[end].given - sent[end] + u64::from(bytes);
                    if ends[end].connection.mark_urgent(waiting) {
                        ends[end].given += u64::from(bytes);
                        let place = ends[end].given;
                        ends[end].urgent.push(place);
                    }
                }
                Step::Read(end, most) => ends[end].read(most),
                Step::Arrive(end, count) => {
                    let posted: Vec<_> = {
                        let queue = &mut ends[1 - end].posted;
                        let count = count.min(queue.len());
                        queue.drain(..count).collect()
                    };
                    posted.into_iter().for_each(|posted| ends[end].arrives(posted));
                }
                Step::Finish(end) if at > count / 2 => finishes[end] = true,
                Step::Give(..) | Step::Urgent(..) | Step::Finish(_) => {}
            }
            for end in 0..2 {
                ends[end].send(&mut sent[end]);
                if finishes[end] && sent[end] == ends[end].given {
                    ends[end].connection.finish();
                    ends[end].tell();
                }
            }
        }
        let [one, two] = &ends;
        prop_assert_eq!((one.given, two.given), (two.read, one.read));
        prop_assert_eq!((&one.urgent, &two.urgent), (&two.heard_urgent, &one.heard_urgent));
        for end in 0..2 {
            prop_assert_eq!(ends[1 - end].connection.has_peer_finished(), finishes[end]);
        }
        for end in &mut ends {
            end.connection.close();
            end.tell();
        }
        for end in 0..2 {
            let posted: Vec<_> = ends[1 - end].posted.drain(..).collect();
            posted.into_iter().for_each(|posted| ends[end].arrives(posted));
        }
        for end in &ends {
            prop_assert!(end.connection.is_over() && end.connection.peer_state().is_closed);
        }
    }

    /// Whatever a peer says, what is believed of it lies in the rings.
    #[test]
    fn a_hostile_peer_moves_nothing_outside(
        said in proptest::collection::vec((any::<u16>(), 0_u32..70_000, any::<u16>(), 0_u32..70_000, any::<u8>()), 1..40),
    ) {
        let (own, peer) = (end(2, 1, SIZES[0]), end(3, 2, SIZES[1]));
        let mut connection = Connection::new(own.size, &peer);
        let mut message = silence();
        for (wraps, count, more_wraps, more_count, flags) in said {
            connection.produce(u64::from(count));
            message.produced = Cursor { wraps: wraps % 3, count };
            message.consumed = Cursor { wraps: more_wraps % 3, count: more_count };
            message.producer.is_urgent = flags & 1 != 0;
            message.state.is_finished = flags & 2 != 0;
            let before = (connection.readable(), connection.room());
            match connection.receive(&message) {
                Ok(news) => {
                    prop_assert_eq!(connection.readable(), before.0 + news.bytes);
                    prop_assert_eq!(connection.room(), before.1 + news.room);
                }
                Err(_) => prop_assert_eq!((connection.readable(), connection.room()), before),
            }
            prop_assert!(connection.readable() <= own.size.bytes());
            prop_assert!(connection.room() <= peer.size.bytes());
            prop_assert!(connection.unread().iter().all(|part| part.end <= own.size.bytes()));
            prop_assert!(connection.urgent().is_none_or(|until| until <= connection.readable()));
            connection.consume(connection.readable() / 2);
            if let Some(placement) = connection.produce(u64::from(more_count)) {
                let ring = peer.ring().address..peer.ring().address + u64::from(peer.size.bytes());
                for (to, length) in placement.parts {
                    let end = to.address + u64::from(length);
                    prop_assert!(ring.contains(&to.address) && end <= ring.end);
                }
            }
            connection.message();
        }
    }
}

fn silence() -> Cdc {
    Cdc {
        number: 1,
        token: 1,
        produced: Cursor::default(),
        consumed: Cursor::default(),
        producer: Producer::default(),
        state: State::default(),
    }
}

fn connection() -> Connection {
    Connection::new(SIZES[0], &end(3, 2, SIZES[0]))
}

/// The message that an end has to send now.
fn told(connection: &mut Connection) -> Option<Cdc> {
    connection.message().map(|bytes| Cdc::parse(&bytes).unwrap())
}

#[test]
fn a_sender_whose_window_closes_says_so() {
    let mut connection = connection();
    assert_eq!(connection.produce(0), None);
    assert_eq!(connection.produce(16_383).unwrap().length(), 16_383);
    assert!(!told(&mut connection).unwrap().producer.is_blocked);
    let placement = connection.produce(10).unwrap();
    assert_eq!((placement.place, placement.length()), (16_383, 1));
    let message = told(&mut connection).unwrap();
    assert!(message.producer.is_blocked);
    assert_eq!((message.number, message.produced), (2, Cursor { wraps: 1, count: 0 }));
    assert_eq!((connection.produce(9), told(&mut connection)), (None, None));
    // The next bytes go to the beginning, and around.
    let consumed = Cursor { wraps: 0, count: 16_000 };
    let news = connection.receive(&Cdc { consumed, ..silence() }).unwrap();
    assert_eq!(news, News { room: 16_000, ..News::default() });
    let first = end(3, 2, SIZES[0]).ring();
    assert_eq!(connection.produce(9).unwrap().parts[0], (first, 9));
    assert!(!told(&mut connection).unwrap().producer.is_blocked);
}

#[test]
fn a_sender_that_fills_the_ring_exactly_is_blocked() {
    let mut connection = connection();
    assert_eq!(connection.produce(16_384).unwrap().length(), 16_384);
    assert!(told(&mut connection).unwrap().producer.is_blocked);
}

#[test]
fn an_urgent_byte_that_was_read_is_told_at_once() {
    let mut connection = connection();
    let mut message = Cdc { produced: Cursor { wraps: 0, count: 20 }, ..silence() };
    message.producer.is_urgent = true;
    connection.receive(&message).unwrap();
    assert_eq!(connection.urgent(), Some(20));
    connection.consume(19);
    assert_eq!((connection.urgent(), told(&mut connection)), (Some(1), None));
    connection.consume(1);
    assert_eq!(connection.urgent(), None);
    assert_eq!(told(&mut connection).unwrap().consumed.count, 20);
}

#[test]
fn no_more_is_read_than_there_is() {
    let mut connection = connection();
    let message = Cdc { produced: Cursor { wraps: 0, count: 20 }, ..silence() };
    connection.receive(&message).unwrap();
    connection.consume(u32::MAX);
    assert_eq!((connection.readable(), connection.unread()), (0, [20..20, 0..0]));
}

#[test]
fn there_is_one_urgent_byte_at_a_time() {
    let mut connection = connection();
    assert!(!connection.mark_urgent(0));
    connection.produce(5).unwrap();
    assert!(connection.mark_urgent(10) && !connection.mark_urgent(1));
    let pending = told(&mut connection).unwrap().producer;
    assert!(pending.is_urgent_pending && !pending.is_urgent);
    // The cursor stops behind the byte, however much waits.
    assert_eq!(connection.produce(100).unwrap().length(), 10);
    assert_eq!(connection.produce(90), None);
    let present = told(&mut connection).unwrap();
    assert!(present.producer.is_urgent && present.produced.count == 15);
    assert!(!connection.mark_urgent(1));
    let consumed = Cursor { wraps: 0, count: 14 };
    connection.receive(&Cdc { consumed, ..silence() }).unwrap();
    assert!(!connection.mark_urgent(1));
    let consumed = Cursor { wraps: 0, count: 15 };
    connection.receive(&Cdc { consumed, ..silence() }).unwrap();
    assert!(connection.mark_urgent(1));
}

#[test]
fn a_receiver_tells_when_it_matters() {
    let mut connection = connection();
    let mut message = Cdc { produced: Cursor { wraps: 0, count: 9000 }, ..silence() };
    let mut hear = |connection: &mut Connection, change: &dyn Fn(&mut Cdc)| {
        message.number += 1;
        change(&mut message);
        connection.receive(&message).unwrap();
    };
    hear(&mut connection, &|_| ());
    connection.consume(1638);
    assert_eq!(told(&mut connection), None);
    // More than a tenth, and half of the ring is not free.
    connection.consume(1);
    assert_eq!(told(&mut connection).unwrap().consumed.count, 1639);
    hear(&mut connection, &|message| message.produced.count = 9600);
    connection.consume(1700);
    assert_eq!(told(&mut connection), None);
    hear(&mut connection, &|message| message.producer.is_blocked = true);
    assert_eq!(told(&mut connection).unwrap().consumed.count, 3339);
    // At once where it is asked for.
    hear(&mut connection, &|message| message.producer.wants_update = true);
    assert_eq!(told(&mut connection).unwrap().consumed.count, 3339);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut connection = connection();
    let refused = |connection: &mut Connection, change: &dyn Fn(&mut Cdc)| {
        let mut message = silence();
        change(&mut message);
        connection.receive(&message).unwrap_err()
    };
    let count = |count| Cursor { wraps: 0, count };
    assert_eq!(refused(&mut connection, &|it| it.produced.count = 16_384), Violation::Produced);
    assert_eq!(refused(&mut connection, &|it| it.produced.wraps = 2), Violation::Produced);
    assert_eq!(refused(&mut connection, &|it| it.consumed.count = 1), Violation::Consumed);
    assert_eq!(refused(&mut connection, &|it| it.producer.is_failover = true), Violation::Failover);
    connection.receive(&Cdc { produced: count(9), ..silence() }).unwrap();
    assert_eq!(refused(&mut connection, &|it| it.produced = count(8)), Violation::Produced);
    // Beyond what was read.
    let beyond = Cursor { wraps: 1, count: 1 };
    connection.consume(0);
    assert_eq!(refused(&mut connection, &|it| it.produced = beyond), Violation::Produced);
    connection.consume(1);
    let full = Cdc { produced: beyond, ..silence() };
    assert_eq!(connection.receive(&full).unwrap().bytes, 16_376);
    let state = State { is_finished: true, ..State::default() };
    connection.receive(&Cdc { state, ..full }).unwrap();
    connection.consume(100);
    let more = Cursor { wraps: 1, count: 2 };
    assert_eq!(refused(&mut connection, &|it| it.produced = more), Violation::Finished);
    // What was said before the last message is not looked at.
    connection.receive(&Cdc { number: 9, state, ..full }).unwrap();
    assert_eq!(connection.receive(&Cdc { number: 8, ..silence() }), Ok(News::default()));
}

#[test]
fn ends_come_in_their_order() {
    let mut one = connection();
    one.produce(5).unwrap();
    one.finish();
    let said = told(&mut one).unwrap();
    assert_eq!((said.produced.count, said.state.is_finished), (5, true));
    assert_eq!(one.produce(1), None);
    one.finish();
    assert_eq!(told(&mut one), None);
    one.close();
    let said = told(&mut one).unwrap();
    assert!(said.state.is_finished && said.state.is_closed && !said.state.is_aborted);
    assert!(!one.is_over());
    let state = State { is_closed: true, ..State::default() };
    let news = one.receive(&Cdc { state, ..silence() }).unwrap();
    assert!(news.is_end && one.is_over());
    assert!(!one.receive(&Cdc { state, ..silence() }).unwrap().is_end);
    // With unread bytes.
    let mut two = connection();
    two.receive(&Cdc { produced: Cursor { wraps: 0, count: 1 }, ..silence() }).unwrap();
    two.close();
    assert!(told(&mut two).unwrap().state.is_aborted);
    // After the peer's abort.
    let mut three = connection();
    let state = State { is_aborted: true, ..State::default() };
    three.receive(&Cdc { state, ..silence() }).unwrap();
    assert_eq!(three.produce(1), None);
    three.close();
    assert!(!three.is_over());
    assert!(told(&mut three).unwrap().state.is_aborted && three.is_over());
}
