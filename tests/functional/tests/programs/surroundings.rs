//! What else may be around a program: allocators that are preloaded beside Shunt, an address space
//! without randomness, few descriptors, a filter of system calls, a program that closes everything.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{fs, io};

use shunt_functional::binaries::{built, library, program};
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::generator::{parse, records};
use shunt_functional::mode::Mode;
use shunt_functional::record::{self, Listening};
use shunt_functional::sandbox::{Expect, Sandbox, is_root};

use crate::runtimes::{lines, source};
use crate::{Outcome, compare};

const fn subject(name: &'static str, version: Version, remark: &'static str) -> Subject {
    let done = "both ends of 20 connections that each carry 1 MB each way, two threads";
    Subject { kind: Kind::Surroundings, name, version, done, remark }
}

/// Both ends of some connections, each made by `make` of a role, compared byte by byte.
fn exchange(expect: Expect, sandbox: &Sandbox, make: impl Fn() -> Command) -> Outcome {
    const TRAFFIC: [&str; 8] =
        ["-n", "20", "-b", "1000000", "--style", "epoll-et", "--threads", "2"];
    let bytes = sandbox.expect(expect, || {
        let mut command = make();
        command.arg("serve").args(TRAFFIC);
        let mut server = sandbox.spawn(command);
        let port = server.wait_for_line(|line| {
            serde_json::from_str::<Listening>(line).ok().map(|listening| listening.port)
        });
        let to = SocketAddr::from(([127, 0, 0, 1], port)).to_string();
        let mut command = make();
        command.args(["connect", "--to", &to]).args(TRAFFIC);
        let clients = records(sandbox.spawn(command));
        let servers = parse(&server.wait().success().stdout);
        record::compare(&clients, &servers).expect("the same bytes");
        clients.iter().map(|r| r.sent_bytes + r.received_bytes).sum::<u64>()
    });
    vec![format!("{bytes} bytes")]
}

/// Shunt's library and another one, preloaded in both orders.
fn beside(sandbox: &Sandbox, name: &str) -> Outcome {
    let mut outcome = Outcome::new();
    for shunt_first in [true, false] {
        outcome.extend(exchange(Expect::Ends(40), sandbox, || {
            let mut libraries = vec![library(name).into_os_string()];
            let mut command = sandbox.plain(built("shunt-gen"));
            if sandbox.mode.is_shunted() {
                let place = if shunt_first { 0 } else { 1 };
                libraries.insert(place, sandbox.path().join("bin/libshunt.so").into_os_string());
                command.env("SHUNT_DMB", sandbox.mode.to_string());
            }
            command.env("LD_PRELOAD", libraries.join(&OsString::from(":")));
            command
        }));
    }
    outcome
}

#[test]
fn jemalloc() {
    let subject = subject("jemalloc", Version::Packaged("libjemalloc2"), "before and after Shunt");
    compare(&subject, Sandbox::new, |sandbox| beside(sandbox, "libjemalloc.so.2"));
}

#[test]
fn tcmalloc() {
    let version = Version::Packaged("libtcmalloc-minimal4");
    let subject = subject("tcmalloc", version, "before and after Shunt");
    compare(&subject, Sandbox::new, |sandbox| beside(sandbox, "libtcmalloc_minimal.so.4"));
}

#[test]
fn mimalloc() {
    let version = Version::Packaged("libmimalloc2.0");
    let subject = subject("mimalloc", version, "before and after Shunt");
    compare(&subject, Sandbox::new, |sandbox| beside(sandbox, "libmimalloc.so.2"));
}

#[test]
fn an_allocator_with_locks_that_a_fork_holds() {
    let subject = subject("an allocator as jemalloc", Version::None, "");
    let subject = Subject { done: "first forks of three threads", ..subject };
    compare(&subject, Sandbox::new, |sandbox| {
        let binary = sandbox.path().join("locked");
        let mut compile = Command::new(program("cc"));
        compile.args(["-O1", "-fno-builtin", "-pthread", "-Wall", "-Wextra", "-Werror"]);
        let compiled = sandbox.run({
            compile.arg(source("locked.c")).arg("-o").arg(&binary);
            compile
        });
        assert!(compiled.stderr.is_empty(), "{compiled}");
        sandbox.expect(Expect::Ends(2), || lines(&sandbox.run(sandbox.command(&binary)).stdout))
    });
}

#[test]
fn without_address_space_randomization() {
    let subject = subject("setarch -R", Version::None, "");
    compare(&subject, Sandbox::new, |sandbox| {
        exchange(Expect::Ends(40), sandbox, || {
            let mut command = sandbox.command(program("setarch"));
            command.arg("-R").arg(built("shunt-gen"));
            command
        })
    });
}

#[test]
fn sixty_four_descriptors() {
    let remark = "stays on TCP: the program has all of its descriptors for itself";
    let subject = subject("RLIMIT_NOFILE 64", Version::None, remark);
    compare(&subject, Sandbox::new, |sandbox| {
        exchange(Expect::Nothing, sandbox, || {
            let mut command = sandbox.command(program("prlimit"));
            command.arg("--nofile=64:64").arg(built("shunt-gen"));
            command
        })
    });
}

/// System calls that containers are forbidden (Docker's default profile), as far as a program without
/// privileges could make them.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsopen,
    libc::SYS_get_mempolicy,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mbind,
    libc::SYS_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// A classic BPF program that answers these calls with `EPERM`.
fn filter() -> Vec<libc::sock_filter> {
    const LOAD_NUMBER: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut program = vec![step(LOAD_NUMBER, 0, 0)];
    for number in FORBIDDEN {
        let number = u32::try_from(*number).expect("a number");
        program.extend([step(IF_EQUAL, number, 1), step(RETURN, refuse, 0)]);
    }
    program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0));
    program
}

/// `command` runs under the filter, with all that it starts.
fn confined(mut command: Command) -> Command {
    let mut filter = filter();
    let set = move || {
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len()).unwrap_or(0),
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the filter lives through the call.
        let result = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(set) };
    command
}

#[test]
fn under_a_filter_of_system_calls() {
    let subject = subject("seccomp, as containers have it", Version::None, "");
    compare(&subject, Sandbox::new, |sandbox| {
        exchange(Expect::Ends(40), sandbox, || confined(sandbox.command(built("shunt-gen"))))
    });
}

#[test]
fn a_program_that_closes_everything() {
    let subject = Subject {
        kind: Kind::Surroundings,
        name: "close_range and closefrom",
        version: Version::None,
        done: "all descriptors from 3 on are closed in between connections",
        remark: "",
    };
    compare(&subject, Sandbox::new, |sandbox| {
        let mut command = sandbox.command(program("python3"));
        command.arg(source("closes.py"));
        lines(&sandbox.expect(Expect::All(36), || sandbox.run(command)).stdout)
    });
}

/// As daemons do that are started as root: the agent's directory is closed to whom they become, or out of reach.
#[test]
fn a_program_that_gives_up_its_user_or_its_root() {
    if !is_root() {
        println!("left out: only root can become another user");
        return;
    }
    let subject = Subject {
        kind: Kind::Surroundings,
        name: "setuid, seteuid, setreuid, setresuid, chroot",
        version: Version::None,
        done: "as root, before a server listens; also where it forks after that, once or twice",
        remark: "",
    };
    let ways = [
        "setuid",
        "seteuid",
        "setreuid",
        "setresuid",
        "chroot",
        "chroot, setuid",
        "setuid, fork",
        "setuid, fork, fork, fork",
        "setuid, listen, fork beside",
        "setuid, listen, fork",
        "setuid, fork beside, listen, fork beside",
        "chroot, fork",
        "chroot, setuid, fork, listen, fork beside",
    ];
    compare(&subject, Sandbox::new, |sandbox| {
        let run = |way: &&str| {
            let leaves = |first: &str| {
                let mut command = sandbox.command(program("python3"));
                command.arg(source("leaves.py")).arg(first);
                command
            };
            lines(&sandbox.expect(Expect::All(6), || {
                let mut server = leaves(way);
                server.arg(sandbox.path());
                let mut server = sandbox.spawn(server);
                let port = server.wait_for_line(|line| line.parse::<u16>().ok());
                let mut client = leaves("connect");
                client.arg(port.to_string());
                let said = sandbox.run(client).stdout;
                let _served = server.wait().success();
                said
            }))
        };
        ways.iter().flat_map(run).collect()
    });
}

/// `--summary` names the reason of each listener that clients cannot find.
#[test]
fn a_listener_without_an_agent_is_told_of() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let dir = sandbox.path().join("open");
        fs::create_dir(&dir).expect("a directory");
        // No agent starts in it.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o775)).expect("chmod");
        let mut command = sandbox.plain(sandbox.shunt_path());
        command.env("SHUNT_RUN_DIR", &dir).args(["run", "--summary", "--"]).arg(program("python3"));
        command.args([
            "-c",
            "import socket\nfor _ in range(2): socket.create_server(('127.0.0.1', 0))",
        ]);
        let told = sandbox.run(command).stderr;
        assert!(
            told.contains("shunt: 2 listeners not registered\nshunt:   2 no-agent: "),
            "{told}"
        );
    }
}

/// The library says nothing of a variable that means nothing, and goes on as without it. The agent's totals have it.
#[test]
fn variables_that_mean_nothing_are_counted() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.start_agent();
        let mut command = sandbox.preloaded(program("python3"));
        command.env("SHUNT_IDLE", "soon").env("SHUNT_VECTORS", "0").env("SHUNT_PIN", "auto");
        command.args(["-c", "import socket\nsocket.create_server(('127.0.0.1', 0))"]);
        let done = sandbox.run(command);
        assert_eq!((&*done.stdout, &*done.stderr), ("", ""));
        assert_eq!(sandbox.stats().get("wrong_variables"), 2);
    }
}
