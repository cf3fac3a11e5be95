//! Those who ask for metrics, in a loop of the caller's: few at a time, each with little to say and little time to say
//! it. Their sockets are called through libc.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use shunt_sys::epoll::{self, Epoll};

use crate::address::{Address, Listener, MetricsError};
use crate::http::{self, Parsed, Status};

/// Makes the text that is served.
pub type Render<'a> = &'a dyn Fn() -> Result<String, fmt::Error>;

/// Those who are served at once.
const MOST: usize = 16;
/// Time to ask, to be answered and to leave.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request that is read.
const MAX_REQUEST: usize = 4096;

/// A scraper's socket.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(room),
            Self::Unix(socket) => socket.read(room),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn end(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Self::Unix(socket) => socket.shutdown(Shutdown::Write),
        }
    }
}

#[derive(Debug)]
enum Door {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[derive(Debug)]
struct Scraper {
    socket: Socket,
    asked: Vec<u8>,
    /// The answer, and how much of it is sent.
    answer: Option<(Vec<u8>, usize)>,
    until: Instant,
}

/// See the module's description.
#[derive(Debug)]
pub struct Exporter {
    listener: Listener,
    door: Door,
    scrapers: HashMap<u64, Scraper>,
    /// Tokens of scrapers are this and those above it.
    first: u64,
    next: u64,
}

impl Exporter {
    /// Listens, under the token before `first`.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn open(wanted: &Address, public: bool, first: u64) -> Result<Self, MetricsError> {
        let usual = || Err(io::Error::other("name a socket: unix:/PATH"));
        let listener = Listener::open(wanted, public, usual)?;
        let failed = |e| MetricsError::System(wanted.clone(), e);
        let socket = listener.socket().try_clone().map_err(failed)?;
        let door = match listener.address() {
            Address::Tcp(_) => Door::Tcp(socket.into()),
            _ => Door::Unix(socket.into()),
        };
        Ok(Self { listener, door, scrapers: HashMap::new(), first, next: first })
    }

    /// Where it is to be reached.
    #[must_use]
    pub const fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Has epoll tell of those who come.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        let door = match &self.door {
            Door::Tcp(listener) => listener.as_fd(),
            Door::Unix(listener) => listener.as_fd(),
        };
        epoll.add(door, epoll::IN, self.first - 1)
    }

    /// Goes on with what `token` stands for; false if it is not of the exporter's.
    pub fn serve(&mut self, token: u64, epoll: &Epoll, render: Render<'_>) -> bool {
        if token + 1 == self.first {
            self.accept(epoll);
            return true;
        }
        let Some(scraper) = self.scrapers.get_mut(&token) else { return token >= self.first };
        match scraper.proceed(render) {
            Ok(Some(events)) => {
                let _gone = epoll.modify(scraper.socket.fd(), events, token);
            }
            Ok(None) | Err(_) => {
                self.scrapers.remove(&token);
            }
        }
        true
    }

    fn accept(&mut self, epoll: &Epoll) {
        let came = match &self.door {
            Door::Tcp(listener) => listener.accept().and_then(|(socket, _)| {
                socket.set_nonblocking(true)?;
                Ok(Socket::Tcp(socket))
            }),
            Door::Unix(listener) => listener.accept().and_then(|(socket, _)| {
                socket.set_nonblocking(true)?;
                Ok(Socket::Unix(socket))
            }),
        };
        let Ok(socket) = came else { return };
        if self.scrapers.len() >= MOST || epoll.add(socket.fd(), epoll::IN, self.next).is_err() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        self.scrapers.insert(self.next, Scraper { socket, asked: Vec::new(), answer: None, until });
        self.next += 1;
    }

    /// Drops those whose time is up; how long until the next one's is.
    pub fn drop_late(&mut self, now: Instant) -> Option<Duration> {
        self.scrapers.retain(|_, scraper| scraper.until > now);
        self.scrapers.values().map(|scraper| scraper.until - now).min()
    }
}

impl Scraper {
    /// Goes as far as it can without waiting; what it waits for next, `None` when it is over.
    fn proceed(&mut self, render: Render<'_>) -> io::Result<Option<u32>> {
        let mut room = [0; MAX_REQUEST];
        if self.answer.is_none() {
            match self.socket.read(&mut room[..MAX_REQUEST - self.asked.len()]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.asked.extend_from_slice(&room[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Some(epoll::IN)),
                Err(e) => return Err(e),
            }
            let asked = match http::parse(&self.asked) {
                Parsed::Incomplete if self.asked.len() < MAX_REQUEST => return Ok(Some(epoll::IN)),
                Parsed::Incomplete => Parsed::Refused(Status::TooLong),
                asked => asked,
            };
            self.answer = Some((answer(asked, render), 0));
        }
        if let Some((answer, sent)) = &mut self.answer
            && *sent < answer.len()
        {
            while *sent < answer.len() {
                match self.socket.write(&answer[*sent..]) {
                    Ok(n) => *sent += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Some(epoll::OUT)),
                    Err(e) => return Err(e),
                }
            }
            self.socket.end()?;
        }
        // It is closed by the scraper: closing a socket with unread bytes would take the answer back.
        match self.socket.read(&mut room) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(epoll::IN)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Some(epoll::IN)),
            Err(e) => Err(e),
        }
    }
}

fn answer(asked: Parsed, render: Render<'_>) -> Vec<u8> {
    match asked {
        Parsed::Refused(status) => http::refusal(status),
        Parsed::Incomplete => http::refusal(Status::Malformed),
        Parsed::Metrics { with_body } => match render() {
            Ok(text) => http::metrics(&text, with_body),
            Err(fmt::Error) => http::refusal(Status::Failed),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_served() {
        let first = 10;
        let wanted = "127.0.0.1:0".parse().unwrap();
        let mut exporter = Exporter::open(&wanted, false, first).unwrap();
        let Address::Tcp(at) = *exporter.address() else { panic!("no port") };
        let mut epoll = Epoll::new(4).unwrap();
        exporter.watch(&epoll).unwrap();
        let render = || Ok("# EOF\n".to_owned());
        let ask = move || {
            let mut socket = TcpStream::connect(at).unwrap();
            socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            socket.read_to_string(&mut text).unwrap();
            text
        };
        let client = std::thread::spawn(ask);
        while !client.is_finished() {
            let short = Some(Duration::from_millis(10));
            let tokens: Vec<_> = epoll.wait(short).unwrap().map(|event| event.data).collect();
            for token in tokens {
                assert!(exporter.serve(token, &epoll, &render));
            }
        }
        let text = client.join().unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n"), "{text}");
        assert!(!exporter.serve(3, &epoll, &render));
    }
}
