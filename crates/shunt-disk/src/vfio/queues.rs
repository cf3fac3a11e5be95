//! All queues of a controller: how they are made and deleted (Base 5.4 to 5.7).

use shunt_nvme::wire::{Sqe, Status};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::prp::PAGE;
use super::queue::{COMPLETION, Completion, SUBMISSION, Submission};
use super::registers::{AdminQueue, MAX_ENTRIES};
use crate::port::Memory;

/// CDW11: physically contiguous, which all are.
const CONTIGUOUS: u32 = 1;
/// CDW11 of a completion queue: it raises interrupts.
const INTERRUPTS: u32 = 1 << 1;

/// The queues, by their numbers; 0 is the Admin Queue.
#[derive(Debug)]
pub struct Queues {
    submissions: Vec<Option<Submission>>,
    completions: Vec<Option<Completion>>,
}

/// The upper and the lower half.
const fn halves(dword: u32) -> (u16, u16) {
    let [a, b, c, d] = dword.to_le_bytes();
    (u16::from_le_bytes([c, d]), u16::from_le_bytes([a, b]))
}

impl Queues {
    /// None yet, of so many besides the Admin Queue.
    #[must_use]
    pub fn new(count: u16) -> Self {
        let places = usize::from(count) + 1;
        let submissions = (0..places).map(|_| None).collect();
        Self { submissions, completions: (0..places).map(|_| None).collect() }
    }

    /// The Admin Queue alone.
    pub fn begin(&mut self, admin: AdminQueue) {
        self.clear();
        let submission = Submission::new(admin.submission, admin.submissions, 0);
        self.submissions[0] = Some(submission);
        self.completions[0] = Some(Completion::new(admin.completion, admin.completions, Some(0)));
    }

    /// None.
    pub fn clear(&mut self) {
        self.submissions.fill_with(|| None);
        self.completions.fill_with(|| None);
    }

    /// True where there is another than the Admin Queue.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.completions.iter().skip(1).any(Option::is_some)
    }

    /// A submission queue.
    pub fn submission(&mut self, id: u16) -> Option<&mut Submission> {
        self.submissions.get_mut(usize::from(id))?.as_mut()
    }

    /// A completion queue.
    pub fn completion(&mut self, id: u16) -> Option<&mut Completion> {
        self.completions.get_mut(usize::from(id))?.as_mut()
    }

    /// The completion queues.
    pub fn completions(&mut self) -> impl Iterator<Item = &mut Completion> {
        self.completions.iter_mut().flatten()
    }

    /// True where a command of the queue can be taken.
    #[must_use]
    pub fn has_next(&self, id: u16) -> bool {
        let Some(Some(queue)) = self.submissions.get(usize::from(id)) else { return false };
        let answers = self.completions.get(usize::from(queue.completion));
        let has_room = matches!(answers, Some(Some(answers)) if !answers.is_congested());
        has_room && queue.has_next()
    }

    /// A command of a queue has completed.
    pub fn push(&mut self, sqid: u16, cid: u16, status: Status, result: u64) {
        let Some(queue) = self.submission(sqid) else { return };
        let (id, head) = (queue.completion, queue.head());
        if let Some(answers) = self.completion(id) {
            answers.push(cid, sqid, head, status, result);
        }
    }

    /// Checks what both kinds have in common; the number and the entries.
    fn check(
        &self,
        sqe: &Sqe,
        memory: &Memory,
        size: u32,
        is_there: impl Fn(&Self, usize) -> bool,
    ) -> Result<(u16, u64, u32), Status> {
        let (last, id) = halves(sqe.cdw10.get());
        let index = usize::from(id);
        if id == 0 || index >= self.submissions.len() || is_there(self, index) {
            return Err(Status::INVALID_QUEUE_IDENTIFIER.dnr());
        }
        let entries = u32::from(last) + 1;
        if !(2..=MAX_ENTRIES).contains(&entries) {
            return Err(Status::INVALID_QUEUE_SIZE.dnr());
        }
        let [at, _] = sqe.prps();
        if !at.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET_INVALID.dnr());
        }
        let len = usize::try_from(entries * size).unwrap_or(usize::MAX);
        let is_memory = memory.check_range(GuestAddress(at), len);
        if sqe.cdw11.get() & CONTIGUOUS == 0 || !is_memory {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok((id, at, entries))
    }

    /// Create I/O Completion Queue, of a controller with so many interrupts.
    ///
    /// # Errors
    /// How the command completes.
    pub fn create_completion(
        &mut self,
        sqe: &Sqe,
        memory: &Memory,
        vectors: u16,
    ) -> Result<(), Status> {
        let is_there = |queues: &Self, index: usize| queues.completions[index].is_some();
        let (id, at, entries) = self.check(sqe, memory, COMPLETION, is_there)?;
        let cdw11 = sqe.cdw11.get();
        let (vector, _) = halves(cdw11);
        if vector >= vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR.dnr());
        }
        let vector = (cdw11 & INTERRUPTS != 0).then_some(vector);
        self.completions[usize::from(id)] = Some(Completion::new(at, entries, vector));
        Ok(())
    }

    /// Create I/O Submission Queue.
    ///
    /// # Errors
    /// How the command completes.
    pub fn create_submission(&mut self, sqe: &Sqe, memory: &Memory) -> Result<(), Status> {
        let is_there = |queues: &Self, index: usize| queues.submissions[index].is_some();
        let (id, at, entries) = self.check(sqe, memory, SUBMISSION, is_there)?;
        let (completion, _) = halves(sqe.cdw11.get());
        if completion == 0 {
            return Err(Status::INVALID_QUEUE_IDENTIFIER.dnr());
        }
        let answers = self.completion(completion).ok_or(Status::COMPLETION_QUEUE_INVALID.dnr())?;
        answers.users += 1;
        self.submissions[usize::from(id)] = Some(Submission::new(at, entries, completion));
        Ok(())
    }

    /// Delete I/O Submission Queue: it goes when its commands are over.
    ///
    /// # Errors
    /// How the command completes.
    pub fn delete_submission(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let (_, id) = halves(sqe.cdw10.get());
        match self.submission(id) {
            Some(queue) if id > 0 && queue.deletion.is_none() => {
                queue.deletion = Some(sqe.cid.get());
                Ok(())
            }
            _ => Err(Status::INVALID_QUEUE_IDENTIFIER.dnr()),
        }
    }

    /// Deletes queues that are to go and have nothing in flight, and says so.
    pub fn finish_deletions(&mut self) {
        for id in 1..self.submissions.len() {
            let is_over = |queue: &mut Submission| queue.deletion.is_some() && queue.in_flight == 0;
            let Some(queue) = self.submissions[id].take_if(is_over) else { continue };
            if let Some(answers) = self.completion(queue.completion) {
                answers.users -= 1;
            }
            if let Some(cid) = queue.deletion {
                self.push(0, cid, Status::SUCCESS, 0);
            }
        }
    }

    /// Delete I/O Completion Queue.
    ///
    /// # Errors
    /// How the command completes: submission queues use it.
    pub fn delete_completion(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let (_, id) = halves(sqe.cdw10.get());
        match self.completion(id) {
            Some(queue) if id > 0 && queue.users == 0 => {
                self.completions[usize::from(id)] = None;
                Ok(())
            }
            Some(_) if id > 0 => Err(Status::INVALID_QUEUE_DELETION.dnr()),
            _ => Err(Status::INVALID_QUEUE_IDENTIFIER.dnr()),
        }
    }
}
