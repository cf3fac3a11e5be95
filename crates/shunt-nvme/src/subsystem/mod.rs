//! What a controller does with commands, above the transport and without I/O.
//!
//! A [`Target`] holds subsystems, their namespaces, and the controllers that hosts have made. A
//! [`Session`] is one connection of it. Classes of methods:
//!
//! * **Configuration.** [`Target::add_subsystem`], [`Target::add_namespace`] and their kin, at any
//!   time; controllers that are concerned get events.
//! * **Commands.** For each command [`Session::plan`] says from its entry alone what it takes: an
//!   I/O request for the caller's store ([`Plan::Io`]), the command's data and then
//!   [`Session::execute`] ([`Plan::Execute`]), or a refusal. `execute` gives a [`Reply`].
//! * **Without a lock.** Threads that share a target behind a lock keep a [`View`] for each
//!   connection, plan by [`Session::plan_in`], and take a new one when [`Target::generation`]
//!   changes.
//! * **Time.** Points in time are durations since a start of the caller's choice.
//!   [`Target::expire`] ends controllers whose hosts are silent.
//! * **Notices.** [`Target::poll`] gives what concerns connections other than that of the call:
//!   events to report, controllers to end.
//! * **The end.** [`Session::closed`], when the connection is.
//!
//! Everything that a host can ask for has a bound in [`Limits`].

mod admin;
mod config;
mod connect;
mod controller;
mod identify;
mod io;
mod logs;
mod notice;
mod reply;
mod request;
mod reservation;
mod session;
mod target;
mod view;

pub use config::{ANA_GROUPS, Hosts, Keys, Limits, NamespaceConfig, SubsystemConfig};
pub use notice::Notice;
pub use reply::{Plan, Reply};
pub use request::{Io, Operation, Range};
pub use session::{Context, Session, Unpaired};
pub use target::Target;
pub use view::View;
