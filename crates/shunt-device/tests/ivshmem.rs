//! The conformance suite on the ivshmem device, whose ends are peers of one server.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shunt_conformance::Rig;
use shunt_device::ivshmem::server::Peer;
use shunt_device::ivshmem::{Dmb, Ivshmem, Transport};
use shunt_engine::ports::{Device, DeviceError, Token};
use shunt_ivshmem::config::Config;
use shunt_ivshmem::notify::Notifier;
use shunt_ivshmem::{Error, Server};
use shunt_shm::ivshmem::EXTENT;
use tempfile::TempDir;

/// How long a server may take to introduce a peer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server in a thread of this process.
struct Served {
    dir: TempDir,
    stop: std::os::fd::OwnedFd,
    thread: Mutex<Option<JoinHandle<Result<(), Error>>>>,
}

impl Served {
    fn stop(&self) {
        if let Some(thread) = self.thread.lock().unwrap().take() {
            rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

impl Rig for Served {
    type Device = Ivshmem<Peer>;

    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let config =
            Config { vectors: 2, size: 1 << 30, ..Config::new(dir.path().join("ivshmem.sock")) };
        let mut server = Server::start(config, Vec::new(), stop.try_clone().unwrap()).unwrap();
        let thread = std::thread::spawn(move || server.run(&mut Notifier::default()));
        Self { dir, stop, thread: Mutex::new(Some(thread)) }
    }

    fn end(&self) -> Self::Device {
        let end =
            Ivshmem::join(Peer::connect(&self.dir.path().join("ivshmem.sock"), PATIENCE).unwrap());
        let end = end.unwrap();
        // Each bell that is watched rings once at the start.
        end.is_told();
        end
    }

    fn read(dmb: &Arc<Dmb>, offset: usize, into: &mut [u8]) {
        dmb.read(offset, into).unwrap();
    }

    fn write(dmb: &Arc<Dmb>, offset: usize, data: &[u8]) {
        dmb.write(offset, data).unwrap();
    }

    fn told(end: &Self::Device, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let ear = end.with_transport(|t| t.ear().unwrap().as_fd().try_clone_to_owned().unwrap());
        loop {
            if end.is_told() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let left = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            poll(&mut [PollFd::new(&ear, PollFlags::IN)], Some(&left)).unwrap();
        }
    }

    fn resize(&self, _token: Token, len: u64) -> Option<io::Result<()>> {
        let peer = Peer::connect(&self.dir.path().join("ivshmem.sock"), PATIENCE).unwrap();
        let memory = peer.memory().try_clone().unwrap();
        Some(std::fs::File::from(memory).set_len(len))
    }

    fn die(&self) {
        self.stop();
    }
}

shunt_conformance::device_conformance!(Served);

/// What a member had is anybody's once it is gone and nobody holds it.
#[test]
fn the_memory_of_the_dead_is_used_again() {
    let served = Served::new();
    let survivor = served.end();
    let holder = served.end();
    let all = (1 << 30) / EXTENT - 1;
    let dying = served.end();
    let dmbs: Vec<_> = (0..all).map(|_| dying.register_dmb(64).unwrap()).collect();
    assert_eq!(survivor.register_dmb(64).map(|d| d.0), Err(DeviceError::NoResources));
    let (token, dmb) = &dmbs[0];
    dmb.write(0, &[7]).unwrap();
    let held = holder.attach_dmb(*token).unwrap();
    // Its process is killed: nothing of it is unregistered, and the server says so.
    let peer = dying.with_transport(|t| t.peer().unwrap());
    std::mem::forget(dmbs);
    let socket = dying.with_transport(Peer::abandon);
    std::mem::forget(dying);
    drop(socket);
    let deadline = Instant::now() + Duration::from_secs(10);
    while survivor.register_dmb(64).is_err() {
        assert!(Instant::now() < deadline, "peer {peer} is not missed");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut taken = Vec::new();
    while let Ok(dmb) = survivor.register_dmb(64) {
        dmb.1.write(0, &[1]).unwrap();
        taken.push(dmb);
    }
    assert_eq!(taken.len() + 2, all, "all but what is held, and what the loop has got");
    let mut byte = [0];
    held.read(0, &mut byte).unwrap();
    assert_eq!(byte, [7], "what is held stays");
}

/// Memory that has something else in it is left alone.
#[test]
fn memory_of_another_kind_is_refused() {
    let served = Served::new();
    let peer = Peer::connect(&served.dir.path().join("ivshmem.sock"), PATIENCE).unwrap();
    rustix::io::pwrite(peer.memory(), b"ours!", 0).unwrap();
    let error = Ivshmem::join(peer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
}
