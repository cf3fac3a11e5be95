//! Containers, made by hand of what the host has: namespaces of their own, a root that cannot be written to, and what
//! `shunt cdi generate` says. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::binaries::{dir, program};
use crate::network::Network;
use crate::sandbox::Sandbox;

/// Whose programs a container runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Users {
    /// The host's: this one, without privileges.
    Of(u32),
    /// Its own: root inside is this user outside, who has made the container.
    Own(u32),
}

/// A kind of container: each command line is one of its own, in a network namespace that it may share.
pub struct Container<'a> {
    sandbox: &'a Sandbox,
    network: &'a Network,
    namespace: &'a str,
    users: Users,
    edits: Value,
}

impl<'a> Container<'a> {
    /// In a namespace of a network.
    ///
    /// # Panics
    /// When `shunt cdi generate` fails.
    #[must_use]
    pub fn new(
        sandbox: &'a Sandbox,
        network: &'a Network,
        namespace: &'a str,
        users: Users,
    ) -> Self {
        let mut command = sandbox.plain(sandbox.shunt_path());
        let output = command.args(["cdi", "generate"]).output().expect("shunt");
        assert!(output.status.success(), "{output:?}");
        let mut spec: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let edits = spec["devices"][0]["containerEdits"].take();
        Self { sandbox, network, namespace, users, edits }
    }

    /// A command line that runs a program in such a container, under Shunt.
    #[must_use]
    pub fn command(&self, name: impl AsRef<Path>) -> Command {
        self.build(name.as_ref(), true)
    }

    /// The same without Shunt.
    #[must_use]
    pub fn plain(&self, name: impl AsRef<Path>) -> Command {
        self.build(name.as_ref(), false)
    }

    fn build(&self, name: &Path, shunted: bool) -> Command {
        let name =
            if name.is_absolute() { name.to_owned() } else { program(&name.to_string_lossy()) };
        let root = self.sandbox.path().join("root");
        std::fs::create_dir_all(&root).expect("root");
        let mut command = self.sandbox.plain(program("ip"));
        command.args(["netns", "exec", &self.network.namespace(self.namespace)]);
        let mut unshare = vec!["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc"];
        match self.users {
            Users::Own(uid) => {
                let id = uid.to_string();
                command.arg(program("setpriv")).args(["--reuid", &id, "--regid", &id]);
                command.args(["--clear-groups", "--"]);
                unshare.splice(0..0, ["--user", "--map-root-user"]);
            }
            Users::Of(_) => {}
        }
        command.arg(program("unshare")).args(unshare);
        command.args(["sh", "-c", &self.script(&root), "sh"]);
        command.arg(program("chroot"));
        if let Users::Of(uid) = self.users {
            command.arg(format!("--userspec={uid}:{uid}"));
        }
        command.arg(&root).arg("env");
        if shunted {
            let env = self.edits["env"].as_array().expect("env");
            command.args(env.iter().map(|value| value.as_str().expect("text")));
            command.arg(format!("SHUNT_DMB={}", self.sandbox.mode));
        }
        command.arg(name);
        command
    }

    /// Makes the root. All that is mounted is gone with the container.
    fn script(&self, root: &Path) -> String {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let root = root.display();
        let mut script = format!(
            "set -e\nmount --make-rprivate /\nmount -t tmpfs tmpfs '{root}'\ncd '{root}'\n\
             mkdir proc dev tmp run\nmount -t proc proc proc\nmount --rbind /dev dev\n\
             mount -t tmpfs -o mode=1777 tmpfs tmp\n\
             for link in bin sbin lib lib64; do [ ! -L /$link ] || cp -P /$link .; done\n"
        );
        let mut bind = |from: &str, to: &str, writable: bool| {
            let to = to.trim_start_matches('/');
            script.push_str(&if Path::new(from).is_dir() {
                format!("mkdir -p '{to}'\n")
            } else {
                format!("mkdir -p \"$(dirname '{to}')\"; touch '{to}'\n")
            });
            script.push_str(&format!("mount --bind '{from}' '{to}'\n"));
            if !writable {
                script.push_str(&format!("mount -o remount,bind,ro '{to}'\n"));
            }
        };
        bind("/usr", "/usr", false);
        bind("/etc", "/etc", false);
        let programs = dir().display().to_string();
        bind(&programs, &programs, false);
        let shared = self.shared().display().to_string();
        bind(&shared, &shared, true);
        for mount in self.edits["mounts"].as_array().expect("mounts") {
            bind(&text(&mount["hostPath"]), &text(&mount["containerPath"]), false);
        }
        script.push_str("mount -o remount,bind,ro .\nexec \"$@\"");
        script
    }

    /// A directory that all containers of the sandbox can write to.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let shared = self.sandbox.path().join("shared");
        std::fs::create_dir_all(&shared).expect("shared");
        std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o777)).expect("chmod");
        shared
    }
}
