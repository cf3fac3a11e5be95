//! A link that has failed: another queue pair for it, or where its connections stand.

use std::sync::Arc;

use shunt_far::Cause;
use shunt_peer::message::Renewal;
use shunt_verbs::port::Port;

use super::{Links, Name, Outcome, Placed, SETTINGS, first_packet};

impl<P: Port + Clone + Send + 'static> Links<P> {
    /// Makes another queue pair for a link that has failed.
    pub(crate) fn renew(&self, name: Name) {
        self.renew_with(name, None);
    }

    /// The same, where the peer has made one: the link goes on with it. One that has not failed is given up before.
    pub(crate) fn answer(&self, name: Name, far: Renewal) {
        self.renew_with(name, Some(far));
    }

    fn renew_with(&self, name: Name, far: Option<Renewal>) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        let placed = self.placed.get(&name).zip(self.port.clone());
        let Some((Placed { place, link }, port)) = placed else {
            let _ = tell.send(Outcome::Renewed(name, None));
            return shared.wake();
        };
        let (link, first) = (*link, first_packet());
        self.workers[place.queue].hand(move |worker, now| {
            if let Some(link) = worker.link(link) {
                link.fail(Cause::Told);
            }
            let made = worker.renew(link, &port, SETTINGS, first).ok();
            let renewal = made.map(|(pair, positions)| Renewal { group: name.1, pair, positions });
            let renewal = renewal.filter(|_| {
                let Some((far, link)) = far.as_ref().zip(worker.link(link)) else { return true };
                link.go_on((&far.pair, &far.positions), true, now).is_ok()
            });
            let _ = tell.send(Outcome::Renewed(name, renewal));
            shared.wake();
        });
    }

    /// Both sides have one: goes on with it.
    pub(crate) fn go_on(&self, name: Name, far: Renewal) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        self.with_link(name, move |link, now| {
            if link.go_on((&far.pair, &far.positions), false, now).is_err() {
                let _ = tell.send(Outcome::GivenUp(name));
                shared.wake();
            }
        });
    }

    /// Looks where the connections of a link stand that has failed for good.
    pub(crate) fn halt(&self, name: Name) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        self.with_link(name, move |link, _| {
            let _ = tell.send(Outcome::Stood(name, link.halts()));
            shared.wake();
        });
    }
}
