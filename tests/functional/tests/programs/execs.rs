//! Programs of Debian's that are started with a connection of which a Python program has read some: what lies unread
//! is theirs, also behind the peer's FIN, and when both directions have ended. Python starts them by vfork, posix_spawn, system and fork.

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

#[test]
fn of_python() {
    const WAYS: [&str; 6] =
        ["subprocess", "spawn", "system", "exec", "ended-subprocess", "ended-exec"];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sources/execs.py");
    let said = |mode| {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(program("python3"));
        command.arg(script).args(WAYS);
        let out = sandbox.expect(Expect::Ends(2 * WAYS.len() as u64), || sandbox.run(command));
        if mode != Mode::Plain {
            let passed = sandbox.stats().get("unread_passed");
            assert!(passed >= WAYS.len() as u64, "{passed} went along");
        }
        out.stdout
    };
    let plain = said(Mode::Plain);
    assert_eq!(
        plain,
        "subprocess 30011 True\nspawn 30011 True\nsystem 30011 True\nexec 30011 True\n\
         ended-subprocess 11 False\nended-exec 11 False\n0\n"
    );
    for mode in Mode::enabled_shunted() {
        assert_eq!(plain, said(mode), "left: plain TCP, right: {mode}");
    }
}

#[test]
fn of_a_program_that_has_sent_and_not_looked() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sources/first_fork.py");
    for mode in Mode::enabled() {
        for [end, when] in
            [["open", "early"], ["half", "early"], ["open", "late"], ["half", "late"]]
        {
            let sandbox = Sandbox::new(mode);
            let mut command = sandbox.command(program("python3"));
            command.arg(script).args([end, when]);
            let out = sandbox.expect(Expect::Ends(2), || sandbox.run(command));
            assert_eq!(out.stdout, "hello 0\n", "{mode}, {end}, {when}");
        }
    }
}
