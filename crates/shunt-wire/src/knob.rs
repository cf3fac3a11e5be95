//! Every `SHUNT_*` variable, in one table that also generates the docs.

/// One environment variable that changes how Shunt behaves.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name of the variable.
    pub env: &'static str,
    /// The option of `shunt run` that sets it, if there is one.
    pub option: Option<&'static str>,
    /// Value when unset, as a person would write it.
    pub default: &'static str,
    /// What it does, with units.
    pub doc: &'static str,
}

macro_rules! knobs {
    ($($ident:ident: $env:literal, $option:expr, $default:literal, $doc:literal;)+) => {
        $(#[doc = $doc] pub const $ident: Knob =
            Knob { env: $env, option: $option, default: $default, doc: $doc };)+
        /// All knobs.
        pub const ALL: &[Knob] = &[$($ident,)+];
    };
}

knobs! {
    LIB: "SHUNT_LIB", None, "beside the `shunt` executable",
        "Path of libshunt.so that `shunt run` preloads.";
    RUN_DIR: "SHUNT_RUN_DIR", None, "/run/shunt-root (root), $XDG_RUNTIME_DIR/shunt, or /tmp/shunt-UID",
        "Directory of the agent's socket. It must belong to the user and be closed to others, or be that of an agent for the host (`shunt agent --host`).";
    SPIN: "SHUNT_SPIN", Some("--spin"), "auto",
        "How long a waiting call spins before it sleeps: `auto` (learnt from what paid), `never`, or a number of microseconds.";
    DMB: "SHUNT_DMB", Some("--dmb"), "attach",
        "How bytes reach the peer's memory: `attach` (written straight into its RMB) or `copy` (through an own sndbuf that the device moves).";
    RUN_ID: "SHUNT_RUN_ID", None, "unset",
        "Number of the `shunt run` that a program belongs to; set by `shunt run` so that totals can be told apart.";
    RUN_PAGE: "SHUNT_RUN_PAGE", Some("--summary"), "unset",
        "Path of the page on which programs add up the counters of their run; set by `shunt run --summary`.";
    DISABLE: "SHUNT_DISABLE", None, "unset",
        "When set to anything but 0 or the empty string, the library leaves every connection on kernel TCP.";
    CORE: "SHUNT_CORE", None, "unset",
        "When set to anything but 0 or the empty string, core dumps of a program hold the memory that it shares with its peers and with the agent, with the bytes that lie there: to debug Shunt. Such dumps are large.";
    METRICS: "SHUNT_METRICS", None, "unset",
        "Address at which an agent serves metrics, also one that `shunt run` starts: as in `shunt agent --metrics`, for which see metrics.md.";
    IVSHMEM: "SHUNT_IVSHMEM", None, "unset",
        "The ivshmem device through which an agent shares memory with other machines, also one that `shunt run` starts: as in `shunt agent --ivshmem`, for which see ivshmem.md.";
    VECTORS: "SHUNT_VECTORS", None, "min(cores, 8)",
        "Completion vectors of a process: epoll instances share them out among themselves.";
    CONNS_PER_LG: "SHUNT_CONNS_PER_LG", None, "255",
        "Connections in one link group before another is opened (1 to 255).";
    AGENT_TIMEOUT: "SHUNT_AGENT_TIMEOUT", None, "500",
        "Milliseconds for which a program waits for an answer of the agent, once; then its new connections stay on TCP, and the agent is tried again after a while. Tools wait as long, but two seconds at least.";
    GRANT_TIMEOUT: "SHUNT_GRANT_TIMEOUT", None, "1000",
        "Milliseconds for which bytes that were granted (`MSG_ZEROCOPY` from registered memory) may lie unread before they are taken back by copying.";
    PIN: "SHUNT_PIN", None, "auto",
        "Which private memory is pinned for the receiver to copy from, when it is sent with `MSG_ZEROCOPY`, instead of being copied to the ring: `auto` (calls of 64 KiB or more, where that was measured to take less processor time), `never`, or a number of bytes from which on calls are, measured or not.";
    IDLE: "SHUNT_IDLE", None, "500",
        "Milliseconds for which a ring is left alone before its memory, beyond what small messages need, goes back to the system; at most twice as long. 0: whenever it is found empty, to test Shunt. `never`: it stays until the link group goes.";
    SHORT_LIVED: "SHUNT_SHORT_LIVED", None, "16",
        "How many connections a second to one address in another container, or of another user, may prove too short to be worth the agent's time; while there are more, new ones stay on TCP (`short-lived`). The same holds for who accepts them. `all`: each is shunted.";
}

/// True when the value of a switch-like variable means "on".
#[must_use]
pub fn is_on(value: &[u8]) -> bool {
    !matches!(value, b"" | b"0")
}
