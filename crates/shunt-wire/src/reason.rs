//! Why a connection is not (or no longer) shunted. Each reason is listed once, here.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $text:literal;)+) => {
        /// Why a connection stays on, or went back to, kernel TCP.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name = $code,)+
        }

        impl Reason {
            /// Every reason, in order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The stable name that tools print.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// One sentence for people: what happened and what to do.
            #[must_use]
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }

            /// The reason with this code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

reasons! {
    /// The other end is not on this host.
    Remote = 1, "remote";
    /// No listener at that address runs under Shunt: start the server with `shunt run` too.
    PeerNotShunted = 2, "peer-not-shunted";
    /// The agent could not be reached: start it with `shunt agent`, or look at `shunt doctor`.
    NoAgent = 3, "no-agent";
    /// Library and agent are of different versions: restart the older one.
    VersionMismatch = 4, "version-mismatch";
    /// The listener belongs to another user.
    OtherUser = 5, "other-user";
    /// The listener is in another network namespace.
    OtherNamespace = 6, "other-namespace";
    /// The listener's table of open proposals is full.
    TableFull = 7, "table-full";
    /// This process tracks as many connections as it can.
    TooManyConnections = 8, "too-many-connections";
    /// Shared memory or a file descriptor could not be had: memory, RLIMIT_NOFILE or RLIMIT_AS is exhausted.
    NoResources = 9, "no-resources";
    /// The acceptor never took the proposal up: it does not run under Shunt, or took too long.
    NotAccepted = 10, "not-accepted";
    /// No proposal was found for an accepted connection: the client does not run under Shunt.
    NoProposal = 11, "no-proposal";
    /// The peer wrote something into shared memory that the protocol does not allow.
    ProtocolViolation = 12, "protocol-violation";
    /// The program that made the proposal is gone.
    PeerGone = 13, "peer-gone";
    /// The program asked for something on the socket that only the kernel can do (out-of-band data, times of sending, signals by O_ASYNC, SO_PEEK_OFF, kernel TLS, TCP repair).
    Unsupported = 14, "unsupported";
    /// The socket is handed to a program that may not run under Shunt (exec, SCM_RIGHTS), or used
    /// by libc past the library (stdio and its descriptors 0 to 2, asynchronous I/O).
    HandedOver = 15, "handed-over";
    /// Shunt was switched off by `SHUNT_DISABLE`.
    Disabled = 16, "disabled";
    /// The connection ended before it was promoted; or those to the same address a moment ago were too short to be worth the agent's time.
    ShortLived = 17, "short-lived";
    /// A fault in Shunt itself was contained. The connection went back to TCP, or was reset where bytes were in doubt: please report it.
    Internal = 18, "internal";
    /// The connection is open and its proposal is not yet taken up.
    Pending = 19, "pending";
    /// Another process of another user, or a limit of the agent, made it refuse the request.
    Refused = 20, "refused";
    /// The other end may be of another user or in another network namespace, and the agent cannot mark connections, for which it needs root and Linux 5.10: see what it said when it started.
    Unmarked = 21, "unmarked";
    /// The agent's policy does not let these two programs be shunted with each other.
    Denied = 22, "denied";
    /// The program may make calls that Shunt does not see (io_uring, a library loaded by `dlmopen` or with `RTLD_DEEPBIND`), or forbids itself system calls (seccomp): all of it is on TCP from then on.
    Bypassed = 23, "bypassed";
}

/// Room for one counter per reason code (code 0 is unused).
pub const REASON_SLOTS: usize = 32;

const _: () = assert!(Reason::ALL.len() < REASON_SLOTS);
