//! The handshake's course on each side (CLC: proposal, accept, decline), without its memory.

#[cfg(not(loom))]
pub mod brevity;
#[cfg(not(loom))]
pub mod course;
#[cfg(not(loom))]
pub mod proposals;
#[cfg(not(loom))]
pub mod slots;

use shunt_wire::reason::Reason;

/// Where a connection stands. Kept as a number in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// Kernel TCP for good; only listed.
    Tcp = 0,
    /// Client: proposed, not yet accepted. The server may move to the ring at any moment.
    Proposed = 1,
    /// Server: accepted by the program, no proposal looked for or found yet.
    Candidate = 2,
    /// Both sides have agreed: each sender moves to the ring when it next sends.
    Active = 3,
    /// The peer broke the protocol: every call answers `ECONNRESET`.
    Broken = 4,
}

impl Phase {
    /// From its number.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Proposed,
            2 => Self::Candidate,
            3 => Self::Active,
            4 => Self::Broken,
            _ => Self::Tcp,
        }
    }
}

/// How long after accept a server goes on looking for a proposal while clients are connecting, in
/// nanoseconds. A client that was stopped between its connect and its post may take that long.
pub const SERVER_PATIENCE: u64 = 10_000_000_000;
/// Shortest time between two looks of one who waits, in nanoseconds.
pub const SHORTEST_LOOK: u64 = 10_000_000;
/// Calls on a proposed connection before a client may take the proposal back.
pub const CLIENT_LOOKS: u32 = 256;
/// How long it waits at the least, in nanoseconds: servers accept late.
pub const CLIENT_PATIENCE: u64 = 10_000_000_000;

/// From this age on a connection whose peer has sent something was not too short to be promoted, in nanoseconds.
pub const LASTING: u64 = 1_000_000_000;

/// Why a connection that ends at this age, in nanoseconds, was never promoted; `None` for one that was, or of which that was counted
/// before.
#[must_use]
pub fn why_unpromoted(
    phase: Phase,
    age: u64,
    has_received: impl FnOnce() -> bool,
) -> Option<Reason> {
    let lasting = match phase {
        // The peer uses the connection, and has answered nothing: it is no program that takes proposals up.
        Phase::Proposed => Reason::NotAccepted,
        Phase::Candidate => Reason::NoProposal,
        Phase::Tcp | Phase::Active | Phase::Broken => return None,
    };
    let has_lasted = age >= LASTING && has_received();
    Some(if has_lasted { lasting } else { Reason::ShortLived })
}

/// What a server does after a look that found no proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// Look again at the next call on the socket.
    LookAgain,
    /// Stay on TCP.
    Decline(Reason),
}

/// `age`: nanoseconds since accept; `connecting`: some client was between its connect and its post,
/// before the look.
#[must_use]
pub const fn missed(age: u64, connecting: bool) -> Missed {
    if connecting && age < SERVER_PATIENCE {
        Missed::LookAgain
    } else {
        Missed::Decline(Reason::NoProposal)
    }
}

/// When one who waits on an accepted connection of this age looks again, in nanoseconds from now, if at all:
/// another thread may have found the proposal meanwhile. The older, the more seldom, so that very many
/// who wait cost little; none waits much longer than it has waited already.
#[must_use]
pub const fn next_look(age: u64) -> Option<u64> {
    let pause = age / 4;
    match age {
        SERVER_PATIENCE.. => None,
        _ if pause < SHORTEST_LOOK => Some(SHORTEST_LOOK),
        _ => Some(pause),
    }
}

/// Whether a client whose proposal is open after `looks` calls and `age` nanoseconds takes it back.
#[must_use]
pub const fn gives_up(looks: u32, age: u64) -> bool {
    looks >= CLIENT_LOOKS && age >= CLIENT_PATIENCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_looks_again_only_while_somebody_connects() {
        assert_eq!(missed(0, true), Missed::LookAgain);
        assert_eq!(missed(0, false), Missed::Decline(Reason::NoProposal));
        assert_eq!(missed(SERVER_PATIENCE, true), Missed::Decline(Reason::NoProposal));
    }

    #[test]
    fn who_waits_looks_ever_more_seldom() {
        let mut looks = Vec::new();
        let mut age = 0;
        while let Some(pause) = next_look(age) {
            looks.push(pause);
            age += pause;
        }
        assert!(looks.is_sorted());
        assert_eq!(looks.first(), Some(&SHORTEST_LOOK));
        assert!((10..50).contains(&looks.len()), "{looks:?}");
        assert!(age < SERVER_PATIENCE * 2);
    }

    #[test]
    fn what_was_used_for_a_while_was_not_too_short() {
        let why = |phase, age, received| why_unpromoted(phase, age, || received);
        for (phase, lasting) in
            [(Phase::Proposed, Reason::NotAccepted), (Phase::Candidate, Reason::NoProposal)]
        {
            assert_eq!(why(phase, LASTING, true), Some(lasting));
            assert_eq!(why(phase, LASTING, false), Some(Reason::ShortLived), "nobody has used it");
            assert_eq!(why(phase, LASTING - 1, true), Some(Reason::ShortLived));
        }
        for phase in [Phase::Tcp, Phase::Active, Phase::Broken] {
            assert_eq!(why(phase, LASTING, true), None);
        }
    }

    #[test]
    fn a_client_gives_up_after_many_calls_and_a_long_time() {
        assert!(!gives_up(CLIENT_LOOKS, 0));
        assert!(!gives_up(0, CLIENT_PATIENCE));
        assert!(gives_up(CLIENT_LOOKS, CLIENT_PATIENCE));
    }

    #[test]
    fn phases_survive_the_arena() {
        for p in [Phase::Tcp, Phase::Proposed, Phase::Candidate, Phase::Active, Phase::Broken] {
            assert_eq!(Phase::from_code(p as u32), p);
        }
    }
}
