//! A disk over NVMe/TCP: `shunt nvme bench` against `shunt nvme target`.

mod common;
mod copies;
mod disk;

use serde_json::Value;

use crate::failure::{Context, Failure, Result};
use crate::rig::{Budget, Session};
use crate::stats::Quantile;
use crate::workload::ipc::size_of_text;
use crate::workload::nvme::common::{DEPTH, NO_SOCKMAP};
use crate::workload::row::{Better, Family, Outcome, Row};

static GRANTED: Family = Family {
    title: "NVMe/TCP, granted",
    meaning: "shunt nvme bench and shunt nvme target with a store that keeps nothing, one queue, commands anywhere on the \
              disk. Under Shunt the target may read what is written where it is, and the response stands for the completion; \
              over kernel TCP everything is copied.",
};

static UNGRANTED: Family = Family {
    title: "NVMe/TCP, without grants",
    meaning: "The same with --no-grant: Shunt's programs copy what is written into the ring and out of it. The contender \
              \"Shunt copy\" is another thing: a device that cannot map the peer's memory, with which nothing is granted.",
};

static LATENCY: Family = Family {
    title: "NVMe/TCP, one command in flight",
    meaning: "The same with grants and one command at a time. The figure is the mean time from submission to completion.",
};

static CORES: Family = Family {
    title: "NVMe/TCP, one core a side",
    meaning: "The same, granted and not, with the target on one processor and the initiator on another one. So no idle \
              processor takes over what the kernel, or a thread, does for either.",
};

/// Bytes of commands.
const WRITES: [usize; 5] = [512, 4096, 16_384, 65_536, 131_072];
const READS: [usize; 2] = [4096, 65_536];
/// Bytes of writes with a core a side.
const PINNED: [usize; 5] = [512, 4096, 16_384, 65_536, 131_072];
/// The other places of the curve.
const DEPTHS: [u32; 4] = [1, 4, 16, 128];

/// What is measured.
#[derive(Clone, Copy)]
struct Load {
    size: usize,
    depth: u32,
    reads: u8,
    grant: bool,
    /// Target and initiator have a processor each, and no other one.
    pinned: bool,
    /// Data goes with its command, however much it is.
    with_command: bool,
}

/// What is served where data goes with its command.
const CONFIGURATION: &str = r#"
[limits]
in-capsule = "1MiB"
[[subsystem]]
nqn = "nqn.2024-01.org.shunt:target"
hosts = "any"
[[subsystem.namespace]]
store = "null"
size = "4GiB"
"#;

fn run(session: &Session<'_>, budget: Budget, load: Load) -> Result<Outcome> {
    let at = session.endpoint()?;
    let place = format!("{}:{}", at.ip(), at.port());
    let block = if load.size < 4096 { "512" } else { "4096" };
    if load.pinned {
        session.take_core(0);
    }
    let mut command = session.own();
    command.args(["nvme", "target"]);
    if load.with_command {
        let path = session.dir().join("target.toml");
        let text = format!("listen = [\"{place}\"]\n{CONFIGURATION}");
        std::fs::write(&path, text).context("the target's configuration")?;
        command.arg("--config").arg(path);
    } else {
        command.args(["--null", "4GiB", "--block-size", block, "--listen", &place]);
    }
    let _server = session.serve(command, &at)?;
    if load.pinned {
        session.take_core(1);
    }
    let (finished, cost) = session.metered(|| {
        let mut command = session.own();
        command.args(["nvme", "bench", "--json", "--to", &place]);
        command.args(["--seconds", &budget.seconds.to_string(), "--size", &load.size.to_string()]);
        command.args(["--depth", &load.depth.to_string(), "--reads", &load.reads.to_string()]);
        if !load.grant {
            command.arg("--no-grant");
        }
        session.run(command, budget.patience())
    })?;
    let outcome = outcome(&finished.stdout, load.size)?;
    Ok(Outcome { cost, ..outcome })
}

/// What the program prints, as commands in a second.
fn outcome(text: &str, size: usize) -> Result<Outcome> {
    let seen: Value = serde_json::from_str(text).context("what shunt nvme bench printed")?;
    let number = |name: &str| {
        let missing = || Failure::failed(format!("shunt nvme bench printed no {name}"));
        seen[name].as_f64().ok_or_else(missing)
    };
    let operations = number("reads")? + number("writes")?;
    let at = |name, q| Ok(Quantile { q, us: number(name)? });
    let latency = [("latency_p50_us", 0.5), ("latency_p99_us", 0.99), ("latency_p999_us", 0.999)];
    let latency: Result<_> = latency.into_iter().map(|(name, q)| at(name, q)).collect();
    let bytes = operations * size as f64;
    Ok(Outcome {
        value: number("iops")?,
        operations,
        bytes,
        latency: latency?,
        ..Outcome::default()
    })
}

/// A row of commands in a second.
fn rate(name: &str, family: &'static Family, load: Load) -> Row {
    let Load { size, depth, reads, grant, pinned, with_command } = load;
    let what = if reads > 0 { "read" } else { "write" };
    let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, load);
    let suffix = if depth == DEPTH { String::new() } else { format!(".q{depth}") };
    let how = if grant { "granted" } else { "without grants" };
    let place = if pinned { ", one core a side" } else { "" };
    let sent = if with_command { ", data with the command" } else { "" };
    let title =
        format!("NVMe/TCP {what} of {}, depth {depth}, {how}{sent}{place}", size_of_text(size));
    let row = Row::new(format!("nvme.{name}.{what}{suffix}.{size}"), family, title, drive);
    let row = row.no_sockmap(NO_SOCKMAP);
    if pinned {
        row
    } else if depth == DEPTH {
        row.point(&format!("NVMe/TCP {what}s, {how}"), "bytes", size as f64)
    } else {
        row.point(
            &format!("NVMe/TCP {what}s of {}, {how}", size_of_text(size)),
            "depth",
            depth.into(),
        )
    }
}

/// All of them.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, family, grant) in [("granted", &GRANTED, true), ("ungranted", &UNGRANTED, false)] {
        let load = |size, depth, reads| Load {
            size,
            depth,
            reads,
            grant,
            pinned: false,
            with_command: false,
        };
        rows.extend(WRITES.map(|size| rate(name, family, load(size, DEPTH, 0))));
        rows.extend(READS.map(|size| rate(name, family, load(size, DEPTH, 100))));
    }
    let usual = Load {
        size: 4096,
        depth: DEPTH,
        reads: 0,
        grant: true,
        pinned: false,
        with_command: false,
    };
    let curve = DEPTHS.into_iter().map(|depth| rate("granted", &GRANTED, Load { depth, ..usual }));
    rows.extend(curve);
    rows.push(alone("nvme.latency.write.4096", &LATENCY, "", Load { depth: 1, ..usual }));
    let pinned = Load { pinned: true, ..usual };
    for size in PINNED {
        rows.push(rate("core.granted", &CORES, Load { size, ..pinned }));
        rows.push(rate("core.ungranted", &CORES, Load { size, grant: false, ..pinned }));
    }
    let large = Load { size: 131_072, with_command: true, ..pinned };
    rows.push(rate("core.granted.capsule", &CORES, large));
    rows.push(rate("core.ungranted.capsule", &CORES, Load { grant: false, ..large }));
    let id = "nvme.core.latency.write.4096";
    rows.push(alone(id, &CORES, ", one core a side", Load { depth: 1, ..pinned }));
    rows.extend(disk::rows());
    rows.extend(copies::rows());
    rows
}

/// A row of the time that a command takes by itself.
fn alone(id: &str, family: &'static Family, place: &str, load: Load) -> Row {
    let drive = move |session: &Session<'_>, budget: Budget| {
        let outcome = run(session, budget, load)?;
        Ok(Outcome { value: 1e6 / outcome.value, ..outcome })
    };
    let title = format!("NVMe/TCP write of 4 KiB, one at a time{place}");
    Row::new(id, family, title, drive).unit("µs", Better::Lower).no_sockmap(NO_SOCKMAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row is at one place of one curve, and all rows of a curve have the same unit.
    #[test]
    fn curves_can_be_drawn() {
        let mut seen = std::collections::HashMap::<String, (&str, Vec<f64>)>::new();
        for row in rows() {
            let may = row.contenders.contains(&crate::contender::Contender::Sockmap);
            let excluded = row.excludes(crate::contender::Contender::Sockmap).is_some();
            assert!(excluded || !may, "{}", row.id);
            let Some(point) = row.point else { continue };
            let (unit, places) = seen.entry(point.curve).or_insert((row.unit, Vec::new()));
            assert_eq!(*unit, row.unit, "{}", row.id);
            assert!(!places.contains(&point.x), "{}", row.id);
            places.push(point.x);
        }
        assert_eq!(seen["NVMe/TCP writes, granted"].1.len(), WRITES.len());
        assert_eq!(seen["NVMe/TCP writes of 4 KiB, granted"].1.len(), DEPTHS.len());
    }

    #[test]
    fn what_the_program_prints() {
        let text = r#"{ "reads": 10, "writes": 20, "iops": 1500.5, "latency_p50_us": 1.0,
                        "latency_p99_us": 2.0, "latency_p999_us": 3.0 }"#;
        let seen = outcome(text, 4096).unwrap();
        assert_eq!((seen.value, seen.operations, seen.bytes), (1500.5, 30.0, 122_880.0));
        assert_eq!(seen.latency[2], Quantile { q: 0.999, us: 3.0 });
        assert!(outcome("{}", 4096).is_err() && outcome("shunt: no", 4096).is_err());
    }
}
