//! The server: sends back what comes, compares it, and says how much it was behind its end.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, bind, listen, recv, send, socket,
};
use shunt_functional::pattern::verify;

use super::netlink::AF_SMC;

/// The urgent byte that either end sends.
pub const URGENT: [u8; 1] = [b'!'];
/// What a server says that speaks first.
pub const GREETING: &[u8] = b"welcome\n";

/// Serves until it is killed.
///
/// With `is_urgent` it looks for an urgent byte behind the end, and sends one before its own; with `greets` it speaks first.
pub fn serve(port: u16, is_tcp: bool, is_urgent: bool, greets: bool) -> Result<(), Box<dyn Error>> {
    let family = if is_tcp { AddressFamily::INET } else { AddressFamily::from_raw(AF_SMC) };
    let socket: OwnedFd = socket(family, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    listen(&socket, 128)?;
    println!("serving");
    for stream in TcpListener::from(socket).incoming() {
        let mut stream = stream?;
        if greets {
            stream.write_all(GREETING)?;
        }
        thread::spawn(move || match echo(stream, is_urgent) {
            Ok(bytes) => println!("echoed {bytes}"),
            Err(why) => println!("failed: {why}"),
        });
    }
    Ok(())
}

/// Takes all up to the end; then says how much it was and ends, too.
fn echo(mut stream: TcpStream, is_urgent: bool) -> Result<u64, Box<dyn Error>> {
    let (mut bytes, mut total, mut label) = (vec![0; 64 << 10], 0_u64, Vec::new());
    let mut scratch = Vec::new();
    loop {
        let length = match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(length) => length,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(format!("after {total} bytes: {e}").into()),
        };
        let came = &bytes[..length];
        let missing = (8 - label.len()).min(length);
        label.extend(&came[..missing]);
        if let Some(label) = label.first_chunk() {
            let label = u64::from_le_bytes(*label);
            verify(label, total, came, &mut scratch)?;
        }
        stream.write_all(came).map_err(|e| format!("{total} bytes, sending: {e}"))?;
        total += length as u64;
    }
    if is_urgent {
        let mut byte = [0];
        let (length, _) = recv(&stream, &mut byte, RecvFlags::OOB)?;
        println!("urgent {:?}", &byte[..length]);
        send(&stream, &URGENT, SendFlags::OOB)?;
    }
    stream.write_all(&total.to_le_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    Ok(total)
}
