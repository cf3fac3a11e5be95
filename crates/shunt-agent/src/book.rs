//! What programs that have ended leave: totals over all, of the last runs, and by program, in a file.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, rename};
use serde_json::{Value, json};

use crate::programs::Programs;
use crate::totals::{ENDED, PROGRAMS, Totals};

/// Runs whose totals are kept.
pub const RUNS: usize = 256;

/// Longest file of totals that is read: many times what [`RUNS`] runs take.
const MAX_FILE: u64 = 4 << 20;

/// Totals of all programs that have ended, and of the last runs.
#[derive(Debug, Default)]
pub struct Book {
    all: Totals,
    /// Those of all by program.
    pub programs: Programs,
    /// The run that was last added to is at the back.
    runs: VecDeque<(u64, Totals)>,
}

impl Book {
    /// Adds a program that has ended. `run` 0: of no run.
    pub fn fold(&mut self, run: u64, program: &str, totals: &Totals) {
        self.all.add(totals);
        self.programs.fold(program, totals);
        if run == 0 {
            return;
        }
        let at = self.runs.iter().position(|(id, _)| *id == run);
        let (_, mut sum) = at.and_then(|at| self.runs.remove(at)).unwrap_or_default();
        sum.add(totals);
        if self.runs.len() >= RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back((run, sum));
    }

    /// Of one run, or (0) of everything.
    #[must_use]
    pub fn get(&self, run: u64) -> Totals {
        if run == 0 {
            return self.all;
        }
        let found = self.runs.iter().find(|(id, _)| *id == run);
        found.map(|(_, totals)| *totals).unwrap_or_default()
    }

    /// Reads what an earlier agent wrote. No file is an empty book.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn load(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match open(path, flags, Mode::empty()) {
            Ok(fd) => std::fs::File::from(fd),
            Err(rustix::io::Errno::NOENT) => return Ok(Self::default()),
            Err(e) => return Err(e.into()),
        };
        let mut text = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut text)?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let all = Totals::from_json(value.get("all")?)?;
        // An earlier version does not have them.
        let told = value.get(PROGRAMS);
        let programs = told.map_or_else(|| Some(Programs::default()), Programs::from_json)?;
        let mut runs = VecDeque::new();
        for run in value.get("runs")?.as_array()?.iter().rev().take(RUNS) {
            runs.push_front((run.get("run")?.as_u64()?, Totals::from_json(run)?));
        }
        Some(Self { all, programs, runs })
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let with_programs = |t: &Totals| {
            let mut map = t.to_json();
            map.insert(ENDED.into(), t.programs.into());
            map
        };
        let runs = self.runs.iter().map(|(id, t)| {
            let mut map = with_programs(t);
            map.insert("run".into(), (*id).into());
            Value::Object(map)
        });
        let value = json!({
            "all": with_programs(&self.all),
            PROGRAMS: self.programs.to_json(),
            "runs": runs.collect::<Vec<_>>(),
        });
        let new = path.with_extension("json.new");
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = std::fs::File::from(open(&new, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(value.to_string().as_bytes())?;
        drop(file);
        Ok(rename(&new, path)?)
    }
}

#[cfg(test)]
mod tests {
    use shunt_wire::counter::Counter;
    use shunt_wire::reason::Reason;
    use shunt_wire::waits::{Part, Waits};

    use super::*;

    fn some(n: u64) -> Totals {
        let mut t = Totals { programs: 1, ..Totals::default() };
        t.counters[Counter::BytesSent as usize] = n;
        t.declined[Reason::Remote as usize] = 2 * n;
        t.unregistered[Reason::NoAgent as usize] = n.saturating_mul(3);
        t.waits.of_mut(Part::Slept).counts[4] = n;
        t
    }

    #[test]
    fn a_book_survives_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("totals.json");
        assert_eq!(Book::load(&path).unwrap().get(0), Totals::default());
        let mut book = Book::default();
        book.fold(7, "b", &some(1));
        book.fold(0, "a", &some(10));
        book.fold(7, "a", &some(100));
        book.save(&path).unwrap();
        let book = Book::load(&path).unwrap();
        assert_eq!(book.get(0).counters[Counter::BytesSent as usize], 111);
        assert_eq!(book.get(7).counters[Counter::BytesSent as usize], 101);
        assert_eq!(book.get(7).declined[Reason::Remote as usize], 202);
        assert_eq!(book.get(7).unregistered[Reason::NoAgent as usize], 303);
        assert_eq!((book.get(0).programs, book.get(7).programs), (3, 2));
        let slept = |waits: &Waits| waits.of(Part::Slept).counts[4];
        assert_eq!((slept(&book.get(0).waits), slept(&book.get(7).waits)), (111, 101));
        let by_program = book.programs.with([].into_iter());
        assert_eq!(
            by_program.values().map(|program| slept(&program.totals.waits)).collect::<Vec<_>>(),
            [110, 1]
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_runs_are_forgotten() {
        let mut book = Book::default();
        for run in 1..=RUNS as u64 {
            book.fold(run, "p", &some(1));
        }
        book.fold(1, "p", &some(1));
        book.fold(9999, "p", &some(1));
        assert_eq!(book.get(1).programs, 2);
        assert_eq!(book.get(2).programs, 0);
        assert_eq!(book.runs.len(), RUNS);
    }

    #[test]
    fn a_corrupt_file_is_an_error_and_sums_do_not_overflow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("totals.json");
        for text in ["", "{", "[]", r#"{"all":{"declined":{},"bytes_sent":-1},"runs":[]}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(Book::load(&path).is_err(), "{text}");
        }
        let mut book = Book::default();
        book.fold(1, "p", &some(u64::MAX / 2));
        book.fold(1, "p", &some(u64::MAX / 2));
        book.fold(1, "p", &some(u64::MAX / 2));
        assert_eq!(book.get(1).counters[Counter::BytesSent as usize], u64::MAX);
    }
}
