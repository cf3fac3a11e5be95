//! `shunt enable` and `shunt disable`, with a stand-in for systemctl.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use common::{Sandbox, any_library, text};

/// Says of a unit what there is in files, and of its drop-ins what systemd would.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$FAKE/calls"
case $1 in
show)
    for unit; do :; done
    [ -e "$FAKE/refuses" ] && { echo "Failed to connect to bus" >&2; exit 1; }
    [ -e "$FAKE/$unit" ] || { printf 'Id=%s\nLoadState=not-found\nMainPID=0\n' "$unit"; exit 0; }
    cat "$FAKE/$unit"
    id=$(sed -n 's/^Id=//p' "$FAKE/$unit")
    drop_in=$UNITS/$id.d/50-shunt.conf
    if [ -e "$drop_in" ] && [ -e "$FAKE/reloaded" ]; then
        echo "DropInPaths=$drop_in"
        echo Environment=$(sed -n 's/^Environment=//p' "$drop_in") $(cat "$FAKE/wins" 2>/dev/null)
    fi;;
daemon-reload) [ ! -e "$FAKE/broken" ] || { echo "Access denied" >&2; exit 1; }; touch "$FAKE/reloaded";;
try-restart) ;;
*) exit 9;;
esac
"#;

struct Host {
    sandbox: Sandbox,
}

impl Host {
    fn new() -> Self {
        let host = Self { sandbox: Sandbox::new() };
        for directory in ["bin", "fake", "units"] {
            fs::create_dir(host.path(directory)).unwrap();
        }
        let systemctl = host.path("bin/systemctl");
        fs::write(&systemctl, SYSTEMCTL).unwrap();
        fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
        host.unit("shunt-host.socket", "");
        // As an agent would find it.
        let library = host.path("libshunt.so");
        fs::copy(any_library(), library).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    /// A service that systemd knows.
    fn unit(&self, name: &str, more: &str) {
        let said = format!("Id={name}\nLoadState=loaded\nMainPID=0\n{more}");
        fs::write(self.path("fake").join(name), said).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.command(args);
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("SHUNT_LIB", self.path("libshunt.so"));
        command.env("FAKE", self.path("fake")).env("UNITS", self.path("units"));
        command.env_remove("SHUNT_RUN_DIR").arg("--directory").arg(self.path("units"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Its status, and what it says on both streams.
    fn said(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.run(args);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn drop_in(&self, unit: &str) -> PathBuf {
        self.path("units").join(format!("{unit}.d/50-shunt.conf"))
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("fake/calls")).unwrap_or_default()
    }
}

const SH: &str = "ExecStart={ path=/bin/sleep ; argv[]=/bin/sleep 9 ; }\n";

#[test]
fn a_service_is_given_shunt_and_loses_it() {
    let host = Host::new();
    host.unit("a.service", SH);
    let (code, said, errors) = host.said(&["enable", "a", "--dry-run"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{said}");
    assert!(
        said.contains("Wants=shunt-host.socket") && !host.drop_in("a.service").exists(),
        "{said}"
    );
    assert!(!host.calls().contains("daemon-reload"));

    let (code, told, errors) = host.said(&["enable", "a"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{told}");
    assert!(told.contains("a.service is enabled") && told.contains("does not run"), "{told}");
    let written = fs::read_to_string(host.drop_in("a.service")).unwrap();
    assert!(said.ends_with(&written), "--dry-run tells what is written: {said}\n{written}");
    let library = format!("LD_PRELOAD={}\"", host.path("libshunt.so").display());
    assert!(
        written.contains(&library) && written.contains("SHUNT_RUN_DIR=/run/shunt"),
        "{written}"
    );

    // Once more changes nothing.
    assert_eq!(host.said(&["enable", "a"]).0, Some(0));
    assert_eq!(fs::read_to_string(host.drop_in("a.service")).unwrap(), written);
    let (code, said, _) = host.said(&["enable", "--status"]);
    assert!(code == Some(0) && said.contains("a.service  in force  does not run"), "{said}");

    let (code, said, _) = host.said(&["disable", "--all", "--dry-run"]);
    assert!(code == Some(0) && said.starts_with("would remove "), "{said}");
    let (code, said, _) = host.said(&["disable", "--all"]);
    assert!(code == Some(0) && said.contains("a.service is disabled"), "{said}");
    assert!(!host.drop_in("a.service").parent().unwrap().exists());
    assert_eq!(host.said(&["disable", "--all"]).1, "no service is enabled\n");
    assert_eq!(host.said(&["enable", "--status"]).1, "no service is enabled\n");
}

#[test]
fn a_service_that_runs_has_to_be_restarted() {
    let host = Host::new();
    // This process has no library.
    let pid = std::process::id();
    host.unit("a.service", &format!("MainPID={pid}\n{SH}"));
    let (code, said, _) = host.said(&["enable", "a"]);
    assert!(code == Some(0) && said.contains("systemctl restart a.service"), "{said}");
    let (_, said, _) = host.said(&["enable", "--status"]);
    assert!(said.contains(&format!("{pid}, without the library: restart it")), "{said}");
    assert!(!host.calls().contains("restart"));
    let (code, _, errors) = host.said(&["enable", "a", "--restart"]);
    assert!(code == Some(1) && errors.contains("runs without the library"), "{errors}");
    assert!(host.calls().contains("try-restart -- a.service"));
}

#[test]
fn files_of_others_are_left_alone() {
    let host = Host::new();
    host.unit("a.service", SH);
    let file = host.drop_in("a.service");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, "[Service]\nNice=1\n").unwrap();
    for args in [&["enable", "a"][..], &["enable", "-n", "a"], &["disable", "a"]] {
        let (code, _, errors) = host.said(args);
        assert!(code == Some(1) && errors.contains("of `shunt enable`"), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "[Service]\nNice=1\n");
    assert_eq!(host.said(&["disable", "--all"]).1, "no service is enabled\n");
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let host = Host::new();
    host.unit("a.service", SH);
    fs::write(host.path("fake/wins"), "LD_PRELOAD=/other.so").unwrap();
    let (code, _, errors) = host.said(&["enable", "a"]);
    assert!(code == Some(1) && errors.contains("sets LD_PRELOAD, and wins"), "{errors}");
    fs::remove_file(host.path("fake/wins")).unwrap();
    fs::write(host.path("fake/broken"), "").unwrap();
    let (code, _, errors) = host.said(&["enable", "a"]);
    assert!(code == Some(1) && errors.contains("Access denied"), "{errors}");
    assert!(!host.drop_in("a.service").parent().unwrap().exists());
    fs::remove_file(host.path("fake/broken")).unwrap();
    fs::write(host.path("units/a.service.d"), "no directory").unwrap();
    let (code, _, errors) = host.said(&["enable", "a"]);
    assert!(code == Some(1) && errors.contains("50-shunt.conf cannot be written"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn programs_that_cannot_be_shunted_are_refused_and_others_are_not_kept_from_it() {
    let host = Host::new();
    host.unit("a.service", SH);
    let static_program = host.path("static");
    // A program file without a loader, as the Go linker and `-static` make them.
    let mut bytes = fs::read("/bin/sleep").unwrap();
    bytes[0x38] = 0;
    bytes[0x39] = 0;
    fs::write(&static_program, bytes).unwrap();
    fs::set_permissions(&static_program, PermissionsExt::from_mode(0o755)).unwrap();
    host.unit("b.service", &format!("ExecStart={{ path={} ; }}\n", static_program.display()));
    let (code, said, errors) = host.said(&["enable", "b", "none-such", "a"]);
    assert_eq!(code, Some(1), "{said}{errors}");
    assert!(
        errors.contains("statically linked") && !host.drop_in("b.service").exists(),
        "{errors}"
    );
    assert!(errors.contains("none-such.service: there is no such service"), "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert!(said.contains("a.service is enabled") && host.drop_in("a.service").exists());
}

#[test]
fn without_systemd_or_without_an_agent() {
    let host = Host::new();
    host.unit("a.service", SH);
    fs::remove_file(host.path("fake/shunt-host.socket")).unwrap();
    let one_line = |mut command: Command, what: &str| {
        let output = command.output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains(what), "{errors}");
    };
    let mut command = host.command(&["enable", "a"]);
    command.env("SHUNT_RUN_DIR", host.path("none"));
    one_line(command, "there is no agent for the host");
    fs::write(host.path("fake/refuses"), "").unwrap();
    one_line(host.command(&["enable", "a"]), "Failed to connect to bus");
    let mut command = host.command(&["enable", "a"]);
    command.env("PATH", "/nonexistent");
    one_line(command, "this is no systemd system");
}

#[test]
fn names_that_are_no_services() {
    let host = Host::new();
    for bad in ["a/b", "../x", "a.socket", "", "-x", "a b"] {
        for command in ["enable", "disable"] {
            let output = host.run(&[command, "--", bad]);
            assert_eq!(output.status.code(), Some(2), "{bad:?}: {}", text(&output.stderr));
        }
    }
    for args in
        [&["enable"][..], &["disable"], &["disable", "--all", "a"], &["enable", "--status", "a"]]
    {
        assert_eq!(host.run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_profile_goes_into_the_drop_in() {
    let host = Host::new();
    host.unit("a.service", SH);
    let (_, said, _) = host.said(&["enable", "a", "-n", "--profile", "efficient"]);
    assert!(said.contains("Environment=\"SHUNT_SPIN=never\"\n"), "{said}");
}
