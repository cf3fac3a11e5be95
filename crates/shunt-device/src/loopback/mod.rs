//! The loopback device: DMBs are sealed memfds that both ends map.
//!
//! [`Loopback`] is the device as the port knows it. [`move_into`] is its `move_data` on the data
//! path, where the DMB is a part of a link group's region that is mapped already.

mod device;
mod exchange;

use shunt_shm::region::RegionView;

pub use device::{Loopback, Mode};
pub use exchange::{Exchange, Found};

/// Copies `data` into the region at `offset`: `move_data` on the data path. `None` when it does not
/// fit.
#[must_use]
pub fn move_into(region: RegionView, offset: usize, data: &[u8]) -> Option<()> {
    let end = offset.checked_add(data.len())?;
    if end > region.geometry().size() {
        return None;
    }
    region.write(offset, data);
    Some(())
}
