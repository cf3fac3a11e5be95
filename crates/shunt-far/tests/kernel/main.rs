//! A link to a kernel's SMC-R server, over the device in the process. Every byte is a function of its connection, direction and
//! place, so one that is lost, repeated or moved is found at either end.

#![allow(clippy::cast_possible_truncation, reason = "bytes are made of numbers")]

mod agreement;
mod arbitrary;
mod both;
mod ends;
mod host;
mod hostile;
mod links;
mod random;
#[path = "../../../shunt-smc/tests/common/mod.rs"]
mod scripted;
mod server;
mod streams;

use shunt_far::News;
use shunt_far::kernel::{Event, Name, NotOpened, Reset, Settings};
use shunt_smc::wire::RmbSize;
use shunt_smc::wire::clc::End;
use shunt_verbs::fake::{Faults, Network};

use host::{Host, OVER_TCP};
use server::Kernel;

/// Of a byte, who has sent it.
const PROGRAM: u8 = 1;
const KERNEL: u8 = 2;

/// The byte at a place of a direction.
fn byte(connection: u32, sender: u8, place: u64) -> u8 {
    let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed as u8 ^ (connection as u8).wrapping_mul(31) ^ sender.wrapping_mul(77)
}

/// Rings of so many powers of two of 16 KiB.
fn size(exponent: u8) -> RmbSize {
    RmbSize::of_exponent(exponent).unwrap()
}

/// Connections of the link.
const SLOTS: usize = 8;

/// Both hosts.
struct World {
    network: Network,
    host: Host,
    kernel: Kernel,
}

impl World {
    fn new(seed: u64, faults: Faults, ring: RmbSize) -> Self {
        Self::with(seed, faults, ring, Settings::default())
    }

    fn with(seed: u64, faults: Faults, ring: RmbSize, settings: Settings) -> Self {
        let network = Network::new(seed, faults);
        let (port, kernel) = (network.host(), Kernel::new(network.host()));
        Self { network, host: Host::new(port, ring.bytes().into(), SLOTS, settings), kernel }
    }

    /// One with a connection in each of the first places.
    fn connected(connections: usize, ring: RmbSize) -> Self {
        let mut world = Self::new(1, Faults::NONE, ring);
        (0..connections).for_each(|slot| assert_eq!(world.connect(slot, size(0)), slot));
        world
    }

    /// Goes on until nothing moves.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let moved = self.host.turn() | self.kernel.turn();
            let mut stepped = false;
            while self.network.step() {
                stepped = true;
            }
            if !moved && !stepped {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// The server accepts a connection, and this end opens it: the server's line, and what is confirmed.
    fn open(&mut self, slot: usize, ring: RmbSize) -> (usize, Result<End, NotOpened>) {
        let line = self.kernel.prepare(ring);
        self.settle();
        let accept = self.kernel.accept(line);
        let (now, port) = (self.host.now, self.host.port.clone());
        let mut host = scripted::host(2);
        host.gid = self.host.link().described().gid;
        if accept.first_contact.is_some() {
            self.host.link().connect(host, &accept, now).unwrap();
        }
        self.host.renew(slot, accept.end.token);
        let rings = self.host.rings(slot);
        let opened = self.host.link().open(&port, slot, &rings, &accept, now);
        self.host.turn();
        (line, opened)
    }

    /// Makes a connection; the server's line.
    fn connect(&mut self, slot: usize, ring: RmbSize) -> usize {
        let (line, opened) = self.open(slot, ring);
        let end = opened.unwrap();
        let of = Name { slot, token: end.token };
        let is_first = !self.host.link().is_active();
        if is_first {
            self.kernel.confirm(line, &end);
            self.settle();
            assert_eq!(self.host.events, [Event::Confirmed]);
        } else {
            self.settle();
            assert_eq!(self.host.events, [Event::Announced { of, is_taken: true }]);
            self.kernel.confirm(line, &end);
        }
        self.host.events.clear();
        assert!(self.host.link().attach(slot, OVER_TCP));
        self.host.enter(slot);
        line
    }

    /// All programs go to sleep.
    fn sleep(&mut self) {
        self.host.link().mirror_mut().woken.fill(News::default());
    }

    /// What has happened on the link.
    fn events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.host.events)
    }

    /// Why connections were reset since.
    fn resets(&mut self) -> Vec<(usize, Reset)> {
        let events = self.events();
        events
            .into_iter()
            .filter_map(|event| match event {
                Event::Reset { of, why } => Some((of.slot, why)),
                _ => None,
            })
            .collect()
    }

    /// All that was sent has come, and goes on to come, in both directions.
    fn exchanges(&mut self, slot: usize, line: usize) {
        let (to_kernel, to_program) = (self.host.sent(slot), self.kernel.lines[line].given);
        assert_eq!(self.host.send(slot, 1000), 1000);
        self.kernel.lines[line].given += 1000;
        self.settle();
        while self.kernel.take(line, u32::MAX) > 0 {}
        while self.host.take(slot, u64::MAX) > 0 {}
        assert_eq!(self.kernel.lines[line].read, to_kernel + 1000);
        assert_eq!(self.host.programs[slot].read, to_program + 1000);
        self.settle();
    }
}
