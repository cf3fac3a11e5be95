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
fn connecting(
    makes: impl Strategy<Value = Op> + 'static,
    others: impl Strategy<Value = Op> + 'static,
) -> impl Strategy<Value = Vec<Op>> {
    let makes = makes.boxed();
    let does = prop_oneof![
        10 => others,
        4 => makes.clone(),
        3 => Just(Op::Close),
        2 => (0_usize..3).prop_map(Op::On),
        1 => (0_u32..150).prop_map(Op::Signal),
        1 => Just(Op::Tire),
        1 => prop_oneof![Just(Op::AgentDies), Just(Op::AgentReturns)],
        1 => prop_oneof![Just(Op::Starve), Just(Op::Feed)],
    ];
    (makes, prop::collection::vec(does, 0..14))
        .prop_map(|(first, ops)| core::iter::once(first).chain(ops).collect())
}

fn connecting_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let connects = || prop_oneof![5 => Just(Op::Connect), 1 => Just(Op::ConnectPlain)];
    let accepts = || {
        prop_oneof![
            4 => Just(Op::Accept),
            2 => Just(Op::AcceptNow),
            2 => Just(Op::AcceptLate),
            1 => Just(Op::AcceptPlain),
        ]
    };
    let leaves = || prop_oneof![6 => op(), 1 => leaving_only()];
    prop_oneof![
        3 => (connecting(connects(), op()), connecting(accepts(), op())),
        1 => (connecting(connects(), leaves()), connecting(accepts(), leaves())),
    ]
}

/// By which a program leaves the ring, or hands all its connections over.
fn leaving_only() -> impl Strategy<Value = Op> {
    prop_oneof![Just(Op::Urgent), Just(Op::Leave), Just(Op::Exec), (0_usize..6).prop_map(Op::Spawn),]
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

/// The same, with programs that hand the connection over, as a server that forks and has the child become another program.
fn starting_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        16 => leaving_op(),
        2 => (1_usize..6).prop_map(Op::Fork),
    ]
}

proptest! {
    #![proptest_config(seeded(10))]

    #[test]
    fn one_of_those_that_hold_an_end_may_become_another_program(
        history in history((program(starting_op()), program(starting_op())))
    ) {
        let _ = history.run();
    }
}

/// What one does that makes a connection, and has forked by then: either of the two may be killed as it uses it first.
fn related(makes: Op) -> impl Strategy<Value = Vec<Op>> {
    let step = || {
        prop_oneof![
            12 => op().prop_map(Op::without_edges),
            1 => (1_usize..4).prop_map(Op::Fork),
            1 => (0_u32..150).prop_map(Op::Signal),
        ]
    };
    let steps = |most| prop::collection::vec(step(), 0..most);
    let dies = || prop_oneof![2 => Just(None), 3 => (0_u32..120).prop_map(Some)];
    (steps(2), dies(), steps(4), dies(), steps(6)).prop_map(
        move |(before, child_dies, child, parent_dies, parent)| {
            let child: Vec<_> = child_dies.map(Op::Die).into_iter().chain(child).collect();
            let forks = Op::Fork(child.len());
            let parent = parent_dies.map(Op::Die).into_iter().chain(parent);
            let first = [makes].into_iter().chain(before).chain([forks]);
            first.chain(child).chain(parent).collect()
        },
    )
}

fn related_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let accepts = prop_oneof![
        4 => Just(Op::Accept),
        1 => Just(Op::AcceptNow),
        1 => Just(Op::AcceptLate),
    ];
    let plain = prop::collection::vec(op().prop_map(Op::without_edges), 0..10)
        .prop_map(|ops| core::iter::once(Op::Connect).chain(ops).collect());
    let client = prop_oneof![3 => plain, 1 => related(Op::Connect)];
    (client, accepts.prop_flat_map(related))
}

proptest! {
    #![proptest_config(seeded(4))]

    #[test]
    fn whoever_of_those_that_hold_an_end_takes_the_connection_up_they_all_go_on_there(
        history in history(related_programs())
    ) {
        let _ = history.run();
    }
}

/// A program that sends without copies, among what it does; `others` may come anywhere.
fn lending_op(others: impl Strategy<Value = Op>) -> impl Strategy<Value = Op> {
    // Half a ring is the most that is granted at once.
    let size = || prop_oneof![4 => 1_usize..20, 2 => 1_usize..500, 1 => 1_usize..9000, 1 => 2047_usize..2050];
    prop_oneof![
        10 => others,
        5 => size().prop_map(Op::Grant),
        8 => prop_oneof![size().prop_map(Op::Pin), size().prop_map(Op::Parts)],
        3 => Just(Op::Hear),
        2 => Just(Op::HearAll),
        2 => size().prop_map(Op::Receive),
        1 => size().prop_map(Op::Skip),
        1 => Just(Op::Refuse),
        2 => Just(Op::Unmap),
        2 => (0_u32..200).prop_map(Op::Stall),
    ]
}

/// With signals, panics, forks and lies in some.
fn lending_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let shares = || prop_oneof![3 => Just(true), 1 => Just(false)];
    let known = |(shares, mut ops): (bool, Vec<Op>)| {
        let meets = usize::from(ops.first() == Some(&Op::Meet));
        if shares {
            ops.insert(meets, Op::Share);
        }
        ops
    };
    let plain = || (shares(), program(lending_op(op()))).prop_map(known);
    let faulty = || (shares(), program(lending_op(forking_op()))).prop_map(known);
    prop_oneof![
        3 => (plain(), plain()),
        1 => (faulty(), faulty()),
    ]
}

/// The same, with programs that leave the ring, or hand the connection over.
fn leaving_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        16 => faulty_op(),
        1 => Just(Op::Urgent),
        1 => Just(Op::Leave),
        1 => Just(Op::Exec),
        1 => (0_usize..6).prop_map(Op::Spawn),
    ]
}

proptest! {
    #![proptest_config(seeded(4))]

    #[test]
    fn whatever_is_sent_without_copies_comes_as_it_was_and_buffers_come_back_once_and_not_too_early(
        history in history(lending_programs())
    ) {
        let _ = history.run();
    }
}

/// A step of a dialogue: bytes that one program sends, and how the other one receives them, if it does.
type Said = (bool, usize, (Option<u32>, Option<u32>), Option<Op>);

/// A program may stand still in its next call, often at the beginning, so that the other one goes a long way between any two points.
fn stall() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![3 => Just(None), 1 => (0_u32..4).prop_map(Some), 3 => (0_u32..120).prop_map(Some)]
}

fn said() -> impl Strategy<Value = Said> {
    let size = || prop_oneof![2 => Just(1_usize), 2 => Just(2), 1 => Just(4097), 1 => Just(3001)];
    let received = (size(), 0_usize..7).prop_map(|(n, how)| match how {
        0 => None,
        1 => Some(Op::ReceiveAll(n)),
        2 => Some(Op::PollReceive(n)),
        3 => Some(Op::CountReceive(n)),
        4 => Some(Op::Look(n)),
        _ => Some(Op::Receive(n)),
    });
    (any::<bool>(), size(), (stall(), stall()), received)
}

/// How a program ends.
fn end() -> impl Strategy<Value = (Option<u32>, Option<Op>)> {
    let what = prop_oneof![
        3 => Just(None),
        2 => Just(Some(Op::Die(0))),
        1 => (0_u32..100).prop_map(|points| Some(Op::Die(points))),
        1 => Just(Some(Op::Close)),
        1 => Just(Some(Op::Shut)),
    ];
    (stall(), what)
}

/// How they begin.
fn beginning() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let begins = |client: &[Op], server: &[Op]| Just((client.to_vec(), server.to_vec()));
    prop_oneof![
        1 => begins(&[], &[]),
        1 => begins(&[Op::Meet], &[]),
        1 => begins(&[Op::Meet], &[Op::Meet]),
        2 => begins(&[Op::Connect], &[Op::Accept]),
        2 => begins(&[Op::Connect], &[Op::AcceptNow]),
        2 => begins(&[Op::Connect], &[Op::AcceptLate]),
        1 => begins(&[Op::ConnectPlain], &[Op::Accept]),
        1 => begins(&[Op::Connect, Op::Bypass], &[Op::AcceptNow]),
        2 => (0_u32..80).prop_map(|points| (vec![Op::Stall(points), Op::Connect], vec![Op::Accept])),
    ]
}

/// Two programs that talk to each other: so each goes on where the other one has come to something.
fn dialogue() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let meets = prop::option::of((0_usize..4, any::<bool>()));
    (beginning(), prop::collection::vec(said(), 1..5), meets, end(), end()).prop_map(
        |((client, server), said, meets, client_ends, server_ends)| {
            let mut programs = [client, server];
            for (n, (is_servers, size, stalls, received)) in said.into_iter().enumerate() {
                let (speaker, listener) = (usize::from(is_servers), usize::from(!is_servers));
                if let Some((_, is_servers)) = meets.filter(|(at, _)| *at == n) {
                    programs[usize::from(is_servers)].push(Op::Meet);
                }
                programs[speaker].extend(stalls.0.map(Op::Stall));
                programs[speaker].push(Op::Send(size));
                programs[listener].extend(stalls.1.map(Op::Stall));
                programs[listener].extend(received);
            }
            for (program, (stall, end)) in programs.iter_mut().zip([client_ends, server_ends]) {
                program.extend(stall.map(Op::Stall));
                program.extend(end);
                program.push(Op::Receive(2));
            }
            let [client, server] = programs;
            (client, server)
        },
    )
}

/// Who comes first, mostly until it can go no further.
fn long_turns() -> impl Strategy<Value = Vec<u8>> {
    let turn = prop_oneof![2 => Just(0x7f_u8), 2 => Just(0xff), 1 => any::<u8>()];
    prop::collection::vec(turn, 0..12)
}

proptest! {
    #![proptest_config(seeded(2))]

    #[test]
    fn wherever_a_program_stands_still_what_the_other_one_does_meanwhile_is_seen(
        history in (dialogue(), long_turns())
            .prop_map(|((client, server), choices)| History { client, server, choices })
    ) {
        let _ = history.run();
    }
}

/// What one does that stands still now and then: a few bytes at a time, and it may leave the ring, end, or be another program.
fn standing_op() -> impl Strategy<Value = Op> {
    let size = || prop_oneof![4 => 1_usize..5, 1 => prop_oneof![Just(3001_usize), Just(4097)]];
    prop_oneof![
        5 => size().prop_map(Op::Send),
        4 => size().prop_map(Op::Receive),
        2 => prop_oneof![size().prop_map(Op::PollReceive), (2_usize..6).prop_map(Op::ReceiveAll)],
        1 => Just(Op::Meet),
        3 => prop_oneof![Just(Op::Urgent), Just(Op::Leave)],
        1 => prop_oneof![2 => Just(Op::Exec), 1 => (0_usize..4).prop_map(Op::Spawn)],
        2 => prop_oneof![2 => Just(Op::Shut), 1 => Just(Op::ShutBoth), 1 => Just(Op::Close), 1 => Just(Op::Die(0))],
    ]
}

fn standing_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let stall = || prop_oneof![4 => Just(None), 1 => (0_u32..4).prop_map(Some), 3 => (0_u32..90).prop_map(Some)];
    let steps = move || prop::collection::vec((stall(), standing_op()), 1..5);
    let in_ring = Just((vec![Op::Meet], vec![Op::Meet]));
    let begins = prop_oneof![1 => in_ring, 1 => beginning()];
    (begins, steps(), steps()).prop_map(|(begins, client, server)| {
        let follows = |mut program: Vec<Op>, steps: Vec<(Option<u32>, Op)>| {
            let ops = steps.into_iter().flat_map(|(stall, op)| [stall.map(Op::Stall), Some(op)]);
            program.extend(ops.flatten());
            program
        };
        (follows(begins.0, client), follows(begins.1, server))
    })
}

proptest! {
    #![proptest_config(seeded(1))]

    #[test]
    fn wherever_a_program_stands_still_the_other_one_may_leave_the_ring_or_end(
        history in (standing_programs(), long_turns())
            .prop_map(|((client, server), choices)| History { client, server, choices })
    ) {
        let _ = history.run();
    }
}

proptest! {
    #![proptest_config(seeded(4))]

    #[test]
    fn whoever_leaves_the_ring_or_hands_the_connection_over_has_the_whole_stream_go_on(
        history in history((program(leaving_op()), program(leaving_op())))
    ) {
        let _ = history.run();
    }
}

/// The same, with programs that set what is worth telling of, and how much may lie unread.
fn setting_op(others: impl Strategy<Value = Op>) -> impl Strategy<Value = Op> {
    prop_oneof![
        14 => others,
        2 => prop_oneof![1_usize..20, 1_usize..500, Just(0), Just(4096)].prop_map(Op::LowWater),
        2 => prop_oneof![Just(1_usize), 1100_usize..1300, 1_usize..4000].prop_map(Op::Buffers),
        1 => prop_oneof![Just(Op::ShutReading), Just(Op::ShutBoth)],
    ]
}

fn setting_programs() -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    let plain = || program(setting_op(op()));
    let leaving = || program(setting_op(leaving_op()));
    let forking = || program(setting_op(forking_op()));
    prop_oneof![
        6 => (plain(), plain()),
        1 => (leaving(), leaving()),
        1 => (forking(), forking()),
    ]
}

proptest! {
    #![proptest_config(seeded(4))]

    #[test]
    fn whatever_a_program_sets_of_its_socket_it_is_told_of_what_it_waits_for(
        history in history(setting_programs())
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
        // Who followed did not tell of the mark to one that had left and read on.
        "send:1 edge-send:1 meet send:1 / meet poll-send:1 urgent recv-all:3 / 35d70001951d30",
        // One that had ended its direction left behind a mark what it could not send once more.
        "meet urgent recv:1 / meet send:1 shut urgent / ff7f",
        // A handler that left froze a step below it in the middle.
        "meet send:1 / meet signal:18 recv:1 urgent / 002d1e",
        // The same, and the step went into the ring that its program had left.
        "meet signal:8 send:1 urgent exec urgent / meet look:1 recv:1 / 80000d153b4135315c",
        // The end that a new owner gave was taken for the death of its peer.
        "meet exec shut recv:1 / meet send:4097 / 9aaa3d00",
        // A sender waited for ever for one that was killed as it said how far it had come.
        "meet poll-send:1 edge-recv:1 urgent / meet urgent shut die:21 recv:1 / 433100000000",
        // A panic behind a mark left the other one asleep.
        "meet poll-send:1 shut poll-recv:2971 recv-all:33 / meet edge-send:3000 recv:1 panic:11 urgent edge-send:1 / 8080be010000000000000050000100",
        // One that had left, and had found its peer gone, napped over that end.
        "meet shut urgent recv:1 / meet die:17 edge-send:1 / 80808f",
        // A handler above a call that passed a mark slept on a futex in front of the next one, and the bytes came over TCP.
        "connect signal:32 recv:1 poll-recv:1 / accept-now edge-send:1 / 80490129c108000100",
        // An end that was found while bytes came into the ring was forgotten over them.
        "meet send:1 stall:0 send:1 die:0 recv:2 / meet recv:1 send:2 stall:37 count-recv:1 recv:2 / ",
        // Poll told of bytes that came twice, behind a mark that had come since its look began.
        "meet poll-recv:1 recv:1 poll-recv:1 / meet send:1 send:1 urgent / bf0156b6d3143fa137207b06a7249f62",
        // One that had waited for the lock went on behind a step in which the library had panicked.
        "meet fork:3 check panic:34 recv:1 send:1 recv:1 / meet send:4097 / b1fdc385e001600000000060",
        // The library panicked once more as it gave the connection back.
        "meet meet / meet signal:6 panic:0 poll-send:1 panic:0 / ",
        // One that left again told of it once more, as it may.
        "meet recv:3 recv:1 leave poll-recv:1 recv:1 urgent / meet poll-send:4 shut recv:1 / 1401c45419280180c1050043001f800099",
        // One whose connection the library had reset in the middle of a mark left the ring: the peer took the marks for a breach.
        "meet panic:53 send:3001 urgent / meet recv:1 / 80000000",
        // A small send that found room had another program wait for more for good.
        "meet fork:2 signal:0 close fork:1 recv:1 recv:1 recv:6 / meet send:1 fork:5 send:1 sleep meet poll-recv:1 meet edge-send:4097 / 1d01b91f0c18005c01fa7d170059ca20750b",
        // A call slept on a futex though the library had reset the connection, in a handler, after it had looked.
        "meet recv:1 signal:110 panic:111 send:4097 recv:1 / meet shut / 00000000",
        // A handler ran for long between a wake-up and the next sleep, and the nap was three times as long, over a killed peer.
        "connect signal:27 recv:1 tire / accept-now die:0 meet / 000000000000",
        // A poll had chosen to sleep on a futex, then the peer left the ring, and its bytes came over TCP.
        "meet recv:1 poll-recv:1 / meet send:1 urgent / bf013f010119a87fff",
        // One that had shut its reading did not hear that its peer was killed.
        "meet shut-rd buffers:1 send:2384 / meet shut-rd die:27 recv:1 buffers:1 / 9e010000",
        "meet edge-send:24 recv:1 send:4096 shut-rd poll-send:1 / meet recv:1 poll-send:1 die:0 / 00000000000000000000",
        // One that had shut its reading took bytes of a later stretch for the next ones.
        "meet edge-send:1 poll-send:1 poll-send:1 / shut-rd send:1 edge-recv:1 / a601486738",
        // One that had, too, and had set its buffers, polled for room over the death of its peer.
        "meet shut-rd buffers:1 poll-send:2389 / die:5 buffers:1 / 850000",
        // A handler between the two halves of telling, which waited for an answer, found nobody to wake.
        "meet signal:47 recv:4096 recv:1 / meet edge-send:4097 / cf31000100",
        "meet poll-recv:1 / meet signal:66 edge-send:2731 recv:1 / 000000",
        "meet signal:64 send:1 recv:1 / meet recv:1 / 93010000",
        // Two handlers that waited for each other woke each other all the time.
        "meet signal:89 poll-send:1 edge-recv:1 / meet signal:92 poll-send:1 edge-recv:1 / 3b000000000000000000000000",
        // A handler above a read passed marks, and the read took the next one for a breach.
        "meet send:2998 / meet poll-send:1 recv:1 signal:12 recv:2999 recv:1 / 4c0cd900000100018ea27e8b80808200ab",
        // A handler took what a call below it had seen, and that one read what came since, of a later stretch.
        "send:3 stall:0 meet send:4 urgent send:2 / stall:9 signal:9 recv:9 recv:3 recv:9 / ",
        "send:3 stall:0 meet send:4 urgent send:2 / stall:8 signal:10 recv:9 recv:3 recv:9 / ",
        // The library panicked a second time where it had just looked after the first.
        "meet shut edge-recv:1 / meet send:1 signal:40 panic:22 recv:1 panic:7 / 80050000000000",
        // Room that another program had filled was told of.
        "meet recv:1 recv:1 check spawn:1 poll-send:3000 poll-send:1 / meet urgent send:1 / 00310000",
        // A handler took the end that the program below it had just made of its own reading for the death of the peer.
        "meet poll-send:4 / meet edge-send:1 signal:6 low-water:1 shut-rd edge-recv:1 / ff7f",
        // What lay unread was sent once more to one that had shut both directions.
        "meet shut-both / meet edge-send:1 poll-recv:1 urgent / bd0b00",
        // One that had left passed a mark with bytes that the other one had not sent once more.
        "meet stall:84 send:2 urgent / meet recv:1 stall:10 urgent send:1 recv:1 / 437f7f7f7f",
        // The end that a new owner gave, in the middle of a send, was taken for the death of its peer.
        "meet exec shut recv:1 / meet stall:68 send:4097 / ff7f",
        // A receiver took more from the kernel socket than it had seen there before it looked for a mark.
        "stall:0 connect stall:29 send:1 send:1 urgent / accept stall:55 recv:2 recv:1 / ",
        // A reset that met a send with bytes was not told to the next call.
        "die:0 recv:2 / stall:50 send:4097 shut recv:2 / ff",
        // A handler came back to a ring while its program handed the connection over: two programs read the same bytes.
        "meet send:1 edge-recv:1 / meet signal:6 spawn:2 look:1 check recv:1 edge-recv:1 / 0000",
        "signal:30 send:1 exec poll-recv:1 recv:1 / meet edge-send:2 poll-recv:1 / bb491544014792",
        // One that polled for room over TCP did not hear of room in the ring, into which a relative had gone since its look.
        "meet meet send:35 recv:1 / meet send:1 fork:1 poll-send:2997 recv:1 send:1 / ca980138e375",
        // A sender put bytes into a ring that its peer had left as it came in, and nobody on its side looked any more.
        "meet fork:1 recv:1 fork:2 recv:1 meet signal:0 send:1 / meet exec edge-recv:1 / 13342020e520003373",
        // What lay unread was sent once more to one that had shut both directions, and was about to reset the connection.
        "meet send:1 stall:0 urgent send:1 / meet stall:36 shut shut-both close / ",
        // What was read out of a pipe by one that had left was in no ring, and sent once more from there.
        "meet share pin:696 pin:3401 / meet share edge-recv:2 stall:164 panic:11 poll-send:1 recv:2 recv:4092 / a100802c04004d000000",
        // A program was killed as it had learnt of new bytes, and not yet that they lay elsewhere.
        "meet fork:1 recv:1 die:22 edge-recv:1 / meet send:1 look:1 meet / b12f8087006060",
        // A handler had the connection reset, and the step below it set its mark.
        "meet signal:75 send:1 panic:12 urgent urgent / meet look:1 urgent recv:1 / ff0000",
        // A look for more bytes than there were did not hear that the other one had left, and looked again all the time.
        "low-water:3 meet edge-send:1 look:3 / meet poll-send:1 urgent / afb3",
        // One that polled for room did not ask the kernel, where alone it could come once the other one had shut both directions.
        "meet send:2998 recv:11 poll-recv:11 recv-all:28 poll-send:1 / meet poll-send:1 buffers:1 look:1 look:1 send:1 shut-both / 00afbd054408b600800000",
        // A handler asked again and again for what a call below it had, which could not tell the peer meanwhile.
        "meet share recv:1 / meet signal:117 grant:1 poll-recv:1 / 36000000",
        // A program was killed between its answer and the note of it: the other one that held the end stayed on TCP.
        "connect / accept fork:2 die:47 send:1 fork:1 send:1 / 000d3c031d0000",
        // A call went on over TCP though another program had taken the connection up since its look.
        "connect recv:1 send:39 shut / accept fork:1 recv:1 poll-send:1 / 804b001041",
        "connect fork:2 fork:1 recv-all:16 send:1 / accept fork:1 poll-send:1 fork:1 send:1 / 7f7f817f0100",
        // A program shut its direction while another one took the connection up: neither of the two announced the end.
        "connect fork:1 poll-send:1 recv:1 / accept fork:1 shut recv:1 / 490030618f8197001805074400000000",
        // One of two programs had shut a connection, which the library reset in the other one: it was only shut after all.
        "meet shut / meet fork:1 shut-both panic:57 poll-send:1 / 080447",
    ] {
        let history: History = line.parse().unwrap();
        assert!(history.is_modelled(), "{line}");
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
