//! The thread that measures a link and TCP: it sleeps in read(2) as programs do, beside the one that meets peers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use shunt_far::link::Load;
use shunt_peer::message::Token;
use shunt_peer::session::{PREAMBLE, Preamble, measures};

use crate::links::Outcome;
use crate::sampling::{OverLink, begin, follow};
use crate::shared::Shared;
use crate::wake_up;

/// Time for all of it. Slow devices that software emulates take some seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time to connect.
const CONNECT: Duration = Duration::from_secs(3);

/// How the thread tells the one that meets peers.
#[derive(Clone)]
pub(crate) struct Tells {
    pub(crate) to: Sender<Outcome>,
    pub(crate) shared: Arc<Shared>,
    /// Of which measurement.
    pub(crate) number: u64,
}

impl Tells {
    fn tell(&self, outcome: Outcome) {
        // Where the plane has ended, nobody waits for it.
        let _ = self.to.send(outcome);
        self.shared.wake();
    }
}

/// Which connection is measured.
pub(crate) enum By {
    /// One that this side makes.
    Connecting(SocketAddr, Token),
    /// One that the peer has made.
    Accepted(TcpStream),
}

/// Measures what a wake-up costs here.
pub(crate) fn begin_to_wake(tells: Tells) -> io::Result<()> {
    spawn(move || {
        let woken = wake_up::measure().map_err(|error| error.to_string());
        tells.tell(Outcome::WokenUp(tells.number, woken));
    })
}

/// Measures the link, and TCP. `times` has how long each of the link's loads has taken.
pub(crate) fn begin_to_sample(by: By, tells: Tells, times: Receiver<Duration>) -> io::Result<()> {
    spawn(move || {
        let clock = Instant::now();
        let mut link = LinkOf { tells: &tells, times };
        let now = || clock.elapsed();
        let samples = match by {
            By::Connecting(at, token) => connect(at, token)
                .and_then(|stream| begin(&mut Timed::new(stream, clock)?, &mut link, &now)),
            By::Accepted(stream) => Timed::new(stream, clock)
                .and_then(|mut stream| follow(&mut stream, &mut link, &now)),
        };
        let why = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "the peer has broken it off".to_owned(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it took too long".to_owned(),
            _ => error.to_string(),
        };
        tells.tell(Outcome::Sampled(tells.number, samples.map_err(why)));
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("shunt-measure".into()).spawn(run).map(|_| ())
}

fn connect(at: SocketAddr, token: Token) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&at, CONNECT)?;
    stream.set_read_timeout(Some(CONNECT))?;
    stream.write_all(&measures(token))?;
    // An agent begins each connection with that.
    let mut preamble = [0; PREAMBLE];
    stream.read_exact(&mut preamble)?;
    let is_agent = Preamble::is_own(&preamble);
    let other = || io::Error::new(io::ErrorKind::InvalidData, "something else answers there");
    if is_agent { Ok(stream) } else { Err(other()) }
}

/// A connection whose calls wait no longer than there is time for all of them.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn new(stream: TcpStream, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let until = now + PATIENCE;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, until })
    }

    fn has_time(&self) -> io::Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.has_time()?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.has_time()?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The link: its worker measures, and the thread that meets peers has it do so.
struct LinkOf<'a> {
    tells: &'a Tells,
    times: Receiver<Duration>,
}

impl LinkOf<'_> {
    fn load(&self, load: Load) -> io::Result<Duration> {
        self.tells.tell(Outcome::Loads(self.tells.number, load));
        let lost = |_| io::Error::other("the link was busy, or has failed");
        self.times.recv_timeout(PATIENCE).map_err(lost)
    }
}

impl OverLink for LinkOf<'_> {
    fn ping(&mut self) -> io::Result<Duration> {
        self.load(Load::Ping)
    }

    fn bulk(&mut self) -> io::Result<Duration> {
        self.load(Load::Bulk)
    }
}
