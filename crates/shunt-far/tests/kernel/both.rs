//! A worker that has a link to a kernel and one to another agent, on one completion queue.

use shunt_far::link::Rings;
use shunt_far::{Cause, Settings, Worker, kernel};
use shunt_shm::region::Side;
use shunt_shm::sync::Ordering;
use shunt_verbs::fake::FakePort;
use shunt_verbs::value::{Loss, PacketNumber};
use shunt_verbs::{Memory, Refused};

use crate::host::{NAME, Sections, SimMirror};
use crate::{World, size};

/// The link between agents.
const FAR: u64 = 2;
const RING: usize = 1 << 14;
/// Bytes that its program sends each time.
const BYTES: usize = 200;

/// The far agent, and one connection.
struct Far {
    worker: Worker<FakePort, SimMirror>,
    /// The sections of both regions, and the memory of both hosts' rings.
    sections: [Sections; 2],
    rings: [Memory; 2],
    sent: usize,
}

impl Far {
    fn new(world: &mut World) -> Self {
        let (settings, first) = (Settings::DEFAULT, PacketNumber::new(3));
        let (port, far_port) = (world.host.port.clone(), world.network.host());
        let mut worker = Worker::new(&far_port, 0, 1, settings).unwrap();
        let mirrors = [(); 2].map(|()| SimMirror::new(RING as u64, 1));
        let sections = mirrors.each_ref().map(|mirror| mirror.sections.clone());
        let [near, far] = mirrors;
        let here = world.host.worker.add(FAR, &port, near, settings, first).unwrap();
        let there = worker.add(FAR, &far_port, far, settings, first).unwrap();
        let rings = [(); 2].map(|()| Memory::new(2 * RING).unwrap());
        let [near, far] = rings.each_ref().map(|memory| Rings {
            memory: memory.clone(),
            outgoing: 0..RING,
            incoming: RING..2 * RING,
        });
        let (link, far_link) = (world.host.worker.link(FAR).unwrap(), worker.link(FAR).unwrap());
        link.connect(&there).unwrap();
        far_link.connect(&here).unwrap();
        let near = link.open(&port, 0, 1, &near).unwrap();
        let far = far_link.open(&far_port, 0, 1, &far).unwrap();
        assert!(link.attach(0, 1, far) && far_link.attach(0, 1, near));
        Self { worker, sections, rings, sent: 0 }
    }

    /// The near program's next bytes go to the far one.
    fn sends(&mut self, world: &mut World) {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (self.sent + at) as u8).collect();
        self.rings[0].write(self.sent, &bytes).unwrap();
        self.sent += BYTES;
        let prod = &self.sections[0][0][Side::Client as usize].prod.prod;
        prod.store(self.sent as u64, Ordering::Release);
        world.host.worker.link(FAR).unwrap().mark(0);
        for _ in 0..4 {
            world.settle();
            self.worker.turn(world.host.now);
        }
        let heard = &self.sections[1][0][Side::Server as usize].prod.prod;
        assert_eq!(heard.load(Ordering::Acquire), self.sent as u64);
        let mut got = vec![0; BYTES];
        self.rings[1].read(RING + self.sent - BYTES, &mut got).unwrap();
        assert_eq!(got, bytes);
    }
}

#[test]
fn both_kinds_of_links_share_a_worker() {
    let mut world = World::connected(2, size(0));
    let mut far = Far::new(&mut world);
    for round in 0..60 {
        world.exchanges(round % 2, round % 2);
        far.sends(&mut world);
    }
    // Neither ends with the other.
    let (pair, now) = (world.host.link().described().number, world.host.now);
    world.host.worker.fail(pair, now);
    world.settle();
    assert_eq!(world.host.link().cause(), Some(Cause::Pair));
    far.sends(&mut world);
    let mut world = World::connected(2, size(0));
    Far::new(&mut world);
    let link = world.host.worker.link(FAR).unwrap();
    let pair = link.described().number;
    world.host.worker.fail(pair, now);
    assert_eq!(world.host.worker.link(FAR).unwrap().cause(), Some(Cause::Pair));
    world.exchanges(1, 1);
}

#[test]
fn a_lost_device_takes_both_along() {
    let mut world = World::connected(1, size(0));
    let _far = Far::new(&mut world);
    let cause = Cause::Lost(Loss::Failed);
    world.host.worker.let_go(cause);
    assert_eq!(world.host.port.objects(), 0);
    assert_eq!(world.host.link().cause(), Some(cause));
    assert_eq!(world.host.worker.link(FAR).unwrap().cause(), Some(cause));
    let port = world.network.host();
    world.host.worker.take_up(&port, 0).unwrap();
    let (mirror, first) = (SimMirror::new(RING as u64, 1), PacketNumber::new(1));
    let settings = kernel::Settings::default();
    world.host.worker.add_kernel(3, &port, mirror, settings, first).unwrap();
}

/// A queue that overran would lose completions of all.
#[test]
fn a_queue_has_room_for_links_of_both_kinds() {
    let port = World::connected(0, size(0)).network.host();
    let mut worker = Worker::new(&port, 0, 1, Settings::DEFAULT).unwrap();
    let (settings, first) = (kernel::Settings::default(), PacketNumber::new(1));
    let mirror = || SimMirror::new(RING as u64, 1);
    let most = u64::from(Settings::DEFAULT.completions() / settings.completions());
    for name in 0..most {
        worker.add_kernel(name, &port, mirror(), settings, first).unwrap();
    }
    let full = worker.add_kernel(99, &port, mirror(), settings, first);
    assert!(matches!(full, Err(Refused::Full)));
    let full = worker.add(99, &port, mirror(), Settings::DEFAULT, first);
    assert!(matches!(full, Err(Refused::Full)));
    assert_eq!(worker.kernel_links().count() as u64, most);
    (0..most).for_each(|name| assert!(worker.remove_kernel(name).is_some()));
    assert!(worker.remove_kernel(NAME).is_none());
    worker.add(99, &port, mirror(), Settings::DEFAULT, first).unwrap();
}
