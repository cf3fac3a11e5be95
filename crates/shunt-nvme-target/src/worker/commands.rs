//! What becomes of commands: those for stores go there, all others are the site's.

use shunt_nvme::controller::Transfer;
use shunt_nvme::subsystem::{Io, Operation, Plan, Reply};
use shunt_nvme::transport::Command;
use shunt_nvme::wire::fabrics::ConnectData;
use shunt_nvme::wire::{Fuse, Nqn, Sqe, Status};

use super::conn::{Conn, State};
use super::context::Context;
use super::link::Data;
use super::pending::{Entry, Purpose};
use super::task::{Fused, Task};
use crate::buffers::{Buffer, Buffers};
use crate::metrics::Counter;
use crate::site::Namespace;
use crate::store::{Blocks, Error, Outcome, Request, Submitted};

impl Conn {
    /// A command has come.
    pub(super) fn command(
        &mut self,
        command: Command,
        sqe: &Sqe,
        transfer: Transfer,
        context: &mut Context,
    ) {
        if self.state != State::Open {
            // It is not answered: the host sends it again elsewhere, or when the target is back.
            self.link.place(command, Data::Dropped);
            return;
        }
        let (plan, orphaned) = context.site.plan(&mut self.session, sqe, transfer);
        if orphaned && let Some(Fused { first: (first, _), second: None }) = self.fused.take() {
            self.answer(first, Status::FUSED_MISSING, context);
        }
        match plan {
            Plan::Refuse(status) => self.refuse(command, sqe, status, context),
            Plan::Io(io) => {
                self.note(command, Task::Store(io, Box::new(*sqe)));
                self.fuse(command, &io);
                let unasked = matches!(transfer, Transfer::InCapsule(_));
                self.begin(command, &io, unasked, context);
            }
            Plan::Execute => match transfer {
                Transfer::InCapsule(len) | Transfer::FromHost(len) => {
                    self.link.place(command, Data::Bytes(vec![0; len as usize]));
                    self.note(command, Task::Whole(Box::new(*sqe), transfer));
                    self.link.queue.receive(command);
                }
                Transfer::None | Transfer::ToHost(_) => {
                    self.whole(command, sqe, transfer, &[], context);
                }
            },
        }
    }

    fn refuse(&mut self, command: Command, sqe: &Sqe, status: Status, context: &mut Context) {
        context.site.failed(&self.session, sqe, status);
        if sqe.fuse() == Fuse::Second
            && let Some(Fused { first: (first, _), .. }) = self.fused.take()
        {
            self.answer(first, Status::FUSED_FAILED, context);
        }
        self.answer(command, status, context);
    }

    /// A command whose data is there, and which is not for a store.
    fn whole(
        &mut self,
        command: Command,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
        context: &mut Context,
    ) {
        let reply = context.site.execute(&mut self.session, sqe, transfer, data);
        reply.apply(&mut self.link.queue);
        match reply {
            Reply::Done { status, result, data } => {
                self.give(command, (status, result), data);
            }
            Reply::Connected { result, authenticate, .. } => {
                self.connected(data, authenticate, context);
                self.give(command, (Status::SUCCESS, result), Vec::new());
            }
            Reply::Authenticated { data } => {
                self.ticket.connected();
                self.give(command, (Status::SUCCESS, 0), data);
            }
            Reply::Deallocate { io, ranges } => {
                let blocks = |range: &shunt_nvme::subsystem::Range| Blocks {
                    first: range.slba,
                    count: u64::from(range.blocks),
                };
                let request = Request::Discard(ranges.iter().map(blocks).collect());
                self.note(command, Task::Store(io, Box::new(*sqe)));
                self.submit(command, &io, request, Vec::new(), context);
            }
            Reply::Later => {}
            // The command goes on and is answered as if nothing had been said: a host has to expect that (Base 5.1).
            Reply::Abort { .. } => self.give(command, (Status::SUCCESS, 1), Vec::new()),
            Reply::Disconnect => {
                self.give(command, (Status::SUCCESS, 0), Vec::new());
                self.state = State::Flushing;
            }
        }
        if self.session.has_failed() {
            self.state = State::Flushing;
        }
    }

    /// Connect has succeeded.
    fn connected(&mut self, data: &[u8], authenticate: bool, context: &mut Context) {
        if let Ok(data) = <ConnectData as zerocopy::FromBytes>::read_from_bytes(data)
            && let (Ok(nqn), Ok(host)) =
                (Nqn::from_field(&data.subnqn), Nqn::from_field(&data.hostnqn))
        {
            self.names = Some((nqn, host));
            self.look(context);
        }
        // A host that has to prove who it is has its place when it has.
        if !authenticate {
            self.ticket.connected();
        }
    }

    /// Answers, with data of this thread's own.
    fn give(&mut self, command: Command, (status, result): (Status, u64), data: Vec<u8>) {
        let len = u32::try_from(data.len()).unwrap_or(0);
        self.link.place(command, Data::Bytes(data));
        self.link.queue.respond(command, status, result, len);
    }

    /// Looks what there is for this host.
    fn look(&mut self, context: &Context) {
        let Some((nqn, host)) = &self.names else { return };
        self.view = context.site.view(nqn, host);
        if self.view.namespaces.values().any(|namespace| namespace.grant) {
            self.link.allow_grants();
        }
    }

    fn namespace(&mut self, nsid: u32, context: &Context) -> Option<Namespace> {
        if context.site.is_stale(&self.view) {
            self.look(context);
        }
        self.view.namespaces.get(&nsid).cloned()
    }

    /// A command for a store: as far as it can be begun. Its data may come `unasked`, in its capsule.
    pub(super) fn begin(
        &mut self,
        command: Command,
        io: &Io,
        unasked: bool,
        context: &mut Context,
    ) {
        let Some(namespace) = self.namespace(io.nsid, context) else {
            return self.answer(command, Status::INVALID_NAMESPACE.dnr(), context);
        };
        let blocks = Blocks { first: io.slba, count: u64::from(io.blocks) };
        let request = match io.operation {
            Operation::Read | Operation::Write { .. } | Operation::Compare => {
                return self.with_data(command, io, (&namespace, unasked), context);
            }
            Operation::Flush => Request::Flush,
            Operation::WriteZeroes { fua, deallocate } => Request::Zero { blocks, deallocate, fua },
            Operation::Verify => Request::Verify(blocks),
            // Its ranges come with its data.
            Operation::Deallocate => return self.answer(command, Status::INVALID_FIELD, context),
        };
        self.submit(command, io, request, Vec::new(), context);
    }

    /// A command with data, which has to have a place.
    fn with_data(
        &mut self,
        command: Command,
        io: &Io,
        (namespace, unasked): (&Namespace, bool),
        context: &mut Context,
    ) {
        let blocks = Blocks { first: io.slba, count: u64::from(io.blocks) };
        let Ok(len) = usize::try_from(io.len()) else {
            return self.answer(command, Status::INVALID_FIELD.dnr(), context);
        };
        // Straight to and from the store's memory, unless there are digests: what a digest was made of must not
        // change, and what is damaged must not be in the store. Nor what is compared, and what may not be written.
        let direct = !self.link.queue.data_digest() && io.fuse == Fuse::No;
        let lent = match io.operation {
            _ if !direct => None,
            Operation::Write { .. } if namespace.store.drops_writes() => Some(Data::Dropped),
            Operation::Write { .. } => namespace.store.lend(blocks).map(Data::Store),
            Operation::Read if namespace.grant => namespace.store.lend(blocks).map(Data::Granted),
            Operation::Read => namespace.store.lend(blocks).map(Data::Store),
            _ => None,
        };
        let is_lent = lent.is_some();
        let data = lent.or_else(|| context.buffers.take(len).map(Data::Buffer));
        // What is in a capsule stands in the way of data that others have buffers for.
        let data =
            data.or_else(|| unasked.then(|| Buffers::apart(len)).flatten().map(Data::Buffer));
        let Some(data) = data else {
            context.counts.one(Counter::Waits);
            self.hungry.push_back((command, *io));
            return;
        };
        match (io.operation, data) {
            (Operation::Read, data) if is_lent => {
                self.link.place(command, data);
                self.forget(command);
                self.read(command, io, context);
            }
            (Operation::Read, Data::Buffer(buffer)) => {
                let request = Request::Read(blocks, buffer.piece().clone());
                self.submit(command, io, request, vec![buffer], context);
            }
            (_, data) => {
                self.link.place(command, data);
                self.link.queue.receive(command);
            }
        }
    }

    /// All data of a command has come.
    pub(super) fn received(&mut self, command: Command, context: &mut Context) {
        let Some(task) = self.task(command) else { return };
        match task {
            Task::Whole(sqe, transfer) => {
                self.forget(command);
                if let Data::Bytes(data) = self.link.place(command, Data::None) {
                    self.whole(command, &sqe, transfer, &data, context);
                }
            }
            Task::Store(io, _) if io.fuse != Fuse::No => self.fused_received(command, context),
            Task::Store(io, _) => {
                let blocks = Blocks { first: io.slba, count: u64::from(io.blocks) };
                match (io.operation, self.link.place(command, Data::None)) {
                    (Operation::Write { fua }, Data::Buffer(buffer)) => {
                        let request = Request::Write { blocks, data: buffer.piece().clone(), fua };
                        self.submit(command, &io, request, vec![buffer], context);
                    }
                    (Operation::Compare, Data::Buffer(buffer)) => {
                        let request = Request::Compare(blocks, buffer.piece().clone());
                        self.submit(command, &io, request, vec![buffer], context);
                    }
                    // It is where it belongs.
                    _ => self.over(command, Ok(()), Vec::new(), context),
                }
            }
        }
    }

    /// Notes the parts of a fused operation.
    fn fuse(&mut self, command: Command, io: &Io) {
        match io.fuse {
            Fuse::First => self.fused = Some(Fused { first: (command, false), second: None }),
            Fuse::Second => {
                if let Some(fused) = &mut self.fused {
                    fused.second = Some((command, false));
                }
            }
            Fuse::No | Fuse::Reserved => {}
        }
    }

    /// Data of a fused operation has come: compares and writes, when both have theirs.
    fn fused_received(&mut self, command: Command, context: &mut Context) {
        let Some(fused) = &mut self.fused else { return };
        for (part, ready) in std::iter::once(&mut fused.first).chain(&mut fused.second) {
            *ready |= *part == command;
        }
        let Fused { first: (first, true), second: Some((second, true)) } = *fused else { return };
        self.fused = None;
        let Some(Task::Store(io, _)) = self.task(second) else { return };
        let Operation::Write { fua } = io.operation else { return };
        let both = [first, second].map(|command| self.link.place(command, Data::None));
        if let [Data::Buffer(expected), Data::Buffer(data)] = both {
            let blocks = Blocks { first: io.slba, count: u64::from(io.blocks) };
            let (before, after) = (expected.piece().clone(), data.piece().clone());
            let request = Request::CompareAndWrite { blocks, expected: before, data: after, fua };
            let purpose = Purpose::Fused(first, second);
            self.ask(purpose, io.nsid, request, vec![expected, data], context);
        }
    }

    fn submit(
        &mut self,
        command: Command,
        io: &Io,
        request: Request,
        buffers: Vec<Buffer>,
        context: &mut Context,
    ) {
        self.ask(Purpose::Command(command), io.nsid, request, buffers, context);
    }

    /// Asks the store of a namespace.
    pub(super) fn ask(
        &mut self,
        purpose: Purpose,
        nsid: u32,
        request: Request,
        buffers: Vec<Buffer>,
        context: &mut Context,
    ) {
        let entry = Entry { token: self.token, purpose, buffers };
        let Some(namespace) = self.namespace(nsid, context) else {
            return self.completed(entry, Err(Error::OutOfRange), context);
        };
        let tag = context.pending.insert(entry);
        if let Submitted::Done(outcome) = namespace.store.submit(request, tag, &context.mailbox)
            && let Some(entry) = context.pending.remove(tag)
        {
            self.completed(entry, outcome, context);
        }
    }

    /// The store is done with a request.
    pub(super) fn completed(&mut self, entry: Entry, outcome: Outcome, context: &mut Context) {
        match entry.purpose {
            Purpose::Command(command) => self.over(command, outcome, entry.buffers, context),
            Purpose::Fused(first, second) => {
                let compared = if outcome == Err(Error::Differs) { outcome } else { Ok(()) };
                let written = match outcome {
                    Err(Error::Differs) => None,
                    other => Some(other),
                };
                self.over(first, compared, Vec::new(), context);
                match written {
                    Some(outcome) => self.over(second, outcome, Vec::new(), context),
                    None => self.answer(second, Status::FUSED_FAILED, context),
                }
            }
            Purpose::Shutdown(cntlid) => {
                self.flushes -= 1;
                if self.flushes == 0 {
                    context.site.shutdown_complete(cntlid);
                }
            }
        }
    }

    /// A command for a store is done.
    fn over(
        &mut self,
        command: Command,
        outcome: Outcome,
        buffers: Vec<Buffer>,
        context: &mut Context,
    ) {
        let Some(Task::Store(io, sqe)) = self.task(command) else { return };
        let is_read = io.operation == Operation::Read;
        if let Err(error) = outcome {
            let status = status(error, is_read);
            context.site.failed(&self.session, &sqe, status);
            return self.answer(command, status, context);
        }
        if is_read && let Some(buffer) = buffers.into_iter().next() {
            self.link.place(command, Data::Buffer(buffer));
            self.forget(command);
            return self.read(command, &io, context);
        }
        if let Operation::Write { .. } = io.operation {
            context.counts.add(Counter::BytesWritten, io.len());
            context.counts.one(Counter::Writes);
        } else {
            context.counts.one(Counter::Others);
        }
        self.answer(command, Status::SUCCESS, context);
    }

    /// Answers a read whose data is in its place.
    fn read(&mut self, command: Command, io: &Io, context: &mut Context) {
        context.counts.one(Counter::Reads);
        context.counts.add(Counter::BytesRead, io.len());
        let len = u32::try_from(io.len()).unwrap_or(0);
        self.link.queue.respond(command, Status::SUCCESS, 0, len);
    }

    /// Ends a command without data for the host.
    fn answer(&mut self, command: Command, status: Status, context: &mut Context) {
        if !status.is_success() {
            context.counts.one(Counter::Failures);
        }
        self.forget(command);
        self.link.queue.respond(command, status, 0, 0);
        self.link.place(command, Data::None);
    }

    /// Notes what is to become of a command.
    fn note(&mut self, command: Command, task: Task) {
        let slot = command.slot();
        if slot >= self.tasks.len() {
            self.tasks.resize(slot + 1, None);
        }
        if self.tasks[slot].replace((command, task)).is_none() {
            self.begun += 1;
        }
    }

    fn task(&self, command: Command) -> Option<Task> {
        let (of, task) = self.tasks.get(command.slot())?.as_ref()?;
        (*of == command).then(|| task.clone())
    }

    /// Nothing more is to become of a command.
    pub(super) fn forget(&mut self, command: Command) {
        let Some(task) = self.tasks.get_mut(command.slot()) else { return };
        if task.as_ref().is_some_and(|(of, _)| *of == command) {
            *task = None;
            self.begun -= 1;
        }
    }
}

/// What the store's error is for the host.
const fn status(error: Error, reading: bool) -> Status {
    match error {
        Error::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
        Error::Differs => Status::COMPARE_FAILURE.dnr(),
        Error::Length => Status::SGL_INVALID_LENGTH.dnr(),
        Error::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        Error::NoSpace => Status::CAPACITY_EXCEEDED.dnr(),
        Error::Unreadable => Status::UNRECOVERED_READ.dnr(),
        Error::Unwritable => Status::WRITE_FAULT.dnr(),
        // Another try may succeed.
        Error::Busy if reading => Status::INTERNAL_ERROR,
        Error::Busy => Status::COMMAND_INTERRUPTED,
    }
}
