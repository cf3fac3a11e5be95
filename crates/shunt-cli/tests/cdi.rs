//! `shunt cdi generate`: a specification that runtimes take.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{Sandbox, any_library, text};
use serde_json::{Map, Value};

/// The fields of an object, of which there are no others than these: a runtime refuses a file with others.
fn object<'a>(value: &'a Value, allowed: &[&str]) -> &'a Map<String, Value> {
    let map = value.as_object().unwrap();
    assert!(map.keys().all(|key| allowed.contains(&key.as_str())), "{value}");
    map
}

/// Letters and digits at both ends; those and `others` between.
fn is_name(name: &str, others: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    is_end(name.chars().next())
        && is_end(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// The rules of the Container Device Interface, version 0.3.0, for what such a file can hold here.
fn check(spec: &Value) {
    object(spec, &["cdiVersion", "kind", "devices", "containerEdits"]);
    assert_eq!(spec["cdiVersion"], "0.3.0");
    let (vendor, class) = spec["kind"].as_str().unwrap().split_once('/').unwrap();
    let starts_with_letter = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic());
    assert!(is_name(vendor, "_-.") && starts_with_letter(vendor) && vendor.len() <= 253);
    assert!(vendor.split('.').all(|label| is_name(label, "-")), "no DNS name: {vendor}");
    assert!(is_name(class, "_-") && starts_with_letter(class) && class.len() <= 63);
    let devices = spec["devices"].as_array().unwrap();
    assert!(!devices.is_empty());
    let mut names: Vec<_> = devices.iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| is_name(name, "_-.:") && starts_with_letter(name)));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), devices.len(), "names are unique");
    for device in devices {
        object(device, &["name", "containerEdits"]);
        let edits = object(&device["containerEdits"], &["env", "deviceNodes", "hooks", "mounts"]);
        assert!(!edits.is_empty(), "a device must do something");
        for variable in edits["env"].as_array().unwrap() {
            let (name, _) = variable.as_str().unwrap().split_once('=').unwrap();
            assert!(!name.is_empty());
        }
        for mount in edits["mounts"].as_array().unwrap() {
            object(mount, &["hostPath", "containerPath", "options"]);
            for end in ["hostPath", "containerPath"] {
                assert!(Path::new(mount[end].as_str().unwrap()).is_absolute(), "{mount}");
            }
            assert!(mount["options"].as_array().unwrap().iter().all(Value::is_string));
        }
    }
}

fn edits(spec: &Value) -> (&Vec<Value>, &Vec<Value>) {
    let edits = &spec["devices"][0]["containerEdits"];
    (edits["env"].as_array().unwrap(), edits["mounts"].as_array().unwrap())
}

#[test]
fn the_specification_is_sound_and_leads_to_the_library_and_the_agent() {
    let sandbox = Sandbox::new();
    let output = sandbox.with_library(&["cdi", "generate"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).contains("no agent is running"), "{output:?}");
    let spec: Value = serde_json::from_slice(&output.stdout).unwrap();
    check(&spec);
    assert_eq!(spec["kind"], "shunt.dev/socket");
    let (env, mounts) = edits(&spec);
    let variable = |name: &str| {
        let found = env.iter().filter_map(|v| v.as_str()?.split_once('=')).find(|v| v.0 == name);
        found.unwrap_or_else(|| panic!("no {name}")).1
    };
    let host = |inside: &str| {
        let found = mounts.iter().find(|m| m["containerPath"] == inside);
        found.unwrap_or_else(|| panic!("{inside} is not mounted"))["hostPath"].as_str().unwrap()
    };
    assert_eq!(host(variable("SHUNT_RUN_DIR")), sandbox.run_dir().to_str().unwrap());
    assert!(sandbox.run_dir().is_dir(), "a runtime mounts only what is there");
    // As glibc's loader has it in Debian, in Fedora and in Arch Linux.
    let preload = variable("LD_PRELOAD");
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    for lib in [multiarch.as_str(), "lib64", "lib"] {
        assert_eq!(host(&preload.replace("$LIB", lib)), any_library().to_str().unwrap());
    }
    assert_eq!((env.len(), mounts.len()), (2, 4));
}

#[test]
fn it_goes_into_a_file_whole_or_not_at_all() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
    let file = sandbox.path("shunt.json");
    fs::write(&file, "of an earlier version").unwrap();
    let args = ["cdi", "generate", "--output", file.to_str().unwrap()];
    let output = sandbox.with_library(&args).output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    check(&serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap());
    let files = fs::read_dir(sandbox.path("")).unwrap().flatten().map(|e| e.file_name());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert_eq!(files, ["run", "shunt.json"]);

    // As /etc/cdi, where no other device is.
    let first = sandbox.path("cdi/shunt.json");
    let args = ["cdi", "generate", "--output", first.to_str().unwrap()];
    assert_eq!(sandbox.with_library(&args).output().unwrap().status.code(), Some(0));
    check(&serde_json::from_str(&fs::read_to_string(&first).unwrap()).unwrap());

    let nowhere = sandbox.path("no/such/file");
    let args = ["cdi", "generate", "--output", nowhere.to_str().unwrap()];
    let output = sandbox.with_library(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot be written"), "{output:?}");
    let mut command = sandbox.command(&["cdi", "generate"]);
    let output = command.env("SHUNT_LIB", "/no/such/lib.so").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("SHUNT_LIB names /no/such/lib.so"), "{output:?}");
}

#[test]
fn what_is_no_file_is_written_to_and_stays() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
    let (link, file) = (sandbox.path("link"), sandbox.path("file"));
    for (to, status) in [(file.as_path(), 0), (Path::new("/dev/full"), 1)] {
        symlink(to, &link).unwrap();
        let args = ["cdi", "generate", "--output", link.to_str().unwrap()];
        let output = sandbox.with_library(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert_eq!(fs::read_link(&link).unwrap(), to);
        fs::remove_file(&link).unwrap();
    }
    check(&serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap());
}
