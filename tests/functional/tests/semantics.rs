//! Sockets behave under Shunt as they do over kernel TCP: the transcripts of `shunt-probe`, which
//! looks at results, errors, readiness, ends, descriptors and names, are the same line for line.

use shunt_functional::binaries::built;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

/// What one group of checks prints in one mode. A group that stops early fails.
fn transcript(mode: Mode, group: &str) -> Vec<String> {
    let sandbox = Sandbox::new(mode);
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
    let plain = transcript(Mode::Plain, group);
    assert!(plain.len() > 10, "{plain:#?}");
    for mode in Mode::enabled() {
        if let Some(difference) = difference(&plain, &transcript(mode, group)) {
            panic!("{group} differs in mode {mode}:\n{difference}");
        }
    }
}

#[test]
fn processes() {
    compare("processes");
}

#[test]
fn lifetimes() {
    compare("lifetimes");
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
fn blocking() {
    compare("blocking");
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
fn retreats() {
    compare("retreats");
}

#[test]
fn splicing() {
    compare("splicing");
}

#[test]
fn zerocopy() {
    compare("zerocopy");
}

#[test]
fn times() {
    compare("times");
}
