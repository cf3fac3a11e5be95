//! Programs that nobody wrote.
//!
//! A [`plan`] says what some processes and their threads do with sockets and other descriptors; [`generate`] makes one
//! of a seed. At a [`board`] the processes, which are the program `shunt-differential`, are told what to do step by step, and
//! write down what each call returned and which bytes it moved.

pub mod board;
pub mod generate;
pub mod plan;
