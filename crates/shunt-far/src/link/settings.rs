//! What a link is made with.

use core::ops::Range;
use core::time::Duration;

use shunt_verbs::Memory;
use shunt_verbs::value::Capacity;

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

    /// Requests that a queue pair has room for.
    pub(super) const fn capacity(self) -> Capacity {
        let messages = self.messages as u32;
        Capacity { send: messages * REQUESTS, receive: messages, pieces: 1 }
    }

    /// Bytes that a link registers for its messages; rings come on top.
    #[must_use]
    pub const fn registered(self) -> usize {
        2 * self.messages as usize * BUFFER
    }

    /// Completions of a link that may be in its queue at once.
    #[must_use]
    pub const fn completions(self) -> u32 {
        let Capacity { send, receive, .. } = self.capacity();
        send + receive
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
