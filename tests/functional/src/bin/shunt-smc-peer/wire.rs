//! The client's device: a queue pair, room for messages, and registered memory.

use std::error::Error;
use std::time::Duration;

use shunt_smc::wire::clc::End;
use shunt_smc::wire::{LINK_MESSAGE, LONGEST_LINK_MESSAGE};
use shunt_verbs::QueuePair;
use shunt_verbs::port::{Completions, Pair, Patience, Port, Queue, Region};
use shunt_verbs::value::{
    Access, Capacity, Done, Mtu, Operation, PacketNumber, PairNumber, Piece, ReceiveRequest,
    SendRequest,
};
use shunt_verbs::{CompletionChannel, CompletionQueue, Device, Library, Memory, MemoryRegion};

/// Messages on their way out, and room for those that come: as the kernel has.
const SENDS: usize = 16;
const RECEIVES: usize = 48;
/// Of names of requests: it is a receive request.
const RECEIVE: u64 = 1 << 32;

/// A device with one queue pair.
pub struct Wire {
    pub device: Device,
    queue: CompletionQueue,
    pub pair: QueuePair,
    outbox: Memory,
    inbox: Memory,
    outbox_region: MemoryRegion,
    inbox_region: MemoryRegion,
    /// Places in the outbox that the device has.
    sending: Vec<bool>,
    _channel: CompletionChannel,
}

/// A ring in registered memory.
pub struct Ring {
    pub memory: Memory,
    pub region: MemoryRegion,
}

impl Wire {
    /// Opens it.
    pub fn open(name: &str) -> Result<Self, Box<dyn Error>> {
        let device = Device::open(&Library::load()?, name, 1, None)?;
        let device = device.with_patience(Patience::SOFTWARE);
        let channel = device.channel()?;
        let room = u32::try_from(SENDS * 3 + RECEIVES)?;
        let queue = device.queue(room, &channel, 0, 0)?;
        let capacity = Capacity {
            send: u32::try_from(SENDS * 3)?,
            receive: u32::try_from(RECEIVES)?,
            pieces: 1,
        };
        let pair = device.pair(&queue, capacity)?;
        pair.initialize()?;
        let outbox = Memory::new(SENDS * LINK_MESSAGE)?;
        let inbox = Memory::new(RECEIVES * LONGEST_LINK_MESSAGE)?;
        let outbox_region = device.register(&outbox, 0..outbox.len(), Access::Local)?;
        let inbox_region = device.register(&inbox, 0..inbox.len(), Access::LocalWrite)?;
        Ok(Self {
            device,
            queue,
            pair,
            outbox,
            inbox,
            outbox_region,
            inbox_region,
            sending: vec![false; SENDS],
            _channel: channel,
        })
    }

    pub fn number(&self) -> PairNumber {
        self.pair.number()
    }

    pub fn mtu(&self) -> Mtu {
        self.device.mtu()
    }

    /// Memory of so many bytes.
    pub fn ring(&self, bytes: u32, access: Access) -> Result<Ring, Box<dyn Error>> {
        let memory = Memory::new(bytes as usize)?;
        let region = self.device.register(&memory, 0..bytes as usize, access)?;
        Ok(Ring { memory, region })
    }

    /// Receives from the server from now on.
    pub fn receive_from(&self, server: &End) -> Result<(), Box<dyn Error>> {
        let mut peer = server.peer_pair();
        peer.mtu = peer.mtu.min(self.mtu());
        for place in 0..RECEIVES {
            self.post_receive(place)?;
        }
        Ok(self.pair.receive_from(&peer)?)
    }

    /// Sends from now on.
    pub fn send_from(&self, first: PacketNumber) -> Result<(), Box<dyn Error>> {
        Ok(self.pair.send_with(first, Patience::SOFTWARE)?)
    }

    fn post_receive(&self, place: usize) -> Result<(), Box<dyn Error>> {
        let from = place * LONGEST_LINK_MESSAGE;
        let piece = self.inbox_region.piece(from..from + LONGEST_LINK_MESSAGE);
        let piece = piece.ok_or("no room")?;
        Ok(self.pair.post_receive(&ReceiveRequest { id: RECEIVE | place as u64, piece })?)
    }

    /// True if another message can be sent.
    pub fn can_send(&self) -> bool {
        self.sending.iter().any(|is_busy| !is_busy)
    }

    /// Sends a message.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Box<dyn Error>> {
        let place = self.sending.iter().position(|is_busy| !is_busy).ok_or("no room")?;
        let from = place * LINK_MESSAGE;
        self.outbox.write(from, message).ok_or("a message that is too long")?;
        let piece = self.outbox_region.piece(from..from + message.len()).ok_or("no room")?;
        self.sending[place] = true;
        self.post(place as u64, Operation::Send, piece, true)
    }

    /// Writes a part of own memory into the server's.
    pub fn write(&self, operation: Operation, piece: Piece) -> Result<(), Box<dyn Error>> {
        self.post(u64::MAX, operation, piece, false)
    }

    fn post(
        &self,
        id: u64,
        operation: Operation,
        piece: Piece,
        signaled: bool,
    ) -> Result<(), Box<dyn Error>> {
        let pieces = &[piece];
        Ok(self.pair.post_send(&SendRequest {
            id,
            operation,
            pieces,
            signaled,
            solicited: false,
        })?)
    }

    /// Messages that have come.
    pub fn poll(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        let (mut completions, mut came) = (Completions::default(), Vec::new());
        self.queue.poll(&mut completions)?;
        for completion in completions.drain() {
            let done = completion.outcome.map_err(|why| format!("the queue pair failed: {why}"))?;
            let place = usize::try_from(completion.id & !RECEIVE).unwrap_or(0);
            match done {
                Done::Received(length) => {
                    let mut bytes = vec![0; length as usize];
                    let from = place * LONGEST_LINK_MESSAGE;
                    self.inbox.read(from, &mut bytes).ok_or("a message that is too long")?;
                    self.post_receive(place)?;
                    came.push(bytes);
                }
                Done::Sent => self.sending[place] = false,
                Done::Written { .. } => return Err("a message without bytes".into()),
            }
        }
        Ok(came)
    }
}

/// How long a server that is emulated may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
