//! Readiness and what epoll reports of it. Bits are those of poll(2) and epoll(7).

/// Data to read, or end of file.
pub const IN: u32 = 0x001;
/// Urgent data.
pub const PRI: u32 = 0x002;
/// Room to write.
pub const OUT: u32 = 0x004;
/// Error.
pub const ERR: u32 = 0x008;
/// Both directions are shut.
pub const HUP: u32 = 0x010;
/// poll(2) alone: no such descriptor.
pub const NVAL: u32 = 0x020;
/// The same as `IN` for sockets.
pub const RDNORM: u32 = 0x040;
/// The same as `OUT` for sockets.
pub const WRNORM: u32 = 0x100;
/// The peer has shut its direction.
pub const RDHUP: u32 = 0x2000;
/// Wake one of several waiters.
pub const EXCLUSIVE: u32 = 1 << 28;
/// Disarm after one report.
pub const ONESHOT: u32 = 1 << 30;
/// Report changes, not states.
pub const ET: u32 = 1 << 31;

/// What the kernel says of the end of a connection, or of the peer's direction. Not [`ERR`], which an error queue that is not
/// empty sets, too.
pub const END: u32 = RDHUP | HUP;
/// Bits that are reported whether asked for or not.
pub const ALWAYS: u32 = ERR | HUP;
/// Bits of the interest that are not events.
pub const MODES: u32 = ET | ONESHOT | EXCLUSIVE | (1 << 29);

/// What the ring contributes to a connection's readiness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// The receiving direction is in the ring, with so many readable bytes.
    pub readable: Option<u64>,
    /// The sending direction is in the ring, with so many free bytes of so many.
    pub writable: Option<(u64, u64)>,
}

/// Readiness of a connection from what its rings and its kernel socket say. `kernel` is poll(2)'s
/// answer about the socket, 0 when there was no need to ask; `low_water` is `SO_RCVLOWAT`.
#[inline]
#[must_use]
pub const fn readiness(ring: Ring, kernel: u32, low_water: u64) -> u32 {
    let mut ready = kernel;
    if let Some((free, cap)) = ring.writable {
        // The kernel socket is silent in this direction and so always has room.
        ready &= !(OUT | WRNORM);
        // A third free, as sk_stream_is_writeable asks for.
        if free * 3 >= cap || kernel & (ERR | HUP) != 0 {
            ready |= OUT | WRNORM;
        }
    }
    if let Some(bytes) = ring.readable
        && bytes > 0
        && bytes >= low_water
    {
        ready |= IN | RDNORM;
    }
    ready
}

/// What to do with one watched connection whose readiness was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Events for the program; 0: nothing to report.
    pub events: u32,
    /// Keep it in the ready list: the next wait looks at it again.
    pub keep: bool,
    /// Interest from now on.
    pub interest: u32,
}

/// Applies an interest (level, edge, one-shot) to a readiness.
#[inline]
#[must_use]
pub const fn report(interest: u32, ready: u32) -> Report {
    let wanted = interest & !MODES;
    if wanted == 0 {
        // A one-shot that has fired: not even errors are reported until it is armed again.
        return Report { events: 0, keep: false, interest };
    }
    let events = ready & (wanted | ALWAYS);
    if events == 0 {
        return Report { events: 0, keep: false, interest };
    }
    if interest & ONESHOT != 0 {
        return Report { events, keep: false, interest: interest & MODES };
    }
    Report { events, keep: interest & ET == 0, interest }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Ring = Ring { readable: Some(10), writable: Some((100, 100)) };

    #[test]
    fn rings_speak_for_their_directions() {
        assert_eq!(readiness(RING, 0, 1), IN | RDNORM | OUT | WRNORM);
        assert_eq!(readiness(RING, 0, 11), OUT | WRNORM);
        let full = Ring { readable: Some(0), writable: Some((10, 100)) };
        assert_eq!(readiness(full, OUT | WRNORM, 1), 0);
        assert_eq!(readiness(full, IN | RDHUP, 1), IN | RDHUP);
        assert_eq!(readiness(Ring::default(), IN | OUT, 1), IN | OUT);
    }

    #[test]
    fn level_edge_and_one_shot() {
        let level = report(IN, IN | OUT);
        assert_eq!((level.events, level.keep), (IN, true));
        let edge = report(IN | OUT | ET, IN | OUT);
        assert_eq!((edge.events, edge.keep), (IN | OUT, false));
        let once = report(IN | ONESHOT, IN);
        assert_eq!((once.events, once.keep), (IN, false));
        assert_eq!(report(once.interest, IN | HUP).events, 0);
        assert_eq!(report(IN, HUP).events, HUP);
        assert_eq!(report(IN, OUT).events, 0);
    }
}
