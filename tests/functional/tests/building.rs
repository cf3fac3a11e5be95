//! What a newcomer does first: `make`, `make install`, and the installation of what `make demo` and the tests need, with
//! commands of a distribution that only note what they are asked for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use shunt_functional::binaries::dir;
use shunt_functional::installation::repository;

/// A directory with commands, which note their arguments in `called` there.
struct Distribution(tempfile::TempDir);

impl Distribution {
    /// systemd's state, and the units that are enabled before and after the installation.
    fn new(state: &str) -> Self {
        let distribution = Self(tempfile::tempdir().expect("a directory"));
        let at = distribution.path("");
        let called = format!("echo \"$(basename \"$0\") $*\" >> {}/called\n", at.display());
        let units = format!(
            "case $1 in is-system-running) echo {state};; list-unit-files) \
             echo cron.service enabled enabled; \
             [ ! -e {0}/installed ] || printf '%s\\n' 'nginx.service enabled enabled' 'slapd.service generated -';; \
             *) {called} ;; esac\n",
            at.display()
        );
        let installs =
            format!("{called}case \"$*\" in *install*) : > {}/installed;; esac\n", at.display());
        for (name, script) in [("systemctl", &units), ("apt-get", &installs)] {
            distribution.command(name, script);
        }
        distribution.command("sudo", "exec \"$@\"\n");
        distribution
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, name: &str, script: &str) {
        fs::write(self.path(name), format!("#!/bin/sh\n{script}")).expect("a script");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    /// Asks for a command that is there, and one that is not.
    fn run(&self, path: &str) -> Output {
        let program = repository().join("tests/functional/install-programs");
        let mut command = Command::new("/bin/bash");
        command.arg(program).args(["sh:dash", "no-such-command-here:some-package"]);
        command.env("PATH", path).output().expect("a shell")
    }

    fn installs(&self) -> (String, String) {
        let output = self.run(&format!("{}:/usr/bin:/bin", self.0.path().display()));
        assert!(output.status.success(), "{output:?}");
        let called = fs::read_to_string(self.path("called")).expect("what was called");
        (called, String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn services_that_come_with_programs_are_taken_out_again() {
    let (called, said) = Distribution::new("running").installs();
    let install = "apt-get install -q -y --no-install-recommends some-package\n";
    assert!(called.starts_with("apt-get update -q\n") && called.contains(install), "{called}");
    let last = called.lines().next_back();
    assert_eq!(last, Some("systemctl --quiet disable --now nginx.service slapd.service"));
    assert!(said.contains("disabling services of these packages: nginx.service"), "{said}");
}

#[test]
fn services_are_left_alone_where_no_systemd_runs() {
    let (called, _) = Distribution::new("offline").installs();
    assert!(called.contains(" some-package\n") && !called.contains("systemctl"), "{called}");
}

#[test]
fn another_distribution_is_told_what_is_missing() {
    let distribution = Distribution::new("running");
    fs::remove_file(distribution.path("apt-get")).expect("no apt-get");
    for name in ["sh", "ldconfig", "cut", "env"] {
        let there = ["/bin", "/usr/bin", "/sbin"].map(|dir| Path::new(dir).join(name));
        let there = there.iter().find(|path| path.exists()).expect(name);
        std::os::unix::fs::symlink(there, distribution.path(name)).expect(name);
    }
    let output = distribution.run(&distribution.path("").display().to_string());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("there is no apt-get") && said.contains("some-package"), "{said}");
}

/// `make` with these arguments, where there is no cargo.
fn make_without_cargo(args: &[&str]) -> Output {
    let mut command = Command::new("/usr/bin/make");
    command.args(["--no-print-directory", "CARGO=no-such-cargo"]).args(args);
    command.current_dir(repository()).output().expect("make")
}

#[test]
fn a_build_that_lacks_something_says_what() {
    let output = make_without_cargo(&["all"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said.contains("install Rust 1.") && said.contains("rustup.rs"), "{said}");
}

/// `make`, and then `sudo make install`.
#[test]
fn root_installs_what_a_user_has_built() {
    let stage = tempfile::tempdir().expect("a directory");
    let [stage_is, release_is] = [("DESTDIR", stage.path()), ("RELEASE", &dir())]
        .map(|(name, path)| format!("{name}={}", path.display()));
    let target = format!("TARGET={}", stage.path().join("target").display());
    let output = make_without_cargo(&["install", "PREFIX=/usr", &stage_is, &release_is, &target]);
    assert!(output.status.success(), "{output:?}");
    assert!(stage.path().join("usr/bin/shunt").exists());
    assert!(stage.path().join("usr/share/shunt/installed").exists());
}
