//! The same exchange over TCP.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use shunt_functional::pattern::{fill, verify};

/// Connects without a word of SMC.
pub fn plain(to: SocketAddr, bytes: u64) -> Result<(), Box<dyn Error>> {
    exchange(TcpStream::connect(to)?, 0x77, bytes)
}

/// Sends so many bytes of the stream of this label, and compares what comes back.
pub fn exchange(mut stream: TcpStream, label: u64, total: u64) -> Result<(), Box<dyn Error>> {
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
