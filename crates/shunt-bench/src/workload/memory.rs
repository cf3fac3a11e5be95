//! What an idle connection holds.

use std::fs;
use std::time::Duration;

use super::{Better, Budget, Family, Outcome, Row};
use crate::failure::{Failure, Result};
use crate::rig::process::Process;
use crate::rig::{Session, meter};

static FAMILY: Family = Family {
    title: "Memory",
    meaning: "1,000 connections between one client and one server that have been used and are idle. The \
              figure is what a connection adds to the memory of all processes concerned, both ends and \
              the agent, in proportional set size, so shared pages count once. The kernel's own \
              memory for a TCP connection is not in it: that is the same for all, since Shunt keeps \
              the TCP connection.",
};

/// Connections that are counted.
const CONNECTIONS: usize = 1000;

/// How long connections may take to be made.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes, by the kernel's `smaps_rollup`.
fn pss(rollup: &str) -> Option<f64> {
    let line = rollup.lines().find(|line| line.starts_with("Pss:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// The memory of all processes of the rig with so many connections open.
fn held(session: &Session<'_>, connections: usize) -> Result<f64> {
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
        let bytes = rollup.ok().and_then(|text| pss(&text));
        sum += bytes.ok_or_else(|| Failure::Skipped("the kernel has no smaps_rollup".into()))?;
    }
    Ok(sum)
}

/// Bytes per idle connection.
pub fn rows() -> Vec<Row> {
    let drive = |session: &Session<'_>, _: Budget| {
        let (one, many) = (held(session, 1)?, held(session, 1 + CONNECTIONS)?);
        let value = (many - one).max(0.0) / CONNECTIONS as f64;
        Ok(Outcome { value, ..Outcome::default() })
    };
    let title = "memory of an idle connection, both ends";
    vec![
        Row::new("memory", &FAMILY, title, drive)
            .unit("B", Better::Lower)
            .no_ratio()
            .unix()
            .quick(true),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        let text = "55d0-7ffe ---p 0 00:00 0  [rollup]\nRss:    2000 kB\nPss:     712 kB\n";
        assert_eq!(pss(text), Some(712.0 * 1024.0));
        assert_eq!(pss(""), None);
    }
}
