//! What stores are doing for connections of this thread.

use shunt_nvme::transport::Command;

use crate::buffers::Buffer;

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A command, which may be over by then.
    Command(Command),
    /// A comparison and the write that it decides about.
    Fused(Command, Command),
    /// The shutdown of a controller.
    Shutdown(u16),
}

/// A request under way. Its buffers stay until it is over, also where its connection does not.
#[derive(Debug)]
pub struct Entry {
    /// Of the connection.
    pub token: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// What the store reads or fills.
    pub buffers: Vec<Buffer>,
}

/// All of them, by their tags.
#[derive(Debug, Default)]
pub struct Pending {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
}

impl Pending {
    /// Notes one, and says under which tag it is to be submitted.
    pub fn insert(&mut self, entry: Entry) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[index] = Some(entry);
        index as u64
    }

    /// One that is over.
    pub fn remove(&mut self, tag: u64) -> Option<Entry> {
        let index = usize::try_from(tag).ok()?;
        let entry = self.entries.get_mut(index)?.take()?;
        self.free.push(index);
        Some(entry)
    }

    /// True if nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }
}
