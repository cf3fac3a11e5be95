//! A system of its own that systemd has booted, with Shunt installed: namespaces, a root made of what the host has,
//! and a control group. Needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries::{dir, program};
use crate::installation::install;
use crate::sandbox::{Process, Sandbox};

/// Where Shunt is installed in it.
const PREFIX: &str = "/usr/local";
const SYSTEMD: &str = "/lib/systemd/systemd";
/// What is booted: nothing but systemd itself.
const TARGET: &str = "nothing.target";

const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
pub struct Booted<'a> {
    sandbox: &'a Sandbox,
    process: Process,
    /// systemd's pid, as the host counts.
    init: i32,
    group: PathBuf,
}

/// The root, and what becomes of the process. `$1`: the root; `$2`: what is installed; `$3`: the programs of the tests.
/// Settings of the kernel, files and devices are the host's: nothing there can be written. Of the host's units there
/// are none, for some would be started with ours.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir dev etc old proc run sys tmp usr var
bind() { mkdir -p "./$2"; mount --bind "$1" "./$2"; mount -o remount,bind,ro "./$2"; }
bind /usr usr
bind "$2" usr/local
bind "$3" "$3"
for link in bin sbin lib lib32 lib64 libx32; do
    if [ -L /$link ]; then cp -P /$link .; elif [ -d /$link ]; then bind /$link $link; fi
done
mount -t proc proc proc
bind proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for place in run tmp var; do mount -t tmpfs -o mode=1777 tmpfs $place; done
chmod 755 run var
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
mkdir -p dev/shm etc/systemd/system
for file in group ld.so.cache nsswitch.conf passwd; do cp /etc/$file etc; done
echo 'guest:x:61001:61001::/tmp:/bin/sh' >> etc/passwd
tr -d - < /proc/sys/kernel/random/uuid > etc/machine-id
for target in basic nothing sockets sysinit; do
    printf '[Unit]\nDefaultDependencies=no\n' > etc/systemd/system/$target.target
done
ip link set lo up
pivot_root . old
umount -l old
exec env -i container=shunt-test PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/system:/usr/local/lib/systemd/system \
    setpriv --bounding-set -mknod,-sys_boot,-sys_module,-sys_rawio,-sys_time,-syslog \
    /lib/systemd/systemd --system --unit=nothing.target --show-status=no
"#;

impl<'a> Booted<'a> {
    /// Boots it; `None`, and a word about it, where that cannot be.
    ///
    /// # Panics
    /// When it does not come up though it could.
    #[must_use]
    pub fn new(sandbox: &'a Sandbox) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let leave_out = |why: &str| {
            println!("left out: {why}");
            None
        };
        if !crate::sandbox::is_root() {
            return leave_out("only root can boot a system");
        }
        let Some(groups) = shunt_sys::cgroup::root() else {
            return leave_out("there is no unified hierarchy of control groups");
        };
        assert!(Path::new(SYSTEMD).exists(), "systemd is not installed: `make deps-test`");
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let group = groups.join(format!("shunt-booted-{}-{n}", std::process::id()));
        if let Err(e) = fs::create_dir(&group) {
            return leave_out(&format!("no control group can be made: {e}"));
        }
        let (root, stage) = (sandbox.path().join("booted"), sandbox.path().join("stage"));
        fs::create_dir_all(&root).expect("root");
        install(&dir(), &stage, PREFIX);
        let mut command = sandbox.plain(program("sh"));
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&group);
        command.arg(program("unshare"));
        command.args(["--pid", "--mount", "--net", "--cgroup", "--uts", "--ipc"]);
        command.args(["--fork", "--kill-child", "sh", "-c", BOOT, "sh"]);
        command.arg(&root).arg(stage.join(PREFIX.trim_start_matches('/'))).arg(dir());
        let mut booted = Self { sandbox, process: sandbox.spawn(command), init: 0, group };
        booted.wait_until_up();
        Some(booted)
    }

    fn wait_until_up(&mut self) {
        let started = Instant::now();
        let children = format!("/proc/{0}/task/{0}/children", self.process.pid());
        loop {
            self.process.assert_running();
            let text = fs::read_to_string(&children).unwrap_or_default();
            self.init = text.trim().parse().unwrap_or(0);
            if self.init != 0 {
                let mut command = self.command("systemctl");
                let output = command.arg("is-active").arg(TARGET).output().expect("systemctl");
                if output.stdout.starts_with(b"active") {
                    return;
                }
            }
            assert!(started.elapsed() < PATIENCE, "{}", self.process.describe());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A command line that runs a program in it, as root, in a control group of its own there.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let clients = self.group.join("clients");
        fs::create_dir_all(&clients).expect("a control group");
        let mut command = self.sandbox.plain(program("sh"));
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(clients);
        command.arg(program("nsenter")).args(["--target", &self.init.to_string()]);
        command.args(["--pid", "--mount", "--net", "--cgroup", "--uts", "--ipc", "--root"]);
        command.env_remove("SHUNT_RUN_DIR").env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/bin");
        command.arg(name);
        command
    }

    /// The same as a user without privileges.
    #[must_use]
    pub fn command_of(&self, uid: u32, name: &str) -> Command {
        let mut command = self.command("setpriv");
        let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
        command.args([&user, &group, "--clear-groups", "--", name]);
        command
    }

    /// Runs `systemctl`, which must succeed, and returns what it says.
    ///
    /// # Panics
    /// When it does not.
    pub fn systemctl(&self, args: &[&str]) -> String {
        let mut command = self.command("systemctl");
        command.arg("--no-pager").args(args);
        let output = command.output().expect("systemctl");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {output:?}\n{}", self.logs());
        said
    }

    /// Starts a unit whose service is called `service`, and what it says is kept.
    ///
    /// # Panics
    /// When that fails.
    pub fn start(&self, unit: &str, service: &str) {
        let text = format!("[Service]\nStandardError=append:/run/log-{service}\n");
        self.drop_in(service, "log", &text);
        self.systemctl(&["start", unit]);
    }

    /// Adds to a unit.
    ///
    /// # Panics
    /// When that fails.
    pub fn drop_in(&self, unit: &str, name: &str, text: &str) {
        let file = format!("/run/systemd/system/{unit}.d/{name}.conf");
        self.write(&file, text);
        self.systemctl(&["daemon-reload"]);
    }

    /// Writes a file in it.
    ///
    /// # Panics
    /// When that fails.
    pub fn write(&self, file: &str, text: &str) {
        // By way of systemd's own root.
        let file = PathBuf::from(format!("/proc/{}/root{file}", self.init));
        fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        fs::write(&file, text).expect("a file");
    }

    /// Has in it a file or directory that the host has.
    ///
    /// # Panics
    /// When that fails.
    pub fn bring(&self, path: &str) {
        let to = PathBuf::from(format!("/proc/{}/root{path}", self.init));
        fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        let copied = Command::new(program("cp")).args(["-rL", "--", path]).arg(&to).status();
        assert!(copied.is_ok_and(|status| status.success()), "{path}: `make deps-test`");
    }

    /// Has in it a unit that a package of the host has brought.
    ///
    /// # Panics
    /// When that fails.
    pub fn bring_unit(&self, name: &str) {
        let path = format!("/lib/systemd/system/{name}");
        let text =
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}: `make deps-test`"));
        self.write(&format!("/etc/systemd/system/{name}"), &text);
    }

    /// What systemd and its services have said.
    #[must_use]
    pub fn logs(&self) -> String {
        let run = format!("/proc/{}/root/run", self.init);
        let entries = fs::read_dir(run).into_iter().flatten().flatten();
        let logs = entries.filter(|e| e.file_name().to_string_lossy().starts_with("log-"));
        let logs = logs.map(|log| fs::read_to_string(log.path()).unwrap_or_default());
        [self.process.describe()].into_iter().chain(logs).collect()
    }
}

impl Drop for Booted<'_> {
    fn drop(&mut self) {
        if self.init != 0 {
            // All that runs in it ends with it. It may have ended by itself.
            let _gone = crate::sys::kill(self.init, libc::SIGKILL);
        }
        self.process.kill();
        // The last ones take a moment to leave.
        for _ in 0..500 {
            remove(&self.group);
            if !self.group.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes a control group and those below it, as far as nobody is in them.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _busy = fs::remove_dir(group);
}
