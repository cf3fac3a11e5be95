//! `shunt bench`: kernel TCP, what else is used in its place, and Shunt, side by side in one run,
//! beside what the machine allows.
//!
//! A [`workload`] is a list of *rows*; each row is run for each [`contender`] in turn, several rounds
//! of it (A B A B …), and what is kept is the median and the spread. A contender that runs under
//! Shunt has to prove it: the counters of its own agent must show shunted connections, else the
//! run is an error and no figure.
//!
//! * [`rig`]: the processes of a run, their agents, and what they cost;
//! * [`workload`]: the rows, and how each is run and read;
//! * [`load`]: the load programs of the bench's own, hidden subcommands of `shunt`;
//! * [`limits`]: what the machine allows;
//! * [`targets`]: what Shunt is to reach;
//! * [`runner`]: the order of it all;
//! * [`report`]: JSON, terminal and HTML, and the figures of the README;
//! * [`published`]: these, from a report that is there already.
#![deny(unsafe_code)]

pub mod contender;
pub mod failure;
pub mod limits;
pub mod load;
pub mod machine;
pub mod options;
pub mod published;
pub mod report;
pub mod rig;
pub mod runner;
pub mod stats;
pub mod targets;
pub mod workload;

pub use options::Options;
