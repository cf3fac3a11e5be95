//! A connection: one queue of a controller, and its commands.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use shunt_nvme::controller::{Event, Queue};
use shunt_nvme::subsystem::{Io, Notice, Session, Unpaired};
use shunt_nvme::transport::Command;
use shunt_nvme::wire::{Nqn, Status};
use shunt_sys::epoll;
use tracing::{debug, info, warn};

use super::context::Context;
use super::link::{Data, Link, Step};
use super::pending::Purpose;
use super::task::{Fused, Tasks};
use crate::metrics::Counter;
use crate::server::Ticket;
use crate::site::View;
use crate::store::Request;

/// Steps of a connection before others get their turn.
const TURN: usize = 256;
/// Steps after which answers are sent, so that the host goes on while the target does: two of a write, one of a read. Sending
/// each by itself would cost more than it gains, over kernel TCP most of all.
const STRETCH: usize = 48;
/// How long a host may leave the target waiting for what it has to send or to take.
const STALL: Duration = Duration::from_secs(30);
/// How long a host may take to close a connection that the target has ended.
const CLOSE: Duration = Duration::from_secs(2);
/// Why a connection is over.
#[derive(Debug)]
pub enum Over {
    /// The host has closed it, or it broke.
    Gone(io::Error),
    /// The target has ended it, and the host has closed it or had its time.
    Closed,
    /// The host did not complete Connect in time.
    Late,
    /// The host took or sent nothing for too long.
    Stalled,
    /// Its controller is no more: it was removed or reset, or nothing was heard of the host for its Keep Alive time.
    Deleted,
}

/// See the module's description.
#[derive(Debug)]
pub struct Conn {
    pub(super) token: u64,
    from: SocketAddr,
    pub(super) link: Link,
    pub(super) ticket: Ticket,
    pub(super) session: Session,
    /// Subsystem and host, after Connect.
    pub(super) names: Option<(Nqn, Nqn)>,
    pub(super) view: View,
    pub(super) fused: Fused,
    /// Flushes of a shutdown that are under way.
    pub(super) flushes: usize,
    pub(super) tasks: Tasks,
    /// Commands that wait for a buffer.
    pub(super) hungry: VecDeque<(Command, Io)>,
    arrived: Instant,
    /// When bytes last went or came.
    progress: Instant,
    pub(super) state: State,
    watched: u32,
    blocked: bool,
    /// Commands have come since it was last looked through.
    pub(super) heard: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Commands are taken.
    Open,
    /// Those that have begun are ended, and no others are begun.
    Ending,
    /// What is to be sent is sent, and nothing more is looked at.
    Flushing,
    /// Everything is sent, and the host may close.
    Closing(Instant),
}

impl Conn {
    pub fn new(
        token: u64,
        (socket, from, ticket): (TcpStream, SocketAddr, Ticket),
        context: &Context,
    ) -> Self {
        let now = Instant::now();
        let port = socket.local_addr().map_or(0, |address| context.site.port(address));
        Self {
            token,
            from,
            link: Link::new(socket, Queue::new(context.site.queue_limits())),
            ticket,
            session: Session::new(port),
            names: None,
            view: View::default(),
            fused: Fused::default(),
            flushes: 0,
            tasks: Tasks::default(),
            hungry: VecDeque::new(),
            arrived: now,
            progress: now,
            state: State::Open,
            watched: epoll::IN,
            blocked: false,
            heard: false,
        }
    }

    /// Its socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// What epoll is to watch for, if that is something else than before.
    pub fn watch(&mut self) -> Option<u32> {
        let reads = !self.blocked && self.state != State::Flushing;
        let wanted = if reads { epoll::IN } else { 0 }
            | if self.link.queue.is_sent() { 0 } else { epoll::OUT };
        (wanted != self.watched).then(|| {
            self.watched = wanted;
            wanted
        })
    }

    /// Goes on as far as it can without waiting.
    pub fn serve(&mut self, context: &mut Context) -> Result<(), Over> {
        if let State::Closing(_) = self.state {
            return if self.link.drain() { Err(Over::Closed) } else { Ok(()) };
        }
        let mut steps = 0;
        loop {
            self.events(context);
            if self.state == State::Flushing {
                break;
            }
            match self.link.step(&context.counts).map_err(Over::Gone)? {
                Step::On => {
                    steps += 1;
                    self.blocked = false;
                    if steps >= TURN && !self.link.has_more() {
                        break;
                    }
                    if steps.is_multiple_of(STRETCH) {
                        self.events(context);
                        self.flush(context)?;
                    }
                }
                Step::Waits => {
                    self.blocked = false;
                    break;
                }
                Step::Stalled => {
                    self.blocked = true;
                    break;
                }
                Step::Blocked => {
                    self.blocked = true;
                    if !self.flush(context)? {
                        break;
                    }
                }
                Step::Closed => self.closed(),
            }
        }
        if steps > 0 {
            // Not at each step: to ask takes a tenth of a small command's time.
            self.progress = Instant::now();
        }
        self.events(context);
        self.flush(context)?;
        self.advance();
        Ok(())
    }

    /// Sends; true if something went.
    fn flush(&mut self, context: &mut Context) -> Result<bool, Over> {
        let sent = self.link.flush(&context.counts).map_err(Over::Gone)?;
        if sent > 0 {
            self.progress = Instant::now();
        }
        self.events(context);
        Ok(sent > 0)
    }

    /// The machine has closed the connection.
    fn closed(&mut self) {
        self.state = State::Flushing;
        if let Some(violation) = self.link.queue.violation() {
            warn!("{}: {violation}; the connection is ended", self.name());
        }
    }

    /// On to the next state, where everything is done in this one.
    fn advance(&mut self) {
        let is_sent = self.link.queue.is_sent();
        let done = match self.state {
            State::Flushing => is_sent,
            State::Ending => is_sent && self.tasks.is_empty() && !self.link.queue.owes_response(),
            State::Open | State::Closing(_) => false,
        };
        if done {
            self.link.end();
            self.blocked = false;
            self.state = State::Closing(Instant::now() + CLOSE);
        }
    }

    /// Ends commands that have begun, and begins no others.
    pub fn finish(&mut self, context: &mut Context) -> Result<(), Over> {
        if self.state == State::Open {
            self.state = State::Ending;
            // Its second command is not taken any more.
            self.unpair(Unpaired::Ends(Status::FUSED_MISSING), context);
        }
        self.serve(context)
    }

    /// The site has something to say, of this controller or of others.
    pub fn notice(&mut self, notice: Notice, context: &mut Context) -> Result<(), Over> {
        let Some((own, qid)) = self.session.queue() else { return Ok(()) };
        match notice {
            Notice::Completed { cntlid, cid, status, result } if (cntlid, 0) == (own, qid) => {
                if let Some(command) = self.link.queue.find(cid) {
                    self.link.queue.respond(command, status, u64::from(result), 0);
                }
                self.serve(context)
            }
            Notice::Abort { cntlid, qid: of, cid } if (cntlid, of) == (own, qid) => {
                let is_aborted = self.abort(cid, context);
                self.serve(context)?;
                context.site.aborted(cntlid, qid, cid, is_aborted);
                Ok(())
            }
            Notice::Ended { cntlid } if cntlid == own => Err(Over::Deleted),
            Notice::Reset { cntlid } if cntlid == own && qid > 0 => Err(Over::Deleted),
            Notice::Shutdown { cntlid } if (cntlid, 0) == (own, qid) => {
                let namespaces: Vec<_> = self.view.namespaces.keys().copied().collect();
                // One more, so that none of them is the last before all have begun.
                self.flushes += namespaces.len() + 1;
                for nsid in namespaces {
                    let purpose = Purpose::Shutdown(cntlid);
                    self.ask(purpose, nsid, Request::Flush, Vec::new(), context);
                }
                self.flushes -= 1;
                if self.flushes == 0 {
                    context.site.shutdown_complete(cntlid);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// There are buffers again.
    pub fn feed(&mut self, context: &mut Context) -> Result<(), Over> {
        if self.hungry.is_empty() {
            return Ok(());
        }
        for (command, io) in std::mem::take(&mut self.hungry) {
            self.begin(command, &io, false, context);
        }
        self.serve(context)
    }

    /// Tells the site if commands have come: its host is there.
    pub fn report(&mut self, context: &Context) {
        if std::mem::take(&mut self.heard) {
            context.site.heard(&self.session);
        }
    }

    /// Looks whether it has taken too long over something.
    pub fn sweep(&mut self, now: Instant, context: &mut Context) -> Result<(), Over> {
        if let State::Closing(until) = self.state {
            return if until <= now { Err(Over::Closed) } else { Ok(()) };
        }
        if !self.ticket.is_connected()
            && now - self.arrived >= context.site.limits().connect_timeout
        {
            return Err(Over::Late);
        }
        let owes = !self.link.queue.is_sent() || self.link.is_amid() || self.awaits_data();
        if owes && now - self.progress >= STALL { Err(Over::Stalled) } else { Ok(()) }
    }

    /// True if the host was asked for data that has not come.
    fn awaits_data(&self) -> bool {
        let mut commands = self.tasks.commands();
        commands.any(|command| !matches!(self.link.data(command), Data::None))
    }

    /// After it was taken out.
    pub fn end(mut self, over: &Over, context: &mut Context) {
        match over {
            Over::Gone(e) => debug!("{}: gone: {e}", self.name()),
            Over::Closed => debug!("{}: closed", self.name()),
            Over::Deleted => info!("{}: its controller is no more", self.name()),
            Over::Late | Over::Stalled => {
                context.counts.one(Counter::CutOff);
                info!("{}: cut off: {over:?}", self.name());
            }
        }
        if self.link.queue.violation().is_some() {
            context.counts.one(Counter::CutOff);
        }
        context.site.closed(&mut self.session);
    }

    fn name(&self) -> String {
        match (&self.names, self.session.queue()) {
            (Some((_, host)), Some((cntlid, qid))) => {
                let host = host.as_str();
                format!("{} ({host}, controller {cntlid}, queue {qid})", self.from)
            }
            _ => self.from.to_string(),
        }
    }

    fn events(&mut self, context: &mut Context) {
        while let Some(event) = self.link.poll() {
            match event {
                Event::Command { command, sqe, transfer } => {
                    self.command(command, &sqe, transfer, context);
                }
                Event::Received(command) => self.received(command, context),
                Event::Damaged(command) | Event::Sent(command) => {
                    self.tasks.forget(command);
                    self.link.place(command, Data::None);
                }
                Event::Terminated(why) => {
                    info!("{}: the host has ended the connection: {why:?}", self.name());
                }
            }
        }
    }
}
