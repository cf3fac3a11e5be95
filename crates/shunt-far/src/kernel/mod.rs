//! A link to a kernel's SMC-R server: a queue pair, and connections of which the kernel has one end.
//!
//! The program of this host is where it is with a far agent: it publishes in its section of the region, and its ring is sent from.
//! The ring that it reads is the RMB: the kernel writes into it, with a key of its own for each connection. What the kernel says
//! this end checks ([`shunt_smc`]), and only then writes it into the peer's section.
//!
//! Calls, in their order. [`KernelLink::new`]; [`KernelLink::connect`] when a server has accepted with a first contact. For each
//! connection [`KernelLink::open`], which gives what the confirm says of this end, and [`KernelLink::attach`] when the handshake
//! is ready: from then on bytes flow. A later connection is confirmed when its ring is [`Event::Announced`], the first one at
//! once; [`shunt_smc::Handshake::established`] follows at [`Event::Confirmed`]. A connection that stays on TCP is
//! [`KernelLink::abandon`]ed.
//! Then [`KernelLink::listen`], [`KernelLink::mark`] or [`KernelLink::leave`] as programs publish, [`KernelLink::complete`] for
//! each completion, [`KernelLink::pump`] behind both, [`KernelLink::tick`] at [`KernelLink::deadline`], and
//! [`KernelLink::event`] behind all of these.
//!
//! **Places.** No messages are counted: the kernel has fewer on their way than this end has receive requests, and where it finds
//! none its device asks again. This end has [`Settings::sends`] messages on their way at most. Those about the link go first.
//!
//! **No way back.** A connection whose link ends, or whose program would go on over TCP, is reset (RFC 7609 has no way back). So
//! is one whose bytes the ring cannot carry ([`Reset`]). The kernel is told of an abort, as it tells of one itself.
//!
//! **Ends.** A place is free when the program has let go of it, both ends are closed, all that was posted about it has completed,
//! and the kernel has answered that it knows the ring's key no more. A kernel that broke a rule is not waited for. Behind a link
//! that has ended places are free when their programs have let go; no ring is registered any more then.

mod lane;
mod outcome;
mod serve;
mod settings;

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use shunt_shm::sync::{Ordering, store_load_fence};
use shunt_smc::link::Own;
use shunt_smc::wire::RmbSize;
use shunt_smc::wire::clc::{Accept, End, Host};
use shunt_smc::wire::llc::Reason;
use shunt_smc::{Connection, link};
use shunt_verbs::Refused;
use shunt_verbs::port::{Port, Region};
use shunt_verbs::value::{Access, PacketNumber, PeerPair, Remote, RemoteKey};

use crate::device::{OfDevice, Registered};
use crate::link::{Cause, Rings};
use crate::mirror::{Mirror, News, break_off, end_for_program, leave_to_tcp};
use crate::turns::{InFlight, Turns};
use lane::KernelLane;
pub use outcome::{Event, Name, NotOpened, Reset};
pub use settings::Settings;

/// A connection's place.
#[derive(Debug)]
struct Open<P: Port> {
    token: u32,
    lane: KernelLane,
    /// `None`: the link has ended.
    registered: Option<Registered<P>>,
    /// Of the own ring.
    key: RemoteKey,
    /// The kernel's.
    far: Remote,
    is_attached: bool,
    /// The program was told that the connection is reset.
    is_reset: bool,
    /// The program has let go of it.
    is_left: bool,
    /// Messages about it that the device has.
    outstanding: usize,
    key_of: Withdrawal,
}

/// What the kernel knows of a ring's key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Withdrawal {
    #[default]
    Known,
    Asked,
    Withdrawn,
}

impl<P: Port> Open<P> {
    const fn name(&self, slot: usize) -> Name {
        Name { slot, token: self.token }
    }
}

/// How far a link is on its way to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Up,
    /// Its last messages are on their way, until then at the latest.
    Ending(Duration),
    Over,
}

/// A link.
#[derive(Debug)]
pub struct KernelLink<P: Port, M> {
    mirror: M,
    /// `None`: it was let go.
    device: Option<OfDevice<P>>,
    described: PeerPair,
    settings: Settings,
    size: RmbSize,
    host: Option<Host>,
    /// `None`: no server has accepted yet.
    smc: Option<shunt_smc::Link>,
    /// The queue pair sends.
    is_sending: bool,
    /// The server's first message was answered, and nothing was told of it yet.
    is_confirming: bool,
    lanes: Vec<Option<Open<P>>>,
    /// Number of the next connection.
    next: u32,
    marked: Turns,
    /// With the connection that a message is about, and bytes of its program that were posted by then.
    outstanding: InFlight<Option<(Name, u64)>>,
    phase: Phase,
    cause: Option<Cause>,
    events: VecDeque<Event>,
}

/// What of a token is the place; the rest counts its uses.
const PLACES: usize = 1 << 8;

impl<P: Port, M: Mirror> KernelLink<P, M> {
    /// A link whose completions come in `queue`, which has room for [`Settings::completions`] of them. `first` is the number
    /// of its first packet: any, best a random one.
    ///
    /// # Errors
    /// [`Refused::Invalid`] where the region's rings have none of SMC's lengths; what the device refused.
    pub fn new(
        port: &P,
        queue: &P::Queue,
        mirror: M,
        settings: Settings,
        first: PacketNumber,
    ) -> Result<Self, Refused> {
        let size = (0..=RmbSize::LARGEST.exponent()).filter_map(RmbSize::of_exponent);
        let size = size.into_iter().find(|size| u64::from(size.bytes()) == mirror.ring());
        let size = size.ok_or(Refused::Invalid("length of rings"))?;
        if settings.sends == 0 || settings.receives == 0 {
            return Err(Refused::Invalid("number of messages"));
        }
        if mirror.slots() > PLACES {
            return Err(Refused::Invalid("number of connections"));
        }
        let device = OfDevice::new(port, queue, settings.sizes())?;
        let (gid, mtu, number) = (port.gid(), port.mtu(), device.number());
        let (lanes, marked) =
            ((0..mirror.slots()).map(|_| None).collect(), Turns::new(mirror.slots()));
        Ok(Self {
            mirror,
            device: Some(device),
            described: PeerPair { gid, number, first_packet: first, mtu },
            settings,
            size,
            host: None,
            smc: None,
            is_sending: false,
            is_confirming: false,
            lanes,
            next: 1,
            marked,
            outstanding: InFlight::new(),
            phase: Phase::Up,
            cause: None,
            events: VecDeque::new(),
        })
    }

    /// Its queue pair, as the confirm describes it.
    pub const fn described(&self) -> PeerPair {
        self.described
    }

    /// What it was made with.
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// Its region.
    pub const fn mirror(&self) -> &M {
        &self.mirror
    }

    /// The same, to change what is in it.
    pub const fn mirror_mut(&mut self) -> &mut M {
        &mut self.mirror
    }

    /// Why it has ended, or is about to; `None`: it goes on.
    pub const fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// What has happened since. `None`: nothing more.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A server has accepted with a first contact: its queue pair may send to this one from now on. `host` is this end's.
    /// [`Self::open`] with the same accept follows.
    ///
    /// # Errors
    /// [`Refused::State`] where it was connected before, or has ended; what the device refused.
    pub fn connect(&mut self, host: Host, accept: &Accept, now: Duration) -> Result<(), Refused> {
        let is_fresh = self.smc.is_none() && self.cause.is_none();
        let device = self.device.as_ref().filter(|_| is_fresh && accept.first_contact.is_some());
        let far = accept.end.peer_pair();
        let mtu = far.mtu.min(self.described.mtu);
        device.ok_or(Refused::State)?.receive_from(&PeerPair { mtu, ..far })?;
        let pair = self.described.number;
        let own = Own { host, pair, id: pair.0.to_be_bytes() };
        self.smc = Some(shunt_smc::Link::new(own, accept, self.settings.patience, now));
        self.host = Some(host);
        Ok(())
    }

    /// True when the server means this link: one that is no first contact.
    #[must_use]
    pub fn is_that_of(&self, accept: &Accept) -> bool {
        self.cause.is_none() && self.smc.as_ref().is_some_and(|link| link.is_that_of(accept))
    }

    /// True from [`Event::Confirmed`] on until it ends: later connections may have it.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.cause.is_none() && self.smc.as_ref().is_some_and(link::Link::is_active)
    }

    /// Connections that have a place.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.lanes.iter().flatten().count()
    }

    /// Opens a place for a connection that a server has accepted: registers both rings. Unless it is the one of the first contact, the
    /// kernel is told of its ring, and [`Event::Announced`] follows. Returns what the confirm says of this end.
    ///
    /// # Errors
    /// [`NotOpened`]; the connection is to be declined.
    pub fn open(
        &mut self,
        port: &P,
        slot: usize,
        rings: &Rings,
        accept: &Accept,
        now: Duration,
    ) -> Result<End, NotOpened> {
        let (token, host) = self.may_open(slot, rings, accept)?;
        let register = |range: &Range<usize>, access| {
            port.register(&rings.memory, range.clone(), access).map_err(NotOpened::Memory)
        };
        let outgoing = register(&rings.outgoing, Access::Local)?;
        let incoming = register(&rings.incoming, Access::RemoteWrite)?;
        let rmb = incoming.as_remote();
        if let Some(link) = self.smc.as_mut().filter(|_| accept.first_contact.is_none()) {
            link.announce(rmb, now);
        }
        self.next = self.next.wrapping_add(1);
        let place = self.lanes.get_mut(slot).ok_or(NotOpened::Place)?;
        *place = Some(Open {
            token,
            lane: KernelLane::new(Connection::new(self.size, &accept.end)),
            registered: Some(Registered { outgoing, incoming }),
            key: rmb.key,
            far: accept.end.rmb,
            is_attached: false,
            is_reset: false,
            is_left: false,
            outstanding: 0,
            key_of: Withdrawal::Known,
        });
        let PeerPair { number: pair, first_packet, mtu, .. } = self.described;
        Ok(End { host, pair, first_packet, mtu, rmb, index: 1, size: self.size, token })
    }

    /// The token of a connection that may be opened there, and this end's host.
    fn may_open(
        &self,
        slot: usize,
        rings: &Rings,
        accept: &Accept,
    ) -> Result<(u32, Host), NotOpened> {
        if let Some(cause) = self.cause {
            return Err(NotOpened::Link(cause));
        }
        let (link, host) = self.smc.as_ref().zip(self.host).ok_or(NotOpened::OutOfStep)?;
        let open = self.connections();
        let is_this = match accept.first_contact {
            // What was connected is what is opened.
            Some(_) => !link.is_active() && open == 0,
            None => link.is_that_of(accept),
        };
        if !is_this {
            return Err(NotOpened::OutOfStep);
        }
        if !link.has_ring(accept.end.rmb) {
            return Err(NotOpened::UnknownRing);
        }
        if open >= usize::from(link.max_connections()) {
            return Err(NotOpened::Many);
        }
        let ring = usize::try_from(self.size.bytes()).map_err(|_| NotOpened::Place)?;
        let is_whole = rings.outgoing.len() == ring && rings.incoming.len() == ring;
        let is_vacant = self.lanes.get(slot).is_some_and(Option::is_none);
        let place = u32::try_from(slot).ok().filter(|_| is_whole && is_vacant);
        // No two have the same: the place is a part of it, and its earlier uses had other numbers.
        let token = place.map(|place| self.next << PLACES.trailing_zeros() | place);
        Ok((token.ok_or(NotOpened::Place)?, host))
    }

    /// The handshake of a connection is ready: bytes flow from now on. `over_tcp`: so many came over TCP before, which is where the
    /// program goes on in the ring. False: the link has ended meanwhile, or the server has withdrawn its ring, and the connection is
    /// reset; or there is no such connection.
    #[must_use]
    pub fn attach(&mut self, slot: usize, over_tcp: u64) -> bool {
        let theirs = self.mirror.section(slot, self.mirror.side(slot).other());
        let open = self.lanes.get_mut(slot).and_then(Option::as_mut);
        let Some(open) = open.filter(|open| !open.is_attached) else { return false };
        open.is_attached = true;
        let has_ring = self.smc.as_ref().is_some_and(|link| link.has_ring(open.far));
        // Also one that is reset comes to the ring, where its program hears of it.
        open.lane.begin(theirs, over_tcp);
        self.tell(slot);
        if let Some(cause) = self.cause {
            self.reset(slot, Reset::Link(cause));
        } else if !has_ring {
            self.reset(slot, Reset::Forgotten);
        }
        // SYNC POINT word-arm: as in `Link::has_begun`.
        store_load_fence();
        let mine = self.mirror.section(slot, self.mirror.side(slot));
        if mine.setup.done.load(Ordering::Acquire) != 0 {
            self.leave(slot);
        }
        self.mark(slot);
        let open = self.lanes.get(slot).and_then(Option::as_ref);
        open.is_some_and(|open| !open.is_reset)
    }

    /// Takes a connection out that was declined, before it was attached. Its program stays on TCP, and its place is free at once: what the
    /// kernel would write there still fails its queue pair.
    pub fn abandon(&mut self, slot: usize, now: Duration) {
        let place = self.lanes.get_mut(slot);
        let Some(place) = place.filter(|it| it.as_ref().is_some_and(|open| !open.is_attached))
        else {
            return;
        };
        let Some(open) = place.take() else { return };
        // Before that the kernel has heard of no ring but by a confirm, and gives the link group up.
        if self.is_active()
            && let Some(link) = &mut self.smc
        {
            link.withdraw(open.key, now);
        }
        let theirs = self.mirror.section(slot, self.mirror.side(slot).other());
        leave_to_tcp(theirs);
        theirs.setup.done.store(1, Ordering::Release);
        self.mirror.wake(slot, News { bytes: true, room: true });
    }

    /// Looks for what programs have published. How many have.
    pub fn listen(&mut self) -> usize {
        let mut slots = Vec::new();
        self.mirror.news(&mut slots);
        for slot in &slots {
            let mine = self.mirror.section(*slot, self.mirror.side(*slot));
            if mine.setup.done.load(Ordering::Acquire) != 0 {
                self.leave(*slot);
            } else {
                self.mark(*slot);
            }
        }
        slots.len()
    }

    /// All programs with a connection in a place are gone: the kernel hears of an end, if it has not.
    pub fn end(&mut self, slot: usize) {
        if self.is_attached(slot) {
            end_for_program(self.mirror.section(slot, self.mirror.side(slot)));
            self.leave(slot);
        }
    }

    /// True for a connection through which bytes flow, or have.
    #[must_use]
    pub fn is_attached(&self, slot: usize) -> bool {
        self.lanes.get(slot).and_then(Option::as_ref).is_some_and(|open| open.is_attached)
    }

    /// The program in a place has published something.
    pub fn mark(&mut self, slot: usize) {
        if self.is_attached(slot) {
            self.marked.mark(slot);
        }
    }

    /// The program in a place is done with the connection: what it has published still goes to the kernel.
    pub fn leave(&mut self, slot: usize) {
        let open = self.lanes.get_mut(slot).and_then(Option::as_mut);
        if let Some(open) = open.filter(|open| open.is_attached) {
            open.is_left = true;
            self.mark(slot);
            // Where nothing is posted any more.
            self.free(slot);
        }
    }

    /// Asks the server to end it, where no connection needs it any more. [`Event::Down`] follows.
    pub fn part(&mut self, now: Duration) {
        match &mut self.smc {
            Some(link) if self.cause.is_none() => link.leave(Reason::PROGRAM, now),
            Some(_) => {}
            None => self.fail(Cause::Parts),
        }
        self.follow(now);
    }

    /// Bytes of rings that are registered for it.
    pub fn registered(&self) -> usize {
        let open = self.lanes.iter().flatten();
        open.filter_map(|open| open.registered.as_ref()).map(Registered::bytes).sum()
    }

    /// When [`Self::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Up => self.smc.as_ref().and_then(link::Link::deadline),
            Phase::Ending(until) => Some(until),
            Phase::Over => None,
        }
    }

    /// Time goes on: asks a kernel that was not heard for long, or gives the link up.
    pub fn tick(&mut self, now: Duration) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if let Some(link) = &mut self.smc {
            link.tick(now);
        }
        self.pump(now);
    }

    /// Gives the link up. Its connections are reset.
    pub fn fail(&mut self, cause: Cause) {
        if self.phase != Phase::Over {
            if let Some(link) = &mut self.smc {
                link.fail();
            }
            self.reset_all(cause);
            self.halt();
        }
    }

    /// Gives the link up, and lets go of all that it has of its device. Places stay until their programs have let go.
    pub fn let_go(&mut self, cause: Cause) {
        self.fail(cause);
        self.device = None;
    }

    /// The link ends: its connections are reset. Those that were not attached may still be declined.
    fn reset_all(&mut self, cause: Cause) {
        let cause = *self.cause.get_or_insert(cause);
        for slot in 0..self.lanes.len() {
            if self.is_attached(slot) {
                self.reset(slot, Reset::Link(cause));
            }
        }
    }

    /// The link is over: the device takes no more requests, and the kernel's card places nothing in any ring.
    fn halt(&mut self) {
        self.phase = Phase::Over;
        self.device.iter().for_each(OfDevice::fail);
        self.lanes.iter_mut().flatten().for_each(|open| open.registered = None);
        self.marked.clear();
        self.events.extend(self.cause.map(Event::Down));
        (0..self.lanes.len()).for_each(|slot| self.free(slot));
    }

    /// A connection is reset: its program hears of it, and the kernel if it is still there.
    fn reset(&mut self, slot: usize, why: Reset) {
        let Some(open) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        if core::mem::replace(&mut open.is_reset, true) {
            return;
        }
        open.lane.abort();
        let of = open.name(slot);
        let theirs = self.mirror.section(slot, self.mirror.side(slot).other());
        theirs.setup.why.store(why.reason() as u32, Ordering::Release);
        break_off(theirs);
        self.mirror.wake(slot, News { bytes: true, room: true });
        self.events.push_back(Event::Reset { of, why });
        self.mark(slot);
    }

    /// A place that nothing needs any more is free.
    fn free(&mut self, slot: usize) {
        let is_over = self.phase == Phase::Over;
        let is_free = |open: &Open<P>| {
            let is_known = open.key_of != Withdrawal::Withdrawn && !is_over;
            open.is_left && !is_known
        };
        let Some(place) = self.lanes.get_mut(slot) else { return };
        if let Some(open) = place.take_if(|open| is_free(open)) {
            self.mirror.is_free(slot);
            self.events.push_back(Event::Free(open.name(slot)));
        }
    }
}
