//! One connection's agreement with a kernel's SMC-R, on the program's socket.
//!
//! The socket is the program's too, with its flags: it may block. So each call says for itself that it does not wait.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use shunt_smc::handshake::{Event, Failure, Handshake};
use shunt_smc::wire::clc::{Diagnosis, End, LONGEST, Proposal};
use shunt_verbs::value::Gid;

use super::socket::Socket;

/// Why nothing can become of a connection, not over TCP either: it is to be reset.
#[derive(Debug)]
pub(crate) enum Lost {
    /// What the server says, or does not.
    Failure(Failure),
    /// The server has ended its direction in the middle of the agreement.
    Closed,
    /// The program has let go of it.
    Unwanted,
    /// The network's word.
    System(io::Error),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failure(failure) => failure.fmt(f),
            Self::Closed => f.write_str("the server ends in the middle of the agreement"),
            Self::Unwanted => f.write_str("the program has let go of it"),
            Self::System(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

impl From<Failure> for Lost {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Agreement {
    socket: Socket,
    handshake: Handshake,
}

impl Agreement {
    /// Proposes. `name` is this host's, for the server's tools. The program has sent nothing, and takes nothing from the socket.
    pub(crate) fn propose(socket: Socket, proposal: Proposal, name: &str, now: Duration) -> Self {
        Self { socket, handshake: Handshake::propose(proposal, name, now) }
    }

    /// Sends what there is to send, and takes what has come: no byte more than the agreement is long.
    ///
    /// # Errors
    /// [`Lost`]. Events that came before it count.
    pub(crate) fn turn(&mut self, now: Duration) -> Result<(), Lost> {
        self.flush()?;
        let mut room = [0; LONGEST];
        loop {
            let wanted = self.handshake.wanted().min(room.len());
            if wanted == 0 {
                break;
            }
            match recv(&self.socket, &mut room[..wanted], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Lost::Closed),
                Ok((_, came)) => self.handshake.receive(&room[..came], now)?,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(Lost::System(error.into())),
            }
        }
        self.handshake.tick(now)?;
        // An answer may be due to what has come.
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Lost> {
        while !self.handshake.outgoing().is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, self.handshake.outgoing(), flags) {
                Ok(sent) => self.handshake.sent(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(Lost::System(error.into())),
            }
        }
        Ok(())
    }

    /// The oldest event that was not taken yet.
    pub(crate) fn event(&mut self) -> Option<Event> {
        self.handshake.event()
    }

    /// This host's end of an accepted connection is ready.
    pub(crate) fn confirm(&mut self, end: End, gids: &[Gid], now: Duration) {
        self.handshake.confirm(end, gids, now);
    }

    /// The link of a first contact is confirmed.
    pub(crate) fn established(&mut self) {
        self.handshake.established();
    }

    /// This host leaves the connection on TCP.
    pub(crate) fn decline(&mut self, why: Diagnosis) {
        self.handshake.decline(why);
    }

    /// All that this host says has gone out: behind a decline the stream is the program's again.
    pub(crate) fn has_said_all(&self) -> bool {
        self.handshake.outgoing().is_empty()
    }

    /// By when to call [`Self::turn`], whatever comes.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.handshake.deadline()
    }

    /// What to wait for; nothing where all is up to this host.
    pub(crate) fn wants(&self) -> PollFlags {
        let reads = if self.handshake.wanted() > 0 { PollFlags::IN } else { PollFlags::empty() };
        let writes = if self.has_said_all() { PollFlags::empty() } else { PollFlags::OUT };
        reads | writes
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Ends the TCP connection, also for the program, and the server hears it.
    pub(crate) fn cut(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

#[cfg(test)]
#[path = "../../../shunt-smc/tests/common/mod.rs"]
mod scripted;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use shunt_smc::wire::clc::HEADER;

    use super::scripted::{NOW, Server, proposal};
    use super::*;

    /// The program's socket, which blocks, and the server's end of it.
    fn proposed() -> (Agreement, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = Socket::new(ours.into(), None);
        let mut agreement = Agreement::propose(socket, proposal(), "host", NOW);
        assert_eq!(agreement.wants(), PollFlags::IN | PollFlags::OUT);
        agreement.turn(NOW).unwrap();
        assert_eq!(agreement.wants(), PollFlags::IN, "all is said");
        (agreement, theirs)
    }

    /// What was said, and not more.
    fn heard(theirs: &mut UnixStream) -> Vec<u8> {
        theirs.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        let error = theirs.read_to_end(&mut all).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        all
    }

    fn accepted(server: &mut Server) -> (Agreement, UnixStream, End) {
        let (mut agreement, mut theirs) = proposed();
        let answer = server.answer(&heard(&mut theirs));
        // In pieces, as a network brings it.
        for piece in answer.chunks(3) {
            assert_eq!(agreement.event(), None);
            theirs.write_all(piece).unwrap();
            agreement.turn(NOW).unwrap();
        }
        let Some(Event::Accepted(accept)) = agreement.event() else { panic!("no accept") };
        (agreement, theirs, scripted::end(2, 5, accept.end.size))
    }

    #[test]
    fn both_agree_and_bytes_of_programs_are_left_alone() {
        let mut server = Server::with(&["SHUNT"]);
        let (mut agreement, mut theirs, end) = accepted(&mut server);
        assert_eq!(agreement.wants(), PollFlags::empty(), "it is up to this host");
        agreement.confirm(end, &[end.host.gid], NOW);
        agreement.turn(NOW).unwrap();
        server.confirm(&heard(&mut theirs));
        assert_eq!(server.confirmed.as_ref().map(|confirm| confirm.end.rmb), Some(end.rmb));
        agreement.established();
        theirs.write_all(b"the program's").unwrap();
        agreement.turn(NOW).unwrap();
        assert_eq!(agreement.event(), Some(Event::Ready));
        let mut room = [0; 32];
        let (came, _) = recv(agreement.fd(), &mut room, RecvFlags::DONTWAIT).unwrap();
        assert_eq!(&room[..came], b"the program's");
    }

    #[test]
    fn behind_a_servers_decline_the_stream_is_the_programs() {
        let mut server = Server::with(&["ELSEWHERE"]);
        let (mut agreement, mut theirs) = proposed();
        let mut answer = server.answer(&heard(&mut theirs));
        answer.extend(b"220 ready");
        theirs.write_all(&answer).unwrap();
        agreement.turn(NOW).unwrap();
        assert!(matches!(agreement.event(), Some(Event::Declined { is_peers: true, .. })));
        assert!(agreement.has_said_all());
        let mut room = [0; 32];
        let (came, _) = recv(agreement.fd(), &mut room, RecvFlags::DONTWAIT).unwrap();
        assert_eq!(&room[..came], b"220 ready");
    }

    #[test]
    fn a_decline_of_this_host_is_said_before_the_stream_is_the_programs() {
        let (mut agreement, mut theirs, _) = accepted(&mut Server::with(&["SHUNT"]));
        agreement.decline(Diagnosis::MEMORY);
        assert!(!agreement.has_said_all());
        agreement.turn(NOW).unwrap();
        assert!(agreement.has_said_all());
        assert!(matches!(agreement.event(), Some(Event::Declined { is_peers: false, .. })));
        assert_eq!(heard(&mut theirs)[4], 4, "a decline");
    }

    #[test]
    fn a_server_that_ends_or_says_nothing_fails_it() {
        let (mut agreement, theirs) = proposed();
        drop(theirs);
        let ended = agreement.turn(NOW);
        assert!(matches!(ended, Err(Lost::Closed | Lost::System(_))), "{ended:?}");
        let (mut agreement, _theirs) = proposed();
        let until = agreement.deadline().unwrap();
        assert!(agreement.turn(until - Duration::from_millis(1)).is_ok());
        assert!(matches!(agreement.turn(until), Err(Lost::Failure(Failure::Silent))));
        let (mut agreement, mut theirs) = proposed();
        theirs.write_all(&[0; HEADER]).unwrap();
        assert!(matches!(agreement.turn(NOW), Err(Lost::Failure(Failure::Malformed(_)))));
    }

    #[test]
    fn what_finds_no_room_is_said_later() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut filled = 0;
        while let Ok(sent) = send(&ours, &[1; 4096], SendFlags::DONTWAIT) {
            filled += sent;
        }
        let mut agreement =
            Agreement::propose(Socket::new(ours.into(), None), proposal(), "host", NOW);
        agreement.turn(NOW).unwrap();
        assert!(!agreement.has_said_all() && agreement.wants().contains(PollFlags::OUT));
        theirs.read_exact(&mut vec![0; filled]).unwrap();
        agreement.turn(NOW).unwrap();
        assert!(agreement.has_said_all());
        assert_eq!(heard(&mut theirs), proposal().bytes());
    }
}
