//! The suite on the ivshmem device, whose ends are peers of one server.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shunt_conformance::Rig;
use shunt_device::ivshmem::server::Peer;
use shunt_device::ivshmem::{Means, Transport};
use shunt_ivshmem::config::Config;
use shunt_ivshmem::notify::Notifier;
use shunt_ivshmem::{Error, Server};
use shunt_shm::doorbell;
use shunt_shm::ivshmem::{Control, EXTENT, Kind, MemberId, offset};
use shunt_shm::region::{Region, create_in_device};
use tempfile::TempDir;

/// How long a server may take to introduce a peer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Length of the memory.
const SIZE: usize = 1 << 30;

/// A server in a thread of this process, and a member of those who share its memory.
struct Served {
    control: Control,
    me: MemberId,
    peer: Peer,
    server: Mutex<Option<JoinHandle<Result<(), Error>>>>,
    stop: OwnedFd,
    dir: TempDir,
}

impl Served {
    fn connect(dir: &TempDir) -> Peer {
        Peer::connect(&dir.path().join("ivshmem.sock"), PATIENCE).unwrap()
    }

    fn stop(&self) {
        if let Some(thread) = self.server.lock().unwrap().take() {
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

/// As the agent takes part.
fn join(peer: &Peer, name: u64) -> (Control, MemberId) {
    let control = Control::map(peer.memory(), peer.len()).unwrap();
    let vectors = u32::try_from(peer.vectors()).unwrap();
    let me = control.join(name, peer.peer(), vectors).unwrap();
    (control, me)
}

/// Takes the news of a peer; true if it was interrupted.
fn told(peer: &mut Peer, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if peer.hear().rung {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let left = Timespec::try_from(left).unwrap();
        poll(&mut [PollFd::new(&peer.ear().unwrap(), PollFlags::IN)], Some(&left)).unwrap();
    }
}

impl Rig for Served {
    /// An extent.
    type Made = usize;
    type Ear = Peer;
    /// What a program at the other end has of it, and by which vector it rings.
    type Bell = (Means, usize);

    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let config = Config {
            vectors: 2,
            size: SIZE as u64,
            ..Config::new(dir.path().join("ivshmem.sock"))
        };
        let mut server = Server::start(config, Vec::new(), stop.try_clone().unwrap()).unwrap();
        let thread = std::thread::spawn(move || server.run(&mut Notifier::default()));
        let peer = Self::connect(&dir);
        let (control, me) = join(&peer, 1);
        Self { control, me, peer, server: Mutex::new(Some(thread)), stop, dir }
    }

    fn register(&self, name: u64) -> io::Result<usize> {
        let extent = self.control.take_extent(self.me).ok_or(io::ErrorKind::OutOfMemory)?;
        let before = self.control.extent(extent).kind();
        create_in_device(self.peer.memory(), offset(extent), name, before)?;
        self.control.describe(extent, Kind::Region, EXTENT, 0, name);
        Ok(extent)
    }

    fn unregister(&self, made: usize) {
        self.control.give_extent(made, self.me);
    }

    fn attach(&self, made: &usize) -> io::Result<Region> {
        Region::map_device(self.peer.memory(), offset(*made))
    }

    fn attach_no_region(&self) -> io::Result<Region> {
        Region::map_device(self.peer.memory(), offset(3))
    }

    fn resize(&self, _made: &usize, len: u64) -> io::Result<()> {
        File::from(Self::connect(&self.dir).memory().try_clone()?).set_len(len)
    }

    fn ear(&self) -> (Peer, (Means, usize)) {
        let mut ear = Self::connect(&self.dir);
        // Each bell that is watched rings once at the start.
        told(&mut ear, Duration::ZERO);
        // As who joins later has it: from the server.
        let other = Self::connect(&self.dir);
        let means = other.means(ear.peer().unwrap()).unwrap();
        (ear, (means, 1))
    }

    fn signal((means, vector): &(Means, usize)) {
        let Means::Eventfds(eventfds) = means else { panic!("{means:?}") };
        doorbell::interrupt(&eventfds[*vector]);
    }

    fn told(ear: &mut Peer, patience: Duration) -> bool {
        told(ear, patience)
    }
}

shunt_conformance::link_group_conformance!(Served);

/// The agent rings by the transport itself.
#[test]
fn a_peer_rings_another_by_its_id() {
    let served = Served::new();
    let (mut ear, _) = served.ear();
    let (mut third, _) = served.ear();
    let other = Served::connect(&served.dir);
    for vector in [0, 1, 2, 77] {
        other.ring(ear.peer().unwrap(), vector);
        assert!(told(&mut ear, PATIENCE), "vector {vector}");
    }
    other.ring(u16::MAX, 0);
    assert!(!told(&mut ear, Duration::ZERO) && !told(&mut third, Duration::ZERO));
}

/// What needs the server says that it is gone; what is mapped stays.
#[test]
fn a_server_that_is_gone_is_noticed() {
    let served = Served::new();
    let made = served.register(7).unwrap();
    let region = served.attach(&made).unwrap();
    let (mut ear, bell) = served.ear();
    assert!(!ear.hear().over);
    served.stop();
    let deadline = Instant::now() + PATIENCE;
    while !ear.hear().over {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(region.name(), 7);
    Served::signal(&bell);
    assert!(told(&mut ear, PATIENCE), "doorbells need no server");
}

/// What a member had is anybody's once it is gone and nobody holds it.
#[test]
fn the_memory_of_the_dead_is_used_again() {
    let mut served = Served::new();
    let (control, me) = (&served.control, served.me);
    let mut dying = Served::connect(&served.dir);
    let (_, dead) = join(&dying, 2);
    let holder = Served::connect(&served.dir);
    let (_, holds) = join(&holder, 3);
    let all: Vec<_> = std::iter::from_fn(|| control.take_extent(dead)).collect();
    assert_eq!(all.len(), SIZE / EXTENT - 1);
    assert_eq!(control.take_extent(me), None);
    let made = create_in_device(dying.memory(), offset(all[0]), 9, Kind::Fresh).unwrap();
    control.describe(all[0], Kind::Region, EXTENT, 0, 9);
    assert!(control.hold(all[0], (dead, 9), holds));
    let held = Region::map_device(holder.memory(), offset(all[0])).unwrap();
    // Its process is killed: nothing of it is given up, and the server says so.
    drop((made, dying.abandon()));
    let deadline = Instant::now() + PATIENCE;
    let gone = dying.peer().unwrap();
    while !served.peer.hear().left.contains(&gone) {
        assert!(Instant::now() < deadline, "peer {gone} is not missed");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The server may have written it already.
    let _ = served.control.has_left(gone);
    assert!(!served.control.lives(dead));
    let again: Vec<_> = std::iter::from_fn(|| served.control.take_extent(me)).collect();
    assert_eq!(again, all[1..], "all but what is held");
    for extent in again {
        create_in_device(served.peer.memory(), offset(extent), 1, Kind::Home).unwrap();
    }
    assert_eq!(held.name(), 9, "what is held stays");
    served.control.extent(all[0]).release(holds.index);
    assert_eq!(served.control.take_extent(me), Some(all[0]));
}

/// Memory that has something else in it is left alone.
#[test]
fn memory_of_another_kind_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create_new(dir.path().join("memory")).unwrap();
    file.set_len(SIZE as u64).unwrap();
    rustix::io::pwrite(file.as_fd(), b"ours!", 0).unwrap();
    let error = Control::map(&file, SIZE).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
}
