//! The agent's knowledge, as OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry};
use rustix::fs::fstat;
use shunt_rdma::report::{PeerState, Promotion};
use shunt_shm::arena::Mode;
use shunt_wire::counter::Counter;
use shunt_wire::metric::{self, Kind, Metric, PREFIX, Unit};
use shunt_wire::reason::{REASON_SLOTS, Reason};
use shunt_wire::waits::{self as wire, Histogram, Part, Waits};

use crate::programs::OTHER;
use crate::report;
use crate::state::{Endpoint, State};

/// In place of a reason.
const NO_REASON: &str = "none";

type Labels = Vec<(&'static str, &'static str)>;
/// With the name of a program.
type WaitLabels = Vec<(&'static str, String)>;

/// A metric with its values.
#[derive(Debug)]
struct Family {
    metric: Metric,
    samples: Samples,
}

#[derive(Debug)]
enum Samples {
    Numbers(Vec<(Labels, u64)>),
    Waits(Vec<(WaitLabels, Histogram)>),
}

/// All metrics, at one moment.
#[derive(Debug)]
struct Snapshot(Vec<Family>);

/// Everything that is exposed.
///
/// # Errors
/// The encoder's, of which there is none.
pub(super) fn render(state: &State) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Snapshot::of(state)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Snapshot {
    fn of(state: &State) -> Self {
        let (totals, ended) = report::totals(state, 0, None);
        let counters = Counter::ALL.iter().map(|c| {
            let value = totals.counters[*c as usize];
            let samples = Samples::Numbers(vec![(Labels::new(), value)]);
            Family { metric: c.metric(), samples }
        });
        let programs = report::by_program(state, 0, None).into_iter();
        let mut by_program: BTreeMap<_, _> =
            programs.map(|(name, program)| (name, program.totals.waits)).collect();
        // From the start: what a scraper sees first of a series it does not count as added.
        by_program.entry(OTHER.to_owned()).or_default();
        let others = metric::OTHERS.iter().map(|metric| {
            let samples = match *metric {
                metric::WAITS => Samples::Waits(whole(&by_program)),
                metric::WAKE_UPS => Samples::Waits(wake_ups(&by_program)),
                metric => Samples::Numbers(match metric {
                    metric::DECLINED => by_reason(&totals.declined),
                    metric::UNREGISTERED => by_reason(&totals.unregistered),
                    metric::OPEN => open(state),
                    metric::RDMA_PEERS => peers(state),
                    metric::RDMA_PROMOTION => promotion(state),
                    metric::BUILD => vec![(vec![("version", env!("CARGO_PKG_VERSION"))], 1)],
                    metric => {
                        let live = totals.programs - ended;
                        vec![(Labels::new(), single(metric, state, live, ended))]
                    }
                }),
            };
            Family { metric: *metric, samples }
        });
        Self(counters.chain(others).collect())
    }
}

/// The value of a metric that has one.
fn single(metric: Metric, state: &State, live: u64, ended: u64) -> u64 {
    let count = |n: usize| n as u64;
    match metric {
        metric::LINK_GROUPS => count(state.regions.len()),
        metric::LINK_GROUP_MEMORY => state.regions.values().map(|r| taken(r.memory())).sum(),
        metric::REGISTERED_MEMORY => {
            state.endpoints.values().flat_map(Endpoint::exported).map(taken).sum()
        }
        metric::PROGRAMS_LIVE => live,
        metric::PROGRAMS_ENDED => ended,
        metric::LISTENERS => count(state.listeners.len()),
        metric::REJECTED_CLIENTS => state.rejected_clients(),
        metric::OTHER_VERSION_CLIENTS => state.other_versions.refused(),
        metric::STUCK_INSPECTORS => count(state.burden.0),
        metric::AGENT_MEMORY => resident().unwrap_or(0),
        metric::AGENT_UPTIME => state.started.elapsed().as_secs(),
        _ => 0,
    }
}

fn by_reason(counts: &[u64; REASON_SLOTS]) -> Vec<(Labels, u64)> {
    let sample = |r: &Reason| (vec![("reason", r.name())], counts[*r as usize]);
    Reason::ALL.iter().map(sample).collect()
}

/// Open connections, each in one sample. Those on TCP all have a reason, [`NO_REASON`] where there is none (code 0):
/// a sample without the label beside samples with it is taken for their sum.
fn open(state: &State) -> Vec<(Labels, u64)> {
    let (mut attach, mut copy, mut tcp) = (0, 0, [0; REASON_SLOTS]);
    for c in state.endpoints.values().flat_map(|endpoint| endpoint.arena.connections()) {
        match c.mode {
            Mode::Attach => attach += 1,
            Mode::Copy => copy += 1,
            Mode::Tcp => tcp[c.reason.map_or(0, |r| r as usize)] += 1,
        }
    }
    let of = |mode: Mode| vec![("mode", mode.name())];
    let shunted = [(of(Mode::Attach), attach), (of(Mode::Copy), copy)];
    let unexplained = (vec![("reason", NO_REASON)], tcp[0]);
    let on_tcp = std::iter::once(unexplained).chain(by_reason(&tcp)).map(|(mut labels, n)| {
        labels.splice(0..0, of(Mode::Tcp));
        (labels, n)
    });
    shunted.into_iter().chain(on_tcp).collect()
}

fn peers(state: &State) -> Vec<(Labels, u64)> {
    let sample =
        |(in_state, count): (PeerState, usize)| (vec![("state", in_state.name())], count as u64);
    state.count_peers().map(sample).to_vec()
}

fn promotion(state: &State) -> Vec<(Labels, u64)> {
    let sample = |(of, count): (Promotion, usize)| (vec![("judgement", of.name())], count as u64);
    state.count_promotion().map(sample).to_vec()
}

/// Waits of programs, by what ended them; where there is none but for those of [`OTHER`], there is no sample.
fn whole(by_program: &BTreeMap<String, Waits>) -> Vec<(WaitLabels, Histogram)> {
    let each = by_program.iter().flat_map(|(program, waits)| {
        Part::WHOLE.map(|part| {
            let labels = vec![("program", program.clone()), ("ended_by", part.name().to_owned())];
            (labels, *waits.of(part))
        })
    });
    each.filter(is_shown).collect()
}

/// The same of wake-ups.
fn wake_ups(by_program: &BTreeMap<String, Waits>) -> Vec<(WaitLabels, Histogram)> {
    let each = by_program
        .iter()
        .map(|(program, waits)| (vec![("program", program.clone())], *waits.of(Part::WakeUp)));
    each.filter(is_shown).collect()
}

fn is_shown((labels, waits): &(WaitLabels, Histogram)) -> bool {
    waits.count() > 0 || labels.iter().any(|(_, program)| program == OTHER)
}

/// The buckets by where they end, in seconds: one for each doubling.
#[allow(clippy::cast_precision_loss, reason = "powers of two")]
fn buckets(waits: &Histogram) -> Vec<(f64, u64)> {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let mut buckets = Vec::new();
    let mut sum: u64 = 0;
    for (i, n) in waits.counts.iter().enumerate() {
        sum = sum.saturating_add(*n);
        let end = wire::end(i);
        if end.is_none_or(u64::is_power_of_two) {
            buckets.push((end.map_or(f64::INFINITY, seconds), std::mem::take(&mut sum)));
        }
    }
    buckets
}

/// Pages that a memfd has, in bytes. It reserves far more than it takes. The memory is known to be the kernel's own, so
/// asking does not wait for anybody.
fn taken(memory: impl AsFd) -> u64 {
    const BLOCK: u64 = 512;
    fstat(memory).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK)
}

/// Bytes of this process that are in memory (proc_pid_statm(5)).
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

impl Family {
    fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let Metric { stem, unit, kind, help, .. } = self.metric;
        let unit = unit.map(|unit| match unit {
            Unit::Bytes => registry::Unit::Bytes,
            Unit::Seconds => registry::Unit::Seconds,
        });
        let kind = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Info => MetricType::Info,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut encoder = encoder.encode_descriptor(stem, help.trim(), unit.as_ref(), kind)?;
        match &self.samples {
            Samples::Numbers(samples) => {
                samples.iter().try_for_each(|(labels, value)| match self.metric.kind {
                    Kind::Info => encoder.encode_info(labels),
                    _ if labels.is_empty() => self.sample(&mut encoder, *value),
                    _ => self.sample(&mut encoder.encode_family(labels)?, *value),
                })
            }
            Samples::Waits(samples) => samples.iter().try_for_each(|(labels, waits)| {
                let mut encoder = encoder.encode_family(labels)?;
                #[allow(clippy::cast_precision_loss, reason = "seconds of a sum")]
                let sum = waits.sum as f64 / 1e9;
                encoder.encode_histogram::<NoLabelSet>(sum, waits.count(), &buckets(waits), None)
            }),
        }
    }

    fn sample(&self, encoder: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
        match self.metric.kind {
            Kind::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            Kind::Gauge | Kind::Info | Kind::Histogram => encoder.encode_gauge(&value),
        }
    }
}
