//! Two streams of known bytes over one direction of a connection: large sends, and small ones by a signal
//! handler that interrupts them. A handler that comes while the interrupted call is putting its bytes in
//! has to go another way (under Shunt, over TCP), and what follows comes back: so the direction changes its way as
//! often as signals come, under full load, both ways at once.
//!
//! The top bit of a byte tells whose it is, so that each stream can be checked by itself wherever the
//! handler came in between.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use serde_json::json;
use shunt_functional::pattern;
use shunt_functional::record::Listening;
use shunt_functional::sys::{self, ListenOptions};

/// Weaves two streams into each direction of a connection.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Where to connect to; without it, this end listens and says where.
    #[arg(long)]
    to: Option<SocketAddr>,
    /// Sends of the handler, after which this end's direction ends.
    #[arg(long, short = 'n', default_value_t = 1000)]
    sends: u64,
    /// Microseconds from signal to signal.
    #[arg(long, default_value_t = 200)]
    every: u32,
    /// Bytes of a large send.
    #[arg(long, default_value_t = 65_536)]
    bytes: usize,
}

/// Streams are told apart by this bit.
const HANDLERS: u8 = 0x80;
/// Longest send of the handler.
const SMALL: usize = 64;

static FD: AtomicI32 = AtomicI32::new(-1);
/// Sends of the handler, and its bytes.
static SENDS: AtomicU64 = AtomicU64::new(0);
static WOVEN: AtomicU64 = AtomicU64::new(0);

/// The bytes of a stream from `at` on.
fn bytes_of(stream: u8, at: u64, out: &mut [u8]) {
    pattern::fill(u64::from(stream) + 7, at, out);
    out.iter_mut().for_each(|byte| *byte = (*byte & !HANDLERS) | stream);
}

extern "C" fn on_signal(_: libc::c_int) {
    let at = WOVEN.load(Ordering::Relaxed);
    let mut small = [0; SMALL];
    let len = 1 + usize::try_from(at % SMALL as u64).unwrap_or(0);
    bytes_of(HANDLERS, at, &mut small[..len]);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let _keep = sys::KeepErrno::now();
    if let Ok(n) = sys::send(FD.load(Ordering::Relaxed), &small[..len], flags) {
        WOVEN.store(at + n as u64, Ordering::Relaxed);
        SENDS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends until the handler has sent often enough; the bytes of the large sends.
fn send(fd: RawFd, options: &Options) -> io::Result<u64> {
    let mut sent = 0;
    let mut large = vec![0; options.bytes.max(1)];
    sys::set_alarm_every(options.every)?;
    while SENDS.load(Ordering::Relaxed) < options.sends {
        bytes_of(0, sent, &mut large);
        match sys::send(fd, &large, libc::MSG_NOSIGNAL) {
            Ok(n) => sent += n as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    sys::set_alarm_every(0)?;
    sys::shutdown(fd, libc::SHUT_WR)?;
    Ok(sent)
}

/// One stream as it comes in.
struct Stream {
    name: u8,
    got: u64,
    expected: Vec<u8>,
}

impl Stream {
    fn new(name: u8) -> Self {
        Self { name, got: 0, expected: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.expected.resize(bytes.len(), 0);
        bytes_of(self.name, self.got, &mut self.expected);
        if let Some(wrong) = self.expected.iter().zip(bytes).position(|(a, b)| a != b) {
            let (name, at) = (self.name, self.got + wrong as u64);
            let what = format!("stream {name:#x}: wrong bytes at {at}: {:x?}", &bytes[wrong..]);
            return Err(io::Error::other(what));
        }
        self.got += bytes.len() as u64;
        Ok(())
    }
}

/// Receives to the end; the bytes of the large sends and of the handler.
fn receive(fd: RawFd) -> io::Result<(u64, u64)> {
    let (mut large, mut small) = (Stream::new(0), Stream::new(HANDLERS));
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let n = sys::recv(fd, &mut buffer, 0, false)?;
        if n == 0 {
            return Ok((large.got, small.got));
        }
        for bytes in buffer[..n].chunk_by(|a, b| (a ^ b) & HANDLERS == 0) {
            let stream = if bytes[0] & HANDLERS == 0 { &mut large } else { &mut small };
            stream.take(bytes)?;
        }
    }
}

fn connection(options: &Options) -> io::Result<OwnedFd> {
    if let Some(to) = options.to {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        sys::connect(fd.as_raw_fd(), to)?;
        return Ok(fd);
    }
    let listen = ListenOptions { reuse_port: false, v6_only: false, backlog: Some(8) };
    let listener = sys::listen(([127, 0, 0, 1], 0).into(), listen)?;
    let addr = sys::local_addr(listener.as_raw_fd())?.get();
    let port = addr.map_or(0, |addr| addr.port());
    say(&json!(Listening { port }))?;
    Ok(sys::accept(listener.as_raw_fd(), 0)?.0)
}

fn say(value: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}

fn run(options: &Options) -> io::Result<()> {
    // For the thread that sends.
    sys::block_signal(libc::SIGALRM, true)?;
    let fd = connection(options)?;
    FD.store(fd.as_raw_fd(), Ordering::Relaxed);
    sys::on_signal(libc::SIGALRM, on_signal)?;
    let raw = fd.as_raw_fd();
    let receiving = thread::spawn(move || receive(raw));
    sys::block_signal(libc::SIGALRM, false)?;
    let sent = send(raw, options)?;
    let (large, small) =
        receiving.join().map_err(|_| io::Error::other("the receiving thread panicked"))??;
    drop(fd);
    let woven = WOVEN.load(Ordering::Relaxed);
    say(&json!({ "sent": [sent, woven], "received": [large, small] }))
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shunt-weave {}: {e}", std::process::id());
            ExitCode::FAILURE
        }
    }
}
