//! Asynchronous events (Base 5.2): what the guest is told without having asked at that time.

use shunt_nvme::wire::Status;
use shunt_nvme::wire::identify::EVENT_NAMESPACE_ATTRIBUTE;
use shunt_nvme::wire::log::lid;

/// Asynchronous Event Requests at once: AERL has one less.
pub const MAX_REQUESTS: usize = 4;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A doorbell of a queue that there is not was written.
    NoSuchDoorbell,
    /// A doorbell was written with a value that its queue cannot have.
    BadDoorbell,
    /// The disk has changed.
    Namespace,
}

/// All of them, those first that are told first.
const ALL: [Event; 3] = [Event::NoSuchDoorbell, Event::BadDoorbell, Event::Namespace];

impl Event {
    /// Type, information and log page, as a completion has them.
    const fn result(self) -> u64 {
        let (kind, information) = match self {
            Self::NoSuchDoorbell => (0, 0),
            Self::BadDoorbell => (0, 1),
            Self::Namespace => (2, 0),
        };
        kind | information << 8 | (self.log() as u64) << 16
    }

    /// The log page that says more. Events of the same page are told once until it is read.
    const fn log(self) -> u8 {
        match self {
            Self::NoSuchDoorbell | Self::BadDoorbell => lid::ERROR,
            Self::Namespace => lid::CHANGED_NAMESPACES,
        }
    }
}

/// Requests that wait for events, and events that wait for requests.
#[derive(Clone, Debug, Default)]
pub struct Events {
    requests: Vec<u16>,
    raised: [bool; ALL.len()],
    /// Pages with an event that was told, and that were not read since.
    unread: Vec<u8>,
    /// Asynchronous Event Configuration, as the guest has set it.
    pub configuration: u32,
}

impl Events {
    /// Another request.
    ///
    /// # Errors
    /// There are too many.
    pub fn request(&mut self, cid: u16) -> Result<(), Status> {
        if self.requests.len() >= MAX_REQUESTS {
            return Err(Status::AER_LIMIT_EXCEEDED.dnr());
        }
        self.requests.push(cid);
        Ok(())
    }

    /// Takes a request back; true if there was one.
    pub fn abort(&mut self, cid: u16) -> bool {
        let at = self.requests.iter().position(|request| *request == cid);
        at.is_some_and(|at| {
            self.requests.remove(at);
            true
        })
    }

    /// Something has happened.
    pub fn raise(&mut self, event: Event) {
        let wanted =
            event != Event::Namespace || self.configuration & EVENT_NAMESPACE_ATTRIBUTE != 0;
        self.raised[event as usize] |= wanted;
    }

    /// The page was read, so that its events are told again.
    pub fn read(&mut self, page: u8) {
        self.unread.retain(|unread| *unread != page);
        for event in ALL {
            self.raised[event as usize] &= event.log() != page;
        }
    }

    /// A request that completes now, and its result.
    pub fn tell(&mut self) -> Option<(u16, u64)> {
        let told =
            |event: &Event| self.raised[*event as usize] && !self.unread.contains(&event.log());
        let event = ALL.into_iter().find(told)?;
        if self.requests.is_empty() {
            return None;
        }
        self.raised[event as usize] = false;
        self.unread.push(event.log());
        Some((self.requests.remove(0), event.result()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once_until_its_page_is_read() {
        let mut events = Events::default();
        events.raise(Event::BadDoorbell);
        assert_eq!(events.tell(), None);
        events.request(7).unwrap();
        events.request(8).unwrap();
        assert_eq!(events.tell(), Some((7, 0x01_0100)));
        events.raise(Event::NoSuchDoorbell);
        assert_eq!(events.tell(), None);
        // Another page's is told all the same, where it is wanted.
        events.raise(Event::Namespace);
        assert_eq!(events.tell(), None);
        events.configuration = EVENT_NAMESPACE_ATTRIBUTE;
        events.raise(Event::Namespace);
        assert_eq!(events.tell(), Some((8, 0x04_0002)));
        // What the page has told is over.
        events.read(lid::ERROR);
        events.request(9).unwrap();
        assert_eq!(events.tell(), None);
        events.raise(Event::NoSuchDoorbell);
        assert_eq!(events.tell(), Some((9, 0x01_0000)));
    }

    #[test]
    fn requests_are_bounded_and_can_be_taken_back() {
        let mut events = Events::default();
        assert!((0..4).all(|cid| events.request(cid).is_ok()));
        assert_eq!(events.request(4), Err(Status::AER_LIMIT_EXCEEDED.dnr()));
        assert!(events.abort(0) && !events.abort(0) && !events.abort(4));
        events.request(4).unwrap();
        events.raise(Event::BadDoorbell);
        assert_eq!(events.tell().map(|(cid, _)| cid), Some(1));
    }
}
