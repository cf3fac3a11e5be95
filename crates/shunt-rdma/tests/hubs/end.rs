//! An end of a connection: what a program does there, as the memory shows it, beside a connection of the kernel's.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use shunt_shm::handover;
use shunt_shm::region::{CLOSED, Geometry, Region, Section, Side, shape};
use shunt_shm::ring::{Content, RxCursor, TxCursor, UNLIMITED};
use shunt_shm::sync::Ordering;
use shunt_verbs::Memory;
use shunt_verbs::fake::Random;
use shunt_wire::clc::Proposal;

use crate::host::Host;

const RING: usize = Geometry::Device.ring();

/// One direction of the kernel's connection.
#[derive(Default, Debug)]
pub struct Way {
    bytes: VecDeque<u8>,
    /// Nothing more comes.
    has_ended: bool,
    /// Nobody reads any more.
    is_deaf: bool,
}

/// Both, by their senders.
pub type Tcp = Rc<RefCell<[Way; 2]>>;

/// The byte at a place of a direction.
fn byte(connection: u32, sender: Side, place: u64) -> u8 {
    let direction = u64::from(connection) << 1 | sender as u64;
    Random::new(direction << 32 | place).next().to_le_bytes()[0]
}

/// How its program sends, and takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Tcp,
    Ring,
}

/// Where it lies in memory.
struct Place {
    region: Arc<Region>,
    slot: usize,
    rings: Memory,
    /// Its peer may enter the ring, and so may it.
    is_linked: bool,
}

pub struct End<'a> {
    host: &'a Host,
    side: Side,
    connection: u32,
    tcp: Tcp,
    place: Option<Place>,
    tx: TxCursor,
    rx: RxCursor,
    sends_by: By,
    takes_by: By,
    /// Bytes that went over TCP before the ring, of all that it has sent.
    before_ring: u64,
    pub sent: u64,
    pub taken: u64,
    pub has_ended: bool,
    pub saw_end: bool,
    pub is_closed: bool,
}

impl<'a> End<'a> {
    pub fn new(host: &'a Host, side: Side, connection: u32, tcp: Tcp) -> Self {
        Self {
            host,
            side,
            connection,
            tcp,
            place: None,
            tx: TxCursor::default(),
            rx: RxCursor::default(),
            sends_by: By::Tcp,
            takes_by: By::Tcp,
            before_ring: 0,
            sent: 0,
            taken: 0,
            has_ended: false,
            saw_end: false,
            is_closed: false,
        }
    }

    /// It has a place in memory.
    pub fn is_at(&mut self, region: &Arc<Region>, slot: usize) {
        let rings = Memory::rings(region, slot).unwrap();
        self.place = Some(Place { region: Arc::clone(region), slot, rings, is_linked: false });
    }

    /// What each side has written there.
    pub fn section(&self, side: Side) -> &Section {
        let place = self.place.as_ref().unwrap();
        place.region.view().section(place.slot, side)
    }

    fn mine(&self) -> &Section {
        self.section(self.side)
    }

    fn theirs(&self) -> &Section {
        self.section(self.side.other())
    }

    /// Both ends have agreed on the ring.
    pub fn is_linked(&mut self) {
        self.place.as_mut().unwrap().is_linked = true;
        self.tell();
    }

    /// The connection stays on TCP, and its place is another one's.
    pub fn stays_on_tcp(&mut self) {
        self.place = None;
    }

    fn tell(&self) {
        if let Some(place) = &self.place {
            self.host.tell(&place.region, place.slot, self.theirs());
        }
    }

    /// It may be in the ring.
    fn has_link(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_linked)
    }

    /// The peer takes what was sent over TCP alone: all that it has not had goes there once more.
    fn peer_has_left(&mut self) {
        if self.has_link() && handover::has_left(&self.theirs().ctl.handed_over) {
            if self.sends_by == By::Ring {
                self.sent = self.before_ring + self.theirs().cons.cons.load(Ordering::Acquire);
                self.sends_by = By::Tcp;
            }
            if let Some(place) = &mut self.place {
                place.is_linked = false;
            }
        }
    }

    /// Nobody takes what it sends.
    fn is_refused(&self) -> bool {
        let is_closed = self.has_link() && self.theirs().ctl.closed.load(Ordering::Acquire) != 0;
        is_closed || self.tcp.borrow()[self.side as usize].is_deaf
    }

    /// Sends so many bytes at most, of `all` that it has. How many.
    pub fn send(&mut self, most: u64, all: u64) -> u64 {
        self.peer_has_left();
        if self.has_ended {
            return 0;
        }
        if self.is_refused() || self.sent == all {
            self.end();
            return 1;
        }
        let reads =
            |end: &Self| Proposal::is_read(end.theirs().setup.state.load(Ordering::Acquire));
        let enters = self.sends_by == By::Tcp && self.has_link();
        if enters && (self.side == Side::Client || reads(self)) {
            TxCursor::set_mark(&self.mine().prod, 0);
            (self.sends_by, self.before_ring) = (By::Ring, self.sent);
            self.tell();
        }
        let most = most.min(all - self.sent);
        let sent = match self.sends_by {
            By::Tcp => self.send_over_tcp(most),
            By::Ring => self.send_through_ring(most),
        };
        self.sent += sent;
        sent
    }

    fn bytes(&self, count: u64) -> Vec<u8> {
        let places = self.sent..self.sent + count;
        places.map(|place| byte(self.connection, self.side, place)).collect()
    }

    fn send_over_tcp(&self, count: u64) -> u64 {
        let bytes = self.bytes(count);
        self.tcp.borrow_mut()[self.side as usize].bytes.extend(bytes);
        count
    }

    fn send_through_ring(&self, most: u64) -> u64 {
        let place = self.place.as_ref().unwrap();
        let receiver = self.side.other();
        let (wish, want) = (shape(receiver, RING as u64), (most, Content::Put));
        let cons = &self.theirs().cons;
        let span = self.tx.reserve(cons, RING as u64, wish, UNLIMITED, want).unwrap();
        let bytes = self.bytes(span.len() as u64);
        let (head, tail) = bytes.split_at(span.head.1);
        let at = receiver as usize * RING;
        place.rings.write(at + span.head.0, head).unwrap();
        place.rings.write(at + span.tail.0, tail).unwrap();
        self.tx.publish(&self.mine().prod, span.len() as u64);
        self.tell();
        span.len() as u64
    }

    /// It sends nothing more.
    fn end(&mut self) {
        self.has_ended = true;
        if self.place.is_some() {
            self.mine().prod.fin.store(1, Ordering::Release);
            self.tell();
        }
        self.tcp.borrow_mut()[self.side as usize].has_ended = true;
    }

    /// Takes what has come, and compares it. How much.
    pub fn take(&mut self) -> u64 {
        self.peer_has_left();
        if self.saw_end {
            return 0;
        }
        let taken = match self.takes_by {
            By::Tcp => self.take_over_tcp(),
            By::Ring => self.take_from_ring(),
        };
        self.taken += taken;
        taken
    }

    fn compares(&self, bytes: &[u8]) {
        for (place, got) in (self.taken..).zip(bytes) {
            let wanted = byte(self.connection, self.side.other(), place);
            assert_eq!(*got, wanted, "byte {place} of {self:?}");
        }
    }

    fn take_over_tcp(&mut self) -> u64 {
        let mut mark = None;
        // What the kernel says of the peer's end waits for the link.
        let mut waits = false;
        if self.has_link() {
            waits = self.theirs().prod.behind.load(Ordering::Acquire) != 0;
            mark = RxCursor::next_mark(&self.theirs().prod, 0).unwrap();
        }
        let (bytes, has_ended) = {
            let way = &mut self.tcp.borrow_mut()[self.side.other() as usize];
            (way.bytes.drain(..).collect::<Vec<_>>(), way.has_ended)
        };
        self.compares(&bytes);
        if let Some(at) = mark {
            assert_eq!(at, 0, "{self:?}");
            self.takes_by = By::Ring;
            self.mine().cons.marks_passed.store(1, Ordering::Release);
            self.tell();
        } else if has_ended && !waits {
            self.saw_end = true;
        }
        bytes.len() as u64
    }

    fn take_from_ring(&mut self) -> u64 {
        let theirs = self.theirs();
        let has_ended = theirs.prod.fin.load(Ordering::Acquire) != 0;
        let span = self.rx.readable(&theirs.prod, RING as u64, u64::MAX).unwrap();
        let mut bytes = vec![0; span.len()];
        let (head, tail) = bytes.split_at_mut(span.head.1);
        let (place, at) = (self.place.as_ref().unwrap(), self.side as usize * RING);
        place.rings.read(at + span.head.0, head).unwrap();
        place.rings.read(at + span.tail.0, tail).unwrap();
        self.compares(&bytes);
        if span.is_empty() {
            self.saw_end = has_ended;
        } else {
            let _ = self.rx.consume(&self.mine().cons, RING as u64, span.len() as u64);
            self.tell();
        }
        span.len() as u64
    }

    /// The program closes.
    pub fn close(&mut self) {
        if !self.has_ended {
            self.end();
        }
        self.is_closed = true;
        self.tcp.borrow_mut()[self.side.other() as usize].is_deaf = true;
        if self.place.is_some() {
            let mine = self.mine();
            mine.ctl.closed.store(CLOSED, Ordering::Release);
            mine.setup.done.store(1, Ordering::Release);
            self.tell();
        }
    }

    /// The program is killed: its kernel ends the connection.
    pub fn is_killed(&mut self) {
        if !self.is_closed {
            (self.is_closed, self.has_ended) = (true, true);
            let mut ways = self.tcp.borrow_mut();
            ways[self.side as usize].has_ended = true;
            ways[self.side.other() as usize].is_deaf = true;
        }
    }

    /// It has gone into the ring, in both directions.
    pub fn is_in_ring(&self) -> bool {
        (self.sends_by, self.takes_by) == (By::Ring, By::Ring)
    }
}

impl std::fmt::Debug for End<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slot = self.place.as_ref().map(|place| (place.slot, place.is_linked));
        f.debug_struct("End")
            .field("connection", &self.connection)
            .field("side", &self.side)
            .field("slot", &slot)
            .field("by", &(self.sends_by, self.takes_by))
            .field("sent", &(self.sent, self.has_ended))
            .field("taken", &(self.taken, self.saw_end))
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}
