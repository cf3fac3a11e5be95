//! An NVMe/TCP target: namespaces of memory, files and block devices for NVMe hosts.
//!
//! * [`memory`]: sealed memory that sockets and files read and write by address; [`buffers`]: pieces of it for commands.
//! * [`store`]: what namespaces keep their blocks in, behind one port; [`stores`]: those of a configuration.
//! * [`config`]: the configuration file.
//! * [`site`]: what all threads serve, with the rules of [`shunt_nvme::subsystem`].
//! * [`server`]: the thread that accepts; [`worker`]: those that own connections, each with the machine of
//!   [`shunt_nvme::controller`].
//! * [`control`]: commands to a running target.
//! * [`metrics`]: what is counted.
//!
//! Sockets are called through libc, so that a preloaded `libshunt.so` hears of them.

pub mod buffers;
pub mod config;
pub mod control;
pub mod memory;
pub mod metrics;
pub mod server;
pub mod site;
pub mod socket;
pub mod store;
pub mod stores;
pub mod worker;
