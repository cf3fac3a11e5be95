//! Functional tests of Shunt: unmodified programs run over kernel TCP and over Shunt, and what
//! they did is compared.
//!
//! This library holds what the tests and the test programs share.

pub mod binaries;
pub mod booted;
pub mod compat;
pub mod container;
pub mod differential;
pub mod engine;
pub mod generator;
pub mod installation;
pub mod machines;
pub mod memory_group;
pub mod mode;
pub mod net;
pub mod network;
pub mod nvme;
pub mod passing;
pub mod pattern;
pub mod points;
pub mod record;
pub mod relay;
pub mod rounds;
pub mod sandbox;
pub mod servers;
pub mod shared;
pub mod sources;
pub mod sys;
pub mod vm;
pub mod waiting;
