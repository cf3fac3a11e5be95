//! What another thread, a relative or a signal handler does between two steps of a call.

use std::path::Path;
use std::process::Command;

use shunt_functional::binaries;
use shunt_functional::mode::Mode;
use shunt_functional::points;
use shunt_functional::sandbox::{self, Sandbox};

use crate::{program, two_ends};

/// Runs one of the programs that are both ends themselves; what they print.
fn run(sandbox: &Sandbox, what: &str) -> String {
    let done = sandbox.run(program(sandbox, &[what]));
    assert!(done.stderr.is_empty(), "{done}");
    done.stdout
}

#[test]
fn a_call_stays_with_its_connection_while_its_number_is_used_again() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "identity");
        assert!(told.lines().count() > 20, "{told}");
    }
}

#[test]
fn a_signal_before_the_sleep_ends_a_wait_as_one_in_it() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "waits");
        assert_eq!(told.lines().count(), 38, "{told}");
    }
}

#[test]
fn who_waits_for_room_hears_of_it_where_another_thread_has_entered_the_ring() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "room");
        assert_eq!(told.lines().count(), 3, "{told}");
    }
}

#[test]
fn who_waits_for_first_bytes_hears_of_them_where_its_look_has_found_the_proposal() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "late-proposals");
        assert_eq!(told.matches("hears").count(), 10, "{told}");
    }
}

#[test]
fn what_a_handler_reads_while_a_connection_is_handed_over_the_next_program_does_not_read() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "hand-overs");
        assert_eq!(told.lines().count(), 5, "{told}");
        assert!(told.contains("leave.marked: 4"), "{told}");
    }
}

#[test]
fn others_go_on_while_a_fork_is_under_way() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "forks");
        assert_eq!(told.lines().count(), 6, "{told}");
    }
}

#[test]
fn a_relative_goes_on_where_one_was_killed_that_took_the_connection_up() {
    for mode in Mode::enabled_shunted() {
        let told = run(&points::sandbox(mode), "bereaved");
        assert_eq!(told.lines().count(), 12, "{told}");
    }
}

#[test]
fn threads_of_two_pid_namespaces_with_one_id_wait_for_each_other() {
    // Only root makes namespaces of processes.
    if !sandbox::is_root() {
        return;
    }
    for mode in Mode::enabled_shunted() {
        run(&points::sandbox(mode), "threads");
    }
}

fn signals(tested_listens: bool) {
    for mode in Mode::enabled_shunted() {
        let told = two_ends(&points::sandbox(mode), "signals", tested_listens, &[]);
        for part in ["promote.", "recv.", "send.", "sleep.", "poll.", "epoll.", "close.", "fork."] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let is_reset = |line: &str| line.contains(" reset") && !line.contains(" 0 reset");
        assert!(!told.lines().any(is_reset), "{told}");
    }
}

#[test]
fn a_handler_uses_connections_above_each_step_of_a_client() {
    signals(false);
}

#[test]
fn a_handler_uses_connections_above_each_step_of_a_server() {
    signals(true);
}

#[test]
fn a_handler_jumps_out_of_each_step() {
    for mode in Mode::enabled_shunted() {
        let sandbox = points::sandbox(mode);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/points/sources/jumps.c");
        let binary = sandbox.path().join("jumps");
        let mut compile = Command::new(binaries::program("cc"));
        compile.args(["-O1", "-pthread", "-Wall", "-Wextra", "-Werror"]).arg(source);
        let compiled = compile.arg("-o").arg(&binary).status();
        assert!(compiled.is_ok_and(|status| status.success()), "{compile:?}");
        let done = sandbox.run(sandbox.command(binary));
        let jumps = |line: &str| line.split(' ').nth(1)?.parse::<u32>().ok();
        let all: Vec<u32> = done.stdout.lines().filter_map(jumps).collect();
        assert_eq!(all.len(), 9, "{done}");
        assert!(all.iter().sum::<u32>() > 50, "{done}");
    }
}
