//! What the target counts, and metrics for a monitoring system: OpenMetrics text over HTTP, as the agent's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::text;
use prometheus_client::metrics::{counter, gauge};
use prometheus_client::registry::Registry;

/// What all names begin with.
const PREFIX: &str = "shunt_nvme";

shunt_metrics::counters! {
    Accepted "connections_accepted" "Connections that hosts have made",
    Refused "connections_refused" "Connections closed at once, as there were too many",
    Ended "connections_ended" "Connections that are over",
    CutOff "connections_cut_off" "Connections that the target ended: a broken rule, or too little time",
    Reads "reads" "Read commands completed",
    Writes "writes" "Write commands completed",
    Others "other_commands" "Other commands on I/O queues completed",
    Failures "failed_commands" "Commands on I/O queues completed with an error",
    BytesRead "read_bytes" "Bytes that hosts have read",
    BytesWritten "written_bytes" "Bytes that hosts have written",
    BytesLent "lent_bytes" "Bytes that hosts were given to read in place",
    BytesInPlace "placed_bytes" "Bytes that were received straight into a store",
    Waits "buffer_waits" "Commands that had to wait for a buffer",
    Reloads "reloads" "Configurations taken over while running",
    BadReloads "failed_reloads" "Configurations that could not be taken over",
}

/// Counts of one thread, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counts([AtomicU64; LIST.len()]);

impl Counts {
    /// Counts one.
    pub fn one(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts so many. One thread alone does.
    pub fn add(&self, counter: Counter, n: u64) {
        let value = &self.0[counter as usize];
        value.store(value.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
}

/// The counts of all threads.
#[derive(Clone, Debug, Default)]
pub struct Totals(pub Vec<Arc<Counts>>);

impl Totals {
    fn total(&self, index: usize) -> u64 {
        self.0.iter().map(|counts| counts.get(index)).sum()
    }

    /// Of one counter.
    #[must_use]
    pub fn of(&self, counter: Counter) -> u64 {
        self.total(counter as usize)
    }

    /// As OpenMetrics text.
    ///
    /// # Errors
    /// The encoder's, of which there is none.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        for (index, (name, help)) in LIST.iter().enumerate() {
            let metric = counter::Counter::<u64>::default();
            metric.inc_by(self.total(index));
            registry.register(*name, *help, metric);
        }
        let open: gauge::Gauge = gauge::Gauge::default();
        let now = self.of(Counter::Accepted).saturating_sub(self.of(Counter::Ended));
        open.set(i64::try_from(now).unwrap_or(i64::MAX));
        registry.register("connections", "Connections that are open", open);
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_added() {
        let totals = Totals(vec![Arc::default(), Arc::default()]);
        totals.0[0].one(Counter::Accepted);
        totals.0[1].add(Counter::Accepted, 2);
        totals.0[1].one(Counter::Ended);
        let text = totals.render().unwrap();
        assert!(text.contains("\nshunt_nvme_connections_accepted_total 3\n"), "{text}");
        assert!(text.contains("\nshunt_nvme_connections 2\n"), "{text}");
    }

    #[test]
    fn the_page_names_all_metrics() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nvme.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (name, help) in LIST {
            assert!(page.contains(&format!("| `{PREFIX}_{name}_total` | {help} |")), "{name}");
        }
    }
}
