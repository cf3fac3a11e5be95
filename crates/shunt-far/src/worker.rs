//! A completion queue with the links that it serves: what one thread of an agent does.
//!
//! The thread calls [`Worker::turn`] as long as that finds something. Before it sleeps on the channel it calls
//! [`Worker::may_sleep`], which arms the queue and looks once more: a completion that came before the queue was armed tells nobody.

use core::time::Duration;
use std::collections::BTreeMap;

use shunt_verbs::Refused;
use shunt_verbs::port::{BATCH, Channel, Completions, Port, Queue};
use shunt_verbs::value::{PacketNumber, PairNumber, PeerPair};

use crate::link::{Cause, Link, Settings};
use crate::mirror::Mirror;

/// A worker.
#[derive(Debug)]
pub struct Worker<P: Port, M> {
    // Before the queue, which they complete into.
    links: BTreeMap<PairNumber, Link<P, M>>,
    queue: P::Queue,
    channel: P::Channel,
    /// Completions that the queue has room for, and those that its links may have.
    room: (u32, u32),
    batch: Completions,
}

impl<P: Port, M: Mirror> Worker<P, M> {
    /// A worker whose completions interrupt the processor of `vector`, with room for so many links of these settings.
    ///
    /// # Errors
    /// What the device refused.
    pub fn new(port: &P, vector: u32, links: u32, settings: Settings) -> Result<Self, Refused> {
        let room = settings.completions().saturating_mul(links).min(port.limits().completions);
        let channel = port.channel()?;
        let queue = port.queue(room, &channel, vector, vector.into())?;
        let batch = Completions::default();
        Ok(Self { links: BTreeMap::new(), queue, channel, room: (room, 0), batch })
    }

    /// A new link that completes here. A queue that overran would lose completions, so it takes only as many as it has room for.
    ///
    /// # Errors
    /// [`Refused::Full`]; what the device refused.
    pub fn add(
        &mut self,
        port: &P,
        mirror: M,
        settings: Settings,
        first: PacketNumber,
    ) -> Result<PeerPair, Refused> {
        let (room, used) = self.room;
        let used = used.saturating_add(settings.completions());
        if used > room {
            return Err(Refused::Full);
        }
        let link = Link::new(port, &self.queue, mirror, settings, first)?;
        let described = link.described();
        self.room.1 = used;
        self.links.insert(described.number, link);
        Ok(described)
    }

    /// Takes a link out: its queue pair is gone with it. Of what is still in the queue of it nothing is acted on.
    pub fn remove(&mut self, pair: PairNumber, settings: Settings) -> Option<Link<P, M>> {
        let link = self.links.remove(&pair)?;
        self.room.1 = self.room.1.saturating_sub(settings.completions());
        Some(link)
    }

    /// A link of this worker's.
    pub fn link(&mut self, pair: PairNumber) -> Option<&mut Link<P, M>> {
        self.links.get_mut(&pair)
    }

    /// All links.
    pub fn links(&mut self) -> impl Iterator<Item = &mut Link<P, M>> {
        self.links.values_mut()
    }

    /// Takes completions and news of programs, and has all links post what they can. Returns the number of both.
    pub fn turn(&mut self, now: Duration) -> usize {
        let heard = self.links.values_mut().map(Link::listen).sum::<usize>();
        let taken = self.take(now) + heard;
        self.links.values_mut().for_each(|link| link.pump(now));
        taken
    }

    fn take(&mut self, now: Duration) -> usize {
        let Ok(taken) = self.queue.poll(&mut self.batch) else {
            // Completions are lost, so no link can go on.
            self.links.values_mut().for_each(|link| link.fail(Cause::Device));
            return 0;
        };
        for completion in self.batch.drain() {
            if let Some(link) = self.links.get_mut(&completion.pair) {
                link.complete(&completion, now);
            }
        }
        taken
    }

    /// Arms the queue, and looks once more. False: there was something, so the thread goes on.
    pub fn may_sleep(&mut self, now: Duration) -> bool {
        while let Ok(Some(_)) = self.channel.next() {}
        // What cannot be armed is polled.
        self.queue.arm().is_ok() && self.turn(now) == 0
    }

    /// Where the queue tells while the thread sleeps.
    pub const fn channel(&self) -> &P::Channel {
        &self.channel
    }

    /// True once the channel has told: there are completions.
    pub fn was_told(&mut self) -> bool {
        matches!(self.channel.next(), Ok(Some(_)))
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.links.values().filter_map(Link::deadline).min()
    }

    /// Time goes on. What has come in time counts, also where this thread did not run for a while.
    pub fn tick(&mut self, now: Duration) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        // No more than the queue has room for, as its devices go on.
        for _ in 0..=self.room.0 as usize / BATCH {
            if self.take(now) < BATCH {
                break;
            }
        }
        self.links.values_mut().for_each(|link| link.tick(now));
    }
}
