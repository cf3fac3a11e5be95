//! What an emulated disk counts, and metrics for a monitoring system: OpenMetrics text, as the target's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, counter, gauge};
use prometheus_client::registry::Registry;

use crate::port::{Op, Outcome, Traffic};

/// What all names begin with.
pub const PREFIX: &str = "shunt_disk";

shunt_metrics::counters! {
    Reads "reads" "Reads that guests have had answered",
    Writes "writes" "Writes that guests have had answered",
    Compares "compares" "Comparisons that guests have had answered",
    Flushes "flushes" "Flushes that guests have had answered",
    Discards "discards" "Requests to give blocks up, or to make them zero, that were answered",
    Failures "failed_requests" "Requests answered with an error, of all kinds",
    Refused "refused_requests" "Requests refused without asking the target: wrong, or not supported",
    BytesRead "read_bytes" "Bytes that guests have read",
    BytesWritten "written_bytes" "Bytes that guests have written",
    BytesOffered "offered_bytes" "Bytes sent to the target as memory that it may read in place",
    BytesCopied "copied_bytes" "Bytes sent to the target by way of a copy",
    Repeated "repeated_commands" "Times that a command to the target had to wait for a connection anew",
    BrokenRings "broken_rings" "Rings of guests that could not be read any more",
    FrontEnds "front_ends" "Front ends (QEMU) that have connected",
    FrontEndsGone "front_ends_gone" "Front ends that are gone",
}

/// Upper bounds of the buckets of latencies, in microseconds.
const BOUNDS: [u32; 18] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 5_000_000, 30_000_000,
];

/// Requests whose latency is told separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// All others.
    Other,
}

/// Names and descriptions, in the order of [`Kind`].
const LATENCIES: [(&str, &str); 3] = [
    ("read_latency_seconds", "How long reads took, from the ring and back"),
    ("write_latency_seconds", "The same of writes"),
    ("other_latency_seconds", "The same of all other requests"),
];

impl Kind {
    /// That of a request.
    #[must_use]
    pub const fn of(op: &Op) -> Self {
        match op {
            Op::Read { .. } => Self::Read,
            Op::Write { .. } => Self::Write,
            Op::Compare { .. } | Op::Flush | Op::Discard(_) | Op::WriteZeroes { .. } => Self::Other,
        }
    }
}

/// How many took how long.
#[derive(Debug, Default)]
struct Latency {
    /// By bucket; the last one has no bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    /// Of all, in nanoseconds.
    sum: AtomicU64,
}

impl Latency {
    fn add(&self, took: Duration) {
        // Rounded up, as the bounds belong to their buckets.
        let micros = took.as_nanos().div_ceil(1000);
        let bucket = BOUNDS.partition_point(|bound| u128::from(*bound) < micros);
        add(&self.buckets[bucket], 1);
        add(&self.sum, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// One thread alone does.
fn add(to: &AtomicU64, n: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// A request, as far as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    counter: Counter,
    kind: Kind,
    bytes: u64,
}

impl Asked {
    /// A request with so many bytes of data.
    #[must_use]
    pub const fn of(op: &Op, bytes: u64) -> Self {
        let counter = match op {
            Op::Read { .. } => Counter::Reads,
            Op::Write { .. } => Counter::Writes,
            Op::Compare { .. } => Counter::Compares,
            Op::Flush => Counter::Flushes,
            Op::Discard(_) | Op::WriteZeroes { .. } => Counter::Discards,
        };
        Self { counter, kind: Kind::of(op), bytes }
    }
}

/// Counts of one thread, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counts {
    counters: [AtomicU64; LIST.len()],
    latencies: [Latency; LATENCIES.len()],
}

impl Counts {
    /// Counts one.
    pub fn one(&self, counter: Counter) {
        add(&self.counters[counter as usize], 1);
    }

    /// Counts a request that the disk has answered.
    pub fn answered(&self, asked: Asked, outcome: Outcome, took: Duration) {
        self.one(asked.counter);
        self.latencies[asked.kind as usize].add(took);
        match (outcome, asked.kind) {
            (Outcome::Done, Kind::Read) => {
                add(&self.counters[Counter::BytesRead as usize], asked.bytes);
            }
            (Outcome::Done, Kind::Write) => {
                add(&self.counters[Counter::BytesWritten as usize], asked.bytes);
            }
            (Outcome::Done, Kind::Other) => {}
            (Outcome::Failed | Outcome::Unsupported, _) => self.one(Counter::Failures),
        }
    }

    /// Counts what a lane has sent between two looks.
    pub fn sent(&self, before: Traffic, now: Traffic) {
        add(&self.counters[Counter::BytesOffered as usize], now.offered - before.offered);
        add(&self.counters[Counter::BytesCopied as usize], now.copied - before.copied);
        add(&self.counters[Counter::Repeated as usize], now.repeated - before.repeated);
    }
}

/// How a way to the target is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathState {
    /// Where it leads.
    pub address: String,
    /// It can be used.
    pub is_up: bool,
    /// How often it was connected.
    pub connects: u64,
}

/// The counts of all threads: one for each ring, and the one that serves.
#[derive(Clone, Debug)]
pub struct Totals {
    /// By ring.
    rings: Vec<Arc<Counts>>,
    serving: Arc<Counts>,
}

/// Latencies of a kind, of all threads.
#[derive(Debug)]
struct Histogram {
    /// Bounds in seconds, and how many.
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl Totals {
    /// For so many rings.
    #[must_use]
    pub fn new(rings: usize) -> Self {
        Self { rings: (0..rings).map(|_| Arc::default()).collect(), serving: Arc::default() }
    }

    /// Those of a ring's thread.
    #[must_use]
    pub fn ring(&self, index: usize) -> Arc<Counts> {
        self.rings.get(index).map(Arc::clone).unwrap_or_default()
    }

    /// Those of the thread that serves.
    #[must_use]
    pub fn serving(&self) -> &Counts {
        &self.serving
    }

    fn all(&self) -> impl Iterator<Item = &Counts> {
        self.rings.iter().chain([&self.serving]).map(|counts| &**counts)
    }

    fn total(&self, index: usize) -> u64 {
        self.all().map(|counts| counts.counters[index].load(Ordering::Relaxed)).sum()
    }

    /// Of one counter.
    #[must_use]
    pub fn of(&self, counter: Counter) -> u64 {
        self.total(counter as usize)
    }

    #[expect(clippy::cast_precision_loss, reason = "a sum of times is no exact number")]
    fn latency(&self, index: usize) -> Histogram {
        let sum_of = |of: &dyn Fn(&Latency) -> &AtomicU64| -> u64 {
            self.all().map(|counts| of(&counts.latencies[index]).load(Ordering::Relaxed)).sum()
        };
        let bound = |n: usize| BOUNDS.get(n).map_or(f64::INFINITY, |bound| f64::from(*bound) / 1e6);
        let buckets = (0..=BOUNDS.len()).map(|n| (bound(n), sum_of(&|of| &of.buckets[n])));
        Histogram { buckets: buckets.collect(), sum: sum_of(&|of| &of.sum) as f64 / 1e9 }
    }

    /// As OpenMetrics text, with how the ways to the target are.
    ///
    /// # Errors
    /// The encoder's, of which there is none.
    pub fn render(&self, paths: &[PathState]) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        for (index, (name, help)) in LIST.iter().enumerate() {
            let metric = counter::Counter::<u64>::default();
            metric.inc_by(self.total(index));
            registry.register(*name, *help, metric);
        }
        for (index, (name, help)) in LATENCIES.iter().enumerate() {
            registry.register(*name, *help, self.latency(index));
        }
        let up = Family::<[(&str, String); 1], gauge::Gauge>::default();
        let connects = Family::<[(&str, String); 1], counter::Counter>::default();
        for path in paths {
            let label = [("address", path.address.clone())];
            up.get_or_create(&label).set(path.is_up.into());
            connects.get_or_create(&label).inc_by(path.connects);
        }
        registry.register(PATHS[0].0, PATHS[0].2, up);
        registry.register(PATHS[1].0, PATHS[1].2, connects);
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Names, what the page calls them, and descriptions.
const PATHS: [(&str, &str, &str); 2] = [
    ("path_up", "path_up", "1 where the target can be reached by this path, named by its address"),
    (
        "path_connects",
        "path_connects_total",
        "Times that this path was connected; the first one counts",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_added() {
        let totals = Totals::new(2);
        let write = Asked::of(&Op::Write { block: 0 }, 512);
        let read = Asked::of(&Op::Read { block: 0 }, 4096);
        totals.ring(0).answered(write, Outcome::Done, Duration::from_micros(20));
        totals.ring(1).answered(write, Outcome::Failed, Duration::from_nanos(20_001));
        totals.ring(1).answered(read, Outcome::Done, Duration::from_secs(60));
        let before = Traffic { offered: 1, copied: 2, repeated: 3 };
        totals.ring(0).sent(before, Traffic { offered: 11, copied: 22, repeated: 33 });
        totals.serving().one(Counter::FrontEnds);
        let address = "127.0.0.1:4420".to_owned();
        let text = totals.render(&[PathState { address, is_up: true, connects: 3 }]).unwrap();
        for line in [
            "writes_total 2",
            "written_bytes_total 512",
            "reads_total 1",
            "read_bytes_total 4096",
            "failed_requests_total 1",
            "offered_bytes_total 10",
            "copied_bytes_total 20",
            "repeated_commands_total 30",
            "front_ends_total 1",
            // Bounds belong to their buckets, and buckets count all below them.
            "write_latency_seconds_bucket{le=\"0.00001\"} 0",
            "write_latency_seconds_bucket{le=\"0.00002\"} 1",
            "write_latency_seconds_bucket{le=\"0.00005\"} 2",
            "write_latency_seconds_count 2",
            "write_latency_seconds_sum 0.000040001",
            "read_latency_seconds_bucket{le=\"30.0\"} 0",
            "read_latency_seconds_bucket{le=\"+Inf\"} 1",
            "other_latency_seconds_count 0",
            "path_up{address=\"127.0.0.1:4420\"} 1",
            "path_connects_total{address=\"127.0.0.1:4420\"} 3",
        ] {
            assert!(text.contains(&format!("\n{PREFIX}_{line}\n")), "{line}: {text}");
        }
    }

    #[test]
    fn the_page_names_all_metrics() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nvme.md");
        let page = std::fs::read_to_string(page).unwrap();
        let counters = LIST.iter().map(|(name, help)| (format!("{name}_total"), *help));
        let latencies = LATENCIES.iter().map(|(name, help)| ((*name).to_owned(), *help));
        let paths = PATHS.iter().map(|(_, name, help)| ((*name).to_owned(), *help));
        for (name, help) in counters.chain(latencies).chain(paths) {
            assert!(page.contains(&format!("| `{PREFIX}_{name}` | {help} |")), "{name}");
        }
    }
}
