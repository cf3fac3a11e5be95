//! What a program's memory shows of its connections, to whom, and how much of it they take.

use std::fs;
use std::io;

use shunt_functional::sys;

use crate::probe::{Pair, Probe, done, warm_up};
use crate::processes::in_child;

/// How the memfds are called that the library maps.
const OURS: &str = "/memfd:shunt-";

/// A mapping as `/proc/self/smaps` tells of it.
struct Mapping {
    name: String,
    flags: String,
}

/// The library's mappings of shared memory; over TCP there are none.
fn ours() -> io::Result<Vec<Mapping>> {
    let mut all = Vec::new();
    for line in fs::read_to_string("/proc/self/smaps")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&words[..], all.last_mut()) {
            ([range, _, _, _, _, name @ ..], _) if range.contains('-') => {
                all.push(Mapping { name: name.join(" "), flags: String::new() });
            }
            (["VmFlags:", ..], Some(Mapping { flags, .. })) => line.clone_into(flags),
            _ => {}
        }
    }
    all.retain(|mapping| mapping.name.starts_with(OURS));
    Ok(all)
}

/// Core dumps.
pub fn dumped(p: &mut Probe) -> io::Result<()> {
    let pairs: Vec<Pair> = (0..6).map(|_| p.pair()).collect::<io::Result<_>>()?;
    for pair in &pairs {
        warm_up(pair.c(), pair.s())?;
        p.say("carries bytes", true);
    }
    let dumped = ours()?.into_iter().filter(|m| !m.flags.split(' ').any(|flag| flag == "dd"));
    let mut names: Vec<String> = dumped.map(|m| m.name).collect();
    names.sort();
    names.dedup();
    p.say("in core dumps", names.join(", "));
    Ok(())
}

/// mlockall(2), before connections are made and after.
pub fn locked(p: &mut Probe) -> io::Result<()> {
    for flags in [
        libc::MCL_CURRENT,
        libc::MCL_FUTURE,
        libc::MCL_CURRENT | libc::MCL_FUTURE,
        libc::MCL_CURRENT | libc::MCL_ONFAULT,
        libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT,
        0,
        64,
    ] {
        for is_privileged in [true, false] {
            p.say("flags", flags);
            let child = in_child(|| {
                let pairs: Vec<Pair> = (0..2).map(|_| p.pair()).collect::<io::Result<_>>()?;
                for pair in &pairs {
                    warm_up(pair.c(), pair.s())?;
                }
                // Where the limit cannot be a wide one, it is nearly reached by the program alone.
                if !is_privileged && sys::limit_locks(256 << 20).is_err() {
                    p.say("may set no limit", true);
                }
                p.say("locks", done(sys::mlockall(flags)));
                let probe = Probe::new("locked", true);
                if is_privileged {
                    probe.pair()?;
                }
                let (locked, shared) = (kilobytes("VmLck:")?, kilobytes("RssShmem:")?);
                p.say("some is locked", locked > 0);
                p.say("no more than the program has", locked < 64 << 10);
                p.say("and nothing of what is not used", shared < 8 << 10);
                Ok(())
            })?;
            p.say("ends", sys::wait_for(child)?);
        }
    }
    Ok(())
}

/// A line of `/proc/self/status`.
fn kilobytes(name: &str) -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("no {name}")))
}
