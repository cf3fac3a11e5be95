//! The one waiter: of blocking calls, poll, select and epoll.
//!
//! Whoever waits looks, spins, gives the processor away, says how it is to be woken (*arms*), looks again, and sleeps. That
//! order stands in [`wait()`]. What is waited for is a port ([`Wait`]), and so is the process in which a thread waits ([`Host`]):
//! both are generics, so no call is virtual. Values say what a sleep came to ([`Slept`]), and how the wait ended ([`Woken`]).
//!
//! The other half is telling ([`tell`]): whoever has news stores it, and then takes the words in which waiters have said how
//! they are to be woken. Both halves run under loom as they are, with arm words and cursors of its own.

#[cfg(not(loom))]
mod blocking;
mod crowd;
pub mod looks;
#[cfg(not(loom))]
mod naps;
mod placing;
mod ports;
pub mod sharers;
mod spin;
mod stopwatch;
pub mod tell;
#[cfg(all(test, not(loom)))]
mod tell_tests;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiter;

#[cfg(not(loom))]
pub use blocking::{Blocking, Ears, PAUSES, spins};
#[cfg(not(loom))]
pub use naps::{Naps, PATIENT, SELDOM, SOON, UNATTENDED};
pub use placing::Placing;
pub use ports::{
    Handlers, Hearing, Host, Limits, Set, Slept, Spared, Spinner, Spun, Wait, Way, Woken,
};
pub use spin::{far_guess, give_way, is_long, learn, learn_wake_up, spin, spin_patiently};
pub use stopwatch::{Spell, Stopwatch};
pub use waiter::{look_on_queue, wait, wait_for};
