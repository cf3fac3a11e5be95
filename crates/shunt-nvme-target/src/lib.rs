//! An NVMe/TCP target: namespaces of memory, files and block devices for NVMe hosts.
//!
//! * [`memory`]: sealed memory that sockets and files read and write by address.
//! * [`store`]: what namespaces keep their blocks in, behind one port.
//! * [`config`]: the configuration file.

pub mod buffers;
pub mod config;
pub mod memory;
pub mod socket;
pub mod store;
pub mod stores;
