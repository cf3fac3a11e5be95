//! Programs that run while the library is replaced.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shunt_functional::binaries::program;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};
use shunt_functional::servers;

use crate::inode_of;

/// What nginx serves.
pub const CONTENT: &[u8] = &[b'x'; 20_000];

const PATIENCE: Duration = Duration::from_secs(60);

/// nginx, and wrk that keeps it busy.
pub struct Load {
    port: u16,
    nginx: Process,
    wrk: Process,
}

impl Load {
    pub fn start(sandbox: &Sandbox) -> Self {
        let port = free_port();
        let user = is_root().then_some("root");
        let nginx = servers::nginx(sandbox, port, 2, user, &[("file", CONTENT)]);
        let mut command = sandbox.command(program("wrk"));
        command.args(["-d3600", "-t2", "-c8", &format!("http://127.0.0.1:{port}/file")]);
        let wrk = sandbox.spawn(command);
        let load = Self { port, nginx, wrk };
        load.assert_bytes_flow(sandbox);
        load
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.port)
    }

    /// Sees that both go on in shared memory, and that a new program and the old server do.
    pub fn assert_shunted(&mut self, sandbox: &Sandbox) {
        self.nginx.assert_running();
        self.wrk.assert_running();
        self.assert_bytes_flow(sandbox);
        let fetched = sandbox.expect(Expect::Ends(2), || {
            let file = sandbox.path().join("fetched");
            let mut command = sandbox.command(program("curl"));
            command.args(["-sS", "--fail", "-o"]).arg(&file).arg(self.url());
            assert_eq!(sandbox.run(command).stderr, "");
            fs::read(file).unwrap()
        });
        assert!(fetched == CONTENT);
    }

    fn assert_bytes_flow(&self, sandbox: &Sandbox) {
        let (before, started) = (sandbox.stats().get("bytes_sent"), Instant::now());
        while sandbox.stats().get("bytes_sent") < before + 100 * CONTENT.len() as u64 {
            assert!(started.elapsed() < PATIENCE, "{}", self.wrk.describe());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends both, and sees that no request failed and no worker was lost.
    pub fn end(mut self, sandbox: &Sandbox) {
        self.wrk.signal(libc::SIGINT);
        let said = self.wrk.wait().success().stdout;
        assert!(said.contains("Requests/sec:"), "{said}");
        for bad in ["Socket errors", "Non-2xx"] {
            assert!(!said.contains(bad), "{said}");
        }
        let stats = sandbox.stats();
        assert_eq!(stats.get("connections_demoted"), 0);
        self.nginx.terminate(libc::SIGQUIT);
        let log = fs::read_to_string(sandbox.path().join("error.log")).unwrap_or_default();
        assert!(!log.contains("[alert]"), "{log}");
    }
}

/// Programs that start one after the other, with the library that is named as for containers.
pub struct Starters {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Starters {
    pub fn start(directory: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (library, until) = (directory.join("$LIB/libshunt.so"), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            loop {
                // The last one is started after the replacement.
                let is_last = until.load(Ordering::Acquire);
                let output = Command::new("true").env("LD_PRELOAD", &library).output().unwrap();
                // The loader says what it cannot preload, and goes on without.
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
                if is_last {
                    break;
                }
            }
        });
        Self { stop, thread }
    }

    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap();
    }
}

/// A program that has run from before, and starts others when it is told.
pub struct Parent {
    shell: Process,
    orders: File,
    fetched: PathBuf,
    children: usize,
}

impl Parent {
    /// `command` becomes the program that its arguments name.
    pub fn start(sandbox: &Sandbox, mut command: Command) -> Self {
        let dir = tempfile::Builder::new().tempdir_in(sandbox.path()).unwrap().keep();
        let (fifo, fetched) = (dir.join("orders"), dir.join("fetched"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let script = format!(
            "while read -r order url; do case $order in\n\
             maps) grep -m1 libshunt.so /proc/self/maps 2>&1;;\n\
             fetch) curl -sS --fail -o '{file}' \"$url\" 2>&1; echo fetched;;\n\
             esac; done <'{fifo}'",
            file = fetched.display(),
            fifo = fifo.display()
        );
        let shell = sandbox.spawn({
            command.args(["sh", "-c", &script]);
            command
        });
        // Waits until the shell has opened it.
        let orders = File::options().write(true).open(&fifo).unwrap();
        Self { shell, orders, fetched, children: 0 }
    }

    /// The line that a new child says.
    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.children += 1;
        let children = self.children;
        self.shell.wait_for_text(|text| text.lines().nth(children - 1).map(str::to_owned))
    }

    /// Which library a new child gets.
    pub fn start_child(&mut self) -> u64 {
        inode_of(&self.order("maps"))
    }

    /// How much a new child fetches.
    pub fn fetch(&mut self, url: &str) -> usize {
        assert_eq!(self.order(&format!("fetch {url}")), "fetched", "{}", self.shell.describe());
        fs::read(&self.fetched).unwrap().len()
    }

    /// Ends it, and sees that it had nothing to complain of.
    pub fn end(self) {
        drop(self.orders);
        assert_eq!(self.shell.wait().success().stderr, "");
    }
}
