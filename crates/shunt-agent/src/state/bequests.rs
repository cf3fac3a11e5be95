//! Listening sockets that a process has closed, and that one which it has forked may serve still.
//!
//! A child registers what it has inherited when it accepts. Until then its listener is kept in the name of the parent: clients that
//! connect meanwhile leave their proposals where the child will look.

use std::time::{Duration, Instant};

use shunt_wire::agent::{EndpointId, ListenerId, Reply};
use shunt_wire::reason::Reason;

use super::bequest::Bequest;
use super::{Answer, Listener, Outcome, Rejection, State};

/// How long a listener is kept for heirs. If none comes it is gone in most cases: the process has forked for something else.
const KEPT: Duration = Duration::from_secs(10);

impl State {
    pub(super) fn bequeath(&mut self, me: EndpointId, listener: ListenerId) -> Outcome {
        let held = self.listeners.get(&listener).and_then(|l| l.holders.get(&me));
        let held = held.ok_or(Rejection::Refused(Reason::Refused))?;
        let is_left = |cookie: u64| {
            self.bequests
                .iter()
                .any(|left| left.by == me && left.listener == listener && left.cookie == cookie)
        };
        // Which of a group's sockets is closed does not matter, as in Unlisten.
        let cookie = held.iter().copied().find(|cookie| !is_left(*cookie));
        let cookie = cookie.ok_or(Rejection::Refused(Reason::Refused))?;
        let has_heirs = |l: &Listener| {
            l.holders.iter().any(|(holder, of)| *holder != me && of.contains(&cookie))
        };
        if self.listeners.get(&listener).is_some_and(has_heirs) {
            self.holder_left(me, listener, Some(cookie));
        } else {
            self.bequests.push(Bequest { by: me, listener, cookie, since: Instant::now() });
        }
        Ok(Answer::bare(Reply::Done))
    }

    /// `me` serves the socket: an heir, or the process that had closed another descriptor of it.
    pub(super) fn is_served(&mut self, me: EndpointId, listener: ListenerId, cookie: u64) {
        let of_it = |left: &mut Bequest| left.listener == listener && left.cookie == cookie;
        let over: Vec<_> = self.bequests.extract_if(.., of_it).collect();
        for left in over.into_iter().filter(|left| left.by != me) {
            self.holder_left(left.by, listener, Some(cookie));
        }
    }

    /// Ends those for which nobody has come.
    pub(crate) fn end_bequests(&mut self, now: Instant) {
        let is_over = |left: &mut Bequest| now.duration_since(left.since) >= KEPT;
        let over: Vec<_> = self.bequests.extract_if(.., is_over).collect();
        for Bequest { by, listener, cookie, .. } in over {
            self.holder_left(by, listener, Some(cookie));
        }
    }

    /// How long until [`Self::end_bequests`] has something to do.
    pub(crate) fn next_bequest_ends(&self, now: Instant) -> Option<Duration> {
        let first = self.bequests.iter().map(|left| left.since).min()?;
        Some((first + KEPT).saturating_duration_since(now))
    }
}
