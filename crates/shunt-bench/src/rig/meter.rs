//! What processes cost: of those that live, by what the kernel counts per thread; of those that
//! have ended, by what it reports to their parent. Of what children of the rig's programs used that
//! have ended, the kernel tells processor time alone.

use std::collections::{BTreeMap, BTreeSet};
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

/// The pids of all processes of these groups, and of all that they have started: some servers give
/// each child a group of its own.
#[must_use]
pub fn members(groups: &[i32]) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<_> = pids.filter_map(|pid| Some((pid, Relations::of(pid)?))).collect();
    of_groups(&all, groups)
}

/// Those of `all` that are in these groups, or have an ancestor that is.
fn of_groups(all: &[(i32, Relations)], groups: &[i32]) -> Vec<i32> {
    let mut found = BTreeSet::new();
    loop {
        let before = found.len();
        for (pid, relations) in all {
            if groups.contains(&relations.group) || found.contains(&relations.parent) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return found.into_iter().collect();
        }
    }
}

/// Parent and process group.
#[derive(Clone, Copy, Debug)]
struct Relations {
    parent: i32,
    group: i32,
}

impl Relations {
    fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may hold anything: state, parent, group.
        let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
        Some(Self { parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
    }
}

/// Processor time of the children that a process has waited for, from its `stat`.
fn of_ended(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    // After the name: from the state on, the 14th and 15th field, `cutime` and `cstime`.
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(13);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs(ticks) / u32::try_from(ticks_per_second).ok().filter(|n| *n > 0)?)
}

fn living(groups: &Groups) -> BTreeMap<(i32, i32), Usage> {
    let mut all = BTreeMap::new();
    let ticks = rustix::param::clock_ticks_per_second();
    for pid in members(&groups.all()) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let cpu = of_ended(&stat, ticks).unwrap_or_default();
        // No thread has this number.
        all.insert((pid, 0), Usage { cpu, switches: 0 });
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
        assert!(members(&[Relations::of(own).unwrap().group]).contains(&own));
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 0 0 300 40 150 25 20 0 1 0 99 0";
        assert_eq!(of_ended(stat, 100), Some(Duration::from_millis(1750)));
        assert_eq!(of_ended("", 100), None);
    }

    #[test]
    fn children_with_groups_of_their_own_count() {
        let process = |pid, parent, group| (pid, Relations { parent, group });
        // A child is not always after its parent: numbers are used again.
        let all = [
            process(3, 20, 3),
            process(10, 1, 10),
            process(20, 10, 20),
            process(30, 1, 30),
            process(31, 30, 30),
        ];
        assert_eq!(of_groups(&all, &[10]), [3, 10, 20]);
        assert_eq!(of_groups(&all, &[30]), [30, 31]);
        assert!(of_groups(&all, &[]).is_empty());
    }
}
