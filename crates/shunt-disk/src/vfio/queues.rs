//! All queues of a controller: how they are made and deleted (Base 5.4 to 5.7).

use std::sync::atomic::{Ordering, fence};

use shunt_nvme::wire::{Sqe, Status};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::prp::PAGE;
use super::queue::{BadValue, Broken, COMPLETION, Completion, SUBMISSION, Submission};
use super::registers::{AdminQueue, MAX_ENTRIES};
use super::shadow::Shadow;
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
    shadow: Option<Shadow>,
}

/// The numbers of a queue's doorbells: its tail's and its head's.
const fn doorbells(queue: usize) -> (usize, usize) {
    (2 * queue, 2 * queue + 1)
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
        let completions = (0..places).map(|_| None).collect();
        Self { submissions, completions, shadow: None }
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
        self.shadow = None;
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

    /// Doorbell Buffer Config.
    ///
    /// # Errors
    /// How the command completes.
    pub fn shadow(&mut self, sqe: &Sqe, memory: &Memory) -> Result<(), Status> {
        self.shadow = Some(Shadow::of(sqe, memory, 2 * self.submissions.len())?);
        for id in 1..self.submissions.len() {
            self.begin_tail(id, memory);
            self.begin_head(id, memory);
        }
        Ok(())
    }

    /// A submission queue's doorbell is in memory from now on, if any is.
    fn begin_tail(&mut self, id: usize, memory: &Memory) {
        let (Some(shadow), Some(queue)) = (&mut self.shadow, &self.submissions[id]) else {
            return;
        };
        let (tail, _) = doorbells(id);
        shadow.begin(memory, tail, queue.tail());
        shadow.want(memory, tail, queue.before_tail());
    }

    /// The same of a completion queue's.
    fn begin_head(&mut self, id: usize, memory: &Memory) {
        let (Some(shadow), Some(queue)) = (&mut self.shadow, &self.completions[id]) else {
            return;
        };
        let (_, head) = doorbells(id);
        shadow.begin(memory, head, queue.head());
        shadow.want(memory, head, queue.before_head());
    }

    /// A doorbell in BAR0: tails of submission queues have even numbers, heads of completion queues odd ones. None where there is no
    /// such queue.
    pub fn ring(&mut self, number: u64, value: u32) -> Option<Result<(), BadValue>> {
        let id = u16::try_from(number / 2).ok()?;
        // What is in memory counts there, and may be a later value by now.
        let counts = id == 0 || self.shadow.is_none();
        Some(if number.is_multiple_of(2) {
            let queue = self.submission(id)?;
            if counts { queue.ring(value) } else { Ok(()) }
        } else {
            let queue = self.completion(id)?;
            if counts { queue.ring(value) } else { Ok(()) }
        })
    }

    /// Looks for entries that the guest has added.
    ///
    /// # Errors
    /// A value that a queue cannot have; what others have is taken over.
    pub fn look(&mut self, memory: &Memory) -> Result<(), BadValue> {
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        let mut all = Ok(());
        for (id, queue) in self.submissions.iter_mut().enumerate().skip(1) {
            if let Some(queue) = queue
                && let Some(value) = shadow.news(memory, doorbells(id).0)
            {
                all = queue.ring(value).and(all);
            }
        }
        all
    }

    /// The guest is to ring where it adds entries, or reads completions for which others wait. True if it has since the last look;
    /// else nothing is missed by who waits for it to ring.
    #[must_use]
    pub fn arm(&mut self, memory: &Memory) -> bool {
        let Some(shadow) = &self.shadow else { return false };
        for (number, value) in self.awaited() {
            shadow.want(memory, number, value);
        }
        // SYNC POINT shadow-event: the driver writes its doorbell, has a full barrier, and reads the event. One of the two sees what
        // the other has written.
        fence(Ordering::SeqCst);
        self.awaited().any(|(number, _)| shadow.has_news(memory, number))
    }

    /// Doorbells in memory that have something to tell, with the values that are known.
    fn awaited(&self) -> impl Iterator<Item = (usize, u32)> {
        let tails =
            self.submissions.iter().enumerate().skip(1).filter_map(|(id, queue)| {
                queue.as_ref().map(|queue| (doorbells(id).0, queue.tail()))
            });
        let heads = self.completions.iter().enumerate().skip(1).filter_map(|(id, queue)| {
            let queue = queue.as_ref().filter(|queue| queue.is_congested())?;
            Some((doorbells(id).1, queue.head()))
        });
        tails.chain(heads)
    }

    /// The guest need not ring any more.
    pub fn disarm(&mut self, memory: &Memory) {
        let Some(shadow) = &self.shadow else { return };
        for (id, queue) in self.submissions.iter().enumerate().skip(1) {
            if let Some(queue) = queue {
                shadow.want(memory, doorbells(id).0, queue.before_tail());
            }
        }
    }

    /// Shows the guest what has completed, and adds the interrupts that tell it. True if it has read more than there was.
    ///
    /// # Errors
    /// A queue is not in memory.
    pub fn post(&mut self, memory: &Memory, interrupts: &mut Vec<u16>) -> Result<bool, Broken> {
        let (mut is_bad, mut broken) = (false, Ok(()));
        for (id, queue) in self.completions.iter_mut().enumerate() {
            let Some(queue) = queue else { continue };
            let mut posted = queue.post(memory);
            // What has no room may have: the guest does not ring for all that it reads.
            if id > 0
                && queue.is_congested()
                && let Some(shadow) = &mut self.shadow
                && let Some(value) = shadow.news(memory, doorbells(id).1)
            {
                is_bad |= queue.ring(value).is_err();
                shadow.want(memory, doorbells(id).1, queue.before_head());
                posted = posted.and_then(|before| Ok(queue.post(memory)? || before));
            }
            match posted {
                Ok(true) => interrupts.extend(queue.vector),
                Ok(false) => {}
                Err(why) => broken = Err(why),
            }
        }
        broken.map(|()| is_bad)
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
        self.begin_head(id.into(), memory);
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
        self.begin_tail(id.into(), memory);
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
