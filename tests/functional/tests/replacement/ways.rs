//! The ways in which the library is put down.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::{built, program};
use shunt_functional::installation::{install, repository};

use crate::Builds;

/// A way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// `make install`.
    Make,
    /// What dist/kubernetes runs on each node.
    DaemonSet,
    /// A Debian package of what is installed.
    Dpkg,
    /// An RPM package of the same.
    Rpm,
}

/// The same, with all that it needs.
#[derive(Debug)]
pub struct Prepared {
    way: Way,
    root: PathBuf,
    /// What is put down, by the name of the build: a directory, or a package.
    sources: Vec<(&'static str, PathBuf)>,
    _packages: tempfile::TempDir,
}

const BUILDS: [&str; 2] = ["one", "two"];

/// The command of the DaemonSet, with another directory in place of the node's.
fn of_daemon_set(directory: &Path) -> Vec<String> {
    let yaml = repository().join("dist/kubernetes/shunt-agent.yaml");
    let yaml = fs::read_to_string(yaml).unwrap();
    let (_, container) = yaml.split_once("- name: library\n").unwrap();
    let mut lines = container.lines().map(str::trim);
    let command = lines.find_map(|line| line.strip_prefix("command: ")).unwrap();
    let command: Vec<String> = serde_json::from_str(command).unwrap();
    assert!(command.iter().any(|word| word.contains("/opt/shunt")), "{command:?}");
    let directory = directory.to_str().unwrap();
    command.iter().map(|word| word.replace("/opt/shunt", directory)).collect()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

impl Way {
    pub fn prepare(self, builds: &Builds, root: &Path) -> Prepared {
        let packages = tempfile::tempdir().unwrap();
        let source = |name| match self {
            Self::Make | Self::DaemonSet => builds.get(name),
            Self::Dpkg => debian_package(&builds.get(name), &packages.path().join(name)),
            Self::Rpm => rpm_package(&builds.get(name), &packages.path().join(name)),
        };
        let sources = BUILDS.map(|name| (name, source(name))).into();
        Prepared { way: self, root: root.into(), sources, _packages: packages }
    }
}

/// A package with all that `make install` installs.
fn debian_package(build: &Path, dir: &Path) -> PathBuf {
    let stage = dir.join("stage");
    fs::create_dir_all(stage.join("DEBIAN")).unwrap();
    install(build, &stage, "/usr");
    let control = "Package: shunt\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\n\
                   Description: a test\n";
    fs::write(stage.join("DEBIAN/control"), control).unwrap();
    let package = dir.join("shunt.deb");
    let mut command = Command::new(program("dpkg-deb"));
    run(command.args(["-Znone", "--root-owner-group", "--build"]).arg(&stage).arg(&package));
    package
}

fn rpm_package(build: &Path, dir: &Path) -> PathBuf {
    let stage = dir.join("stage");
    fs::create_dir_all(&stage).unwrap();
    install(build, &stage, "/usr");
    let spec = dir.join("shunt.spec");
    let text = format!(
        "Name: shunt\nVersion: 1\nRelease: 1\nSummary: a test\nLicense: none\nAutoReqProv: no\n\
         %global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n\
         %define _binary_payload w0.gzdio\n%description\na test\n\
         %install\nmkdir -p %{{buildroot}}\ncp -a '{}/usr' %{{buildroot}}/\n%files\n/usr/*\n",
        stage.display()
    );
    fs::write(&spec, text).unwrap();
    let define = |name: &str, value: &str| format!("{name} {value}");
    let top = dir.to_str().unwrap();
    run(Command::new(program("rpmbuild"))
        .args(["-bb", "--quiet", "--define", &define("_topdir", top)])
        .args(["--define", &define("_rpmdir", top), "--define", "_rpmfilename shunt.rpm"])
        .arg(&spec));
    dir.join("shunt.rpm")
}

impl Prepared {
    /// Where the library is.
    pub fn directory(&self) -> PathBuf {
        match self.way {
            Way::DaemonSet => self.root.join("opt/shunt"),
            _ => self.root.join("usr/lib/shunt"),
        }
    }

    /// Where it puts something.
    pub fn places(&self) -> Vec<PathBuf> {
        let command = (self.way != Way::DaemonSet).then(|| self.root.join("usr/bin"));
        [self.directory()].into_iter().chain(command).collect()
    }

    /// Puts that of a build there.
    pub fn put(&self, build: &str) {
        let (_, source) = self.sources.iter().find(|(name, _)| *name == build).unwrap();
        match self.way {
            Way::Make => install(source, &self.root, "/usr"),
            Way::DaemonSet => {
                let command = of_daemon_set(&self.directory());
                let shunt = built("shunt");
                let path = format!("{}:/usr/bin:/bin", shunt.parent().unwrap().display());
                let mut put = Command::new(&command[0]);
                put.args(&command[1..]).env("PATH", path);
                run(put.env("SHUNT_LIB", source.join("libshunt.so")).env_remove("LD_PRELOAD"));
            }
            Way::Dpkg => {
                let state = self.root.join("var/lib/dpkg");
                for part in ["info", "updates", "triggers"] {
                    fs::create_dir_all(state.join(part)).unwrap();
                }
                let status = state.join("status");
                fs::OpenOptions::new().append(true).create(true).open(status).unwrap();
                let root = format!("--root={}", self.root.display());
                let mut dpkg = Command::new(program("dpkg"));
                run(dpkg.args([&root, "--log=/dev/null", "--force-unsafe-io", "-i"]).arg(source));
            }
            Way::Rpm => {
                let mut rpm = Command::new(program("rpm"));
                rpm.arg("--root").arg(&self.root).args(["--nodeps", "--force", "--oldpackage"]);
                run(rpm.args(["--replacepkgs", "--replacefiles", "-U"]).arg(source));
            }
        }
    }
}
