//! What a link to a kernel is made with.

use shunt_smc::link;
use shunt_smc::wire::{LINK_MESSAGE, LONGEST_LINK_MESSAGE};

use crate::device::Sizes;

/// Requests that a message takes at most: three writes, as rings of two lengths wrap around at two places, and a send.
const REQUESTS: u32 = 4;

/// Sizes and times of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Messages of this end that may be on their way.
    pub sends: u16,
    /// Receive requests: more than the kernel has messages on their way, of which there are 16 (`smc_wr.h`: `SMC_WR_BUF_CNT`).
    pub receives: u16,
    /// Most bytes of a connection between two messages, so that one does not hold up the others.
    pub burst: u32,
    /// How patient it is.
    pub patience: link::Settings,
}

impl Default for Settings {
    /// As many messages as the kernel has, and its times.
    fn default() -> Self {
        let patience = link::Settings::default();
        Self { sends: 16, receives: 48, burst: 128 * 1024, patience }
    }
}

impl Settings {
    pub(super) const fn sizes(self) -> Sizes {
        let sends = (self.sends, LINK_MESSAGE);
        let receives = (self.receives, LONGEST_LINK_MESSAGE);
        Sizes { sends, receives, requests: REQUESTS }
    }

    /// True while so many messages, and requests of these, leave room for one more.
    pub(super) fn have_room(self, (messages, requests): (usize, u32)) -> bool {
        let room = self.sizes().capacity().send;
        messages < usize::from(self.sends) && requests + REQUESTS <= room
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
