//! Links to servers that speak the kernel's SMC-R. One worker has them all: a connection is answered before it is known on which link it
//! will be, and the answer names the worker.

use std::sync::Arc;
use std::time::Duration;

use shunt_far::kernel::{NotOpened, Settings};
use shunt_far::link::Rings;
use shunt_far::worker::Name as LinkName;
use shunt_far::{KernelLink, Worker};
use shunt_smc::wire::clc::{Accept, Diagnosis, End, Host};
use shunt_verbs::port::Port;

use super::{Links, Outcome, rings};
use crate::kernels::groups::{At, CONNECTIONS};
use crate::mirror::{Lanes, Place};

impl<P: Port + Clone + Send + 'static> Links<P> {
    /// Names a new one.
    pub(crate) const fn name_kernel(&mut self) -> LinkName {
        self.next += 1;
        self.next - 1
    }

    /// Has a connection's end made ready, which the server has accepted: on a first contact with the link itself. `number` comes back
    /// with the outcome.
    pub(crate) fn open_kernel(
        &mut self,
        number: u64,
        at: At,
        place: Place,
        (host, accept): (Host, Accept),
    ) {
        // Until it is closed, also where it is refused.
        self.lanes += 1;
        let is_first = accept.first_contact.is_some();
        if is_first {
            self.kernels += 1;
        }
        let has_room = self.limit.is_none_or(|limit| self.registered() <= limit);
        let (Some(port), Some(worker), true) = (self.port.clone(), self.workers.first(), has_room)
        else {
            let why = if has_room { Diagnosis::NO_RDMA_DEVICE } else { Diagnosis::MEMORY };
            let _ = self.tell.send(Outcome::KernelOpened(number, at, Err(why)));
            return self.shared.wake();
        };
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        let (bells, first) = (Arc::clone(&self.bells), super::first_packet());
        worker.hand(move |worker, now| {
            let made = if is_first {
                let lanes = Lanes::new(bells, CONNECTIONS.into());
                let made = worker.add_kernel(at.0, &port, lanes, Settings::default(), first);
                made.map_err(|_| Diagnosis::QUEUE_PAIR).and_then(|_| {
                    let link = worker.kernel_link(at.0).ok_or(Diagnosis::QUEUE_PAIR)?;
                    link.connect(host, &accept, now).map_err(|_| Diagnosis::QUEUE_PAIR)
                })
            } else {
                Ok(())
            };
            let opened = made.and_then(|()| open_on(worker, &port, at, place, &accept, now));
            let _ = tell.send(Outcome::KernelOpened(number, at, opened));
            shared.wake();
        });
    }

    fn with_kernel(
        &self,
        link: LinkName,
        with: impl FnOnce(&mut KernelLink<P, Lanes>, Duration) + Send + 'static,
    ) {
        let Some(worker) = self.workers.first() else { return };
        worker.hand(move |worker, now| {
            if let Some(link) = worker.kernel_link(link) {
                with(link, now);
            }
        });
    }

    /// Both sides have agreed on a connection: its program is answered, and its bytes flow. `use_` is the number of the use of its
    /// place in the region.
    pub(crate) fn attach_kernel(&self, (link, slot): At, use_: u32) {
        self.with_kernel(link, move |link, _| {
            link.mirror_mut().accepts(slot, use_);
            // All that comes over TCP is the agreement's: the program is in the ring from its first byte on. One whose link has ended
            // meanwhile is reset.
            let _ = link.attach(slot, 0);
        });
    }

    /// A connection stays on TCP, or is lost, before it was attached. `declines` tells its program.
    pub(crate) fn abandon_kernel(
        &self,
        (link, slot): At,
        declines: impl FnOnce() + Send + 'static,
    ) {
        let Some(worker) = self.workers.first() else { return };
        worker.hand(move |worker, now| {
            if let Some(link) = worker.kernel_link(link) {
                link.abandon(slot, now);
                link.mirror_mut().clear(slot);
            }
            declines();
        });
    }

    /// All programs of a connection are gone.
    pub(crate) fn end_kernel(&self, (link, slot): At) {
        self.with_kernel(link, move |link, _| link.end(slot));
    }

    /// Has the server end a link that nobody needs.
    pub(crate) fn leave_kernel(&self, link: LinkName) {
        self.with_kernel(link, KernelLink::part);
    }

    /// Gives a link up, as its server does.
    pub(crate) fn fail_kernel(&self, link: LinkName) {
        self.with_kernel(link, |link, _| link.fail(shunt_far::Cause::Told));
    }

    /// Lets go of a link that has ended.
    pub(crate) fn remove_kernel(&mut self, link: LinkName) {
        self.kernels = self.kernels.saturating_sub(1);
        if let Some(worker) = self.workers.first() {
            worker.hand(move |worker, _| drop(worker.remove_kernel(link)));
        }
    }
}

fn open_on<P: Port>(
    worker: &mut Worker<P, Lanes>,
    port: &P,
    (link, slot): At,
    place: Place,
    accept: &Accept,
    now: Duration,
) -> Result<End, Diagnosis> {
    let link = worker.kernel_link(link).ok_or(Diagnosis::OUT_OF_STEP)?;
    let rings: Rings = rings(&place).ok_or(Diagnosis::REGISTRATION)?;
    if link.mirror().place(slot).is_some() || link.mirror_mut().put(slot, place).is_none() {
        return Err(Diagnosis::INTERNAL);
    }
    let opened = link.open(port, slot, &rings, accept, now);
    if opened.is_err() {
        link.mirror_mut().clear(slot);
    }
    opened.map_err(|why: NotOpened| why.diagnosis())
}
