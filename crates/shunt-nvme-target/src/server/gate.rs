//! How many connections there are, and how many of them have not yet shown that a host is behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts connections of all threads against the bounds.
#[derive(Debug, Default)]
pub struct Gate {
    all: AtomicUsize,
    unconnected: AtomicUsize,
}

impl Gate {
    /// Lets a connection in; `None` where there are too many.
    #[must_use]
    pub fn enter(self: &Arc<Self>, most: usize, most_unconnected: usize) -> Option<Ticket> {
        let take = |count: &AtomicUsize, most| {
            let more = |n| (n < most).then_some(n + 1);
            count.try_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        };
        if !take(&self.all, most) {
            return None;
        }
        if !take(&self.unconnected, most_unconnected) {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Ticket { gate: Arc::clone(self), unconnected: true })
    }

    /// Connections that there are.
    #[must_use]
    pub fn inside(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }
}

/// The place of one connection; it is free again on drop.
#[derive(Debug)]
pub struct Ticket {
    gate: Arc<Gate>,
    unconnected: bool,
}

impl Ticket {
    /// True if the host has completed its Connect command.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        !self.unconnected
    }

    /// The host has completed its Connect command.
    pub fn connected(&mut self) {
        if self.unconnected {
            self.unconnected = false;
            self.gate.unconnected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.connected();
        self.gate.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        let gate = Arc::new(Gate::default());
        let enter = || gate.enter(3, 2);
        let (mut one, two) = (enter().unwrap(), enter().unwrap());
        assert!(enter().is_none(), "two have not connected");
        one.connected();
        one.connected();
        let three = enter().unwrap();
        assert!(enter().is_none(), "three are there");
        drop((one, two, three));
        assert_eq!((gate.inside(), gate.unconnected.load(Ordering::Relaxed)), (0, 0));
    }
}
