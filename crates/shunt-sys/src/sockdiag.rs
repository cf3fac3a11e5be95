//! Whether somebody still has the socket at the other end of a connection of this host: sock_diag(7).

use rustix::fd::OwnedFd;
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use shunt_wire::addr::{Addr, FourTuple};

/// Whether a process holds the socket of the peer; `None` when that can't be told: no such kernel, another
/// network namespace.
///
/// A killed peer that had ended its direction before leaves no other trace here.
#[must_use]
pub fn peer_is_held(tuple: &FourTuple) -> Option<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kernel =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()?;
    // Only who finds the own end looks in the right place.
    if !is_held(&kernel, tuple)? {
        return None;
    }
    is_held(&kernel, &tuple.reversed())
}

// `include/uapi/linux/netlink.h`, `sock_diag.h` and `inet_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;
/// `inet_diag_msg`: the state, and the inode, which is 0 of a socket that nobody has.
const STATE: usize = HEADER + 1;
const INODE: usize = HEADER + 68;
/// `include/net/tcp_states.h`.
const LISTEN: u8 = 10;
/// `ENOENT`
const NOT_THERE: i32 = -2;

/// Whether a process holds the socket with this local address and peer.
fn is_held(kernel: &OwnedFd, tuple: &FourTuple) -> Option<bool> {
    send(kernel, &request(tuple), SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    // The kernel answers in the call that asks.
    let (len, _) = recv(kernel, &mut answer, RecvFlags::empty()).ok()?;
    read_answer(answer.get(..len)?)
}

fn request(tuple: &FourTuple) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    #[allow(clippy::cast_possible_truncation, reason = "72")]
    put(&(REQUEST as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&[0; 8]);
    // IPv4 addresses are found by their mapped form.
    #[allow(clippy::cast_possible_truncation, reason = "10 and 6")]
    put(&[libc::AF_INET6 as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&u32::MAX.to_ne_bytes());
    let Addr { ip: local, port: local_port } = tuple.local;
    let Addr { ip: peer, port: peer_port } = tuple.peer;
    put(&local_port.to_be_bytes());
    put(&peer_port.to_be_bytes());
    put(&local);
    put(&peer);
    put(&[0; 4]);
    // INET_DIAG_NOCOOKIE
    put(&[0xff; 8]);
    bytes
}

fn read_answer(bytes: &[u8]) -> Option<bool> {
    let word = |at: usize| <[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok();
    match u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]) {
        SOCK_DIAG_BY_FAMILY => {
            let held = u32::from_ne_bytes(word(INODE)?) != 0;
            // Where there is no connection, its listener is found.
            Some(held && *bytes.get(STATE)? != LISTEN)
        }
        NLMSG_ERROR if i32::from_ne_bytes(word(HEADER)?) == NOT_THERE => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockinfo::four_tuple;
    use std::net::{Shutdown, TcpListener, TcpStream};

    /// Another test may just be starting a program, which has the descriptors until it is one.
    fn is_orphaned_soon(tuple: &FourTuple) -> bool {
        (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            peer_is_held(tuple) == Some(false)
        })
    }

    fn check(listen: &str, to: &str) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((to, port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let of_server = four_tuple(&server).unwrap();
        let of_client = four_tuple(&client).unwrap();
        assert_eq!(peer_is_held(&of_server), Some(true));
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(peer_is_held(&of_server), Some(true));
        drop(client);
        assert!(is_orphaned_soon(&of_server));
        // Its own end is nobody's.
        assert_eq!(peer_is_held(&of_client), None);

        // The acceptor's end is gone, its listener is not.
        let client = TcpStream::connect((to, port)).unwrap();
        let (other, _) = listener.accept().unwrap();
        let of_client = four_tuple(&client).unwrap();
        other.shutdown(Shutdown::Write).unwrap();
        assert_eq!(peer_is_held(&of_client), Some(true));
        drop(other);
        assert!(is_orphaned_soon(&of_client));
    }

    /// An answer of the kernel's: a socket, or an error.
    fn answer(kind: u16, fields: &[(usize, &[u8])]) -> [u8; INODE + 4] {
        let mut bytes = [0; INODE + 4];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    #[test]
    fn only_a_connection_counts() {
        let held = |state: u8, inode: u32| {
            let inode = inode.to_ne_bytes();
            read_answer(&answer(SOCK_DIAG_BY_FAMILY, &[(STATE, &[state]), (INODE, &inode)]))
        };
        const FIN_WAIT2: u8 = 5;
        assert_eq!(held(FIN_WAIT2, 7), Some(true));
        assert_eq!(held(FIN_WAIT2, 0), Some(false));
        assert_eq!(held(LISTEN, 7), Some(false));
        let error = |code: i32| read_answer(&answer(NLMSG_ERROR, &[(HEADER, &code.to_ne_bytes())]));
        assert_eq!(error(NOT_THERE), Some(false));
        assert_eq!(error(-libc::EPERM), None);
        let whole = answer(SOCK_DIAG_BY_FAMILY, &[(INODE, &[1])]);
        assert!((0..whole.len()).all(|len| read_answer(&whole[..len]).is_none()));
    }

    #[test]
    fn who_has_gone_is_known() {
        check("127.0.0.1:0", "127.0.0.1");
        check("[::1]:0", "::1");
        check("[::]:0", "127.0.0.1");
    }
}
