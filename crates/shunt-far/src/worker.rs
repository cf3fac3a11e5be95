//! A completion queue with the links that it serves, to agents and to kernels: what one thread of an agent does.
//!
//! The thread calls [`Worker::turn`] as long as that finds something. Before it sleeps on the channel it calls
//! [`Worker::may_sleep`], which arms the queue and looks once more: a completion that came before the queue was armed tells nobody. A
//! queue that is armed tells once, so it is armed again when [`Worker::was_told`] has taken that, and not before: each is a system call.
//!
//! A device can be lost: [`Worker::let_go`] drops all that the worker has of it, and its links stay until their connections are settled.
//! [`Worker::take_up`] has it go on with another one.

use core::time::Duration;
use std::collections::BTreeMap;

use shunt_verbs::Refused;
use shunt_verbs::port::{BATCH, Channel, Completions, Port, Queue};
use shunt_verbs::value::{PacketNumber, PairNumber, PeerPair};

use crate::kernel::{self, KernelLink};
use crate::link::{Cause, Link, Position, Settings};
use crate::mirror::Mirror;

/// How a worker calls one of its links: numbers of queue pairs are used again.
pub type Name = u64;

/// What a worker has of its device.
#[derive(Debug)]
struct OfDevice<P: Port> {
    queue: P::Queue,
    channel: P::Channel,
    /// Completions that the queue has room for.
    room: u32,
    /// The queue was armed, and what it tells was not taken since.
    is_armed: bool,
}

impl<P: Port> OfDevice<P> {
    fn new(port: &P, vector: u32, completions: u32) -> Result<Self, Refused> {
        let room = completions.min(port.limits().completions);
        let channel = port.channel()?;
        let queue = port.queue(room, &channel, vector, vector.into())?;
        Ok(Self { queue, channel, room, is_armed: false })
    }
}

/// A worker.
#[derive(Debug)]
pub struct Worker<P: Port, M> {
    // Before the queue, which they complete into.
    links: BTreeMap<Name, Link<P, M>>,
    /// Those to kernels.
    kernel_links: BTreeMap<Name, KernelLink<P, M>>,
    /// Those whose queue pairs there are.
    pairs: BTreeMap<PairNumber, Name>,
    /// `None`: it was let go.
    device: Option<OfDevice<P>>,
    /// Completions that its links may have all together, and those of its links that the device has.
    completions: u32,
    used: u32,
    batch: Completions,
}

impl<P: Port, M: Mirror> Worker<P, M> {
    /// A worker whose completions interrupt the processor of `vector`, with room for so many links of these settings, or for fewer and others
    /// to kernels.
    ///
    /// # Errors
    /// What the device refused.
    pub fn new(port: &P, vector: u32, links: u32, settings: Settings) -> Result<Self, Refused> {
        let completions = settings.completions().saturating_mul(links);
        let device = Some(OfDevice::new(port, vector, completions)?);
        let (links, kernel_links, pairs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (used, batch) = (0, Completions::default());
        Ok(Self { links, kernel_links, pairs, device, completions, used, batch })
    }

    /// Gives all links up, and lets go of all that it has of its device.
    pub fn let_go(&mut self, cause: Cause) {
        self.links.values_mut().for_each(|link| link.let_go(cause));
        self.kernel_links.values_mut().for_each(|link| link.let_go(cause));
        self.pairs.clear();
        (self.device, self.used) = (None, 0);
    }

    /// Goes on with another device, for new links.
    ///
    /// # Errors
    /// What the device refused.
    pub fn take_up(&mut self, port: &P, vector: u32) -> Result<(), Refused> {
        self.device = Some(OfDevice::new(port, vector, self.completions)?);
        Ok(())
    }

    /// A new link that completes here, under a name that was never used. A queue that overran would lose completions, so it takes only as many
    /// as it has room for.
    ///
    /// # Errors
    /// [`Refused::Full`]; [`Refused::State`] without a device; what the device refused.
    pub fn add(
        &mut self,
        name: Name,
        port: &P,
        mirror: M,
        settings: Settings,
        first: PacketNumber,
    ) -> Result<PeerPair, Refused> {
        let (queue, used) = self.room_for(settings.completions())?;
        let link = Link::new(port, queue, mirror, settings, first)?;
        let described = link.described();
        self.used = used;
        self.pairs.insert(described.number, name);
        self.links.insert(name, link);
        Ok(described)
    }

    /// Another queue pair for a link that has failed, on the device that there is now: see [`Link::renew`].
    ///
    /// # Errors
    /// As for [`Self::add`]; [`Refused::State`] also where there is no such link, or it has not failed.
    pub fn renew(
        &mut self,
        name: Name,
        port: &P,
        settings: Settings,
        first: PacketNumber,
    ) -> Result<(PeerPair, Vec<Position>), Refused> {
        let completions = settings.completions();
        // The queue has room for what the one of before may still have in it.
        let (_, used) = self.room_for(completions)?;
        let OfDevice { queue, .. } = self.device.as_ref().ok_or(Refused::State)?;
        let link = self.links.get_mut(&name).ok_or(Refused::State)?;
        let before = link.described().number;
        let renewed = link.renew(port, queue, first)?;
        self.used = used;
        self.forget(name, before, completions);
        self.pairs.insert(renewed.0.number, name);
        Ok(renewed)
    }

    /// The same of a link to a kernel.
    ///
    /// # Errors
    /// As for [`Self::add`], and as for [`KernelLink::new`].
    pub fn add_kernel(
        &mut self,
        name: Name,
        port: &P,
        mirror: M,
        settings: kernel::Settings,
        first: PacketNumber,
    ) -> Result<PeerPair, Refused> {
        let (queue, used) = self.room_for(settings.completions())?;
        let link = KernelLink::new(port, queue, mirror, settings, first)?;
        let described = link.described();
        self.used = used;
        self.pairs.insert(described.number, name);
        self.kernel_links.insert(name, link);
        Ok(described)
    }

    /// The queue, and how many of its completions are used when there are so many more.
    fn room_for(&self, completions: u32) -> Result<(&P::Queue, u32), Refused> {
        let OfDevice { queue, room, .. } = self.device.as_ref().ok_or(Refused::State)?;
        let used = self.used.saturating_add(completions);
        if used > *room {
            return Err(Refused::Full);
        }
        Ok((queue, used))
    }

    /// Takes a link out: its queue pair is gone with it. Of what is still in the queue of it nothing is acted on.
    pub fn remove(&mut self, name: Name, settings: Settings) -> Option<Link<P, M>> {
        let link = self.links.remove(&name)?;
        self.forget(name, link.described().number, settings.completions());
        Some(link)
    }

    /// The same of a link to a kernel.
    pub fn remove_kernel(&mut self, name: Name) -> Option<KernelLink<P, M>> {
        let link = self.kernel_links.remove(&name)?;
        self.forget(name, link.described().number, link.settings().completions());
        Some(link)
    }

    /// A link's queue pair is gone, with the completions that it may have had.
    fn forget(&mut self, name: Name, pair: PairNumber, completions: u32) {
        if self.pairs.get(&pair) == Some(&name) {
            self.pairs.remove(&pair);
            self.used = self.used.saturating_sub(completions);
        }
    }

    /// A link of this worker's.
    pub fn link(&mut self, name: Name) -> Option<&mut Link<P, M>> {
        self.links.get_mut(&name)
    }

    /// A link to a kernel.
    pub fn kernel_link(&mut self, name: Name) -> Option<&mut KernelLink<P, M>> {
        self.kernel_links.get_mut(&name)
    }

    /// The device says that a queue pair has failed: what has completed before still counts.
    pub fn fail(&mut self, pair: PairNumber, now: Duration) {
        if let Some(name) = self.pairs.get(&pair).copied() {
            self.take_all(now);
            if let Some(link) = self.links.get_mut(&name) {
                link.fail(Cause::Pair);
            }
            if let Some(link) = self.kernel_links.get_mut(&name) {
                link.fail(Cause::Pair);
            }
        }
    }

    /// All links between agents.
    pub fn links(&mut self) -> impl Iterator<Item = (Name, &mut Link<P, M>)> {
        self.links.iter_mut().map(|(name, link)| (*name, link))
    }

    /// All links to kernels.
    pub fn kernel_links(&mut self) -> impl Iterator<Item = (Name, &mut KernelLink<P, M>)> {
        self.kernel_links.iter_mut().map(|(name, link)| (*name, link))
    }

    /// Takes completions and news of programs, and has all links post what they can. Returns the number of both.
    pub fn turn(&mut self, now: Duration) -> usize {
        let heard = self.links.values_mut().map(Link::listen).sum::<usize>();
        let of_kernels = self.kernel_links.values_mut().map(KernelLink::listen).sum::<usize>();
        let taken = self.take(now) + heard + of_kernels;
        self.links.values_mut().for_each(|link| link.pump(now));
        self.kernel_links.values_mut().for_each(|link| link.pump(now));
        taken
    }

    fn take(&mut self, now: Duration) -> usize {
        let Some(OfDevice { queue, .. }) = &self.device else { return 0 };
        let Ok(taken) = queue.poll(&mut self.batch) else {
            // Completions are lost, so no link can go on.
            self.links.values_mut().for_each(|link| link.fail(Cause::Device));
            self.kernel_links.values_mut().for_each(|link| link.fail(Cause::Device));
            return 0;
        };
        for completion in self.batch.drain() {
            let Some(name) = self.pairs.get(&completion.pair) else { continue };
            if let Some(link) = self.links.get_mut(name) {
                link.complete(&completion, now);
            } else if let Some(link) = self.kernel_links.get_mut(name) {
                link.complete(&completion, now);
            }
        }
        taken
    }

    /// Takes all that has come, but no more than the queue has room for, as its devices go on.
    fn take_all(&mut self, now: Duration) {
        let room = self.device.as_ref().map_or(0, |device| device.room) as usize;
        for _ in 0..=room / BATCH {
            if self.take(now) < BATCH {
                break;
            }
        }
    }

    /// Arms the queue, and looks once more. False: there was something, so the thread goes on.
    pub fn may_sleep(&mut self, now: Duration) -> bool {
        let is_armed = self.device.as_mut().is_none_or(|it| {
            it.is_armed = it.is_armed || it.queue.arm().is_ok();
            it.is_armed
        });
        // What cannot be armed is polled.
        is_armed && self.turn(now) == 0
    }

    /// Where the queue tells while the thread sleeps. `None`: it has no device.
    pub fn channel(&self) -> Option<&P::Channel> {
        self.device.as_ref().map(|device| &device.channel)
    }

    /// Takes what the channel tells, once it is readable. True: it has told that there are completions.
    pub fn was_told(&mut self) -> bool {
        let Some(OfDevice { channel, is_armed, .. }) = &mut self.device else { return false };
        let is_told = matches!(channel.next(), Ok(Some(_)));
        *is_armed &= !is_told;
        is_told
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let of_kernels = self.kernel_links.values().filter_map(KernelLink::deadline);
        self.links.values().filter_map(Link::deadline).chain(of_kernels).min()
    }

    /// Time goes on. What has come in time counts, also where this thread did not run for a while.
    pub fn tick(&mut self, now: Duration) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.take_all(now);
        self.links.values_mut().for_each(|link| link.tick(now));
        self.kernel_links.values_mut().for_each(|link| link.tick(now));
    }
}
