//! Any bytes that an NVMe host sends to a target: transport and commands, with and without keys.
#![no_main]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use shunt_nvme::auth::Secret;
use shunt_nvme::controller::{Event, Limits as QueueLimits, Queue, Transfer};
use shunt_nvme::subsystem::{
    Context, Hosts, Keys, Limits, NamespaceConfig, Plan, Reply, Session, SubsystemConfig, Target,
};
use shunt_nvme::transport::{Command, Next, Piece};
use shunt_nvme::wire::{Nqn, Sqe, Status, digest};

const DISK: &str = "nqn.2026-11.io.shunt:disk";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1";
const KEY: &str = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";

fn target(with_keys: bool) -> Target {
    let nqn = Nqn::new(DISK).expect("a name");
    let hosts = if with_keys {
        let keys = Keys { host: Secret::new(KEY).expect("a key"), controller: None };
        let host = Nqn::new(HOST).expect("a name");
        Hosts::Listed(BTreeMap::from([(host, Some(keys))]))
    } else {
        Hosts::Any
    };
    let mut target = Target::new(Limits::default());
    target.add_subsystem(SubsystemConfig {
        nqn: nqn.clone(),
        serial: "S".to_owned(),
        model: "M".to_owned(),
        firmware: "1".to_owned(),
        hosts,
    });
    let config = NamespaceConfig {
        blocks: 1024,
        block_shift: 9,
        uuid: [1; 16],
        nguid: [0; 16],
        ana_group: 1,
        read_only: false,
        write_cache: true,
        deallocate: true,
        preferred_write: 0,
    };
    target.add_namespace(&nqn, 1, config);
    target
}

struct Connection {
    queue: Queue,
    session: Session,
    entries: HashMap<Command, (Sqe, Transfer, Vec<u8>, Option<u64>)>,
    now: Duration,
}

impl Connection {
    fn new() -> Self {
        let (queue, session) = (Queue::new(QueueLimits::default()), Session::new(1));
        Self { queue, session, entries: HashMap::new(), now: Duration::ZERO }
    }

    fn events(&mut self, target: &mut Target) {
        while let Some(event) = self.queue.poll() {
            match event {
                Event::Command { command, sqe, transfer } => {
                    let plan = self.session.plan(target, &sqe, transfer);
                    let _ = self.session.unpaired();
                    let io = match plan {
                        Plan::Refuse(status) => {
                            self.queue.respond(command, status, 0, 0);
                            continue;
                        }
                        Plan::Io(io) => {
                            assert!(io.slba + u64::from(io.blocks) <= 1024);
                            Some(io.len())
                        }
                        Plan::Execute => None,
                    };
                    let memory = vec![0; transfer.len() as usize];
                    self.entries.insert(command, (sqe, transfer, memory, io));
                    match transfer {
                        Transfer::InCapsule(_) => {}
                        Transfer::FromHost(_) => self.queue.receive(command),
                        _ => self.ready(target, command),
                    }
                }
                Event::Received(command) => self.ready(target, command),
                Event::Damaged(_) | Event::Sent(_) | Event::Terminated(_) => {}
            }
        }
    }

    fn ready(&mut self, target: &mut Target, command: Command) {
        let Some((sqe, transfer, memory, io)) = self.entries.get_mut(&command) else { return };
        if let Some(len) = io {
            self.queue.respond(command, Status::SUCCESS, 0, u32::try_from(*len).unwrap_or(0));
            return;
        }
        let data = if matches!(transfer, Transfer::ToHost(_)) { &[][..] } else { &memory[..] };
        let mut random = |bytes: &mut [u8]| bytes.fill(7);
        let mut context = Context { now: self.now, random: &mut random };
        let reply = self.session.execute(target, sqe, *transfer, data, &mut context);
        reply.apply(&mut self.queue);
        let (status, result, data) = match reply {
            Reply::Done { status, result, data } => (status, result, data),
            Reply::Connected { result, .. } => (Status::SUCCESS, result, Vec::new()),
            Reply::Authenticated { data } => (Status::SUCCESS, 0, data),
            Reply::Deallocate { ranges, .. } => {
                assert!(ranges.iter().all(|r| r.slba + u64::from(r.blocks) <= 1024));
                (Status::SUCCESS, 0, Vec::new())
            }
            Reply::Later => return,
            Reply::Disconnect => (Status::SUCCESS, 0, Vec::new()),
        };
        let len = u32::try_from(data.len()).expect("bounded");
        assert!(data.len() <= transfer.len() as usize);
        *memory = data;
        self.queue.respond(command, status, result, len);
    }

    fn receive(&mut self, target: &mut Target, mut rest: &[u8]) {
        while !rest.is_empty() {
            match self.queue.next() {
                Next::Header { .. } => match self.queue.header(rest) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(_) => break,
                },
                Next::Data(range) => {
                    let len = rest.len().min(range.len as usize);
                    if let Some((_, _, memory, _)) = self.entries.get_mut(&range.command) {
                        let start = range.offset as usize;
                        memory[start..start + len].copy_from_slice(&rest[..len]);
                    }
                    let crc = Some(digest::crc32c(&rest[..len]));
                    if self.queue.data(len as u32, crc).is_err() {
                        break;
                    }
                    rest = &rest[len..];
                }
                Next::Discard { len } => {
                    let len = rest.len().min(len as usize);
                    if self.queue.data(len as u32, None).is_err() {
                        break;
                    }
                    rest = &rest[len..];
                }
                Next::Blocked => self.send(),
                Next::Closed => break,
            }
            self.events(target);
        }
        self.send();
        self.events(target);
    }

    fn send(&mut self) {
        let bytes = self.queue.pieces().map(|piece: Piece<'_>| piece.len()).sum();
        self.queue.sent(bytes);
    }
}

fuzz_target!(|input: (bool, Vec<(bool, Vec<u8>)>)| {
    let (with_keys, chunks) = input;
    let mut target = target(with_keys);
    let mut connections = [Connection::new(), Connection::new()];
    for (number, (second, chunk)) in chunks.iter().enumerate() {
        let connection = &mut connections[usize::from(*second)];
        connection.now = Duration::from_millis(number as u64);
        connection.receive(&mut target, chunk);
        while target.poll().is_some() {}
        target.expire(connection.now);
    }
    for connection in &mut connections {
        connection.session.closed(&mut target);
    }
    // A controller lives as long as its Admin Queue.
    assert_eq!(target.controllers().count(), 0);
});
