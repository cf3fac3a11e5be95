//! The order of it all: rows, and in each row rounds, and in each round contenders (A B A B …).

use std::fs;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::Signal;
use shunt_sys::{signals, stdio};

use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::machine::{self, Machine};
use crate::options::Options;
use crate::published;
use crate::report::{Report, ResultReport, RowReport, SCHEMA, VERSION, html, shapes, table};
use crate::rig::agent::Ends;
use crate::rig::process::Groups;
use crate::rig::{Budget, Rig, Session, cgroup, namespaces};
use crate::stats::{median_distribution, median_of};
use crate::workload::{self, Outcome, Per, Row};
use crate::{limits, targets};

/// Signals that end the bench, and with it what it has started.
const ENDING: [std::ffi::c_int; 3] = [signals::INT, signals::TERM, signals::HUP];

/// Seconds of load for the round that counts system calls.
const COUNTING: f64 = 0.5;

/// Runs `shunt bench`; the exit status.
#[must_use]
pub fn run(options: &Options) -> u8 {
    let done = match options {
        Options { from, .. } if !from.is_empty() => published::render(options).map(|()| 0),
        Options { list: true, .. } => list(options),
        _ => measure(options),
    };
    done.unwrap_or_else(|e| {
        let _ = writeln!(std::io::stderr(), "shunt bench: {e}");
        1
    })
}

fn list(options: &Options) -> Result<u8> {
    let rows = chosen(options)?;
    let lines: Vec<_> = rows.iter().map(|row| format!("{:<32} {}", row.id, row.title)).collect();
    print(&lines.join("\n"))?;
    let root = rustix::process::geteuid().is_root();
    print(&format!("\n{}", extent(&rows, options, root && !options.quick)))?;
    let left = workload::all().iter().filter(|row| row.named_only).count();
    if options.only.is_empty() {
        print(&format!("{left} more rows of `shapes` run when they are named: --only shapes"))?;
    }
    Ok(0)
}

/// Seconds that a run takes beside its load: programs start, connect, are asked for counters, and end.
const BESIDE: f64 = 0.7;

/// How much there is to do, and how long that takes, roughly.
fn extent(rows: &[Row], options: &Options, counting: bool) -> String {
    let runs = rows.iter().map(|row| {
        let all = options.contenders(row.contenders).into_iter();
        all.filter(|contender| row.excludes(*contender).is_none()).count()
    });
    let runs: usize = runs.sum();
    let rounds = f64::from(options.rounds()) * (options.seconds() + BESIDE);
    let counted = if counting { options.seconds().min(COUNTING) + BESIDE } else { 0.0 };
    let minutes = runs as f64 * (rounds + counted) / 60.0;
    let time = match minutes {
        m if m < 1.5 => "about a minute".to_owned(),
        m if m < 100.0 => format!("about {m:.0} minutes"),
        m => format!("about {:.1} hours", m / 60.0),
    };
    let s = if rows.len() == 1 { "" } else { "s" };
    format!("{} row{s}, {time} with these options", rows.len())
}

/// Prints lines. Nobody would read what is measured after this has failed.
fn print(lines: &str) -> Result<()> {
    stdio::print(&format!("{lines}\n")).map_err(Failure::failed)
}

fn chosen(options: &Options) -> Result<Vec<Row>> {
    let mut rows = workload::all();
    let names: Vec<_> = rows.iter().map(|row| &*row.id).collect();
    if let Some(name) = options.unknown(&names) {
        let why = format!("no row is called {name}, or begins so; see `shunt bench --list`");
        return Err(Failure::failed(why));
    }
    // A row that is named is wanted, quick or not.
    let wanted = |row: &Row| {
        let usual = if options.quick { row.quick } else { !row.named_only };
        options.wants(&row.id) && (usual || !options.only.is_empty())
    };
    rows.retain(wanted);
    Ok(rows)
}

fn measure(options: &Options) -> Result<u8> {
    let rows = chosen(options)?;
    // Found out now, not after an hour. What is there is left as it is until there are figures.
    for path in [&options.json, &options.html].into_iter().flatten() {
        fs::OpenOptions::new().append(true).create(true).open(path).context(path.display())?;
    }
    let groups = Groups::default();
    let rig = Rig::new(groups.clone())?;
    end_on_signals(groups, &rig)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut report = Report {
        schema: SCHEMA.into(),
        version: VERSION,
        shunt: env!("CARGO_PKG_VERSION").into(),
        date: machine::date(now.as_secs()),
        quick: options.quick,
        rounds: options.rounds(),
        seconds: options.seconds(),
        machine: Machine::look(),
        limits: Vec::new(),
        rows: Vec::new(),
        targets: Vec::new(),
    };
    print(&table::heading(&report))?;
    print(&format!("{}\n", extent(&rows, options, counts_calls(options, &rig))))?;
    let rounds = options.rounds() as usize + usize::from(counts_calls(options, &rig));
    let runs = |row: &Row| options.contenders(row.contenders).len() * rounds;
    let bar = progress(rows.iter().map(runs).sum());
    let (tries, time) = if options.quick { (1, 0.05) } else { (5, 0.2) };
    let time = Duration::from_secs_f64(options.seconds().min(time));
    report.limits = limits::measure(tries, time, |title| bar.set_message(title.to_owned()));
    bar.suspend(|| print(&table::limits(&report.limits)))?;
    for row in &rows {
        let contenders = options.contenders(row.contenders);
        let mut measured = measure_row(row, &rig, &contenders, options, &bar);
        measured.bound_by(row, &report.limits);
        let shown = table::row(&measured);
        report.rows.push(measured);
        report.targets = targets::judge(&report.rows);
        // Each row is kept as soon as it is there: a run may take an hour.
        write(options, &report)?;
        bar.suspend(|| print(&shown))?;
    }
    bar.finish_and_clear();
    let summary = shapes::summary(&report.rows);
    if !summary.is_empty() {
        print(&summary)?;
    }
    print(&table::targets(&report.targets))?;
    Ok(u8::from(report.has_failures()))
}

fn write(options: &Options, report: &Report) -> Result<()> {
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(report).context("JSON")?;
        fs::write(path, text + "\n").context(path.display())?;
    }
    if let Some(path) = &options.html {
        fs::write(path, html::page(report)).context(path.display())?;
    }
    Ok(())
}

fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    let look = "{bar:24} {pos}/{len}  {wide_msg}  {elapsed} (left: {eta})";
    bar.set_style(ProgressStyle::with_template(look).unwrap_or(ProgressStyle::default_bar()));
    // Seldom: drawing costs time on the processors that are measured.
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// Ends the bench's programs, removes its files, and exits, when a signal says so.
fn end_on_signals(groups: Groups, rig: &Rig) -> Result<()> {
    signals::block(&ENDING).context("signals")?;
    let dir = rig.path().to_owned();
    let cgroups = rig.cgroups().ok().map(|cgroups| cgroups.top().to_owned());
    std::thread::spawn(move || {
        let signal = signals::wait(&ENDING);
        groups.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
        groups.signal(Signal::KILL);
        let _left = fs::remove_dir_all(dir);
        // A moment for the ended to leave their control group.
        std::thread::sleep(Duration::from_millis(100));
        namespaces::remove();
        if let Some(top) = cgroups {
            cgroup::remove(&top);
        }
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// What the rounds of one contender gave.
#[derive(Default)]
struct Rounds {
    outcomes: Vec<Outcome>,
    ends: Option<Ends>,
    calls: Option<f64>,
    failure: Option<Failure>,
}

fn measure_row(
    row: &Row,
    rig: &Rig,
    contenders: &[Contender],
    options: &Options,
    bar: &ProgressBar,
) -> RowReport {
    let budget = Budget { seconds: options.seconds() };
    let mut all: Vec<(Contender, Rounds)> = contenders
        .iter()
        .map(|&contender| {
            let failure = row.excludes(contender).map(|why| Failure::Skipped(why.into()));
            (contender, Rounds { failure, ..Rounds::default() })
        })
        .collect();
    for _ in 0..options.rounds() {
        for (contender, rounds) in &mut all {
            bar.set_message(format!("{}: {}", row.title, contender.title()));
            if rounds.failure.is_none() {
                rounds.add(once(row, rig, *contender, budget));
            }
            bar.inc(1);
        }
    }
    if counts_calls(options, rig) {
        let brief = Budget { seconds: budget.seconds.min(COUNTING) };
        for (contender, rounds) in &mut all {
            bar.set_message(format!("{}: {}, system calls", row.title, contender.title()));
            // Rows without requests have nothing to count calls by.
            if rounds.failure.is_none()
                && rounds.outcomes.iter().any(|o| o.bytes > 0.0 || o.operations > 0.0)
            {
                rounds.calls = calls(row, rig, *contender, brief);
            }
            bar.inc(1);
        }
    }
    let mut report = RowReport::of(row);
    report.results = all.iter().map(|(c, rounds)| result(*c, rounds, row.per)).collect();
    report.compare();
    report
}

impl Rounds {
    fn add(&mut self, round: Result<(Outcome, Option<Ends>)>) {
        match round {
            Ok((outcome, ends)) => {
                self.outcomes.push(outcome);
                if let Some(new) = ends {
                    let sum = self.ends.get_or_insert(Ends { all: 0, shunted: 0 });
                    sum.all += new.all;
                    sum.shunted += new.shunted;
                }
            }
            Err(e) => self.failure = Some(e),
        }
    }
}

/// Connection ends that a sockmap ever had; none for other contenders.
fn entered(session: &Session<'_>) -> Result<Option<u64>> {
    if session.contender != Contender::Sockmap {
        return Ok(None);
    }
    let entered = session.rig().cgroups()?.sockmap()?.entered();
    entered.map(Some).context("the sockmap")
}

/// True when a round more is run, which counts system calls.
fn counts_calls(options: &Options, rig: &Rig) -> bool {
    !options.quick && rig.cgroups().is_ok()
}

/// System calls per request, or per 10⁶ bytes. The other figures stand without it.
fn calls(row: &Row, rig: &Rig, contender: Contender, budget: Budget) -> Option<f64> {
    let session = rig.session(contender, row.place()).ok()?;
    session.count_calls();
    let outcome = (row.drive)(&session, budget).ok()?;
    cost(&outcome, row.per, outcome.cost.calls? as f64, 1e6)
}

/// One contender, once. Shunt and the sockmap have to prove that they were what carried the bytes.
fn once(
    row: &Row,
    rig: &Rig,
    contender: Contender,
    budget: Budget,
) -> Result<(Outcome, Option<Ends>)> {
    let session = rig.session(contender, row.place())?;
    let before = session.agent().map(crate::rig::agent::Agent::ends).transpose()?;
    let entered_before = entered(&session)?;
    let outcome = (row.drive)(&session, budget)?;
    if entered_before.is_some() && entered(&session)? == entered_before {
        return Err(Failure::failed("no connection was entered in the sockmap"));
    }
    let ends = match (session.agent(), before) {
        (Some(agent), Some(before)) => Some(agent.prove(before)?),
        _ => None,
    };
    Ok((outcome, ends))
}

/// An amount per request, or per so many bytes, for rows that have such.
fn cost(outcome: &Outcome, per: Per, amount: f64, bytes: f64) -> Option<f64> {
    let count = match per {
        Per::Request => outcome.operations,
        Per::Gigabyte => outcome.bytes / bytes,
    };
    (count > 0.0 && amount > 0.0).then(|| amount / count)
}

fn result(contender: Contender, rounds: &Rounds, unit: Per) -> ResultReport {
    if let Some(failure) = &rounds.failure {
        return ResultReport::without(contender, failure);
    }
    let outcomes = &rounds.outcomes;
    let samples: Vec<f64> = outcomes.iter().map(|o| o.value).collect();
    let median_cost = |amount: fn(&Outcome) -> f64, bytes: f64| {
        median_of(outcomes.iter().map(|o| cost(o, unit, amount(o), bytes)))
    };
    let micros = if unit == Per::Request { 1e6 } else { 1.0 };
    let distributions: Vec<_> = outcomes.iter().map(|o| o.latency.as_slice()).collect();
    ResultReport {
        cpu: median_cost(|o| o.cost.cpu.as_secs_f64(), 1e9).map(|c| c * micros),
        switches: median_cost(|o| o.cost.switches as f64, 1e6),
        syscalls: rounds.calls,
        latency: median_distribution(&distributions),
        ends: rounds.ends.map(|ends| ends.all),
        ends_shunted: rounds.ends.map(|ends| ends.shunted),
        ..ResultReport::measured(contender, &samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: &[&str], quick: bool) -> Options {
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        Options { only, quick, ..Options::default() }
    }

    fn cells(only: &[&str], quick: bool) -> usize {
        let rows = chosen(&options(only, quick)).unwrap();
        rows.iter().filter(|row| row.cell.is_some()).count()
    }

    #[test]
    fn a_part_of_the_matrix_runs_unless_it_is_named() {
        assert_eq!((cells(&[], false), cells(&[], true)), (40, 5));
        assert_eq!((cells(&["shapes"], false), cells(&["shapes"], true)), (360, 360));
        assert_eq!(cells(&["shapes.poll.100"], false), 6);
        assert_eq!(cells(&["=shapes.poll.100"], false), 1);
        assert_eq!(cells(&["shapes.*.100", "shapes.poll"], false), 60 + 30);
        assert!(chosen(&options(&["shapes.poll.7"], false)).is_err());
    }

    #[test]
    fn the_extent_follows_from_rows_contenders_and_rounds() {
        let options = |rounds| Options {
            rounds: Some(rounds),
            seconds: Some(1.3),
            ..options(&["shapes"], false)
        };
        let rows = chosen(&options(1)).unwrap();
        // 360 cells, 7 contenders, 2 s each.
        assert_eq!(
            extent(&rows, &options(1), false),
            "360 rows, about 84 minutes with these options"
        );
        assert_eq!(
            extent(&rows, &options(3), false),
            "360 rows, about 4.2 hours with these options"
        );
        let counted = extent(&rows[..1], &options(3), true);
        assert_eq!(counted, "1 row, about a minute with these options");
    }
}
