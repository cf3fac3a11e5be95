//! Virtual machines: a distribution's kernel, with this host's own programs.
//!
//! `make deps-vm` fetches the packages of the kernels and busybox', `make deps-qemu` an emulator for all but those with a virtio
//! disk, which have the distribution's. The rest of a guest is put together from this host's files when a test begins, and nothing
//! of it is left.

mod archive;
mod guest;
mod image;

pub use guest::{Device, Drive, Guest, Said};
pub use image::{Image, Kernel, SMC_RUN};
