//! The configuration space of the device: a header of type 0, a PCI Express and an MSI-X capability.
//!
//! What can be written is a mask of bits. A monitor keeps addresses of BARs and the MSI-X table itself; it reads here what
//! there is.

/// Bytes of the space; all behind the header and its capabilities are zero.
pub const SIZE: u64 = 4096;
/// Bytes of BAR0.
pub const BAR_SIZE: u64 = 0x4000;
/// Where the MSI-X table is in BAR0.
pub const TABLE: u64 = 0x2000;
/// Where the MSI-X pending bits are in BAR0.
pub const PENDING: u64 = 0x3000;
/// Bytes of an entry of the MSI-X table.
pub const TABLE_ENTRY: usize = 16;

/// Vendor and device: numbers that QEMU's list (docs/specs/pci-ids) leaves to whoever has no registered ones. Drivers look at
/// the class.
const IDS: [u8; 4] = [0xf4, 0x1a, 0xf0, 0x10];
/// Mass storage, non-volatile memory, NVM Express.
const CLASS: [u8; 3] = [0x02, 0x08, 0x01];

/// Offsets in the space.
mod at {
    pub const ID: usize = 0x00;
    pub const COMMAND: usize = 0x04;
    pub const STATUS: usize = 0x06;
    pub const CLASS: usize = 0x09;
    pub const BAR0: usize = 0x10;
    pub const SUBSYSTEM: usize = 0x2c;
    pub const CAPABILITIES: usize = 0x34;
    pub const EXPRESS: usize = 0x40;
    pub const DEVICE_CONTROL: usize = EXPRESS + 8;
    pub const MSIX: usize = 0x80;
}

/// Initiate Function Level Reset, in the upper byte of Device Control.
const RESET: u8 = 0x80;

/// The space.
#[derive(Clone, Debug)]
pub struct Config {
    bytes: [u8; 256],
    writable: [u8; 256],
}

impl Config {
    /// That of a device with so many interrupts, as it is after a reset.
    #[must_use]
    pub fn new(vectors: u16) -> Self {
        let mut config = Self { bytes: [0; 256], writable: [0; 256] };
        config.put(at::ID, &IDS);
        config.put(at::SUBSYSTEM, &IDS);
        config.put(at::CLASS, &CLASS);
        // There are capabilities.
        config.put(at::STATUS, &[0x10]);
        config.put(at::CAPABILITIES, &[0x40]);
        // Memory, bus master, parity and system errors, no interrupt pin.
        config.allow(at::COMMAND, &[0b0100_0110, 0b0000_0101]);
        // Memory of 64 bits; the bits of its size cannot be written.
        config.put(at::BAR0, &[0x04]);
        config.allow(at::BAR0, &(!(BAR_SIZE - 1)).to_le_bytes());
        // Interrupt line, which is the firmware's.
        config.allow(0x3c, &[0xff]);
        // PCI Express: an endpoint (version 2), with role-based errors and a reset of its function, a link of 2.5 GT/s.
        config.put(at::EXPRESS, &[0x10, 0x80, 0x02, 0x00]);
        config.put(at::EXPRESS + 4, &(1u32 << 15 | 1 << 28).to_le_bytes());
        config.put(at::EXPRESS + 0x0c, &0x11u32.to_le_bytes());
        config.put(at::EXPRESS + 0x12, &[0x11]);
        config.allow(at::DEVICE_CONTROL, &[0xff, 0x7f]);
        config.put(at::MSIX, &[0x11, 0x00]);
        config.put(at::MSIX + 2, &vectors.saturating_sub(1).to_le_bytes());
        config.allow(at::MSIX + 3, &[0xc0]);
        // Both in BAR0; each is below 4 GiB.
        let place = |at: u64| u32::try_from(at).unwrap_or(0).to_le_bytes();
        config.put(at::MSIX + 4, &place(TABLE));
        config.put(at::MSIX + 8, &place(PENDING));
        config
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// Reads from an offset on.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let there = usize::try_from(offset).ok().and_then(|from| self.bytes.get(from..));
        let there = there.unwrap_or_default();
        data.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
    }

    /// Writes from an offset on; true if the device is to be reset.
    #[must_use]
    pub fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let mut resets = false;
        let Ok(from) = usize::try_from(offset) else { return false };
        for (at, new) in (from..self.bytes.len()).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | new & mask;
            resets |= at == at::DEVICE_CONTROL + 1 && new & RESET != 0;
        }
        resets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(config: &Config, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        config.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_driver_finds_an_nvme_controller() {
        let config = Config::new(5);
        assert_eq!(word(&config, 0x08) >> 8, 0x01_08_02);
        assert_eq!((word(&config, 0) & 0xffff, word(&config, 0x0c)), (0x1af4, 0));
        // From one capability to the next, to the last.
        let mut found = Vec::new();
        let mut next = word(&config, 0x34) & 0xff;
        while next != 0 {
            let head = word(&config, next.into());
            found.push((head & 0xff, next));
            next = head >> 8 & 0xff;
        }
        assert_eq!(found, [(0x10, 0x40), (0x11, 0x80)]);
        assert_eq!(word(&config, 0x80) >> 16, 4);
        assert_eq!((word(&config, 0x84), word(&config, 0x88)), (0x2000, 0x3000));
    }

    #[test]
    fn a_bar_tells_its_size() {
        let mut config = Config::new(2);
        assert!(!config.write(0x10, &[0xff; 8]));
        assert_eq!((word(&config, 0x10), word(&config, 0x14)), (0xffff_c004, u32::MAX));
        assert!(!config.write(0x18, &[0xff; 16]));
        assert_eq!((word(&config, 0x18), word(&config, 0x24)), (0, 0));
    }

    #[test]
    fn only_what_is_a_drivers_can_be_written() {
        let mut config = Config::new(2);
        let before = word(&config, 0);
        for at in 0..SIZE {
            let resets = config.write(at, &[0xff]);
            assert_eq!(resets, at == 0x49, "{at:#x}");
        }
        assert_eq!((word(&config, 0), word(&config, 0x08) >> 8), (before, 0x01_08_02));
        assert_eq!(word(&config, 0x04), 0x0010_0546);
        assert_eq!(word(&config, 0x80), 0xc001_0011);
        // Not whether it was reset.
        assert_eq!(word(&config, 0x48) & 0xffff, 0x7fff);
        let mut end = [1; 8];
        config.read(SIZE - 4, &mut end);
        assert_eq!(end, [0; 8]);
        assert!(!config.write(u64::MAX, &[0xff; 8]) && !config.write(254, &[0xff; 8]));
    }
}
