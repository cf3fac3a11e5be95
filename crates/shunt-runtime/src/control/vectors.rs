//! Completion vectors, one for each thing that waits for several connections in the kernel: an
//! epoll instance, or a thread in poll(2).
//!
//! The first vector belongs to all: a waiter that hears another one hears its doorbell, too. So it
//! wakes every waiter, where a peer has no other doorbell and cannot ask the agent for one. The
//! others come as they are needed, for a ring of a vector's doorbell wakes all waiters that share
//! it.

use shunt_shm::doorbell;

use crate::control::agent_client;
use crate::control::endpoint::Endpoint;
use crate::fds::own_fds::{self, adopt};
use crate::threads::signals::SettingUp;

/// A vector of an endpoint for one more who waits: one of its own while there are enough, else the least used. It may talk to
/// the agent, so it is for callers without locks.
pub fn take(endpoint: &'static Endpoint) -> usize {
    take_own(endpoint).unwrap_or_else(|| endpoint.share_vector())
}

/// The same where none is to be shared.
pub fn take_own(endpoint: &'static Endpoint) -> Option<usize> {
    let may_add = || endpoint.may_have_more_vectors() && own_fds::has_room();
    endpoint.take_idle_vector().or_else(|| if may_add() { add(endpoint) } else { None })
}

/// Makes one more. `None`: there is no descriptor to be had, or the agent does not answer.
fn add(endpoint: &'static Endpoint) -> Option<usize> {
    // Not in a handler on top of a talk with the agent.
    let _setting_up = SettingUp::begin()?;
    let bell = adopt(doorbell::create().ok()?).ok()?;
    agent_client::add_bell(endpoint, bell)
}
