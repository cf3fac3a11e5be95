//! How long a link waits for the far side to acknowledge.

use core::time::Duration;

/// Nothing has been acknowledged, though something is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Since when nothing has shown that the link moves.
    since: Duration,
    has_asked: bool,
    /// Messages of the far side since, which acknowledged nothing.
    heard: u16,
}

impl Waiting {
    pub(super) const fn from(since: Duration) -> Self {
        Self { since, has_asked: false, heard: 0 }
    }

    /// When the far side is to be asked, or given up.
    pub(super) fn deadline(&self, silence: Duration) -> Duration {
        self.since + if self.has_asked { silence } else { silence / 2 }
    }

    /// The far side is asked now. False: it was before.
    pub(super) const fn ask(&mut self) -> bool {
        !core::mem::replace(&mut self.has_asked, true)
    }

    /// The device has sent a message.
    pub(super) const fn sent(&mut self, now: Duration) {
        self.since = now;
    }

    /// The far side has sent a message that acknowledges nothing. It may have posted it before it took one of this side; its queue has room for
    /// `most` of these.
    pub(super) const fn heard(&mut self, now: Duration, most: u16) {
        if self.heard < most {
            self.heard += 1;
            self.since = now;
        }
    }
}
