//! The thread that accepts connections and hands them to those that own them; signals, commands, metrics and the end.

mod gate;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shunt_metrics::{Address, Exporter, MetricsError};
use shunt_sys::epoll::{self, Epoll};
use shunt_sys::signals;
use tracing::{info, warn};

use crate::config::{Config, Mistake};
use crate::control::report::Report;
use crate::control::{Control, Request};
use crate::metrics::{Counter, Counts, Totals};
use crate::site::Site;
use crate::stores::Unavailable;
use crate::worker::{News, Worker};
use gate::Gate;
pub use gate::Ticket;

const STOP: u64 = 0;
const RELOAD: u64 = 1;
const CONTROL: u64 = 2;
/// Tokens of listeners begin here; above, those of scrapers.
const LISTENERS: u64 = 3;
const METRICS: u64 = 1 << 32;

/// Events taken from epoll at once.
const BATCH: usize = 64;
/// Connections that are accepted at a listener before others get their turn.
const TURN: usize = 16;
/// How long nobody is accepted when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// How long commands may take to end, and hosts to take the answers, when the target ends.
const DRAIN: Duration = Duration::from_secs(5);

/// How a target is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it serves.
    pub config: Config,
    /// Where that was read, to be read again; `None`: nowhere.
    pub file: Option<PathBuf>,
    /// Where it is commanded.
    pub control: Option<PathBuf>,
    /// Where to serve metrics.
    pub metrics: Option<Address>,
    /// Also at an address that other hosts can reach.
    pub metrics_public: bool,
}

/// Why a target does not run.
#[derive(Debug)]
pub enum ServeError {
    /// A namespace.
    Unavailable(Unavailable),
    /// An address.
    Listen(SocketAddr, io::Error),
    /// Metrics.
    Metrics(MetricsError),
    /// The socket for commands.
    Control(PathBuf, io::Error),
    /// The configuration, read again.
    Mistake(Mistake),
    /// There is none to be read again.
    NoFile,
    /// A system call of its own.
    System(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(e) => e.fmt(f),
            Self::Listen(address, e) if e.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "another process listens at {address}; name another address")
            }
            Self::Listen(address, e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
                write!(f, "{address} is no address of this host; name another")
            }
            Self::Listen(address, e) => write!(f, "listening at {address} failed: {e}"),
            Self::Metrics(e) => e.fmt(f),
            Self::Control(path, e) => {
                write!(f, "commands cannot be taken at {}: {e}; name another path", path.display())
            }
            Self::Mistake(e) => e.fmt(f),
            Self::NoFile => f.write_str("there is no configuration file to be read again"),
            Self::System(e) => write!(f, "the target failed: {e}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<io::Error> for ServeError {
    fn from(e: io::Error) -> Self {
        Self::System(e)
    }
}

impl From<Unavailable> for ServeError {
    fn from(e: Unavailable) -> Self {
        Self::Unavailable(e)
    }
}

impl From<Mistake> for ServeError {
    fn from(e: Mistake) -> Self {
        Self::Mistake(e)
    }
}

/// Runs a target until SIGTERM or SIGINT. Calls `ready` with the addresses once hosts can connect.
///
/// # Errors
/// Why it cannot.
pub fn serve(options: Options, ready: impl FnOnce(&[SocketAddr])) -> Result<(), ServeError> {
    // Blocked before there is any thread, so that all of them leave signals to this one.
    let stop = signals::stop_fd()?;
    let reload = signals::fd(&[signals::HUP])?;
    // Also before there is any thread.
    let control = options
        .control
        .as_deref()
        .map(|path| Control::open(path).map_err(|e| ServeError::Control(path.to_owned(), e)));
    let control = control.transpose()?;
    let mut server = Server::new(options, (stop, reload), control)?;
    ready(&server.addresses());
    server.run()?;
    server.end();
    Ok(())
}

struct Server {
    options: Options,
    site: Arc<Site>,
    gate: Arc<Gate>,
    listeners: Vec<Listening>,
    next_listener: u64,
    /// Nobody is accepted before.
    paused: Option<Instant>,
    workers: Vec<Worker>,
    /// Who gets the next connection.
    turn: usize,
    exporter: Option<Exporter>,
    counts: Arc<Counts>,
    totals: Totals,
    epoll: Epoll,
    _stop: OwnedFd,
    reload: OwnedFd,
    control: Option<Control>,
}

/// A listening socket.
struct Listening {
    /// As the configuration has it: its port may be 0.
    configured: SocketAddr,
    socket: TcpListener,
    token: u64,
}

/// Listens at these addresses, under tokens from `token` on.
fn listen(wanted: &[SocketAddr], token: u64) -> Result<Vec<Listening>, ServeError> {
    let open = |(configured, token): (&SocketAddr, u64)| {
        let failed = |e| ServeError::Listen(*configured, e);
        let socket = TcpListener::bind(configured).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Listening { configured: *configured, socket, token })
    };
    wanted.iter().zip(token..).map(open).collect()
}

impl Server {
    fn new(
        options: Options,
        (stop, reload): (OwnedFd, OwnedFd),
        control: Option<Control>,
    ) -> Result<Self, ServeError> {
        let listeners = listen(&options.config.listen, LISTENERS)?;
        let at = addresses(&listeners);
        let next_listener = LISTENERS + listeners.len() as u64;
        let site = Arc::new(Site::open(&options.config, &at)?);
        let epoll = Epoll::new(BATCH)?;
        epoll.add(stop.as_fd(), epoll::IN, STOP)?;
        epoll.add(reload.as_fd(), epoll::IN, RELOAD)?;
        if let Some(control) = &control {
            epoll.add(control.bell(), epoll::IN, CONTROL)?;
        }
        let exporter = match &options.metrics {
            None => None,
            Some(address) => {
                let exporter = Exporter::open(address, options.metrics_public, METRICS + 1);
                let exporter = exporter.map_err(ServeError::Metrics)?;
                exporter.watch(&epoll)?;
                info!("serving metrics at {}", exporter.address());
                Some(exporter)
            }
        };
        let threads = match options.config.threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism()?,
        };
        let workers: Result<Vec<_>, _> =
            (0..threads.get()).map(|n| Worker::start(n, threads, &site)).collect();
        let workers = workers?;
        let counts = Arc::new(Counts::default());
        let all = workers.iter().map(|worker| Arc::clone(worker.counts()));
        let totals = Totals(all.chain([Arc::clone(&counts)]).collect());
        let server = Self {
            options,
            site,
            gate: Arc::default(),
            listeners,
            next_listener,
            paused: None,
            workers,
            turn: 0,
            exporter,
            counts,
            totals,
            epoll,
            _stop: stop,
            reload,
            control,
        };
        for listener in &server.listeners {
            server.epoll.add(listener.socket.as_fd(), epoll::IN, listener.token)?;
        }
        Ok(server)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.listeners)
    }

    fn watch(&self, events: u32) -> io::Result<()> {
        let mut listeners = self.listeners.iter();
        listeners.try_for_each(|l| self.epoll.modify(l.socket.as_fd(), events, l.token))
    }

    /// Accepts, until it is to end.
    fn run(&mut self) -> io::Result<()> {
        let mut ready = Vec::with_capacity(BATCH);
        loop {
            let now = Instant::now();
            if self.paused.is_some_and(|until| until <= now) {
                self.paused = None;
                self.watch(epoll::IN)?;
            }
            let pause = self.paused.map(|until| until - now);
            let late = self.exporter.as_mut().and_then(|exporter| exporter.drop_late(now));
            ready.clear();
            // Rounded up: a wait that is too short would come again and again.
            let timeout = [pause, late].into_iter().flatten().min();
            let timeout = timeout.map(|wait| wait + Duration::from_millis(1));
            ready.extend(self.epoll.wait(timeout)?.map(|event| event.data));
            for &token in &ready {
                match token {
                    STOP => return Ok(()),
                    RELOAD => self.signalled(),
                    CONTROL => self.commanded(),
                    _ if self.serve_scraper(token) => {}
                    _ => self.accept(token)?,
                }
            }
        }
    }

    fn serve_scraper(&mut self, token: u64) -> bool {
        let exporter = self.exporter.as_mut();
        let render = || self.totals.render();
        exporter.is_some_and(|exporter| exporter.serve(token, &self.epoll, &render))
    }

    fn accept(&mut self, token: u64) -> io::Result<()> {
        for _ in 0..TURN {
            let Some(listener) = self.listeners.iter().find(|l| l.token == token) else {
                return Ok(());
            };
            match listener.socket.accept() {
                Ok((socket, from)) => self.admit(socket, from),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => {
                    let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
                    if e.raw_os_error().is_some_and(|code| short.contains(&code)) {
                        warn!("no connection can be accepted: {e}; raise LimitNOFILE=");
                        return self.pause();
                    }
                    // That connection is over before it has begun (accept(2)).
                }
            }
        }
        Ok(())
    }

    /// Nobody is accepted for a moment.
    fn pause(&mut self) -> io::Result<()> {
        if self.paused.is_none() {
            self.paused = Some(Instant::now() + PAUSE);
            self.watch(0)?;
        }
        Ok(())
    }

    fn admit(&mut self, socket: TcpStream, from: SocketAddr) {
        let limits = &self.options.config.limits;
        let Some(ticket) = self.gate.enter(limits.connections, limits.unconnected) else {
            self.counts.one(Counter::Refused);
            tracing::debug!("{from} was refused: there are too many connections");
            return;
        };
        // Answers are whole when they are sent, and waited for.
        if socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).is_err() {
            return;
        }
        self.counts.one(Counter::Accepted);
        self.turn = (self.turn + 1) % self.workers.len();
        self.workers[self.turn].tell(News::Came(socket, from, ticket));
    }

    /// SIGHUP has come: reads the file again.
    fn signalled(&mut self) {
        // Read away; several signals are one.
        let mut signal = [0; 128];
        while rustix::io::read(&self.reload, &mut signal).is_ok_and(|n| n > 0) {}
        // The log says why not.
        let _said = self.reload();
    }

    /// Does what is asked for at the control socket.
    fn commanded(&mut self) {
        while let Some(asked) = self.control.as_ref().and_then(Control::next) {
            let answer = match &asked.request {
                Request::Reload => self.reload().map(|()| "The file is taken over.\n".to_owned()),
                Request::Apply { name, text } => {
                    let config = Config::parse(name, text).map_err(ServeError::Mistake);
                    let changed = self.counted(config, name);
                    changed.map(|()| "The configuration is taken over.\n".to_owned())
                }
                Request::Show => self.report(),
            };
            asked.answer(answer.map_err(|e| e.to_string()));
        }
    }

    fn report(&self) -> Result<String, ServeError> {
        let report = Report {
            listening: self.addresses(),
            connections: self.gate.inside(),
            subsystems: self.site.report(),
        };
        let text = serde_json::to_string(&report);
        text.map_err(|e| ServeError::System(io::Error::from(e)))
    }

    /// Takes the file over as it is now.
    fn reload(&mut self) -> Result<(), ServeError> {
        let file = self.options.file.clone();
        let config = match &file {
            Some(file) => Config::load(file).map_err(ServeError::Mistake),
            None => Err(ServeError::NoFile),
        };
        self.counted(config, &file.unwrap_or_default())
    }

    /// Takes a configuration over, if it is one; counts, and tells the log.
    fn counted(
        &mut self,
        config: Result<Config, ServeError>,
        from: &Path,
    ) -> Result<(), ServeError> {
        let changed = config.and_then(|config| self.change(config));
        match &changed {
            Ok(()) => {
                self.counts.one(Counter::Reloads);
                info!("{} is taken over", from.display());
            }
            Err(e) => {
                self.counts.one(Counter::BadReloads);
                warn!("nothing is changed: {e}");
            }
        }
        changed
    }

    /// Serves something else from now on. Where something cannot be had everything stays as it is.
    fn change(&mut self, config: Config) -> Result<(), ServeError> {
        let known = |address: &&SocketAddr| {
            !self.listeners.iter().any(|listener| listener.configured == **address)
        };
        let added: Vec<_> = config.listen.iter().filter(known).copied().collect();
        let added = listen(&added, self.next_listener)?;
        for listener in &added {
            self.epoll.add(listener.socket.as_fd(), 0, listener.token)?;
        }
        let stays = |listener: &Listening| config.listen.contains(&listener.configured);
        let mut at = addresses(self.listeners.iter().filter(|listener| stays(listener)));
        at.extend(addresses(&added));
        self.site.change(&config, &at)?;
        // Nothing can be refused from here on.
        self.next_listener += added.len() as u64;
        self.listeners.retain(stays);
        for listener in added {
            info!("listening at {}", listener.configured);
            self.listeners.push(listener);
        }
        if self.paused.is_none()
            && let Err(e) = self.watch(epoll::IN)
        {
            warn!("hosts cannot be heard: {e}");
        }
        let (then, now) = (&self.options.config, &config);
        if (then.threads, then.limits) != (now.threads, now.limits) {
            info!("`threads` and `limits` are taken over at the next start");
        }
        self.options.config = Config { threads: then.threads, limits: then.limits, ..config };
        Ok(())
    }

    /// Ends: no new connections; commands that have begun are answered.
    fn end(mut self) {
        self.listeners.clear();
        self.control = None;
        let until = Instant::now() + DRAIN;
        info!("ending: {} connections are drained", self.gate.inside());
        for worker in &self.workers {
            worker.tell(News::End(until));
        }
        for worker in self.workers {
            worker.join();
        }
    }
}

fn addresses<'a>(listeners: impl IntoIterator<Item = &'a Listening>) -> Vec<SocketAddr> {
    listeners.into_iter().filter_map(|listener| listener.socket.local_addr().ok()).collect()
}
