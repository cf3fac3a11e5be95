//! Carries many non-blocking connections in one thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Receiver as Inbox;
use std::time::Duration;

use shunt_functional::sys;

use crate::conn::{Conn, lost};
use crate::half::Step;
use crate::options::Style;
use crate::waiter::{Interest, Ready, Waiter};

/// Key of the descriptor that [`Source`] is heard by.
const SOURCE: usize = 0;

/// Where a driver's connections come from, beside those that it is given at the start.
pub enum Source<'a> {
    /// Nowhere.
    None,
    /// A non-blocking listener; the closure takes what was accepted and may hand it elsewhere.
    Listener(&'a OwnedFd, &'a mut dyn FnMut(OwnedFd) -> io::Result<Option<Conn>>),
    /// Another thread, which rings the eventfd after it has put one into the inbox.
    Inbox(&'a OwnedFd, &'a Inbox<Conn>),
    /// The closure, which makes another (and says whether it is still connecting) for each that has
    /// ended, until it has no more.
    Opener(&'a mut dyn FnMut() -> io::Result<Option<(Conn, bool)>>),
}

struct Member {
    conn: Conn,
    connecting: bool,
    interest: Interest,
    /// Edge-triggered: what the last edge said and no call has denied since.
    ready: Interest,
    hangup: bool,
    /// Bytes that are left of those that `FIONREAD` found after the last edge, if it was asked.
    counted: Option<u64>,
}

impl Member {
    fn wanted(&self) -> Interest {
        if self.connecting {
            return Interest { read: false, write: true };
        }
        Interest { read: !self.conn.receiver.is_done(), write: !self.conn.sender.is_done() }
    }

    /// True when a try is worth it without another wait.
    fn is_active(&self) -> bool {
        let wanted = self.wanted();
        (self.ready.read && wanted.read) || (self.ready.write && wanted.write)
    }

    /// After a call that received all that it asked for, from byte `before` of the stream: true when more
    /// is there. What comes after the count comes with an edge of its own.
    fn count(&mut self, before: u64) -> io::Result<bool> {
        let taken = self.conn.receiver.got - before;
        let left = match self.counted {
            Some(left) => left.saturating_sub(taken),
            None => u64::try_from(sys::fionread(self.conn.raw())?).map_err(io::Error::other)?,
        };
        self.counted = Some(left);
        Ok(left > 0)
    }
}

/// The loop and its connections.
pub struct Driver<'a> {
    style: Style,
    waiter: Waiter,
    members: HashMap<usize, Member>,
    next_key: usize,
    source: Source<'a>,
    /// Connections still to be carried to their end; `None`: there is no end.
    left: Option<usize>,
}

impl<'a> Driver<'a> {
    /// A loop that ends after `quota` connections, or never.
    pub fn new(style: Style, source: Source<'a>, quota: Option<usize>) -> io::Result<Self> {
        let mut waiter = Waiter::new(style)?;
        let read = Interest { read: true, write: false };
        match &source {
            Source::None | Source::Opener(_) => {}
            Source::Listener(fd, _) | Source::Inbox(fd, _) => {
                waiter.add(SOURCE, fd.as_raw_fd(), read)?;
            }
        }
        let members = HashMap::new();
        Ok(Self { style, waiter, members, next_key: SOURCE + 1, source, left: quota })
    }

    /// Takes a connection on.
    pub fn add(&mut self, conn: Conn, connecting: bool) -> io::Result<()> {
        let none = Interest::default();
        let mut member =
            Member { conn, connecting, interest: none, ready: none, hangup: false, counted: None };
        if !connecting {
            member.conn.half_close()?;
        }
        if member.conn.is_done() {
            self.left = self.left.map(|n| n.saturating_sub(1));
            return member.conn.finish();
        }
        member.interest = member.wanted();
        let key = self.next_key;
        self.next_key += 1;
        self.waiter.add(key, member.conn.raw(), member.interest)?;
        self.members.insert(key, member);
        Ok(())
    }

    /// Runs to the end.
    pub fn run(mut self) -> io::Result<()> {
        let mut active: Vec<usize> = Vec::new();
        while self.left != Some(0) {
            let timeout = (!active.is_empty()).then_some(Duration::ZERO);
            let found = self.waiter.wait(timeout)?;
            let mut round = std::mem::take(&mut active);
            for ready in found {
                if ready.key == SOURCE {
                    self.take_from_source()?;
                } else if self.note(ready) && !round.contains(&ready.key) {
                    round.push(ready.key);
                }
            }
            for key in round {
                match self.work(key) {
                    Ok(true) => active.push(key),
                    Ok(false) => {}
                    Err(e) => self.lose(key, e)?,
                }
                if !self.members.contains_key(&key) {
                    self.open_another()?;
                }
            }
        }
        Ok(())
    }

    /// A connection has failed: an end like another, if its other end may be killed.
    fn lose(&mut self, key: usize, error: io::Error) -> io::Result<()> {
        let Some(member) = self.members.remove(&key) else { return Err(error) };
        self.waiter.remove(key, member.conn.raw())?;
        self.left = self.left.map(|n| n.saturating_sub(1));
        lost(error, member.conn.survives())
    }

    /// In place of one that has ended.
    fn open_another(&mut self) -> io::Result<()> {
        if let Source::Opener(open) = &mut self.source
            && let Some((conn, connecting)) = open()?
        {
            self.add(conn, connecting)?;
        }
        Ok(())
    }

    /// Accepts, or empties the inbox.
    fn take_from_source(&mut self) -> io::Result<()> {
        let mut new = Vec::new();
        match &mut self.source {
            Source::None | Source::Opener(_) => {}
            Source::Inbox(bell, inbox) => {
                let mut count = [0; 8];
                match sys::read(bell.as_raw_fd(), &mut count) {
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                    _ => new.extend(inbox.try_iter()),
                }
            }
            Source::Listener(fd, place) => loop {
                match sys::accept(fd.as_raw_fd(), libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                    Ok((conn, _)) => new.extend(place(conn)?),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            },
        }
        for conn in new {
            self.add(conn, false)?;
        }
        // A one-shot source has to be armed again.
        if let Source::Listener(fd, _) | Source::Inbox(fd, _) = &self.source {
            let read = Interest { read: true, write: false };
            self.waiter.update(SOURCE, fd.as_raw_fd(), read, read)?;
        }
        Ok(())
    }

    /// Writes down what a wait found; false when the connection is gone already.
    fn note(&mut self, ready: Ready) -> bool {
        let Some(member) = self.members.get_mut(&ready.key) else { return false };
        member.ready.read |= ready.read;
        member.ready.write |= ready.write;
        member.hangup |= ready.hangup;
        if ready.read {
            member.counted = None;
        }
        true
    }

    /// One step in each ready direction; true when another is worth it without a wait.
    fn work(&mut self, key: usize) -> io::Result<bool> {
        let Some(member) = self.members.get_mut(&key) else { return Ok(false) };
        let fd = member.conn.raw();
        if member.connecting && member.ready.write {
            match sys::get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
                0 => member.connecting = false,
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        }
        let wanted = member.wanted();
        if !member.connecting && wanted.read && member.ready.read {
            let before = member.conn.receiver.got;
            member.ready.read = match member.conn.receiver.step(fd, false)? {
                Step::Moved if self.style == Style::EpollCounted => {
                    member.count(before)? || member.hangup
                }
                Step::Moved => true,
                // epoll(7): a short read means drained; but after a hang-up the end is still
                // to be read and no further edge will tell.
                Step::Short => member.hangup,
                Step::Blocked | Step::Done => false,
            };
        }
        if !member.connecting && wanted.write && member.ready.write {
            member.ready.write = member.conn.sender.step(fd)? == Step::Moved;
            member.conn.half_close()?;
        }
        if member.conn.is_done() {
            self.waiter.remove(key, fd)?;
            self.left = self.left.map(|n| n.saturating_sub(1));
            if let Some(member) = self.members.remove(&key) {
                member.conn.finish()?;
            }
            return Ok(false);
        }
        let now = member.wanted();
        let before = std::mem::replace(&mut member.interest, now);
        if self.style.is_edge_triggered() {
            return Ok(member.is_active());
        }
        // Everything but edge-triggering says again what is ready.
        member.ready = Interest::default();
        self.waiter.update(key, fd, before, now)?;
        Ok(false)
    }
}
