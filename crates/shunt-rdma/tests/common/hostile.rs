//! A peer that does not keep to what is agreed upon.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shunt_peer::message::{Device, Hello};
use shunt_peer::session::KEEP;
use shunt_peer::{Association, Event, Message, PublicKey, SecretKey, Session};

const PATIENCE: Duration = Duration::from_secs(60);

type Id = (PublicKey, SecretKey);

/// A peer that has proved who it is, and then says what it likes. It says that it is there as any other one does.
pub struct Hostile {
    stream: TcpStream,
    session: Arc<Mutex<Session>>,
    began: Instant,
}

impl Hostile {
    /// Connects to an agent, and waits until both have begun.
    pub fn connect(id: &Id, to: SocketAddr, agent: PublicKey) -> Self {
        let (ring, slots, messages, device) = (4096, 1, 16, Device::Ready);
        let hello = Hello { ring, slots, messages, device, ..Hello::default() };
        let session = Session::dial(id.1.clone(), agent, hello, Duration::ZERO);
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let session = Arc::new(Mutex::new(session));
        let mut hostile = Self { stream, session, began: Instant::now() };
        hostile.until(|event| matches!(event, Event::Open(..)));
        let association = Association::new(1);
        hostile.session.lock().unwrap().begin(association, hostile.began.elapsed()).unwrap();
        hostile.until(|event| *event == Event::Begun(false));
        let (session, began) = (Arc::downgrade(&hostile.session), hostile.began);
        let mut stream = hostile.stream.try_clone().unwrap();
        thread::spawn(move || {
            while let Some(session) = session.upgrade() {
                let mut session = session.lock().unwrap();
                if session.tick(began.elapsed()).is_err()
                    || flush(&mut session, &mut stream).is_err()
                {
                    return;
                }
                drop(session);
                thread::sleep(KEEP);
            }
        });
        hostile
    }

    /// Waits until the agent says so.
    pub fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        flush(&mut self.session.lock().unwrap(), &mut self.stream).unwrap();
        loop {
            let mut room = [0; 4096];
            let len = self.stream.read(&mut room).unwrap();
            assert!(len > 0, "the agent has hung up");
            let mut session = self.session.lock().unwrap();
            session.receive(&room[..len], self.began.elapsed()).unwrap();
            flush(&mut session, &mut self.stream).unwrap();
            let mut events = std::iter::from_fn(|| session.event());
            if let Some(event) = events.find(&wanted) {
                return event;
            }
        }
    }

    pub fn say(&mut self, message: &Message) {
        let mut session = self.session.lock().unwrap();
        session.send(message, self.began.elapsed()).unwrap();
        flush(&mut session, &mut self.stream).unwrap();
    }
}

fn flush(session: &mut Session, stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(session.outgoing())?;
    let sent = session.outgoing().len();
    session.sent(sent);
    Ok(())
}
