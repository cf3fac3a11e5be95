//! A conversation with the agent for a child that could not begin one.
//!
//! A process that has changed its user goes on with the conversation that it began before, but its
//! forks find the agent's directory closed. So before a fork the parent asks the agent for one more
//! conversation, and the child begins it when it first needs it. A child that forks before it has
//! begun its own asks for another one on that.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};

use rustix::process::geteuid;
use shunt_shm::registry::Scope;

use crate::control::endpoint::Endpoint;
use crate::fds::own_fds::OwnFd;
use crate::threads::mutex::Mutex;

/// An end of a conversation of which the agent has the other one.
pub struct Invitation {
    /// The end.
    pub socket: OwnFd,
    /// The user that the agent takes this process for.
    pub user: u32,
}

/// That of this process, until it is used. Touched with the lock of the conversation held, or by the only thread.
static OWN: Mutex<Option<Invitation>> = Mutex::new(None);

/// The agent's directory is out of reach, for whichever user.
static OUT_OF_REACH: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// That of the child that this thread is about to fork: its descriptor's place plus one, and the user. Without a
    /// destructor, which would take memory of the program's.
    static FOR_CHILD: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// The program has left the tree in which the agent's directory is.
pub fn leave_reach() {
    OUT_OF_REACH.store(true, Ordering::Relaxed);
}

/// True when a child of this process, which has this endpoint, could not begin a conversation by itself.
pub fn is_needed(endpoint: &Endpoint) -> bool {
    OUT_OF_REACH.load(Ordering::Relaxed)
        || endpoint.registry.scope() == Scope::User && geteuid().as_raw() != endpoint.user
}

/// What this process was given and has not used.
pub fn with_own<T>(f: impl FnOnce(&mut Option<Invitation>) -> T) -> T {
    f(&mut OWN.lock())
}

/// For the child that this thread is about to fork.
pub fn keep_for_child(invitation: Option<Invitation>) {
    let place = |socket: OwnFd| u32::from(socket.into_place()) + 1;
    let new = invitation.map(|Invitation { socket, user }| (place(socket), user));
    drop(FOR_CHILD.replace(new).and_then(taken));
}

fn taken((place, user): (u32, u32)) -> Option<Invitation> {
    Some(Invitation { socket: OwnFd::from_place(place)?, user })
}

/// In a forked child: what its parent has for itself is not for it.
pub fn become_own() {
    let mine = FOR_CHILD.take().and_then(taken);
    drop(with_own(|own| core::mem::replace(own, mine)));
}
