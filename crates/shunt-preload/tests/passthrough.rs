//! Ordinary programs behave the same with the library preloaded.
//!
//! Each runs twice, without and with `LD_PRELOAD`, and must give the same output and status.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, built in the profile that this test is.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // .../<target dir>/<profile>/deps/<this test>
        let test = env::current_exe().expect("own path");
        let profile = test.ancestors().nth(2).expect("profile directory");
        let release = profile.file_name().is_some_and(|name| name == "release");
        // cargo does not build a cdylib for the tests of its package.
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
            .args(release.then_some("--release"))
            .arg("--target-dir")
            .arg(profile.parent().expect("target directory"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the library builds");
        profile.join("libshunt.so")
    })
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs the program both ways; returns the output, which is the same.
fn same(program: &str, args: &[&str]) -> String {
    let plain = run(Command::new(program).args(args));
    let preloaded = run(Command::new(program).args(args).env("LD_PRELOAD", library()));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&preloaded.stderr), text(&plain.stderr), "stderr of {program} {args:?}");
    assert_eq!(text(&preloaded.stdout), text(&plain.stdout), "stdout of {program} {args:?}");
    assert_eq!(preloaded.status, plain.status, "status of {program} {args:?}");
    text(&plain.stdout)
}

#[test]
fn the_library_exports_its_hooks_its_interface_and_nothing_else() {
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let symbols = String::from_utf8(symbols.stdout).expect("names");
    let exported: BTreeSet<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let list = include_str!("../src/hooks.rs").lines().map(str::trim);
    let kinds = ["fn ", "around fn ", "never fn ", "some fn ", "tail "];
    let hooked: BTreeSet<_> = list
        .filter(|line| line.ends_with(';'))
        .filter_map(|line| kinds.iter().find_map(|kind| line.strip_prefix(kind)))
        .filter_map(|line| line.split(['(', ' ']).next())
        .collect();
    assert!(hooked.contains("recvmsg"));
    let header = include_str!("../../../dist/include/shunt.h");
    let interface = ["shunt_alloc", "shunt_free"];
    assert!(interface.iter().all(|name| header.contains(&format!("shunt_symbol_(\"{name}\")"))));
    // Asked for by the runtimes of sanitizers, which programs bring along.
    let sanitizers = include_str!("../src/sanitizers.rs");
    let asked = "__asan_default_options";
    assert!(sanitizers.contains(&format!("extern \"C\" fn {asked}()")));
    let expected: BTreeSet<_> = hooked.into_iter().chain(interface).chain([asked]).collect();
    assert_eq!(exported, expected);
}

#[test]
fn the_library_is_really_there() {
    let maps = run(Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", library()));
    assert!(String::from_utf8_lossy(&maps.stdout).contains("libshunt.so"));
}

#[test]
fn small_programs() {
    same("ls", &["-l", "/usr"]);
    same("ls", &["/does/not/exist"]);
    same("true", &[]);
    same("false", &[]);
}

#[test]
fn shells_with_pipes_redirections_and_background_jobs() {
    let count = same("sh", &["-c", "seq 1 100000 | sort -rn | (cat; echo end) | wc -l"]);
    assert_eq!(count.trim(), "100001");
    same("bash", &["-c", "exec 7>&1 8</etc/passwd; head -1 <&8 >&7; exec 7>&-; (echo a & wait)"]);
    same("bash", &["-c", "cat <(echo x) <(echo y); exec nowhere/nothing"]);
    same("bash", &["-c", "kill -TERM $$"]);
}

#[test]
fn python_with_descriptors_children_and_sockets() {
    // Children by vfork with close_fds, by fork, by exec onto duplicated descriptors.
    same(
        "python3",
        &[
            "-c",
            r"
import os, socket, subprocess, select, fcntl
print(subprocess.run(['sh', '-c', 'cat; ls /proc/self/fd | wc -l'], input=b'in', close_fds=True,
                     capture_output=True).stdout)
a, b = socket.socketpair()
print(subprocess.run(['cat'], stdin=subprocess.DEVNULL, stdout=b.fileno()).returncode)
pid = os.fork()
if pid == 0:
    os.dup2(b.fileno(), 1)
    os.execlp('echo', 'echo', 'from a child')
os.waitpid(pid, 0)
print(a.recv(100))
print(os.spawnlp(os.P_WAIT, 'true', 'true'), os.posix_spawn is not None)
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
conn, _ = server.accept()
client.sendall(b'x' * 1000)
select.select([conn], [], [], 5)
import array, termios
n = array.array('i', [0]); fcntl.ioctl(conn, termios.FIONREAD, n); print(n[0])
d = conn.dup(); conn.close()
print(d.fileno(), len(d.recv(5000)), os.get_inheritable(d.fileno()))
d.setblocking(False)
try: d.recv(1)
except BlockingIOError as e: print(e.errno)
try: os.close(9999)
except OSError as e: print(e.errno)
try: os.dup2(9999, 5)
except OSError as e: print(e.errno)
os.closerange(3, 64)
print(os.open('/dev/null', os.O_RDONLY))
",
        ],
    );
}

#[test]
fn threads_can_be_cancelled_and_exit_in_a_call() {
    // glibc ends the thread by unwinding through the hook's frames.
    let source = r#"
#include <pthread.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
static int ends[2];
static void cleanup(void *what) { printf("cleanup %s\n", (char *)what); }
static void *reader(void *arg) {
    char byte;
    pthread_cleanup_push(cleanup, "read");
    if (read(ends[0], &byte, 1) >= 0) return 0;
    pthread_cleanup_pop(1);
    return arg;
}
static void *poller(void *arg) {
    pthread_cleanup_push(cleanup, "poll");
    poll(0, 0, -1);
    pthread_cleanup_pop(1);
    return arg;
}
int main(void) {
    void *(*bodies[])(void *) = { reader, poller };
    if (pipe(ends)) return 1;
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, 0, bodies[i], 0);
        usleep(20000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        printf("%d\n", result == PTHREAD_CANCELED);
    }
    return 0;
}
"#;
    let dir = tempfile::tempdir().expect("a directory");
    let (code, program) = (dir.path().join("cancel.c"), dir.path().join("cancel"));
    std::fs::write(&code, source).expect("written");
    let built = Command::new("cc").arg("-pthread").arg(&code).arg("-o").arg(&program).status();
    assert!(built.expect("a C compiler").success());
    let output = same(program.to_str().expect("a path"), &[]);
    assert_eq!(output, "cleanup read\n1\ncleanup poll\n1\n");
}

#[test]
fn curl_fetches_from_a_python_server() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("file"), "served\n".repeat(10_000)).expect("written");
    // It listens where the kernel lets it, and says where.
    let mut server = Command::new("python3")
        .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"])
        .current_dir(&dir)
        .env("LD_PRELOAD", library())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("python3 starts");
    let mut said = String::new();
    let mut stdout = BufReader::new(server.stdout.take().expect("piped"));
    stdout.read_line(&mut said).expect("a line");
    let port = said.split(" port ").nth(1).and_then(|rest| rest.split(' ').next());
    let port: u16 = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    let output = same("curl", &["-sS", "--fail", &format!("http://127.0.0.1:{port}/file")]);
    server.kill().expect("the server is ours");
    server.wait().expect("the server ends");
    assert_eq!(output.len(), 70_000);
}
