//! Clocks that jump, and clocks that are not the same for both ends.

use std::fs;
use std::process::Command;

use shunt_functional::binaries::{built, program};
use shunt_functional::generator::{Server, records};
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Expect, Sandbox, is_root};

/// The time of day goes an hour ahead and back again at every look.
const JUMPS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) {
    static long n;
    return __atomic_fetch_add(&n, 1, __ATOMIC_RELAXED) % 2 ? 3600 : -3600;
}
int clock_gettime(clockid_t clock, struct timespec *t) {
    int rc = syscall(SYS_clock_gettime, clock, t);
    if (rc == 0 && clock == CLOCK_REALTIME) t->tv_sec += jump();
    return rc;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec + jump();
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timeval now;
    gettimeofday(&now, 0);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"#;

/// What `shunt-probe` sees of waits and timeouts.
fn transcript(sandbox: &Sandbox, group: &str, before: Option<&str>) -> String {
    let mut command = sandbox.command(built("shunt-probe"));
    command.arg(group);
    if let Some(library) = before {
        command.env("LD_PRELOAD", library);
    }
    sandbox.run(command).stdout
}

#[test]
fn the_time_of_day_jumps() {
    for group in ["blocking", "readiness"] {
        let plain = transcript(&Sandbox::new(Mode::Plain), group, None);
        for mode in Mode::enabled_shunted() {
            let sandbox = Sandbox::new(mode);
            let (source, library) =
                (sandbox.path().join("jumps.c"), sandbox.path().join("jumps.so"));
            fs::write(&source, JUMPS).expect("a file");
            let cc = Command::new(program("cc"))
                .args(["-shared", "-fPIC", "-O", "-o"])
                .arg(&library)
                .arg(&source)
                .status();
            assert!(cc.is_ok_and(|status| status.success()));
            let library = library.to_str().expect("a path");
            let jumping =
                sandbox.expect(Expect::Ends(8), || transcript(&sandbox, group, Some(library)));
            assert_eq!(plain, jumping, "{group} [{mode}]");
        }
    }
}

/// The client has been up for a year less than the server: nothing that both look at is a time.
#[test]
fn ends_that_count_from_different_times() {
    if !is_root() {
        println!("left out: only root can make a time namespace");
        return;
    }
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        for offset in ["31000000", "-1000"] {
            let args = ["-n", "8", "-b", "3000000", "--style", "epoll-lt", "--pause", "3000"];
            sandbox.expect(Expect::Ends(16), || {
                let server = Server::start(&sandbox, true, &args);
                let run = sandbox.command(built("shunt-gen"));
                let mut command = sandbox.plain(program("unshare"));
                command.args(["-T", "--monotonic", offset, "--boottime", offset, "--fork", "--"]);
                command.arg(run.get_program()).args(run.get_args());
                command.args(["connect", "--to", &format!("127.0.0.1:{}", server.port)]).args(args);
                let clients = records(sandbox.spawn(command));
                compare(&clients, &server.finish()).expect("the same bytes");
            });
        }
    }
}
