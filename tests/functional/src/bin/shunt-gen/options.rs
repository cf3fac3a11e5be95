//! The command line.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use shunt_functional::sys;

/// Generates and verifies TCP traffic with plain socket calls.
#[derive(Parser)]
#[command(version)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub role: Role,
}

/// Which end this process is.
#[derive(Subcommand)]
pub enum Role {
    /// Accepts connections; prints a line of JSON when it listens and one per connection.
    Serve(Serve),
    /// Opens connections; prints one line of JSON per connection.
    Connect(Connect),
}

/// What both ends have in common.
#[derive(Args, Clone)]
pub struct Common {
    /// Connections in all, after which the process ends.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub connections: usize,
    /// Threads that carry them (blocking: two threads per connection, whatever this says).
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Bytes to send per connection, the label of 8 bytes included.
    #[arg(long, short = 'b', default_value_t = 1 << 20)]
    pub bytes: u64,
    /// Longest single call.
    #[arg(long, default_value_t = 256 * 1024)]
    pub max_call: usize,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How to wait.
    #[arg(long, value_enum, default_value_t = Style::Blocking)]
    pub style: Style,
    /// Calls to send with.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = SendCall::ALL)]
    pub send_calls: Vec<SendCall>,
    /// Calls to receive with.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = RecvCall::ALL)]
    pub recv_calls: Vec<RecvCall>,
    /// Send through duplicates of the descriptor that come and go.
    #[arg(long)]
    pub dup: bool,
    /// SO_SNDBUF and SO_RCVBUF of the client's sockets and of the listener.
    #[arg(long)]
    pub buffers: Option<i32>,
    /// What is done once with each connection, at some byte that is sent, that takes it back to TCP.
    #[arg(long, value_enum)]
    pub hand_over: Option<HandOver>,
    /// Longest random pause in microseconds, taken before one call in 64.
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
    /// The other end may be killed: say when a connection begins, and when and how it is lost, and
    /// take that for an end like another.
    #[arg(long)]
    pub survive: bool,
    /// Of sends without copies the error queue may tell in any order, as that of kernel TCP does.
    #[arg(long)]
    pub any_order: bool,
    /// The other end may send anything: a connection over which other bytes came than were expected is
    /// carried to its end without a further look at them, and is then lost, as with --survive.
    #[arg(long, requires = "survive")]
    pub distrust: bool,
    /// Print one line about all connections instead of one for each.
    #[arg(long)]
    pub totals: bool,
    /// Seconds without a byte after which the process reports a stall and fails.
    #[arg(long, default_value_t = 20)]
    pub stall: u64,
}

/// Options of the accepting end.
#[derive(Args, Clone)]
#[command(args_override_self = true)]
pub struct Serve {
    /// Where to listen; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Who accepts.
    #[arg(long, value_enum, default_value_t = Spread::Single)]
    pub spread: Spread,
    /// Processes that accept (prefork and reuseport).
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
    /// Milliseconds between listen and the first accept.
    #[arg(long, default_value_t = 0)]
    pub accept_late: u64,
    /// IPv6 only (else an IPv6 listener takes IPv4 too).
    #[arg(long)]
    pub v6_only: bool,
    /// Second argument of listen.
    #[arg(long, default_value_t = 4096)]
    pub backlog: i32,
    /// The rest.
    #[command(flatten)]
    pub common: Common,
}

/// Options of the connecting end.
#[derive(Args, Clone)]
#[command(args_override_self = true)]
pub struct Connect {
    /// Where to connect to; several are taken in turn.
    #[arg(long, required = true)]
    pub to: Vec<SocketAddr>,
    /// Close each connection as soon as everything is sent, without reading.
    #[arg(long)]
    pub leave: bool,
    /// Connections that are open at once, of those in all (not for the blocking style).
    #[arg(long)]
    pub at_once: Option<usize>,
    /// Call connect on a non-blocking socket (never for the blocking style).
    #[arg(long)]
    pub nonblocking_connect: bool,
    /// The rest.
    #[command(flatten)]
    pub common: Common,
}

impl Common {
    /// Gives a socket buffers of the wanted size.
    pub fn size(&self, fd: &OwnedFd) -> io::Result<()> {
        self.buffers.map_or(Ok(()), |size| sys::set_buffers(fd.as_raw_fd(), size))
    }

    /// The stall limit.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(self.stall)
    }
}

/// How a process waits for its connections.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Style {
    /// Blocking calls, a thread per direction.
    Blocking,
    /// poll
    Poll,
    /// ppoll
    Ppoll,
    /// select
    Select,
    /// pselect
    Pselect,
    /// epoll, level-triggered
    EpollLt,
    /// epoll, edge-triggered
    EpollEt,
    /// The same, and a receiver that has taken as many bytes as `FIONREAD` said waits for the next edge,
    /// as nginx does
    EpollCounted,
    /// epoll, one-shot
    EpollOneshot,
}

impl Style {
    /// True when an epoll set says only once what has come.
    pub fn is_edge_triggered(self) -> bool {
        matches!(self, Self::EpollEt | Self::EpollCounted)
    }
}

/// Which process accepts.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Spread {
    /// The one that listens.
    Single,
    /// Children that inherit the listener.
    Prefork,
    /// Children with listeners of their own in one SO_REUSEPORT group.
    Reuseport,
    /// The one that listens, which forks a child for each connection.
    Fork,
}

/// A way to send bytes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
#[allow(missing_docs)]
pub enum SendCall {
    Write,
    Writev,
    Send,
    SendDontwait,
    SendMore,
    Sendto,
    Sendmsg,
    Sendmmsg,
    Sendfile,
    /// `splice(2)` out of a pipe
    Splice,
    Pwritev2,
    /// `MSG_ZEROCOPY`, from registered memory.
    SendZerocopy,
    /// The same from a memfd that the process maps by itself.
    SendFound,
    /// The same from private memory.
    SendPrivate,
}

impl SendCall {
    /// Every call but those that have to be asked for.
    pub const ALL: [Self; 11] = [
        Self::Write,
        Self::Writev,
        Self::Send,
        Self::SendDontwait,
        Self::SendMore,
        Self::Sendto,
        Self::Sendmsg,
        Self::Sendmmsg,
        Self::Sendfile,
        Self::Splice,
        Self::Pwritev2,
    ];
}

/// A way to give a connection to somebody who may know nothing of Shunt.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum HandOver {
    /// Bytes are written by a stdio stream on it.
    Stdio,
    /// It is passed through a UNIX socket, and written to by the descriptor that comes out.
    Scm,
    /// It is the standard input of a program.
    Spawn,
    /// A shell inherits it, with all others.
    Shell,
}

/// A way to receive bytes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
#[allow(missing_docs)]
pub enum RecvCall {
    Read,
    Readv,
    Recv,
    RecvDontwait,
    RecvWaitall,
    RecvDiscard,
    Peek,
    PeekMsg,
    Recvfrom,
    Recvmsg,
    Recvmmsg,
    /// shunt_recv_borrow and shunt_recv_release
    RecvBorrow,
    /// `splice(2)` into a pipe
    Splice,
    Preadv2,
}

impl RecvCall {
    /// Every call.
    pub const ALL: [Self; 14] = [
        Self::Read,
        Self::Readv,
        Self::Recv,
        Self::RecvDontwait,
        Self::RecvWaitall,
        Self::RecvDiscard,
        Self::Peek,
        Self::PeekMsg,
        Self::Recvfrom,
        Self::Recvmsg,
        Self::Recvmmsg,
        Self::RecvBorrow,
        Self::Splice,
        Self::Preadv2,
    ];
}

macro_rules! display_as_value {
    ($($name:ty),+) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.to_possible_value() {
                    Some(value) => f.write_str(value.get_name()),
                    None => Ok(()),
                }
            }
        }
    )+};
}

display_as_value!(Style, Spread, SendCall, RecvCall, HandOver);
