//! Counters that `shunt stats` and `--summary` print. Their names are stable.

use crate::metric::description::{Kind, Metric, Unit};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal $(($stem:literal in $unit:ident))?;)+) => {
        /// A process-wide total.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])+ $name,)+ }

        impl Counter {
            /// Every counter, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The stable name that tools print.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What it counts.
            #[must_use]
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }

            /// What an agent exposes it as.
            #[must_use]
            pub const fn metric(self) -> Metric {
                match self {
                    $(Self::$name => metric!(self.explain(), $text $(, $stem, $unit)?),)+
                }
            }
        }
    };
}

/// A metric has the counter's name, but where that holds a unit: metrics have theirs at the end.
macro_rules! metric {
    ($help:expr, $text:literal) => {
        Metric { stem: $text, unit: None, kind: Kind::Counter, labels: &[], help: $help }
    };
    ($help:expr, $text:literal, $stem:literal, $unit:ident) => {
        Metric {
            stem: $stem,
            unit: Some(Unit::$unit),
            kind: Kind::Counter,
            labels: &[],
            help: $help,
        }
    };
}

counters! {
    /// TCP connections made or accepted under Shunt.
    Connections = "connections";
    /// Connection ends that were promoted to shared memory.
    Shunted = "connections_shunted";
    /// Connection ends that were promoted in attach mode (the sender writes into the receiver's RMB).
    ShuntedAttach = "connections_shunted_attach";
    /// Connection ends that were promoted in copy mode (the device moves the bytes).
    ShuntedCopy = "connections_shunted_copy";
    /// Connection ends that went back from shared memory to TCP.
    Demoted = "connections_demoted";
    /// Times a direction went from TCP into shared memory: once per end that sends, and again
    /// whenever it comes back from TCP.
    Promotions = "promotions";
    /// Bytes sent through shared memory.
    BytesSent = "bytes_sent" ("sent" in Bytes);
    /// Bytes received through shared memory.
    BytesReceived = "bytes_received" ("received" in Bytes);
    /// Calls that sent bytes through shared memory.
    MessagesSent = "messages_sent";
    /// Calls that received bytes through shared memory.
    MessagesReceived = "messages_received";
    /// Wake-ups that cost a system call (eventfd or futex).
    DoorbellsRung = "doorbells_rung";
    /// Wake-ups that were not needed because the reader was awake or already told.
    DoorbellsSaved = "doorbells_saved";
    /// Times a sender found the ring full.
    RingFullWaits = "ring_full_waits";
    /// Spins that ended with work.
    SpinsPaid = "spins_paid";
    /// Spins that ended in sleep.
    SpinsUnpaid = "spins_unpaid";
    /// Sleeps on a futex.
    FutexSleeps = "futex_sleeps";
    /// Sleeps in the kernel's poll or epoll.
    KernelSleeps = "kernel_sleeps";
    /// Violations of the protocol by a peer.
    Violations = "protocol_violations";
    /// Calls with MSG_ZEROCOPY that sent something.
    ZerocopySent = "tx_zerocopy_sent";
    /// Calls with MSG_ZEROCOPY that were completed without a copy on the sender's side.
    ZerocopySuccess = "tx_zerocopy_success";
    /// Calls with MSG_ZEROCOPY that were completed with a copy.
    ZerocopyFail = "tx_zerocopy_fail";
    /// Buffers that were copied because too many grants were open.
    GrantOverflows = "tx_frag_overflow";
    /// Times that a connection's grants were taken back by copying: nobody read them in time, or an end came.
    GrantsTakenBack = "grants_taken_back";
    /// The same, because nobody had read them within SHUNT_GRANT_TIMEOUT.
    GrantsTimedOut = "grants_timed_out";
    /// Registered memory of peers that was offered to a connection and mapped already.
    ImportHits = "rx_map_hits";
    /// Registered memory of peers that had to be mapped.
    ImportMisses = "rx_map_misses";
    /// Maps of peers' memory that made room for another one.
    ImportsReplaced = "rx_maps_replaced";
    /// Bytes that were granted.
    BytesGranted = "bytes_granted" ("granted" in Bytes);
    /// Bytes that were pinned in pipes, for the receiver to copy.
    BytesPinned = "bytes_pinned" ("pinned" in Bytes);
    /// Connections whose bytes that lay unread in shared memory went along with an exec, or a spawn, to the new program.
    UnreadPassed = "unread_passed";
    /// Connections whose unread bytes did not go along with an exec: the new program does not run under Shunt, or there was no room. The peer sends them once more, if it has not ended.
    UnreadLeft = "unread_left";
    /// Faults inside Shunt that were contained: the call went to the kernel. Please report them.
    Contained = "contained_faults";
    /// Variables `SHUNT_*` of programs that talk to an agent, whose values mean nothing: the defaults hold. `shunt run` and `shunt doctor` name them.
    WrongVariables = "wrong_variables";
    /// Times a thread went to the processor of those who wake it.
    ThreadsPlaced = "threads_placed";
    /// Programs that a program of a `shunt run --summary` started as another user: that summary does not count them.
    Uncounted = "programs_uncounted";
}

/// Room for counters in shared memory; the layout's, so it only grows with the version.
pub const COUNTER_SLOTS: usize = 40;

const _: () = assert!(Counter::ALL.len() <= COUNTER_SLOTS);
