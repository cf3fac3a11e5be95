//! What happens between two steps of a call: with a library that stops, interrupts and panics where a
//! test says so (`make points`).

mod panics;
mod steps;

use std::process::Command;

use shunt_functional::binaries::built;
use shunt_functional::sandbox::Sandbox;

/// `shunt-points` with these arguments.
fn program(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.command(built("shunt-points"));
    command.args(args);
    command
}

/// A process that does what the other one says, and listens if that one connects.
fn two_ends(sandbox: &Sandbox, what: &str, tested_listens: bool, kinds: &[&str]) -> String {
    let port = |line: &str| line.strip_prefix("{\"port\":")?.strip_suffix('}')?.parse::<u16>().ok();
    let tested = |to: &str| program(sandbox, &[&[what, "tested", to], kinds].concat());
    let other = |to: &str| program(sandbox, &[what, "other", to]);
    let (first, second): (_, &dyn Fn(&str) -> Command) = match tested_listens {
        true => (tested("listen"), &other),
        false => (other("listen"), &tested),
    };
    let mut first = sandbox.spawn(first);
    let at = format!("127.0.0.1:{}", first.wait_for_line(port));
    let second = sandbox.spawn(second(&at));
    let ends = [first, second].map(|end| end.wait_at_most(std::time::Duration::from_secs(240)));
    for end in &ends {
        assert!(end.status.success(), "{}\n{}", ends[0], ends[1]);
        assert!(end.stderr.is_empty(), "{end}");
    }
    ends[usize::from(!tested_listens)].stdout.clone()
}
