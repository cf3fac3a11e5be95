//! A peer that breaks the rules: a program that runs under Shunt like any other, and so has link groups
//! with its peers, and then writes into the memory that it shares with them what no honest peer writes.
//!
//! It makes (or accepts) connections and uses them with ordinary calls in one thread, and writes in
//! another. Whoever talks to it may lose these connections, and nothing else.

mod attacks;
mod bells;
mod traffic;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use fastrand::Rng;
use shunt_functional::record::Listening;
use shunt_functional::shared::{Found, LINK_GROUP, Shared, slots_in_use};
use shunt_functional::sys::{self, ListenOptions};
use shunt_shm::region::Side;

use attacks::{Attack, Target, scribble_at};
use traffic::{CALLS, CONNECTIONS, From};

const TABLE: &str = "shunt-proposals";

/// Longest time without a call of the other thread's, and until a broken connection is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes after which it is said how many they are.
const SAY_EVERY: u64 = 1000;

/// Breaks the rules of shared memory.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// As a client.
    Connect {
        /// Where the victim listens.
        #[arg(long)]
        to: SocketAddr,
        #[command(flatten)]
        common: Common,
    },
    /// As a server, which says where it listens and goes on after its writes.
    Serve {
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Args)]
struct Common {
    /// Words to write before the end.
    #[arg(long, default_value_t = 10_000)]
    writes: u64,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Connections at once.
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// What to write to.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "region")]
    into: Vec<Into>,
    /// One attack alone, on connections that are honest before it and silent after it, which must end each
    /// of them: so often.
    #[arg(long, value_enum, requires = "times")]
    only: Option<Attack>,
    /// See `--only`.
    #[arg(long)]
    times: Option<u32>,
}

/// What a peer can write to.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Into {
    /// The memory of a link group.
    Region,
    /// The listener's table of proposals.
    Table,
    /// The doorbells.
    Bells,
}

fn main() -> ExitCode {
    let result = match Options::parse().role {
        Role::Connect { to, common } => attack(From::To(to), Side::Client, &common).and_then(say),
        Role::Serve { common } => serve(&common),
    };
    match result {
        // Without exit handlers: what they would do with this memory is not of interest.
        Ok(()) => sys::exit_now(0),
        Err(e) => {
            eprintln!("shunt-hostile {}: {e}", std::process::id());
            sys::exit_now(1)
        }
    }
}

fn serve(common: &Common) -> io::Result<()> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = ListenOptions { reuse_port: false, v6_only: false, backlog: Some(1024) };
    let listener = sys::listen(any, options)?;
    let addr = sys::local_addr(listener.as_raw_fd())?.get();
    let port = addr.ok_or_else(|| io::Error::other("no address"))?.port();
    print(&serde_json::to_string(&Listening { port })?)?;
    sys::set_nonblocking(listener.as_raw_fd(), true)?;
    let writes = attack(From::Listener(listener), Side::Server, common)?;
    say(writes)?;
    // Its clients end when they have had enough, and then it is ended.
    loop {
        thread::park();
    }
}

fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Says what was done.
fn say(writes: u64) -> io::Result<()> {
    let connections = CONNECTIONS.load(Ordering::Relaxed);
    print(&serde_json::json!({ "writes": writes, "connections": connections }).to_string())
}

fn attack(from: From, side: Side, common: &Common) -> io::Result<u64> {
    if let (Some(only), Some(times)) = (common.only, common.times) {
        return (0..times).try_fold(0, |writes, n| {
            let rng = Rng::with_seed(common.seed + u64::from(n));
            Ok(writes + one_by_one(&from, side, only, rng)?)
        });
    }
    let (at_once, seed) = (common.at_once, common.seed);
    thread::spawn(move || {
        let Err(e) = traffic::carry(&from, at_once, Rng::with_seed(seed ^ 0x7eaf));
        eprintln!("shunt-hostile {}: {e}", std::process::id());
        sys::exit_now(1);
    });
    everywhere(side, common)
}

/// Writes all over what is shared, while the connections are in use.
fn everywhere(side: Side, common: &Common) -> io::Result<u64> {
    let mut rng = Rng::with_seed(common.seed);
    let (mut groups, mut tables) = (Found::default(), Found::default());
    let (mut writes, mut calls, mut since) = (0, 0, Instant::now());
    let mut said = 0;
    while writes < common.writes {
        if writes / SAY_EVERY > said {
            said = writes / SAY_EVERY;
            say(writes)?;
        }
        let now = CALLS.load(Ordering::Relaxed);
        if now != calls {
            (calls, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            return Err(io::Error::other("a call hangs"));
        }
        let bells = bells::all();
        let into = |what| common.into.contains(&what);
        if into(Into::Bells)
            && let Some(bell) = rng.choice(&bells)
        {
            bells::meddle(*bell, &mut rng);
            writes += 1;
        }
        if into(Into::Table) {
            for table in tables.look(TABLE)? {
                writes += scrawl(table, &mut rng);
            }
        }
        if into(Into::Region) {
            for group in groups.look(LINK_GROUP)? {
                writes += break_some(group, side, &bells, &mut rng);
            }
        }
        thread::sleep(Duration::from_micros(rng.u64(..200)));
    }
    Ok(writes)
}

/// Writes to the connections of a link group; how many words.
fn break_some(group: &Shared, side: Side, bells: &[i32], rng: &mut Rng) -> u64 {
    let Some(view) = group.region() else { return 0 };
    let slots = slots_in_use(view);
    let mut writes = 0;
    for _ in 0..rng.u32(1..8) {
        let Some(slot) = rng.choice(&slots) else { break };
        let target = Target::new(view, *slot, side);
        for _ in 0..rng.u32(1..4) {
            match rng.choice(Attack::ALL) {
                Some(attack) if rng.bool() => attack.run(&target, rng),
                _ => target.scribble(group, rng),
            }
            writes += 1;
        }
        if rng.bool() {
            target.wake(bells);
        }
    }
    writes
}

/// Writes to a table of proposals; how many words.
fn scrawl(table: &Shared, rng: &mut Rng) -> u64 {
    let count = rng.u64(1..8);
    for _ in 0..count {
        let offset = if rng.u8(..4) == 0 { rng.usize(..576) } else { rng.usize(..table.size()) };
        if rng.bool() {
            scribble_at(table, offset, rng);
        } else {
            // What is right elsewhere.
            let from = table.word(rng.usize(..table.size())).load(Ordering::Relaxed);
            table.word(offset).store(from, Ordering::Relaxed);
        }
    }
    count
}

/// One connection, which is in the ring both ways, and one attack on it; it must be ended by the peer.
fn one_by_one(from: &From, side: Side, attack: Attack, mut rng: Rng) -> io::Result<u64> {
    let started = Instant::now();
    let too_long = |what: &str| {
        if started.elapsed() < PATIENCE { Ok(()) } else { Err(io::Error::other(what.to_owned())) }
    };
    let fd = loop {
        if let Some(fd) = from.another()? {
            break fd;
        }
        too_long("nobody connects")?;
        thread::sleep(Duration::from_micros(100));
    };
    let raw = fd.as_raw_fd();
    let port = |addr: sys::RawAddr| addr.get().map_or(0, |addr| addr.port());
    let (local, peer) = (port(sys::local_addr(raw)?), port(sys::peer_addr(raw)?));
    let mut groups = Found::default();
    let mut buffer = vec![0; 64 << 10];
    let target = loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // Whether there are bytes, or room, does not matter.
        let _ = sys::send(raw, &buffer[..64], flags);
        let _ = sys::recv(raw, &mut buffer, flags, false);
        let views = groups.look(LINK_GROUP)?.iter().filter_map(Shared::region);
        let mut slots =
            views.flat_map(|view| slots_in_use(view).into_iter().map(move |slot| (view, slot)));
        let found = slots.find_map(|(view, slot)| {
            let target = Target::new(view, slot, side).over(raw);
            (target.is(local, peer) && target.is_under_way()).then_some(target)
        });
        if let Some(target) = found {
            break target;
        }
        if started.elapsed() > PATIENCE {
            for view in groups.look(LINK_GROUP)?.iter().filter_map(Shared::region) {
                for slot in slots_in_use(view) {
                    eprintln!(
                        "{local} {peer} slot {slot}: {:#?} {:#?}",
                        view.section(slot, Side::Client),
                        view.section(slot, Side::Server)
                    );
                }
            }
        }
        too_long("it does not go through the ring")?;
        thread::sleep(Duration::from_micros(200));
    };
    let mut writes = 0;
    attack.run(&target, &mut rng);
    writes += 1;
    // The end comes over the kernel socket, of which the library tells what it likes by now.
    while !bells::is_ready(raw, libc::POLLRDHUP) {
        // What comes over the kernel socket has woken the victim already.
        if attack != Attack::UnmarkedBytes {
            target.wake(&bells::all());
        }
        too_long("the victim does not mind")?;
        thread::sleep(Duration::from_micros(500));
    }
    Ok(writes)
}
