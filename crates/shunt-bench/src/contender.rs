//! Who runs against whom.

use serde::{Deserialize, Serialize};

/// A way for two programs on one host to talk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(clap::ValueEnum)]
pub enum Contender {
    /// Kernel TCP over loopback: what all others are compared with.
    Tcp,
    /// A UNIX stream socket, where both programs can.
    Unix,
    /// Kernel TCP whose messages an eBPF program redirects from socket to socket.
    Sockmap,
    /// Shunt, through an own sndbuf that the device moves.
    Copy,
    /// Shunt with default settings: straight into the peer's RMB.
    Attach,
    /// The same without spinning: each waiting call sleeps at once.
    Never,
}

impl Contender {
    /// All, in the order in which they run.
    pub const ALL: [Self; 6] =
        [Self::Tcp, Self::Unix, Self::Sockmap, Self::Copy, Self::Attach, Self::Never];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Tcp => "kernel TCP",
            Self::Unix => "UNIX socket",
            Self::Sockmap => "eBPF sockmap",
            Self::Copy => "Shunt copy",
            Self::Attach => "Shunt attach",
            Self::Never => "Shunt attach, --spin never",
        }
    }

    /// The name in options and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Sockmap => "sockmap",
            Self::Copy => "copy",
            Self::Attach => "attach",
            Self::Never => "never",
        }
    }

    /// The options of `shunt run`; none when it does not run under Shunt.
    #[must_use]
    pub const fn run_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Tcp | Self::Unix | Self::Sockmap => None,
            Self::Copy => Some(&["--dmb", "copy"]),
            Self::Attach => Some(&["--dmb", "attach"]),
            Self::Never => Some(&["--dmb", "attach", "--spin", "never"]),
        }
    }

    /// True when its programs run under Shunt.
    #[must_use]
    pub const fn is_shunt(self) -> bool {
        self.run_options().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn one_name_everywhere() {
        for contender in Contender::ALL {
            let json = serde_json::to_string(&contender).unwrap();
            assert_eq!(json, format!("\"{}\"", contender.name()));
            let option = contender.to_possible_value().unwrap();
            assert_eq!(option.get_name(), contender.name());
        }
    }
}
