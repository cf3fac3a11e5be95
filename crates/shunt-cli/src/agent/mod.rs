//! `shunt agent`, and the start of an agent on demand.

mod stop;

use std::ffi::CStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{chdir, geteuid, setsid};
use shunt_agent::config::Sharing;
use shunt_agent::{ClaimError, Config, HostConfig, Metrics, Policy, ServeError};
use shunt_ivshmem::notify::Notifier;
use shunt_wire::knob;
use tracing_subscriber::EnvFilter;

use crate::cli::Agent;
use crate::directory::{Directory, Unreachable, agents_elsewhere, run_dir, run_dir_of_host};
use crate::output::{complain, log};
use crate::{library, rdma};

/// Where the policy of an agent for the host is, unless it is told.
const POLICY: &str = "/etc/shunt/policy.toml";
/// How long an agent that `shunt run` starts stays without programs.
const IDLE_SECONDS: &str = "300";
/// How long `shunt run` waits for it.
const START: Duration = Duration::from_secs(1);
/// How long a starting agent waits for one that is just ending.
const LOCK_WAIT: Duration = Duration::from_millis(300);

/// Runs the subcommand.
pub fn run(args: &Agent) -> u8 {
    if let Some(status) = without_library() {
        return status;
    }
    // A closed standard error must not end the agent.
    // SAFETY: changes this process's disposition of one signal, before any thread is made.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if args.stop {
        return stop::run();
    }
    // One that is detached was started by a program, whose service manager has nothing to hear of it.
    if args.detach {
        detach(args)
    } else {
        serve(args, || Notifier::from_environment().tell("READY=1"))
    }
}

/// Starts anew without the library, if this process has it: the library would ask the agent, which is
/// this very process, and wait for it. Returns only when there is nothing to do or it fails.
fn without_library() -> Option<u8> {
    let preloaded = std::env::var_os(library::VARIABLE)?;
    let others = library::without(&preloaded)?;
    let failed = |e: io::Error| {
        complain(&format!("the agent cannot run with libshunt.so in LD_PRELOAD: {e}; unset it"));
        Some(1)
    };
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(e) => return failed(e),
    };
    let mut command = Command::new(exe);
    command.args(std::env::args_os().skip(1)).env(library::VARIABLE, others);
    failed(command.exec())
}

/// Where metrics are to be served: what the command line says, else the environment. A mistake in the
/// environment does not cost programs their agent.
fn metrics(args: &Agent) -> Option<Metrics> {
    if let Some(address) = args.metrics.clone() {
        return Some(Metrics { address, public: args.metrics_public, required: true });
    }
    let given = std::env::var(knob::METRICS.env).ok().filter(|v| !v.is_empty())?;
    match given.parse() {
        Ok(address) => Some(Metrics { address, public: false, required: false }),
        Err(why) => {
            tracing::warn!("{}={given} is no address: {why}", knob::METRICS.env);
            None
        }
    }
}

/// What an agent for the host is to do.
fn host(args: &Agent) -> Result<Option<HostConfig>, String> {
    if !args.host {
        return Ok(None);
    }
    let usual = || Some(PathBuf::from(POLICY)).filter(|file| file.exists());
    let policy_file = args.policy.clone().or_else(usual);
    let policy = policy_file.as_deref().map_or_else(|| Ok(Policy::default()), Policy::load)?;
    Ok(Some(HostConfig { policy, policy_file, cgroup: args.cgroup.clone() }))
}

/// With which machines memory is shared: the same.
fn sharing(args: &Agent) -> Option<Sharing> {
    if let Some(place) = args.ivshmem.clone() {
        return Some(Sharing { place, required: true });
    }
    let given = std::env::var(knob::IVSHMEM.env).ok().filter(|v| !v.is_empty())?;
    if args.host {
        tracing::warn!(
            "{}={given} is not heeded: an agent for the whole host shares no memory with other machines; \
             start one without --host for that",
            knob::IVSHMEM.env
        );
        return None;
    }
    match given.parse() {
        Ok(place) => Some(Sharing { place, required: false }),
        Err(why) => {
            tracing::warn!("{}={given} is no device: {why}", knob::IVSHMEM.env);
            None
        }
    }
}

fn serve(args: &Agent, ready: impl FnOnce()) -> u8 {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    log(filter);
    if args.host && !geteuid().is_root() {
        complain(
            &"an agent for the host needs root: it serves all users and looks at their processes; start it with \
              `systemctl start shunt-host` or `sudo shunt agent --host`, or leave --host out for an agent of your own",
        );
        return 1;
    }
    let dir = match if args.host { run_dir_of_host() } else { run_dir() } {
        Ok(dir) => dir,
        Err(why) => {
            complain(&Unreachable::RunDir(None, why));
            return 1;
        }
    };
    let mut config = Config::new(dir);
    config.idle_exit = args.idle_exit.map(Duration::from_secs);
    config.lock_wait = LOCK_WAIT;
    config.metrics = metrics(args);
    match host(args) {
        Ok(host) => config.host = host,
        Err(why) => {
            complain(&why);
            return 1;
        }
    }
    config.ivshmem = sharing(args);
    match rdma::wanted(args, config.host.as_ref()) {
        Ok(rdma) => (config.rdma, config.rdma_promote) = (rdma, args.rdma_promote),
        Err(why) => {
            complain(&why);
            return 1;
        }
    }
    match shunt_agent::serve(config, ready) {
        Ok(()) => 0,
        // Where more was asked for, an agent without it is not what was wanted.
        Err(ServeError::Claim(ClaimError::AlreadyRunning(running)))
            if running.is_as_wanted()
                && (args.metrics.is_some() || args.ivshmem.is_some() || args.rdma.is_some()) =>
        {
            complain(&format!(
                "an agent is running already for {}, and metrics and devices are set up when one starts; stop \
                 it (`shunt agent --stop`) and try again",
                running.dir
            ));
            1
        }
        // Whoever wanted an agent has one. Only a person hears of it: where `shunt run` starts one, another was faster.
        Err(ServeError::Claim(ClaimError::AlreadyRunning(running))) if running.is_as_wanted() => {
            if !args.detach {
                complain(&running);
            }
            0
        }
        Err(e) => {
            complain(&e);
            1
        }
    }
}

/// Serves in a process of its own session; returns when that process serves or has failed.
fn detach(args: &Agent) -> u8 {
    close_inherited();
    let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC) else {
        complain(&"no descriptors are left to start an agent");
        return 1;
    };
    // SAFETY: the process has one thread, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => {
            complain(&format!("no process could be made: {}", io::Error::last_os_error()));
            1
        }
        0 => {
            drop(reader);
            let _ = setsid();
            let _ = chdir(c"/");
            serve(args, move || {
                // From here on there is nobody to read what it says.
                forget_stdio();
                let _ = rustix::io::write(&writer, b"1");
            })
        }
        child => {
            drop(writer);
            let mut byte = [0];
            if io::Read::read_exact(&mut std::fs::File::from(reader), &mut byte).is_ok() {
                return 0;
            }
            wait_for(child)
        }
    }
}

fn wait_for(child: libc::pid_t) -> u8 {
    let mut status = 0;
    // SAFETY: `status` is live.
    let rc = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if rc == child && libc::WIFEXITED(status) {
        u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(1)
    } else {
        1
    }
}

/// An agent that a program starts must not keep that program's files open.
fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: this process has just started and has opened nothing above the standard streams.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
    if rc == 0 {
        return;
    }
    // Linux before 5.9.
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    for fd in numbers.filter(|fd| *fd >= 3).collect::<Vec<_>>() {
        // SAFETY: this process has opened nothing above the standard streams but the directory, which is closed already: of its
        // number the kernel says that it is not open.
        unsafe { libc::close(fd) };
    }
}

fn forget_stdio() {
    const NULL: &CStr = c"/dev/null";
    let Ok(null) = open(NULL, OFlags::RDWR, Mode::empty()) else { return };
    for fd in 0..3 {
        // SAFETY: replaces a standard stream, which std never closes, by another open file.
        unsafe { libc::dup2(null.as_raw_fd(), fd) };
    }
}

/// Sees to it that there is an agent. `Some`: it is one of this user's in this directory, to which the
/// environment does not lead; a second one would keep its programs from those of the first.
///
/// # Errors
/// Why there is none, in a sentence.
pub fn ensure() -> Result<Option<String>, String> {
    match Directory::open() {
        Ok(_) => return Ok(None),
        Err(Unreachable::NotRunning(_)) => {}
        Err(e) => return Err(e.to_string()),
    }
    let is_told = std::env::var_os(knob::RUN_DIR.env).is_some_and(|dir| !dir.is_empty());
    if let Some(dir) = agents_elsewhere().into_iter().next().filter(|_| !is_told) {
        return Ok(Some(dir));
    }
    start()?;
    Directory::open().map(|_| None).map_err(|e| e.to_string())
}

fn start() -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("no agent could be started: {e}");
    let exe = std::env::current_exe().map_err(|e| failed(&e))?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(&e))?;
    let mut command = Command::new(exe);
    command
        .args(["agent", "--detach", "--idle-exit", IDLE_SECONDS])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(writer));
    // It serves later programs too, and is none of them.
    for name in [library::VARIABLE, knob::RUN_ID.env, knob::RUN_PAGE.env] {
        command.env_remove(name);
    }
    let mut child = command.spawn().map_err(|e| failed(&e))?;
    drop(command);
    let deadline = Instant::now() + START;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => return Err(failed(&first_line(reader))),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => {
                // Only the starter is ended; an agent that is merely slow serves later programs.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&"it takes too long"));
            }
        }
    }
}

fn first_line(reader: OwnedFd) -> String {
    let mut text = String::new();
    let _ = std::fs::File::from(reader).take(4096).read_to_string(&mut text);
    let line = text.lines().find(|line| line.starts_with("shunt: "));
    line.and_then(|line| line.strip_prefix("shunt: ")).unwrap_or("it failed").to_owned()
}
