//! A TCP connection to another agent.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use shunt_peer::message::{Bye, Hello};
use shunt_peer::session::{Event, Stage};
use shunt_peer::{Association, End, Message, Session};

/// Bytes that one call takes, and calls of one turn: a peer that sends much does not hold up the others.
const ROOM: usize = 16 * 1024;
const CALLS: usize = 4;

/// How long connections wait for a network that is away: about as long as those of TCP do (tcp(7), `tcp_retries2`).
const NETWORK: Duration = Duration::from_secs(15 * 60);

/// Why it is over.
#[derive(Debug)]
pub(crate) enum Over {
    /// By what was said, or not said.
    End(End),
    /// The peer has said of a link group what cannot be.
    Impossible(&'static str),
    /// The network's word.
    System(io::Error),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End(end) => end.fmt(f),
            Self::Impossible(what) => write!(f, "it spoke of {what}"),
            Self::System(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

impl Over {
    /// How long what both sides have is kept for another connection, or as long as they wait for each other if this one was ended without
    /// a word. `None`: the other side has ended, or will have none of it.
    pub(crate) fn patience(&self, reunion: Duration) -> Option<Duration> {
        match self {
            Self::End(End::Silent) => Some(NETWORK),
            Self::System(error) => match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Some(reunion),
                _ => Some(NETWORK),
            },
            Self::End(End::Closed(Stage::Open)) => Some(reunion),
            Self::End(_) | Self::Impossible(_) => None,
        }
    }

    /// True when an attempt to go on, which ends so, says nothing of what both sides have. `has_proved`: the other side has proved who it is; before,
    /// anybody may have said anything.
    pub(crate) const fn says_nothing(&self, has_proved: bool) -> bool {
        let is_network =
            matches!(self, Self::System(_) | Self::End(End::Closed(_) | End::Late | End::Silent));
        is_network || !has_proved
    }
}

impl From<End> for Over {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: TcpStream,
    session: Session,
    /// The other end.
    pub(crate) at: SocketAddr,
    /// Whether this agent has a device, as it says in its Hello; the other side's Hello.
    pub(crate) has_device: bool,
    pub(crate) hello: Option<Hello>,
}

impl Conn {
    pub(crate) fn new(
        stream: TcpStream,
        at: SocketAddr,
        session: Session,
        has_device: bool,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, session, at, has_device, hello: None })
    }

    /// The TCP connection alone, with what there was to be said.
    pub(crate) fn into_stream(mut self) -> TcpStream {
        let _ = self.write();
        self.stream
    }

    /// What to wait for.
    pub(crate) fn wants(&self) -> PollFlags {
        let writes = !self.session.outgoing().is_empty();
        PollFlags::IN | if writes { PollFlags::OUT } else { PollFlags::empty() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The other side is known for sure.
    pub(crate) fn is_open(&self) -> bool {
        self.session.peer().is_some()
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.session.event()
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.session.deadline()
    }

    /// When something was last heard.
    pub(crate) const fn heard_at(&self) -> Duration {
        self.session.heard_at()
    }

    pub(crate) fn tick(&mut self, now: Duration) -> Result<(), Over> {
        Ok(self.session.tick(now)?)
    }

    pub(crate) fn say(&mut self, message: &Message, now: Duration) -> Result<(), Over> {
        Ok(self.session.send(message, now)?)
    }

    /// The other side is known: what this side has with it, or would begin.
    pub(crate) fn begin(&mut self, association: Association, now: Duration) -> Result<(), Over> {
        Ok(self.session.begin(association, now)?)
    }

    /// The connection is over, for this reason. What this side has with the other one stays.
    pub(crate) fn part(mut self, why: Option<Bye>, now: Duration) -> Option<Association> {
        // What finds no room is not said; the other side sees the end in any case, and may learn by what it was told what it has done.
        let said = why.map_or(Ok(()), |why| self.session.part(why, now));
        let _ = said.map_err(Over::from).and_then(|()| self.write());
        self.session.into_association()
    }

    /// Takes what has come. What came before an end is among the events.
    pub(crate) fn read(&mut self, now: Duration) -> Result<(), Over> {
        let mut room = [0; ROOM];
        for _ in 0..CALLS {
            match self.stream.read(&mut room) {
                Ok(0) => return Err(self.session.closed().into()),
                Ok(len) => self.session.receive(&room[..len], now)?,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(Over::System(error)),
                },
            }
        }
        Ok(())
    }

    /// Sends what there is room for, also of what was to be said when there is.
    pub(crate) fn flush(&mut self, now: Duration) -> Result<(), Over> {
        loop {
            self.session.fill(now)?;
            if self.session.outgoing().is_empty() {
                return Ok(());
            }
            self.write()?;
            if !self.session.outgoing().is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends what there is room for.
    fn write(&mut self) -> Result<(), Over> {
        while !self.session.outgoing().is_empty() {
            match self.stream.write(self.session.outgoing()) {
                Ok(len) => self.session.sent(len),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(Over::System(error)),
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REUNION: Duration = Duration::from_secs(2);

    #[test]
    fn a_peer_that_is_not_heard_is_waited_for_and_one_that_has_ended_is_not() {
        let system = |kind: io::ErrorKind| Over::System(kind.into());
        for over in [Over::End(End::Silent), system(io::ErrorKind::TimedOut)] {
            assert_eq!(over.patience(REUNION), Some(NETWORK));
        }
        for over in [Over::End(End::Closed(Stage::Open)), system(io::ErrorKind::ConnectionReset)] {
            assert_eq!(over.patience(REUNION), Some(REUNION));
        }
        for over in [Over::End(End::Bye(Bye::Ends)), Over::End(End::Unsaid), Over::Impossible("x")]
        {
            assert_eq!(over.patience(REUNION), None);
        }
    }

    #[test]
    fn an_attempt_that_a_known_peer_ends_by_what_it_says_is_its_word() {
        for end in [End::Unsaid, End::Twice, End::Bye(Bye::Removed)] {
            assert!(!Over::End(end).says_nothing(true));
        }
        for end in [End::Closed(Stage::Hello), End::Late, End::Silent] {
            assert!(Over::End(end).says_nothing(true));
        }
        // Somebody in between may have said so.
        assert!(Over::End(End::NoAgent).says_nothing(false));
    }
}
