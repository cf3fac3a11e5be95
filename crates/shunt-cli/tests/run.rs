//! `shunt` as people and scripts see it: exit statuses, messages, and that programs always run.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{EXE, Sandbox, any_library, text};

#[test]
fn usage_errors_exit_2() {
    let sandbox = Sandbox::new();
    let filter = sandbox.output(&["list", "colour", "red"]);
    assert_eq!(filter.status.code(), Some(2));
    assert!(text(&filter.stderr).contains("`colour` is no condition"), "{filter:?}");
    for args in [&["run", "--bogus", "true"][..], &["--bogus"], &[], &["run"], &["frobnicate"]] {
        let output = sandbox.output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("Usage:"), "{args:?}");
    }
    assert_eq!(sandbox.output(&["--version"]).status.code(), Some(0));
}

#[test]
fn the_exit_status_is_the_programs() {
    let sandbox = Sandbox::new();
    for mode in [&["run"][..], &["run", "--summary"]] {
        let status = |script: &str| {
            let args = [mode, &["--", "sh", "-c", script]].concat();
            sandbox.with_library(&args).output().unwrap().status
        };
        assert_eq!(status("exit 7").code(), Some(7), "{mode:?}");
        // Without --summary the program has replaced `shunt`, so the signal is seen itself.
        let ended = status("kill -TERM $$");
        assert_eq!(ended.code().or(ended.signal().map(|s| 128 + s)), Some(143), "{mode:?}");
        assert_eq!(ended.code(), (mode.len() == 2).then_some(143));
    }
}

#[test]
fn programs_that_cannot_be_started() {
    let sandbox = Sandbox::new();
    let plain = sandbox.path("plain");
    fs::write(&plain, "text").unwrap();
    for mode in [&["run"][..], &["run", "--summary"]] {
        let output = |name: &str| sandbox.with_library(&[mode, &[name]].concat()).output().unwrap();
        let missing = output("no-such-program-here");
        assert_eq!(missing.status.code(), Some(127), "{mode:?}");
        assert_eq!(text(&missing.stderr), "shunt: no-such-program-here: not found\n");
        assert_eq!(output(plain.to_str().unwrap()).status.code(), Some(126), "{mode:?}");
        assert_eq!(output("/").status.code(), Some(126), "{mode:?}");
    }
}

#[test]
fn the_program_gets_its_environment_and_an_agent() {
    let sandbox = Sandbox::new();
    let script = "echo $LD_PRELOAD $SHUNT_SPIN $SHUNT_DMB $SHUNT_RUN_ID";
    let args = ["run", "--spin", "20", "--dmb", "copy", "sh", "-c", script];
    let output = sandbox.with_library(&args).output().unwrap();
    let words: Vec<_> = text(&output.stdout).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[..3], [any_library().to_str().unwrap(), "20", "copy"]);
    assert!(words[3].parse::<u64>().unwrap() > 0);
    assert_eq!(text(&output.stderr), "");
    assert!(sandbox.agent().is_some());
    let stats = sandbox.output(&["stats", "--json"]);
    assert!(text(&stats.stdout).contains("\"connections_shunted\": 0"));
}

#[test]
fn the_agent_is_no_child_of_the_program_and_keeps_none_of_its_files() {
    let sandbox = Sandbox::new();
    let held = sandbox.path("held");
    let children =
        r#"wait; sleep 9 & grep -ls "^PPid:[[:space:]]*$$\$" /proc/[0-9]*/status; kill $!"#;
    let script = format!("exec 9>{}; exec {EXE} run sh -c '{children}'", held.display());
    let mut command = sandbox.with_library(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    command = shell;
    let output = command.output().unwrap();
    // The one child is `sleep`.
    assert_eq!(text(&output.stdout).lines().count(), 1, "{output:?}");
    let agent = sandbox.agent().unwrap();
    let files = fs::read_dir(format!("/proc/{agent}/fd")).unwrap().flatten();
    let targets: Vec<_> = files.filter_map(|e| fs::read_link(e.path()).ok()).collect();
    assert!(!targets.contains(&held), "{targets:?}");
    assert_eq!(fs::read_link(format!("/proc/{agent}/cwd")).unwrap(), Path::new("/"));
}

#[test]
fn concurrent_starts_end_in_one_agent() {
    let sandbox = Sandbox::new();
    let start =
        |_| sandbox.with_library(&["run", "--summary", "true"]).stderr(Stdio::piped()).spawn();
    let children: Vec<_> = (0..8).map(|i| start(i).unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(!text(&output.stderr).contains("not shunted"), "{output:?}");
    }
    assert!(sandbox.agent().is_some());
}

#[test]
fn whatever_is_missing_the_program_runs_and_the_summary_says_why() {
    let sandbox = Sandbox::new();
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(text(&output.stdout), "hello\n", "{output:?}");
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr)
    };
    let args = ["run", "--summary", "echo", "hello"];
    // A directory that is open to others stands for one that cannot be used: root can write
    // everywhere.
    fs::create_dir(sandbox.run_dir()).unwrap();
    fs::set_permissions(sandbox.run_dir(), PermissionsExt::from_mode(0o775)).unwrap();
    let open = said(&mut sandbox.with_library(&args));
    assert!(open.contains("not shunted:") && open.contains("must be 0700"), "{open}");
    let nowhere = said(sandbox.with_library(&args).env("SHUNT_RUN_DIR", "/proc/nowhere"));
    assert!(nowhere.contains("/proc/nowhere cannot be used"), "{nowhere}");
    let relative = said(sandbox.with_library(&args).env("SHUNT_RUN_DIR", "here"));
    assert!(relative.contains("not absolute"), "{relative}");
    let library = said(sandbox.command(&args).env("SHUNT_LIB", "/no/such/lib.so"));
    assert!(library.contains("SHUNT_LIB names /no/such/lib.so"), "{library}");
    let disabled = said(sandbox.with_library(&args).env("SHUNT_DISABLE", "1"));
    assert!(disabled.contains("SHUNT_DISABLE"), "{disabled}");
    // Without --summary nothing is said at all.
    let quiet = said(&mut sandbox.with_library(&["run", "echo", "hello"]));
    assert_eq!(quiet, "");
}

#[test]
fn signals_reach_the_program_and_only_it_decides() {
    let sandbox = Sandbox::new();
    let script =
        "trap 'echo term; exit 3' TERM; trap '' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = sandbox
        .with_library(&["run", "--summary", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: our own child.
    unsafe { libc::kill(pid, libc::SIGINT) };
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "SIGINT ended shunt");
    // SAFETY: our own child, which was not waited for yet.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    assert_eq!(lines.next().unwrap().unwrap(), "term");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn the_program_inherits_dispositions_mask_and_closed_descriptors() {
    let sandbox = Sandbox::new();
    let look = "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status; ls /proc/self/fd | tr '\\n' ' '";
    for prefix in ["", "trap '' PIPE CHLD HUP; ", "exec 0<&-; ", "exec 2>&-; ", "exec 0<&- 2>&-; "]
    {
        let output = |via: &str| {
            let script = format!("{prefix}exec {via} sh -c \"{look}\"");
            let mut shell = Command::new("sh");
            let env = sandbox.with_library(&[]);
            shell.args(["-c", &script]).stdin(Stdio::null());
            shell.envs(env.get_envs().filter_map(|(k, v)| Some((k, v?))));
            text(&shell.output().unwrap().stdout)
        };
        let plain = output("env");
        assert_eq!(output(&format!("{EXE} run")), plain, "{prefix}");
        let supervised = output(&format!("{EXE} run --summary"));
        assert_eq!(supervised, plain, "{prefix}");
    }
}

#[test]
fn the_doctor_judges_programs() {
    let sandbox = Sandbox::new();
    let status = |program: &str| {
        let output = sandbox.with_library(&["doctor", program]).output().unwrap();
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = status("sh");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("would be shunted"), "{said}");
    let (code, said) = status("no-such-program-here");
    assert_eq!(code, Some(1));
    assert!(said.contains("would not run at all"), "{said}");
    let script = sandbox.path("script");
    fs::write(&script, "#!/bin/sh\nexec something\n").unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let (code, said) = status(script.to_str().unwrap());
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("cannot be told") && said.contains("????"), "{said}");

    let program = sandbox.path("static");
    fs::write(&program, static_elf()).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let link = sandbox.path("link");
    symlink(&program, &link).unwrap();
    for path in [program, link] {
        let (code, said) = status(path.to_str().unwrap());
        assert_eq!(code, Some(1));
        assert!(said.contains("FAIL") && said.contains("statically linked"), "{said}");
    }
    let output = sandbox.with_library(&["doctor"]).env("SHUNT_DISABLE", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let broken = sandbox.path("broken.so");
    fs::write(&broken, "no library").unwrap();
    let output = sandbox.command(&["doctor"]).env("SHUNT_LIB", &broken).output().unwrap();
    assert!(text(&output.stdout).contains("does not take the library"), "{output:?}");
}

#[test]
fn the_doctor_speaks_json() {
    let sandbox = Sandbox::new();
    let output = sandbox.with_library(&["doctor", "--json", "sh"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "shunt-doctor/1");
    assert_eq!((&json["verdict"], &json["subject"]["name"]), (&"shunted".into(), &"sh".into()));
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["check"] == "kernel" && f["mark"] == "good"), "{json}");
}

#[test]
fn the_doctor_looks_at_processes() {
    let sandbox = Sandbox::new();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id().to_string();
    let output = sandbox.with_library(&["doctor", "--pid", &pid]).output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("started without the library"), "{said}");
    assert!(said.ends_with(" runs on kernel TCP, for the reasons marked FAIL.\n"), "{said}");
    let gone = sandbox.with_library(&["doctor", "--pid", &pid]).output().unwrap();
    assert!(text(&gone.stdout).contains("no process has the number"), "{gone:?}");
}

#[test]
fn the_doctor_looks_at_services() {
    let sandbox = Sandbox::new();
    let systemctl = sandbox.path("systemctl");
    let said = "#!/bin/sh\necho LoadState=loaded\necho MainPID=0\necho User=nobody\necho PrivateTmp=yes\n\
                echo 'ExecStart={ path=/bin/sh ; argv[]=/bin/sh ; }'\n";
    fs::write(&systemctl, said).unwrap();
    fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
    let path =
        format!("{}:{}", systemctl.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = sandbox.with_library(&["doctor", "--json", "--unit", "x.service"]);
    let output = command.env("PATH", path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["subject"]["kind"], "unit");
    let obstacles = json["findings"].as_array().unwrap().iter();
    let obstacles: Vec<_> = obstacles.filter(|f| f["mark"] == "obstacle").collect();
    assert_eq!(obstacles.len(), 2, "{json}");
    assert!(obstacles[1]["text"].as_str().unwrap().contains("PrivateTmp="), "{json}");
}

#[test]
fn a_refused_connection_is_no_connection() {
    let sandbox = Sandbox::new();
    // Bound, so that no other program gets the number, and not listening.
    let bound = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&bound, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let to = std::net::SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
    let to = to.to_string();
    let output = sandbox.with_library(&["doctor", "--connect", &to]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
    assert!(said.contains(&format!("=> a connection to {to} is not made")), "{said}");
}

#[test]
fn wrong_variables_are_told_by_run_and_doctor() {
    let sandbox = Sandbox::new();
    let output = |args: &[&str], name: &str, value: &str| {
        sandbox.with_library(args).env(name, value).output().unwrap()
    };
    let run = output(&["run", "echo", "hello"], "SHUNT_SPIN", "nevr");
    assert_eq!((run.status.code(), text(&run.stdout)), (Some(0), "hello\n".to_owned()));
    let said = text(&run.stderr);
    assert!(said.starts_with("shunt: SHUNT_SPIN=nevr is not heeded"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let doctor = text(&output(&["doctor"], "SHUNT_SPINN", "never").stdout);
    assert!(doctor.contains("warn  SHUNT_SPINN is no variable of Shunt"), "{doctor}");
    // Off is off.
    let off = output(&["doctor"], "SHUNT_DISABLE", "false");
    assert_eq!(off.status.code(), Some(0), "{off:?}");
    assert!(!text(&off.stdout).contains("SHUNT_DISABLE"), "{off:?}");
    let summary = output(&["run", "--summary", "true"], "SHUNT_DISABLE", "false");
    assert!(!text(&summary.stderr).contains("switched off"), "{summary:?}");
}

#[test]
fn what_has_to_be_shunted_is_not_started_on_tcp() {
    let sandbox = Sandbox::new();
    let refused = |command: &mut Command, why: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert_eq!(text(&output.stdout), "");
        let said = text(&output.stderr);
        assert!(said.contains("is not started") && said.contains(why), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let args = ["run", "--require", "echo", "hello"];
    refused(sandbox.command(&args).env("SHUNT_LIB", "/no/such/lib.so"), "/no/such/lib.so");
    refused(sandbox.with_library(&args).env("SHUNT_DISABLE", "1"), "SHUNT_DISABLE");
    refused(sandbox.with_library(&args).env("SHUNT_RUN_DIR", "here"), "not absolute");
    let program = sandbox.path("static");
    fs::write(&program, static_elf()).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let args = ["run", "--require", program.to_str().unwrap()];
    refused(&mut sandbox.with_library(&args), "statically linked");
    let args = ["run", "--require", "echo", "hello"];
    let output = sandbox.with_library(&args).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "hello\n".to_owned()));
    let missing = sandbox.with_library(&["run", "--require", "no-such-program-here"]).output();
    assert_eq!(missing.unwrap().status.code(), Some(127));
}

/// The head of this test program with its program headers cut off: what a static program looks
/// like to anybody who asks for its loader.
fn static_elf() -> Vec<u8> {
    let mut head = fs::read("/proc/self/exe").unwrap()[..64].to_vec();
    head[56..58].copy_from_slice(&0_u16.to_le_bytes());
    head
}

#[test]
fn tools_without_an_agent() {
    let sandbox = Sandbox::new();
    let list = sandbox.output(&["list", "--json"]);
    assert_eq!(list.status.code(), Some(0));
    assert!(text(&list.stdout).contains("\"connections\": []"));
    assert!(text(&list.stderr).contains("no agent is running"));
    let stats = sandbox.output(&["stats"]);
    assert_eq!(stats.status.code(), Some(0));
    assert!(text(&stats.stdout).contains("connections_shunted"));
}

#[test]
fn a_second_agent_says_why_it_ends() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
    let first = sandbox.agent().unwrap();
    assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
    let output = sandbox.output(&["agent"]);
    assert_eq!(output.status.code(), Some(0), "who wanted an agent has one");
    let said = text(&output.stderr);
    assert!(
        said.contains("running already") && said.contains("nothing needs to be done"),
        "{said}"
    );
    // Who wants more has not got it.
    assert_eq!(sandbox.output(&["agent", "--metrics"]).status.code(), Some(1));
    assert_eq!(sandbox.agent(), Some(first));
}

#[test]
fn an_agent_is_gone_once_it_was_stopped() {
    let sandbox = Sandbox::new();
    for _ in 0..10 {
        assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
        let output = sandbox.output(&["agent", "--stop"]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        assert_eq!(sandbox.agent(), None);
        fs::remove_dir_all(sandbox.run_dir()).unwrap();
    }
}

/// A user whom nothing else here has.
const GUEST: u32 = 61_004;

/// A command of another user's, without the directory that tests have.
fn as_guest(sandbox: &Sandbox, args: &[&str]) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = sandbox.with_library(args);
    command.env_remove("SHUNT_RUN_DIR").env_remove("XDG_RUNTIME_DIR").uid(GUEST).gid(GUEST);
    command
}

#[test]
fn an_agent_for_the_host_needs_root() {
    let sandbox = Sandbox::new();
    let output = as_guest(&sandbox, &["agent", "--host"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("needs root") && said.contains("sudo shunt agent --host"), "{said}");
}

#[test]
fn an_agent_that_another_environment_leads_to_is_found() {
    let sandbox = Sandbox::new();
    let xdg = sandbox.path("xdg");
    fs::create_dir(&xdg).unwrap();
    std::os::unix::fs::chown(&xdg, Some(GUEST), Some(GUEST)).unwrap();
    fs::set_permissions(sandbox.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let with = |args: &[&str]| {
        let mut command = as_guest(&sandbox, args);
        command.env("XDG_RUNTIME_DIR", &xdg);
        command
    };
    // Without the variable first: that agent is in /tmp.
    let show = ["run", "sh", "-c", "echo $SHUNT_RUN_DIR"];
    assert_eq!(text(&as_guest(&sandbox, &show).output().unwrap().stdout), "\n");
    let other = format!("/tmp/shunt-{GUEST}");
    let list = with(&["list"]).output().unwrap();
    assert!(text(&list.stderr).contains(&format!("but one of yours is for {other}")), "{list:?}");
    let found = with(&show).output().unwrap();
    assert_eq!(text(&found.stdout), format!("{other}\n"), "{found:?}");
    assert!(!xdg.join("shunt/agent.sock").exists(), "a second agent was started");
    // Where there are two, both are named.
    assert_eq!(with(&["agent", "--detach"]).status().unwrap().code(), Some(0));
    let said = text(&with(&["doctor"]).output().unwrap().stdout);
    let second = xdg.join("shunt").display().to_string();
    assert!(said.contains(&format!("another one in {other}")) && said.contains(&second), "{said}");
    for lock in [xdg.join("shunt/agent.lock"), format!("{other}/agent.lock").into()] {
        let pid = fs::read_to_string(lock).unwrap().split(' ').next().unwrap().parse().unwrap();
        // SAFETY: an agent that this test has started.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let until = std::time::Instant::now() + Duration::from_secs(5);
        // SAFETY: only asks whether it is there.
        while unsafe { libc::kill(pid, 0) } == 0 && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fs::remove_dir_all(other).unwrap();
}

#[test]
fn a_report_that_cannot_be_written_is_found_out_before_anything_is_measured() {
    let sandbox = Sandbox::new();
    for option in ["--html", "--json"] {
        let path = sandbox.path("missing/report");
        let args = ["bench", "--quick", "--only", "ipc", option, path.to_str().unwrap()];
        let output = sandbox.output(&args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("missing/report"), "{output:?}");
        assert_eq!(text(&output.stdout), "", "it began to measure");
    }
}

#[test]
fn a_log_in_a_file_has_no_escape_codes() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("log");
    let mut command = sandbox.command(&["agent", "--idle-exit", "0"]);
    // It warns of what it passes over.
    command.env("SHUNT_METRICS", "everywhere").env("RUST_LOG", "debug");
    let status = command.stderr(fs::File::create(&log).unwrap()).status().unwrap();
    let said = fs::read_to_string(&log).unwrap();
    assert!(status.success() && said.contains("everywhere"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn a_socket_from_the_service_manager_is_served_and_kept() {
    use rustix::net::{bind, listen};
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.run_dir()).unwrap();
    fs::set_permissions(sandbox.run_dir(), PermissionsExt::from_mode(0o700)).unwrap();
    let path = sandbox.run_dir().join("agent.sock");
    let socket = shunt_sys::seqpacket::socket().unwrap();
    bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    // Without close-on-exec, as the service manager passes it. By way of the standard input: not every shell takes numbers of
    // two digits.
    let passed = socket.try_clone().unwrap();
    let script =
        format!("exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {EXE} agent --idle-exit 3");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("SHUNT_RUN_DIR", sandbox.run_dir());
    let mut agent = shell.stdin(passed).stderr(Stdio::null()).spawn().unwrap();
    drop(shell);
    let list = sandbox.output(&["list", "--json"]);
    assert_eq!((list.status.code(), text(&list.stderr)), (Some(0), String::new()));
    assert_eq!(agent.wait().unwrap().code(), Some(0));
    assert!(path.exists(), "the socket belongs to the service manager");
}

#[test]
fn profiles_set_what_is_not_set_already() {
    let sandbox = Sandbox::new();
    let said = |args: &[&str], spin: Option<&str>| {
        let mut command = sandbox.with_library(&["run"]);
        command.args(args).args(["--", "sh", "-c", "echo $SHUNT_SPIN $SHUNT_IDLE $SHUNT_VECTORS"]);
        command.env_remove("SHUNT_SPIN").env_remove("SHUNT_IDLE").env_remove("SHUNT_VECTORS");
        command.envs(spin.map(|spin| ("SHUNT_SPIN", spin)));
        text(&command.output().unwrap().stdout)
    };
    assert_eq!(said(&[], None), "\n");
    assert_eq!(said(&["--profile", "latency"], None), "200 never\n");
    assert_eq!(said(&["--profile", "efficient"], None), "never 100 1\n");
    assert_eq!(said(&["--profile", "efficient"], Some("7")), "7 100 1\n");
    assert_eq!(said(&["--profile", "latency", "--spin", "auto"], Some("7")), "auto never\n");
}
