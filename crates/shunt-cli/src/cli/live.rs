//! The command lines of commands that show a running system.

use std::path::PathBuf;

use clap::Args;

/// `shunt capture`.
#[derive(Args, Debug)]
#[command(after_help = crate::list::HELP)]
pub struct Capture {
    /// Write a pcapng file; `-`: to standard output, for `wireshark -k -i -`.
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Only this link group, a pair of programs: `link-NUMBER`, as captures name them; `shunt` is all.
    #[arg(short, long, alias = "extcap-interface", value_name = "LINK")]
    pub interface: Option<String>,
    /// End after so many packets.
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Most bytes that are kept of a packet, headers included.
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144)]
    pub snaplen: u32,
    /// End after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = pause)]
    pub duration: Option<f64>,
    /// What Wireshark asks.
    #[command(flatten)]
    pub extcap: Extcap,
    /// Only connections of which this is true, of one end or the other: `port 80`, `program nginx`, `pid 17`.
    pub filter: Vec<String>,
}

/// What Wireshark and tshark ask a program that captures for them.
#[derive(Args, Debug)]
pub struct Extcap {
    /// Say what can be captured from.
    #[arg(long, hide = true)]
    pub extcap_interfaces: bool,
    /// Say what packets begin with.
    #[arg(long, hide = true)]
    pub extcap_dlts: bool,
    /// Say what can be set.
    #[arg(long, hide = true)]
    pub extcap_config: bool,
    /// The version of who asks.
    #[arg(long, hide = true, value_name = "VERSION", num_args = 0..=1)]
    pub extcap_version: Option<String>,
    /// The filter of who asks.
    #[arg(long, hide = true, value_name = "FILTER")]
    pub extcap_capture_filter: Option<String>,
    /// A filter.
    #[arg(long, hide = true, value_name = "FILTER")]
    pub conditions: Option<String>,
    /// Capture.
    #[arg(long, hide = true)]
    pub capture: bool,
    /// Where packets go.
    #[arg(long, hide = true, value_name = "FIFO")]
    pub fifo: Option<PathBuf>,
}

pub(super) fn pause(value: &str) -> Result<f64, String> {
    let seconds = value.parse().ok().filter(|s| (0.1..=86_400.0).contains(s));
    seconds.ok_or_else(|| "it must be a number of seconds from 0.1 to 86400".to_owned())
}

/// An address as the resolver takes it.
pub(super) fn host_and_port(value: &str) -> Result<String, String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_whole =
        value.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
    let why = "it must be HOST:PORT, such as localhost:80 or [::1]:80";
    is_whole.then(|| value.to_owned()).ok_or_else(|| why.to_owned())
}

/// `shunt top`.
#[derive(Args, Debug)]
#[command(
    after_help = "Keys: up and down select, Enter shows the connections of a pair of programs, Esc goes back, s takes the next \
                  order, / filters, q quits. `Spin` is the share of spins that ended with work; `Ring`, the bytes that \
                  lie unread in shared memory. Bytes and messages that go over TCP are not counted. NO_COLOR is \
                  heeded. With --once the width is the terminal's, else COLUMNS, else 80."
)]
pub struct Top {
    /// Seconds between looks.
    #[arg(short, long, value_name = "SECONDS", value_parser = pause, default_value = "1")]
    pub interval: f64,
    /// The order of rows.
    #[arg(long, value_enum, default_value_t)]
    pub sort: crate::top::Order,
    /// Only rows with this text: in names, addresses, modes or reasons.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Print one frame as text, of what happens within one interval, and end.
    #[arg(long)]
    pub once: bool,
}

/// `shunt explain`.
#[derive(Args, Debug)]
#[command(
    after_help = "Programs keep their last decisions about connections in memory: 512 each, its forks' included. So what happened long \
                  ago to a busy program may be gone. `ss -tanp` and `shunt list` show descriptors. The exit status is 1 when \
                  there is nothing to explain: a line on standard error says why."
)]
pub struct Explain {
    /// PID:FD, a connection or listener by a process and its descriptor; or PORT, what listens there, and the connections that
    /// have it at either end.
    #[arg(value_name = "PID:FD|PORT")]
    pub target: crate::explain::Target,
    /// Print JSON for other programs. It names the version of its schema.
    #[arg(long)]
    pub json: bool,
}
