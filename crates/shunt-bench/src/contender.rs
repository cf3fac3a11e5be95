//! Who runs against whom.

use serde::{Deserialize, Serialize};

/// A way for two programs on one host to talk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(clap::ValueEnum)]
pub enum Contender {
    /// Kernel TCP over loopback: what all others are compared with.
    Tcp,
    /// The same with cubic as congestion control, most systems' setting.
    Cubic,
    /// The same with reno, which every kernel has.
    Reno,
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
    /// The same with waiting calls that spin for 20 µs.
    #[serde(rename = "spin-20")]
    #[value(name = "spin-20")]
    Spin20,
    /// For 50 µs.
    #[serde(rename = "spin-50")]
    #[value(name = "spin-50")]
    Spin50,
    /// For 100 µs.
    #[serde(rename = "spin-100")]
    #[value(name = "spin-100")]
    Spin100,
    /// For 200 µs.
    #[serde(rename = "spin-200")]
    #[value(name = "spin-200")]
    Spin200,
}

impl Contender {
    /// All, in the order in which they run.
    pub const ALL: [Self; 12] = [
        Self::Tcp,
        Self::Cubic,
        Self::Reno,
        Self::Unix,
        Self::Sockmap,
        Self::Copy,
        Self::Attach,
        Self::Never,
        Self::Spin20,
        Self::Spin50,
        Self::Spin100,
        Self::Spin200,
    ];

    /// Those of most rows.
    pub const USUAL: [Self; 6] =
        [Self::Tcp, Self::Unix, Self::Sockmap, Self::Copy, Self::Attach, Self::Never];

    /// Those of rows whose figure is a rate of bytes: on loopback a congestion control can be worth a factor of two.
    pub const BULK: [Self; 8] = [
        Self::Tcp,
        Self::Cubic,
        Self::Reno,
        Self::Unix,
        Self::Sockmap,
        Self::Copy,
        Self::Attach,
        Self::Never,
    ];

    /// Kernel TCP, the best of which in a row is what all others are compared with.
    pub const KERNEL: [Self; 3] = [Self::Tcp, Self::Cubic, Self::Reno];

    /// Shunt with fixed lengths of spinning, by which the default settings are judged.
    pub const FIXED: [Self; 5] =
        [Self::Never, Self::Spin20, Self::Spin50, Self::Spin100, Self::Spin200];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Tcp => "kernel TCP",
            Self::Cubic => "kernel TCP, cubic",
            Self::Reno => "kernel TCP, reno",
            Self::Unix => "UNIX socket",
            Self::Sockmap => "eBPF sockmap",
            Self::Copy => "Shunt copy",
            Self::Attach => "Shunt attach",
            Self::Never => "Shunt attach, --spin never",
            Self::Spin20 => "Shunt attach, --spin 20",
            Self::Spin50 => "Shunt attach, --spin 50",
            Self::Spin100 => "Shunt attach, --spin 100",
            Self::Spin200 => "Shunt attach, --spin 200",
        }
    }

    /// The name in options and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Unix => "unix",
            Self::Sockmap => "sockmap",
            Self::Copy => "copy",
            Self::Attach => "attach",
            Self::Never => "never",
            Self::Spin20 => "spin-20",
            Self::Spin50 => "spin-50",
            Self::Spin100 => "spin-100",
            Self::Spin200 => "spin-200",
        }
    }

    /// The options of `shunt run`; none when it does not run under Shunt.
    #[must_use]
    pub const fn run_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Tcp | Self::Cubic | Self::Reno | Self::Unix | Self::Sockmap => None,
            Self::Copy => Some(&["--dmb", "copy"]),
            Self::Attach => Some(&["--dmb", "attach"]),
            Self::Never => Some(&["--dmb", "attach", "--spin", "never"]),
            Self::Spin20 => Some(&["--dmb", "attach", "--spin", "20"]),
            Self::Spin50 => Some(&["--dmb", "attach", "--spin", "50"]),
            Self::Spin100 => Some(&["--dmb", "attach", "--spin", "100"]),
            Self::Spin200 => Some(&["--dmb", "attach", "--spin", "200"]),
        }
    }

    /// The congestion control that its connections have in place of the system's setting.
    #[must_use]
    pub const fn congestion_control(self) -> Option<&'static str> {
        match self {
            Self::Cubic => Some("cubic"),
            Self::Reno => Some("reno"),
            _ => None,
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
            if let Some(spin) = contender.name().strip_prefix("spin-") {
                assert_eq!(contender.run_options().unwrap(), ["--dmb", "attach", "--spin", spin]);
            }
        }
    }
}
