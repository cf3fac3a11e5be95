//! Configuration files: right ones, wrong ones, and such as change.

use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Finished, Sandbox};

use crate::{QUICK, Target, configure, target};

fn namespace(lines: &str) -> String {
    format!("[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = \"any\"\n[[subsystem.namespace]]\n{lines}\n")
}

fn memory(size: &str) -> String {
    namespace(&format!("store = \"memory\"\nsize = \"{size}\""))
}

/// A target that does not begin.
fn refused(sandbox: &Sandbox, text: &str, check: bool) -> Finished {
    let file = configure(sandbox, free_port(), text);
    let mut command = target(sandbox);
    command.arg("--config").arg(file).args(check.then_some("--check"));
    let finished = sandbox.spawn(command).wait();
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    finished
}

#[test]
fn mistakes_say_where_they_are_and_what_to_do() {
    let sandbox = Sandbox::new(Mode::Plain);
    let file = sandbox.path().join("nvme.toml");
    for (text, place, reason) in [
        (memory("1000"), ":8:8: ", "such as 4096"),
        (
            namespace("store = \"disk\"\nsize = 4096"),
            ":7:9: ",
            "say \"null\", \"memory\" or \"file\"",
        ),
        (memory("1MiB") + "sise = 3\n", ":9:1: ", "unknown field `sise`"),
        ("[limits]\nqueues = 0\n".to_owned(), ":4:10: ", "from 1 to 1024"),
    ] {
        for check in [true, false] {
            let finished = refused(&sandbox, &text, check);
            let begins = format!("shunt: {}{place}", file.display());
            assert!(finished.stderr.starts_with(&begins), "{finished}");
            assert!(finished.stderr.contains(reason), "{finished}");
        }
    }
}

#[test]
fn stores_that_cannot_be_had_say_what_to_do() {
    let sandbox = Sandbox::new(Mode::Plain);
    let missing = refused(&sandbox, &namespace("store = \"file\"\npath = \"none\""), true);
    assert!(missing.stderr.contains(&format!("namespace 1 of {QUICK}")), "{missing}");
    assert!(missing.stderr.contains("there is no none: make it (truncate"), "{missing}");
    std::fs::write(sandbox.path().join("small"), [0; 8192]).unwrap();
    let small = namespace("store = \"file\"\npath = \"small\"\nsize = \"1MiB\"");
    let small = refused(&sandbox, &small, false);
    assert!(small.stderr.contains("has 8192 bytes, 1048576 are asked for"), "{small}");
    let mut command = target(&sandbox);
    command.arg("--config").arg(configure(&sandbox, free_port(), &memory("1MiB"))).arg("--check");
    assert_eq!(sandbox.run(command).stdout, "The configuration can be served.\n");
}

#[test]
fn a_host_that_is_not_named_is_refused() {
    let sandbox = Sandbox::new(Mode::Plain);
    let text = memory("1MiB").replace("\"any\"", "[{ nqn = \"nqn.2024-01.org.shunt:test-host\" }]");
    let target = Target::configured(&sandbox, &text);
    target.run(&sandbox, &["identify"]);
    let stranger = target.host(&sandbox, &["--host", "nqn.2024-01.org.shunt:other", "identify"]);
    let stranger = sandbox.spawn(stranger).wait();
    assert!(!stranger.status.success(), "{stranger}");
    assert!(stranger.stderr.contains("Connect Invalid Host"), "{stranger}");
    target.end();
}

/// A key as people make it, of 32 zero bytes and their CRC-32.
const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

#[test]
fn a_host_with_a_key_can_do_nothing_without_it() {
    let sandbox = Sandbox::new(Mode::Plain);
    let host = "{ nqn = \"nqn.2024-01.org.shunt:test-host\", key = \"KEY\" }";
    let with = |key: &str| {
        let hosts = format!("[{}]", host.replace("KEY", key));
        memory("1MiB").replace("\"any\"", &hosts)
    };
    let target = Target::configured(&sandbox, &with(KEY));
    let keyless = sandbox.spawn(target.host(&sandbox, &["identify"])).wait();
    assert!(!keyless.status.success(), "{keyless}");
    assert!(keyless.stderr.contains("Authentication Required"), "{keyless}");
    target.end();
    // The key is not shown, also where it is wrong.
    let wrong = refused(&sandbox, &with(&KEY.replacen("AAAA", "BAAA", 1)), true);
    assert!(wrong.stderr.contains("nvme gen-dhchap-key"), "{wrong}");
    assert!(!wrong.stderr.contains("BAAA"), "{wrong}");
}

#[test]
fn hosts_hear_of_a_namespace_with_another_size() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::configured(&sandbox, &memory("1MiB"));
        let mut host = sandbox.spawn(target.host(&sandbox, &["watch"]));
        host.wait_for_line(|line| line.contains("\"watching\":256").then_some(()));
        // A mistake changes nothing.
        configure(&sandbox, target.port, &memory("1001"));
        target.process.signal(libc::SIGHUP);
        let mut process = target.process;
        wait_for_log(&mut process, "nothing is changed: ");
        configure(&sandbox, target.port, &memory("2MiB"));
        process.signal(libc::SIGHUP);
        let seen = crate::lines(&host.wait().success()).pop().unwrap();
        // A notice (2h) of the changed namespace list (log page 4).
        assert_eq!(seen["event"], 0x0004_0002, "{seen}");
        assert_eq!((&seen["changed"], &seen["blocks"]), (&1.into(), &512.into()), "{seen}");
        let target = Target { process, port: target.port };
        target.run(&sandbox, &["verify", "--commands", "100"]);
        let finished = target.end();
        assert!(finished.stderr.contains("is taken over"), "{finished}");
    }
}

fn wait_for_log(process: &mut shunt_functional::sandbox::Process, text: &str) {
    shunt_functional::waiting::settles("the log", &true, || {
        process.assert_running();
        process.describe().contains(text)
    });
}
