//! Programs that nobody wrote do the same over kernel TCP and under Shunt (`shunt_functional::differential`).
//!
//! * Plans in `open/` are known to differ: each must go on to do so, or it belongs into `mended/`.
//! * Plans in `mended/` have differed, and must not any more.
//! * The first [`SEEDS`] are tried always; `SHUNT_TEST_FULL=1` tries new ones for `SOAK_SECONDS`. What differs as an open plan
//!   does is counted, and what differs in another way is a failure: a new plan in `open/`, if it is not mended at once.
//!
//! `shunt-differential` replays plans and seeds, searches for more, and makes them small.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use shunt_functional::differential::campaign::{Campaign, Care, Verdict};
use shunt_functional::differential::generate::{Families, generate};
use shunt_functional::differential::kept::{Kept, kinds};
use shunt_functional::differential::plan::Plan;
use shunt_functional::mode::Mode;
use shunt_functional::rounds;
use shunt_functional::sandbox::Sandbox;

/// Seeds that are tried always, from 1 on; as many of them as [`BUDGET`] has room for.
const SEEDS: u64 = 150;
/// Longest time for them.
const BUDGET: Duration = Duration::from_secs(100);
/// Longest time for making a plan small.
const TO_SHRINK: Duration = Duration::from_secs(120);

/// A directory of plans.
fn plans(name: &str) -> Vec<Kept> {
    let directory: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests/differential", name].iter().collect();
    Kept::all(&directory).expect("plans")
}

/// What a plan that is known to differ does; `None` when it differs as it is known to.
fn is_not(kept: &Kept, mode: Mode, campaign: &Campaign) -> Option<String> {
    let kind = kept.kind.as_ref().expect("a kind");
    let known = BTreeSet::from([kind.clone()]);
    let mut last = String::new();
    for _ in 0..kept.runs {
        last = match campaign.compare_knowing(&kept.plan, Care::SEARCH, &known).expect("a run") {
            Verdict::Differs(found) if found.differs.kind == *kind => return None,
            Verdict::Differs(found) => format!("differs in another way: {}", found.differs.kind),
            Verdict::Varies(what) => format!("is not the same each time over kernel TCP: {what}"),
            Verdict::Same(_) => "does not differ any more: it belongs into mended/".into(),
        };
    }
    Some(format!("open/{} [{mode}] {last}", kept.name))
}

#[test]
fn open_differences_differ() {
    let all = plans("open");
    let mut wrong = Vec::new();
    for mode in Mode::enabled_shunted() {
        let campaign = Campaign::new(&[mode]);
        for kept in all.iter().filter(|kept| kept.modes.contains(&mode)) {
            let about = kept.about.as_ref().expect("what it is about");
            match is_not(kept, mode, &campaign) {
                None => println!("open/{} [{mode}] differs still ({about})", kept.name),
                Some(why) => wrong.push(why),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn mended_differences_are_gone() {
    let all = plans("mended");
    let campaign = Campaign::new(&Mode::enabled());
    let mut wrong = Vec::new();
    for kept in &all {
        for _ in 0..kept.runs {
            match campaign.compare(&kept.plan, Care::KEPT).expect("a run") {
                Verdict::Same(_) => {}
                Verdict::Varies(what) => wrong.push(format!("mended/{} varies: {what}", kept.name)),
                Verdict::Differs(found) => {
                    wrong.push(format!("mended/{} {found}\n{}", kept.name, kept.plan));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What came of many seeds.
#[derive(Default)]
struct Tally {
    same: u32,
    varies: u32,
    /// Those that differ as an open plan does, by kind.
    open: BTreeMap<String, u32>,
    /// Those that differ in other ways, the first of each kind.
    wrong: BTreeMap<String, String>,
}

impl Tally {
    fn add(&mut self, seed: u64, open: &[Kept], campaign: &Campaign) {
        let families = Families::of_seed(seed);
        let plan = generate(seed, families);
        let known = kinds(open, &plan);
        let kinds = known.iter().chain(self.wrong.keys()).cloned().collect();
        match campaign.compare_knowing(&plan, Care::SEARCH, &kinds).expect("a run") {
            Verdict::Same(_) => self.same += 1,
            Verdict::Varies(what) => {
                println!("seed {seed} varies: {what}");
                self.varies += 1;
            }
            Verdict::Differs(found) => {
                let kind = found.differs.kind.clone();
                if known.contains(&kind) {
                    *self.open.entry(kind).or_default() += 1;
                } else if let Entry::Vacant(place) = self.wrong.entry(kind) {
                    let mut text = format!("seed {seed} of {families} {found}\n{plan}");
                    if rounds::are_long() {
                        let small = campaign.shrunk(&plan, place.key(), TO_SHRINK);
                        text += &format!("made small:\n{small}");
                    }
                    place.insert(text);
                }
            }
        }
    }

    fn judge(self) {
        let Self { same, varies, open, wrong } = self;
        let differ: u32 = open.values().sum();
        println!(
            "{same} the same, {varies} not the same over kernel TCP, {differ} differ as open plans do"
        );
        for (kind, times) in open {
            println!("{times:4}  {kind}");
        }
        let wrong: Vec<_> = wrong.into_values().collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // A grammar whose plans are mostly a matter of time would compare nothing.
        let tried = same + varies + differ;
        assert!(varies * 10 <= tried + 10, "{varies} of {tried} plans vary over kernel TCP");
        assert!(same * 2 > tried, "only {same} of {tried} plans say something");
    }
}

#[test]
fn seeds_do_the_same() {
    let (started, campaign) = (Instant::now(), Campaign::new(&Mode::enabled()));
    let (open, mut tally) = (plans("open"), Tally::default());
    for seed in (1..=SEEDS).take_while(|_| started.elapsed() < BUDGET) {
        tally.add(seed, &open, &campaign);
    }
    tally.judge();
}

/// Seeds that nobody has tried, for `SOAK_SECONDS`; from `SHUNT_TEST_SEED` on, where that is set.
#[test]
fn new_seeds() {
    if !rounds::are_long() {
        return;
    }
    let (campaign, open) = (Campaign::new(&Mode::enabled()), plans("open"));
    let first = std::env::var("SHUNT_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let first: u64 = first.unwrap_or(now.as_secs() << 20);
    println!("from seed {first} on");
    let mut tally = Tally::default();
    for round in rounds::rounds(0, 1_000_000) {
        tally.add(first + u64::from(round), &open, &campaign);
    }
    tally.judge();
}

/// A library that does nothing is no library that does the same.
#[test]
fn tcp_in_silence_is_a_difference() {
    let plan: Plan = "\
p0: 1
p1: 1
p0.0 listen(l0, 0)
p1.0 connect(a0, l0, 0)
p0.0 accept(b0, l0)
p1.0 ping(a0, 4) | p0.0 pong(b0, 4)
"
    .parse()
    .expect("a plan");
    for mode in Mode::enabled_shunted() {
        let on = Campaign::of(Sandbox::new(Mode::Plain), vec![Sandbox::new(mode)]);
        let verdict = on.compare(&plan, Care::KEPT).expect("a run");
        assert!(matches!(verdict, Verdict::Same(2)), "{verdict:?}");
        let off = Sandbox::new(mode).with_env("SHUNT_DISABLE", "1");
        let off = Campaign::of(Sandbox::new(Mode::Plain), vec![off]);
        match off.compare(&plan, Care::KEPT).expect("a run") {
            Verdict::Differs(found) => assert!(found.differs.kind.starts_with("not shunted")),
            other => panic!("{other:?}"),
        }
    }
}
