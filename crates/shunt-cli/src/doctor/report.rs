//! The report of `shunt doctor`, for people and for programs.

use std::fmt::Write;

use serde::Serialize;

use super::finding::{Finding, Mark};
use crate::table::wrapped;

/// Version of the JSON: it changes when a field goes or means something else, not when one is added.
const SCHEMA: &str = "shunt-doctor/1";

/// What is asked about.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "name")]
pub enum Subject {
    /// This machine and environment.
    Machine,
    /// A program that would be started.
    Program(String),
    /// A process that runs.
    Process(String),
    /// A systemd service.
    Unit(String),
    /// A connection that was tried.
    Connection(String),
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Yes.
    Shunted,
    /// It cannot be told.
    Unknown,
    /// No.
    Tcp,
    /// There is nothing that could be.
    Missing,
}

impl Verdict {
    fn of(findings: &[Finding]) -> Self {
        match findings.iter().map(|finding| finding.mark).max() {
            None | Some(Mark::Good | Mark::Warning) => Self::Shunted,
            Some(Mark::Unknown) => Self::Unknown,
            Some(Mark::Obstacle | Mark::Harm) => Self::Tcp,
            Some(Mark::Missing) => Self::Missing,
        }
    }

    /// The exit status.
    #[must_use]
    pub const fn status(self) -> u8 {
        match self {
            Self::Shunted => 0,
            Self::Tcp | Self::Missing => 1,
            Self::Unknown => 3,
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    version: &'static str,
    subject: Subject,
    verdict: Verdict,
    findings: Vec<Finding>,
}

impl Report {
    /// Judges by what was found.
    #[must_use]
    pub fn new(subject: Subject, findings: Vec<Finding>) -> Self {
        let verdict = Verdict::of(&findings);
        Self { schema: SCHEMA, version: env!("CARGO_PKG_VERSION"), subject, verdict, findings }
    }

    /// The answer.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// For programs.
    ///
    /// # Errors
    /// The encoder's, of which there is none.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// For people, in lines of so many columns.
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        let mut text = String::new();
        for Finding { mark, text: said, .. } in &self.findings {
            let mark = match mark {
                Mark::Good => "ok  ",
                Mark::Warning => "warn",
                Mark::Unknown => "????",
                Mark::Obstacle | Mark::Harm | Mark::Missing => "FAIL",
            };
            let _ = writeln!(text, "{}", wrapped(&format!("{mark}  {said}"), width, 6));
        }
        let _ = writeln!(text, "{}", wrapped(&format!("=> {}", self.conclusion()), width, 3));
        text
    }

    fn conclusion(&self) -> String {
        const FAIL: &str = "for the reasons marked FAIL.";
        let name = match &self.subject {
            Subject::Machine => "a suitable program",
            Subject::Program(name)
            | Subject::Process(name)
            | Subject::Unit(name)
            | Subject::Connection(name) => name,
        };
        match (&self.subject, self.verdict) {
            (Subject::Connection(_), Verdict::Shunted) => format!("{name} is shunted."),
            (Subject::Connection(_), Verdict::Tcp) => format!("{name} runs on kernel TCP, {FAIL}"),
            (Subject::Connection(_), Verdict::Missing) => format!("{name} is not made, {FAIL}"),
            (Subject::Process(_), Verdict::Shunted) => {
                format!("{name} is shunted with every peer that runs under Shunt too.")
            }
            (Subject::Process(_), Verdict::Tcp) => format!("{name} runs on kernel TCP, {FAIL}"),
            (Subject::Process(_), Verdict::Missing) => format!("{name} does not run, {FAIL}"),
            (_, Verdict::Shunted) => {
                format!("{name} would be shunted, with every peer that runs under Shunt too.")
            }
            (_, Verdict::Tcp) => format!("{name} would run on kernel TCP, {FAIL}"),
            (_, Verdict::Missing) => format!("{name} would not run at all, {FAIL}"),
            (_, Verdict::Unknown) => {
                format!("whether {name} is shunted cannot be told, for the reasons marked ????.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_yes() {
        let of = |findings: &[Finding]| Verdict::of(findings);
        let (good, unknown) = (Finding::good("a"), Finding::unknown("b"));
        assert_eq!(of(&[]), Verdict::Shunted);
        assert_eq!(of(&[good.clone(), unknown.clone()]), Verdict::Unknown);
        assert_eq!(of(&[unknown.clone(), Finding::obstacle("c")]), Verdict::Tcp);
        assert_eq!(of(&[Finding::missing("d"), Finding::obstacle("c")]), Verdict::Missing);
        assert_eq!(of(&[good, unknown]).status(), 3);
    }

    #[test]
    fn json_says_the_same_as_the_text() {
        let findings = vec![Finding::obstacle("it is too old").of("kernel")];
        let report = Report::new(Subject::Program("nginx".into()), findings);
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(json["schema"], "shunt-doctor/1");
        assert_eq!(json["verdict"], "tcp");
        assert_eq!(json["subject"]["kind"], "program");
        assert_eq!(json["findings"][0]["check"], "kernel");
        assert_eq!(json["findings"][0]["mark"], "obstacle");
        assert!(
            report.text(None).starts_with("FAIL  it is too old\n=> nginx would run on kernel TCP")
        );
    }
}
