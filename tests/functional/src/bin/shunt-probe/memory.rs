//! What a program's memory shows of its connections, to whom, and how much of it they take.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use shunt_functional::shared::LINK_GROUP;
use shunt_functional::sys::{self, Forked};

use crate::probe::{Pair, Probe, done, listener, warm_up};
use crate::processes::in_child;

/// How the memfds are called that the library maps.
const OURS: &str = "/memfd:shunt-";

/// A mapping as `/proc/self/smaps` tells of it.
struct Mapping {
    range: String,
    name: String,
    flags: String,
    /// What of it is in memory, in KiB.
    resident: u64,
}

/// The library's mappings of shared memory; over TCP there are none.
fn ours() -> io::Result<Vec<Mapping>> {
    let mut all = Vec::new();
    for line in fs::read_to_string("/proc/self/smaps")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&words[..], all.last_mut()) {
            ([range, _, _, _, _, name @ ..], _) if range.contains('-') => {
                all.push(Mapping {
                    range: (*range).to_owned(),
                    name: name.join(" "),
                    flags: String::new(),
                    resident: 0,
                });
            }
            (["Rss:", n, _], Some(mapping)) => {
                mapping.resident = n.parse().map_err(io::Error::other)?;
            }
            (["VmFlags:", ..], Some(Mapping { flags, .. })) => line.clone_into(flags),
            _ => {}
        }
    }
    all.retain(|mapping| mapping.name.starts_with(OURS));
    Ok(all)
}

/// True under Shunt.
pub fn is_ours() -> io::Result<bool> {
    Ok(!ours()?.is_empty())
}

/// What of the memory of connections is in memory, in bytes. That of two ends in one process is mapped twice, and
/// counts twice.
pub fn of_connections() -> io::Result<u64> {
    let all = ours()?.into_iter().filter(|mapping| mapping.name.contains(LINK_GROUP));
    Ok(all.map(|mapping| mapping.resident << 10).sum())
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

/// What the parent sends after a fork. A number of its own for each fork: a connection may have the place of one that has ended,
/// and bytes of that one still lie there, which the child knows.
fn fresh_secret() -> Vec<u8> {
    static FORKS: AtomicUsize = AtomicUsize::new(0);
    let fork = FORKS.fetch_add(1, Ordering::Relaxed);
    format!("the parent's, which child {fork:02} is not to see").into_bytes()
}

/// How a child comes to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fork {
    Libc,
    Raw,
}

/// What a child that was forked to have fewer rights sees of the connections that it does not hold.
pub fn parted(p: &mut Probe) -> io::Result<()> {
    for fork in [Fork::Libc, Fork::Raw] {
        for kept in 0..3 {
            p.say("a child that keeps", format!("{kept} ({fork:?})"));
            part(p, fork, kept, &fresh_secret())?;
        }
    }
    Ok(())
}

fn part(p: &Probe, fork: Fork, kept: usize, secret: &[u8]) -> io::Result<()> {
    let listener = listener()?;
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let pair = p.pair_with(&listener)?;
        warm_up(pair.c(), pair.s())?;
        pairs.push(pair);
    }
    let (told, tell) = sys::pipe()?;
    let (answer, answered) = sys::pipe()?;
    let forked = match fork {
        Fork::Libc => sys::fork()?,
        Fork::Raw => sys::fork_raw()?,
    };
    let Forked::Parent(child) = forked else {
        let body = || {
            drop((listener, tell, answer));
            pairs.truncate(kept);
            sys::write(answered.as_raw_fd(), b"closed")?;
            sys::read(told.as_raw_fd(), &mut [0; 6])?;
            p.say("finds in its memory", found(secret)?);
            for pair in &pairs {
                warm_up(pair.c(), pair.s())?;
                let bytes = vec![5; 300_000];
                p.result("sends", sys::write(pair.c(), &bytes));
                let mut got = vec![0; bytes.len()];
                p.result("gets", sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false));
                p.say("right", got == bytes);
            }
            pairs.clear();
            p.say("finds at last", found(secret)?);
            Ok::<_, io::Error>(())
        };
        sys::exit_now(body().map_or(1, |()| 0))
    };
    sys::read(answer.as_raw_fd(), &mut [0; 6])?;
    for _ in 0..4 {
        pairs.push(p.pair_with(&listener)?);
    }
    // Those that the child may have are its own now.
    let others = &pairs[kept..];
    for (pair, n) in others.iter().zip([2000, 300_000].into_iter().cycle()) {
        warm_up(pair.c(), pair.s())?;
        let secrets = secret.repeat(n / secret.len());
        for (from, to) in [(pair.c(), pair.s()), (pair.s(), pair.c())] {
            std::thread::scope(|scope| {
                scope.spawn(|| sys::write(from, &secrets));
                sys::recv(to, &mut vec![0; secrets.len()], libc::MSG_WAITALL, false)
            })?;
        }
    }
    sys::write(tell.as_raw_fd(), b"look!!")?;
    p.say("ends", sys::wait_for(child)?);
    for pair in others {
        warm_up(pair.c(), pair.s())?;
    }
    p.say("the parent goes on", others.len());
    Ok(())
}

/// How often the secret is where bytes of connections lie.
fn found(secret: &[u8]) -> io::Result<usize> {
    let memory = fs::File::open("/proc/self/mem")?;
    let mut found = 0;
    for mapping in ours()?.into_iter().filter(|mapping| mapping.name.contains(LINK_GROUP)) {
        let (from, to) = mapping.range.split_once('-').unwrap_or_default();
        let number = |hex| u64::from_str_radix(hex, 16).map_err(io::Error::other);
        let mut piece = vec![0; 1 << 20];
        let (mut at, to) = (number(from)?, number(to)?);
        while at < to {
            // What cannot be read cannot be seen.
            let n = piece.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
            let n = memory.read_at(&mut piece[..n], at).unwrap_or(0);
            found += piece[..n].windows(secret.len()).filter(|bytes| *bytes == secret).count();
            at += 1 << 20;
        }
    }
    Ok(found)
}
