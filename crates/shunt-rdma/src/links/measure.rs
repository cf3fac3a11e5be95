//! What links do to be measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use shunt_far::link::{Load, NotOpened, SCRATCH};
use shunt_peer::message::Refusal;
use shunt_verbs::port::Port;
use shunt_verbs::value::Remote;

use super::{Links, Name, Outcome, refusal};
use crate::shared::Shared;

/// Connections that had nothing to say for so long are at rest.
const REST: Duration = Duration::from_secs(1);

/// Tells whether all links are at rest, when the last worker is through with it.
struct Look {
    name: Name,
    is_busy: AtomicBool,
    tell: Sender<Outcome>,
    shared: Arc<Shared>,
}

impl Drop for Look {
    fn drop(&mut self) {
        let is_at_rest = !self.is_busy.load(Ordering::Relaxed);
        let _ = self.tell.send(Outcome::Looked(self.name, is_at_rest));
        self.shared.wake();
    }
}

impl<P: Port + Clone + Send + 'static> Links<P> {
    /// Looks whether the device's links are at rest, as one of them is to be measured.
    pub(crate) fn look(&self, name: Name) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        let look = Arc::new(Look { name, is_busy: AtomicBool::new(false), tell, shared });
        for worker in &self.workers {
            let look = Arc::clone(&look);
            worker.hand(move |worker, now| {
                if worker.links().any(|(_, link)| !link.is_quiet(REST, now)) {
                    look.is_busy.store(true, Ordering::Relaxed);
                }
            });
        }
    }

    /// Has memory that the peer may write to measure, registered once for each link.
    pub(crate) fn scratch(&mut self, name: Name) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        let is_new = self.scratches.insert(name);
        let is_too_much = is_new && self.limit.is_some_and(|limit| self.registered() > limit);
        let refused = match &self.port {
            None => Err(Refusal::Device),
            Some(_) if is_too_much => Err(Refusal::Memory),
            Some(port) => Ok(port.clone()),
        };
        match refused {
            Ok(port) => self.with_link(name, move |link, _| {
                let scratch = link.scratch(&port).map_err(|why| match why {
                    NotOpened::Memory(refused) => refusal(&refused),
                    NotOpened::Place | NotOpened::Link(_) => Refusal::Failed,
                });
                let _ = tell.send(Outcome::Scratched(name, scratch));
                shared.wake();
            }),
            Err(why) => {
                self.scratches.remove(&name);
                let _ = tell.send(Outcome::Scratched(name, Err(why)));
                shared.wake();
            }
        }
    }

    /// Bytes that are registered to measure.
    pub(super) fn scratched(&self) -> u64 {
        self.scratches.len() as u64 * SCRATCH as u64
    }

    /// Measures a load, into the peer's memory. A link that is in use is left alone.
    pub(crate) fn load(&self, name: Name, load: Load, far: Remote) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        self.with_link(name, move |link, now| {
            if !link.is_quiet(REST, now) || link.measure(load, far, now).is_err() {
                let _ = tell.send(Outcome::NotLoaded(name));
                shared.wake();
            }
        });
    }
}
