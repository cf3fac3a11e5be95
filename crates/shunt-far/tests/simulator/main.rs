//! Two hosts with programs and agents over the device in the process, with all that can go wrong there.
//!
//! A history is a [`Plan`]: what the programs do, when agents and devices get to run, when time passes, and faults by a seed. The
//! programs use the cursors of `shunt-shm`, as those of the product do. The oracle is the stream itself: each byte is a
//! function of its connection, direction and position.
//!
//! * What a program takes is what the other one sent, in order; an end and a switch point come behind the bytes before them.
//! * Without faults all arrives, and places are free once both programs have left.
//! * After a failure each direction goes on over TCP behind the byte that the far side has received, and the bytes from there on
//!   still lie in the sender's ring.
//! * A link that has failed goes on with another queue pair where both sides find one, and then nothing else is seen of the failure.
//! * What agents measure meanwhile comes to an end, and changes none of that.
//! * What was not received before an end comes from the sender's agent, and the end behind it.
//!
//! `SIM_HISTORIES` says how many; one that fails shrinks and is printed. They are the same each time; `SIM_SEED` has others.

#![allow(
    clippy::cast_possible_truncation,
    reason = "rings are short, and bytes are made of numbers"
)]

mod end;
mod plan;
mod world;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestRunner};

use plan::{Plan, plans};
use world::{Outcome, World};

fn number<N: core::str::FromStr>(name: &str, by_default: N) -> N {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(by_default)
}

#[test]
fn no_byte_is_lost_or_repeated() {
    let config = Config {
        cases: number("SIM_HISTORIES", 400),
        rng_seed: RngSeed::Fixed(number("SIM_SEED", 1)),
        failure_persistence: None,
        ..Config::default()
    };
    let run = |plan: Plan| {
        World::new(&plan).run(&plan);
        Ok(())
    };
    TestRunner::new(config).run(&plans(), run).unwrap();
}

/// Else the histories would prove little.
#[test]
fn histories_reach_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut seen = [0; 6];
    let (mut sent, mut measured) = (0, 0);
    for _ in 0..1_000 {
        let plan = plans().new_tree(&mut runner).unwrap().current();
        let mut world = World::new(&plan);
        let outcome = world.run(&plan);
        sent += world.sent();
        measured += world.measured();
        seen[match outcome {
            Outcome::Whole { renewed: 0 } => 0,
            Outcome::Whole { .. } => 5,
            Outcome::Failed { rest: 1.., .. } => 4,
            Outcome::Failed { silent: true, .. } => 1,
            Outcome::Failed { resent: 0, .. } => 2,
            Outcome::Failed { .. } => 3,
        }] += 1;
    }
    let [whole, silent, nothing, resent, rest, renewed] = seen;
    let enough =
        whole > 200 && silent > 20 && nothing > 50 && resent > 50 && rest > 50 && renewed > 100;
    assert!(
        enough && sent > 100_000 && measured > 100,
        "whole, silent, nothing to send again, sent again, an end among it, renewed: {seen:?}; bytes {sent}, measured {measured}"
    );
}
