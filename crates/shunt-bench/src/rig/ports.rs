//! Ports.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the kernel takes the ports of connecting sockets, so that none of
/// the many connections here can take a port between its choice and its use.
const FIRST: u16 = 12_000;
const LAST: u16 = 30_000;

/// A port that nothing uses, on any address, with TCP or UDP.
#[must_use]
pub fn free_port() -> Option<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Different processes start at different places.
    let start = u16::try_from(std::process::id() * 97 % u32::from(LAST - FIRST)).unwrap_or(0);
    (0..LAST - FIRST)
        .map(|_| {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            FIRST + (start + n % (LAST - FIRST)) % (LAST - FIRST)
        })
        .find(|&port| {
            TcpListener::bind(("::", port)).is_ok() && UdpSocket::bind(("::", port)).is_ok()
        })
}

/// True when a socket listens on `port` in the network of the process. Looks into the kernel's tables: a connection for a look
/// would be one that the server has to serve and that the counters show.
#[must_use]
pub fn is_listening(process: i32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{process}/net/{table}")).is_ok_and(|text| {
            text.lines().skip(1).any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let (Some(local), Some(_), Some(state)) =
                    (fields.next(), fields.next(), fields.next())
                else {
                    return false;
                };
                state == "0A"
                    && local.rsplit(':').next().and_then(|p| u16::from_str_radix(p, 16).ok())
                        == Some(port)
            })
        })
    })
}
