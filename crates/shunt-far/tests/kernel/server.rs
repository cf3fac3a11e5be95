//! A kernel with an `AF_SMC` server, over the device in the process: one queue pair, and programs that send and take bytes.

use shunt_smc::Connection;
use shunt_smc::wire::cdc::{Cdc, KIND};
use shunt_smc::wire::clc::{Accept, End, FirstContact, Host};
use shunt_smc::wire::llc::{ConfirmLink, ConfirmRkey, DeleteRkey, Llc, TestLink};
use shunt_smc::wire::{LINK_MESSAGE, LONGEST_LINK_MESSAGE, RmbSize};
use shunt_verbs::Memory;
use shunt_verbs::fake::{FakePair, FakePort, FakeQueue, FakeRegion};
use shunt_verbs::port::{Completions, Pair, Patience, Port, Queue, Region};
use shunt_verbs::value::{
    Access, Capacity, Done, Failure, Operation, PacketNumber, Piece, ReceiveRequest, RemoteKey,
    SendRequest,
};

use crate::scripted::{self, Server};
use crate::{KERNEL, PROGRAM, byte};

/// Messages on their way, and receive requests (`smc_wr.h`: `SMC_WR_BUF_CNT`).
const SENDS: usize = 16;
const RECEIVES: usize = 48;
const RECEIVE: u64 = 1 << 32;

/// One connection of the server's.
pub struct Line {
    pub end: End,
    /// `None`: it was not confirmed.
    pub connection: Option<Connection>,
    rmb: Memory,
    region: FakeRegion,
    /// The client's ring, once it was confirmed.
    client: Option<RemoteKey>,
    client_end: Option<End>,
    /// As long as the client's ring.
    source: Option<(Memory, FakeRegion, u64)>,
    /// Bytes that the program has given, those that were placed, and those that it has read.
    pub given: u64,
    pub placed: u64,
    pub read: u64,
    finishes: bool,
}

impl Line {
    pub fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().unwrap()
    }
}

pub struct Kernel {
    pub port: FakePort,
    queue: FakeQueue,
    pub pair: FakePair,
    outbox: (Memory, FakeRegion),
    inbox: (Memory, FakeRegion),
    sending: Vec<bool>,
    pub llc: Server,
    pub lines: Vec<Line>,
    has_link: bool,
    pub failure: Option<Failure>,
    /// It takes messages, and says nothing.
    pub is_silent: bool,
    /// It refuses rings.
    pub refuses: bool,
    /// Of a link group.
    pub most_connections: u8,
    /// It takes no more messages than it has receive requests now.
    pub is_deaf: bool,
    /// It breaks rules.
    pub breaks: bool,
}

impl Kernel {
    pub fn new(port: FakePort) -> Self {
        let queue = port.queue(1024, &port.channel().unwrap(), 0, 0).unwrap();
        let (send, receive) = (u32::try_from(SENDS * 3).unwrap(), u32::try_from(RECEIVES).unwrap());
        let pair = port.pair(&queue, Capacity { send, receive, pieces: 1 }).unwrap();
        pair.initialize().unwrap();
        let memory = |bytes, access| {
            let memory = Memory::new(bytes).unwrap();
            let region = port.register(&memory, 0..bytes, access).unwrap();
            (memory, region)
        };
        let outbox = memory(SENDS * LONGEST_LINK_MESSAGE, Access::Local);
        let inbox = memory(RECEIVES * LINK_MESSAGE, Access::LocalWrite);
        let it = Self {
            port,
            queue,
            pair,
            outbox,
            inbox,
            sending: vec![false; SENDS],
            llc: Server::with(&["SHUNT"]),
            lines: Vec::new(),
            has_link: false,
            failure: None,
            is_silent: false,
            refuses: false,
            most_connections: 32,
            is_deaf: false,
            breaks: false,
        };
        (0..RECEIVES).for_each(|at| it.post_receive(at));
        it
    }

    fn host(&self) -> Host {
        Host { gid: self.port.gid(), ..scripted::host(3) }
    }

    fn post_receive(&self, at: usize) {
        let piece = self.inbox.1.piece(at * LINK_MESSAGE..(at + 1) * LINK_MESSAGE).unwrap();
        self.pair.post_receive(&ReceiveRequest { id: RECEIVE | at as u64, piece }).unwrap();
    }

    /// A connection comes: a ring for it, of which the client hears on the link unless there is none.
    pub fn prepare(&mut self, size: RmbSize) -> usize {
        let bytes = size.bytes() as usize;
        let rmb = Memory::new(bytes).unwrap();
        let region = self.port.register(&rmb, 0..bytes, Access::RemoteWrite).unwrap();
        let token = 1000 + u32::try_from(self.lines.len()).unwrap();
        let end = End {
            host: self.host(),
            pair: self.pair.number(),
            first_packet: PacketNumber::new(77),
            mtu: self.port.mtu(),
            rmb: region.as_remote(),
            index: 1,
            size,
            token,
        };
        if self.has_link {
            self.say(Llc::ConfirmRkey(ConfirmRkey::of_ring(end.rmb)));
        }
        let (given, placed, read) = (0, 0, 0);
        self.lines.push(Line {
            end,
            connection: None,
            rmb,
            region,
            client: None,
            client_end: None,
            source: None,
            given,
            placed,
            read,
            finishes: false,
        });
        self.lines.len() - 1
    }

    /// What its accept says.
    pub fn accept(&self, line: usize) -> Accept {
        let end = self.lines[line].end;
        let contact =
            FirstContact { max_connections: self.most_connections, ..scripted::contact() };
        let first_contact = (!self.has_link).then_some(contact);
        Accept { end, eid: scripted::eid("SHUNT"), first_contact }
    }

    /// The client has confirmed.
    pub fn confirm(&mut self, line: usize, client: &End) {
        let bytes = client.size.bytes() as usize;
        let memory = Memory::new(bytes).unwrap();
        let region = self.port.register(&memory, 0..bytes, Access::Local).unwrap();
        let it = &mut self.lines[line];
        (it.client, it.client_end) = (Some(client.rmb.key), Some(*client));
        it.source = Some((memory, region, client.ring().address));
        it.connection = Some(Connection::new(it.end.size, client));
        if !self.has_link {
            self.has_link = true;
            self.pair.receive_from(&client.peer_pair()).unwrap();
            self.pair.send_with(PacketNumber::new(77), Patience::DEFAULT).unwrap();
            self.say(Llc::ConfirmLink(self.confirm_link()));
        }
    }

    pub fn confirm_link(&self) -> ConfirmLink {
        let Host { mac, gid, .. } = self.host();
        ConfirmLink {
            is_answer: false,
            is_plain: true,
            mac,
            gid,
            pair: self.pair.number(),
            link: 1,
            id: [9; 4],
            max_links: 2,
            max_connections: 32,
        }
    }

    /// What the client has confirmed.
    pub fn client(&self, line: usize) -> End {
        self.lines[line].client_end.unwrap()
    }

    /// Takes what has come, and looks at none of it.
    pub fn drain(&mut self) {
        let mut completions = Completions::default();
        self.queue.poll(&mut completions).unwrap();
        for completion in completions.drain() {
            let at = usize::try_from(completion.id & !RECEIVE).unwrap();
            match completion.outcome {
                Ok(Done::Sent) => self.sending[at] = false,
                Ok(_) => self.post_receive(at),
                // What is posted from now on is flushed.
                Err(_) => self.sending = vec![false; SENDS],
            }
        }
    }

    pub fn say(&mut self, message: Llc) {
        self.llc.says.push_back(message);
    }

    /// Rings of clients that it was told of on the link, and not told to forget.
    pub fn known(&self) -> Vec<RemoteKey> {
        let mut known = Vec::new();
        for message in &self.llc.heard {
            match message {
                Llc::ConfirmRkey(ring) if !ring.is_answer => known.push(ring.rmb.key),
                Llc::DeleteRkey(DeleteRkey { is_answer: false, keys, .. }) => {
                    known.retain(|key| !keys.contains(key));
                }
                _ => {}
            }
        }
        known
    }

    /// Keys that it was told to forget.
    pub fn withdrawn(&self) -> Vec<RemoteKey> {
        let keys = self.llc.heard.iter().filter_map(|message| match message {
            Llc::DeleteRkey(DeleteRkey { is_answer: false, keys, .. }) => Some(keys.clone()),
            _ => None,
        });
        keys.flatten().collect()
    }

    /// Takes what has come, and sends what there is room for. True if anything moved.
    pub fn turn(&mut self) -> bool {
        let (mut completions, mut moved) = (Completions::default(), false);
        self.queue.poll(&mut completions).unwrap();
        for completion in completions.drain() {
            moved = true;
            let at = usize::try_from(completion.id & !RECEIVE).unwrap();
            match completion.outcome {
                Ok(Done::Sent) => self.sending[at] = false,
                Ok(Done::Received(length)) => {
                    assert_eq!(length, 44, "a client says nothing that is longer");
                    let mut bytes = [0; LINK_MESSAGE];
                    self.inbox.0.read(at * LINK_MESSAGE, &mut bytes).unwrap();
                    if !self.is_deaf {
                        self.post_receive(at);
                    }
                    self.hear(&bytes);
                }
                Ok(Done::Written { .. }) => panic!("a write that tells"),
                Err(failure) => {
                    self.failure.get_or_insert(failure);
                }
            }
        }
        if self.failure.is_none() && self.has_link {
            moved |= self.speak();
        }
        moved
    }

    fn hear(&mut self, bytes: &[u8; LINK_MESSAGE]) {
        if bytes[0] != KIND {
            self.llc.hear(bytes);
            self.is_in_order();
            if let Some(Llc::ConfirmRkey(ring)) = self.llc.says.back_mut() {
                ring.is_refused |= ring.is_answer && self.refuses;
            }
            if let Ok(Llc::TestLink(test @ TestLink { is_answer: false, .. })) = Llc::parse(bytes) {
                self.say(Llc::TestLink(TestLink { is_answer: true, ..test }));
            }
            if self.is_silent {
                self.llc.says.clear();
            }
            return;
        }
        let message = Cdc::parse(bytes).unwrap();
        let line = self.lines.iter_mut().find(|line| line.end.token == message.token).unwrap();
        if let Some(connection) = &mut line.connection {
            connection.receive(&message).expect("the client keeps the rules");
        }
    }

    /// A client withdraws a ring when both ends are closed. One that has broken a rule hears of the abort before.
    fn is_in_order(&mut self) {
        let Some(Llc::DeleteRkey(DeleteRkey { is_answer: false, keys, .. })) =
            self.llc.heard.last()
        else {
            return;
        };
        for line in &mut self.lines {
            let is_named = line.client.take_if(|key| keys.contains(key)).is_some();
            let token = line.end.token;
            let Some(connection) = line.connection.as_mut().filter(|_| is_named) else { continue };
            let state = connection.peer_state();
            assert!(state.is_closed || state.is_aborted, "{token}: the client is there");
            assert!(self.breaks || connection.is_closed(), "{token}: it would write");
        }
    }

    fn speak(&mut self) -> bool {
        let mut moved = false;
        while let Some(message) = self.can_send().then(|| self.llc.says.pop_front()).flatten() {
            self.send(&message.bytes());
            moved = true;
        }
        for at in 0..self.lines.len() {
            while self.can_send() && self.stream(at) {
                moved = true;
            }
        }
        moved
    }

    fn can_send(&self) -> bool {
        self.sending.iter().any(|is_busy| !is_busy)
    }

    /// Places bytes of a connection, and says what there is to be said.
    fn stream(&mut self, at: usize) -> bool {
        let line = &mut self.lines[at];
        let (Some(connection), Some((memory, region, ring))) = (&mut line.connection, &line.source)
        else {
            return false;
        };
        let mut writes = Vec::new();
        if let Some(placement) = connection.produce(line.given - line.placed) {
            assert_eq!(placement.place, line.placed);
            for (to, length) in placement.parts {
                let from = usize::try_from(to.address - ring).unwrap();
                let bytes: Vec<u8> = (line.placed..line.placed + u64::from(length))
                    .map(|place| byte(line.end.token, KERNEL, place))
                    .collect();
                if length > 0 {
                    memory.write(from, &bytes).unwrap();
                    writes.push((region.piece(from..from + bytes.len()).unwrap(), to));
                }
                line.placed += u64::from(length);
            }
        }
        if line.finishes && line.placed == line.given {
            connection.finish();
        }
        let message = connection.message();
        for (piece, to) in writes {
            self.post(u64::MAX, Operation::Write(to), piece, false);
        }
        message.is_some_and(|message| self.send(&message))
    }

    /// Sends any bytes on the link.
    pub fn send(&mut self, message: &[u8]) -> bool {
        let at = self.sending.iter().position(|is_busy| !is_busy).unwrap();
        let from = at * LONGEST_LINK_MESSAGE;
        self.outbox.0.write(from, message).unwrap();
        let piece = self.outbox.1.piece(from..from + message.len()).unwrap();
        self.sending[at] = true;
        self.post(at as u64, Operation::Send, piece, true);
        true
    }

    fn post(&self, id: u64, operation: Operation, piece: Piece, signaled: bool) {
        let pieces = &[piece];
        let request = SendRequest { id, operation, pieces, signaled, solicited: signaled };
        self.pair.post_send(&request).unwrap();
    }

    /// The program takes so many bytes at most, and compares them.
    pub fn take(&mut self, line: usize, most: u32) -> u32 {
        let line = &mut self.lines[line];
        let Some(connection) = &mut line.connection else { return 0 };
        let mut left = most.min(connection.readable());
        let taken = left;
        for part in connection.unread() {
            let mut bytes = vec![0; part.len().min(left as usize)];
            line.rmb.read(part.start as usize, &mut bytes).unwrap();
            for got in &bytes {
                let wanted = byte(line.end.token, PROGRAM, line.read);
                assert_eq!(*got, wanted, "byte {} of {}", line.read, line.end.token);
                line.read += 1;
            }
            left -= u32::try_from(bytes.len()).unwrap();
        }
        connection.consume(taken);
        taken
    }

    /// The program sends so many bytes more, unless it has ended its direction.
    pub fn give(&mut self, line: usize, bytes: u64) {
        let line = &mut self.lines[line];
        line.given += if line.finishes { 0 } else { bytes };
    }

    /// The program ends its direction behind what it has given.
    pub fn finish(&mut self, line: usize) {
        self.lines[line].finishes = true;
    }

    /// It forgets a ring of its own, and tells.
    pub fn forget(&mut self, line: usize) {
        let keys = vec![self.lines[line].region.remote_key()];
        self.say(Llc::DeleteRkey(DeleteRkey { is_answer: false, unknown: 0, keys }));
    }
}
