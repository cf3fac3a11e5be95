//! How often a byte is copied on its way into a store, by what host and target have counted.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::rig::{Budget, Session};
use crate::workload::row::{Better, Family, Outcome, Row};

static COPIES: Family = Family {
    title: "NVMe/TCP, copies of a byte",
    meaning: "Of writes of 64 KiB at depth 32 with grants: how often host and target copy a byte, by their counters. The \
              host copies what it has not granted; the target copies what it has not received straight into the store, \
              once more. What the kernel copies into a file comes on top.",
};

/// Where bytes go.
#[derive(Clone, Copy)]
enum Store {
    Null,
    Memory,
    File,
}

/// What was counted, in bytes.
#[derive(Clone, Copy, Default)]
struct Counted {
    written: f64,
    /// Received straight into the store.
    placed: f64,
    sent: f64,
    granted: f64,
}

impl Store {
    /// Copies of a byte.
    fn copies(self, counted: Counted) -> f64 {
        let Counted { written, placed, sent, granted } = counted;
        let by_host = (sent - granted) / sent;
        let by_target = match self {
            // It reads none.
            Self::Null => 0.0,
            // Where there is no place in the store: into a buffer, and from there.
            Self::Memory => 2.0 - placed / written,
            // Into a buffer, from which the kernel takes it.
            Self::File => 1.0,
        };
        by_host + by_target
    }
}

/// A figure of the metrics.
fn figure(text: &str, name: &str) -> Result<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.ok_or_else(|| Failure::failed(format!("the target's metrics have no {name}")))
}

fn metrics(socket: &Path) -> Result<String> {
    let mut stream = UnixStream::connect(socket).context("the target's metrics")?;
    let mut text = String::new();
    let asked = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
    asked.and_then(|()| stream.read_to_string(&mut text)).context("the target's metrics")?;
    Ok(text)
}

/// What the host has sent: it looks at its connections while they are open.
fn sent(text: &str) -> Result<(f64, f64)> {
    let seen: Value = serde_json::from_str(text).context("what shunt nvme bench printed")?;
    let connections = seen["connections"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |name: &str| connections.iter().filter_map(|one| one[name].as_f64()).sum::<f64>();
    let (sent, granted) = (sum("bytes_sent"), sum("bytes_granted"));
    if sent > 0.0 { Ok((sent, granted)) } else { Err(Failure::failed("nothing went by Shunt")) }
}

fn run(session: &Session<'_>, budget: Budget, store: Store) -> Result<Outcome> {
    if !session.contender.is_shunt() {
        return Err(Failure::Skipped("the kernel does not count copies".into()));
    }
    let at = session.endpoint()?;
    let place = format!("{}:{}", at.ip(), at.port());
    let socket = session.rig().new_path("metrics");
    let mut command = session.own();
    command.args(["nvme", "target", "--listen", &place, "--metrics"]);
    command.arg(format!("unix:{}", socket.display()));
    let file = session.rig().new_path("store");
    match store {
        Store::Null => command.args(["--null", "256MiB"]),
        Store::Memory => command.args(["--memory", "256MiB"]),
        Store::File => command.arg("--file").arg(&file).args(["--size", "256MiB"]),
    };
    let _target = session.serve(command, &at)?;
    let mut command = session.own();
    command.args(["nvme", "bench", "--json", "--to", &place, "--size", "65536", "--depth", "32"]);
    command.args(["--reads", "0", "--seconds", &budget.seconds.to_string()]);
    let (finished, cost) = session.metered(|| session.run(command, budget.patience()))?;
    let (sent, granted) = sent(&finished.stdout)?;
    let text = metrics(&socket)?;
    let written = figure(&text, "shunt_nvme_written_bytes_total")?;
    let placed = figure(&text, "shunt_nvme_placed_bytes_total")?;
    let _gone = std::fs::remove_file(&file);
    let value = store.copies(Counted { written, placed, sent, granted });
    Ok(Outcome {
        value,
        operations: written / 65_536.0,
        bytes: written,
        cost,
        ..Outcome::default()
    })
}

/// All of them.
pub(super) fn rows() -> Vec<Row> {
    let row = |(name, title, store): (&str, &str, Store)| {
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, store);
        Row::new(format!("nvme.copies.{name}"), &COPIES, title, drive)
            .unit("copies/byte", Better::Lower)
            .no_ratio()
            .contenders(&[Contender::Attach])
    };
    let all = [
        ("null", "Copies of a byte, store that keeps nothing", Store::Null),
        ("memory", "Copies of a byte, store in memory", Store::Memory),
        ("file", "Copies of a byte, store in a file", Store::File),
    ];
    all.map(row).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_neither_granted_nor_placed_are_copied_once_more() {
        let all = Counted { written: 100.0, placed: 100.0, sent: 102.0, granted: 102.0 };
        let copies = |store: Store, counted| (store.copies(counted) * 100.0).round();
        assert_eq!(copies(Store::Null, all), 0.0);
        assert_eq!(copies(Store::Memory, all), 100.0);
        assert_eq!(copies(Store::File, Counted { placed: 0.0, ..all }), 100.0);
        let some = Counted { placed: 90.0, granted: 51.0, ..all };
        assert_eq!(copies(Store::Memory, some), 160.0);
        assert_eq!(copies(Store::Null, some), 50.0);
    }

    #[test]
    fn what_the_programs_print() {
        let text = "# TYPE a counter\na_total 12\na 3\n";
        assert_eq!(figure(text, "a_total").unwrap(), 12.0);
        assert!(figure(text, "b_total").is_err());
        let text = r#"{"connections": [{"bytes_sent": 7, "bytes_granted": 5}, {"bytes_sent": 2}]}"#;
        assert_eq!(sent(text).unwrap(), (9.0, 5.0));
        assert!(sent("{}").is_err());
    }
}
