//! Programs that are about to end while the link of their connections is settled.

use std::time::Duration;

use shunt_far::lane::Rest;
use shunt_peer::message::Place;

/// How long a program may take from saying that it is about to end to its end: it waits for two seconds itself, and may not run.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at it.
const AGAIN: Duration = Duration::from_millis(1);

/// What a peer is to be sent of programs that have ended.
pub(crate) type Rests = Vec<(Place, Rest)>;

/// Those of one link group.
#[derive(Debug)]
pub(crate) struct Endings {
    /// Of those that have ended.
    pub(crate) rests: Rests,
    /// Of those that are about to.
    slots: Vec<usize>,
    /// When to look next; `None`: a worker does.
    look_at: Option<Duration>,
    until: Duration,
}

impl Endings {
    pub(crate) fn new(now: Duration) -> Self {
        let (rests, slots) = (Vec::new(), Vec::new());
        Self { rests, slots, look_at: None, until: now + PATIENCE }
    }

    /// These have not ended yet.
    pub(crate) fn await_those(&mut self, slots: Vec<usize>, now: Duration) {
        (self.slots, self.look_at) = (slots, Some(now + AGAIN));
    }

    pub(crate) const fn look_at(&self) -> Option<Duration> {
        self.look_at
    }

    /// Those that are to be looked at now, and whether they have had their time.
    pub(crate) fn due(&mut self, now: Duration) -> Option<(Vec<usize>, bool)> {
        self.look_at.take_if(|at| now >= *at)?;
        Some((self.slots.clone(), now >= self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_about_to_end_are_looked_at_until_their_time_is_up() {
        let now = Duration::from_secs(9);
        let mut endings = Endings::new(now);
        assert_eq!((endings.look_at(), endings.due(now)), (None, None));
        endings.await_those(vec![3], now);
        assert_eq!((endings.look_at(), endings.due(now)), (Some(now + AGAIN), None));
        assert_eq!(endings.due(now + AGAIN), Some((vec![3], false)));
        assert_eq!(endings.due(now + AGAIN), None, "a worker does");
        endings.await_those(vec![3], now + AGAIN);
        assert_eq!(endings.due(now + PATIENCE), Some((vec![3], true)));
    }
}
