//! Prints how sockets behave, one line per observation.
//!
//! Run once over kernel TCP and once under Shunt, the two transcripts must be the same. Every
//! group of checks runs twice: on connections that are fresh, and on connections that have
//! carried bytes both ways, so that they have had time to move to shared memory.

mod actions;
mod addresses;
mod amounts;
mod asynchronous;
mod blocking;
mod buffers;
mod closing;
mod crowds;
mod cut_off;
mod cut_short;
mod descriptors;
mod epoll;
mod errors;
mod exec_ends;
mod execs;
mod families;
mod fast_open;
mod files;
mod found;
mod granted;
mod idle;
mod inner;
mod interrupted;
mod kept;
mod killed;
mod lifetimes;
mod limited;
mod memory;
mod nested;
mod others;
mod pinned;
mod probe;
mod processes;
mod raw;
mod raw_forks;
mod readiness;
mod retreats;
mod shallow;
mod sharers;
mod signals;
mod splicing;
mod stdio;
mod times;
mod unread;
mod vectors;
mod waits;
mod zerocopy;

use std::io;
use std::process::ExitCode;

use probe::Probe;

/// A group of checks.
type Group = (&'static str, fn(&mut Probe) -> io::Result<()>);

/// Processes first: they fork, which wants a process of one thread.
const GROUPS: &[Group] = &[
    ("processes", processes::run),
    ("many-children", processes::many),
    ("execs", execs::run),
    ("lifetimes", lifetimes::run),
    ("daemon", families::daemon),
    ("heirs", families::heirs),
    ("stdio", stdio::run),
    ("replaced", inner::replaced),
    ("inner", inner::run),
    ("aio", inner::asynchronous),
    ("orphans", families::orphans),
    ("listeners", families::listeners),
    ("reader", families::reader),
    ("held-up", families::held_up),
    ("counted", families::counted),
    ("peeked", families::peeked),
    ("raw-forks", raw_forks::run),
    ("kept", kept::run),
    ("errors", errors::run),
    ("cut-short", cut_short::run),
    ("closing", closing::run),
    ("readiness", readiness::run),
    ("epoll", epoll::run),
    ("waits", waits::run),
    ("sharers", sharers::run),
    ("amounts", amounts::run),
    ("blocking", blocking::run),
    ("buffers", buffers::run),
    ("unread", unread::run),
    ("signals", signals::run),
    ("asynchronous", asynchronous::run),
    ("faulted", signals::faulted),
    ("descriptors", descriptors::run),
    ("addresses", addresses::run),
    ("fast-open", fast_open::run),
    ("others", others::run),
    ("locked", memory::locked),
    ("parted", memory::parted),
    ("actions", actions::run),
    ("idle", idle::run),
    ("idle-crowd", idle::crowd),
    ("idle-asleep", idle::asleep),
    ("idle-left", idle::left),
    ("shallow", shallow::run),
    ("limited", limited::run),
    ("dumped", memory::dumped),
    ("raw", raw::run),
    ("retreats", retreats::run),
    ("files", files::run),
    ("vectors", vectors::run),
    ("splicing", splicing::run),
    ("interrupted", interrupted::run),
    ("left", interrupted::left),
    ("zerocopy", zerocopy::run),
    ("times", times::run),
    ("times-received", times::received),
    ("granted", granted::granted),
    ("granted-by-a-relative", granted::granted_by_a_relative),
    ("granted-to-a-relative", granted::granted_to_a_relative),
    ("borrowed", granted::borrowed),
    ("quiet", granted::quiet),
    ("found", found::found),
    ("found-small", found::small),
    ("found-inherited", found::inherited),
    ("found-by-a-child", found::by_a_child),
    ("found-huge", found::huge),
    ("unsealed", found::unsealed),
    ("killed", cut_off::run),
    ("pinned", pinned::ends),
    ("pinned-ways", pinned::ways),
    ("pinned-unlent", pinned::unlent),
    ("pinned-relatives", pinned::relatives),
    ("pinned-elsewhere", pinned::elsewhere),
    ("killed-granting", killed::granting),
    ("killed-pinning", killed::pinning),
    ("killed-pulling", killed::pulling),
    ("pinned-shared", pinned::shared),
    ("crowded", pinned::crowded),
    ("many-clients", crowds::clients),
    ("many-threads", crowds::threads),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.first().is_some_and(|first| first == execs::READER) {
        return execs::read(&wanted[1..]).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if let Some(unknown) = wanted.iter().find(|w| !GROUPS.iter().any(|(name, _)| name == w)) {
        let names: Vec<_> = GROUPS.iter().map(|(name, _)| *name).collect();
        eprintln!("shunt-probe: no group is called {unknown:?}; there are: {}", names.join(" "));
        return ExitCode::from(2);
    }
    let mut code = ExitCode::SUCCESS;
    let groups =
        GROUPS.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name));
    for (name, group) in groups {
        for warm in [false, true] {
            let mut probe = Probe::new(name, warm);
            if let Err(e) = group(&mut probe) {
                probe.say("stopped by an error", e);
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
