//! A peer that does not keep to what is agreed upon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use shunt_peer::message::{Device, Hello};
use shunt_peer::{Event, Message, PublicKey, SecretKey, Session};

const PATIENCE: Duration = Duration::from_secs(60);

type Id = (PublicKey, SecretKey);

/// A peer that has proved who it is, and then says what it likes.
pub struct Hostile {
    stream: TcpStream,
    session: Session,
}

impl Hostile {
    /// Connects to an agent, and waits until both have said Hello.
    pub fn connect(id: &Id, to: SocketAddr, agent: PublicKey) -> Self {
        let (ring, slots, messages, device) = (4096, 1, 16, Device::Ready);
        let hello = Hello { ring, slots, messages, device, ..Hello::default() };
        let session = Session::dial(id.1.clone(), agent, hello, Duration::ZERO);
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hostile = Self { stream, session };
        hostile.until(|event| matches!(event, Event::Open(..)));
        hostile
    }

    fn flush(&mut self) {
        self.stream.write_all(self.session.outgoing()).unwrap();
        let sent = self.session.outgoing().len();
        self.session.sent(sent);
    }

    /// Waits until the agent says so.
    pub fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            self.flush();
            let mut room = [0; 4096];
            let len = self.stream.read(&mut room).unwrap();
            assert!(len > 0, "the agent has hung up");
            self.session.receive(&room[..len], Duration::ZERO).unwrap();
            self.flush();
            let mut events = std::iter::from_fn(|| self.session.event());
            if let Some(event) = events.find(&wanted) {
                return event;
            }
        }
    }

    pub fn say(&mut self, message: &Message) {
        self.session.send(message, Duration::ZERO).unwrap();
        self.flush();
    }
}
