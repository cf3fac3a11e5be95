//! What stands beside a listener's address, in one word: its port, `IPV6_V6ONLY`, and for which addresses it is there.

use shunt_wire::addr::Addr;

/// Bits of an address. A listener for one has them all; one for a network has fewer.
pub const WHOLE: u8 = 128;

const V6ONLY: u32 = 1 << 16;
/// From here on: how many bits of the address do not count.
const OPEN: u32 = 17;

/// The word of a listener. Without `v6only`, and with all bits, it is the port.
pub(crate) fn word(port: u16, v6only: bool, bits: u8) -> u32 {
    let v6only = if v6only { V6ONLY } else { 0 };
    u32::from(port) | v6only | u32::from(WHOLE.saturating_sub(bits)) << OPEN
}

/// Port, `v6only` and bits of such a word.
#[allow(clippy::cast_possible_truncation, reason = "the port is the low half, and a byte is above")]
pub(crate) fn of_word(word: u32) -> (u16, bool, u8) {
    (word as u16, word & V6ONLY != 0, WHOLE.saturating_sub((word >> OPEN) as u8))
}

/// True for an address in the network of `ip` with so many bits.
#[must_use]
pub fn holds(ip: &[u8; 16], bits: u8, other: &[u8; 16]) -> bool {
    let differing = u128::from_be_bytes(*ip) ^ u128::from_be_bytes(*other);
    differing.leading_zeros() >= u32::from(bits)
}

/// True for a listener that stands for several servers: those of a network, or at every port, which is port 0.
#[must_use]
pub const fn is_wide(at: &Addr, bits: u8) -> bool {
    bits < WHOLE || at.port == 0
}

/// True where it stands for one at `to`.
#[must_use]
pub fn is_there_for(at: &Addr, bits: u8, to: &Addr) -> bool {
    [0, to.port].contains(&at.port) && holds(&at.ip, bits, &to.ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_put_into_them() {
        for v6only in [false, true] {
            for bits in [0, 1, 96, 127, 128] {
                assert_eq!(of_word(word(443, v6only, bits)), (443, v6only, bits));
            }
        }
        assert_eq!(word(443, false, WHOLE), 443, "as before there were networks");
    }
}
