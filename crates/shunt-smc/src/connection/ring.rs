//! Arithmetic of cursors.

use crate::wire::cdc::Cursor;

/// Where a place in the stream lies in a ring of so many bytes.
pub(super) const fn cursor(place: u64, size: u32) -> Cursor {
    let size = size as u64;
    // The number of wraps counts modulo 2^16; an offset is below the size, which has 32 bits.
    #[allow(clippy::cast_possible_truncation)]
    Cursor { wraps: (place / size) as u16, count: (place % size) as u32 }
}

/// How many bytes a cursor is ahead of a place in the stream. `None`: it is behind, or by more than
/// the ring holds, or beyond the ring's end.
pub(super) fn ahead(place: u64, to: Cursor, size: u32) -> Option<u32> {
    if to.count >= size {
        return None;
    }
    let from = cursor(place, size);
    let wraps = i64::from(to.wraps.wrapping_sub(from.wraps));
    let bytes = wraps * i64::from(size) + i64::from(to.count) - i64::from(from.count);
    u32::try_from(bytes).ok().filter(|bytes| *bytes <= size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u32 = 16 << 10;

    #[test]
    fn the_end_of_the_ring_is_its_beginning_one_wrap_later() {
        assert_eq!(cursor(u64::from(SIZE), SIZE), Cursor { wraps: 1, count: 0 });
        assert_eq!(ahead(0, Cursor { wraps: 1, count: 0 }, SIZE), Some(SIZE));
        assert_eq!(ahead(0, Cursor { wraps: 0, count: SIZE }, SIZE), None);
        assert_eq!(ahead(0, Cursor { wraps: 1, count: 1 }, SIZE), None);
        assert_eq!(ahead(10, Cursor { wraps: 0, count: 9 }, SIZE), None);
        // 2^16 wraps are none.
        let place = (u64::from(SIZE) << 16) - 1;
        assert_eq!(ahead(place, Cursor { wraps: 0, count: 4 }, SIZE), Some(5));
    }

    proptest! {
        #[test]
        fn what_lies_in_the_ring_is_found(place in 0..u64::MAX / 2, bytes in 0..=SIZE) {
            let to = cursor(place + u64::from(bytes), SIZE);
            prop_assert_eq!(ahead(place, to, SIZE), Some(bytes));
        }

        #[test]
        fn no_cursor_leads_further_than_the_ring_is_long(place: u64, wraps: u16, count: u32) {
            if let Some(bytes) = ahead(place, Cursor { wraps, count }, SIZE) {
                prop_assert!(bytes <= SIZE);
                prop_assume!(place <= u64::MAX - u64::from(SIZE));
                prop_assert_eq!(cursor(place + u64::from(bytes), SIZE), Cursor { wraps, count });
            }
        }
    }
}
