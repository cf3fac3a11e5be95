//! Where the agent's directory is, and when it is refused.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use shunt_sys::run_dir::{Env, Owner, RunDir, Unusable};

fn path(env: Env<'_>, uid: u32) -> String {
    RunDir::locate(env, uid).unwrap().path().to_string()
}

fn at(dir: &Path) -> RunDir {
    let uid = rustix::process::geteuid().as_raw();
    let env = Env { run_dir: Some(dir.as_os_str().as_bytes()), ..Env::default() };
    RunDir::locate(env, uid).unwrap()
}

#[test]
fn the_order_of_places() {
    let env = Env { run_dir: Some(b"/a/b"), xdg_runtime_dir: Some(b"/run/user/7") };
    assert_eq!(path(env, 0), "/a/b");
    assert_eq!(path(env, 7), "/a/b");
    let env = Env { run_dir: Some(b""), ..env };
    assert_eq!(path(env, 0), "/run/shunt-root");
    assert_eq!(path(env, 7), "/run/user/7/shunt");
    assert_eq!(path(Env::default(), 1000), "/tmp/shunt-1000");
    assert_eq!(path(Env::default(), u32::MAX), "/tmp/shunt-4294967295");
}

/// Root's own agent and the host's do not meet unless somebody makes them.
#[test]
fn an_agent_for_the_host_has_a_place_of_its_own() {
    let of_host = |env| RunDir::locate_for_host(env, 0).unwrap().path().to_string();
    let env = Env { xdg_runtime_dir: Some(b"/run/user/0"), ..Env::default() };
    assert_eq!(of_host(env), "/run/shunt");
    assert_eq!(of_host(Env { run_dir: Some(b""), ..env }), "/run/shunt");
    assert_eq!(of_host(Env { run_dir: Some(b"/a/b"), ..env }), "/a/b");
    assert_ne!(path(env, 0), of_host(env));
}

#[test]
fn bad_paths() {
    let long = [b'/'; 100];
    for bad in [&b"relative"[..], b"/with\0nul", &long] {
        let env = Env { run_dir: Some(bad), ..Env::default() };
        assert_eq!(RunDir::locate(env, 7).unwrap_err(), Unusable::BadPath);
    }
}

#[test]
fn made_closed_to_others_and_found_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = at(&temp.path().join("run"));
    assert!(matches!(dir.check(), Err(Unusable::System(_))));
    dir.create().unwrap();
    dir.create().unwrap();
    let mode = std::fs::metadata(temp.path().join("run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    assert!(dir.file(b"agent.sock").unwrap().to_string().ends_with("/run/agent.sock"));
}

#[test]
fn refused() {
    let temp = tempfile::tempdir().unwrap();
    let open = temp.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o750)).unwrap();
    assert_eq!(at(&open).create(), Err(Unusable::OpenToOthers(0o750)));

    let file = temp.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(at(&file).create(), Err(Unusable::NotADirectory));

    let link = temp.path().join("link");
    symlink(temp.path(), &link).unwrap();
    assert_eq!(at(&link).create(), Err(Unusable::NotADirectory));

    let foreign = temp.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let me = rustix::process::geteuid().as_raw();
    let (owner, other) = if me == 0 { (1, 2) } else { (me, me + 1) };
    std::os::unix::fs::chown(&foreign, Some(owner), None).unwrap();
    assert_eq!(of_user(&foreign, other).check(), Err(Unusable::ForeignOwner(owner)));
}

fn of_user(dir: &Path, uid: u32) -> RunDir {
    let env = Env { run_dir: Some(dir.as_os_str().as_bytes()), ..Env::default() };
    RunDir::locate(env, uid).unwrap()
}

#[test]
fn that_of_the_hosts_agent_is_for_all_users_and_nobody_else_may_write_to_it() {
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    let root = at(&path);
    root.create_for_host().unwrap();
    root.create_for_host().unwrap();
    assert_eq!(root.check(), Ok(Owner::User), "not yet");
    root.open_to_all().unwrap();
    assert_eq!([of_user(&path, 7).check(), root.check()], [Ok(Owner::Root); 2]);
    assert_eq!(root.create(), Err(Unusable::OfHost), "for root's own agent");
    assert_eq!(of_user(&path, 7).create(), Err(Unusable::OfHost), "for a user's");
    for mode in [0o775, 0o757, 0o777] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(of_user(&path, 7).check(), Err(Unusable::WritableByOthers(mode)));
        assert_eq!(root.check(), Err(Unusable::OpenToOthers(mode)));
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(root.check(), Ok(Owner::User));
    root.create_for_host().unwrap();
    assert_eq!(root.check(), Ok(Owner::User), "whose it may still be");
    root.open_to_all().unwrap();
    assert_eq!(root.check(), Ok(Owner::Root), "opened on purpose");
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    assert_eq!(of_user(&path, 7).check(), Err(Unusable::ForeignOwner(65534)), "no container");
    assert_eq!(root.create_for_host(), Err(Unusable::ForeignOwner(65534)));
}

#[test]
fn whose_agents_are_trusted() {
    let (me, other) = (1000, 1001);
    let trusted = |owner: Owner| [0, me, other, 65534].map(|agent| owner.trusts(agent, me));
    assert_eq!(trusted(Owner::User), [true, true, false, false]);
    assert_eq!(trusted(Owner::Root), [true, false, false, false]);
    assert_eq!(trusted(Owner::Unmapped), [false, false, false, true]);
}
