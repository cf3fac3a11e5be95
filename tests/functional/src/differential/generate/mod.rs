//! Plans from seeds.
//!
//! The grammar is a table of *moves*. Each adds what a program does in a row (connect and accept; block in a call; close what a thread is blocked in,
//! and use the number again), as far as the `model` has what it takes.

mod basics;
mod blocking;
mod families;
mod heavy;
mod looks;
mod model;
mod programs;

use super::plan::{Kind, Op, Plan, STEPS, Var};

pub use families::{Families, Family};
use model::Model;

/// Adds to the plan; `None` when there is nothing to do it with.
type Move = fn(&mut Model) -> Option<()>;

/// Moves, how often they are made compared with others, and what has to be wanted for them.
const MOVES: &[(u32, Option<Family>, Move)] = &[
    (6, None, Model::connect),
    (14, None, Model::traffic),
    (4, None, Model::shut_down),
    (4, None, Model::close),
    (3, None, Model::duplicate),
    (2, None, Model::set_nonblocking),
    (2, None, Model::dwell),
    (14, Some(Family::Block), Model::block),
    (18, Some(Family::Block), Model::disturb),
    (10, Some(Family::Poll), Model::poll),
    (4, Some(Family::Poll), Model::select),
    (10, Some(Family::Epoll), Model::epoll),
    (5, Some(Family::Peek), Model::peek),
    (5, Some(Family::PeekMore), Model::peek),
    (5, Some(Family::Lowat), Model::set_lowat),
    (6, Some(Family::Queues), Model::ask_queues),
    (5, Some(Family::Timeouts), Model::time_out),
    (5, Some(Family::Async), Model::be_told),
    (6, Some(Family::Full), Model::fill),
    (3, Some(Family::Full), Model::send_both_ways),
    (9, Some(Family::Splice), Model::splice),
    (5, Some(Family::Splice), Model::send_file),
    (5, Some(Family::Fork), Model::fork),
    (2, Some(Family::Fork), Model::exit),
    (3, Some(Family::Reset), Model::reset),
    (3, Some(Family::Cancel), Model::cancel),
    (3, Some(Family::AtFork), Model::at_fork),
    (4, Some(Family::Exec), Model::exec),
    (3, Some(Family::Pass), Model::pass),
    (2, Some(Family::Kill), Model::kill),
    (3, Some(Family::Urgent), Model::urgent),
    (4, Some(Family::Vectors), Model::vectors),
    (2, Some(Family::Serve), Model::serve),
    (4, Some(Family::Stream), Model::stream),
];

/// The plan of a seed, of these families.
#[must_use]
pub fn generate(seed: u64, families: Families) -> Plan {
    let mut model = Model::new(seed, families, &[]);
    let server = 2 + model.rng.u8(..2);
    let client = 1 + model.rng.u8(..2);
    model.add_process(server, true);
    model.add_process(client, true);
    model.restarts = families.has(Family::Jump) || model.chance(40);
    model.buffer = if model.chance(25) { model.one([8192, 32_768, 131_072]) } else { 0 };
    start(&mut model);
    let moves: Vec<_> = MOVES
        .iter()
        .filter(|(_, family, _)| family.is_none_or(|family| families.has(family)))
        .collect();
    let total: u32 = moves.iter().map(|m| m.0).sum();
    let wanted = model.rng.usize(4..24);
    let mut done = 0;
    for _ in 0..wanted * 4 {
        let mut at = model.rng.u32(..total.max(1));
        let chosen = moves.iter().find(|(weight, _, _)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        });
        if let Some((_, _, chosen)) = chosen {
            done += usize::from(chosen(&mut model).is_some());
        }
        if done >= wanted || model.plan.steps().count() + 60 > STEPS {
            break;
        }
    }
    model.finish();
    model.plan
}

/// A listener and some connections.
fn start(model: &mut Model) {
    let Some(listener) = model.fresh(Kind::Listener) else { return };
    let Some(actor) = model.actor(0) else { return };
    let buffer = model.buffer;
    model.step(actor, Op::Listen { fd: listener, buffer });
    model.opened(0, listener, listener);
    for _ in 0..model.rng.u32(1..4) {
        // There are names for more than that.
        let _ = model.connect();
    }
}

impl Model {
    /// Who still can receives what is left.
    fn finish(&mut self) {
        let ends: Vec<Var> = self.ends.keys().copied().collect();
        for thing in ends {
            if !self.is_read(thing)
                && let Some((actor, var)) = self.holder(thing)
            {
                self.step(actor, Op::Drain { fd: var });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan() {
        for seed in 0..200 {
            let plan = generate(seed, Families::ALL);
            assert_eq!(plan, generate(seed, Families::ALL));
            assert!(plan.steps().count() <= STEPS);
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
    }

    #[test]
    fn families_are_told_apart() {
        let some: Families = "all,-fork,-atfork,-pass,-poll".parse().unwrap();
        assert!(some.has(Family::Block) && !some.has(Family::Fork) && !some.has(Family::Poll));
        for seed in 0..200 {
            let plan = generate(seed, some);
            assert!(plan.steps().all(|step| !matches!(step.op, Op::Fork { .. })));
        }
        assert!("all,fly".parse::<Families>().is_err());
    }
}
