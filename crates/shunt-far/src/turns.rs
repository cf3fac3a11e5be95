//! Whose turn it is, and which messages the device has: what links of all kinds keep of their places.

use std::collections::VecDeque;

/// Places with something to post, the one that has waited longest first. So none holds up the others.
#[derive(Debug)]
pub(crate) struct Turns {
    queue: VecDeque<usize>,
    is_in: Vec<bool>,
}

impl Turns {
    /// Of so many places.
    pub(crate) fn new(places: usize) -> Self {
        Self { queue: VecDeque::new(), is_in: vec![false; places] }
    }

    /// A place has something to post: it comes behind all others, unless it waits already.
    pub(crate) fn mark(&mut self, place: usize) {
        if let Some(is_in) = self.is_in.get_mut(place)
            && !core::mem::replace(is_in, true)
        {
            self.queue.push_back(place);
        }
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let place = self.queue.pop_front()?;
        self.is_in[place] = false;
        Some(place)
    }

    /// None waits any more.
    pub(crate) fn clear(&mut self) {
        while self.next().is_some() {}
    }

    /// True when none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// A message that the device has.
#[derive(Debug)]
struct Message<T> {
    id: u64,
    requests: u32,
    about: T,
}

/// Messages that the device has, the oldest first. It completes them in this order.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    messages: VecDeque<Message<T>>,
    requests: u32,
    next_id: u64,
}

impl<T> InFlight<T> {
    pub(crate) const fn new() -> Self {
        Self { messages: VecDeque::new(), requests: 0, next_id: 0 }
    }

    /// What the next one is called.
    pub(crate) const fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The next one was posted: it takes so many requests, and is about this.
    pub(crate) fn posted(&mut self, requests: u32, about: T) {
        self.messages.push_back(Message { id: self.next_id, requests, about });
        self.requests += requests;
        self.next_id += 1;
    }

    /// One has completed: what it was about. `None`: it is not the oldest.
    pub(crate) fn completed(&mut self, id: u64) -> Option<T> {
        let first = self.messages.pop_front_if(|first| first.id == id)?;
        self.requests -= first.requests;
        Some(first.about)
    }

    /// Their number, and that of their requests.
    pub(crate) fn count(&self) -> (usize, u32) {
        (self.messages.len(), self.requests)
    }
}
