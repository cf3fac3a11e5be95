//! What a link is made with.

use core::ops::Range;
use core::time::Duration;

use shunt_verbs::port::Port;
use shunt_verbs::{Memory, Refused};

use crate::device::{Registered, Sizes};

/// Bytes of a buffer for a message.
pub(super) const BUFFER: usize = 128;
/// Requests that a message takes at most: two writes and a send.
pub(super) const REQUESTS: u32 = 3;

/// Sizes and times of a link. Both sides have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Messages of one side that may be unacknowledged: at least 4.
    pub messages: u16,
    /// Most bytes of a connection between two messages, so that one does not hold up the others.
    pub burst: u32,
    /// How long messages may stay unacknowledged.
    pub silence: Duration,
}

impl Settings {
    /// What a link has if nothing else is said: failures show within a second.
    pub const DEFAULT: Self =
        Self { messages: 256, burst: 128 * 1024, silence: Duration::from_millis(800) };

    pub(super) const fn sizes(self) -> Sizes {
        let messages = (self.messages, BUFFER);
        Sizes { sends: messages, receives: messages, requests: REQUESTS }
    }

    /// Bytes that a link registers for its messages; rings come on top.
    #[must_use]
    pub const fn registered(self) -> usize {
        self.sizes().registered()
    }

    /// Completions of a link that may be in its queue at once.
    #[must_use]
    pub const fn completions(self) -> u32 {
        self.sizes().completions()
    }
}

impl Rings {
    /// Both, for a device to send from and to receive into.
    pub(super) fn register<P: Port>(&self, port: &P) -> Result<Registered<P>, Refused> {
        Registered::of(port, &self.memory, (&self.outgoing, &self.incoming))
    }
}

/// The memory of a connection's rings.
#[derive(Clone, Debug)]
pub struct Rings {
    /// Where both lie.
    pub memory: Memory,
    /// The one that the local program writes.
    pub outgoing: Range<usize>,
    /// The one that it reads, and the far side writes.
    pub incoming: Range<usize>,
}
