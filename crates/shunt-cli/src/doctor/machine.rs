//! The machine and the environment.

use std::env;
use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, geteuid, getrlimit};
use rustix::system::uname;
use serde_json::Value;
use shunt_shm::memfd::{self, Map};
use shunt_sys::run_dir::OF_HOST;
use shunt_wire::agent::Request;
use shunt_wire::knob;

use super::finding::Finding;
use crate::directory::{Directory, Unreachable, agents_elsewhere, run_dir};
use crate::table::count_of;
use crate::{library, settings};

/// Oldest kernel: pidfd_open(2).
const OLDEST_KERNEL: (u32, u32) = (5, 3);
/// Kernel from which namespaces are told apart by `SO_NETNS_COOKIE`.
const NAMESPACES_KERNEL: (u32, u32) = (5, 14);
/// Descriptors below which a busy program soon has none left for Shunt's own.
const FEW_DESCRIPTORS: u64 = 256;

/// Everything that does not depend on the program.
pub fn examine() -> Vec<Finding> {
    let mut findings = examine_system();
    findings.push(shared_memory().of("memory"));
    findings.extend(agent().into_iter().map(|f| f.of("agent")));
    findings.extend(other_agents().into_iter().map(|f| f.of("other-agent")));
    findings.extend(agent_for_host().map(|f| f.of("host-agent")));
    findings.extend(environment().into_iter().map(|f| f.of("environment")));
    findings.push(descriptors().of("descriptors"));
    findings.extend(seccomp().map(|f| f.of("seccomp")));
    findings
}

/// What does not depend on the environment either.
pub fn examine_system() -> Vec<Finding> {
    let mut findings = vec![kernel().of("kernel"), c_library().of("c-library")];
    findings.extend(the_library().into_iter().map(|f| f.of("library")));
    findings
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel() -> Finding {
    let name = uname();
    let release = name.release().to_string_lossy();
    match parse_release(&release) {
        Some(version) if version < OLDEST_KERNEL => Finding::obstacle(format!(
            "kernel {release} is older than {}.{}, the oldest that Shunt runs on",
            OLDEST_KERNEL.0, OLDEST_KERNEL.1
        )),
        Some(version) if version < NAMESPACES_KERNEL => Finding::warning(format!(
            "kernel {release} does not number network namespaces (5.14 does): run an agent of its \
             own (SHUNT_RUN_DIR) in each"
        )),
        _ => Finding::good(format!("kernel {release}")),
    }
}

fn c_library() -> Finding {
    // SAFETY: returns a static C string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    Finding::good(format!("glibc {}", version.to_string_lossy()))
}

/// Shunt takes its memory from memfd_create(2), not from the /dev/shm file system, so what counts
/// is whether that works and is not at a limit.
fn shared_memory() -> Finding {
    const LEN: usize = 1 << 20;
    let tried = memfd::create_sealed("shunt-doctor", LEN).and_then(|fd| {
        let bytes = vec![1; LEN];
        let mut done = 0;
        while done < LEN {
            done += rustix::io::pwrite(&fd, &bytes[done..], done as u64)?;
        }
        Map::new(&fd, LEN, true)
    });
    match tried {
        Ok(_) => Finding::good("shared memory can be had (memfd; /dev/shm is not used)"),
        Err(e) => Finding::obstacle(format!(
            "shared memory cannot be had: {e}; a memory limit is reached, or memfd_create is \
             forbidden by seccomp"
        )),
    }
}

fn the_library() -> Vec<Finding> {
    match library::find() {
        Ok(path) => {
            let mut findings = vec![Finding::good(format!("library: {}", path.display()))];
            findings.push(match load(&library::entry(&path)) {
                Ok(()) => Finding::good("the dynamic loader takes the library"),
                Err(why) => Finding::obstacle(format!(
                    "the dynamic loader does not take the library: {why}"
                )),
            });
            if let Some(closed) = closed_part(&path).filter(|_| geteuid().is_root()) {
                findings.push(Finding::warning(format!(
                    "{} is closed to other users: programs that are started as one of them stay on TCP, and the loader \
                     complains on their standard error; install Shunt below /usr for these",
                    closed.display()
                )));
            }
            findings
        }
        Err(why) => vec![Finding::obstacle(format!("library: {why}"))],
    }
}

/// The part of the library's path that keeps other users from it: programs that root starts as them do without, and the loader
/// complains on their standard error.
fn closed_part(library: &Path) -> Option<&Path> {
    let is_closed = |path: &&Path| {
        path.metadata().is_ok_and(|there| {
            // To read a file, to pass through a directory.
            let needed = if there.is_dir() { 0o001 } else { 0o004 };
            there.mode() & needed == 0
        })
    };
    library.ancestors().find(is_closed)
}

/// Has the loader preload the library into this very program, with every symbol bound.
fn load(path: &Path) -> Result<(), String> {
    let exe = env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(exe);
    command.arg("--version").env("LD_PRELOAD", path).env("LD_BIND_NOW", "1");
    command.stdin(Stdio::null()).env(knob::DISABLE.env, "1");
    let output = command.output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    match said.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => Err(line.trim().to_owned()),
        None if output.status.success() => Ok(()),
        None => Err(format!("a program with it ends with {}", output.status)),
    }
}

fn agent() -> Vec<Finding> {
    match Directory::open() {
        Ok(agent) => match agent.report(&Request::Status) {
            Ok(status) => {
                let found = [describe(&status)].into_iter().chain(metrics(&status));
                found
                    .chain(network(&status))
                    .chain(peers(&status))
                    .chain(stuck(&status))
                    .chain(other_versions(&status))
                    .collect()
            }
            Err(e) => vec![Finding::obstacle(format!("agent: {e}"))],
        },
        Err(Unreachable::NotRunning(dir)) => match run_dir().and_then(|dir| dir.create()) {
            Ok(()) => vec![Finding::good(format!(
                "agent: none is running; `shunt run` will start one in {dir}"
            ))],
            Err(why) => vec![unusable(&Unreachable::RunDir(Some(dir), why))],
        },
        Err(e) => vec![unusable(&e)],
    }
}

/// An agent for the host that this environment does not lead to.
fn agent_for_host() -> Option<Finding> {
    let here = run_dir().ok()?.path().to_string();
    let socket = Path::new(OF_HOST).join("agent.sock");
    (here != OF_HOST && socket.exists()).then(|| {
        Finding::good(format!(
            "agent for the host: in {OF_HOST}; programs find it with {}={OF_HOST}, and otherwise the one in \
             {here}",
            knob::RUN_DIR.env
        ))
    })
}

/// Agents of this user in directories to which other environments lead: programs of two agents do not find each other.
fn other_agents() -> Vec<Finding> {
    let Ok(here) = run_dir() else { return Vec::new() };
    let here = here.path().to_string();
    let others = agents_elsewhere().into_iter().filter(|dir| *dir != here);
    let finding = |other: String| {
        Finding::warning(format!(
            "agent: you have another one in {other}, and this environment leads to {here} (with and without \
             XDG_RUNTIME_DIR, say): programs of the two are not shunted with each other; set \
             {}={other} for all of them, or stop one of the agents",
            knob::RUN_DIR.env
        ))
    };
    others.map(finding).collect()
}

fn unusable(why: &Unreachable) -> Finding {
    Finding::obstacle(format!("agent: {why}"))
}

/// Programs whose library the agent does not understand.
fn other_versions(status: &Value) -> Vec<Finding> {
    let newest = status["protocol"]["newest"].as_u64().unwrap_or(0);
    let programs = status["other_versions"].as_array().into_iter().flatten();
    let finding = |program: &Value| {
        let (pid, version) = (&program["pid"], program["version"].as_u64().unwrap_or(0));
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let older = if version > newest { "the agent" } else { "the program" };
        Finding::warning(format!(
            "version: {} (pid {pid}) has a library that speaks version {version} of the protocol, and the agent {} to \
             {newest}: its new connections are TCP; restart {older} (docs/upgrade.md)",
            name.trim(),
            status["protocol"]["oldest"]
        ))
    };
    programs.map(finding).collect()
}

fn describe(status: &Value) -> Finding {
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let listeners = status["listeners"].as_array().map_or(0, Vec::len);
    let text = format!(
        "agent: pid {}, up {} s, {} programs, {listeners} listeners",
        status["pid"],
        count("uptime_s"),
        count("endpoints")
    );
    if status["version"] == env!("CARGO_PKG_VERSION") {
        Finding::good(text)
    } else {
        Finding::warning(format!(
            "{text}; it is of version {}, this command of {}",
            status["version"],
            env!("CARGO_PKG_VERSION")
        ))
    }
}

/// Where the agent serves metrics, if somebody may expect it to.
fn metrics(status: &Value) -> Option<Finding> {
    match (status["metrics"].as_str(), env::var_os(knob::METRICS.env).filter(|v| !v.is_empty())) {
        (Some(address), _) => Some(Finding::good(format!("metrics: served at {address}"))),
        (None, Some(wanted)) => Some(Finding::warning(format!(
            "metrics: SHUNT_METRICS is {}, but the agent serves none: it was started without, or could \
             not; `shunt agent` says why when it is started by hand",
            wanted.display()
        ))),
        (None, None) => None,
    }
}

/// How it is with the device and with agents of other hosts.
fn peers(status: &Value) -> Vec<Finding> {
    let rdma = &status["rdma"];
    let Some(device) = rdma["device"].as_str() else { return Vec::new() };
    let mut findings = vec![match rdma["device_lacks"].as_str() {
        Some(why) => Finding::warning(format!("rdma: {device} cannot be used: {why}")),
        None => Finding::good(format!("rdma: {device} can be used")),
    }];
    for peer in rdma["peers"].as_array().into_iter().flatten() {
        let text = |name: &str| peer[name].as_str().unwrap_or_default();
        let (host, state) = (text("host"), text("state"));
        findings.push(match (state, text("reason")) {
            ("connected", _) => {
                let said = format!("peer {host}: connected, calls itself {}", text("name"));
                let groups = peer["link_groups"].as_u64().unwrap_or(0);
                match (groups, text("link_group_reason")) {
                    (0, "") => Finding::good(format!("{said}; no link group")),
                    (0, why) => Finding::warning(format!("{said}; no link group: {why}")),
                    (groups, _) => {
                        let connections = peer["connections"].as_u64().unwrap_or(0);
                        let connections = count_of(connections, "connection");
                        let groups = count_of(groups, "link group");
                        match text("promotion_reason") {
                            "" => Finding::good(format!("{said}; {groups}, {connections}")),
                            why => Finding::warning(format!(
                                "{said}; {groups}, {connections}; new ones stay on TCP: {why}"
                            )),
                        }
                    }
                }
            }
            ("awaited", "") => Finding::warning(format!(
                "peer {host}: has to connect to this agent, and has not yet"
            )),
            (state, "") => Finding::warning(format!("peer {host}: {state}")),
            (state, why) => Finding::warning(format!("peer {host}: {state}: {why}")),
        });
    }
    if let Some(why) = rdma["turned_away_last"].as_str() {
        let count = &rdma["turned_away"];
        findings.push(Finding::warning(format!(
            "peers: {count} connections were turned away, the last one from {why}"
        )));
    }
    findings
}

/// The agent needs this network only for some things, which fail in silence without it.
fn network(status: &Value) -> Option<Finding> {
    let is_port = |address: &str| !address.starts_with("unix:");
    let (what, lost) = if status["metrics"].as_str().is_some_and(is_port) {
        ("serves metrics at a port", "nobody here reaches it")
    } else if status["ivshmem"].is_object() {
        ("shares memory with other machines", "no program here is shunted with theirs")
    } else {
        return None;
    };
    let agent = status["pid"].as_u64()?;
    // In a container the number is another process's, or nobody's.
    let name = std::fs::read_to_string(format!("/proc/{agent}/comm")).ok()?;
    let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let is_apart = network(&agent.to_string())? != network("self")?;
    (is_apart && name == "shunt\n").then(|| {
        Finding::warning(format!(
            "agent: it {what}, but has a network of its own (PrivateNetwork=), so that {lost}; give its unit \
             PrivateNetwork=no (docs/systemd.md)"
        ))
    })
}

/// What programs have passed to the agent, and no kernel lets go of.
fn stuck(status: &Value) -> Option<Finding> {
    let stuck = status["inspectors_stuck"].as_u64().filter(|stuck| *stuck > 0)?;
    Some(Finding::warning(format!(
        "agent: {stuck} of its processes are stuck with descriptors that programs have passed (a file system \
         that hangs, a socket that lingers); it named the programs in its log when it dropped them"
    )))
}

fn environment() -> Vec<Finding> {
    let mut findings = Vec::new();
    if env::var_os(knob::DISABLE.env).is_some_and(|v| knob::is_on(v.as_bytes())) {
        findings.push(Finding::obstacle("SHUNT_DISABLE is set; unset it"));
    }
    findings.extend(settings::mistakes().into_iter().map(Finding::warning));
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        findings.push(Finding::warning(format!(
            "LD_PRELOAD holds {} already; a library that replaces the same calls may hide the \
             program's from Shunt",
            others.display()
        )));
    }
    findings
}

fn descriptors() -> Finding {
    match getrlimit(Resource::Nofile).current {
        Some(n) if n < knob::LEAST_DESCRIPTORS => Finding::obstacle(format!(
            "only {n} open files are allowed (RLIMIT_NOFILE), and below {} the library leaves them all to the program; raise \
             it with `ulimit -n`",
            knob::LEAST_DESCRIPTORS
        )),
        Some(n) if n < FEW_DESCRIPTORS => Finding::warning(format!(
            "only {n} open files are allowed (RLIMIT_NOFILE); when they run out, connections stay \
             on TCP; raise it with `ulimit -n`"
        )),
        Some(n) => Finding::good(format!("{n} open files are allowed")),
        None => Finding::good("any number of open files is allowed"),
    }
}

/// Under a seccomp filter single system calls may be forbidden; shared memory has been tried above.
fn seccomp() -> Option<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
    (mode.trim() != "0").then(|| {
        Finding::warning(
            "a seccomp filter is active (a container?); a program that installs a stricter one \
             after its start may keep Shunt from working in it",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases() {
        assert_eq!(parse_release("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(parse_release("5.15-rc1"), Some((5, 15)));
        assert_eq!(parse_release("5"), None);
        assert_eq!(parse_release(""), None);
    }

    #[test]
    fn what_keeps_others_from_the_library() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let library = home.path().join("lib/libshunt.so");
        fs::create_dir(home.path().join("lib")).unwrap();
        fs::write(&library, "").unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(home.path(), 0o755);
        set(&library, 0o644);
        assert_eq!(closed_part(&library), None);
        set(&library, 0o640);
        assert_eq!(closed_part(&library), Some(library.as_path()));
        set(&library, 0o644);
        set(home.path(), 0o700);
        assert_eq!(closed_part(&library), Some(home.path()));
    }
}
