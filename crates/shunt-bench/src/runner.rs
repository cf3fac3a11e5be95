//! The order of it all: rows, and in each row rounds, and in each round contenders (A B A B …).

use std::fs;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::Signal;
use shunt_sys::signals;

use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::machine::{self, Machine};
use crate::options::Options;
use crate::report::{Report, ResultReport, RowReport, SCHEMA, Status, VERSION, table};
use crate::rig::Rig;
use crate::rig::agent::Ends;
use crate::rig::process::Groups;
use crate::stats::{Spread, median_distribution, median_of};
use crate::workload::{self, Budget, Outcome, Per, Row};

/// Signals that end the bench, and with it what it has started.
const ENDING: [std::ffi::c_int; 3] = [signals::INT, signals::TERM, signals::HUP];

/// Runs `shunt bench`; the exit status.
#[must_use]
pub fn run(options: &Options) -> u8 {
    if options.list {
        return list(options);
    }
    match measure(options) {
        Ok(report) => u8::from(report.has_failures()),
        Err(e) => {
            eprintln!("shunt bench: {e}");
            1
        }
    }
}

fn list(options: &Options) -> u8 {
    let mut out = std::io::stdout().lock();
    for row in chosen(options) {
        if writeln!(out, "{:<24} {}", row.id, row.title).is_err() {
            return 1;
        }
    }
    0
}

fn chosen(options: &Options) -> Vec<Row> {
    let mut rows = workload::all();
    // Who names a row wants it, quick or not.
    let wanted = |row: &Row| {
        options.wants(&row.id) && (!options.quick || row.quick || !options.only.is_empty())
    };
    rows.retain(wanted);
    rows
}

fn measure(options: &Options) -> Result<Report> {
    let rows = chosen(options);
    if rows.is_empty() {
        return Err(Failure::failed("no row has such a name; see `shunt bench --list`"));
    }
    let groups = Groups::default();
    let rig = Rig::new(groups.clone())?;
    end_on_signals(groups, rig.path().to_owned())?;
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
        rows: Vec::new(),
    };
    println!("{}", table::heading(&report));
    let contenders = options.contenders();
    let bar = progress(rows.len() * contenders.len() * options.rounds() as usize);
    for row in &rows {
        let measured = measure_row(row, &rig, &contenders, options, &bar);
        bar.suspend(|| println!("{}", table::row(&measured)));
        report.rows.push(measured);
        // Each row is kept as soon as it is there: a run may take an hour.
        write(options, &report)?;
    }
    bar.finish_and_clear();
    Ok(report)
}

fn write(options: &Options, report: &Report) -> Result<()> {
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(report).context("JSON")?;
        fs::write(path, text + "\n").context(path.display())?;
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
fn end_on_signals(groups: Groups, dir: std::path::PathBuf) -> Result<()> {
    signals::block(&ENDING).context("signals")?;
    std::thread::spawn(move || {
        let signal = signals::wait(&ENDING);
        groups.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
        groups.signal(Signal::KILL);
        let _left = fs::remove_dir_all(dir);
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// What the rounds of one contender gave.
#[derive(Default)]
struct Rounds {
    outcomes: Vec<Outcome>,
    ends: Option<Ends>,
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
                match once(row, rig, *contender, budget) {
                    Ok((outcome, ends)) => {
                        rounds.outcomes.push(outcome);
                        if let Some(new) = ends {
                            let sum = rounds.ends.get_or_insert(Ends { all: 0, shunted: 0 });
                            sum.all += new.all;
                            sum.shunted += new.shunted;
                        }
                    }
                    Err(e) => rounds.failure = Some(e),
                }
            }
            bar.inc(1);
        }
    }
    let mut report = RowReport::of(row);
    report.results = all.iter().map(|(c, rounds)| result(*c, rounds, row.per)).collect();
    report.compare();
    report
}

/// One contender, once. Under Shunt it has to prove that it was shunted.
fn once(
    row: &Row,
    rig: &Rig,
    contender: Contender,
    budget: Budget,
) -> Result<(Outcome, Option<Ends>)> {
    let session = rig.session(contender)?;
    let before = session.agent().map(crate::rig::agent::Agent::ends).transpose()?;
    let outcome = (row.drive)(&session, budget)?;
    let ends = match (session.agent(), before) {
        (Some(agent), Some(before)) => Some(agent.prove(before)?),
        _ => None,
    };
    Ok((outcome, ends))
}

/// A part per request or per gigabyte, for rows that have such.
fn per(amount: f64, count: f64) -> Option<f64> {
    (count > 0.0 && amount > 0.0).then(|| amount / count)
}

fn result(contender: Contender, rounds: &Rounds, unit: Per) -> ResultReport {
    let outcomes = &rounds.outcomes;
    let samples: Vec<f64> = outcomes.iter().map(|o| o.value).collect();
    let (status, value) = match &rounds.failure {
        None => (Status::Measured, Spread::of(&samples)),
        Some(Failure::Skipped(_)) => (Status::Skipped, None),
        Some(Failure::Failed(_)) => (Status::Failed, None),
    };
    let cost = |amount: fn(&Outcome) -> f64, per_gigabyte: f64| {
        median_of(outcomes.iter().map(|o| match unit {
            Per::Request => per(amount(o), o.operations),
            Per::Gigabyte => per(amount(o), o.bytes).map(|c| c * per_gigabyte),
        }))
    };
    let micros = if unit == Per::Request { 1e6 } else { 1.0 };
    let distributions: Vec<_> = outcomes.iter().map(|o| o.latency.as_slice()).collect();
    ResultReport {
        contender,
        status,
        why: rounds.failure.as_ref().map(|failure| failure.why().to_owned()),
        value,
        samples,
        gain: None,
        cpu: cost(|o| o.usage.cpu.as_secs_f64(), 1e9).map(|c| c * micros),
        switches: cost(|o| o.usage.switches as f64, 1e6),
        syscalls: None,
        latency: median_distribution(&distributions),
        ends: rounds.ends.map(|ends| ends.all),
        ends_shunted: rounds.ends.map(|ends| ends.shunted),
    }
}
