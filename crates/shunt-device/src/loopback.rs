//! The loopback device: DMBs are memfd regions that both ends map.

use shunt_shm::region::{self, RegionView};

/// Copies `data` into the region at `offset`: `move_data` on the data path. `None` when it does not
/// fit.
#[must_use]
pub fn move_into(region: RegionView, offset: usize, data: &[u8]) -> Option<()> {
    let end = offset.checked_add(data.len())?;
    if end > region::LEN {
        return None;
    }
    region.write(offset, data);
    Some(())
}
