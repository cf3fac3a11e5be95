//! The stub of libibverbs, compiled once per run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shunt_verbs::port::Port;
use shunt_verbs::value::{Access, Event};
use shunt_verbs::{Device, Library, Memory, Refused, Unavailable};

/// Where it was compiled to. The name differs by the process, since several may run at once.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stub/stub.c");
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let library = dir.join(format!("libibverbs-stub-{}.so", std::process::id()));
        let arguments = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o"];
        let compiled =
            Command::new("cc").args(arguments).arg(&library).arg(source).output().unwrap();
        assert!(
            compiled.status.success(),
            "the header of libibverbs-dev is needed (make deps-test):\n{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        library
    })
}

/// It, loaded.
pub fn library() -> Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let load = || {
        // SAFETY: compiled with the header of libibverbs.
        let library = unsafe { Library::load_from(path()) }.unwrap();
        // It is loaded; what a killed run leaves is replaced by the next build.
        std::fs::remove_file(path()).unwrap();
        library
    };
    LIBRARY.get_or_init(load).clone()
}

#[test]
fn the_address_of_routed_packets_is_preferred() {
    let device = Device::open(&library(), "stub0", 1, None).unwrap();
    assert_eq!(device.address().gid.to_string(), "::ffff:10.0.0.7");
    assert_eq!(device.address().index, 1);
    let device = Device::open(&library(), "stub0", 1, Some(0)).unwrap();
    assert_eq!(device.address().gid.to_string(), "fe80::7");
}

#[test]
fn what_cannot_be_used_is_a_reason() {
    let said = |name, port, index| {
        Device::open(&library(), name, port, index).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        said("mlx5_9", 1, None),
        "there is no RDMA device mlx5_9: there is stub0, closed0, down0, told0"
    );
    assert!(said("closed0", 1, None).contains("may not be opened by this user"));
    assert!(said("down0", 1, None).starts_with("port 1 of the RDMA device down0 is not active"));
    assert!(said("stub0", 2, None).starts_with("port 2 of the RDMA device stub0 is not active"));
    assert!(said("stub0", 1, Some(3)).contains("has no address at index 3"));
}

#[test]
fn a_machine_without_devices_is_a_reason() {
    // The system's library, where it is installed and finds nothing.
    let names = match Library::load() {
        Ok(library) => Device::names(&library),
        Err(why) => Err(why),
    };
    let is_reason = matches!(names, Err(Unavailable::NoDevice | Unavailable::Library(_)));
    assert!(is_reason || names.is_ok_and(|names| !names.is_empty()));
}

#[test]
fn too_much_memory_is_a_reason() {
    let device = Device::open(&library(), "stub0", 1, None).unwrap();
    let memory = Memory::new(65 << 20).unwrap();
    let refused = device.register(&memory, 0..memory.len(), Access::Local).unwrap_err();
    assert!(matches!(refused, Refused::MemoryLimit(68_157_440)));
    assert!(refused.to_string().contains("RLIMIT_MEMLOCK"));
    assert!(device.register(&memory, 0..memory.len() + 1, Access::Local).is_err());
}

#[test]
fn what_happens_to_a_device_is_told_once() {
    let device = Device::open(&library(), "told0", 1, None).unwrap();
    let is_readable = || {
        let mut fds = [PollFd::from_borrowed_fd(device.events(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    assert!(is_readable());
    assert_eq!(device.event(), Some(Event::PortDown(1)));
    assert_eq!((device.event(), is_readable()), (None, false));
    assert_eq!(device.loss(), None, "it is up again");
}

#[test]
fn what_a_device_can_do_is_read_from_it() {
    let device = Device::open(&library(), "stub0", 1, None).unwrap();
    let limits = device.limits();
    assert_eq!((limits.vectors, limits.requests, limits.completions), (3, 1024, 4096));
    assert_eq!((limits.pieces, limits.message), (4, 1 << 20));
}
