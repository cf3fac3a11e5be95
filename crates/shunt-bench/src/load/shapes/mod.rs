//! Servers of all the shapes that programs have, and the client that drives them.
//!
//! A *shape* is how a server waits for its connections, and what serves each of them: a thread, a
//! process, or one for all. All shapes give the same answers to the same requests, so what differs
//! between two of them is the waiting alone.

mod conn;
mod drive;
mod events;
mod ready;
mod sizes;
mod turns;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use clap::{Args, ValueEnum};

pub use drive::Drive;
pub use sizes::Sizes;

/// How a server waits.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    serde::Serialize,
    serde::Deserialize,
    ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One thread takes its connections in turn, with blocking calls.
    Blocking,
    /// One thread waits in poll(2) for all of them and calls recv(2) on those that are ready.
    Poll,
    /// The same with select(2).
    Select,
    /// Several threads, each with an epoll instance and connections of its own.
    EpollThread,
    /// Several threads that wait at one epoll instance for all connections (`EPOLLONESHOT`).
    EpollShared,
    /// One thread with an epoll instance, edge-triggered.
    Edge,
    /// One thread with an epoll instance that also has a timerfd and a pipe.
    Mixed,
    /// A thread per connection that waits in poll(2) before each recv(2).
    ThreadPoll,
    /// A thread per connection that waits in recv(2).
    ThreadRecv,
    /// A process per connection, forked when it is accepted.
    Process,
}

impl Shape {
    /// All, in the order in which they run.
    pub const ALL: [Self; 10] = [
        Self::Blocking,
        Self::Poll,
        Self::Select,
        Self::EpollThread,
        Self::EpollShared,
        Self::Edge,
        Self::Mixed,
        Self::ThreadPoll,
        Self::ThreadRecv,
        Self::Process,
    ];

    /// The name in options, in rows and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Poll => "poll",
            Self::Select => "select",
            Self::EpollThread => "epoll-thread",
            Self::EpollShared => "epoll-shared",
            Self::Edge => "edge",
            Self::Mixed => "mixed",
            Self::ThreadPoll => "thread-poll",
            Self::ThreadRecv => "thread-recv",
            Self::Process => "process",
        }
    }

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Blocking => "blocking calls in turn",
            Self::Poll => "poll and recv",
            Self::Select => "select",
            Self::EpollThread => "an epoll instance per thread",
            Self::EpollShared => "one epoll for all threads",
            Self::Edge => "epoll, edge-triggered",
            Self::Mixed => "epoll with a timerfd and a pipe",
            Self::ThreadPoll => "a thread per connection, in poll",
            Self::ThreadRecv => "a thread per connection, in recv",
            Self::Process => "a process per connection",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `shunt load serve-shape`.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// Where to listen.
    #[arg(long)]
    at: SocketAddr,
    /// How to wait.
    #[arg(long, value_enum)]
    shape: Shape,
    /// Of the messages.
    #[command(flatten)]
    sizes: Sizes,
    /// Steps of work for each request.
    #[arg(long, default_value_t = 0)]
    work: u64,
    /// Threads of the shapes that have several for all connections.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Connections that the shape `blocking` takes before it begins.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
}

impl Serve {
    /// Serves until it is ended.
    pub fn run(&self) -> io::Result<()> {
        let service = conn::Service::new(self.sizes, self.work);
        let listener = TcpListener::bind(self.at)?;
        match self.shape {
            Shape::Blocking => turns::in_turn(&listener, service, self.connections),
            Shape::Poll => ready::poll(&listener, service),
            Shape::Select => ready::select(&listener, service),
            Shape::EpollThread => {
                let each = events::Layout::Each(self.threads.into());
                events::serve(listener, service, each)
            }
            Shape::EpollShared => {
                let shared = events::Layout::Shared(self.threads.into());
                events::serve(listener, service, shared)
            }
            Shape::Edge => events::serve(listener, service, events::Layout::Edge),
            Shape::Mixed => events::serve(listener, service, events::Layout::Mixed),
            Shape::ThreadPoll => turns::threads(&listener, service, ready::session),
            Shape::ThreadRecv => turns::threads(&listener, service, turns::session),
            Shape::Process => turns::processes(listener, service),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_everywhere() {
        for shape in Shape::ALL {
            assert_eq!(serde_json::to_string(&shape).unwrap(), format!("\"{}\"", shape.name()));
            assert_eq!(shape.to_possible_value().unwrap().get_name(), shape.name());
        }
        assert_eq!(Shape::value_variants(), Shape::ALL);
    }
}
