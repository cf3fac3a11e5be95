//! A TCP connection to another agent.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use shunt_peer::message::Judgement;
use shunt_peer::session::Event;
use shunt_peer::{End, Message, Session};

/// Bytes that one call takes, and calls of one turn: a peer that sends much does not hold up the others.
const ROOM: usize = 16 * 1024;
const CALLS: usize = 4;

/// Bytes that wait to be sent, from which on what follows has time. Well below what the session lets wait.
const LOAD: usize = 128 * 1024;

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
    /// What is to be said when there is room: what a link has not delivered, and all behind that.
    later: VecDeque<Message>,
    /// The other end.
    pub(crate) at: SocketAddr,
    /// Whether this agent has a device, as the other end was told last.
    pub(crate) knows_device: bool,
    /// The same of whether it promotes connections.
    pub(crate) knows_judgement: Judgement,
}

impl Conn {
    pub(crate) fn new(
        stream: TcpStream,
        at: SocketAddr,
        session: Session,
        knows_device: bool,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (later, knows_judgement) = (VecDeque::new(), Judgement::Unmeasured);
        Ok(Self { stream, session, later, at, knows_device, knows_judgement })
    }

    /// The TCP connection alone.
    pub(crate) fn into_stream(self) -> TcpStream {
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

    pub(crate) fn tick(&mut self, now: Duration) -> Result<(), Over> {
        Ok(self.session.tick(now)?)
    }

    pub(crate) fn say(&mut self, message: &Message, now: Duration) -> Result<(), Over> {
        Ok(self.session.send(message, now)?)
    }

    /// Says something of a link group, in order. What may be much waits until the peer has taken what was said before.
    pub(crate) fn say_in_turn(&mut self, message: &Message, now: Duration) -> Result<(), Over> {
        if self.later.is_empty() && !matches!(message, Message::Rest(..)) {
            return self.say(message, now);
        }
        self.later.push_back(message.clone());
        Ok(())
    }

    /// Says what there is room for.
    fn say_later(&mut self, now: Duration) -> Result<(), Over> {
        while self.session.outgoing().len() < LOAD
            && let Some(message) = self.later.pop_front()
        {
            self.say(&message, now)?;
        }
        Ok(())
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

    /// Sends what there is room for, also of what was to be said later.
    pub(crate) fn flush(&mut self, now: Duration) -> Result<(), Over> {
        loop {
            self.say_later(now)?;
            self.write()?;
            if self.later.is_empty() || !self.session.outgoing().is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends what there is room for.
    pub(crate) fn write(&mut self) -> Result<(), Over> {
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
