//! The machine, the programs, and the day.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::system::uname;
use serde::{Deserialize, Serialize};

use crate::rig::program;

/// On what figures were measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that can be used.
    pub cores: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// The kernel's congestion control for TCP.
    pub congestion_control: String,
    /// The part of the processors that other programs used just before the run.
    pub busy: f64,
    /// Versions of the programs that are driven.
    pub programs: BTreeMap<String, String>,
}

/// Programs, their packages, and how to ask for the version.
const PROGRAMS: [(&str, &str, &str); 11] = [
    ("nginx", "nginx", "-v"),
    ("wrk", "wrk", "-v"),
    ("redis-server", "redis-server", "--version"),
    ("sockperf", "sockperf", "--version"),
    ("iperf3", "iperf3", "--version"),
    ("postgres", "postgresql", "--version"),
    ("haproxy", "haproxy", "-v"),
    ("node", "nodejs", "--version"),
    ("java", "default-jre-headless", "-version"),
    ("python3", "python3", "--version"),
    ("memcached", "memcached", "--version"),
];

impl Machine {
    /// This one.
    #[must_use]
    pub fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once([':', '=']));
            value.map(|(_, v)| v.trim().trim_matches('"').to_owned()).unwrap_or_default()
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal");
        let kib = kib.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kib * 1024,
            kernel: uname().release().to_string_lossy().into_owned(),
            system: field(&read("/etc/os-release"), "PRETTY_NAME"),
            congestion_control: congestion_control(),
            busy: busy(),
            programs: versions(),
        }
    }
}

/// The kernel's congestion control for TCP.
#[must_use]
pub fn congestion_control() -> String {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    text.unwrap_or_default().trim().to_owned()
}

/// How long the machine is watched for what others do.
const WATCH: Duration = Duration::from_millis(300);

fn busy() -> f64 {
    let look = || times(&fs::read_to_string("/proc/stat").unwrap_or_default());
    let (all, idle) = look();
    std::thread::sleep(WATCH);
    let (all_later, idle_later) = look();
    let (all, idle) = (all_later - all, idle_later - idle);
    if all > 0.0 { 1.0 - idle / all } else { 0.0 }
}

/// All processor time, and that in which nothing was to be done, from `/proc/stat`.
fn times(stat: &str) -> (f64, f64) {
    let first = stat.lines().next().unwrap_or_default();
    let fields: Vec<f64> =
        first.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; what follows is in user already.
    let idle = fields.iter().skip(3).take(2).sum();
    (fields.iter().take(8).sum(), idle)
}

fn versions() -> BTreeMap<String, String> {
    let version = |name: &str, package: &str, option: &str| {
        let output = Command::new(program(name, package).ok()?).arg(option).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        version_in(&String::from_utf8_lossy(&text))
    };
    PROGRAMS
        .into_iter()
        .filter_map(|(name, package, option)| Some((name.into(), version(name, package, option)?)))
        .collect()
}

/// The first word of the first line that begins, after a prefix such as `v=` or `nginx/`, with a
/// digit and holds a dot.
#[must_use]
pub fn version_in(text: &str) -> Option<String> {
    let words = text.lines().take(1).flat_map(|line| line.split([' ', ',', '=', '/', '"']));
    let mut words = words.map(|w| w.trim_start_matches('v'));
    let version = words.find(|w| w.starts_with(|c: char| c.is_ascii_digit()) && w.contains('.'));
    version.map(str::to_owned)
}

/// The day and time, UTC, as ISO 8601 writes them.
#[must_use]
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a number of days, in years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_893_456_000), "2030-01-01T00:00:00Z");
    }

    #[test]
    fn processor_times() {
        let stat = "cpu  10 1 20 100 5 0 2 1 7 0\ncpu0 1 2 3\n";
        assert_eq!(times(stat), (139.0, 105.0));
        assert_eq!(times(""), (0.0, 0.0));
    }

    #[test]
    fn versions_in_what_programs_say() {
        for (text, version) in [
            ("nginx version: nginx/1.22.1", "1.22.1"),
            ("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer", "4.1.0-3+b2"),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0", "7.0.15"),
            ("sockperf, version 3.7-no.git", "3.7-no.git"),
            ("iperf 3.12 (cJSON 1.7.15)\nLinux", "3.12"),
            ("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)", "15.13"),
            (
                "HAProxy version 2.6.12-1+deb12u2 2025/04/15 - https://haproxy.org/",
                "2.6.12-1+deb12u2",
            ),
            ("v20.20.2", "20.20.2"),
            ("openjdk version \"17.0.15\" 2025-04-15", "17.0.15"),
        ] {
            assert_eq!(version_in(text).as_deref(), Some(version));
        }
        assert_eq!(version_in("nothing"), None);
    }
}
