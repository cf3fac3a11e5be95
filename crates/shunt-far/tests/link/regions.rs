//! Two regions as the agent makes them and programs map them, with a link between.

#![allow(clippy::cast_possible_truncation, reason = "bytes are made of numbers")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use shunt_far::link::Rings;
use shunt_far::{Mirror, News, Settings, Worker};
use shunt_shm::region::{self, Region, RegionView, Section, Side, shape};
use shunt_shm::ring::{Content, RxCursor, TxCursor, UNLIMITED};
use shunt_verbs::Memory;
use shunt_verbs::fake::{FakePort, Faults, Network};
use shunt_verbs::value::PacketNumber;

const SETTINGS: Settings = Settings { messages: 8, ..Settings::DEFAULT };

/// A worker's link.
const NAME: u64 = 1;

#[derive(Debug)]
struct InRegion {
    region: Arc<Region>,
    side: Side,
}

impl InRegion {
    fn view(&self) -> RegionView {
        self.region.view()
    }
}

impl Mirror for InRegion {
    fn side(&self, _: usize) -> Side {
        self.side
    }

    fn slots(&self) -> usize {
        self.view().geometry().slots()
    }

    fn ring(&self) -> u64 {
        self.view().geometry().ring() as u64
    }

    fn section(&self, slot: usize, side: Side) -> &Section {
        self.view().section(slot, side)
    }

    fn wake(&mut self, _slot: usize, _news: News) {}
}

/// A host: its region, as agent and program have it mapped, and its worker.
struct Host {
    _fd: OwnedFd,
    region: Arc<Region>,
    side: Side,
    port: FakePort,
    worker: Worker<FakePort, InRegion>,
}

impl Host {
    fn new(port: FakePort, side: Side) -> Self {
        let fd = region::create(1).unwrap();
        let region = Arc::new(Region::map(&fd).unwrap());
        let worker = Worker::new(&port, 0, 1, SETTINGS).unwrap();
        Self { _fd: fd, region, side, port, worker }
    }

    /// The rings of the first connection.
    fn rings(&self) -> Rings {
        let (view, len) = (self.region.view(), self.region.view().geometry().ring());
        let at = view.buffer(0, Side::Client);
        // SAFETY: both rings of a connection lie side by side, mapped as long as the region, and are reached by raw copies alone.
        let memory = unsafe { Memory::of(at, 2 * len, self.region.clone()) };
        let ring = |receiver: Side| receiver as usize * len..(receiver as usize + 1) * len;
        Rings { memory, outgoing: ring(self.side.other()), incoming: ring(self.side) }
    }
}

#[test]
fn bytes_go_from_region_to_region() {
    let network = Network::new(5, Faults::NONE);
    let mut client = Host::new(network.host(), Side::Client);
    let mut server = Host::new(network.host(), Side::Server);
    let now = Duration::ZERO;
    let described = [&mut client, &mut server].map(|host| {
        let mirror = InRegion { region: host.region.clone(), side: host.side };
        let port = host.port.clone();
        host.worker.add(NAME, &port, mirror, SETTINGS, PacketNumber::new(9)).unwrap()
    });
    let [one, two] = described;
    let opened = [&mut client, &mut server].map(|host| {
        let (rings, port) = (host.rings(), host.port.clone());
        host.worker.link(NAME).unwrap().open(&port, 0, 1, &rings).unwrap()
    });
    for (host, far, ring) in [(&mut client, two, opened[1]), (&mut server, one, opened[0])] {
        let link = host.worker.link(NAME).unwrap();
        link.connect(&far).unwrap();
        assert!(link.attach(0, 1, ring));
    }
    let (tx, rx) = (TxCursor::default(), RxCursor::default());
    let (here, there) = (client.region.view(), server.region.view());
    let ring = here.geometry().ring();
    for round in 0..40_u32 {
        // A third of a ring at a time, so that it wraps.
        let bytes: Vec<u8> = (0..ring / 3).map(|at| (at as u32 * 31 + round * 7) as u8).collect();
        let (mine, theirs) = (here.section(0, Side::Client), here.section(0, Side::Server));
        let wish = shape(Side::Server, ring as u64);
        let want = (bytes.len() as u64, Content::Put);
        let span = tx.reserve(&theirs.cons, ring as u64, wish, UNLIMITED, want).unwrap();
        assert_eq!(span.len(), bytes.len());
        let (head, tail) = bytes.split_at(span.head.1);
        let at = here.buffer_offset(0, Side::Server);
        here.move_data(at + span.head.0, head).unwrap();
        here.move_data(at + span.tail.0, tail).unwrap();
        tx.publish(&mine.prod, span.len() as u64);
        client.worker.link(NAME).unwrap().mark(0);
        let mut got = Vec::new();
        for _ in 0..100 {
            client.worker.turn(now);
            network.settle(100_000);
            server.worker.turn(now);
            let (mine, theirs) = (there.section(0, Side::Server), there.section(0, Side::Client));
            let span = rx.readable(&theirs.prod, ring as u64, u64::MAX).unwrap();
            for (at, len) in [span.head, span.tail] {
                let mut part = vec![0; len];
                got.extend_from_slice(there.copy_to(0, Side::Server, at, &mut part));
            }
            let _ = rx.consume(&mine.cons, ring as u64, span.len() as u64);
            server.worker.link(NAME).unwrap().mark(0);
            server.worker.turn(now);
            network.settle(100_000);
            client.worker.turn(now);
            if got.len() == bytes.len() {
                break;
            }
        }
        assert!(got == bytes, "round {round}");
        let cause = client.worker.link(NAME).unwrap().cause();
        assert_eq!(cause, None);
    }
}
