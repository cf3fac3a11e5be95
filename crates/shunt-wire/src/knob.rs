//! Every `SHUNT_*` variable, in one table that also generates the docs.

use core::fmt;

/// A program that may have fewer descriptors than this keeps them all for itself: the library takes none, and its connections
/// stay on TCP.
pub const LEAST_DESCRIPTORS: u64 = 128;

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
    /// What its value may be.
    pub syntax: Syntax,
}

/// What the value of a variable may be. The empty string is as good as no variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syntax {
    /// A path, an address: whoever uses it judges it.
    Text,
    /// Yes or no, see [`switch`].
    Switch,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, or a number within these bounds.
    Number(&'static [&'static str], u64, u64),
}

macro_rules! knobs {
    ($($ident:ident: $env:literal, $option:expr, $default:literal, $syntax:expr, $doc:literal;)+) => {
        $(#[doc = $doc] pub const $ident: Knob =
            Knob { env: $env, option: $option, default: $default, doc: $doc, syntax: $syntax };)+
        /// All knobs.
        pub const ALL: &[Knob] = &[$($ident,)+];
    };
}

/// Bounds of numbers.
const U8: u64 = 255;
/// See [`U8`].
const U32: u64 = 4_294_967_295;

knobs! {
    LIB: "SHUNT_LIB", None, "beside the `shunt` executable", Syntax::Text,
        "Path of libshunt.so that `shunt run` preloads.";
    RUN_DIR: "SHUNT_RUN_DIR", None, "/run/shunt-root (root), $XDG_RUNTIME_DIR/shunt, or /tmp/shunt-UID", Syntax::Text,
        "Directory of the agent's socket. It must belong to the user and be closed to others, or be that of an agent for the host (`shunt agent --host`).";
    SPIN: "SHUNT_SPIN", Some("--spin"), "auto", Syntax::Number(&["auto", "never"], 0, U32),
        "How long a waiting call spins before it sleeps: `auto` (learnt from what paid), `never`, or a number of microseconds.";
    PLACE: "SHUNT_PLACE", None, "auto", Syntax::Words(&["auto", "never"]),
        "Whether a thread goes to the processor of those who wake it, where that is nearly always one other: `auto` (where the thread may run on all processors of the machine), or `never`.";
    DMB: "SHUNT_DMB", Some("--dmb"), "attach", Syntax::Words(&["attach", "copy"]),
        "How bytes reach the peer's memory: `attach` (written straight into its RMB) or `copy` (through an own sndbuf that the device moves).";
    RUN_ID: "SHUNT_RUN_ID", None, "unset", Syntax::Number(&[], 0, u64::MAX),
        "Number of the `shunt run` that a program belongs to; set by `shunt run` so that totals can be told apart.";
    RUN_PAGE: "SHUNT_RUN_PAGE", Some("--summary"), "unset", Syntax::Text,
        "Path of the page on which programs add up the counters of their run; set by `shunt run --summary`.";
    DISABLE: "SHUNT_DISABLE", None, "unset", Syntax::Switch,
        "When set to anything but `0`, `false`, `no`, `off` or the empty string, the library leaves every connection on kernel TCP.";
    CORE: "SHUNT_CORE", None, "unset", Syntax::Switch,
        "When set to `1`, `true`, `yes` or `on`, core dumps of a program hold the memory that it shares with its peers and with the agent, with the bytes that lie there: to debug Shunt. Such dumps are large.";
    METRICS: "SHUNT_METRICS", None, "unset", Syntax::Text,
        "Address at which an agent serves metrics, also one that `shunt run` starts: as in `shunt agent --metrics`, for which see metrics.md.";
    IVSHMEM: "SHUNT_IVSHMEM", None, "unset", Syntax::Text,
        "The ivshmem device through which an agent shares memory with other machines, also one that `shunt run` starts: as in `shunt agent --ivshmem`, for which see ivshmem.md.";
    VECTORS: "SHUNT_VECTORS", None, "63", Syntax::Number(&[], 1, U8),
        "Most completion vectors of a process, up to 63. Each epoll instance, and each thread that waits for several descriptors in poll, has one of its own while there are enough; further ones share them.";
    CONNS_PER_LG: "SHUNT_CONNS_PER_LG", None, "255", Syntax::Number(&[], 1, U8),
        "Connections in one link group before another is opened (1 to 255).";
    AGENT_TIMEOUT: "SHUNT_AGENT_TIMEOUT", None, "500", Syntax::Number(&[], 1, U32),
        "Milliseconds for which a program waits for an answer of the agent, once; then its new connections stay on TCP, and the agent is tried again after a while. Tools wait as long, but two seconds at least.";
    GRANT_TIMEOUT: "SHUNT_GRANT_TIMEOUT", None, "1000", Syntax::Number(&[], 0, U32),
        "Milliseconds for which bytes that were granted (`MSG_ZEROCOPY` from registered memory) may lie unread before they are taken back by copying.";
    PIN: "SHUNT_PIN", None, "auto", Syntax::Number(&["auto", "never"], 0, u64::MAX),
        "Which private memory is pinned for the receiver to copy from, when it is sent with `MSG_ZEROCOPY`, instead of being copied to the ring: `auto` (calls of 64 KiB or more, where that was measured to take less processor time), `never`, or a number of bytes from which on calls are, measured or not.";
    IDLE: "SHUNT_IDLE", None, "500", Syntax::Number(&["never"], 0, U32),
        "Milliseconds for which a ring is left alone before its memory, beyond what small messages need, goes back to the system; at most twice as long. 0: whenever it is found empty, to test Shunt. `never`: it stays until the link group goes.";
    SHORT_LIVED: "SHUNT_SHORT_LIVED", None, "16", Syntax::Number(&["all"], 1, U32),
        "How many connections a second to one address in another container, or of another user, may prove too short to be worth the agent's time; while there are more, new ones stay on TCP (`short-lived`). The same holds for who accepts them. `all`: each is shunted.";
}

/// The variable of this name.
#[must_use]
pub fn named(name: &[u8]) -> Option<&'static Knob> {
    ALL.iter().find(|knob| knob.env.as_bytes() == name)
}

impl Knob {
    /// True for a value that means something. Any other counts as no value, but that of [`DISABLE`]: see [`is_on`].
    #[must_use]
    pub fn accepts(&self, value: &[u8]) -> bool {
        value.is_empty() || self.syntax.accepts(value)
    }
}

impl Syntax {
    fn accepts(self, value: &[u8]) -> bool {
        let is_one_of = |words: &[&str]| words.iter().any(|word| word.as_bytes() == value);
        match self {
            Self::Text => true,
            Self::Switch => switch(value).is_some(),
            Self::Words(words) => is_one_of(words),
            Self::Number(words, least, most) => {
                let number = || core::str::from_utf8(value).ok()?.parse().ok();
                is_one_of(words) || number().is_some_and(|n: u64| (least..=most).contains(&n))
            }
        }
    }
}

/// What may stand there, as the end of a sentence.
impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, words: &[&str], last: &str| {
            for (i, word) in words.iter().enumerate() {
                let before = match i {
                    0 => "",
                    _ if i + 1 == words.len() => last,
                    _ => ", ",
                };
                write!(f, "{before}{word}")?;
            }
            Ok(())
        };
        match *self {
            Self::Text => f.write_str("text"),
            Self::Switch => f.write_str("1 or 0 (yes or no, true or false, on or off)"),
            Self::Words(words) => list(f, words, " or "),
            Self::Number(words, least, most) => {
                list(f, words, ", ")?;
                let or = if words.is_empty() { "" } else { " or " };
                match most {
                    u64::MAX | U32 => write!(f, "{or}a whole number from {least}"),
                    _ => write!(f, "{or}a whole number from {least} to {most}"),
                }
            }
        }
    }
}

/// What the value of a switch means; `None`: nothing.
#[must_use]
pub fn switch(value: &[u8]) -> Option<bool> {
    let is_one_of = |words: &[&str]| words.iter().any(|w| value.eq_ignore_ascii_case(w.as_bytes()));
    if is_one_of(&["", "0", "false", "no", "off"]) {
        Some(false)
    } else {
        is_one_of(&["1", "true", "yes", "on"]).then_some(true)
    }
}

/// True when the value of [`DISABLE`] means "on". So does one that means nothing: whoever sets it wants Shunt off.
#[must_use]
pub fn is_on(value: &[u8]) -> bool {
    switch(value).unwrap_or(true)
}
