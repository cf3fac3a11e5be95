//! What a program's memory shows of its connections, to whom, and how much of it they take.

use std::fs;
use std::io;

use crate::probe::{Pair, Probe};

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
        crate::probe::warm_up(pair.c(), pair.s())?;
        p.say("carries bytes", true);
    }
    let dumped = ours()?.into_iter().filter(|m| !m.flags.split(' ').any(|flag| flag == "dd"));
    let mut names: Vec<String> = dumped.map(|m| m.name).collect();
    names.sort();
    names.dedup();
    p.say("in core dumps", names.join(", "));
    Ok(())
}
