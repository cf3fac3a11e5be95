//! Why a connection is not (or no longer) shunted. Each reason is listed once, here.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $text:literal, $fix:literal;)+) => {
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

            /// One sentence for people: what happened.
            #[must_use]
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }

            /// The same: what to do about it.
            #[must_use]
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$name => $fix,)+ }
            }

            /// The reason of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.name() == name)
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
    /// The other end is not on this host, or the two ends name the connection differently (NAT, a published port, another local address).
    Remote = 1, "remote",
        "To another host: nothing, Shunt is for connections within one. On one host, connect to the address at which the server listens, or to loopback at both ends; an agent for the host (`shunt agent --host`) knows rewritten addresses, too. Between virtual machines of one host there is `shunt agent --ivshmem`.";
    /// No listener at that address runs under Shunt.
    PeerNotShunted = 2, "peer-not-shunted",
        "Start the server under Shunt too (`shunt run`, or `shunt enable` for a service), with the agent that the client asks: between users that is the host's (`shunt agent --host`). Connections that are made afterwards are shunted.";
    /// The agent could not be reached.
    NoAgent = 3, "no-agent",
        "Start the agent (`shunt agent`, or `systemctl start shunt-host`). The program finds it at its next connect, listen or accept; `shunt doctor --pid PID` says where it looks.";
    /// Library and agent speak different versions of the protocol.
    VersionMismatch = 4, "version-mismatch",
        "Restart what runs with the older version: the programs, or the agent.";
    /// The listener belongs to another user.
    OtherUser = 5, "other-user",
        "Run both programs as one user, or have an agent for the host, which shunts between users: `shunt agent --host` as root, and both programs with SHUNT_RUN_DIR=/run/shunt.";
    /// The listener is in another network namespace.
    OtherNamespace = 6, "other-namespace",
        "Have an agent for the host, which shunts between its networks: `shunt agent --host` as root, and both programs with SHUNT_RUN_DIR=/run/shunt; or run both programs in one network namespace.";
    /// The listener's table of open proposals is full.
    TableFull = 7, "table-full",
        "Nothing for one connection, the next ones find room. If it goes on, the server accepts too slowly: give it more workers.";
    /// This process tracks as many connections as it can.
    TooManyConnections = 8, "too-many-connections",
        "Spread the connections over more processes: one tracks 65,536.";
    /// Shared memory or a file descriptor could not be had: memory, RLIMIT_NOFILE or RLIMIT_AS is exhausted.
    NoResources = 9, "no-resources",
        "Raise what is exhausted: `ulimit -n` (128 at the least), `ulimit -v`, or the memory of the control group. Connections that are made afterwards are shunted.";
    /// The acceptor never took the proposal up: it does not run under Shunt, keeps to TCP for a reason of its own, or took too long.
    NotAccepted = 10, "not-accepted",
        "Restart the server under Shunt. If it runs so, `shunt explain PORT` tells what its end says, or why it accepts so late. A program that only listens under Shunt and leaves accepting to others is no server under Shunt.";
    /// No proposal was found for an accepted connection: the client does not run under Shunt, asks another agent, or keeps to TCP for a reason of its own.
    NoProposal = 11, "no-proposal",
        "Start the client under Shunt too (`shunt run`, or `shunt enable` for a service), with the agent that the server asks: between users that is the host's (`shunt agent --host`). If it runs so, `shunt explain PORT` tells what its end says.";
    /// The peer wrote something into shared memory that the protocol does not allow.
    ProtocolViolation = 12, "protocol-violation",
        "Restart the peer: it runs with a damaged library, or is hostile. If it is neither, report it.";
    /// The program that made the proposal is gone; or the other host's agent, or its network.
    PeerGone = 13, "peer-gone",
        "See why the client has ended; between hosts, why the other agent has, whose log says more. Nothing is wrong with Shunt here.";
    /// The program asked for something on the socket that only the kernel can do (out-of-band data, times of sending, signals by O_ASYNC, SO_PEEK_OFF, kernel TLS, TCP repair).
    Unsupported = 14, "unsupported",
        "Have the program go without what it asks for on the socket, or leave it on TCP.";
    /// The socket is handed to a program that may not run under Shunt (exec, SCM_RIGHTS), or used
    /// by libc past the library (stdio and its descriptors 0 to 2, asynchronous I/O).
    HandedOver = 15, "handed-over",
        "Run the program that gets the socket under Shunt, where it is not. Descriptors 0 to 2, and those of stdio, stay on TCP.";
    /// Shunt was switched off by `SHUNT_DISABLE`.
    Disabled = 16, "disabled",
        "Unset SHUNT_DISABLE and restart the program.";
    /// The connection ended before it was promoted; or those to the same address a moment ago were too short to be worth the agent's time.
    ShortLived = 17, "short-lived",
        "Nothing, as a rule: so short a connection gains nothing. Keeping connections open (keep-alive, a pool) makes them fast. SHUNT_SHORT_LIVED sets what counts as short.";
    /// A fault in Shunt itself was contained. The connection went back to TCP, or was reset where bytes were in doubt.
    Internal = 18, "internal",
        "Please report it, with what the program did. A restart of the program brings its connections back.";
    /// The connection is open and its proposal is not yet taken up.
    Pending = 19, "pending",
        "Nothing: wait until both programs have used the connection. If that goes on, the server has not accepted it, or leaves it to a program that does not run under Shunt.";
    /// The agent refused the request: a limit of its own is reached, or another user has a part in it.
    Refused = 20, "refused",
        "Look at the agent's log, which names the limit.";
    /// The other end may be of another user or in another network namespace, and the agent cannot mark connections.
    Unmarked = 21, "unmarked",
        "Run the agent for the host as root, on Linux 5.10 or later, with cgroup v2. Its log says what was missing when it started.";
    /// The agent's policy does not let these two programs be shunted with each other.
    Denied = 22, "denied",
        "Change the agent's policy, if these programs are to be shunted.";
    /// The program may make calls that Shunt does not see (io_uring, a library loaded by `dlmopen`, or with `RTLD_DEEPBIND` in a way that cannot be followed), or forbids itself system calls (seccomp): all of it is on TCP from then on.
    Bypassed = 23, "bypassed",
        "Have the program go without io_uring (many have a switch), the library, or its seccomp filter; or leave it on TCP.";
    /// The policy names the server as one with the kernel's SMC-R, and its answer to the connection's SYN does not speak it.
    SmcUnspoken = 24, "smc-unspoken",
        "On the server's host, load the module `smc` and have the server use `AF_SMC` (`smc_run`); or take it out of `[smc]` in the policy. A firewall between both may remove TCP options.";
    /// The policy names the server as one with the kernel's SMC-R, and it, or something on the way, sends back TCP options that it does not know.
    SmcEchoed = 25, "smc-echoed",
        "Take the server out of `[smc]` in the policy: it does not speak SMC-R.";
    /// The server speaks the kernel's SMC-R, and has no EID in common with this host, or no RDMA device for this connection.
    SmcNoGroup = 26, "smc-no-group",
        "Compare `[smc] eid` in the policy with `smcr ueid show` on the server's host, and look at `rdma link` and `smc_pnet` there.";
    /// The server speaks the kernel's SMC-R, and it or this host's agent has declined it for this connection.
    SmcDeclined = 27, "smc-declined",
        "Look at the row of the server in `shunt machines`, which says why, and at the agent's log.";
    /// The server speaks the kernel's SMC-R, and ended, or said nothing, in the middle of the agreement: the connection is lost.
    SmcFailed = 28, "smc-failed",
        "Look at the row of the server in `shunt machines`, which says why, and at `dmesg` on the server's host. Take the server out of `[smc]` in the policy, if that goes on.";
    /// The connection went by the kernel's SMC-R, which has no way back to TCP, and its program needed one (exec or a descriptor passed to a program without Shunt, io_uring, stdio, splice): it was reset.
    SmcNoWayBack = 29, "smc-no-way-back",
        "Run the program that gets the socket under Shunt, and have it go without what needs TCP; or take the server out of `[smc]` in the policy.";
    /// The connection went by the kernel's SMC-R, which has no way back to TCP, and was reset: the link ended, the server's program aborted it, or urgent data came.
    SmcReset = 30, "smc-reset",
        "Look at the row of the server in `shunt machines`, which says why.";
}

/// Room for one counter per reason code (code 0 is unused).
pub const REASON_SLOTS: usize = 32;

const _: () = assert!(Reason::ALL.len() < REASON_SLOTS);
