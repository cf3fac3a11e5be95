//! Log pages (Base 5.16.1).

use std::collections::VecDeque;

use shunt_nvme::wire::identify::padded;
use shunt_nvme::wire::log::{ErrorEntry, GetLogPage, Smart, lid};
use shunt_nvme::wire::{Sqe, Status};
use zerocopy::IntoBytes;

/// Errors that are kept: ELPE has one less.
pub const MAX_ERRORS: usize = 16;
/// Bytes of a data unit of the SMART page, which are counted in thousands.
const UNIT: u64 = 512 * 1000;
/// A temperature that is none to worry of, in kelvins: there is nothing to measure.
const TEMPERATURE: u16 = 298;

/// What was read and written since the controller began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Read commands that are done.
    pub reads: u64,
    /// Bytes of them.
    pub bytes_read: u64,
    /// Write commands that are done.
    pub writes: u64,
    /// Bytes of them.
    pub bytes_written: u64,
}

/// What log pages tell.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// The last ones, newest first.
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    /// What was read and written.
    pub usage: Usage,
    /// The disk has changed since the page that says so was read.
    pub has_changed: bool,
}

impl Logs {
    /// A command has failed.
    pub fn failed(&mut self, sqid: u16, sqe: &Sqe, status: Status) {
        self.error_count += 1;
        self.errors.push_front(ErrorEntry::new(self.error_count, sqid, sqe, status));
        self.errors.truncate(MAX_ERRORS);
    }

    fn smart(&self) -> Smart {
        let mut smart = Smart::zeroed();
        smart.available_spare = 100;
        smart.spare_threshold = 10;
        smart.temperature = TEMPERATURE.into();
        let units = |bytes: u64| u128::from(bytes.div_ceil(UNIT)).into();
        smart.data_units_read = units(self.usage.bytes_read);
        smart.data_units_written = units(self.usage.bytes_written);
        smart.host_reads = u128::from(self.usage.reads).into();
        smart.host_writes = u128::from(self.usage.writes).into();
        smart.error_entries = u128::from(self.error_count).into();
        smart
    }

    /// What a command asks for; at most `most` bytes. `nsid` is the disk's number, `revision` the firmware's.
    ///
    /// # Errors
    /// There is no such page, or it is too much.
    pub fn page(
        &mut self,
        page: &GetLogPage,
        most: u64,
        nsid: u32,
        revision: &str,
    ) -> Result<Vec<u8>, Status> {
        let invalid = Status::INVALID_FIELD.dnr();
        if page.by_index || !page.offset.is_multiple_of(4) || page.len > most {
            return Err(invalid);
        }
        let log = match page.lid {
            lid::ERROR => {
                let entries = self.errors.iter().flat_map(IntoBytes::as_bytes);
                let mut log: Vec<u8> = entries.copied().collect();
                log.resize(MAX_ERRORS * size_of::<ErrorEntry>(), 0);
                log
            }
            lid::SMART => self.smart().as_bytes().to_vec(),
            lid::FIRMWARE => {
                let mut log = vec![0; 512];
                // Slot 1 is active, and has this revision.
                log[0] = 1;
                log[8..16].copy_from_slice(&padded::<8>(revision));
                log
            }
            lid::CHANGED_NAMESPACES => {
                let mut log = vec![0; 4096];
                if self.has_changed {
                    log[..4].copy_from_slice(&nsid.to_le_bytes());
                }
                self.has_changed &= page.retain;
                log
            }
            _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
        };
        let start = usize::try_from(page.offset).unwrap_or(usize::MAX);
        let mut data = log.get(start..).ok_or(invalid)?.to_vec();
        // Behind the page's end are zeros.
        data.resize(usize::try_from(page.len).unwrap_or(0), 0);
        Ok(data)
    }
}
