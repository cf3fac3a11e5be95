//! Programs that know nothing of Shunt, each run over kernel TCP and under Shunt in both modes;
//! what they did is compared, and Shunt's counters prove that the connections were shunted.

mod addresses;
mod daemons;
mod execs;
mod forks;
mod http;
mod interface;
mod iperf;
mod listeners;
mod nginx;
mod php;
mod postgres;
mod proxies;
mod redis;
mod runtimes;
mod sanitizers;
mod sockperf;
mod ssh;
mod surroundings;
mod tools;

use shunt_functional::compat::{self, Subject};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

/// What a scenario found, one line per fact. Facts do not depend on speed.
type Outcome = Vec<String>;

/// Runs a scenario in every mode, compares the outcomes with that of plain TCP, and records it.
fn compare(
    subject: &Subject,
    make: impl Fn(Mode) -> Sandbox,
    scenario: impl Fn(&Sandbox) -> Outcome,
) {
    let mut plain: Option<Outcome> = None;
    for mode in Mode::enabled() {
        let sandbox = make(mode);
        let outcome = scenario(&sandbox);
        assert!(!outcome.is_empty(), "the scenario found nothing");
        println!("{mode}: {outcome:#?}");
        match &plain {
            None => plain = Some(outcome),
            Some(plain) => assert_eq!(plain, &outcome, "left: plain TCP, right: {mode}"),
        }
        subject.record(&sandbox, compat::Outcome::Same);
    }
}

/// The rest of the first line that starts with `label` (leading blanks aside).
fn field<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_start().strip_prefix(label)).map(str::trim)
}

/// Bytes that do not repeat, for files to serve.
fn content(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
    bytes
}
