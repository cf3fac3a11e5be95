//! Captures: tools that read the bytes which programs send.
//!
//! A capture is a tool's conversation, and ends with it. It concerns each program that the tool may
//! see, later ones too. The records of an ended program stay marked as long as captures go on that
//! have seen it: its forks may go on with its connections.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use serde_json::json;
use shunt_shm::capture::{PLACES, Wish};
use shunt_wire::agent::{EndpointId, MAX_FDS, Reply};
use shunt_wire::reason::Reason;
use shunt_wire::version::CAPTURE_SINCE;

use super::capture::{Capturable, Capture, News};
use super::{Answer, Endpoint, Outcome, Rejection, Role, State};
use crate::party::Party;
use crate::report;

/// Programs that have ended whose forks are captured still.
const MOST_LEFT: usize = 64;

/// Programs of which a tool has not asked. Of more the oldest are not captured.
const MOST_NEWS: usize = 1024;

impl State {
    /// A tool begins to capture. `of`: whose programs it may see.
    pub(super) fn capture(&mut self, role: &mut Role, wish: Wish, of: Option<Party>) -> Outcome {
        let free = self.captures.places.iter().position(Option::is_none);
        let place = free.ok_or(Rejection::Refused(Reason::NoResources))?;
        let number = self.new_id();
        self.captures.places[place] = Some(Capture {
            number,
            party: of,
            wish,
            news: VecDeque::new(),
            told: HashSet::new(),
            ended: Vec::new(),
        });
        *role = Role::Capture { place, number };
        let ids: Vec<_> = self.endpoints.keys().copied().collect();
        for id in ids {
            self.come_to_be_captured(id);
        }
        Ok(Answer::bare(Reply::Capturing { place: u8::try_from(place).unwrap_or(u8::MAX) }))
    }

    /// The captures that may see an endpoint, and do not, begin to. One that has no memory for it is captured by none.
    pub(super) fn come_to_be_captured(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        for place in 0..PLACES {
            let epoch = self.captures.next_epoch();
            let Some(capture) = &mut self.captures.places[place] else { continue };
            // An older library has something else at the place of the words.
            if endpoint.version < CAPTURE_SINCE || endpoint.capturable.is_captured_by(place) {
                continue;
            }
            let is_shown = capture.party.is_none_or(|party| endpoint.origin.party == party);
            if !is_shown || endpoint.capturable.begin(place, capture.wish, epoch).is_err() {
                continue;
            }
            if capture.news.len() >= MOST_NEWS {
                capture.news.pop_front();
            }
            let description = json!({
                "endpoint": id,
                "pid": endpoint.pid,
                "program": endpoint.program,
                "network": endpoint.netns,
            });
            let memory = Rc::clone(&endpoint.capturable.memory);
            capture.news.push_back(News { endpoint: id, description, memory });
        }
    }

    /// What a tool that captures is to know.
    pub(super) fn captured(&mut self, place: usize) -> Outcome {
        let epoch = self.captures.next_epoch();
        for endpoint in self.endpoints.values() {
            endpoint.capturable.insist(epoch);
        }
        let capture = self.captures.places.get_mut(place).and_then(Option::as_mut);
        let capture = capture.ok_or(Rejection::Misconduct("a capture that is none"))?;
        let (mut programs, mut memory) = (Vec::new(), Vec::new());
        // One descriptor is the report's.
        while memory.len() < MAX_FDS - 1
            && let Some(news) = capture.news.pop_front()
        {
            programs.push(news.description);
            memory.push(news.memory);
            capture.told.insert(news.endpoint);
        }
        let mut ended = Vec::new();
        capture.ended.retain(|id| {
            let is_told = capture.told.remove(id);
            if is_told {
                ended.push(*id);
            }
            !is_told
        });
        let more = !capture.news.is_empty();
        let mut answer =
            report::sealed(&json!({ "programs": programs, "ended": ended, "more": more }))?;
        answer.fds.append(&mut memory);
        Ok(answer)
    }

    /// The tool is gone.
    pub(super) fn end_capture(&mut self, place: usize, number: u64) {
        let Some(slot) = self.captures.places.get_mut(place) else { return };
        if slot.as_ref().is_none_or(|capture| capture.number != number) {
            return;
        }
        *slot = None;
        let epoch = self.captures.next_epoch();
        for endpoint in self.endpoints.values_mut() {
            endpoint.capturable.end(place, epoch);
        }
        for left in &mut self.captures.left {
            left.end(place, epoch);
        }
        self.captures.left.retain(Capturable::is_captured);
    }

    /// A program has ended.
    pub(super) fn captured_left(&mut self, id: EndpointId, endpoint: &Endpoint) {
        for capture in self.captures.places.iter_mut().flatten() {
            if capture.told.contains(&id) || capture.news.iter().any(|news| news.endpoint == id) {
                capture.ended.push(id);
            }
        }
        if !endpoint.capturable.is_captured() {
            return;
        }
        self.captures.left.push_back(endpoint.capturable.clone());
        if self.captures.left.len() > MOST_LEFT
            && let Some(mut oldest) = self.captures.left.pop_front()
        {
            let epoch = self.captures.next_epoch();
            (0..PLACES).for_each(|place| oldest.end(place, epoch));
        }
    }
}
