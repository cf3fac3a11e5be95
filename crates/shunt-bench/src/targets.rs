//! What Shunt is to reach, as ratios to kernel TCP in the same run, and whether it did. The list
//! stands here alone; all output comes from it.

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::report::judged::{FIXED_GOAL, Judged};
use crate::report::row::{ResultReport, RowReport};

/// What is looked at. Of several rows the worst counts.
enum Measure {
    /// How many times better than kernel TCP this contender is, in the rows that begin so.
    Gain(Contender, &'static [&'static str]),
    /// The same of default settings, in the rows whose names begin so.
    Programs(&'static [&'static str]),
    /// Processor time for the same work, as a part of kernel TCP's, in all rows.
    Cpu,
    /// The figure in the first row as a part of that in the second.
    Rows(&'static str, &'static str),
    /// The figure in this row.
    Figure(&'static str),
    /// What the figure is above kernel TCP's, in this row.
    Beyond(&'static str),
    /// How many times better than the best of the other accelerators, in all rows.
    Ahead,
    /// How many times better default settings are than kernel TCP, in all rows of `shapes`.
    Shapes,
    /// The same against the best fixed length of spinning.
    Fixed,
}

/// A target.
struct Target {
    title: &'static str,
    measure: Measure,
    /// To be reached.
    goal: f64,
    /// To be dreamt of; not every target has such.
    moonshot: Option<f64>,
}

const fn gain(
    title: &'static str,
    contender: Contender,
    rows: &'static [&'static str],
    goal: f64,
    moonshot: f64,
) -> Target {
    Target { title, measure: Measure::Gain(contender, rows), goal, moonshot: Some(moonshot) }
}

const fn most(title: &'static str, row: &'static str, goal: f64) -> Target {
    Target { title, measure: Measure::Figure(row), goal, moonshot: None }
}

const NGINX_612: &[&str] =
    &["nginx.612.w1.c50", "nginx.612.w1.c100", "nginx.612.w1.c200", "nginx.612.w1.c400"];
const NGINX_1M: &[&str] =
    &["nginx.1M.w1.c50", "nginx.1M.w1.c100", "nginx.1M.w1.c200", "nginx.1M.w1.c400"];
const BULK: &[&str] = &["sockperf.throughput", "iperf3.1"];
const REDIS_1: &[&str] = &["redis.get.p1", "redis.set.p1"];
const REDIS_16: &[&str] = &["redis.get.p16", "redis.set.p16"];

const THREADS: &[&str] = &[
    "shapes.thread-poll.100",
    "shapes.thread-poll.400",
    "shapes.thread-recv.100",
    "shapes.thread-recv.400",
];

/// Programs by connections.
const PROGRAMS: &[&str] = &[
    "nginx.stock.",
    "redis.get.c",
    "postgres.",
    "haproxy.",
    "node.",
    "java.",
    "python.",
    "memcached.",
];
/// The same with one connection.
const ONE: &[&str] = &[
    "nginx.612.w1.c1",
    "nginx.stock.w1.c1",
    "redis.get.c1",
    "postgres.simple.c1",
    "postgres.prepared.c1",
    "haproxy.c1",
    "node.c1",
    "java.threads.c1",
    "java.nio.c1",
    "python.threads.c1",
    "memcached.c1",
];

const TARGETS: &[Target] = &[
    gain("ping-pong 14 B, one-way latency", Contender::Attach, &["sockperf.ping-pong"], 25.0, 40.0),
    gain("the same with --spin never", Contender::Never, &["sockperf.ping-pong"], 2.0, 3.0),
    gain("request/response 100 B", Contender::Attach, &["ipc.100"], 25.0, 40.0),
    gain("throughput: sockperf 64,000 B, iperf3 1 stream", Contender::Attach, BULK, 2.2, 2.4),
    gain("nginx + wrk 612 B, 50 to 400 connections", Contender::Attach, NGINX_612, 2.5, 3.5),
    gain("nginx + wrk 1 MB", Contender::Attach, NGINX_1M, 2.0, 2.5),
    gain("redis GET and SET -P 1", Contender::Attach, REDIS_1, 3.5, 6.0),
    gain("redis -P 16", Contender::Attach, REDIS_16, 1.3, 1.6),
    gain("connect + request + close", Contender::Attach, &["connect"], 0.95, 1.2),
    gain(
        "NVMe/TCP writes of 4 KiB, depth 64, one core a side",
        Contender::Attach,
        &["nvme.core.granted.write.4096"],
        6.0,
        12.0,
    ),
    gain(
        "NVMe/TCP write of 4 KiB, one at a time, one core a side",
        Contender::Attach,
        &["nvme.core.latency.write.4096"],
        8.0,
        20.0,
    ),
    Target {
        title: "NVMe/TCP writes of 4 KiB, with grants against without",
        measure: Measure::Rows("nvme.core.granted.write.4096", "nvme.core.ungranted.write.4096"),
        goal: 1.0,
        moonshot: Some(1.2),
    },
    Target {
        title: "NVMe/TCP writes of 4 KiB, against 512 B",
        measure: Measure::Rows("nvme.core.granted.write.4096", "nvme.core.granted.write.512"),
        goal: 0.9,
        moonshot: Some(0.97),
    },
    Target {
        title: "a guest's writes of 4 KiB, with grants against without",
        measure: Measure::Rows("nvme.disk.granted.write.4096", "nvme.disk.ungranted.write.4096"),
        goal: 1.3,
        moonshot: Some(2.0),
    },
    Target {
        title: "a guest's writes of 64 KiB, with grants against without",
        measure: Measure::Rows("nvme.disk.granted.write.65536", "nvme.disk.ungranted.write.65536"),
        goal: 2.0,
        moonshot: Some(4.0),
    },
    Target {
        title: "a guest's writes of 4 KiB, against the initiator's alone",
        measure: Measure::Rows("nvme.disk.granted.write.4096", "nvme.core.granted.write.4096"),
        goal: 0.8,
        moonshot: Some(0.9),
    },
    Target {
        title: "a guest's writes of 64 KiB, against the initiator's alone",
        measure: Measure::Rows("nvme.disk.granted.write.65536", "nvme.core.granted.write.65536"),
        goal: 0.8,
        moonshot: Some(0.9),
    },
    most("copies of a byte into a store that keeps nothing", "nvme.copies.null", 0.05),
    most("copies of a byte into a store in memory", "nvme.copies.memory", 1.05),
    most("copies of a byte into a store in a file", "nvme.copies.file", 1.05),
    Target {
        title: "2 completion vectors against 1",
        measure: Measure::Rows("vectors.2", "vectors.1"),
        goal: 1.0,
        moonshot: Some(2.0),
    },
    Target {
        title: "processor time for the same work, worst row",
        measure: Measure::Cpu,
        goal: 1.0,
        moonshot: Some(0.5),
    },
    gain("4 ping-pong pairs at once", Contender::Attach, &["pairs.4"], 2.0, 5.0),
    Target {
        title: "10,000 open connections, 10 active, against 10 open",
        measure: Measure::Rows("open.10000.10", "open.10.10"),
        goal: 0.95,
        moonshot: Some(1.0),
    },
    Target {
        title: "memory per idle connection beyond TCP's, bytes",
        measure: Measure::Beyond("memory"),
        goal: 8192.0,
        moonshot: Some(2048.0),
    },
    Target {
        title: "against the better of sockmap and UNIX socket, worst row",
        measure: Measure::Ahead,
        goal: 1.0,
        moonshot: None,
    },
    Target {
        title: "servers of all shapes, default settings, worst cell",
        measure: Measure::Shapes,
        goal: 1.0,
        moonshot: Some(1.5),
    },
    Target {
        title: "programs with 1 to 100 connections, worst row",
        measure: Measure::Programs(PROGRAMS),
        goal: 1.0,
        moonshot: Some(1.5),
    },
    gain("programs with 1 connection", Contender::Attach, ONE, 3.0, 10.0),
    gain("a thread per connection, 100 and 400 connections", Contender::Attach, THREADS, 1.3, 2.0),
    Target {
        title: "one connection beside 399 idle threads in recv, against none",
        measure: Measure::Rows("idle.thread-recv.400", "idle.thread-recv.1"),
        goal: 0.91,
        moonshot: Some(1.0),
    },
    Target {
        title: "one connection beside 399 idle threads in poll, against none",
        measure: Measure::Rows("idle.thread-poll.400", "idle.thread-poll.1"),
        goal: 0.91,
        moonshot: Some(1.0),
    },
    Target {
        title: "one connection beside 399 idle threads in an epoll instance each, against none",
        measure: Measure::Rows("idle.epoll-thread.400", "idle.epoll-thread.1"),
        goal: 0.91,
        moonshot: Some(1.0),
    },
    Target {
        title: "2,000 client processes of one server, against 20",
        measure: Measure::Rows("clients.2000", "clients.20"),
        goal: 0.8,
        moonshot: Some(1.0),
    },
    Target {
        title: "default settings against the best fixed spin, worst cell",
        measure: Measure::Fixed,
        goal: FIXED_GOAL,
        moonshot: Some(1.0),
    },
];

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Even the moonshot.
    Moonshot,
    /// What was to be reached.
    Reached,
    /// Not yet.
    Missed,
    /// Its rows were not in this run.
    NotMeasured,
}

impl Verdict {
    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Moonshot => "moonshot",
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A target, as it is reported.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetReport {
    /// For people.
    pub title: String,
    /// True when the figure is to be at most, false when at least, what is wanted.
    pub at_most: bool,
    /// To be reached.
    pub goal: f64,
    /// To be dreamt of.
    pub moonshot: Option<f64>,
    /// The figure.
    pub value: Option<f64>,
    /// The row that decided.
    pub row: Option<String>,
    /// How it went.
    pub verdict: Verdict,
}

impl Measure {
    const fn at_most(&self) -> bool {
        matches!(self, Self::Cpu | Self::Beyond(_) | Self::Figure(_))
    }

    /// The worst figure, and the row that it is from.
    fn take(&self, rows: &[RowReport]) -> Option<(f64, String)> {
        let find = |id: &str| rows.iter().find(|row| row.id == id);
        match self {
            Self::Gain(contender, names) => {
                let named = rows.iter().filter(|row| names.contains(&row.id.as_str()));
                worst(named.filter_map(|row| pick(row, row.result(*contender)?.gain)), false)
            }
            Self::Programs(names) => {
                let begins = |row: &&RowReport| names.iter().any(|name| row.id.starts_with(name));
                let gain = |row: &RowReport| row.result(Contender::Attach)?.gain;
                worst(rows.iter().filter(begins).filter_map(|row| pick(row, gain(row))), false)
            }
            Self::Cpu => {
                let cpu = |result: Option<&ResultReport>| result.and_then(|result| result.cpu);
                let part = |row: &RowReport| {
                    Some(cpu(row.result(Contender::Attach))? / cpu(row.kernel())?)
                };
                worst(rows.iter().filter_map(|row| pick(row, part(row))), true)
            }
            Self::Rows(one, other) => {
                let (one, other) = (find(one)?, find(other)?);
                let part = one.median(Contender::Attach)? / other.median(Contender::Attach)?;
                pick(one, Some(part))
            }
            Self::Figure(name) => {
                let row = find(name)?;
                pick(row, row.median(Contender::Attach))
            }
            Self::Beyond(name) => {
                let row = find(name)?;
                pick(row, Some(row.median(Contender::Attach)? - row.median(Contender::Tcp)?))
            }
            Self::Ahead => {
                let ahead = |row: &RowReport| {
                    let own = row.median(Contender::Attach)?;
                    let others = [Contender::Unix, Contender::Sockmap];
                    let gains = others.iter().filter_map(|c| row.gain(own, row.median(*c)?));
                    gains.min_by(f64::total_cmp)
                };
                // Memory, of which there is no ratio, has a target of its own.
                let rows = rows.iter().filter(|row| row.ratio);
                worst(rows.filter_map(|row| pick(row, ahead(row))), false)
            }
            Self::Shapes => {
                let cells = rows.iter().filter_map(Judged::of);
                worst(cells.filter_map(|cell| pick(cell.row, Some(cell.gain))), false)
            }
            Self::Fixed => {
                let cells = rows.iter().filter_map(Judged::of);
                worst(cells.filter_map(|cell| pick(cell.row, Some(cell.fixed?.0))), false)
            }
        }
    }
}

fn pick(row: &RowReport, figure: Option<f64>) -> Option<(f64, String)> {
    Some((figure?, row.id.clone()))
}

fn worst(figures: impl Iterator<Item = (f64, String)>, at_most: bool) -> Option<(f64, String)> {
    if at_most {
        figures.max_by(|a, b| a.0.total_cmp(&b.0))
    } else {
        figures.min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// Whether these rows reach the targets.
#[must_use]
pub fn judge(rows: &[RowReport]) -> Vec<TargetReport> {
    let judged = TARGETS.iter().map(|target| {
        let at_most = target.measure.at_most();
        let (value, row) = target.measure.take(rows).unzip();
        let meets = |wanted: f64| {
            value.is_some_and(|value| if at_most { value <= wanted } else { value >= wanted })
        };
        let verdict = match value {
            None => Verdict::NotMeasured,
            Some(_) if target.moonshot.is_some_and(meets) => Verdict::Moonshot,
            Some(_) if meets(target.goal) => Verdict::Reached,
            Some(_) => Verdict::Missed,
        };
        let (goal, moonshot) = (target.goal, target.moonshot);
        TargetReport { title: target.title.into(), at_most, goal, moonshot, value, row, verdict }
    });
    judged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    #[test]
    fn rows_of_targets_exist() {
        let rows = workload::all();
        let exists = |id: &str| assert!(rows.iter().any(|row| row.id == id), "{id}");
        for target in TARGETS {
            match target.measure {
                Measure::Gain(_, names) => names.iter().for_each(|id| exists(id)),
                Measure::Rows(one, other) => [one, other].into_iter().for_each(exists),
                Measure::Beyond(row) | Measure::Figure(row) => exists(row),
                Measure::Programs(names) => {
                    for name in names {
                        // Four numbers of connections, in each of the ways that it is run.
                        let count = rows.iter().filter(|row| row.id.starts_with(name)).count();
                        assert!(count > 0 && count.is_multiple_of(4), "{name}: {count}");
                    }
                }
                Measure::Cpu | Measure::Ahead | Measure::Shapes | Measure::Fixed => {}
            }
        }
    }

    #[test]
    fn the_worst_cell_decides() {
        use crate::report::shapes::tests::row;
        let rows = [
            row("shapes.poll.8", [100.0, 160.0, 90.0, 200.0]),
            row("shapes.thread-recv.100", [100.0, 120.0, 10.0, 110.0]),
        ];
        let judged = judge(&rows);
        let of = |title: &str| judged.iter().find(|t| t.title.contains(title)).unwrap();
        let decided = |title: &str| (of(title).value, of(title).row.as_deref(), of(title).verdict);
        let (poll, recv) = (Some("shapes.poll.8"), Some("shapes.thread-recv.100"));
        assert_eq!(decided("all shapes"), (Some(1.2), recv, Verdict::Reached));
        assert_eq!(decided("a thread per"), (Some(1.2), recv, Verdict::Missed));
        assert_eq!(decided("best fixed"), (Some(0.8), poll, Verdict::Missed));
    }

    #[test]
    fn the_worst_row_decides() {
        let row = |id: &str, tcp: f64, attach: f64| {
            let mut row = RowReport::of(workload::all().iter().find(|row| row.id == id).unwrap());
            row.results.push(ResultReport::measured(Contender::Tcp, &[tcp]));
            row.results.push(ResultReport::measured(Contender::Attach, &[attach]));
            row.compare();
            row
        };
        let rows = [
            row("redis.get.p1", 100.0, 700.0),
            row("redis.set.p1", 100.0, 400.0),
            row("redis.get.p16", 100.0, 100.0),
            row("sockperf.ping-pong", 8.0, 0.2),
            row("memory", 100.0, 6000.0),
        ];
        let judged = judge(&rows);
        let of = |title: &str| judged.iter().find(|t| t.title.starts_with(title)).unwrap();
        let redis = of("redis GET and SET");
        assert_eq!((redis.value, redis.row.as_deref()), (Some(4.0), Some("redis.set.p1")));
        assert_eq!(redis.verdict, Verdict::Reached);
        assert_eq!(of("redis -P 16").verdict, Verdict::Missed);
        assert_eq!(of("ping-pong").verdict, Verdict::Moonshot);
        assert_eq!(of("memory").verdict, Verdict::Reached);
        assert_eq!(of("connect").verdict, Verdict::NotMeasured);
    }
}
