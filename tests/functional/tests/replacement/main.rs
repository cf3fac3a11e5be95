//! The library is replaced while programs run with it, in each way in which it is put down: they go on, shunted, and
//! those that start meanwhile find a whole one.

mod load;
mod watch;
mod ways;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::{built, program};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox, is_root};

use load::{Load, Parent, Starters};
use watch::Watch;
use ways::Way;

/// Two builds, of which one has some bytes more in its library, where no loader looks.
struct Builds {
    dir: tempfile::TempDir,
}

impl Builds {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bytes = fs::read(built("libshunt.so")).unwrap();
        for (name, more) in [("one", 0), ("two", 4096)] {
            let build = dir.path().join(name);
            fs::create_dir(&build).unwrap();
            fs::write(build.join("libshunt.so"), [&bytes[..], &vec![0; more]].concat()).unwrap();
            for same in ["shunt", "libshunt_nbdkit.so", "libshunt_nvme_c.so"] {
                std::os::unix::fs::symlink(built(same), build.join(same)).unwrap();
            }
        }
        Self { dir }
    }

    fn get(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// What a program says whose `/proc/self/maps` is searched for the library.
fn inode_of(maps: &str) -> u64 {
    let line = maps.lines().find(|line| line.contains("libshunt.so")).expect("it is mapped");
    line.split_whitespace().nth(4).and_then(|inode| inode.parse().ok()).expect("a number")
}

/// The file that a name leads to.
fn inode(path: &Path) -> u64 {
    path.metadata().expect("the library").ino()
}

/// Which library a new program gets that `sandbox` runs.
fn of_a_new_program(sandbox: &Sandbox) -> u64 {
    let mut command = sandbox.command(program("grep"));
    command.args(["libshunt.so", "/proc/self/maps"]);
    let found = sandbox.run(command);
    assert_eq!(found.stderr, "");
    inode_of(&found.stdout)
}

fn replaced_under_load(way: Way) {
    let (builds, root) = (Builds::new(), tempfile::tempdir().unwrap());
    let way = way.prepare(&builds, root.path());
    way.put("one");
    let directory = way.directory();
    let library = directory.join("libshunt.so");
    let sandbox = Sandbox::new(Mode::Attach).with_env("SHUNT_LIB", &library);
    let mut load = Load::start(&sandbox);
    let mut parent = Parent::start(&sandbox, sandbox.command("env"));
    let watch = Watch::of(way.places());
    let first = inode(&library);
    // The same again, a newer one, the older one.
    for build in ["one", "two", "one"] {
        let starters = Starters::start(&directory);
        way.put(build);
        starters.stop();
        watch.assert_only_renamed();
        let expected = fs::read(builds.get(build).join("libshunt.so")).unwrap();
        assert!(fs::read(&library).unwrap() == expected, "{way:?} has not replaced the library");
        assert_eq!(of_a_new_program(&sandbox), inode(&library));
        assert_eq!(parent.start_child(), inode(&library), "a child of a program that runs");
        load.assert_shunted(&sandbox);
    }
    assert_ne!(inode(&library), first);
    load.end(&sandbox);
}

#[test]
fn by_make_install() {
    replaced_under_load(Way::Make);
}

#[test]
fn by_the_daemon_set() {
    replaced_under_load(Way::DaemonSet);
}

#[test]
fn by_dpkg() {
    if is_root() {
        replaced_under_load(Way::Dpkg);
    } else {
        println!("left out: only root can install packages");
    }
}

#[test]
fn by_rpm() {
    if is_root() {
        replaced_under_load(Way::Rpm);
    } else {
        println!("left out: only root can install packages");
    }
}

/// What a container has of the library's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mount {
    /// Each file, as `shunt cdi generate` says.
    Files,
    /// The directory, as a Kubernetes volume has it.
    Directory,
}

/// A command line that runs a program in a mount namespace with such a mount.
fn contained(sandbox: &Sandbox, directory: &Path, mount: Mount) -> Command {
    let from = directory.display();
    let mut script = String::from("set -e\nmount -t tmpfs tmpfs /opt\nmkdir /opt/shunt\n");
    match mount {
        Mount::Directory => script.push_str(&format!("mount --bind '{from}' /opt/shunt\n")),
        Mount::Files => {
            for lib in ["lib", "lib64", &format!("lib/{}-linux-gnu", std::env::consts::ARCH)] {
                let to = format!("/opt/shunt/{lib}");
                script.push_str(&format!("mkdir -p {to}\ntouch {to}/libshunt.so\n"));
                let (from, to) = (directory.join("libshunt.so"), format!("{to}/libshunt.so"));
                script.push_str(&format!("mount --bind '{}' {to}\n", from.display()));
            }
        }
    }
    script.push_str("exec env LD_PRELOAD='/opt/shunt/$LIB/libshunt.so' \"$@\"");
    let mut command = sandbox.plain(program("unshare"));
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.env("SHUNT_DMB", sandbox.mode.to_string());
    command
}

fn replaced_under_containers(mount: Mount) {
    let (builds, root) = (Builds::new(), tempfile::tempdir().unwrap());
    let way = Way::DaemonSet.prepare(&builds, root.path());
    way.put("one");
    let directory = way.directory();
    let library = directory.join("libshunt.so");
    let sandbox = Sandbox::new(Mode::Attach).with_env("SHUNT_LIB", &library);
    let mut load = Load::start(&sandbox);
    let mut container = Parent::start(&sandbox, contained(&sandbox, &directory, mount));
    let first = inode(&library);
    assert_eq!(container.start_child(), first);
    for build in ["two", "one"] {
        way.put(build);
        // A container that has the file keeps it, whole, though it has no name any more.
        let expected = if mount == Mount::Files { first } else { inode(&library) };
        assert_eq!(container.start_child(), expected);
        let old = sandbox.expect(Expect::Ends(2), || container.fetch(&load.url()));
        assert_eq!(old, load::CONTENT.len());
        // One that is made anew has what there is now.
        let mut other = Parent::start(&sandbox, contained(&sandbox, &directory, mount));
        assert_eq!(other.start_child(), inode(&library));
        other.end();
        load.assert_shunted(&sandbox);
    }
    container.end();
    load.end(&sandbox);
}

#[test]
fn in_containers_that_mount_the_file() {
    replaced_under_containers(Mount::Files);
}

#[test]
fn in_containers_that_mount_the_directory() {
    replaced_under_containers(Mount::Directory);
}
