//! What processes cost: of those that live, by what the kernel counts per thread; of those that
//! have ended, by what it reports to their parent.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use shunt_sys::bpf::CallCounter;
use shunt_sys::usage::{self, Usage};

use super::process::Groups;

/// What programs have cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Processor time, in user and in kernel mode.
    pub cpu: Duration,
    /// Context switches, of both kinds.
    pub switches: u64,
    /// System calls, if they were counted.
    pub calls: Option<u64>,
}

/// What had been used when a measurement began.
pub struct Meter {
    counter: Option<CallCounter>,
    children: Usage,
    living: BTreeMap<(i32, i32), Usage>,
}

impl Meter {
    /// Begins; the counter counts already.
    #[must_use]
    pub fn start(groups: &Groups, counter: Option<CallCounter>) -> Self {
        Self { counter, children: usage::of_children(), living: living(groups) }
    }

    /// What was used since, by processes of the groups and by children that were started and have
    /// ended since.
    #[must_use]
    pub fn stop(self, groups: &Groups) -> Cost {
        let calls = self.counter.and_then(|counter| counter.calls().ok());
        let children = usage::of_children();
        let mut sum = less(children, self.children);
        for (thread, now) in living(groups) {
            let before = self.living.get(&thread).copied().unwrap_or_default();
            let used = less(now, before);
            sum.cpu += used.cpu;
            sum.switches += used.switches;
        }
        Cost { cpu: sum.cpu, switches: sum.switches, calls }
    }
}

fn less(now: Usage, before: Usage) -> Usage {
    Usage {
        cpu: now.cpu.saturating_sub(before.cpu),
        switches: now.switches.saturating_sub(before.switches),
    }
}

/// The pids of all processes of these groups.
#[must_use]
pub fn members(groups: &[i32]) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| group_of(*pid).is_some_and(|group| groups.contains(&group))).collect()
}

fn group_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: state, parent, group.
    stat.rsplit(')').next()?.split_whitespace().nth(2)?.parse().ok()
}

fn living(groups: &Groups) -> BTreeMap<(i32, i32), Usage> {
    let mut all = BTreeMap::new();
    for pid in members(&groups.all()) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let path = task.path();
            let Some(tid) = task.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
            let cpu = on_cpu(&read("schedstat")).unwrap_or_default();
            all.insert((pid, tid), Usage { cpu, switches: switches(&read("status")) });
        }
    }
    all
}

/// The first field of `schedstat`: nanoseconds on a processor.
fn on_cpu(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Both kinds of context switches, from `status`.
fn switches(status: &str) -> u64 {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| name.ends_with("voluntary_ctxt_switches"))
        .filter_map(|(_, n)| n.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        assert_eq!(on_cpu("1500 20 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(on_cpu(""), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(switches(status), 11);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(members(&[group_of(own).unwrap()]).contains(&own));
    }
}
