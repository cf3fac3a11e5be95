//! A program with a connection to such a server, and its agent, as far as the memory shows them.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use shunt_rdma::SharedMemory;
use shunt_shm::cq::Push;
use shunt_shm::doorbell::{self, AWAKE, ON_BELL};
use shunt_shm::ivshmem::{Control, EXTENT, Home, Kind, offset, table_offset};
use shunt_shm::region::{self, CLOSED, Geometry, Region, Section, Side, queue_place, shape};
use shunt_shm::ring::{Content, RxCursor, Span, TxCursor, UNLIMITED};
use shunt_shm::sync::Ordering;
use shunt_shm::table::{Place, Table};
use shunt_verbs::Memory;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::RegionId;
use shunt_wire::clc::{Answer, Proposal};
use shunt_wire::reason::Reason;

use crate::serving::Serving;
use crate::wait::until;
use crate::{KERNEL, PROGRAM, byte};

/// The region's name, and its programs'.
const REGION: RegionId = 77;
const ENDPOINT: u64 = 78;
/// The agent's number in the memory.
const AGENT: u16 = 0;

const RING: usize = Geometry::Device.ring();

/// The agent, with a region for connections to a server.
pub struct Agent {
    memory: Arc<SharedMemory>,
    server: SocketAddr,
    region: Arc<Region>,
    table: Table,
    _control: Control,
}

impl Agent {
    /// Once the server is there, as a member of the memory.
    pub fn new(memory: Arc<SharedMemory>, server: SocketAddr) -> Self {
        let control = Control::map(memory.fd(), memory.len()).unwrap();
        let me = control.join(1, Some(AGENT), 2).unwrap();
        let extent = control.take_extent(me).unwrap();
        let before = control.extent(extent).kind();
        let region = region::create_in_device(memory.fd(), offset(extent), REGION, before).unwrap();
        control.describe(extent, Kind::Region, EXTENT, ENDPOINT, REGION);
        let region = Arc::new(region);
        let mut table = None;
        until("the server", || {
            table = find(&control, &memory, server);
            table.is_some()
        });
        Self { memory, server, region, table: table.unwrap(), _control: control }
    }

    /// It is told that programs have proposed connections.
    pub fn is_told(&self) {
        self.memory.proposed(REGION);
    }

    /// Both ends have let go of a place.
    pub fn is_free(&self, slot: usize) -> bool {
        let sides = [Side::Client, Side::Server].map(|side| &self.section(slot, side).setup.done);
        sides.iter().all(|done| done.load(Ordering::Acquire) != 0)
    }

    /// A program passes a socket, connects it, takes its proposal back before anybody has looked at it, and closes.
    pub fn takes_back(&self, slot: usize, pass: impl FnOnce(RegionId, OwnedFd)) {
        let stream = TcpStream::connect(self.server).unwrap();
        pass(REGION, stream.try_clone().unwrap().into());
        let [local, peer] = [stream.local_addr(), stream.peer_addr()].map(Result::unwrap);
        let setup = &self.section(slot, Side::Client).setup;
        setup.set_tuple(&FourTuple { local: local.into(), peer: peer.into() });
        setup.generation.fetch_add(1, Ordering::Relaxed);
        setup.state.store(Proposal::Withdrawn as u32, Ordering::Release);
        self.is_told();
    }

    fn section(&self, slot: usize, side: Side) -> &Section {
        self.region.view().section(slot, side)
    }
}

/// The proposals to a server.
fn find(control: &Control, memory: &SharedMemory, server: SocketAddr) -> Option<Table> {
    let others = control.members().filter(|m| control.member(m.index).peer() != Some(AGENT));
    let home = others.filter_map(|member| control.home_of(member)).next()?;
    let at = Home::map(memory.fd(), offset(home)).ok()?;
    let mut listeners = at.listeners();
    let (place, _) = listeners.find(|(_, known)| known.addr == Addr::from(server))?;
    Table::map_device(memory.fd(), offset(home) + table_offset(place)).ok()
}

/// A program.
pub struct Program<'a> {
    agent: &'a Agent,
    slot: usize,
    stream: TcpStream,
    rings: Memory,
    tx: TxCursor,
    rx: RxCursor,
    passed: Cell<u32>,
}

impl<'a> Program<'a> {
    /// Passes a socket, connects it, and proposes that.
    pub fn connect(agent: &'a Agent, slot: usize, pass: impl FnOnce(RegionId, OwnedFd)) -> Self {
        Self::connect_and(agent, slot, pass, || ())
    }

    /// The same; `meanwhile` happens when it has said that it proposes, and has not posted that.
    pub fn connect_and(
        agent: &'a Agent,
        slot: usize,
        pass: impl FnOnce(RegionId, OwnedFd),
        meanwhile: impl FnOnce(),
    ) -> Self {
        let stream = TcpStream::connect(agent.server).unwrap();
        pass(REGION, stream.try_clone().unwrap().into());
        let [local, peer] = [stream.local_addr(), stream.peer_addr()].map(Result::unwrap);
        let tuple = FourTuple { local: local.into(), peer: peer.into() };
        let setup = &agent.section(slot, Side::Client).setup;
        [Side::Client, Side::Server].iter().for_each(|side| agent.section(slot, *side).reset());
        let generation = setup.generation.load(Ordering::Relaxed) + 1;
        setup.generation.store(generation, Ordering::Relaxed);
        setup.set_tuple(&tuple);
        setup.endpoint.store(ENDPOINT, Ordering::Relaxed);
        // It waits for what the server says first.
        doorbell::arm(&agent.section(slot, Side::Client).ctl.rx_arm, ON_BELL);
        setup.state.store(Proposal::Proposed as u32, Ordering::Release);
        meanwhile();
        let place = Place { region: REGION, slot, generation };
        agent.table.post(&tuple.reversed(), place).unwrap();
        agent.memory.proposed(REGION);
        let rings = Memory::rings(&agent.region, slot).unwrap();
        let (tx, rx, passed) = (TxCursor::default(), RxCursor::default(), Cell::new(0));
        Self { agent, slot, stream, rings, tx, rx, passed }
    }

    fn mine(&self) -> &Section {
        self.agent.section(self.slot, Side::Client)
    }

    fn theirs(&self) -> &Section {
        self.agent.section(self.slot, Side::Server)
    }

    fn answer(&self) -> Option<Answer> {
        Answer::from_code(self.theirs().setup.state.load(Ordering::Acquire))
    }

    /// Then it goes into the ring.
    pub fn until_answered(&self) {
        until("an answer", || self.answer() == Some(Answer::Accepted));
        self.mine().setup.state.store(Proposal::Active as u32, Ordering::Release);
        TxCursor::set_mark(&self.mine().prod, 0);
        self.tell();
    }

    /// It was, and has been woken for that.
    pub fn is_declined(&self) -> bool {
        let is_awake = self.mine().ctl.rx_arm.load(Ordering::Acquire) == AWAKE;
        self.answer() == Some(Answer::Declined) && is_awake
    }

    /// Why it was declined, or reset.
    pub fn why(&self) -> Option<Reason> {
        self.theirs().setup.reason()
    }

    /// The kernel has ended its TCP connection in both directions.
    pub fn has_ended(&self) -> bool {
        let mut stream = &self.stream;
        matches!(stream.read(&mut [0]), Ok(0)) && stream.write(&[0]).is_err()
    }

    /// Its bytes go over TCP: what the server has got, and has not sent to it.
    pub fn exchange_over_tcp(&self, serving: &Serving, call: usize) -> String {
        let mut stream = &self.stream;
        stream.write_all(b"no word of anything else").unwrap();
        let mut got = Vec::new();
        until("bytes over TCP", || {
            got = serving.rest(call);
            got.len() >= 24
        });
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "nothing of the agreement");
        String::from_utf8(got).unwrap()
    }

    /// Says that it has published something, as its peer's section asks.
    fn tell(&self) {
        let theirs = self.theirs();
        let Some((lane, vector)) = queue_place(theirs.ctl.queue.load(Ordering::Acquire)) else {
            return;
        };
        let queue = self.agent.region.view().lane(lane).vector(vector);
        if queue.queue.push(&queue.arm, self.slot) == Push::Ring {
            let worker = self.agent.memory.means().unwrap().remove(1);
            std::fs::File::from(worker).write_all(&1_u64.to_ne_bytes()).unwrap();
        }
    }

    /// Sends so many bytes at most.
    pub fn send(&self, serving: &Serving, line: usize, most: u64) -> u64 {
        let wish = shape(Side::Server, RING as u64);
        let want = (most, Content::Put);
        let span =
            self.tx.reserve(&self.theirs().cons, RING as u64, wish, UNLIMITED, want).unwrap();
        let (from, label) = (self.tx.pos(), serving.label(line));
        let bytes: Vec<u8> =
            (from..from + span.len() as u64).map(|place| byte(label, PROGRAM, place)).collect();
        let (head, tail) = bytes.split_at(span.head.1);
        let at = Side::Server as usize * RING;
        self.rings.write(at + span.head.0, head).unwrap();
        self.rings.write(at + span.tail.0, tail).unwrap();
        self.tx.publish(&self.mine().prod, span.len() as u64);
        self.tell();
        span.len() as u64
    }

    /// Takes what has come, and compares it.
    fn take(&self, label: u32) -> u64 {
        let theirs = self.theirs();
        if self.passed.get() == 0 {
            assert_eq!(RxCursor::next_mark(&theirs.prod, 0).unwrap(), Some(0));
            self.passed.set(1);
            self.mine().cons.marks_passed.store(1, Ordering::Release);
        }
        let mut place = self.rx.pos();
        let span = self.rx.readable(&theirs.prod, RING as u64, u64::MAX).unwrap();
        let Span { head, tail } = span;
        for (from, len) in [head, tail] {
            let mut bytes = vec![0; len];
            self.rings.read(Side::Client as usize * RING + from, &mut bytes).unwrap();
            for got in bytes {
                assert_eq!(got, byte(label, KERNEL, place), "byte {place} of {label}");
                place += 1;
            }
        }
        let _ = self.rx.consume(&self.mine().cons, RING as u64, span.len() as u64);
        self.tell();
        span.len() as u64
    }

    /// So many bytes there and back.
    pub fn exchange(&mut self, serving: &Serving, line: usize, bytes: u64) {
        serving.gives(line, bytes);
        let (mut sent, mut came) = (0, 0);
        until("all bytes", || {
            sent += self.send(serving, line, bytes - sent);
            came += self.take(serving.label(line));
            (sent, came, serving.has_read(line)) == (bytes, bytes, bytes)
        });
    }

    /// As a program ends its connection.
    pub fn close(self) {
        let mine = self.mine();
        mine.prod.fin.store(1, Ordering::Release);
        mine.ctl.closed.store(CLOSED, Ordering::Release);
        mine.setup.done.store(1, Ordering::Release);
        self.tell();
        drop(self.stream);
    }
}
