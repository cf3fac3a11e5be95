//! Programs that nobody wrote, over kernel TCP and under Shunt: makes them, runs them, compares what came of them, and makes small
//! what differs. See `shunt_functional::differential`.

mod actor;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::{Args, Parser, Subcommand};
use shunt_functional::differential::campaign::{Campaign, Care, Difference, Verdict};
use shunt_functional::differential::generate::{Families, Family, generate};
use shunt_functional::differential::plan::Plan;
use shunt_functional::mode::Mode;

/// Runs programs that nobody wrote over kernel TCP and under Shunt, and compares what came of them.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Becomes a process of a plan; for this program's own use.
    #[command(hide = true)]
    Act {
        /// Where the plan is.
        board: PathBuf,
        /// Which of its processes.
        process: u8,
        /// The step that has brought it here.
        #[arg(long)]
        resumed: Option<usize>,
    },
    /// Compares the plans of many seeds.
    Search {
        /// The first of them.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many.
        #[arg(long, default_value_t = u64::MAX)]
        count: u64,
        /// For how long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// What plans are made of: `all`, or names, see `families`; each of some without it.
        #[arg(long)]
        families: Option<Families>,
        /// Makes small what differs.
        #[arg(long)]
        shrink: bool,
        /// Ends with the first difference.
        #[arg(long)]
        first: bool,
        /// Where plans are kept that differ, the first of each kind.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Compares one plan, several times, and prints what each step returned.
    Replay {
        #[command(flatten)]
        which: Which,
        /// How often.
        #[arg(long, default_value_t = 1)]
        times: u32,
    },
    /// Makes a plan small that differs.
    Shrink {
        #[command(flatten)]
        which: Which,
        /// For how long.
        #[arg(long, default_value_t = 120)]
        seconds: u64,
    },
    /// Prints a plan.
    Show {
        #[command(flatten)]
        which: Which,
    },
    /// Lists what plans can be made of.
    Families,
}

/// A plan.
#[derive(Args)]
struct Which {
    /// A file with a plan.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// The seed of a plan.
    #[arg(long, conflicts_with = "plan")]
    seed: Option<u64>,
    /// What the seed's plan is made of, if that was said when it was found.
    #[arg(long)]
    families: Option<Families>,
}

impl Which {
    fn get(&self) -> io::Result<Plan> {
        match (&self.plan, self.seed) {
            (Some(path), _) => fs::read_to_string(path)?.parse().map_err(io::Error::other),
            (None, Some(seed)) => Ok(plan_of(seed, self.families)),
            (None, None) => Err(io::Error::other("--plan or --seed says which plan")),
        }
    }
}

/// Longest time for making a plan small.
const TO_SHRINK: Duration = Duration::from_secs(120);

/// The plan of a seed, of these families, or of those that the seed chooses.
fn plan_of(seed: u64, families: Option<Families>) -> Plan {
    generate(seed, families.unwrap_or_else(|| Families::of_seed(seed)))
}

fn report(what: &str, plan: &Plan, difference: &Difference) {
    println!("--- {what} {difference}\n{plan}");
}

/// What a search is to do.
struct Search {
    seeds: std::ops::Range<u64>,
    time: Duration,
    families: Option<Families>,
    shrink: bool,
    first: bool,
    keep: Option<PathBuf>,
}

/// True when nothing differs.
fn search(search: &Search) -> io::Result<bool> {
    let campaign = Campaign::new(&Mode::enabled());
    let started = Instant::now();
    let (mut same, mut varies, mut shunted) = (0, 0, 0);
    let mut kinds: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for seed in search.seeds.clone() {
        if started.elapsed() > search.time {
            break;
        }
        let plan = plan_of(seed, search.families);
        match campaign.compare(&plan, Care::SEARCH)? {
            Verdict::Same(ends) => (same, shunted) = (same + 1, shunted + ends),
            Verdict::Varies(what) => {
                println!("seed {seed} varies: {what}");
                varies += 1;
            }
            Verdict::Differs(difference) => {
                let kind = difference.differs.kind.clone();
                let known = kinds.entry(kind.clone()).or_insert((0, seed));
                known.0 += 1;
                println!("seed {seed}, after {:.0?}: {kind}", started.elapsed());
                if known.0 == 1 {
                    found(&campaign, seed, &plan, &difference, search)?;
                }
                if search.first {
                    break;
                }
            }
        }
    }
    println!();
    for (kind, (times, seed)) in &kinds {
        println!("{times:4}  {kind}  (seed {seed})");
    }
    println!(
        "{same} the same ({shunted} connection ends shunted), {varies} not the same over kernel TCP, \
         {} differ, in {:.0?}",
        kinds.values().map(|kind| kind.0).sum::<u32>(),
        started.elapsed()
    );
    Ok(kinds.is_empty())
}

/// Tells of the first difference of its kind.
fn found(
    campaign: &Campaign,
    seed: u64,
    plan: &Plan,
    difference: &Difference,
    search: &Search,
) -> io::Result<()> {
    report(&format!("seed {seed}"), plan, difference);
    let mut kept = (plan.clone(), difference.clone());
    if search.shrink {
        let small = campaign.shrunk(plan, &difference.differs.kind, TO_SHRINK);
        if let Verdict::Differs(difference) = campaign.compare(&small, Care::SEARCH)? {
            report(&format!("seed {seed}, made small,"), &small, &difference);
            kept = (small, difference);
        }
    }
    if let Some(directory) = &search.keep {
        let comment: String =
            kept.1.to_string().lines().map(|line| format!("# {line}\n")).collect();
        let families = search.families.unwrap_or_else(|| Families::of_seed(seed));
        let path = directory.join(format!("{seed}.plan"));
        fs::write(path, format!("# seed {seed} of {families}\n{comment}{}", kept.0))?;
    }
    Ok(())
}

fn replay(plan: &Plan, times: u32) -> io::Result<bool> {
    let campaign = Campaign::new(&Mode::enabled());
    for event in campaign.plain(plan)?.events {
        let step = plan.steps().nth(event.step).map(ToString::to_string).unwrap_or_default();
        println!("{:3}  {step}  ->  {}", event.group, event.text);
    }
    let mut verdicts = BTreeSet::new();
    for _ in 0..times {
        match campaign.compare(plan, Care::SEARCH)? {
            Verdict::Same(ends) => println!("the same; {ends} connection ends shunted"),
            Verdict::Varies(what) => println!("not the same over kernel TCP: {what}"),
            Verdict::Differs(difference) => {
                println!("{difference}");
                verdicts.insert(difference.differs.kind);
            }
        }
    }
    Ok(verdicts.is_empty())
}

fn make_small(plan: &Plan, at_most: Duration) -> io::Result<bool> {
    let campaign = Campaign::new(&Mode::enabled());
    let Verdict::Differs(difference) = campaign.compare(plan, Care::SEARCH)? else {
        println!("does not differ");
        return Ok(false);
    };
    let small = campaign.shrunk(plan, &difference.differs.kind, at_most);
    report("made small,", &small, &difference);
    Ok(true)
}

fn main() -> ExitCode {
    let result = match Options::parse().role {
        Role::Act { board, process, resumed } => {
            actor::run(&board, process, resumed).map(|()| true)
        }
        Role::Search { seed, count, seconds, families, shrink, first, keep } => search(&Search {
            seeds: seed..seed.saturating_add(count),
            time: Duration::from_secs(seconds),
            families,
            shrink,
            first,
            keep,
        }),
        Role::Replay { which, times } => which.get().and_then(|plan| replay(&plan, times)),
        Role::Shrink { which, seconds } => {
            which.get().and_then(|plan| make_small(&plan, Duration::from_secs(seconds)))
        }
        Role::Show { which } => which.get().map(|plan| {
            print!("{plan}");
            true
        }),
        Role::Families => {
            for family in Family::ALL {
                println!("{:10}{}", family.name(), family.explain().trim());
            }
            Ok(true)
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("shunt-differential {}: {e}", std::process::id());
            ExitCode::from(2)
        }
    }
}
