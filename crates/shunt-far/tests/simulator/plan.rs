//! What happens in a history.

use proptest::prelude::*;
use shunt_far::link::Load;
use shunt_verbs::fake::Faults;

/// One end of the link.
pub type Who = usize;

/// A thing that happens.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// A program sends up to so many bytes.
    Send(Who, usize, usize),
    /// A program takes up to so many bytes, and passes the switch points before them.
    Take(Who, usize, usize),
    /// A program sets a switch point behind what it has sent.
    Mark(Who, usize),
    /// A program is about to end its direction.
    BeginToEnd(Who, usize),
    /// A program ends its direction.
    End(Who, usize),
    /// An agent's worker runs.
    Work(Who),
    /// Both devices take so many steps.
    Devices(usize),
    /// So many milliseconds pass.
    Wait(u64),
    /// If one agent has given the link up, the other one hears of it.
    Tell,
    /// An agent measures the link.
    Measure(Who, Load),
    /// An agent's device is lost, and it lets go of all that it has of it.
    Lose(Who),
    /// An agent gives the link up.
    Fail(Who),
    /// An agent whose link has failed makes another queue pair, and says so.
    Renew(Who),
    /// The agent that has begun with that, and heard the other one, goes on.
    GoOn,
}

/// A history.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub lanes: usize,
    /// Binary logarithm of a ring's length.
    pub ring: u32,
    pub messages: u16,
    pub burst: u32,
}

/// A history.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub sizes: Sizes,
    pub faults: Faults,
    /// Programs enter the ring at the beginning, and stay there, as those of the product do.
    pub stays: bool,
    /// A link that has failed goes on with another queue pair, where nothing comes in between.
    pub renews: bool,
    pub actions: Vec<Action>,
}

impl Plan {
    /// Nothing in it makes a link fail.
    pub fn is_harmless(&self) -> bool {
        let harms =
            |action: &Action| matches!(action, Action::Wait(_) | Action::Lose(_) | Action::Fail(_));
        self.faults == Faults::NONE && !self.actions.iter().any(harms)
    }

    /// Whatever makes a link fail in it, the next queue pair has no fault.
    pub fn is_curable(&self) -> bool {
        let harms = |action: &Action| matches!(action, Action::Wait(_));
        self.renews && self.faults == Faults::NONE && !self.actions.iter().any(harms)
    }
}

fn actions(
    lanes: usize,
    (waits, loses, renews): (bool, bool, bool),
) -> impl Strategy<Value = Action> {
    let (who, lane) = (0..2_usize, 0..lanes);
    let load = prop::sample::select(vec![Load::Ping, Load::Ping, Load::Bulk]);
    let measure = (who.clone(), load).prop_map(|(who, load)| Action::Measure(who, load));
    prop_oneof![
        6 => (who.clone(), lane.clone(), 1..700_usize).prop_map(|(who, lane, len)| Action::Send(who, lane, len)),
        5 => (who.clone(), lane.clone(), 1..900_usize).prop_map(|(who, lane, len)| Action::Take(who, lane, len)),
        1 => (who.clone(), lane.clone()).prop_map(|(who, lane)| Action::Mark(who, lane)),
        2 => (who.clone(), lane, any::<bool>()).prop_map(|(who, lane, ends)| {
            if ends { Action::End(who, lane) } else { Action::BeginToEnd(who, lane) }
        }),
        6 => who.clone().prop_map(Action::Work),
        u32::from(loses) => who.clone().prop_map(Action::Lose),
        5 * u32::from(renews) => prop_oneof![
            1 => who.clone().prop_map(Action::Fail),
            3 => who.prop_map(Action::Renew),
            2 => Just(Action::GoOn),
        ],
        6 => (1..24_usize).prop_map(Action::Devices),
        u32::from(waits) => (1..300_u64).prop_map(Action::Wait),
        2 => prop_oneof![Just(Action::Tell), measure],
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let with = |not_ready, pair, withheld, cut| Faults { not_ready, pair, withheld, cut };
    prop_oneof![
        2 => Just(Faults::NONE),
        1 => Just(with(2_000, 0, 0, 0)),
        1 => Just(with(0, 100, 0, 0)),
        1 => Just(with(0, 0, 100, 0)),
        1 => Just(with(0, 0, 0, 100)),
        1 => Just(with(500, 40, 40, 40)),
    ]
}

/// All histories.
pub fn plans() -> impl Strategy<Value = Plan> {
    let sizes = (1..4_usize, 6..13_u32, 4..16_u16, prop::sample::select(vec![16, 100, 1 << 20]));
    // A device is seldom lost, and then ends the history of its link.
    let seldom = prop::sample::select(vec![false, false, false, true]);
    let ways = (any::<bool>(), any::<bool>(), seldom, any::<bool>());
    (any::<u64>(), sizes, faults(), ways).prop_flat_map(
        |(seed, sizes, faults, (waits, stays, loses, renews))| {
            let (lanes, ring, messages, burst) = sizes;
            let sizes = Sizes { lanes, ring, messages, burst };
            prop::collection::vec(actions(lanes, (waits, loses, renews)), 0..120)
                .prop_map(move |actions| Plan { seed, sizes, faults, stays, renews, actions })
        },
    )
}
