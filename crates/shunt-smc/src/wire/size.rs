//! Sizes of ring buffers.

use core::fmt;

/// Size of the element of a remote memory buffer (RMBE) that is one connection's ring: 16 KiB, or a
/// power of two more, up to 512 MiB (`smc_core.c`: `SMCR_RMBE_SIZES`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RmbSize(u8);

impl RmbSize {
    /// 16 KiB.
    pub const SMALLEST: Self = Self(0);
    /// 512 MiB.
    pub const LARGEST: Self = Self(15);

    /// 16 KiB << `exponent`. `None` above 15.
    #[must_use]
    pub const fn of_exponent(exponent: u8) -> Option<Self> {
        if exponent > Self::LARGEST.0 { None } else { Some(Self(exponent)) }
    }

    /// As it stands in messages.
    #[must_use]
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        (16 << 10) << self.0
    }
}

impl fmt::Display for RmbSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB", self.bytes() >> 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double() {
        assert_eq!(RmbSize::SMALLEST.bytes(), 16_384);
        assert_eq!(RmbSize::LARGEST.bytes(), 512 << 20);
        assert_eq!(RmbSize::of_exponent(2).unwrap().bytes(), 65_536);
        assert_eq!(RmbSize::of_exponent(16), None);
    }
}
