//! Admin commands (Base 5).

use std::collections::BTreeMap;

use shunt_nvme::wire::feature::{CHANGEABLE, Select, fid};
use shunt_nvme::wire::log::GetLogPage;
use shunt_nvme::wire::opcode::admin;
use shunt_nvme::wire::{Fuse, Nqn, Sqe, Status};

use super::events::Events;
use super::identify::{self, ALL, MAX_DATA, NSID, REVISION};
use super::logs::Logs;
use super::prp;
use super::queues::Queues;
use crate::port::{Geometry, Memory};

/// SV of Set Features: it is to be kept over resets.
const SAVE: u32 = 1 << 31;

/// Features that are kept as the guest has set them, and of which nothing becomes.
const KEPT: [u8; 6] = [
    fid::ARBITRATION,
    fid::TEMPERATURE_THRESHOLD,
    fid::ERROR_RECOVERY,
    fid::INTERRUPT_COALESCING,
    fid::INTERRUPT_VECTOR,
    fid::WRITE_ATOMICITY,
];

/// How a command goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It completes with this result.
    Done(u64),
    /// It completes later.
    Later,
}

/// What Admin commands have to do with.
#[derive(Debug)]
pub struct Admin {
    name: Nqn,
    /// Queues for I/O at most, of either kind.
    count: u16,
    /// Events.
    pub events: Events,
    /// Log pages.
    pub logs: Logs,
    /// Values of features that were set.
    kept: BTreeMap<u8, u32>,
}

impl Admin {
    /// That of a subsystem with this name and so many queues.
    #[must_use]
    pub fn new(name: Nqn, count: u16) -> Self {
        let (events, logs) = (Events::default(), Logs::default());
        Self { name, count, events, logs, kept: BTreeMap::new() }
    }

    /// As it was at first.
    pub fn reset(&mut self) {
        *self = Self::new(self.name.clone(), self.count);
    }

    /// Executes a command.
    ///
    /// # Errors
    /// How it completes.
    pub fn execute(
        &mut self,
        sqe: &Sqe,
        queues: &mut Queues,
        memory: &Memory,
        disk: &Geometry,
    ) -> Result<Answer, Status> {
        if sqe.fuse() != Fuse::No || !sqe.has_prps() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match sqe.opcode {
            admin::CREATE_COMPLETION_QUEUE => {
                // One for the Admin Queue.
                let vectors = self.count + 1;
                queues.create_completion(sqe, memory, vectors).map(|()| Answer::Done(0))
            }
            admin::CREATE_SUBMISSION_QUEUE => {
                queues.create_submission(sqe, memory).map(|()| Answer::Done(0))
            }
            admin::DELETE_SUBMISSION_QUEUE => queues.delete_submission(sqe).map(|()| Answer::Later),
            admin::DELETE_COMPLETION_QUEUE => {
                queues.delete_completion(sqe).map(|()| Answer::Done(0))
            }
            admin::DOORBELL_BUFFER_CONFIG => queues.shadow(sqe, memory).map(|()| Answer::Done(0)),
            admin::IDENTIFY => {
                let data = identify::answer(sqe, disk, &self.name)?;
                prp::write(memory, sqe, &data).map(|()| Answer::Done(0))
            }
            admin::GET_LOG_PAGE => self.log_page(sqe, memory),
            admin::ABORT => Ok(Answer::Done(self.abort(sqe, queues))),
            admin::SET_FEATURES => self.set_feature(sqe, queues).map(Answer::Done),
            admin::GET_FEATURES => self.feature(sqe).map(Answer::Done),
            admin::ASYNC_EVENT => self.events.request(sqe.cid.get()).map(|()| Answer::Later),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    fn log_page(&mut self, sqe: &Sqe, memory: &Memory) -> Result<Answer, Status> {
        if ![0, NSID, ALL].contains(&sqe.nsid.get()) {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        let page = GetLogPage::of(sqe);
        let data = self.logs.page(&page, MAX_DATA, NSID, REVISION)?;
        prp::write(memory, sqe, &data)?;
        if !page.retain {
            self.events.read(page.lid);
        }
        Ok(Answer::Done(0))
    }

    /// Asynchronous Event Requests alone; the result says whether it was none.
    fn abort(&mut self, sqe: &Sqe, queues: &mut Queues) -> u64 {
        let [a, b, c, d] = sqe.cdw10.get().to_le_bytes();
        let (sqid, cid) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let was_aborted = sqid == 0 && self.events.abort(cid);
        if was_aborted {
            queues.push(0, cid, Status::ABORT_REQUESTED, 0);
        }
        u64::from(!was_aborted)
    }

    /// Number of Queues: zero's based, of both kinds.
    fn queues(&self) -> u64 {
        let last = u64::from(self.count.saturating_sub(1));
        last << 16 | last
    }

    fn set_feature(&mut self, sqe: &Sqe, queues: &Queues) -> Result<u64, Status> {
        let (cdw10, value) = (sqe.cdw10.get(), sqe.cdw11.get());
        let [feature, ..] = cdw10.to_le_bytes();
        if cdw10 & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        match feature {
            fid::NUMBER_OF_QUEUES => {
                if value & 0xffff == 0xffff || value >> 16 == 0xffff {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                if queues.has_any() {
                    return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
                }
                Ok(self.queues())
            }
            fid::ASYNC_EVENT => {
                self.events.configuration = value;
                Ok(0)
            }
            // There is one state of power.
            fid::POWER_MANAGEMENT if value & 0x1f == 0 => Ok(0),
            fid::POWER_MANAGEMENT => Err(Status::INVALID_FIELD.dnr()),
            // Behind the target's answer is its cache.
            fid::VOLATILE_WRITE_CACHE if value & 1 == 1 => Ok(0),
            fid::VOLATILE_WRITE_CACHE => Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
            feature if KEPT.contains(&feature) => {
                self.kept.insert(feature, value);
                Ok(0)
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn feature(&self, sqe: &Sqe) -> Result<u64, Status> {
        let [feature, ..] = sqe.cdw10.get().to_le_bytes();
        let select = Select::of(sqe.cdw10.get()).ok_or(Status::INVALID_FIELD.dnr())?;
        let (current, default) = match feature {
            fid::NUMBER_OF_QUEUES => (self.queues(), self.queues()),
            fid::ASYNC_EVENT => (self.events.configuration.into(), 0),
            fid::POWER_MANAGEMENT => (0, 0),
            fid::VOLATILE_WRITE_CACHE => (1, 1),
            feature if KEPT.contains(&feature) => {
                (self.kept.get(&feature).copied().unwrap_or(0).into(), 0)
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(match select {
            Select::Current => current,
            // None is saved, so that the default is.
            Select::Default | Select::Saved => default,
            Select::Capabilities if feature == fid::VOLATILE_WRITE_CACHE => 0,
            Select::Capabilities => CHANGEABLE.into(),
        })
    }
}
