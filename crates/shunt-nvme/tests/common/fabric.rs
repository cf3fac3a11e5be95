//! A target with a model store, and connections of hosts to it.

use super::{DISK, Memory, Random, connect_data, give, nqn, take};
use core::time::Duration;
use shunt_nvme::{
    controller, host,
    subsystem::{
        Context, Hosts, Io, Limits, NamespaceConfig, Notice, Operation, Plan, Reply, Session,
        SubsystemConfig, Target, Unpaired, View,
    },
    transport::Command,
    wire::{
        Fuse, Sqe, Status,
        fabrics::{Connect, Property},
        registers,
    },
};
use std::collections::HashMap;

pub const BLOCK: usize = 512;

/// One connection, with both of its ends.
pub struct Link {
    pub host: host::Queue,
    pub controller: controller::Queue,
    pub session: Session,
    host_memory: Memory,
    controller_memory: Memory,
    entries: HashMap<Command, (Sqe, controller::Transfer)>,
    /// A Compare that waits for its Write.
    fused: Option<(Command, Io)>,
    /// Writes that wait for their data, by command.
    io: HashMap<Command, Io>,
    completions: HashMap<Command, host::Completion>,
    /// What commands are planned by, and for which queue it was taken.
    view: Option<View>,
    viewed: Option<(u16, u16)>,
}

/// What a command has brought.
#[derive(Debug)]
pub struct Outcome {
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
}

pub struct Fabric {
    pub target: Target,
    pub store: Vec<u8>,
    pub now: Duration,
    pub notices: Vec<Notice>,
    pub random: Random,
}

impl Fabric {
    pub fn new(target: Target, blocks: usize) -> Self {
        let store = vec![0; blocks * BLOCK];
        let random = Random(1);
        Self { target, store, now: Duration::ZERO, notices: Vec::new(), random }
    }

    /// A connection that is initialized.
    pub fn link(&mut self) -> Link {
        let mut link = Link {
            host: host::Queue::new(host::Config::default()),
            controller: controller::Queue::new(controller::Limits::default()),
            session: Session::new(1),
            host_memory: Memory::new(),
            controller_memory: Memory::new(),
            entries: HashMap::new(),
            fused: None,
            io: HashMap::new(),
            completions: HashMap::new(),
            view: None,
            viewed: None,
        };
        self.run(&mut link);
        link
    }

    /// Moves everything there is to move.
    pub fn run(&mut self, link: &mut Link) {
        loop {
            let up = take(&mut link.host, &link.host_memory, usize::MAX);
            let mut rest = up.as_slice();
            while !rest.is_empty() {
                rest = give(&mut link.controller, &mut link.controller_memory, rest).unwrap();
                self.events(link);
            }
            self.events(link);
            let down = take(&mut link.controller, &link.controller_memory, usize::MAX);
            let mut rest = down.as_slice();
            while !rest.is_empty() {
                rest = give(&mut link.host, &mut link.host_memory, rest).unwrap();
                while let Some(event) = link.host.poll() {
                    if let host::Event::Completed { command, completion } = event {
                        link.completions.insert(command, completion);
                    }
                }
            }
            let told = self.target.poll();
            let is_over = up.is_empty() && down.is_empty() && told.is_none();
            self.told(link, told);
            if is_over {
                break;
            }
        }
    }

    /// Notices of any connection are kept; one of this connection is obeyed.
    fn told(&mut self, link: &mut Link, notice: Option<Notice>) {
        if let Some(Notice::Completed { cntlid, cid, status, result }) = notice
            && link.session.queue() == Some((cntlid, 0))
            && let Some(command) = link.controller.find(cid)
        {
            link.controller.respond(command, status, u64::from(result), 0);
        }
        self.notices.extend(notice);
    }

    fn events(&mut self, link: &mut Link) {
        while let Some(event) = link.controller.poll() {
            match event {
                controller::Event::Command { command, sqe, transfer } => {
                    link.entries.insert(command, (sqe, transfer));
                    let len = usize::try_from(transfer.len()).unwrap();
                    link.controller_memory.insert(command, vec![0; len]);
                    // By a view that is kept while it holds.
                    if link.view.as_ref().map(View::generation) != Some(self.target.generation())
                        || link.session.queue() != link.viewed
                    {
                        link.view = Some(link.session.view(&self.target));
                        link.viewed = link.session.queue();
                    }
                    let view = link.view.clone().unwrap();
                    // Queues of odd numbers plan by it.
                    let plan = if link.viewed.is_some_and(|(_, qid)| qid % 2 == 1) {
                        link.session.plan_in(&view, &sqe, transfer)
                    } else {
                        link.session.plan(&self.target, &sqe, transfer)
                    };
                    if let Some(unpaired) = link.session.unpaired() {
                        let (first, io) = link.fused.take().unwrap();
                        let status = match unpaired {
                            Unpaired::Ends(status) => status,
                            Unpaired::Alone => self.store(link, first, &io),
                        };
                        link.controller.respond(first, status, 0, 0);
                    }
                    match plan {
                        Plan::Refuse(status) => {
                            link.controller.respond(command, status, 0, 0);
                        }
                        Plan::Io(io) => {
                            link.io.insert(command, io);
                            self.proceed(link, command, transfer);
                        }
                        Plan::Execute => self.proceed(link, command, transfer),
                    }
                }
                controller::Event::Received(command) => self.ready(link, command),
                controller::Event::Sent(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn proceed(&mut self, link: &mut Link, command: Command, transfer: controller::Transfer) {
        match transfer {
            controller::Transfer::InCapsule(_) => {}
            controller::Transfer::FromHost(_) => link.controller.receive(command),
            _ => self.ready(link, command),
        }
    }

    fn ready(&mut self, link: &mut Link, command: Command) {
        let (sqe, transfer) = link.entries[&command];
        if let Some(io) = link.io.remove(&command) {
            self.io(link, command, &io);
            return;
        }
        let data = match transfer {
            controller::Transfer::ToHost(_) => Vec::new(),
            _ => link.controller_memory[&command].clone(),
        };
        let random = &mut self.random;
        let mut entropy = |bytes: &mut [u8]| bytes.fill_with(|| random.next().to_le_bytes()[0]);
        let mut context = Context { now: self.now, random: &mut entropy };
        let reply = link.session.execute(&mut self.target, &sqe, transfer, &data, &mut context);
        reply.apply(&mut link.controller);
        let (status, result, data) = match reply {
            Reply::Done { status, result, data } => (status, result, data),
            Reply::Connected { result, .. } => (Status::SUCCESS, result, Vec::new()),
            Reply::Authenticated { data } => (Status::SUCCESS, 0, data),
            Reply::Deallocate { ranges, .. } => {
                for range in ranges {
                    let at = usize::try_from(range.slba).unwrap() * BLOCK;
                    let len = usize::try_from(range.blocks).unwrap() * BLOCK;
                    self.store[at..at + len].fill(0);
                }
                (Status::SUCCESS, 0, Vec::new())
            }
            Reply::Later => return,
            Reply::Disconnect => (Status::SUCCESS, 0, Vec::new()),
        };
        let len = u32::try_from(data.len()).unwrap();
        link.controller_memory.insert(command, data);
        link.controller.respond(command, status, result, len);
    }

    fn io(&mut self, link: &mut Link, command: Command, io: &Io) {
        if io.fuse == Fuse::First {
            link.fused = Some((command, *io));
            return;
        }
        let mut status = Status::SUCCESS;
        if io.fuse == Fuse::Second {
            let (first, compare) = link.fused.take().unwrap();
            let compared = self.store(link, first, &compare);
            link.controller.respond(first, compared, 0, 0);
            if !compared.is_success() {
                status = Status::FUSED_FAILED;
            }
        }
        if status.is_success() {
            status = self.store(link, command, io);
        }
        let len = u32::try_from(io.len()).unwrap();
        link.controller.respond(command, status, 0, len);
    }

    fn store(&mut self, link: &mut Link, command: Command, io: &Io) -> Status {
        let at = usize::try_from(io.slba).unwrap() * BLOCK;
        let range = at..at + usize::try_from(io.len()).unwrap();
        let memory = link.controller_memory.entry(command).or_default();
        match io.operation {
            Operation::Read => *memory = self.store[range].to_vec(),
            Operation::Write { .. } => self.store[range].copy_from_slice(memory),
            Operation::Compare if self.store[range.clone()] != memory[..] => {
                return Status::COMPARE_FAILURE;
            }
            Operation::WriteZeroes { .. } => self.store[range].fill(0),
            Operation::Compare | Operation::Flush | Operation::Verify | Operation::Deallocate => {}
        }
        Status::SUCCESS
    }

    pub fn submit(
        &mut self,
        link: &mut Link,
        sqe: &Sqe,
        transfer: host::Transfer,
        data: &[u8],
    ) -> Command {
        let command = link.host.submit(sqe, transfer).unwrap();
        let memory = match transfer {
            host::Transfer::ToHost(len) => vec![0; usize::try_from(len).unwrap()],
            _ => data.to_vec(),
        };
        link.host_memory.insert(command, memory);
        command
    }

    pub fn outcome(&mut self, link: &mut Link, command: Command) -> Option<Outcome> {
        self.run(link);
        let completion = link.completions.remove(&command)?;
        let mut data = link.host_memory.remove(&command).unwrap();
        data.truncate(usize::try_from(completion.received).unwrap());
        let cqe = completion.cqe;
        Some(Outcome { status: cqe.status(), result: cqe.result.get(), data })
    }

    /// A command, from its submission to its completion.
    pub fn call(&mut self, link: &mut Link, sqe: &Sqe, transfer: host::Transfer) -> Outcome {
        self.call_with(link, sqe, transfer, &[])
    }

    pub fn call_with(
        &mut self,
        link: &mut Link,
        sqe: &Sqe,
        transfer: host::Transfer,
        data: &[u8],
    ) -> Outcome {
        let command = self.submit(link, sqe, transfer, data);
        self.outcome(link, command).unwrap()
    }

    pub fn connect(&mut self, link: &mut Link, connect: &Connect, data: &[u8]) -> Outcome {
        self.call_with(link, &connect.sqe(), host::Transfer::InCapsule(1024), data)
    }

    /// A controller that is enabled: its Admin Queue and its identifier.
    pub fn controller(&mut self, kato: u32) -> (Link, u16) {
        let mut link = self.link();
        let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato };
        let outcome = self.connect(&mut link, &connect, &connect_data(0xffff));
        assert!(outcome.status.is_success(), "{outcome:?}");
        let enable = Property::set(registers::CC, false, 0x0046_0001);
        assert!(self.call(&mut link, &enable, host::Transfer::None).status.is_success());
        (link, u16::try_from(outcome.result & 0xffff).unwrap())
    }

    /// An I/O queue of a controller.
    pub fn io_queue(&mut self, cntlid: u16, qid: u16) -> Link {
        let mut link = self.link();
        let connect = Connect { recfmt: 0, qid, sqsize: 31, no_flow_control: true, kato: 0 };
        let outcome = self.connect(&mut link, &connect, &connect_data(cntlid));
        assert!(outcome.status.is_success(), "{outcome:?}");
        link
    }
}

pub fn namespace() -> NamespaceConfig {
    NamespaceConfig {
        blocks: 1024,
        block_shift: 9,
        uuid: [0xaa; 16],
        nguid: [0xbb; 16],
        ana_group: 1,
        read_only: false,
        write_cache: true,
        deallocate: true,
        preferred_write: 4096,
    }
}

pub fn fabric_for(hosts: Hosts, limits: Limits) -> Fabric {
    let mut target = Target::new(limits);
    let config = SubsystemConfig {
        nqn: nqn(DISK),
        serial: "S1".to_owned(),
        model: "Model".to_owned(),
        firmware: "1".to_owned(),
        hosts,
    };
    assert!(target.add_subsystem(config));
    assert!(target.add_namespace(&nqn(DISK), 1, namespace()));
    Fabric::new(target, 1024)
}

pub fn fabric() -> Fabric {
    fabric_for(Hosts::Any, Limits::default())
}
