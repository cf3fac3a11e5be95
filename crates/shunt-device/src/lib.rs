//! Devices whose memory several machines share.
//!
//! Memory of one machine needs none: the agent makes it, and passes its descriptor.

pub mod ivshmem;
