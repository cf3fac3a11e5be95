//! The same exchange over TCP.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLIN, POLLIN, pollfd};
use shunt_functional::pattern::{fill, verify};
use shunt_functional::sys::{Epoll, poll};

use crate::server::GREETING;

/// Connects without a word of SMC, so many times at once. When all bytes of all connections are sent, `hold` keeps them.
pub fn plain(
    to: SocketAddr,
    bytes: u64,
    connections: u64,
    hold: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let count = usize::try_from(connections)?;
    let (start, all_sent) = (Arc::new(Barrier::new(count)), Arc::new(Barrier::new(count)));
    let connect = |number: u64| {
        let (start, all_sent, hold) =
            (Arc::clone(&start), Arc::clone(&all_sent), hold.map(Path::to_owned));
        thread::spawn(move || {
            start.wait();
            let connected = TcpStream::connect(to).map_err(Into::into);
            let exchanged = connected.and_then(|stream| {
                exchange_and(stream, 0x77 + number, bytes, move || {
                    let Some(hold) = hold else { return };
                    if all_sent.wait().is_leader() {
                        println!("held");
                    }
                    while !hold.exists() {
                        thread::sleep(Duration::from_millis(5));
                    }
                })
            });
            exchanged.map_err(|why: Box<dyn Error>| format!("{number}: {why}"))
        })
    };
    let clients: Vec<_> = (0..connections).map(connect).collect();
    let ends = clients.into_iter().map(|client| client.join().map_err(|_| "a panic")?);
    let failed: Vec<_> = ends.filter_map(Result::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// Sleeps until there is something to read, or [`LONGEST`]: how many descriptors it was told of.
type Sleep = fn(&TcpStream) -> io::Result<usize>;
/// How long a server may take for its first word.
const LONGEST: Option<Duration> = Some(Duration::from_secs(60));

/// Waits for a server that speaks first. Whoever was told of bytes finds them: its greeting.
pub fn greeted(to: SocketAddr) -> Result<(), Box<dyn Error>> {
    let ways: [(&str, Sleep); 2] = [("poll", by_poll), ("epoll", by_epoll)];
    for (way, sleep) in ways {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nonblocking(true)?;
        if sleep(&stream)? == 0 {
            return Err(format!("{way}: the server says nothing").into());
        }
        let mut came = [0; GREETING.len()];
        let length = stream.read(&mut came).map_err(|e| format!("{way}: {e}"))?;
        if &came[..length] != GREETING {
            return Err(format!("{way}: {:?}", &came[..length]).into());
        }
        println!("greeted by {way}");
    }
    Ok(())
}

fn by_poll(stream: &TcpStream) -> io::Result<usize> {
    poll(&mut [pollfd { fd: stream.as_raw_fd(), events: POLLIN, revents: 0 }], LONGEST)
}

fn by_epoll(stream: &TcpStream) -> io::Result<usize> {
    let mut set = Epoll::new(1)?;
    set.control(EPOLL_CTL_ADD, stream.as_raw_fd(), EPOLLIN.cast_unsigned(), 1)?;
    Ok(set.wait(LONGEST)?.len())
}

/// Sends so many bytes of the stream of this label, and compares what comes back.
pub fn exchange(stream: TcpStream, label: u64, total: u64) -> Result<(), Box<dyn Error>> {
    exchange_and(stream, label, total, || ())
}

/// The same, with something done before it ends its direction.
fn exchange_and(
    mut stream: TcpStream,
    label: u64,
    total: u64,
    ends: impl FnOnce() + Send + 'static,
) -> Result<(), Box<dyn Error>> {
    let mut writer = stream.try_clone()?;
    let sender = thread::spawn(move || -> io::Result<()> {
        let mut bytes = vec![0; 16 << 10];
        let mut place = 0;
        while place < total {
            let length = bytes.len().min(usize::try_from(total - place).unwrap_or(bytes.len()));
            fill(label, place, &mut bytes[..length]);
            writer.write_all(&bytes[..length])?;
            place += length as u64;
        }
        ends();
        writer.shutdown(Shutdown::Write)
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    sender.join().map_err(|_| "the sender has panicked")??;
    let (bytes, trailer) = back.split_last_chunk().ok_or("no trailer")?;
    verify(label, 0, bytes, &mut Vec::new())?;
    if (bytes.len() as u64, u64::from_le_bytes(*trailer)) != (total, total) {
        return Err(format!("{} bytes are back of {total}", bytes.len()).into());
    }
    println!("{label}: {total} bytes back over tcp");
    Ok(())
}
