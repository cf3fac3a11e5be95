//! What `make install` installs works, and is what the packages hold.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::{dir, program};
use shunt_functional::installation::{install, make, repository};

/// An installation of what was built.
fn installed(root: &Path) {
    install(&dir(), root, "/usr");
}

/// Everything below a directory that is no directory, from it on.
fn files(below: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![below.to_path_buf()];
    while let Some(path) = left.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push(path.strip_prefix(below).unwrap().to_str().unwrap().to_owned());
        }
    }
    found
}

/// A file, or all in a directory.
fn without_pattern(path: &str) -> String {
    path.trim_end_matches("/*").trim_end_matches("/**").to_owned()
}

/// Where the Debian package has files from, and puts them to.
fn debian() -> BTreeSet<String> {
    let manifest = repository().join("crates/shunt-cli/Cargo.toml");
    let text = fs::read_to_string(manifest).unwrap();
    let assets = text.lines().filter_map(|l| l.trim().strip_prefix("[\"target/release/stage/"));
    let assets = assets.map(|asset| {
        let mut words = asset.split('"');
        let (from, to) = (without_pattern(words.next().unwrap()), words.nth(1).unwrap());
        assert!(to.ends_with('/') && format!("{from}/").starts_with(to), "{asset}");
        from
    });
    assets.collect()
}

/// What the RPM package holds.
fn rpm() -> BTreeSet<String> {
    let text = fs::read_to_string(repository().join("dist/rpm/shunt.spec")).unwrap();
    let (_, list) = text.split_once("\n%files\n").unwrap();
    let (list, debug) = list.split_once("\n%files debug\n").unwrap();
    assert_eq!(debug.trim(), "%{_prefix}/lib/debug/*");
    let places = [
        ("%{_bindir}", "usr/bin"),
        ("%{_libdir}", "usr/lib"),
        ("%{_includedir}", "usr/include"),
        ("%{_mandir}", "usr/share/man"),
        ("%{_datadir}", "usr/share"),
        ("%{_prefix}", "usr"),
    ];
    let files = list.lines().filter(|line| line.starts_with("%{")).map(|line| {
        let place = places.iter().find(|(name, _)| line.starts_with(name));
        let (name, place) = place.unwrap_or_else(|| panic!("{line}"));
        without_pattern(&line.replacen(name, place, 1))
    });
    files.collect()
}

#[test]
fn both_packages_hold_what_is_installed() {
    let root = tempfile::tempdir().unwrap();
    installed(root.path());
    let files = files(root.path());
    let (debian, rpm) = (debian(), rpm());
    assert_eq!(debian, rpm);
    let holds = |entry: &str, file: &str| {
        file.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for file in &files {
        assert!(debian.iter().any(|entry| holds(entry, file)), "no package holds {file}");
    }
    for entry in &debian {
        assert!(files.iter().any(|file| holds(entry, file)), "nothing is installed for {entry}");
    }
    for part in [
        "bin/shunt",
        "lib/shunt/libshunt.so",
        "include/shunt.h",
        "include/shunt_nvme.h",
        "lib/libshunt_nvme.so",
        "share/man/man1/shunt.1",
        // As messages name it.
        "share/doc/shunt/docs/upgrade.md",
        "share/man/man3/shunt_nvme.3",
    ] {
        assert!(files.contains(&format!("usr/{part}")), "{part} is not installed");
    }
}

#[test]
fn the_installed_program_finds_its_library() {
    let root = tempfile::tempdir().unwrap();
    installed(root.path());
    let shunt = |args: &[&str]| {
        let mut command = Command::new(root.path().join("usr/bin/shunt"));
        command.args(args).env("SHUNT_RUN_DIR", root.path().join("run"));
        for name in ["LD_PRELOAD", "SHUNT_LIB"] {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(shunt(&["--version"]), format!("shunt {}\n", env!("CARGO_PKG_VERSION")));
    let library = root.path().join("usr/lib/shunt/libshunt.so");
    let said = shunt(&["doctor", "sh"]);
    assert!(said.contains(&format!("library: {}\n", library.display())), "{said}");
    assert!(said.contains("the dynamic loader takes the library"), "{said}");
    // By every name that a loader may have for `$LIB`.
    for link in files(root.path()).iter().filter(|file| file.ends_with("/libshunt.so")) {
        let link = root.path().join(link);
        assert_eq!(link.canonicalize().unwrap(), library.canonicalize().unwrap());
    }
    assert!(shunt(&["cdi", "generate"]).contains(library.to_str().unwrap()));
}

/// Everything below a directory, itself not.
fn all(below: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(all(&path));
        }
        found.insert(path);
    }
    found
}

#[test]
fn an_uninstallation_leaves_what_was_there_before() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    let local = root.join("usr/local");
    // Directories that are empty, and files in some that an installation uses.
    for place in ["include", "share/man/man1", "lib/systemd/system"] {
        fs::create_dir_all(local.join(place)).unwrap();
    }
    fs::write(local.join("lib/systemd/system/other.service"), "").unwrap();
    let before = all(&root);
    let make = |goal: &str| make(&dir(), &temp.path().join("target"), &root, "/usr/local", goal);
    make("install-recorded");
    let first = all(&root);
    assert!(first.contains(&local.join("bin/shunt")));
    // Over another version, which had a file that this one has not.
    let recorded = local.join("share/shunt/installed");
    fs::write(local.join("share/shunt/old"), "").unwrap();
    let text = fs::read_to_string(&recorded).unwrap();
    fs::write(&recorded, format!("/usr/local/share/shunt/old\n{text}")).unwrap();
    make("install-recorded");
    assert_eq!(all(&root), first);
    make("uninstall");
    assert_eq!(all(&root), before);
}

fn sections(file: &Path) -> String {
    let output = Command::new(program("objdump")).arg("-h").arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn debug_symbols_are_apart() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    installed(&root);
    let parts = [
        "bin/shunt",
        "lib/shunt/libshunt.so",
        "lib/shunt/nbdkit-shunt-plugin.so",
        "lib/libshunt_nvme.so.0",
    ];
    let size = || {
        parts
            .iter()
            .map(|part| fs::metadata(root.join("usr").join(part)).unwrap().len())
            .sum::<u64>()
    };
    let whole = size();
    let output = Command::new(program("make"))
        .current_dir(repository())
        .env_remove("MAKEFLAGS")
        .args([
            "split-debug",
            &format!("STAGE={}", root.display()),
            &format!("DEBUG={}", root.join("debug").display()),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(size() * 3 < whole, "{} of {whole}", size());
    for part in parts {
        let file = root.join("usr").join(part);
        let sections_left = sections(&file);
        assert!(
            sections_left.contains(".gnu_debuglink") && !sections_left.contains(".debug_"),
            "{part}"
        );
        let debug = root.join("debug/usr").join(format!("{part}.debug"));
        assert!(sections(&debug).contains(".debug_line"), "{part}");
    }
    let mut command = Command::new(root.join("usr/bin/shunt"));
    let output = command
        .args(["run", "--", "true"])
        .env("SHUNT_RUN_DIR", root.join("run"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
