//! A server that forks for each connection sets the connections up at once while they last, and only those that last while others are short.

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

/// After so many short ones the next is put off.
const AT_ONCE: u64 = 9;
/// How many there are, twice.
const SHORT: u64 = 20;

#[test]
fn short_connections_stay_on_tcp_until_one_lasts() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sources/forks.py");
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(program("python3"));
        command.arg(script).args([SHORT.to_string(), "400".to_owned()]);
        assert_eq!(sandbox.run(command).stdout, "15\n", "{mode}");
        if mode == Mode::Plain {
            continue;
        }
        let stats = sandbox.stats();
        // The two that last, and the one behind them.
        let ends = [stats.get("connections_shunted"), stats.declined("short-lived")];
        assert_eq!(ends, [2 * (AT_ONCE + 3), 2 * (2 * SHORT - AT_ONCE)], "{mode}: {stats:?}");
    }
}
