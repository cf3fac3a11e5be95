//! `shunt cdi`: Shunt as a device that a container runtime gives to a container (Container Device Interface 0.3.0).
//!
//! A container needs what a program under `shunt run` has: the library, the agent's directory, and the environment
//! that names both.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::{Value, json};
use shunt_sys::run_dir::Unusable;
use shunt_wire::knob;

use crate::cli::{Cdi, CdiCommand};
use crate::directory::{Directory, Unreachable, run_dir};
use crate::files::create_directory;
use crate::library;
use crate::output::{complain, print};

/// Of the specification: its first one, which has all that is used here. A runtime passes over a file of a version that it does
/// not know (podman 4.3, that of Debian 12, knows 0.5.0).
const VERSION: &str = "0.3.0";
/// The class of devices, and the one there is: `--device shunt.dev/socket=default`.
const KIND: &str = "shunt.dev/socket";
const DEVICE: &str = "default";
/// Where the library is in a container.
const LIBRARY: &str = "/opt/shunt";
/// Where the agent's directory is in a container.
const RUN_DIR: &str = "/run/shunt";

/// Runs the subcommand.
pub fn run(args: &Cdi) -> u8 {
    let CdiCommand::Generate(args) = &args.command;
    let text = match generate() {
        Ok(spec) => format!("{spec:#}\n"),
        Err(why) => {
            complain(&why);
            return 1;
        }
    };
    if let Some(path) = &args.output
        && let Err(e) = write(path, &text)
    {
        complain(&format!("{} cannot be written: {e}; name another file", path.display()));
        return 1;
    }
    // A container starts none.
    if let Err(why @ (Unreachable::NotRunning(_) | Unreachable::HostNotRunning(_))) =
        Directory::open()
    {
        complain(&why);
    }
    if args.output.is_none() { print(&text) } else { 0 }
}

/// Whole or not at all: a runtime may read it at any time. What is no file, such as /dev/stdout, is written to, and stays.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
        return fs::write(path, text);
    }
    // /etc/cdi itself is missing where nothing has been put there yet.
    if let Some(directory) = path.parent().filter(|dir| dir.parent().is_some_and(Path::is_dir)) {
        create_directory(directory)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

fn generate() -> Result<Value, String> {
    let library = library::find().map_err(|why| why.to_string())?;
    let unusable = |dir, why| Unreachable::RunDir(dir, why).to_string();
    let dir = run_dir().map_err(|why| unusable(None, why))?;
    // A runtime mounts only what is there.
    let there = match dir.check() {
        Err(Unusable::System(Errno::NOENT)) => dir.create(),
        checked => checked.map(drop),
    };
    there.map_err(|why| unusable(Some(dir.path().to_string()), why))?;
    let dir = Path::new(std::ffi::OsStr::from_bytes(dir.path().as_bytes()));
    spec(&library, dir).map_err(|path| {
        format!(
            "the path {} is not UTF-8, so no specification can hold it; move it",
            path.display()
        )
    })
}

/// The specification; the error is a path that it cannot hold.
fn spec(library: &Path, run_dir: &Path) -> Result<Value, PathBuf> {
    let inside = Path::new(LIBRARY);
    let mounts = library::LIB_DIRECTORIES
        .into_iter()
        .map(|lib| mount(library, &inside.join(lib).join(library::NAME)))
        .chain([mount(run_dir, Path::new(RUN_DIR))]);
    let entry = library::preload(&inside.join("$LIB").join(library::NAME), None);
    let env = [(library::VARIABLE, entry.to_string_lossy().as_ref()), (knob::RUN_DIR.env, RUN_DIR)]
        .map(|(name, value)| format!("{name}={value}"));
    Ok(json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{
            "name": DEVICE,
            "containerEdits": { "env": env, "mounts": mounts.collect::<Result<Vec<_>, _>>()? },
        }],
    }))
}

/// Read-only: a socket can be connected to all the same, and what is in the directory is the agent's alone.
fn mount(host: &Path, inside: &Path) -> Result<Value, PathBuf> {
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| path.to_path_buf());
    Ok(json!({
        "hostPath": text(host)?,
        "containerPath": text(inside)?,
        "options": ["ro", "nosuid", "nodev", "bind"],
    }))
}
