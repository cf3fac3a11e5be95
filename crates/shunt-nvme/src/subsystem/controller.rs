//! The state of a controller: properties, queues, events.

use super::notice::Notice;
use crate::wire::{
    Nqn, Sqe, Status,
    identify::{EVENT_ANA_CHANGE, EVENT_DISCOVERY_CHANGE, EVENT_NAMESPACE_ATTRIBUTE},
    log::{ErrorEntry, ReservationPage, lid},
    registers::{Configuration, ControllerStatus, Shutdown},
    reservation::Notification,
};
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

/// Entries of the changed namespace list (Base 5.16.1.5).
const MAX_CHANGED: usize = 1024;
/// Entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 16;

/// A discovery controller whose host has set no Keep Alive time ends after so much silence (Base 3.1.2.3).
const DISCOVERY_SILENCE: Duration = Duration::from_secs(120);

/// Reservation notifications that wait to be read; more are lost, and counted.
const MAX_NOTIFICATIONS: usize = 64;

/// Abort commands at once: ACL, zero's based.
pub(super) const ABORT_LIMIT: u8 = 3;
/// The result of an Abort command whose command goes on (Base 5.1).
const NOT_ABORTED: u32 = 1;

/// An Abort command: what it is to abort, and its own identifier.
#[derive(Clone, Copy, Debug)]
struct AbortOf {
    qid: u16,
    cid: u16,
    by: u16,
}

#[derive(Debug)]
pub(super) struct Controller {
    /// `None` for a discovery controller.
    pub(super) subsystem: Option<Nqn>,
    pub(super) host: Nqn,
    pub(super) hostid: [u8; 16],
    pub(super) port: u16,
    pub(super) cc: Configuration,
    pub(super) csts: ControllerStatus,
    /// Queues that are connected; 0 is the Admin Queue.
    pub(super) queues: BTreeSet<u16>,
    /// KATO in milliseconds, and when it runs out.
    pub(super) kato: u32,
    pub(super) deadline: Option<Duration>,
    /// Events that the host wants: the feature.
    pub(super) async_config: u32,
    pub(super) write_cache: bool,
    /// Identifiers of event requests.
    requests: VecDeque<u16>,
    /// Abort commands whose commands are being looked for.
    aborts: Vec<AbortOf>,
    /// Events that have happened and were not reported.
    pending: u32,
    /// Events that were reported, until their log is read.
    masked: u32,
    /// `None` stands for more than the list holds.
    changed: Option<BTreeSet<u32>>,
    /// Reservation notifications, the oldest first, and how many there were.
    reservation_pages: VecDeque<ReservationPage>,
    reservation_count: u64,
    pub(super) errors: VecDeque<ErrorEntry>,
    error_count: u64,
}

/// Reservation Log Page Available: no bit of the feature is for it, so hosts cannot but want it.
const EVENT_RESERVATION: u32 = 1 << 30;

/// Types of events: Notice, and I/O Command Specific Status.
const NOTICE: u32 = 2;
const IO_SPECIFIC: u32 = 6;

/// The events in order of their reports: bit, type and information as in the result, log page.
const EVENTS: [(u32, u32, u8); 4] = [
    (EVENT_NAMESPACE_ATTRIBUTE, NOTICE, lid::CHANGED_NAMESPACES),
    (EVENT_ANA_CHANGE, NOTICE | 0x03 << 8, lid::ANA),
    (EVENT_RESERVATION, IO_SPECIFIC, lid::RESERVATION),
    (EVENT_DISCOVERY_CHANGE, NOTICE | 0xf0 << 8, lid::DISCOVERY),
];

impl Controller {
    pub(super) fn new(
        subsystem: Option<Nqn>,
        host: Nqn,
        hostid: [u8; 16],
        port: u16,
        kato: u32,
    ) -> Self {
        Self {
            subsystem,
            host,
            hostid,
            port,
            cc: Configuration::default(),
            csts: ControllerStatus::default(),
            queues: BTreeSet::from([0]),
            kato,
            deadline: None,
            async_config: 0,
            write_cache: true,
            requests: VecDeque::new(),
            aborts: Vec::new(),
            pending: 0,
            masked: 0,
            changed: Some(BTreeSet::new()),
            reservation_pages: VecDeque::new(),
            reservation_count: 0,
            errors: VecDeque::new(),
            error_count: 0,
        }
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.subsystem.is_none()
    }

    /// Restarts the Keep Alive Timer (Base 3.9): any command does so, on any queue.
    ///
    /// A host that leaves Keep Alive commands out while commands complete, looks after half of its
    /// time whether some did: it may be silent for all of its time, and the next command is on its way
    /// then. So it has half as much again.
    pub(super) fn keep_alive(&mut self, now: Duration) {
        self.deadline = match self.kato {
            0 if self.is_discovery() => Some(now + DISCOVERY_SILENCE),
            0 => None,
            kato => Some(now + Duration::from_millis(u64::from(kato)) * 3 / 2),
        };
    }

    /// Sets CC (Base 3.1.3.5); gives what other connections have to know.
    pub(super) fn configure(&mut self, cntlid: u16, value: u32) -> Option<Notice> {
        let (old, new) = (self.cc, Configuration(value));
        self.cc = new;
        let mut notice = None;
        if new.enabled() && !old.enabled() {
            // Base 3.5: an unsupported configuration is a fatal status.
            self.csts = ControllerStatus(if new.is_supported() {
                ControllerStatus::READY
            } else {
                ControllerStatus::FATAL
            });
        } else if !new.enabled() && old.enabled() {
            self.csts = ControllerStatus::default();
            self.requests.clear();
            self.pending = 0;
            self.masked = 0;
            self.async_config = 0;
            self.reservation_pages.clear();
            self.queues.retain(|queue| *queue == 0);
            notice = Some(Notice::Reset { cntlid });
        }
        if new.shutdown() != Shutdown::No && old.shutdown() == Shutdown::No {
            self.csts.0 = self.csts.0 & !(3 << 2) | 1 << 2;
            notice = Some(Notice::Shutdown { cntlid });
        }
        notice
    }

    pub(super) fn shutdown_complete(&mut self) {
        if self.cc.shutdown() != Shutdown::No {
            self.csts.0 = self.csts.0 & !(3 << 2) | ControllerStatus::SHUTDOWN_COMPLETE;
        }
    }

    /// A change to a namespace, for the list of those.
    pub(super) fn changed_namespace(&mut self, nsid: u32) {
        if let Some(changed) = &mut self.changed {
            changed.insert(nsid);
            if changed.len() > MAX_CHANGED {
                self.changed = None;
            }
        }
    }

    /// The list of changed namespaces (Base 5.16.1.5); FFFFFFFFh alone if there are too many.
    pub(super) fn changed_list(&self) -> Vec<u32> {
        self.changed.as_ref().map_or_else(|| vec![u32::MAX], |list| list.iter().copied().collect())
    }

    /// The list was read.
    pub(super) fn forget_changes(&mut self) {
        self.changed = Some(BTreeSet::new());
    }

    /// The host is to be told of a reservation (Base 5.16.1.24).
    pub(super) fn reservation_changed(
        &mut self,
        cntlid: u16,
        nsid: u32,
        what: Notification,
    ) -> Option<Notice> {
        // It goes on with 1: a page without a count is an empty one.
        self.reservation_count = self.reservation_count.checked_add(1).unwrap_or(1);
        let count = self.reservation_count;
        let is_full = self.reservation_pages.len() >= MAX_NOTIFICATIONS;
        match self.reservation_pages.back_mut() {
            Some(last) if is_full => last.count = count.into(),
            _ => self.reservation_pages.push_back(ReservationPage::new(count, what, nsid)),
        }
        self.notify(cntlid, EVENT_RESERVATION)
    }

    /// The oldest of the reservation notifications, which is taken off the list where it is read.
    pub(super) fn reservation_page(&self) -> ReservationPage {
        let Some(mut page) = self.reservation_pages.front().copied() else {
            return ReservationPage::empty();
        };
        let more = self.reservation_pages.len() - 1;
        page.available = u8::try_from(more).unwrap_or(u8::MAX);
        page
    }

    /// The oldest of the reservation notifications was read. Others are another event.
    pub(super) fn reservation_page_was_read(&mut self) {
        self.reservation_pages.pop_front();
        if self.reservation_pages.is_empty() {
            self.pending &= !EVENT_RESERVATION;
        } else {
            self.pending |= EVENT_RESERVATION;
        }
    }

    /// An event has happened; it is reported if the host wants it.
    pub(super) fn notify(&mut self, cntlid: u16, event: u32) -> Option<Notice> {
        self.pending |= event;
        self.report(cntlid)
    }

    /// Reports an event, if one is pending and a request is there for it (Base 5.2).
    fn report(&mut self, cntlid: u16) -> Option<Notice> {
        let due = self.pending & (self.async_config | EVENT_RESERVATION) & !self.masked;
        let (event, of, page) = EVENTS.iter().find(|(event, ..)| event & due != 0)?;
        let cid = self.requests.pop_front()?;
        self.pending &= !event;
        self.masked |= event;
        let result = of | u32::from(*page) << 16;
        Some(Notice::Completed { cntlid, cid, status: Status::SUCCESS, result })
    }

    /// Takes an event request; gives what is to be reported at once.
    pub(super) fn request_event(
        &mut self,
        cntlid: u16,
        cid: u16,
        limit: u8,
    ) -> Result<Option<Notice>, Status> {
        if self.requests.len() >= usize::from(limit) {
            return Err(Status::AER_LIMIT_EXCEEDED.dnr());
        }
        self.requests.push_back(cid);
        Ok(self.report(cntlid))
    }

    /// Sets what events the host wants.
    pub(super) fn want_events(&mut self, cntlid: u16, config: u32) -> Option<Notice> {
        self.async_config = config;
        self.report(cntlid)
    }

    /// Abort (Base 5.1), with this identifier: what has to be done about it.
    pub(super) fn abort(
        &mut self,
        cntlid: u16,
        by: u16,
        (qid, cid): (u16, u16),
    ) -> Result<Vec<Notice>, Status> {
        let done = |cid, status, result| Notice::Completed { cntlid, cid, status, result };
        if qid == 0 {
            // What can be aborted there are event requests.
            let before = self.requests.len();
            self.requests.retain(|request| *request != cid);
            if self.requests.len() == before {
                return Ok(vec![done(by, Status::SUCCESS, NOT_ABORTED)]);
            }
            // The command that is aborted completes first.
            let aborted = done(cid, Status::ABORT_REQUESTED, 0);
            return Ok(vec![aborted, done(by, Status::SUCCESS, 0)]);
        }
        if !self.queues.contains(&qid) {
            return Ok(vec![done(by, Status::SUCCESS, NOT_ABORTED)]);
        }
        if self.aborts.len() > usize::from(ABORT_LIMIT) {
            return Err(Status::ABORT_LIMIT_EXCEEDED.dnr());
        }
        self.aborts.push(AbortOf { qid, cid, by });
        Ok(vec![Notice::Abort { cntlid, qid, cid }])
    }

    /// A command was aborted, or could not be: the Abort command is done.
    pub(super) fn aborted(
        &mut self,
        cntlid: u16,
        (qid, cid): (u16, u16),
        is_aborted: bool,
    ) -> Option<Notice> {
        let index = self.aborts.iter().position(|abort| (abort.qid, abort.cid) == (qid, cid))?;
        let AbortOf { by, .. } = self.aborts.remove(index);
        let result = if is_aborted { 0 } else { NOT_ABORTED };
        Some(Notice::Completed { cntlid, cid: by, status: Status::SUCCESS, result })
    }

    /// A queue is no more: nothing of it can be aborted.
    pub(super) fn queue_closed(&mut self, cntlid: u16, qid: u16) -> Vec<Notice> {
        self.queues.remove(&qid);
        let (over, stay) = self.aborts.iter().copied().partition(|abort| abort.qid == qid);
        self.aborts = stay;
        let done = |abort: AbortOf| Notice::Completed {
            cntlid,
            cid: abort.by,
            status: Status::SUCCESS,
            result: NOT_ABORTED,
        };
        Vec::into_iter(over).map(done).collect()
    }

    /// A log page was read without RAE: its event may be reported again.
    pub(super) fn log_was_read(&mut self, cntlid: u16, page: u8) -> Option<Notice> {
        for (event, _, _) in EVENTS.iter().filter(|(.., of)| *of == page) {
            self.masked &= !event;
        }
        self.report(cntlid)
    }

    /// Notes a command that has failed, for the error log.
    pub(super) fn failed(&mut self, queue: u16, sqe: &Sqe, status: Status) {
        self.error_count += 1;
        self.errors.push_front(ErrorEntry::new(self.error_count, queue, sqe, status));
        self.errors.truncate(ERROR_ENTRIES);
    }

    pub(super) const fn error_count(&self) -> u64 {
        self.error_count
    }
}
