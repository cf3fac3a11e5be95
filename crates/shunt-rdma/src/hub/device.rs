//! The device: found, watched, lost, and found again.

use std::sync::Arc;
use std::time::Duration;

use shunt_far::Cause;
use shunt_peer::Message;
use shunt_peer::message::Device;
use shunt_verbs::port::Port;
use shunt_verbs::value::{Event, Loss};
use tracing::{debug, info, warn};

use super::Hub;
use crate::links::Links;

/// Time between two looks at the device: a removal is not told by all drivers.
const LOOK_AT: Duration = Duration::from_secs(1);
/// Time from one look for a device to the next: it doubles with each that finds none.
const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(30);

impl<P: Port + Clone + Send + 'static> Hub<P> {
    pub(super) fn device(&self) -> Option<&P> {
        self.links.as_ref().and_then(Links::port)
    }

    /// Hears what happens to the device, or looks for one.
    pub(super) fn see_to_device(&mut self, now: Duration) {
        if self.ends_by.is_some() {
            return;
        }
        if self.device().is_some() {
            if let Some(loss) = self.hear_device(now) {
                self.lose_device(loss, now);
            }
        } else if now >= self.device_at {
            self.look_for_device(now);
        }
    }

    /// Why it cannot be used any more.
    fn hear_device(&mut self, now: Duration) -> Option<Loss> {
        let links = self.links.as_ref()?;
        let port = links.port()?;
        let mut is_due = now >= self.device_at;
        while let Some(event) = port.event() {
            debug!("RDMA device {}: {event:?}", self.wanted);
            match event {
                Event::Pair(pair) => links.fail_pair(pair),
                Event::Queue => return Some(Loss::Overrun),
                Event::Device => return Some(Loss::Failed),
                Event::PortActive(_)
                | Event::PortDown(_)
                | Event::Addresses(_)
                | Event::Other(_) => is_due = true,
            }
        }
        if !is_due {
            return None;
        }
        self.device_at = now + LOOK_AT;
        port.loss()
    }

    /// The device is let go: one that is being removed waits for that. Connections go on over another one, if there is one, else over TCP.
    fn lose_device(&mut self, loss: Loss, now: Duration) {
        warn!("{loss} ({})", self.wanted);
        if let Some(links) = &mut self.links {
            links.let_go(Cause::Lost(loss));
        }
        self.device_lacks = Some(format!("{loss} ({})", self.wanted));
        self.device_tries = 0;
        self.look_for_device(now);
        if self.device().is_none() {
            self.waiting.clear();
            self.tell_of_device(now);
        }
    }

    /// Gives all links up, and tells the peers.
    pub(super) fn let_go_of_device(&mut self, cause: Cause, now: Duration) {
        if let Some(links) = &mut self.links {
            links.let_go(cause);
        }
        self.waiting.clear();
        self.tell_of_device(now);
    }

    /// Whether this agent has a device, as peers hear it.
    pub(super) fn device_state(&self) -> Device {
        if self.device().is_some() { Device::Ready } else { Device::None }
    }

    /// Tells the peers that were told otherwise before. With neither side's device lost, new connections are promoted again.
    pub(super) fn tell_of_device(&mut self, now: Duration) {
        let state = self.device_state();
        let has = state == Device::Ready;
        for at in 0..self.peers.len() {
            if self.peers[at].is_known() && self.peers[at].knows_device != has {
                self.peers[at].knows_device = has;
                self.say_to(at, &Message::Device(state), now);
            }
        }
        self.peers.iter_mut().for_each(|peer| peer.is_changed = true);
    }

    pub(super) fn look_for_device(&mut self, now: Duration) {
        let found = (self.open)().and_then(|port| {
            let gid = port.gid();
            let taken = match &mut self.links {
                Some(links) => links.find(port),
                None => {
                    let (limit, tell) = (self.memory_limit, self.outcomes.0.clone());
                    let links = Links::new(port, limit, tell, Arc::clone(&self.shared));
                    links.map(|links| self.links = Some(links))
                }
            };
            taken.map(|()| gid).map_err(|refused| refused.to_string())
        });
        match found {
            Ok(gid) => {
                info!("link groups go over {} ({gid})", self.wanted);
                (self.device_lacks, self.device_at) = (None, now + LOOK_AT);
                self.tell_of_device(now);
            }
            Err(why) => {
                if self.device_lacks.as_ref() != Some(&why) {
                    warn!("connections to other hosts stay on TCP: {why}");
                }
                self.device_lacks = Some(why);
                let wait = SOON.saturating_mul(1 << self.device_tries.min(5)).min(LATE);
                self.device_tries += 1;
                self.device_at = now + wait;
            }
        }
    }
}
