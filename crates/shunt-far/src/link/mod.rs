//! A link: one queue pair between the agents of two hosts, and the connections on it.
//!
//! Calls, in their order: [`Link::new`]; [`Link::connect`] with what the far side says of its own; for each connection
//! [`Link::open`], and [`Link::attach`] when the far side has opened it, too. Then, whenever a program has published something,
//! [`Link::mark`]; for each completion [`Link::complete`]; [`Link::pump`] behind both, which posts what there is to post; and
//! [`Link::tick`] at [`Link::deadline`]. After a failure ([`Link::cause`]) come [`Link::halts`],
//! [`Link::settle`] with the far side's, [`Link::rest`] with what it sends then, and [`Link::part`]. Or, before anything was said of where
//! connections stood, [`Link::renew`] and [`Link::go_on`].
//!
//! **Receives.** Each side has [`Settings::messages`] receive requests, and never has more messages unacknowledged than the
//! other side has requests. A message acknowledges all that its sender has taken, after their requests were posted again. The
//! last place is kept for acknowledgements, so that both sides always have one: whoever has none left has sent messages that the
//! other side has not acknowledged, at least half of them with a place left to do so.
//!
//! **Silence.** A device may never tell of a completion. A side whose messages stay unacknowledged asks ([`Kind::Test`]) after half of
//! [`Settings::silence`], and gives the link up after all of it. An idle link sends nothing. What shows that a slow link moves begins
//! the time anew, each as often as it can be no other than that: a message of this side that the device has sent, of which there are
//! no more than places; and a message of the far side that was posted before it knew of this side's, of which its queue has no more.
//!
//! **Measuring.** [`Link::scratch`] and [`Link::measure`], while no connection has anything to say ([`Link::is_quiet`]).

mod failover;
mod failure;
mod load;
mod measure;
mod outcome;
mod settings;
mod waiting;
mod writes;

use core::time::Duration;
use std::collections::VecDeque;

use shunt_shm::sync::{Ordering, store_load_fence};
use shunt_verbs::Refused;
use shunt_verbs::port::{Port, Region};
use shunt_verbs::value::{Completion, Done, PacketNumber, PeerPair, Remote};

use crate::device::{OfDevice, Registered};
use crate::lane::Lane;
use crate::message::{self, Kind, Message, Words};
use crate::mirror::{Mirror, News, break_off, end_for_program, leave_to_tcp};
use crate::turns::{InFlight, Turns};
pub use failover::Position;
pub use failure::Settlement;
use load::Measuring;
pub use load::{BULK, Load, NotMeasured, SCRATCH};
pub use outcome::{Cause, Ended, Event, Halt, NotOpened};
use settings::{BUFFER, REQUESTS};
pub use settings::{Rings, Settings};
use waiting::Waiting;
use writes::{Writes, writes};

/// A connection's place.
#[derive(Debug)]
struct Open<P: Port> {
    generation: u32,
    lane: Lane,
    /// `None`: the device was let go.
    registered: Option<Registered<P>>,
    rings: Rings,
    /// The far ring.
    far: Option<Remote>,
    leave: Leave,
    /// The link has had another queue pair since, and the far side had not opened it: it will not be.
    is_void: bool,
    /// The link has failed, and the program was told that the connection is reset.
    is_broken_off: bool,
}

/// How far a connection is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Leave {
    wanted: bool,
    said: bool,
    /// The device has sent that, and so all before it.
    sent: bool,
    heard: bool,
}

/// A link.
#[derive(Debug)]
pub struct Link<P: Port, M> {
    mirror: M,
    /// `None`: it was let go.
    device: Option<OfDevice<P>>,
    /// To measure with; `None`: nobody has, or the device was let go.
    scratch: Option<P::Region>,
    measuring: Option<Measuring>,
    described: PeerPair,
    settings: Settings,
    lanes: Vec<Option<Open<P>>>,
    marked: Turns,
    /// With the place that a message is the last one about.
    outstanding: InFlight<Option<usize>>,
    /// Messages sent, those of them that the far side has taken; messages taken, those of them that were acknowledged.
    sent: u32,
    acknowledged: u32,
    taken: u32,
    told: u32,
    /// The far side has asked.
    must_answer: bool,
    waiting: Option<Waiting>,
    /// When a connection last had something to say, on either side.
    moved: Option<Duration>,
    is_connected: bool,
    /// It says nothing before the far side has.
    is_held: bool,
    cause: Option<Cause>,
    /// How often it has gone on with another queue pair.
    renewals: u32,
    /// Both sides have said where they stood.
    is_settled: bool,
    events: VecDeque<Event>,
}

impl<P: Port, M: Mirror> Link<P, M> {
    /// A link whose completions come in `queue`, which has room for [`Settings::completions`] of them. `first` is the number
    /// of its first packet: any, best a random one.
    ///
    /// # Errors
    /// What the device refused.
    pub fn new(
        port: &P,
        queue: &P::Queue,
        mirror: M,
        settings: Settings,
        first: PacketNumber,
    ) -> Result<Self, Refused> {
        if settings.messages < 4 {
            return Err(Refused::Invalid("number of messages"));
        }
        let device = OfDevice::new(port, queue, settings.sizes())?;
        let (gid, mtu, number) = (port.gid(), port.mtu(), device.number());
        let described = PeerPair { gid, number, first_packet: first, mtu };
        let (lanes, marked) =
            ((0..mirror.slots()).map(|_| None).collect(), Turns::new(mirror.slots()));
        Ok(Self {
            mirror,
            device: Some(device),
            scratch: None,
            measuring: None,
            described,
            settings,
            lanes,
            marked,
            outstanding: InFlight::new(),
            sent: 0,
            acknowledged: 0,
            taken: 0,
            told: 0,
            must_answer: false,
            waiting: None,
            moved: None,
            is_connected: false,
            is_held: false,
            cause: None,
            renewals: 0,
            is_settled: false,
            events: VecDeque::new(),
        })
    }

    /// What the far side has to know of it.
    pub const fn described(&self) -> PeerPair {
        self.described
    }

    /// Its region.
    pub const fn mirror(&self) -> &M {
        &self.mirror
    }

    /// The same, to change what is in it.
    pub const fn mirror_mut(&mut self) -> &mut M {
        &mut self.mirror
    }

    /// True for a connection that both sides have opened.
    pub fn is_attached(&self, slot: usize) -> bool {
        self.lanes.get(slot).and_then(Option::as_ref).is_some_and(|open| open.far.is_some())
    }

    /// Why it has failed; `None`: it has not.
    pub const fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// How often it has gone on with another queue pair: it may fail, and be answered, once with each.
    pub const fn renewals(&self) -> u32 {
        self.renewals
    }

    /// What has happened since. `None`: nothing more.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Makes the connection to the far side's queue pair.
    ///
    /// # Errors
    /// What the device refused.
    pub fn connect(&mut self, far: &PeerPair) -> Result<(), Refused> {
        let device = self.device.as_ref().ok_or(Refused::State)?;
        device.receive_from(far)?;
        device.send_with(self.described.first_packet)?;
        self.is_connected = true;
        Ok(())
    }

    /// Asks the far side for an answer ([`Self::is_answered`]), which proves that both queue pairs reach each other. Without one in time, the
    /// link fails.
    pub fn ask(&mut self, now: Duration) {
        if self.is_connected && self.cause.is_none() && self.has_place(1) {
            self.send(Kind::Test, now);
        }
    }

    /// True when the far side has taken all that was sent, and something was.
    pub const fn is_answered(&self) -> bool {
        self.sent > 0 && self.acknowledged == self.sent
    }

    /// Opens a place for a connection: registers both rings. Returns where the far side writes.
    ///
    /// # Errors
    /// [`NotOpened`]; the connection stays on TCP.
    pub fn open(
        &mut self,
        port: &P,
        slot: usize,
        generation: u32,
        rings: &Rings,
    ) -> Result<Remote, NotOpened> {
        if let Some(cause) = self.cause {
            return Err(NotOpened::Link(cause));
        }
        let ring = usize::try_from(self.mirror.ring()).map_err(|_| NotOpened::Place)?;
        let is_whole = rings.outgoing.len() == ring && rings.incoming.len() == ring;
        let place = self.lanes.get_mut(slot).filter(|place| place.is_none() && is_whole);
        let place = place.ok_or(NotOpened::Place)?;
        let registered = rings.register(port).map_err(NotOpened::Memory)?;
        let remote = registered.incoming.as_remote();
        *place = Some(Open {
            generation,
            lane: Lane::default(),
            registered: Some(registered),
            rings: rings.clone(),
            far: None,
            leave: Leave::default(),
            is_void: false,
            is_broken_off: false,
        });
        Ok(remote)
    }

    /// The far side has opened the place as well: where its ring is. False: there is no such connection, or the link has failed, and
    /// where its connections stood may have been said. So it stays where the link has gone on with another queue pair.
    #[must_use]
    pub fn attach(&mut self, slot: usize, generation: u32, far: Remote) -> bool {
        let open = self.lanes.get_mut(slot).and_then(Option::as_mut);
        let open = open.filter(|open| self.cause.is_none() && !open.is_void);
        let Some(open) = open.filter(|open| open.generation == generation) else { return false };
        open.far = Some(far);
        open.lane.begin(self.mirror.section(slot, self.mirror.side(slot).other()));
        self.mark(slot);
        true
    }

    /// Behind [`Self::attach`], once the program in a place can tell of news. It may have closed before.
    pub fn has_begun(&mut self, slot: usize) {
        // SYNC POINT word-arm: the queue's number before this look; a program that closes looks for it behind its own word.
        store_load_fence();
        let mine = self.mirror.section(slot, self.mirror.side(slot));
        if mine.setup.done.load(Ordering::Acquire) != 0 {
            self.leave(slot);
        }
    }

    /// Looks for what programs have published. How many have.
    pub fn listen(&mut self) -> usize {
        let mut slots = Vec::new();
        self.mirror.news(&mut slots);
        for slot in &slots {
            let mine = self.mirror.section(*slot, self.mirror.side(*slot));
            let is_done = mine.setup.done.load(Ordering::Acquire) != 0;
            if !self.is_attached(*slot) {
                self.events.push_back(Event::Called(*slot));
            } else if is_done {
                self.leave(*slot);
            } else {
                self.mark(*slot);
            }
        }
        slots.len()
    }

    /// All programs with a connection in a place are gone: the far side hears of an end, if it has not.
    pub fn end(&mut self, slot: usize) {
        if self.is_attached(slot) {
            end_for_program(self.mirror.section(slot, self.mirror.side(slot)));
            self.leave(slot);
        }
    }

    /// The program in a place has published something.
    pub fn mark(&mut self, slot: usize) {
        if self.lanes.get(slot).is_some_and(Option::is_some) {
            self.marked.mark(slot);
        }
    }

    /// The program in a place is done with the connection: what it has published still goes to the far side.
    pub fn leave(&mut self, slot: usize) {
        if let Some(open) = self.lanes.get_mut(slot).and_then(Option::as_mut) {
            open.leave.wanted = true;
        }
        self.mark(slot);
    }

    /// Bytes of rings that are registered for it.
    pub fn registered(&self) -> usize {
        let open = self.lanes.iter().flatten();
        open.filter_map(|open| open.registered.as_ref()).map(Registered::bytes).sum()
    }

    /// When [`Self::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let waiting = self.waiting.filter(|_| self.cause.is_none())?;
        Some(waiting.deadline(self.settings.silence))
    }

    /// Time goes on: asks a far side that is silent, or gives the link up.
    pub fn tick(&mut self, now: Duration) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if !self.waiting.as_mut().is_some_and(Waiting::ask) {
            self.fail(Cause::Silence);
        } else if self.has_place(1) {
            self.send(Kind::Test, now);
        }
    }

    /// Posts what the marked connections have published, as far as there is room, and acknowledges.
    pub fn pump(&mut self, now: Duration) {
        if !self.is_connected || self.is_held {
            return;
        }
        // The last place is kept, see above.
        while self.cause.is_none() && self.has_place(2) {
            let Some(slot) = self.marked.next() else { break };
            self.post(slot, now);
        }
        let owed = self.taken.wrapping_sub(self.told);
        let is_due = self.must_answer || owed >= u32::from(self.settings.messages) / 2;
        if is_due && self.cause.is_none() && self.has_place(1) {
            self.send(Kind::Acknowledge, now);
        }
    }

    /// True when `least` more messages find a receive request at the far side, and one of them finds room at the device.
    fn has_place(&self, least: u32) -> bool {
        let unacknowledged = self.sent.wrapping_sub(self.acknowledged);
        let messages = u32::from(self.settings.messages);
        let (sent, requests) = self.outstanding.count();
        let has_buffer = sent < usize::from(self.settings.messages);
        let has_room = requests + REQUESTS <= self.settings.sizes().capacity().send;
        unacknowledged + least <= messages && has_buffer && has_room
    }

    /// Posts what one connection has published.
    fn post(&mut self, slot: usize, now: Duration) {
        let (ring, most) = (self.mirror.ring(), u64::from(self.settings.burst));
        let mine = self.mirror.section(slot, self.mirror.side(slot));
        let Some(open) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        let Some(far) = open.far.filter(|_| !open.leave.said) else { return };
        let lane = lane_name(slot, open.generation);
        let gathered = match open.lane.gather(mine, ring, most) {
            Ok(gathered) => gathered,
            Err(broken) => {
                break_off(self.mirror.section(slot, self.mirror.side(slot).other()));
                self.events.push_back(Event::Broken(slot, broken));
                Some(open.lane.reset())
            }
        };
        if gathered.is_some() || open.leave.wanted {
            self.moved = Some(now);
        }
        if let Some(posting) = gathered {
            open.lane.post(&posting, ring);
            let rings = open.registered.as_ref();
            let writes = rings.and_then(|rings| writes(&rings.outgoing, far, &posting));
            let Some(writes) = writes else { return self.fail(Cause::Refused) };
            self.send_behind(writes, Kind::Cursors(lane, posting.words), now);
            if posting.has_more {
                self.mark(slot);
            }
            // Once more for what has been published meanwhile, or for the leave, which needs a place of its own.
            let wants = |open: &Open<P>| open.leave.wanted && !open.leave.said;
            if self.lanes[slot].as_ref().is_some_and(wants) {
                self.mark(slot);
            }
        } else if open.leave.wanted {
            open.leave.said = true;
            self.send(Kind::Leave(lane), now);
        }
    }

    /// A place that both sides have left is free: its memory is no longer registered. The device is through with it: requests go in order.
    fn free(&mut self, slot: usize) {
        let is_left = |open: &Open<P>| open.leave.sent && open.leave.heard;
        if let Some(place) = self.lanes.get_mut(slot)
            && place.as_ref().is_some_and(is_left)
        {
            *place = None;
            self.mirror.is_free(slot);
            self.events.push_back(Event::Free(slot));
        }
    }

    fn send(&mut self, kind: Kind, now: Duration) {
        self.send_behind([None, None], kind, now);
    }

    /// Posts writes, and behind them a message.
    fn send_behind(&mut self, writes: Writes, kind: Kind, now: Duration) {
        let message = Message { number: self.sent, taken: self.taken, kind };
        let id = self.outstanding.next_id();
        let (writes, message) = (writes.into_iter().flatten(), message.bytes());
        let posted = self.device.as_ref().and_then(|device| device.post(writes, &message, id));
        let Some(requests) = posted else { return self.fail(Cause::Refused) };
        let leaves = match kind {
            Kind::Leave(lane) => Some(usize::from(lane.slot)),
            _ => None,
        };
        self.outstanding.posted(requests, leaves);
        self.sent = self.sent.wrapping_add(1);
        self.told = self.taken;
        self.must_answer = false;
        self.waiting.get_or_insert(Waiting::from(now));
    }

    /// A request of this link's queue pair has come to its end.
    pub fn complete(&mut self, completion: &Completion, now: Duration) {
        if self.cause.is_some() {
            // All that the far side says from here on it will send over TCP.
            return;
        }
        match completion.outcome {
            Ok(Done::Sent) => self.sent_one(completion.id, now),
            Ok(Done::Received(length)) => self.received(completion.id, length, now),
            Ok(Done::Written { .. }) => self.fail(Cause::Order),
            Err(failure) => self.fail(Cause::Request(failure)),
        }
    }

    fn sent_one(&mut self, id: u64, now: Duration) {
        let Some(leaves) = self.outstanding.completed(id) else { return self.fail(Cause::Device) };
        if let Some(waiting) = &mut self.waiting {
            waiting.sent(now);
        }
        let slot = leaves.filter(|slot| *slot < self.lanes.len());
        if let Some((slot, open)) = slot.zip(slot.and_then(|slot| self.lanes[slot].as_mut())) {
            open.leave.sent = true;
            self.free(slot);
        }
    }

    fn received(&mut self, at: u64, length: u32, now: Duration) {
        let Some(device) = &self.device else { return };
        let mut bytes = [0; BUFFER];
        if device.read(at, &mut bytes).is_none() {
            return self.fail(Cause::Device);
        }
        let whole = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
        let message = match whole.map(Message::parse) {
            Some(Ok(message)) => message,
            Some(Err(malformed)) => return self.fail(Cause::Malformed(malformed)),
            None => return self.fail(Cause::Device),
        };
        // Before the message is acknowledged.
        if device.receive(at).is_err() {
            return self.fail(Cause::Refused);
        }
        self.hear(&message, now);
    }

    fn hear(&mut self, message: &Message, now: Duration) {
        let unacknowledged = self.sent.wrapping_sub(self.acknowledged);
        let news = message.taken.wrapping_sub(self.acknowledged);
        if message.number != self.taken || news > unacknowledged {
            return self.fail(Cause::Order);
        }
        self.taken = self.taken.wrapping_add(1);
        self.is_held = false;
        self.acknowledged = message.taken;
        if news > 0 {
            self.waiting = (news < unacknowledged).then_some(Waiting::from(now));
        } else if let Some(waiting) = &mut self.waiting {
            waiting.heard(now, self.settings.messages);
        }
        self.measured(now);
        if matches!(message.kind, Kind::Cursors(..) | Kind::Leave(_)) {
            self.moved = Some(now);
        }
        match message.kind {
            Kind::Acknowledge => {}
            Kind::Test => self.must_answer = true,
            Kind::Cursors(lane, words) => self.hear_of(lane, &words),
            Kind::Leave(lane) => {
                let slot = usize::from(lane.slot);
                let Some(open) = self.named(lane) else { return self.fail(Cause::NoConnection) };
                open.leave.heard = true;
                if !open.lane.has_heard_end() {
                    // Its program has taken its proposal back: the connection is TCP's.
                    leave_to_tcp(self.mirror.section(slot, self.mirror.side(slot).other()));
                    self.mirror.wake(slot, News { bytes: true, room: true });
                }
                self.free(slot);
            }
        }
    }

    /// The connection that the far side speaks of, unless it has left it.
    fn named(&mut self, lane: message::Lane) -> Option<&mut Open<P>> {
        let open = self.lanes.get_mut(usize::from(lane.slot)).and_then(Option::as_mut)?;
        (open.generation == lane.generation && !open.leave.heard).then_some(open)
    }

    fn hear_of(&mut self, lane: message::Lane, words: &Words) {
        let (slot, ring) = (usize::from(lane.slot), self.mirror.ring());
        if self.named(lane).is_none() {
            return self.fail(Cause::NoConnection);
        }
        let side = self.mirror.side(slot).other();
        let theirs = self.mirror.section(slot, side);
        let Some(open) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        let marks = open.lane.marks_heard();
        match open.lane.hear(words, (theirs, side), ring) {
            Ok(news) => {
                // Its sender waits to hear that they are here.
                if words.marks != marks {
                    self.mark(slot);
                }
                if news != News::default() {
                    self.mirror.wake(slot, news);
                }
            }
            Err(impossible) => self.fail(Cause::Impossible(impossible)),
        }
    }

    /// Gives the link up. What the far side has said since the last completion that was handed over is not acted on any more.
    pub fn fail(&mut self, cause: Cause) {
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.device.iter().for_each(OfDevice::fail);
        }
    }

    /// Gives the link up, and lets go of all that it has of its device. The connections stay, to be settled.
    pub fn let_go(&mut self, cause: Cause) {
        self.fail(cause);
        (self.device, self.scratch) = (None, None);
        self.lanes.iter_mut().flatten().for_each(|open| open.registered = None);
    }

    /// Takes a connection out that the far side has not opened. Its program stays on TCP.
    pub fn abandon(&mut self, slot: usize) {
        if let Some(place) = self.lanes.get_mut(slot)
            && place.as_ref().is_some_and(|open| open.far.is_none())
        {
            *place = None;
            let theirs = self.mirror.section(slot, self.mirror.side(slot).other());
            leave_to_tcp(theirs);
            theirs.setup.done.store(1, Ordering::Release);
            self.mirror.wake(slot, News { bytes: true, room: true });
        }
    }
}

fn lane_name(slot: usize, generation: u32) -> message::Lane {
    message::Lane { slot: u16::try_from(slot).unwrap_or(u16::MAX), generation }
}
