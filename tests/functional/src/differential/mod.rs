//! Programs that nobody wrote, run over kernel TCP and under Shunt, their transcripts compared.
//!
//! A [`plan`] says what some processes and their threads do with sockets and other descriptors; [`generate`] makes one
//! of a seed. [`run`] has the program `shunt-differential` carry it out, step by step, and writes down what each call
//! returned, which bytes it moved, and after which step it did. Over TCP that is repeatable: a step begins when what came before it is done,
//! or asleep in the kernel. [`campaign`] compares, tries again what differs, and [`shrink`] makes the plan small.

pub mod board;
pub mod campaign;
pub mod generate;
pub mod kept;
pub mod plan;
pub mod run;
pub mod shrink;
