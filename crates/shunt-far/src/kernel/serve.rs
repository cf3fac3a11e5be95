//! A link to a kernel at work: completions, messages of the server, and what is posted.

use core::time::Duration;

use shunt_shm::ring::Span;
use shunt_smc::connection::Placement;
use shunt_smc::link::{self, Event as LinkEvent};
use shunt_smc::wire::cdc::{Cdc, KIND};
use shunt_smc::wire::{LINK_MESSAGE, LONGEST_LINK_MESSAGE};
use shunt_verbs::port::{Port, Region};
use shunt_verbs::value::{Completion, Done, Piece, Remote, RemoteKey};

use super::lane::Gathered;
use super::{Event, KernelLink, Name, Open, PLACES, Phase, Reset, Withdrawal};
use crate::link::Cause;
use crate::mirror::{Mirror, News};

/// Up to three pieces of a ring, and where they go.
type Writes = [Option<(Piece, Remote)>; 3];

/// The writes of a span whose bytes go to these places: both are cut where the other one is. `None`: they do not lie in the ring.
fn writes(from: &impl Region, span: Span, to: &Placement) -> Option<Writes> {
    let mut writes = [None; 3];
    let mut rest = span;
    let mut free = writes.iter_mut();
    for (to, length) in to.parts {
        let (part, behind) = rest.split(length as usize);
        rest = behind;
        let mut done = 0;
        for (at, length) in [part.head, part.tail] {
            if length > 0 {
                let address = to.address.checked_add(done)?;
                let piece = from.piece(at..at.checked_add(length)?)?;
                *free.next()? = Some((piece, Remote { address, ..to }));
                done += length as u64;
            }
        }
    }
    rest.is_empty().then_some(writes)
}

impl<P: Port, M: Mirror> KernelLink<P, M> {
    /// A request of this link's queue pair has come to its end.
    pub fn complete(&mut self, completion: &Completion, now: Duration) {
        match (self.phase, completion.outcome) {
            (Phase::Over, _) => {}
            (_, Err(failure)) => self.fail(Cause::Request(failure)),
            (_, Ok(Done::Sent)) => self.sent_one(completion.id, now),
            (_, Ok(Done::Received(length))) => self.received(completion.id, length, now),
            // The kernel writes so with SMC-D alone.
            (_, Ok(Done::Written { .. })) => self.fail(Cause::Order),
        }
    }

    fn sent_one(&mut self, id: u64, now: Duration) {
        let Some(about) = self.outstanding.completed(id) else { return self.fail(Cause::Device) };
        let Some((name, bytes)) = about else { return };
        let Some(open) = self.named(name.token) else { return };
        open.outstanding -= 1;
        open.lane.sent(bytes);
        self.tell(name.slot);
        self.settle(name.slot, now);
    }

    fn received(&mut self, at: u64, length: u32, now: Duration) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(device) = &self.device else { return };
        let mut message = [0; LINK_MESSAGE];
        let short = &mut message[..length.min(LINK_MESSAGE)];
        let mut is_read = length <= LONGEST_LINK_MESSAGE && device.read(at, short).is_some();
        let is_cdc = short.first() == Some(&KIND);
        let mut long = Vec::new();
        if !is_cdc && is_read {
            long.resize(length, 0);
            is_read = device.read(at, &mut long).is_some();
        }
        if !is_read {
            return self.fail(Cause::Device);
        }
        if device.receive(at).is_err() {
            return self.fail(Cause::Refused);
        }
        let Some(link) = &mut self.smc else { return self.fail(Cause::Order) };
        if is_cdc {
            link.heard(now);
            let short = &message[..length.min(LINK_MESSAGE)];
            match Cdc::parse(short) {
                Ok(message) => self.hear_of(&message, now),
                Err(malformed) => self.fail(Cause::Smc(link::Cause::Malformed(malformed))),
            }
        } else {
            link.receive(&long, now);
            self.follow(now);
        }
    }

    /// The connection that the kernel calls so.
    fn named(&mut self, token: u32) -> Option<&mut Open<P>> {
        let open = self.lanes.get_mut(slot_of(token))?.as_mut()?;
        (open.token == token).then_some(open)
    }

    /// A message about a connection. One that there is not any more is left alone, as the kernel does (`smc_cdc.c`:
    /// `smc_cdc_rx_handler`).
    fn hear_of(&mut self, message: &Cdc, now: Duration) {
        let slot = slot_of(message.token);
        let Some(open) = self.named(message.token) else { return };
        open.lane.receive(message);
        self.tell(slot);
        // It may be due to say how far its program has read, or wait for room.
        self.mark(slot);
        self.settle(slot, now);
    }

    /// Has the program hear what the kernel has said, once both ends have agreed.
    pub(super) fn tell(&mut self, slot: usize) {
        let (ring, side) = (self.mirror.ring(), self.mirror.side(slot).other());
        let theirs = self.mirror.section(slot, side);
        let open = self.lanes.get_mut(slot).and_then(Option::as_mut);
        let Some(open) = open.filter(|open| open.is_attached && !open.is_reset) else { return };
        match open.lane.tell((theirs, side), ring) {
            Ok(news) if news == News::default() => {}
            Ok(news) => self.mirror.wake(slot, news),
            Err(why) => self.reset(slot, why),
        }
    }

    /// Acts on what has come of messages about the link.
    pub(super) fn follow(&mut self, now: Duration) {
        while let Some(event) = self.smc.as_mut().and_then(link::Link::event) {
            match event {
                LinkEvent::Confirm => self.confirm(),
                LinkEvent::Announced { key, is_taken } => {
                    if let Some(of) = self.with_key(key) {
                        self.events.push_back(Event::Announced { of, is_taken });
                    }
                }
                LinkEvent::Withdrawn(key) => self.withdrawn(key),
                LinkEvent::Forgotten(key) => self.forgotten(key),
                LinkEvent::Down(cause) => {
                    self.reset_all(Cause::Smc(cause));
                    if self.phase == Phase::Up {
                        self.phase = Phase::Ending(now + self.settings.patience.answer);
                    }
                }
            }
        }
    }

    /// The server's first message has come: the queue pair sends, and what it sends first is the answer.
    fn confirm(&mut self) {
        let device = self.device.as_ref();
        let sends = device.is_some_and(|it| it.send_with(self.described.first_packet).is_ok());
        let Some(link) = self.smc.as_mut().filter(|_| sends) else {
            return self.fail(Cause::Refused);
        };
        link.activate();
        (self.is_sending, self.is_confirming) = (true, true);
    }

    /// The connection whose own ring has this key, and is being announced.
    fn with_key(&self, key: RemoteKey) -> Option<Name> {
        let mut open = self.lanes.iter().enumerate();
        open.find_map(|(slot, open)| {
            let open = open.as_ref().filter(|it| it.key == key && !it.is_attached)?;
            Some(open.name(slot))
        })
    }

    fn withdrawn(&mut self, key: RemoteKey) {
        for slot in 0..self.lanes.len() {
            let Some(open) = &mut self.lanes[slot] else { continue };
            if open.key == key && open.key_of == Withdrawal::Asked {
                open.key_of = Withdrawal::Withdrawn;
                open.registered = None;
                self.free(slot);
            }
        }
    }

    /// A ring of the kernel's is gone. A connection that has ended there writes into it no more.
    fn forgotten(&mut self, key: RemoteKey) {
        for slot in 0..self.lanes.len() {
            let open = self.lanes[slot].as_ref();
            if open.is_some_and(|it| it.far.key == key && it.is_attached && !it.lane.is_over()) {
                self.reset(slot, Reset::Forgotten);
            }
        }
    }

    /// Posts what there is to post, as far as there is room: messages about the link, then what the marked connections have published.
    pub fn pump(&mut self, now: Duration) {
        self.follow(now);
        if self.phase == Phase::Over {
            return;
        }
        while self.is_sending && self.phase != Phase::Over && self.has_room() {
            if let Some(message) = self.smc.as_mut().and_then(link::Link::outgoing) {
                self.send([None; 3], &message, None);
                continue;
            }
            if self.phase != Phase::Up {
                break;
            }
            if core::mem::take(&mut self.is_confirming) {
                self.events.push_back(Event::Confirmed);
            }
            let Some(slot) = self.marked.next() else { break };
            self.post(slot, now);
        }
        if let Phase::Ending(until) = self.phase
            && (!self.is_sending || self.outstanding.count().0 == 0 || now >= until)
        {
            self.halt();
        }
    }

    fn has_room(&self) -> bool {
        self.settings.have_room(self.outstanding.count())
    }

    /// Posts what one connection has published, and what is to be said of it.
    fn post(&mut self, slot: usize, now: Duration) {
        let (ring, most) = (self.mirror.ring(), u64::from(self.settings.burst));
        let mine = self.mirror.section(slot, self.mirror.side(slot));
        let Some(open) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        let mut gathered = Gathered::default();
        if !open.is_reset {
            match open.lane.gather(mine, ring, most) {
                Ok(posting) => gathered = posting,
                Err(why) => return self.reset(slot, why),
            }
            if open.is_left && !gathered.has_more {
                open.lane.close(mine);
            }
        }
        let Gathered { span, placement, has_more, is_heard } = gathered;
        let writes = placement.map_or(Some([None; 3]), |placement| {
            let registered = open.registered.as_ref()?;
            writes(&registered.outgoing, span, &placement)
        });
        let Some(writes) = writes else { return self.fail(Cause::Refused) };
        if let Some(message) = open.lane.message() {
            let about = (open.name(slot), open.lane.told());
            self.send(writes, &message, Some(about));
        }
        if is_heard {
            self.tell(slot);
        }
        if has_more {
            self.mark(slot);
        }
        self.settle(slot, now);
    }

    /// Posts writes, and behind them a message.
    fn send(&mut self, writes: Writes, message: &[u8], about: Option<(Name, u64)>) {
        let (id, writes) = (self.outstanding.next_id(), writes.into_iter().flatten());
        let posted = self.device.as_ref().and_then(|device| device.post(writes, message, id));
        let Some(requests) = posted else { return self.fail(Cause::Refused) };
        if let Some(open) = about.and_then(|(name, _)| self.named(name.token)) {
            open.outstanding += 1;
        }
        self.outstanding.posted(requests, about);
    }

    /// Has a connection's key withdrawn that both ends have closed.
    fn settle(&mut self, slot: usize, now: Duration) {
        let open = self.lanes.get_mut(slot).and_then(Option::as_mut);
        let Some(open) = open.filter(|open| open.outstanding == 0 && open.lane.is_over()) else {
            return self.free(slot);
        };
        if let Some(link) = self.smc.as_mut().filter(|_| self.phase == Phase::Up)
            && open.key_of == Withdrawal::Known
        {
            open.key_of = Withdrawal::Asked;
            link.withdraw(open.key, now);
        }
        self.free(slot);
    }
}

const fn slot_of(token: u32) -> usize {
    token as usize % PLACES
}
