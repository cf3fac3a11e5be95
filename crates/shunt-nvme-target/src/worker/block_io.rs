//! Commands for stores: from the place of their data to the answer.

use shunt_nvme::subsystem::{Io, Operation};
use shunt_nvme::transport::Command;
use shunt_nvme::wire::{Fuse, Status};

use super::conn::Conn;
use super::context::Context;
use super::link::Data;
use super::pending::{Entry, Purpose};
use super::task::Task;
use crate::buffers::{Buffer, Buffers};
use crate::metrics::Counter;
use crate::site::Namespace;
use crate::store::{Blocks, Error, Outcome, Request, Submitted};

/// The blocks of a request.
const fn blocks(io: &Io) -> Blocks {
    Blocks { first: io.slba, count: io.blocks as u64 }
}

/// Where a command's data may go straight to or come from. Not what is compared, and what may not be written.
fn lent(namespace: &Namespace, io: &Io) -> Option<Data> {
    let store = &namespace.store;
    match io.operation {
        _ if io.fuse != Fuse::No => None,
        Operation::Write { .. } if store.drops_writes() => Some(Data::Dropped),
        Operation::Write { .. } => store.lend(blocks(io)).map(Data::Store),
        Operation::Read if namespace.grant => store.lend(blocks(io)).map(Data::Granted),
        Operation::Read => store.lend(blocks(io)).map(Data::Store),
        _ => None,
    }
}

impl Conn {
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
        let request = match io.operation {
            Operation::Read | Operation::Write { .. } | Operation::Compare => {
                let lent = lent(namespace, io);
                return self.with_data(command, io, (lent, unasked), context);
            }
            Operation::Flush => Request::Flush,
            Operation::WriteZeroes { fua, deallocate } => {
                Request::Zero { blocks: blocks(io), deallocate, fua }
            }
            Operation::Verify => Request::Verify(blocks(io)),
            // Its ranges come with its data.
            Operation::Deallocate => return self.answer(command, Status::INVALID_FIELD, context),
        };
        self.submit(command, io, request, Vec::new(), context);
    }

    /// A command with data, which has to have a place: what the store has `lent`, if it has.
    fn with_data(
        &mut self,
        command: Command,
        io: &Io,
        (lent, unasked): (Option<Data>, bool),
        context: &mut Context,
    ) {
        let Ok(len) = usize::try_from(io.len()) else {
            return self.answer(command, Status::INVALID_FIELD.dnr(), context);
        };
        // Not where there are digests: what a digest was made of must not change, and what is damaged must not be in the store.
        let lent = lent.filter(|_| !self.link.queue.data_digest());
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
                self.tasks.forget(command);
                self.read(command, io, context);
            }
            (Operation::Read, Data::Buffer(buffer)) => {
                let request = Request::Read(blocks(io), buffer.piece().clone());
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
        let Some(task) = self.tasks.get(command) else { return };
        match task {
            Task::Whole(sqe, transfer) => {
                self.tasks.forget(command);
                if let Data::Bytes(data) = self.link.place(command, Data::None) {
                    self.whole(command, &sqe, transfer, &data, context);
                }
            }
            Task::Store(io, _) if io.fuse != Fuse::No => self.fused_received(command, context),
            Task::Store(io, _) => {
                match (io.operation, self.link.place(command, Data::None)) {
                    (Operation::Write { fua }, Data::Buffer(buffer)) => {
                        let data = buffer.piece().clone();
                        let request = Request::Write { blocks: blocks(&io), data, fua };
                        self.submit(command, &io, request, vec![buffer], context);
                    }
                    (Operation::Compare, Data::Buffer(buffer)) => {
                        let request = Request::Compare(blocks(&io), buffer.piece().clone());
                        self.submit(command, &io, request, vec![buffer], context);
                    }
                    // It is where it belongs.
                    _ => self.over(command, Ok(()), Vec::new(), context),
                }
            }
        }
    }

    /// Data of a fused operation has come: compares and writes, when both have theirs.
    fn fused_received(&mut self, command: Command, context: &mut Context) {
        let Some((first, second)) = self.fused.received(command) else { return };
        let Some(Task::Store(io, _)) = self.tasks.get(second) else { return };
        let Operation::Write { fua } = io.operation else { return };
        let both = [first, second].map(|command| self.link.place(command, Data::None));
        if let [Data::Buffer(expected), Data::Buffer(data)] = both {
            let (before, after) = (expected.piece().clone(), data.piece().clone());
            let request = Request::CompareAndWrite {
                blocks: blocks(&io),
                expected: before,
                data: after,
                fua,
            };
            let purpose = Purpose::Fused(first, second);
            self.ask(purpose, io.nsid, request, vec![expected, data], context);
        }
    }

    pub(super) fn submit(
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
        let Some(Task::Store(io, sqe)) = self.tasks.get(command) else { return };
        let is_read = io.operation == Operation::Read;
        if let Err(error) = outcome {
            let status = status(error, is_read);
            context.site.failed(&self.session, &sqe, status);
            return self.answer(command, status, context);
        }
        if is_read && let Some(buffer) = buffers.into_iter().next() {
            self.link.place(command, Data::Buffer(buffer));
            self.tasks.forget(command);
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
    pub(super) fn answer(&mut self, command: Command, status: Status, context: &mut Context) {
        if !status.is_success() {
            context.counts.one(Counter::Failures);
        }
        self.tasks.forget(command);
        self.link.queue.respond(command, status, 0, 0);
        self.link.place(command, Data::None);
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
