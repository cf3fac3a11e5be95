use std::panic::catch_unwind;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::{History, Op};

fn op() -> impl Strategy<Value = Op> {
    // A ring, and what does not fit, are of their own interest.
    let round = prop_oneof![Just(4096_usize), Just(4097), Just(3000)];
    let size = move || prop_oneof![4 => 1_usize..20, 2 => 1_usize..500, 1 => 1_usize..9000, 1 => round.clone()];
    prop_oneof![
        1 => Just(Op::Meet),
        8 => size().prop_map(Op::Send),
        8 => size().prop_map(Op::Receive),
        3 => (1_usize..40).prop_map(Op::ReceiveAll),
        2 => size().prop_map(Op::Look),
        3 => size().prop_map(Op::PollSend),
        3 => size().prop_map(Op::PollReceive),
        3 => size().prop_map(Op::EdgeSend),
        3 => size().prop_map(Op::EdgeReceive),
        2 => Just(Op::Check),
        2 => Just(Op::Sleep),
        2 => Just(Op::Shut),
        2 => Just(Op::Close),
        2 => prop_oneof![0_u32..40, 0_u32..1000].prop_map(Op::Die),
    ]
}

/// The same, with whole calls in handlers, and with panics.
fn faulty_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => op(),
        1 => (0_u32..150).prop_map(Op::Signal),
        1 => (0_u32..150).prop_map(Op::Panic),
    ]
}

/// A peer that writes anything, among what it does.
fn lies() -> impl Strategy<Value = Vec<Op>> {
    let does = prop_oneof![3 => faulty_op(), 4 => (0_u32..4000).prop_map(Op::Lie)];
    prop::collection::vec(does, 1..12)
        .prop_map(|ops| core::iter::once(Op::Meet).chain(ops).collect())
}

/// Mostly one that goes into the ring from its first byte on.
fn program(op: impl Strategy<Value = Op>) -> impl Strategy<Value = Vec<Op>> {
    let meets = prop_oneof![3 => Just(true), 1 => Just(false)];
    (meets, prop::collection::vec(op, 0..10))
        .prop_map(|(meets, ops)| meets.then_some(Op::Meet).into_iter().chain(ops).collect())
}

/// What one does that makes connections, by these operations: several at a time, and one after the other.
fn connecting(makes: impl Strategy<Value = Op> + 'static) -> impl Strategy<Value = Vec<Op>> {
    let makes = makes.boxed();
    let does = prop_oneof![
        10 => op(),
        4 => makes.clone(),
        3 => Just(Op::Close),
        2 => (0_usize..3).prop_map(Op::On),
        1 => (0_u32..150).prop_map(Op::Signal),
        1 => Just(Op::Tire),
        1 => prop_oneof![Just(Op::AgentDies), Just(Op::AgentReturns)],
    ];
    (makes, prop::collection::vec(does, 0..14))
        .prop_map(|(first, ops)| core::iter::once(first).chain(ops).collect())
}

fn connecting_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let connects = prop_oneof![5 => Just(Op::Connect), 1 => Just(Op::ConnectPlain)];
    let accepts =
        prop_oneof![4 => Just(Op::Accept), 2 => Just(Op::AcceptNow), 1 => Just(Op::AcceptPlain)];
    (connecting(connects), connecting(accepts))
}

fn history(programs: impl Strategy<Value = (Vec<Op>, Vec<Op>)>) -> impl Strategy<Value = History> {
    // Windows of one or two points are found by programs that stop soon, while the other one goes a long way.
    let narrow = prop_oneof![2 => 0_u8..4, 2 => 0x80_u8..0x84, 1 => Just(0x7f), 1 => Just(0xff)];
    let choices = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..200),
        1 => prop::collection::vec(narrow, 0..200),
    ];
    (programs, choices).prop_map(|((client, server), choices)| History { client, server, choices })
}

fn faulty_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let program = || program(faulty_op());
    prop_oneof![
        14 => (program(), program()),
        1 => (lies(), program()),
        1 => (program(), lies()),
    ]
}

proptest! {
    #![proptest_config(Config { cases: histories(), max_shrink_iters: 20_000, ..Config::default() })]

    #[test]
    fn whatever_two_programs_do_bytes_come_in_order_and_nobody_sleeps_too_long(
        history in history((program(op()), program(op())))
    ) {
        let _ = history.run();
    }
}

proptest! {
    #![proptest_config(seeded(2))]

    #[test]
    fn however_connections_come_and_go_each_has_its_own_bytes_and_both_agree_or_neither(
        history in history(connecting_programs())
    ) {
        let _ = history.run();
    }
}

/// One in so many of all, the same each time: a search among them finds now and then what nobody has found yet, which is for
/// `make soak` to tell. `SIM_SEED` has others.
fn seeded(of: u32) -> Config {
    let seed = std::env::var("SIM_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let rng_seed = RngSeed::Fixed(seed);
    Config { cases: histories() / of, max_shrink_iters: 20_000, rng_seed, ..Config::default() }
}

proptest! {
    #![proptest_config(seeded(10))]

    #[test]
    fn whatever_goes_wrong_in_one_program_the_other_one_goes_on(history in history(faulty_programs())) {
        let _ = history.run();
    }
}

/// The same, with forks, also in handlers.
fn forking_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => faulty_op(),
        1 => (1_usize..6).prop_map(Op::Fork),
    ]
}

proptest! {
    #![proptest_config(seeded(10))]

    #[test]
    fn whatever_programs_do_that_hold_one_end_together_the_other_end_sees_one(
        history in history((program(forking_op()), program(forking_op())))
    ) {
        let _ = history.run();
    }
}

/// How many; `SIM_HISTORIES` says otherwise.
fn histories() -> u32 {
    std::env::var("SIM_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

#[test]
fn a_history_is_a_line() {
    let bytes: Vec<u8> = (0..200_u8).map(|n| n.wrapping_mul(89)).collect();
    let history = History::of(&bytes);
    assert_eq!(history.to_string().parse(), Ok(history));
    assert!("send:x / / ".parse::<History>().is_err());
    assert!("send:1 / ".parse::<History>().is_err());
}

/// Histories that have shown a fault once.
#[test]
fn what_was_mended_stays_so() {
    for line in [
        // A reset that the kernel had told was told again for bytes that lay unread in the ring.
        "recv:1 die:0 / edge-send:2 meet edge-send:1 recv:1 send:1 / 000000000000",
        // The same, the other way round.
        "edge-send:1 die:17 send:8 / send:1 meet poll-send:4096 edge-send:1 send:1 / 0000",
        // A reset was an end to who had sent something over TCP to the killed one, before it received.
        "meet poll-send:4097 edge-recv:8 poll-recv:1 / meet die:67 send:1 / 000000000000",
        // A call and one in a handler above it both failed with a reset.
        "meet die:0 / meet send:1 signal:123 edge-recv:1 send:1 / b1b5000000000000",
        // A handler that sent above another one which did left the ring a second time.
        "meet edge-recv:1 signal:49 send:1 send:1 / meet send:4 recv:1 / 900001c51e014520",
        // A call slept on a futex for bytes of a ring that one in a handler above it had left.
        "meet signal:29 recv:1 edge-recv:1 / meet send:1 meet / 9119019f6e00",
        // One that waited for a peer to say what it had taken was woken all the time by the kernel's room.
        "meet poll-send:23 lie:996 recv:1 / meet poll-send:1 recv:1 recv:1 send:4097 / 1c0b2d0080800080008080b2000000000000",
        // A byte that a reset left unread was taken for one that had been read.
        "send:1 die:328 meet recv:1 recv:1 send:1 recv:1 / edge-send:3004 poll-recv:1 / 0000000000000000",
        // A handler waited for room for what only the call below it was to send once more, and found some all the time.
        "meet send:1 edge-send:1 / meet poll-recv:1 poll-recv:4 poll-send:4096 signal:132 send:1 recv:1 / 00808000004300000000",
        // After a panic in the middle of a shutdown bytes came behind the end of the ring.
        "meet send:1 panic:1 shut edge-send:1 / meet edge-recv:1 / 108000bba2",
        // Two handlers told each other of room that neither waited for, all the time.
        "meet edge-send:1 signal:78 send:4096 poll-send:4096 / meet send:1 send:1 poll-recv:1365 signal:83 poll-send:2997 send:1 / 59a107302c",
        // One that slept on after it was woken napped for as long as before, over the death of its peer meanwhile.
        "connect recv:1 / accept die:18 tire send:1 / 4225010900000000",
        "connect look:1 / accept-now tire die:0 / 00",
        // After a panic in the middle of a shutdown nobody was told of the end.
        "meet send:1 look:1 recv-all:6 / meet send:1 recv:1 panic:4 shut / 9fa407002e004501070041010000",
        // A program was killed behind a mark that it had not noted, and another one that held the end went on.
        "meet fork:1 poll-recv:1 / meet fork:1 send:1 die:17 send:1 / ",
    ] {
        let history: History = line.parse().unwrap();
        assert!(history.run() > 0);
    }
}

/// The one that `SIM_HISTORY` names, as a failure has printed it.
#[test]
fn a_history_is_run_again() {
    let Ok(line) = std::env::var("SIM_HISTORY") else { return };
    let history: History = line.parse().unwrap();
    println!("{} points", history.run());
}

#[test]
fn a_failure_is_told_and_leaves_nothing_behind() {
    let history: History = "meet send:9 die:3 / recv:20 recv:1 / 0102".parse().unwrap();
    let before = history.run();
    assert!(before > 100);
    assert_eq!(history.run(), before, "it is the same each time");
    let too_early = catch_unwind(|| super::pace::at_once(|| panic!("as an oracle does")));
    assert!(too_early.is_err());
    assert_eq!(history.run(), before);
}
