use proptest::prelude::*;
use proptest::test_runner::Config;

use super::{Op, World};

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![4 => 1_usize..20, 2 => 1_usize..500, 2 => 1_usize..9000];
    prop_oneof![
        4 => Just(Op::Meet),
        8 => size.clone().prop_map(Op::Send),
        8 => size.clone().prop_map(Op::Receive),
        3 => (1_usize..40).prop_map(Op::ReceiveAll),
        2 => size.prop_map(Op::Look),
        2 => Just(Op::Sleep),
        1 => Just(Op::Shut),
        1 => Just(Op::Die),
    ]
}

fn program() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..12)
}

proptest! {
    #![proptest_config(Config { cases: histories(), max_shrink_iters: 20_000, ..Config::default() })]

    #[test]
    fn whatever_two_programs_do_bytes_come_in_order_and_nobody_sleeps_too_long(
        client in program(),
        server in program(),
        choices in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        World::new(&client, &server, &choices).runs();
    }
}

/// How many; `SIM_HISTORIES` says otherwise.
fn histories() -> u32 {
    std::env::var("SIM_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}
