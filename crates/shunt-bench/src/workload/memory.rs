//! What an idle connection holds.

use std::fs;
use std::time::Duration;

use super::row::{Better, Family, Outcome, Row};
use crate::failure::{Failure, Result};
use crate::rig::process::Process;
use crate::rig::{Budget, Session, meter};

static FAMILY: Family = Family {
    title: "Memory",
    meaning: "1,000 connections between one client and one server that have been used and are idle. The \
              figure is what a connection adds to the memory of all processes concerned, both ends and \
              the agent, in proportional set size, so shared pages count once; or to that of the kernel \
              (slab, page tables), which all pay that keep a kernel connection, and Shunt does. The \
              kernel's is measured on the whole machine, so on a busy one it varies.",
};

/// Connections that are counted.
const CONNECTIONS: usize = 1000;

/// How long connections may take to be made.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory that is held, in bytes.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// By the processes of the row and the agent.
    programs: f64,
    /// By the kernel, for itself.
    kernel: f64,
}

/// Bytes, from a line such as `Pss: 3 kB`.
fn bytes_of(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// What the kernel has taken for itself.
fn of_kernel(meminfo: &str) -> f64 {
    ["Slab", "PageTables", "KernelStack"].iter().filter_map(|name| bytes_of(meminfo, name)).sum()
}

/// What is held with so many connections open.
fn held(session: &Session<'_>, connections: usize) -> Result<Held> {
    let at = session.endpoint()?;
    let mut command = session.load("serve-many");
    command.args(["--at", &at.to_string()]);
    let server = session.serve(command, &at)?;
    let mut command = session.load("many");
    command.args(["--to", &at.to_string(), "--seconds", "0", "--active", "0"]);
    command.args(["--open", &connections.to_string()]);
    let client = session.start(command)?;
    client.wait_until(PATIENCE, Process::is_stopped)?;
    let mut groups = vec![server.pid(), client.pid()];
    groups.extend(session.agent().map(crate::rig::agent::Agent::pid));
    let mut sum = 0.0;
    for pid in meter::members(&groups) {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
        let bytes = rollup.ok().and_then(|text| bytes_of(&text, "Pss"));
        sum += bytes.ok_or_else(|| Failure::Skipped("the kernel has no smaps_rollup".into()))?;
    }
    let kernel = of_kernel(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    Ok(Held { programs: sum, kernel })
}

/// Bytes per idle connection.
pub fn rows() -> Vec<Row> {
    let row = |id: &str, title: &str, pick: fn(Held) -> f64| {
        let drive = move |session: &Session<'_>, _: Budget| {
            let (one, many) = (held(session, 1)?, held(session, 1 + CONNECTIONS)?);
            let value = (pick(many) - pick(one)).max(0.0) / CONNECTIONS as f64;
            Ok(Outcome { value, ..Outcome::default() })
        };
        Row::new(id, &FAMILY, title, drive).unit("B", Better::Lower).no_ratio().unix()
    };
    let title = "memory of an idle connection, both ends";
    vec![
        row("memory", title, |held| held.programs).quick(true),
        row("kernel-memory", &format!("the kernel's {title}"), |held| held.kernel),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        let text = "55d0-7ffe ---p 0 00:00 0  [rollup]\nRss:    2000 kB\nPss:     712 kB\n";
        assert_eq!(bytes_of(text, "Pss"), Some(712.0 * 1024.0));
        assert_eq!(bytes_of("", "Pss"), None);
        assert_eq!(of_kernel("Slab:  2 kB\nSlabX: 9 kB\nPageTables: 1 kB\n"), 3.0 * 1024.0);
    }
}
