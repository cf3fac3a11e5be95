//! One connection of the client.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use shunt_functional::pattern::{fill, verify};
use shunt_smc::handshake::Event;
use shunt_smc::wire::RmbSize;
use shunt_smc::wire::cdc::Cdc;
use shunt_smc::wire::clc::{Accept, Diagnosis, End, Host};
use shunt_smc::{Connection, Handshake, Link};
use shunt_verbs::port::Region;
use shunt_verbs::value::{Access, Operation, PacketNumber, RemoteKey};

use super::super::server::URGENT;
use super::super::wire::{Ring, Wire};

/// How far a connection is on its way to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// All bytes stay between both ends.
    Not,
    /// This end is to finish, and to close when the server has.
    Wanted,
    /// This end has closed, or has aborted.
    Closed,
}

/// What a handshake has come to.
pub enum Ready {
    /// It is for this end to get ready.
    Accepted,
    /// Over.
    Agreed,
}

/// One connection.
pub struct Line {
    pub stream: TcpStream,
    pub handshake: Handshake,
    /// Also its token, and its stream's label.
    pub number: u32,
    pub accept: Option<Accept>,
    pub declined: Option<(Diagnosis, bool)>,
    pub is_first: bool,
    pub is_withdrawn: bool,
    ending: Ending,
    /// Bytes behind the stream: an urgent one, in each direction.
    urgent: u64,
    own: Option<End>,
    /// What the server writes into, and what is written from: as long as the server's.
    ring: Option<Ring>,
    source: Option<Ring>,
    connection: Option<Connection>,
    is_ready: bool,
    total: u64,
    sent: u64,
    came: u64,
    trailer: Vec<u8>,
}

impl Line {
    pub fn new(stream: TcpStream, handshake: Handshake, number: u32, total: u64) -> Self {
        Self {
            stream,
            handshake,
            number,
            accept: None,
            declined: None,
            is_first: false,
            is_withdrawn: false,
            ending: Ending::Not,
            urgent: 0,
            own: None,
            ring: None,
            source: None,
            connection: None,
            is_ready: false,
            total,
            sent: 0,
            came: 0,
            trailer: Vec::new(),
        }
    }

    /// The server has said yes or no.
    pub fn is_agreed(&self) -> bool {
        self.is_ready || self.declined.is_some() && self.handshake.outgoing().is_empty()
    }

    /// All bytes are back.
    pub fn is_back(&self) -> bool {
        self.came == self.total
    }

    /// Bytes that are back.
    pub fn back(&self) -> u64 {
        self.came
    }

    /// Both ends have closed.
    pub fn is_over(&self) -> bool {
        self.connection.as_ref().is_none_or(Connection::is_over)
    }

    pub fn has_key(&self, key: RemoteKey) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.region.remote_key() == key)
    }

    pub fn writes_into(&self, key: RemoteKey) -> bool {
        self.accept.is_some_and(|accept| accept.end.rmb.key == key)
    }

    /// Moves the handshake.
    pub fn talk(&mut self, now: Duration) -> Result<Option<Ready>, Box<dyn Error>> {
        while !self.handshake.outgoing().is_empty() {
            match self.stream.write(self.handshake.outgoing()) {
                Ok(bytes) => self.handshake.sent(bytes),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e.into()),
            }
        }
        let mut room = [0; 512];
        while self.handshake.wanted() > 0 {
            let wanted = self.handshake.wanted().min(room.len());
            match self.stream.read(&mut room[..wanted]) {
                Ok(0) => return Err("the server has ended the connection".into()),
                Ok(bytes) => self.handshake.receive(&room[..bytes], now)?,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(match self.handshake.event() {
            Some(Event::Accepted(accept)) => {
                self.accept = Some(accept);
                Some(Ready::Accepted)
            }
            Some(Event::Ready) => {
                self.is_ready = true;
                Some(Ready::Agreed)
            }
            Some(Event::Declined { diagnosis, is_peers, .. }) => {
                self.declined = Some((diagnosis, is_peers));
                Some(Ready::Agreed)
            }
            None => None,
        })
    }

    /// Makes rings.
    pub fn prepare(
        &mut self,
        wire: &Wire,
        size: RmbSize,
        host: Host,
        first: PacketNumber,
    ) -> Result<(), Box<dyn Error>> {
        let accept = self.accept.ok_or("nothing was accepted")?;
        let ring = wire.ring(size.bytes(), Access::RemoteWrite)?;
        self.source = Some(wire.ring(accept.end.size.bytes(), Access::Local)?);
        self.own = Some(End {
            host,
            pair: wire.number(),
            first_packet: first,
            mtu: wire.mtu(),
            rmb: ring.region.as_remote(),
            index: 1,
            size,
            token: self.number,
        });
        self.ring = Some(ring);
        self.connection = Some(Connection::new(size, &accept.end));
        Ok(())
    }

    pub fn confirm(&mut self, now: Duration) {
        if let Some(own) = self.own {
            self.handshake.confirm(own, &[own.host.gid], now);
        }
    }

    pub fn announce(&mut self, link: &mut Link, now: Duration) {
        if let Some(own) = self.own {
            link.announce(own.rmb, now);
        }
    }

    pub fn is_announced(&mut self, is_taken: bool, now: Duration) {
        if is_taken {
            self.confirm(now);
        } else {
            self.handshake.decline(Diagnosis::KEY);
        }
    }

    pub fn withdraw(&self, link: &mut Link, now: Duration) {
        if let Some(own) = self.own {
            link.withdraw(own.rmb.key, now);
        }
    }

    /// It is to end, in good order or not, and with an urgent byte behind the stream or without.
    pub fn end(&mut self, is_aborted: bool, is_urgent: bool) {
        self.ending = Ending::Wanted;
        self.urgent = u64::from(is_urgent);
        if let (true, Some(connection)) = (is_aborted, &mut self.connection) {
            connection.abort();
            self.ending = Ending::Closed;
        }
    }

    pub fn hear(&mut self, message: &Cdc) -> Result<(), Box<dyn Error>> {
        if let Some(connection) = &mut self.connection {
            connection.receive(message).map_err(|why| format!("{}: {why}", self.number))?;
        }
        Ok(())
    }

    /// Takes what has come, and sends what there is room for.
    pub fn stream_bytes(&mut self, wire: &mut Wire) -> Result<(), Box<dyn Error>> {
        if !self.is_ready {
            return Ok(());
        }
        self.take()?;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        // Not more than that at a time.
        let all = self.total + self.urgent;
        if self.sent == self.total && self.sent < all {
            connection.mark_urgent(1);
        }
        let mut left = (all - self.sent).min(u64::from(RmbSize::SMALLEST.bytes()));
        while wire.can_send() {
            let placement = connection.produce(left);
            left -= placement.as_ref().map_or(0, |placement| u64::from(placement.length()));
            if let (Some(placement), Some(source), Some(accept)) =
                (placement, &self.source, self.accept)
            {
                for (to, length) in placement.parts.into_iter().filter(|(_, length)| *length > 0) {
                    let at = usize::try_from(to.address - accept.end.ring().address)?;
                    let mut bytes = vec![0; length as usize];
                    fill(self.number.into(), self.sent, &mut bytes);
                    if self.sent == self.total {
                        bytes.copy_from_slice(&URGENT);
                    }
                    source.memory.write(at, &bytes).ok_or("a place outside of the ring")?;
                    let piece = source.region.piece(at..at + bytes.len()).ok_or("no piece")?;
                    wire.write(Operation::Write(to), piece)?;
                    self.sent += u64::from(length);
                }
            }
            if self.sent == all && self.ending == Ending::Wanted {
                connection.finish();
                if connection.has_peer_finished() {
                    connection.close();
                    self.ending = Ending::Closed;
                }
            }
            let Some(message) = connection.message() else { break };
            wire.send(&message)?;
        }
        Ok(())
    }

    /// Compares what has come: the stream, and its length behind it.
    fn take(&mut self) -> Result<(), Box<dyn Error>> {
        let (Some(connection), Some(ring)) = (&mut self.connection, &self.ring) else {
            return Ok(());
        };
        let mut scratch = Vec::new();
        if let Some(until) = connection.urgent() {
            println!("{}: urgent at {}", self.number, self.came + u64::from(until) - 1);
        }
        for part in connection.unread() {
            let mut bytes = vec![0; part.len()];
            ring.memory.read(part.start as usize, &mut bytes).ok_or("outside of the ring")?;
            let left = usize::try_from(self.total - self.came)?.min(bytes.len());
            let (stream, more) = bytes.split_at(left);
            verify(self.number.into(), self.came, stream, &mut scratch)?;
            self.came += left as u64;
            self.trailer.extend(more);
        }
        connection.consume(connection.readable());
        let urgent: &[u8] = if self.urgent > 0 { &URGENT } else { &[] };
        let is_whole = self.trailer == [urgent, &self.total.to_le_bytes()].concat();
        if connection.has_peer_finished() && self.ending != Ending::Closed && !is_whole {
            let state = connection.peer_state();
            return Err(format!("the server ended with {:?} and {state:?}", self.trailer).into());
        }
        Ok(())
    }
}
