//! What was decided about a connection or a listener, and is kept for a while for `shunt explain`. Each decision is listed once,
//! here.

macro_rules! decisions {
    ($(#[doc = $doc:literal] $name:ident = $code:literal, $text:literal;)+) => {
        /// A step of a handshake, or the end of one.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Decision {
            $(#[doc = $doc] $name = $code,)+
        }

        impl Decision {
            /// Every decision, in order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The stable name that tools print.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// One sentence for people.
            #[must_use]
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => $doc,)+ }
            }

            /// The decision with this code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

decisions! {
    /// The program listens, and its agent lets clients find it.
    Listening = 1, "listening";
    /// The program listens, and clients do not find it: its connections stay on TCP.
    Unregistered = 2, "unregistered";
    /// The program connected, and proposed to the listener's program to use shared memory.
    Proposed = 3, "proposed";
    /// The program connected, and asked the agent to find the other end, which may be of another user or network.
    Offered = 4, "offered";
    /// The program accepted the connection, and looks for the client's proposal.
    Accepted = 5, "accepted";
    /// Both ends agreed: each moves into shared memory with its next send.
    Promoted = 6, "promoted";
    /// The connection stays on TCP.
    Declined = 7, "declined";
    /// This end took the connection out of shared memory, back to TCP.
    Demoted = 8, "demoted";
    /// The other end took the connection out of shared memory, and this one followed.
    Followed = 9, "followed";
    /// The connection is broken: calls on it fail with ECONNRESET.
    Broken = 10, "broken";
    /// The last descriptor of this end was closed.
    Ended = 11, "ended";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_survive_the_arena() {
        for decision in Decision::ALL {
            assert_eq!(Decision::from_code(*decision as u8), Some(*decision));
            assert!(!decision.explain().is_empty() && !decision.name().contains(' '));
        }
        assert_eq!(Decision::from_code(0), None);
    }
}
