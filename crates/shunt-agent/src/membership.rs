//! Joins the memory that machines share, and later that of the server's successor.
//!
//! A killed server takes nothing with it but the news of arrivals and departures. Its successor has
//! other memory.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use tracing::{info, warn};

use crate::config::{Place, Sharing};
use crate::error::ServeError;
use crate::state::State;

/// How long a server may take to introduce this machine, when the agent starts, and later, while programs wait for it.
const AT_START: Duration = Duration::from_secs(5);
const LATER: Duration = Duration::from_millis(200);

/// Time between two looks for a server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of the time, the part that is not spent on waiting for one that says nothing.
const SHARE: u32 = 16;

/// The agent's way to the memory.
#[derive(Debug)]
pub(crate) struct Membership {
    sharing: Option<Sharing>,
    /// What its ears are marked with.
    token: u64,
    next_look: Instant,
    /// Why there is none, as was said last.
    said: Option<io::ErrorKind>,
}

impl Membership {
    /// Joins those who share the memory.
    ///
    /// # Errors
    /// When it can't be, and has to.
    pub(crate) fn begin(
        sharing: Option<Sharing>,
        state: &mut State,
        (epoll, token): (&OwnedFd, u64),
    ) -> Result<Self, ServeError> {
        let next_look = Instant::now() + LOOK_EVERY;
        let mut membership = Self { sharing, token, next_look, said: None };
        let Some(sharing) = &membership.sharing else { return Ok(membership) };
        match membership.join(&sharing.place, AT_START, state, epoll) {
            Ok(()) => {}
            Err(e) if sharing.required => {
                return Err(ServeError::Sharing(sharing.place.clone(), e));
            }
            Err(e) => {
                warn!("no memory is shared with other machines by {}: {e}", sharing.place);
                membership.said = Some(e.kind());
            }
        }
        Ok(membership)
    }

    fn join(
        &self,
        place: &Place,
        patience: Duration,
        state: &mut State,
        epoll: &OwnedFd,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        state.share(place.open(patience)?, |ear| {
            Ok(epoll::add(epoll, ear, data, epoll::EventFlags::IN)?)
        })
    }

    /// The server to look for: of a guest's device it is QEMU's, which does not connect a second time.
    fn wanted(&self, state: &State) -> Option<&Place> {
        let place = self.sharing.as_ref().map(|sharing| &sharing.place);
        place.filter(|place| matches!(place, Place::Server(_)) && state.has_no_server())
    }

    /// How long the agent may sleep.
    pub(crate) fn patience(&self, state: &State, now: Instant) -> Option<Duration> {
        self.wanted(state).map(|_| self.next_look.saturating_duration_since(now))
    }

    /// Joins the memory of a server that has come, where there is none.
    pub(crate) fn turn(&mut self, state: &mut State, epoll: &OwnedFd) {
        let began = Instant::now();
        let Some(place) = self.wanted(state).filter(|_| began >= self.next_look) else { return };
        self.said = match self.join(place, LATER, state, epoll) {
            Ok(()) => {
                info!("sharing the memory of the server that has come at {place}");
                None
            }
            Err(e) => {
                // Once, not each second.
                if self.said != Some(e.kind()) {
                    warn!("the memory of the server at {place} cannot be shared: {e}");
                }
                Some(e.kind())
            }
        };
        self.next_look = Instant::now() + LOOK_EVERY.max(began.elapsed() * SHARE);
    }
}
