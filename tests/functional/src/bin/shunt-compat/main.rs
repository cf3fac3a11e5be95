//! Renders `docs/compatibility.md` from the record that functional tests wrote.

mod page;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use clap::Parser;
use shunt_bench::machine::{Machine, date};
use shunt_functional::compat;

/// Renders docs/compatibility.md from a record of what was tried.
#[derive(Parser)]
struct Options {
    /// The directory that `SHUNT_TEST_RECORD` named.
    record: PathBuf,
    /// The file to write.
    page: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shunt-compat: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let entries = compat::read(&options.record)?;
    if entries.is_empty() {
        return Err(io::Error::other("the record is empty"));
    }
    let machine = Machine::look();
    let place = page::Place {
        // The day is enough: how late it was says nothing.
        day: today().split('T').next().unwrap_or_default().to_owned(),
        system: machine.system,
        kernel: machine.kernel,
        libc: libc_version(),
    };
    fs::write(&options.page, page::render(&place, &entries))
}

fn today() -> String {
    date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// As `getconf` says it: "glibc 2.36".
fn libc_version() -> String {
    let out = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}
