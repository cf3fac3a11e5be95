//! What plans may be made of.

use std::fmt;
use std::str::FromStr;

macro_rules! families {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal;)+) => {
        /// Things that programs do, besides connecting, sending, receiving and closing.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Family { $($(#[doc = $doc])+ $name,)+ }

        impl Family {
            /// Each of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What it is.
            #[must_use]
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

families! {
    /// Threads that are blocked while others do something.
    Block = "block";
    /// Descriptors that are closed, replaced or shut down while a thread is blocked in them, and their numbers used again.
    Reuse = "reuse";
    /// poll and select: of one descriptor, of several, of one in several entries.
    Poll = "poll";
    /// select with more descriptors than its sets have room for.
    Wide = "wide";
    /// epoll.
    Epoll = "epoll";
    /// MSG_PEEK.
    Peek = "peek";
    /// MSG_PEEK with MSG_WAITALL, and SO_PEEK_OFF.
    PeekMore = "peek-more";
    /// SO_RCVLOWAT.
    Lowat = "lowat";
    /// SIOCOUTQ, TCP_INQ, FIONREAD.
    Queues = "queues";
    /// Time-outs.
    Timeouts = "timeouts";
    /// SIGIO.
    Async = "async";
    /// Buffers that are full, in one direction or both.
    Full = "full";
    /// splice and sendfile.
    Splice = "splice";
    /// Signals, whose handlers make calls.
    Signals = "signals";
    /// fork, and what children inherit.
    Fork = "fork";
    /// Resets: SO_LINGER, and ends with bytes unread.
    Reset = "reset";
    /// Bytes for an end that receives no more, which resets the connection.
    Late = "late";
    /// Signal handlers that jump out of calls.
    Jump = "jump";
    /// Threads that are cancelled.
    Cancel = "cancel";
    /// Handlers of pthread_atfork.
    AtFork = "atfork";
    /// exec, vfork, and other programs.
    Exec = "exec";
    /// Descriptors that go to other processes.
    Pass = "pass";
    /// Processes that are killed.
    Kill = "kill";
    /// Urgent data.
    Urgent = "urgent";
    /// preadv2 and pwritev2.
    Vectors = "vectors";
    /// Event loops with many visitors.
    Serve = "serve";
    /// Much at once, both ways, through signals.
    Stream = "stream";
}

/// Some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Families(u32);

impl Families {
    /// All of them.
    pub const ALL: Self = Self(u32::MAX);
    /// None.
    pub const NONE: Self = Self(0);

    /// One to four, by seed, and what they are nothing without.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let some = rng.choose_multiple(Family::ALL, 4);
        let wanted = rng.usize(1..=some.len());
        some.into_iter().take(wanted).fold(Self::NONE, |all, family| {
            let all = all.with(*family);
            match family {
                Family::Reuse | Family::Signals | Family::Cancel => all.with(Family::Block),
                Family::Jump => all.with(Family::Signals).with(Family::Block),
                Family::Wide => all.with(Family::Poll),
                _ => all,
            }
        })
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, family: Family) -> Self {
        Self(self.0 | 1 << family as u32)
    }

    /// These without one.
    #[must_use]
    pub const fn without(self, family: Family) -> Self {
        Self(self.0 & !(1 << family as u32))
    }

    /// True when it is among them.
    #[must_use]
    pub const fn has(self, family: Family) -> bool {
        self.0 & (1 << family as u32) != 0
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some: Vec<_> =
            Family::ALL.iter().filter(|family| self.has(**family)).map(|f| f.name()).collect();
        f.write_str(&some.join(","))
    }
}

impl FromStr for Families {
    type Err = String;

    /// Names separated by commas; `all`; or `all` and what not, as `all,-fork`.
    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).try_fold(
            Self::NONE,
            |some, name| {
                if name == "all" {
                    return Ok(Self::ALL);
                }
                let (less, name) = name.strip_prefix('-').map_or((false, name), |n| (true, n));
                let family = Family::ALL
                    .iter()
                    .find(|family| family.name() == name)
                    .ok_or_else(|| format!("no family is called {name:?}"))?;
                Ok(if less { some.without(*family) } else { some.with(*family) })
            },
        )
    }
}
