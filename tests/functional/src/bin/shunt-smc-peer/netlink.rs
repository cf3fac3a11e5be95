//! What is asked of the kernel's SMC by netlink: EIDs, and what became of each socket.

use std::error::Error;
use std::io;

use rustix::net::netlink::{GENERIC, SOCK_DIAG};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType, recv, send, socket};

/// The family of SMC's sockets.
pub const AF_SMC: u16 = 43;

/// Netlink: types and flags.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

/// Generic netlink: the controller, its command to look a family up, and the attributes of name and
/// number.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// SMC's: the commands to list link groups and to add an EID, and the attribute of that
/// (`linux/smc.h`).
const GET_GROUPS: u8 = 2;
const ADD_EID: u8 = 10;
const EID: u16 = 1;

/// `sock_diag`: the request, and SMC's attribute for fallback (`linux/smc_diag.h`).
const BY_FAMILY: u16 = 20;
const FALLBACK: u16 = 5;

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    padded([&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat())
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    let bytes = bytes.get(at..at + 2).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// Sends a message, and takes all of the answer: bodies of its messages.
fn ask(protocol: Protocol, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, Some(protocol))?;
    send(&socket, request, SendFlags::empty())?;
    let (mut answers, mut room) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let (length, _) = recv(&socket, &mut room, RecvFlags::empty())?;
        let mut rest = &room[..length];
        while rest.len() >= 16 {
            let end = (word(rest, 0) as usize).clamp(16, rest.len());
            let body = &rest[16..end];
            match half(rest, 4) {
                DONE => return Ok(answers),
                ERROR if word(body, 0) == 0 => return Ok(answers),
                ERROR => {
                    let errno = word(body, 0).cast_signed().saturating_neg();
                    return Err(io::Error::from_raw_os_error(errno));
                }
                _ => answers.push(body.to_vec()),
            }
            rest = &rest[end.next_multiple_of(4).min(rest.len())..];
        }
    }
}

/// Attributes: kind and value.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let end = usize::from(half(bytes, 0)).clamp(4, bytes.len());
        found.push((half(bytes, 2) & 0x3fff, &bytes[4..end]));
        bytes = &bytes[end.next_multiple_of(4).min(bytes.len())..];
    }
    found
}

/// The number of SMC's family.
fn family() -> Result<u16, Box<dyn Error>> {
    let look = [vec![GET_FAMILY, 1, 0, 0], attribute(FAMILY_NAME, b"SMC_GEN_NETLINK\0")].concat();
    let answers = ask(GENERIC, &message(CONTROLLER, ACK, &look))?;
    let family = answers.first().and_then(|answer| {
        attributes(answer.get(4..)?).into_iter().find(|(kind, _)| *kind == FAMILY_ID)
    });
    Ok(family.map(|(_, value)| half(value, 0)).ok_or("the kernel knows no SMC")?)
}

/// Says how many link groups there are.
pub fn groups() -> Result<(), Box<dyn Error>> {
    let groups = ask(GENERIC, &message(family()?, DUMP, &[GET_GROUPS, 1, 0, 0]))?;
    println!("{}", groups.len());
    Ok(())
}

/// Enters an EID of the host.
pub fn add_eid(name: &str) -> Result<(), Box<dyn Error>> {
    let eid = format!("{name:<32}\0");
    let add = [vec![ADD_EID, 1, 0, 0], attribute(EID, eid.as_bytes())].concat();
    ask(GENERIC, &message(family()?, ACK, &add))?;
    Ok(())
}

/// Says of every socket its state, and whether it is SMC's or TCP's, with the reason.
pub fn list() -> Result<(), Box<dyn Error>> {
    // `struct smc_diag_req`: family, protocol, extensions, an identity.
    let mut request = vec![u8::try_from(AF_SMC)?, 0, 1 << (FALLBACK - 1), 0];
    request.resize(4 + 48, 0);
    for socket in ask(SOCK_DIAG, &message(BY_FAMILY, DUMP, &request))? {
        // `struct smc_diag_msg`: family, state, mode, shutdown, an identity, user, inode.
        let [_, state, mode, ..] = socket[..] else { continue };
        let said = attributes(socket.get(4 + 48 + 12..).unwrap_or_default());
        let fallback = said.into_iter().find(|(kind, _)| *kind == FALLBACK);
        let (reason, peers) =
            fallback.map_or((0, 0), |(_, value)| (word(value, 0), word(value, 4)));
        let mode = ["smc-r", "tcp", "smc-d"].get(usize::from(mode)).unwrap_or(&"unknown");
        println!("state {state} {mode} reason {reason:#010x} peer {peers:#010x}");
    }
    Ok(())
}
