//! A container engine: podman, which runs an image made of the host's own files, with the device that
//! `shunt cdi generate` describes. Its files lie in memory, its processes in namespaces of its own: all goes with the
//! value. Needs root, also for an engine without root.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binaries::{built, dir, program};
use crate::network::Network;
use crate::sandbox::{Process, Sandbox};

/// What `--device` is given.
pub const DEVICE: &str = "shunt.dev/socket=default";
/// The image.
const IMAGE: &str = "localhost/shunt-test";

/// See the module's description.
pub struct Engine<'a> {
    sandbox: &'a Sandbox,
    network: &'a Network,
    /// Whose engine it is; `None`: root's.
    user: Option<u32>,
    /// Holds the namespaces.
    holder: Process,
    /// The first process in them.
    first: String,
    /// Its control group, in which those of its containers are.
    group: String,
    /// The device's specification.
    pub spec: String,
}

impl<'a> Engine<'a> {
    /// One that is where `network`'s host is. `None`, with a word why, where podman cannot run a container.
    ///
    /// # Panics
    /// When something else goes wrong.
    #[must_use]
    pub fn new(sandbox: &'a Sandbox, network: &'a Network, user: Option<u32>) -> Option<Self> {
        let namespace = Path::new("/run/netns").join(network.namespace("host"));
        let mut command = as_root(sandbox, "nsenter");
        command.arg(format!("--net={}", namespace.display()));
        command.arg(program("unshare")).args(["--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", &script(user)]);
        let mut holder = sandbox.spawn(command);
        let first = holder.wait_for_line(|line| line.strip_prefix("ready ").map(str::to_owned));
        let group = format!("/shunt-test-{first}");
        let mut engine = Self { sandbox, network, user, holder, first, group, spec: String::new() };
        let _image = engine.import(IMAGE, &[built("shunt-gen")], &[]);
        let mut probe = engine.podman(&["run", "--rm", "--network", "none"]);
        let probe = probe.args([IMAGE, "/usr/bin/shunt-gen", "--version"]).output();
        let probe = probe.expect("podman");
        if !probe.status.success() {
            let why = String::from_utf8_lossy(&probe.stderr);
            println!("left out: podman runs no container here: {}", why.trim());
            return None;
        }
        let mut generate = sandbox.plain(sandbox.shunt_path());
        generate.args(["cdi", "generate"]);
        let file = Path::new("/proc").join(&engine.first).join("root/run/cdi/shunt.json");
        engine.spec = sandbox.run(generate).stdout;
        fs::write(file, &engine.spec).expect("a file in memory");
        Some(engine)
    }

    /// A command line that runs a program where the engine is.
    fn command(&self, user: Option<u32>, name: impl AsRef<Path>) -> Command {
        let mut command = as_root(self.sandbox, "nsenter");
        command.args(["--target", &self.first, "--mount", "--pid", "--net"]);
        if let Some(uid) = user {
            let (id, home) = (uid.to_string(), format!("/run/user/{uid}"));
            command.arg(program("setpriv")).args(["--reuid", &id, "--regid", &id]);
            command.args(["--clear-groups", "--"]);
            command.env("HOME", &home).env("XDG_RUNTIME_DIR", &home);
        }
        command.env("CONTAINERS_CONF", "/run/containers.conf").env("STORAGE_DRIVER", "vfs");
        command.arg(name.as_ref());
        command
    }

    /// A command line of podman's.
    #[must_use]
    pub fn podman(&self, args: &[&str]) -> Command {
        let mut command = self.command(self.user, program("podman"));
        command.args(args);
        // Groups are root's to make.
        if args[0] == "run" && self.user.is_none() {
            command.args(["--cgroup-parent", &self.group]);
        }
        command
    }

    /// A command line that runs the image's `shunt-gen` in a container with the device; `flags` are those of
    /// `podman run`.
    #[must_use]
    pub fn generator(&self, flags: &[&str]) -> Command {
        self.run(&[&["--device", DEVICE], flags].concat())
    }

    /// The same without the device.
    #[must_use]
    pub fn run(&self, flags: &[&str]) -> Command {
        let mut command = self.podman(&["run", "--rm"]);
        // A machine that stands still for a moment is none of the tests' business.
        command.args(["--env", "SHUNT_AGENT_TIMEOUT=30000"]);
        command.args(flags).args([IMAGE, "/usr/bin/shunt-gen"]);
        command
    }

    /// Starts a container that does nothing, until it is removed with the engine: others can have its network.
    pub fn hold(&self, name: &str, flags: &[&str]) {
        let command = [&["run", "--detach", "--name", name], flags, &[IMAGE]].concat();
        let mut command = self.podman(&command);
        command.args(["/usr/bin/shunt-gen", "serve", "--survive"]);
        let _ = self.sandbox.run(command).success();
    }

    /// Removes a container.
    pub fn remove(&self, name: &str) {
        let command = self.podman(&["rm", "--force", "--time", "0", name]);
        let _ = self.sandbox.run(command).success();
    }

    /// A command line that runs `shunt-gen` under Shunt beside the engine, in no container.
    #[must_use]
    pub fn beside(&self) -> Command {
        let mut command = as_root(self.sandbox, "ip");
        command.args(["netns", "exec", &self.network.namespace("host")]);
        if let Some(uid) = self.user {
            let id = uid.to_string();
            command.arg(program("setpriv")).args(["--reuid", &id, "--regid", &id]);
            command.args(["--clear-groups", "--"]);
        }
        command.arg(self.sandbox.shunt_path()).args(["run", "--"]).arg(built("shunt-gen"));
        command
    }

    /// What podman says of a container.
    #[must_use]
    pub fn inspect(&self, container: &str, format: &str) -> String {
        let output = self.podman(&["inspect", "--format", format, container]);
        self.sandbox.run(output).stdout.trim().to_owned()
    }

    /// A shell where the engine is, which finds its podman and what was built.
    #[must_use]
    pub fn shell(&self) -> Command {
        let mut command = self.command(self.user, program("sh"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", dir().display()));
        command
    }

    /// Makes an image of programs, the libraries that they and Shunt's need, and files with their text. The first program
    /// is what a container runs.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn import(&self, image: &str, programs: &[PathBuf], texts: &[(&str, &str)]) -> String {
        let root = self.sandbox.path().join(image);
        let mut files = BTreeSet::new();
        for object in programs.iter().chain([&built("libshunt.so")]) {
            let output = Command::new(program("ldd")).arg(object).output().expect("ldd");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            files.extend(said.split_whitespace().filter(|w| w.starts_with('/')).map(PathBuf::from));
        }
        let place = |to: &str| {
            let to = root.join(to.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
            to
        };
        let copy = |from: &Path, to: &str| {
            fs::copy(from, place(to)).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        };
        for file in &files {
            copy(file, &file.to_string_lossy());
        }
        let inside =
            |path: &PathBuf| format!("/usr/bin/{}", path.file_name().expect("a name").display());
        programs.iter().for_each(|path| copy(path, &inside(path)));
        for (to, text) in texts {
            fs::write(place(to), text).expect("a file");
        }
        let mut tar = Command::new(program("tar"));
        tar.arg("-C").arg(&root).args(["-c", "."]).stdout(Stdio::piped());
        let mut tar = tar.spawn().expect("tar");
        let run = format!("CMD [\"{}\"]", inside(&programs[0]));
        let mut import = self.podman(&["import", "-c", &run]);
        import.args(["-", image]).stdin(tar.stdout.take().expect("a pipe"));
        let output = import.output().expect("podman");
        let packed = tar.wait().expect("tar");
        assert!(packed.success() && output.status.success(), "podman import: {output:?}");
        image.to_owned()
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        let _gone = self.podman(&["rm", "--all", "--force", "--time", "0"]).output();
        self.holder.kill();
        // Each hierarchy of control groups has it. A group can be removed when its last process is gone.
        let unified = [PathBuf::from("/sys/fs/cgroup")].into_iter();
        let others = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let groups: Vec<PathBuf> = unified
            .chain(others.map(|entry| entry.path()))
            .map(|root| root.join(self.group.trim_start_matches('/')))
            .collect();
        for _ in 0..250 {
            groups.iter().for_each(|group| remove(group));
            if !groups.iter().any(|group| group.exists()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Runs as root, whoever the sandbox's programs run as.
fn as_root(sandbox: &Sandbox, name: &str) -> Command {
    let mut command = sandbox.plain(program(name));
    command.uid(0).gid(0);
    command
}

/// Removes a control group with all below it.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _gone = fs::remove_dir(group);
}

/// Makes the place where the engine lives: it has a `/run` of its own, a `/var/lib`, and, for a user, what a login and
/// an administrator would have made. Limits are those that there are: not every root may raise them. In `/dev/shm` are
/// podman's locks.
fn script(user: Option<u32>) -> String {
    let mut script = String::from(
        "set -e\n\
         read -r first rest </proc/self/stat\n\
         mount --make-rshared /\n\
         mount -t proc proc /proc\n\
         mount -t tmpfs tmpfs /run\n\
         mount -t tmpfs tmpfs /var/lib\n\
         mount -t tmpfs tmpfs /dev/shm\n\
         [ ! -d /etc/cdi ] || mount -t tmpfs tmpfs /etc/cdi\n\
         mkdir -m 1777 /run/lock\n\
         mkdir /run/cdi /run/networks\n\
         both() { echo \"$(ulimit -S$1):$(ulimit -H$1)\" | sed 's/unlimited/-1/g'; }\n\
         cat >/run/containers.conf <<END\n\
         [containers]\n\
         default_ulimits = [\"nofile=$(both n)\", \"nproc=1000:1000\"]\n",
    );
    script.push_str(match user {
        None => "[engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"runc\"\n[network]\nnetwork_config_dir = \"/run/networks\"\nEND\n",
        Some(_) => "cgroups = \"disabled\"\n[engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"crun\"\nEND\n",
    });
    if let Some(uid) = user {
        script.push_str(&format!(
            "mkdir -p /run/user/{uid} /run/etc\n\
             chown {uid}:{uid} /run/user/{uid}\n\
             for file in passwd group; do cp /etc/$file /run/etc/; done\n\
             echo 'shunt-test:x:{uid}:{uid}::/run/user/{uid}:/bin/sh' >>/run/etc/passwd\n\
             echo 'shunt-test:x:{uid}:' >>/run/etc/group\n\
             for file in subuid subgid; do echo shunt-test:700000:65536 >/run/etc/$file; touch /etc/$file; done\n\
             for file in passwd group subuid subgid; do mount --bind /run/etc/$file /etc/$file; done\n\
             mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
             mkdir -p /dev/net\n\
             mount -t tmpfs tmpfs /dev/net\n\
             mknod -m 666 /dev/net/tun c 10 200\n"
        ));
    }
    // The first process of a pid namespace is the one to reap: a shell does that while it waits.
    script.push_str("echo ready $first\nsleep infinity\nexit");
    script
}
