//! The record of what was tried under Shunt, from which `shunt-compat` renders
//! `docs/compatibility.md`.
//!
//! A test that has compared a program with kernel TCP hands its [`Subject`] in, with what it found.
//! Where `SHUNT_TEST_RECORD` names a directory, that becomes a line there; else nothing happens.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use shunt_bench::machine::version_in;

use crate::binaries::program;
use crate::mode::Mode;
use crate::sandbox::Sandbox;

/// The environment variable that names the directory of the record.
pub const DIRECTORY: &str = "SHUNT_TEST_RECORD";

/// The part of the page on which a program stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Servers and clients.
    Programs,
    /// Language runtimes.
    Languages,
    /// Ways of starting programs and of handing connections on, other libraries beside Shunt.
    Surroundings,
    /// Test suites that other projects wrote.
    Suites,
}

impl Kind {
    /// Each, in the order of the page.
    pub const ALL: [Self; 4] = [Self::Programs, Self::Languages, Self::Surroundings, Self::Suites];
}

/// Who knows the version of a program.
#[derive(Clone, Copy, Debug)]
pub enum Version {
    /// The program itself, asked with this option.
    Said(&'static str, &'static str),
    /// The distribution, by the name of the package.
    Packaged(&'static str),
    /// It has none.
    None,
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Where it stands on the page.
    pub kind: Kind,
    /// The program or suite.
    pub name: &'static str,
    /// Its version.
    pub version: Version,
    /// What is done with it.
    pub done: &'static str,
    /// What is left out, or stays on TCP by its nature, and why; may be empty.
    pub remark: &'static str,
}

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Every fact that the test compares is that of kernel TCP.
    Same,
    /// Test by test as over kernel TCP.
    Tests {
        /// Tests that passed over kernel TCP.
        tcp: u64,
        /// Tests that passed under Shunt: those, and perhaps others.
        shunt: u64,
        /// Tests that failed over kernel TCP.
        failed_over_tcp: u64,
    },
}

/// One subject in one mode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Where it stands on the page.
    pub kind: Kind,
    /// The program or suite.
    pub name: String,
    /// Its version, or nothing.
    pub version: String,
    /// What was done.
    pub done: String,
    /// See [`Subject::remark`].
    pub remark: String,
    /// The mode, as in `shunt run --dmb`.
    pub mode: String,
    /// How it went.
    pub outcome: Outcome,
    /// Connection ends made under Shunt.
    pub ends: u64,
    /// Of those, shunted.
    pub shunted: u64,
    /// Of those, back on TCP at the end.
    pub demoted: u64,
    /// Ends that were not shunted, by reason.
    pub declined: BTreeMap<String, u64>,
}

impl Version {
    fn find(self) -> String {
        let (program, args): (_, &[&str]) = match self {
            Self::Said(name, option) => (program(name), &[option]),
            Self::Packaged(package) => {
                (program("dpkg-query"), &["-W", "-f", "${Version}", package])
            }
            Self::None => return String::new(),
        };
        let Ok(out) = Command::new(program).args(args).output() else { return String::new() };
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        match self {
            Self::Packaged(_) => text.trim().to_owned(),
            _ => version_in(&text).unwrap_or_default(),
        }
    }
}

impl Subject {
    /// Hands in how this went in `sandbox`, which made no other connections. A run over kernel TCP
    /// is what the others are compared with, and is not recorded; nor is one without it.
    ///
    /// # Panics
    /// When the record cannot be written.
    pub fn record(&self, sandbox: &Sandbox, outcome: Outcome) {
        let Some(directory) = std::env::var_os(DIRECTORY) else { return };
        if sandbox.mode.is_shunted() && Mode::enabled().contains(&Mode::Plain) {
            let entry = self.entry(sandbox, outcome);
            append(directory.as_ref(), &entry).expect("the record is written");
        }
    }

    fn entry(&self, sandbox: &Sandbox, outcome: Outcome) -> Entry {
        let stats = sandbox.stats();
        Entry {
            kind: self.kind,
            name: self.name.to_owned(),
            version: self.version.find(),
            done: self.done.to_owned(),
            remark: self.remark.to_owned(),
            mode: sandbox.mode.to_string(),
            outcome,
            ends: stats.get("connections"),
            shunted: stats.get("connections_shunted"),
            demoted: stats.get("connections_demoted"),
            declined: stats.reasons(),
        }
    }
}

/// A file per test program: tests of one program append whole lines.
fn append(directory: &Path, entry: &Entry) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let file = directory.join(format!("{}.jsonl", std::process::id()));
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    OpenOptions::new().create(true).append(true).open(file)?.write_all(&line)
}

/// Everything that a directory holds, in the order of the page.
///
/// # Errors
/// When it cannot be read, or holds something else.
pub fn read(directory: &Path) -> std::io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in fs::read_dir(directory)? {
        for line in fs::read_to_string(file?.path())?.lines() {
            entries.push(serde_json::from_str::<Entry>(line)?);
        }
    }
    entries.sort_by(|a, b| {
        let key = |e: &Entry| (e.kind, e.name.to_lowercase(), e.done.clone(), e.mode.clone());
        key(a).cmp(&key(b))
    });
    Ok(entries)
}
