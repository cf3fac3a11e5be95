//! A host's device: what it lets be registered, and what happens to it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::Refused;
use crate::value::{Event, Loss};

/// The number of each device's port.
const PORT: u8 = 1;

/// See the module.
#[derive(Debug)]
pub(super) struct Host {
    /// Bytes that may be registered, and those that are.
    limit: usize,
    registered: usize,
    events: VecDeque<Event>,
    ear: Arc<OwnedFd>,
    loss: Option<Loss>,
}

impl Host {
    #[allow(clippy::expect_used, reason = "a device for tests")]
    pub(super) fn new(limit: usize) -> Self {
        let ear = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ear = Arc::new(ear.expect("a descriptor"));
        Self { limit, registered: 0, events: VecDeque::new(), ear, loss: None }
    }

    /// Readable while there are events.
    pub(super) fn ear(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.ear)
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Refused> {
        if bytes > self.limit - self.registered {
            return Err(Refused::MemoryLimit(bytes));
        }
        self.registered += bytes;
        Ok(())
    }

    pub(super) const fn give_back(&mut self, bytes: usize) {
        self.registered -= bytes;
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        // Full: it is readable.
        let _ = rustix::io::write(&*self.ear, &1_u64.to_ne_bytes());
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if self.events.is_empty() {
            let mut count = [0; 8];
            // Nothing in it: it is not readable, as it has to be.
            let _ = rustix::io::read(&*self.ear, &mut count[..]);
        }
        event
    }

    /// From now on it is lost. Of a removal programs are not told.
    pub(super) fn lose(&mut self, loss: Loss) {
        self.loss = Some(loss);
        match loss {
            Loss::Removed => {}
            Loss::Failed => self.tell(Event::Device),
            Loss::PortDown => self.tell(Event::PortDown(PORT)),
            Loss::Address => self.tell(Event::Addresses(PORT)),
            Loss::Overrun => self.tell(Event::Queue),
        }
    }

    pub(super) const fn loss(&self) -> Option<Loss> {
        self.loss
    }

    pub(super) fn moves_packets(&self) -> bool {
        !matches!(self.loss, Some(Loss::Failed | Loss::PortDown))
    }
}
