//! Sockets behave under Shunt as they do over kernel TCP: the transcripts of `shunt-probe`, which
//! looks at results, errors, readiness, ends, descriptors and names, are the same line for line.

use shunt_functional::binaries::built;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox, traces_are_allowed};

/// What one group of checks prints in one mode. A group that stops early fails.
fn transcript(sandbox: &Sandbox, group: &str) -> Vec<String> {
    let mut command = sandbox.command(built("shunt-probe"));
    command.arg(group);
    let out = sandbox.expect(Expect::Ends(8), || sandbox.run(command));
    assert!(out.stderr.is_empty(), "{out}");
    out.stdout.lines().map(str::to_owned).collect()
}

/// The lines that differ, with a little of what comes before.
fn difference(plain: &[String], shunted: &[String]) -> Option<String> {
    let mut text = String::new();
    for n in 0..plain.len().max(shunted.len()) {
        let (a, b) = (plain.get(n), shunted.get(n));
        if a != b {
            let missing = String::from("(nothing)");
            text += &format!(
                "  tcp:   {}\n  shunt: {}\n",
                a.unwrap_or(&missing),
                b.unwrap_or(&missing)
            );
        }
    }
    (!text.is_empty()).then_some(text)
}

fn compare(group: &str) {
    compare_in(group, Sandbox::new, |_| {});
}

/// The same in sandboxes of one's own, each of which is looked at then.
fn compare_in(group: &str, sandbox: impl Fn(Mode) -> Sandbox, look: impl Fn(&Sandbox)) {
    let plain = transcript(&sandbox(Mode::Plain), group);
    assert!(plain.len() > 10, "{plain:#?}");
    for mode in Mode::enabled() {
        let sandbox = sandbox(mode);
        if let Some(difference) = difference(&plain, &transcript(&sandbox, group)) {
            panic!("{group} differs in mode {mode}:\n{difference}");
        }
        look(&sandbox);
    }
}

#[test]
fn processes() {
    compare("processes");
}

/// A message wakes who waits for it, and nobody else.
#[test]
fn many_threads() {
    compare("many-threads");
}

/// What lies unread goes along with an exec.
#[test]
fn execs() {
    compare_in("execs", Sandbox::new, |sandbox| {
        if sandbox.mode != Mode::Plain {
            let stats = sandbox.stats();
            assert!(stats.get("unread_passed") > 40, "nothing lay unread: {stats:?}");
            assert!(stats.get("unread_left") > 0, "nothing was left to the peer");
        }
    });
}

/// A send that connects its socket makes a connection like any other.
#[test]
fn fast_open() {
    compare_in("fast-open", Sandbox::new, |sandbox| {
        if sandbox.mode != Mode::Plain {
            let stats = sandbox.stats();
            assert_eq!(stats.get("connections_shunted"), 32, "{stats:?}");
        }
    });
}

#[test]
fn lifetimes() {
    compare("lifetimes");
}

#[test]
fn stdio() {
    compare("stdio");
}

#[test]
fn replaced() {
    compare("replaced");
}

#[test]
fn inner() {
    compare("inner");
}

#[test]
fn aio() {
    compare("aio");
}

#[test]
fn cut_short() {
    compare("cut-short");
}

#[test]
fn kept() {
    compare("kept");
}

#[test]
fn raw_forks() {
    compare("raw-forks");
}

#[test]
fn errors() {
    compare("errors");
}

#[test]
fn closing() {
    compare("closing");
}

#[test]
fn readiness() {
    compare("readiness");
}

#[test]
fn epoll() {
    compare("epoll");
}

#[test]
fn waits() {
    compare("waits");
}

#[test]
fn sharers() {
    compare("sharers");
}

#[test]
fn amounts() {
    compare("amounts");
}

#[test]
fn blocking() {
    compare("blocking");
}

#[test]
fn unread() {
    compare("unread");
}

#[test]
fn buffers() {
    compare("buffers");
}

#[test]
fn signals() {
    compare("signals");
}

#[test]
fn asynchronous() {
    compare_in("asynchronous", Sandbox::new, |sandbox| {
        if sandbox.mode != Mode::Plain {
            assert!(sandbox.stats().get("connections_demoted") > 0, "nothing went back to TCP");
        }
    });
}

#[test]
fn descriptors() {
    compare("descriptors");
}

#[test]
fn addresses() {
    compare("addresses");
}

#[test]
fn others() {
    compare("others");
}

#[test]
fn raw() {
    compare("raw");
}

#[test]
fn locked() {
    compare("locked");
}

#[test]
fn parted() {
    compare("parted");
}

#[test]
fn actions() {
    compare("actions");
}

#[test]
fn idle() {
    compare("idle");
}

#[test]
fn idle_crowd() {
    compare("idle-crowd");
}

#[test]
fn idle_asleep() {
    compare("idle-asleep");
}

/// Rings are given back whenever they are empty.
#[test]
fn idle_left() {
    compare_in("idle-left", |mode| Sandbox::new(mode).with_env("SHUNT_IDLE", "0"), |_| {});
}

#[test]
fn shallow() {
    compare("shallow");
}

#[test]
fn limited() {
    compare("limited");
}

#[test]
fn dumped() {
    compare("dumped");
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode).with_env("SHUNT_CORE", "1");
        let all = transcript(&sandbox, "dumped");
        let said = all.iter().find(|line| line.contains("in core dumps")).expect("a line");
        for kept in ["shunt-arena", "shunt-link-group", "shunt-proposals"] {
            assert!(said.contains(kept), "{said}");
        }
    }
}

#[test]
fn retreats() {
    compare("retreats");
}

#[test]
fn files() {
    compare("files");
}

#[test]
fn vectors() {
    compare("vectors");
}

#[test]
fn splicing() {
    compare("splicing");
}

#[test]
fn interrupted() {
    compare("interrupted");
}

/// Calls that a handler never returns to.
#[test]
fn left() {
    compare("left");
}

#[test]
fn zerocopy() {
    compare("zerocopy");
}

#[test]
fn times() {
    compare("times");
}

/// Of a receiver that is killed while it has bytes left to read its peer hears in every wait, though their time is not over.
#[test]
fn killed() {
    let sandbox = |mode| {
        Sandbox::new(mode).with_env("SHUNT_GRANT_TIMEOUT", "60000").with_env("SHUNT_PIN", "4096")
    };
    compare_in("killed", sandbox, |sandbox| {
        if sandbox.mode != Mode::Attach {
            return;
        }
        let stats = sandbox.stats();
        assert!(stats.get("bytes_granted") > 0, "nothing was granted");
        let pinned = stats.get("bytes_pinned");
        assert!(pinned > 0 || !traces_are_allowed(), "nothing was pinned");
        assert!(stats.get("grants_taken_back") > 0, "nothing was left unread");
        assert_eq!(stats.get("grants_timed_out"), 0);
    });
}
