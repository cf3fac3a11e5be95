//! The same exchange over TCP.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use shunt_functional::pattern::{fill, verify};

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
    let sender = thread::spawn(move || -> std::io::Result<()> {
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
