//! Test suites that other projects wrote for their programs: run over kernel TCP and under Shunt, and
//! compared test by test. Shunt's counters prove that connections were shunted.
//!
//! A short form runs always; `SHUNT_TEST_FULL=1` runs everything, which takes hours.

mod cpython;
mod postgres;
mod redis;
mod stress;

use std::collections::BTreeMap;

use shunt_functional::compat::{self, Subject};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

/// How one test of a suite ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// What a suite says, by the name of the test.
type Verdicts = BTreeMap<String, Verdict>;

/// How often a suite runs at most. Many of these tests expect something within a time, and now and then
/// fail on a busy machine, with and without Shunt. One that passes in any run has passed.
const RUNS: usize = 3;

/// What the record says of a short form.
const SHORT: &str = "Short form";

/// True when the suites are to run in full.
fn in_full() -> bool {
    std::env::var_os("SHUNT_TEST_FULL").is_some_and(|full| full != "0")
}

/// The modes of this run; one with Shunt is enough in the short form.
fn modes() -> Vec<Mode> {
    let mut modes = Mode::enabled();
    if !in_full() {
        modes.truncate(2);
    }
    modes
}

/// Runs a suite in every mode: what passes over kernel TCP passes. At least `ends` connection ends must
/// have been shunted.
fn compare(
    subject: &Subject,
    ends: u64,
    make: impl Fn(Mode) -> Sandbox,
    suite: impl Fn(&Sandbox) -> Verdicts,
) {
    let mut tcp: Option<Verdicts> = None;
    for mode in modes() {
        let sandbox = make(mode);
        let mut verdicts = suite(&sandbox);
        let missing = |verdicts: &Verdicts| -> Vec<String> {
            let tcp = tcp.iter().flatten().filter(|(_, verdict)| **verdict == Verdict::Passed);
            let missing = tcp.filter(|(name, _)| verdicts.get(*name) != Some(&Verdict::Passed));
            missing.map(|(name, _)| name.clone()).collect()
        };
        for _ in 1..RUNS {
            if missing(&verdicts).is_empty() {
                break;
            }
            let again = suite(&sandbox).into_iter().filter(|(_, v)| *v == Verdict::Passed);
            verdicts.extend(again);
        }
        let passed = verdicts.values().any(|verdict| *verdict == Verdict::Passed);
        assert!(passed, "{} {mode}: nothing passed: {verdicts:#?}", subject.done);
        let missing = missing(&verdicts);
        assert!(missing.is_empty(), "{} {mode}, not passed: {missing:#?}", subject.done);
        if mode.is_shunted() {
            sandbox.assert_shunted(ends);
        }
        let count = |verdicts: &Verdicts, which| -> u64 {
            verdicts.values().filter(|verdict| **verdict == which).count() as u64
        };
        let first = tcp.get_or_insert_with(|| verdicts.clone());
        let subject =
            Subject { remark: if in_full() { subject.remark } else { SHORT }, ..*subject };
        subject.record(
            &sandbox,
            compat::Outcome::Tests {
                tcp: count(first, Verdict::Passed),
                shunt: count(&verdicts, Verdict::Passed),
                failed_over_tcp: count(first, Verdict::Failed),
            },
        );
    }
}
