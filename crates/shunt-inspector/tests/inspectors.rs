//! What may be passed, however it blocks: others are served meanwhile, and nothing waits for it.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shunt_blocking::{Held, HungFile, Lingering, chain};
use shunt_inspector::{Claimant, Inspectors, Limits, Loss, Outcome, Thing};
use shunt_sys::{seqpacket, sockinfo};

/// Far longer than anything here takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than that.
const FOR_EVER: Duration = Duration::from_secs(3600);

const LIMITS: Limits = Limits {
    of_process: 2,
    of_account: 3,
    inspectors: 8,
    hurry: Duration::from_millis(10),
    patience: FOR_EVER,
};

/// One test at a time: what one of them forks must not have what another one passes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn claimant(process: i32, account: u32) -> Claimant<u32> {
    Claimant { process, account }
}

/// Connections by their tickets, and the inspectors.
struct Scene {
    inspectors: Inspectors<u32>,
    clients: Vec<OwnedFd>,
    servers: Vec<OwnedFd>,
    outcomes: Vec<Option<Outcome>>,
}

impl Scene {
    fn new(limits: Limits) -> Self {
        let inspectors = Inspectors::start(limits).unwrap();
        Self { inspectors, clients: vec![], servers: vec![], outcomes: vec![] }
    }

    /// A client sends this.
    fn sends(&mut self, of: Claimant<u32>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> usize {
        let (client, server) = seqpacket::pair().unwrap();
        seqpacket::send_all(&client, bytes, fds).unwrap();
        let ticket = self.servers.len();
        self.clients.push(client);
        self.servers.push(server);
        self.outcomes.push(None);
        self.inspectors.inspect(ticket as u64, of);
        ticket
    }

    /// Works until `done`.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while !done(self) {
            assert!(started.elapsed() < PATIENCE, "{what}");
            let Self { inspectors, servers, outcomes, .. } = self;
            let began = Instant::now();
            let mut done = |ticket, outcome| outcomes[index(ticket)] = Some(outcome);
            inspectors.hear(&mut done);
            inspectors.turn(|ticket| Some(servers[index(ticket)].as_fd()), &mut done);
            assert!(began.elapsed() < PATIENCE, "it has waited");
            let nap = inspectors.patience().unwrap_or(PATIENCE).min(Duration::from_millis(20));
            let nap = Timespec::try_from(nap).unwrap();
            poll(&mut [PollFd::new(&inspectors.ear(), PollFlags::IN)], Some(&nap)).unwrap();
        }
    }

    fn outcome(&mut self, ticket: usize) -> Outcome {
        self.until("no outcome", |scene| scene.outcomes[ticket].is_some());
        self.outcomes[ticket].take().unwrap()
    }

    fn things(&mut self, ticket: usize) -> Vec<Thing> {
        match self.outcome(ticket) {
            Outcome::Seen(message) => message.things,
            Outcome::Lost(why) => panic!("{why:?}"),
        }
    }

    /// An honest program is served.
    fn serves(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let honest = self.sends(claimant(1, 1), b"honest", &[listener.as_fd()]);
        assert!(matches!(self.things(honest)[..], [Thing::Socket(_)]));
    }

    fn stuck(&self) -> usize {
        self.inspectors.burden().0
    }
}

fn index(ticket: u64) -> usize {
    usize::try_from(ticket).unwrap()
}

#[test]
fn a_packet_is_received_with_what_came_with_it() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let bell = eventfd(7, EventfdFlags::CLOEXEC).unwrap();
    let memory = shunt_blocking::sealed_memory().unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let other = std::fs::File::open("/dev/null").unwrap();
    let fds = [
        near.as_fd(),
        listener.as_fd(),
        bell.as_fd(),
        memory.as_fd(),
        reader.as_fd(),
        other.as_fd(),
    ];
    let ticket = scene.sends(claimant(1, 1), b"all of them", &fds);
    let Outcome::Seen(message) = scene.outcome(ticket) else { panic!("lost") };
    assert_eq!(message.packet.as_deref(), Some(&b"all of them"[..]));
    let [
        Thing::Socket(connected),
        Thing::Socket(listening),
        Thing::Bell(same_bell),
        Thing::Memory(_),
        Thing::Pipe(_),
        Thing::Other,
    ] = &message.things[..]
    else {
        panic!("{:?}", message.things)
    };
    assert_eq!(connected.cookie, sockinfo::cookie(&near).unwrap());
    assert_eq!(connected.netns, sockinfo::netns_cookie(&near));
    assert_eq!(connected.local, Some(near.local_addr().unwrap().into()));
    assert_eq!(connected.peer, Some(listener.local_addr().unwrap().into()));
    assert!(
        !connected.listens
            && listening.listens
            && listening.v6only == sockinfo::is_v6only(&listener)
    );
    let mut count = [0; 8];
    rustix::io::read(same_bell, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 7);
}

/// A program that closes its socket has closed it.
#[test]
fn a_socket_is_closed_before_it_is_spoken_of() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    for _ in 0..200 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let ticket = scene.sends(claimant(1, 1), b"x", &[listener.as_fd()]);
        scene.things(ticket);
        drop(listener);
        drop(TcpListener::bind(at).unwrap());
    }
}

#[test]
fn too_long_or_too_many_is_no_packet() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    let null = std::fs::File::open("/dev/null").unwrap();
    let long = scene.sends(claimant(1, 1), &[0; 1025], &[null.as_fd()]);
    let many = scene.sends(claimant(1, 1), b"x", &[null.as_fd(); 17]);
    let most = scene.sends(claimant(1, 1), b"x", &[null.as_fd(); 253]);
    let fits = scene.sends(claimant(1, 1), &[0; 1024], &[null.as_fd(); 16]);
    for ticket in [long, many, most] {
        let Outcome::Seen(message) = scene.outcome(ticket) else { panic!("lost") };
        assert!(message.packet.is_none() && message.things.is_empty());
    }
    assert_eq!(scene.things(fits).len(), 16);
}

/// Each of these hangs an inspector; others are served, and the pool can go at once.
fn hangs(what: &str, make: impl FnOnce() -> (OwnedFd, Box<dyn std::any::Any>), is_killed: bool) {
    let patience = Duration::from_millis(300);
    let mut scene = Scene::new(Limits { patience, ..LIMITS });
    scene.serves();
    let (fd, keeper) = make();
    let ticket = scene.sends(claimant(2, 2), b"x", &[fd.as_fd()]);
    drop(fd);
    scene.until("it hangs", |scene| scene.stuck() == 1);
    scene.serves();
    let outcome = scene.outcome(ticket);
    assert!(matches!(outcome, Outcome::Lost(Loss::Stuck)), "{what}: {outcome:?}");
    scene.serves();
    if is_killed {
        scene.until("it ends", |scene| scene.stuck() == 0);
    } else {
        assert_eq!(scene.stuck(), 1, "{what}");
    }
    let began = Instant::now();
    drop(scene);
    assert!(began.elapsed() < PATIENCE, "{what}");
    drop(keeper);
}

#[test]
fn a_socket_that_lingers() {
    let _alone = alone();
    let make = || {
        let (socket, keeper) = Lingering::connect(FOR_EVER).unwrap();
        (socket, Box::new(keeper) as Box<dyn std::any::Any>)
    };
    hangs("a socket that lingers", make, true);
}

#[test]
fn a_file_of_a_file_system_that_hangs() {
    let _alone = alone();
    let make = || {
        let hung = HungFile::open().unwrap();
        (hung.file().try_clone().unwrap(), Box::new(hung) as Box<dyn std::any::Any>)
    };
    hangs("a file", make, false);
}

#[test]
fn a_socket_that_lingers_at_the_end_of_a_chain() {
    let _alone = alone();
    let make = || {
        let (socket, keeper) = Lingering::connect(FOR_EVER).unwrap();
        let chain = chain(1000, socket).unwrap();
        (chain, Box::new(keeper) as Box<dyn std::any::Any>)
    };
    hangs("a chain", make, true);
}

/// What is passed on hangs whoever closes it last: it is buried.
#[test]
fn a_bell_whose_watcher_is_held() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    scene.serves();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let held = Held::watching(&bell).unwrap();
    let ticket = scene.sends(claimant(2, 2), b"x", &[bell.as_fd()]);
    let Some(Thing::Bell(passed)) = scene.things(ticket).pop() else { panic!("no bell") };
    drop(bell);
    scene.inspectors.bury(&claimant(2, 2), vec![passed]);
    scene.until("it hangs", |scene| scene.stuck() == 1);
    scene.serves();
    drop(held);
    scene.until("it goes on", |scene| scene.stuck() == 0);
}

/// So does a connection in whose queue it lies.
#[test]
fn a_connection_with_unread_packets() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    scene.serves();
    let (socket, keeper) = Lingering::connect(FOR_EVER).unwrap();
    let (client, server) = seqpacket::pair().unwrap();
    seqpacket::send_all(&client, b"x", &[socket.as_fd()]).unwrap();
    drop((client, socket));
    scene.inspectors.bury(&claimant(2, 2), vec![server]);
    scene.until("it hangs", |scene| scene.stuck() == 1);
    scene.serves();
    drop(keeper);
}

/// Whoever has as many that are stuck as may be gets no more; others do.
#[test]
fn one_process_and_one_account_hang_so_many_and_no_more() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    let mut keepers = Vec::new();
    let mut hang = |scene: &mut Scene, process, account| {
        let (socket, keeper) = Lingering::connect(FOR_EVER).unwrap();
        keepers.push(keeper);
        scene.sends(claimant(process, account), b"x", &[socket.as_fd()])
    };
    for _ in 0..5 {
        hang(&mut scene, 2, 2);
    }
    scene.until("two hang", |scene| scene.stuck() == 2);
    for _ in 0..20 {
        scene.serves();
    }
    assert_eq!(scene.stuck(), 2, "of one process");
    for process in 3..9 {
        hang(&mut scene, process, 2);
    }
    scene.until("three hang", |scene| scene.stuck() == 3);
    for _ in 0..20 {
        scene.serves();
    }
    assert_eq!(scene.stuck(), 3, "of one account");
    // What it has to be let go of lies with those that are stuck, and not in this process.
    let (client, server) = seqpacket::pair().unwrap();
    scene.inspectors.bury(&claimant(2, 2), vec![server]);
    scene.until("it is buried", |scene| scene.inspectors.burden().1 == 0);
    scene.serves();
    assert_eq!(scene.stuck(), 3);
    drop(client);
}

/// Whoever waits for too long is told so.
#[test]
fn what_nobody_looks_at_is_lost() {
    let _alone = alone();
    let patience = Duration::from_millis(500);
    let mut scene = Scene::new(Limits { of_process: 1, patience, ..LIMITS });
    let hung = HungFile::open().unwrap();
    let first = scene.sends(claimant(2, 2), b"x", &[hung.file().as_fd()]);
    scene.until("it hangs", |scene| scene.stuck() == 1);
    let second = scene.sends(claimant(2, 2), b"x", &[hung.file().as_fd()]);
    assert!(matches!(scene.outcome(first), Outcome::Lost(Loss::Stuck)));
    assert!(matches!(scene.outcome(second), Outcome::Lost(Loss::Late)));
    scene.serves();
}

/// Idle, there is one, and it takes no time.
#[test]
fn one_is_left_when_there_is_nothing_to_do() {
    let _alone = alone();
    let mut scene = Scene::new(LIMITS);
    for _ in 0..50 {
        scene.serves();
    }
    scene.until("nothing to do", |scene| scene.inspectors.patience().is_none());
    assert_eq!(scene.inspectors.burden(), (0, 0));
}
