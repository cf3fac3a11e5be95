//! What is used again begins anew: resets that are made of the list of a structure's fields, so that none is forgotten.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// A word of shared memory, or several.
pub(crate) trait Word {
    /// Stores 0.
    fn reset(&self);
}

macro_rules! words {
    ($($word:ty)+) => {
        $(impl Word for $word {
            #[inline]
            fn reset(&self) {
                self.store(0, Ordering::Relaxed);
            }
        })+
    };
}

words! { AtomicI32 AtomicU32 AtomicU64 }

impl<T: Word, const N: usize> Word for [T; N] {
    #[inline]
    fn reset(&self) {
        self.iter().for_each(Word::reset);
    }
}

/// Gives a structure a `reset`, which resets each of its fields but for those that it `keeps`. The fields are those of a
/// pattern without `..`: one that stands in neither list does not compile.
macro_rules! resets {
    ($name:ident { $($field:ident),+ $(,)? } $(keeps { $($kept:ident),+ $(,)? })?) => {
        impl $name {
            /// Forgets all of it: for a new connection.
            pub fn reset(&self) {
                #[allow(unused_imports, reason = "words are reset by it, structures by themselves")]
                use $crate::reset::Word as _;
                let Self { $($field,)+ $($($kept: _,)+)? } = self;
                $($field.reset();)+
            }
        }
    };
}

pub(crate) use resets;

#[cfg(all(test, not(loom)))]
mod tests {
    use core::fmt::Debug;
    use core::mem::size_of;

    use crate::arena::Record;
    use crate::completions::Completions;
    use crate::grants::PipeReads;
    use crate::region::Section;
    use crate::ring::{RxCursor, TxCursor};
    use crate::zerocopy::{Granted, Pinned, Tally};

    /// The words that the first bytes of a filled structure make, as they are printed.
    const FILLED: [&str; 3] = ["4008636142", "-286331154", "17216961135462248174"];

    /// Fills a structure, resets it, and names the fields of which something is left.
    fn left<T: Debug + Default>(reset: impl FnOnce(&T)) -> Vec<String> {
        let mut filled = T::default();
        // SAFETY: a structure of atomics, for which any bytes are values.
        unsafe { (&raw mut filled).cast::<u8>().write_bytes(0xee, size_of::<T>()) };
        reset(&filled);
        let (mut path, mut left) = (Vec::new(), Vec::new());
        for line in format!("{filled:#?}").lines() {
            let depth = line.len() - line.trim_start().len();
            let (name, value) = line.trim().split_once(": ").unwrap_or(("", line.trim()));
            path.truncate(depth / 4);
            path.push(name.to_owned());
            if FILLED.contains(&value.trim_end_matches(',')) {
                let names = path.iter().filter(|name| !name.is_empty());
                left.push(names.cloned().collect::<Vec<_>>().join("."));
            }
        }
        left.dedup();
        left
    }

    #[test]
    fn nothing_is_left_of_what_has_no_exception() {
        assert!(left(TxCursor::reset).is_empty());
        assert!(left(RxCursor::reset).is_empty());
        assert!(left(PipeReads::reset).is_empty());
        assert!(left(Pinned::reset).is_empty());
        assert!(left(Tally::reset).is_empty());
    }

    #[test]
    fn a_section_keeps_the_number_of_its_use() {
        assert_eq!(left(Section::reset), ["setup.generation"]);
    }

    #[test]
    fn a_record_keeps_its_use_its_holders_and_its_locks() {
        let left = left(Record::reset);
        let kept = [
            "id.live",
            "id.holders",
            "id.generation",
            "id.handshake",
            "rx.lock",
            "rx.copying.calls",
            "tx.lock",
            "tx.copying.calls",
        ];
        for name in &left {
            assert!(kept.iter().any(|kept| name.starts_with(kept)), "{name} is left");
        }
        for name in kept {
            assert!(left.iter().any(|left| left.starts_with(name)), "{name} is reset");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "prints thousands of words, for minutes")]
    fn lists_are_emptied_by_their_counts() {
        // Entries are written before they are read.
        assert!(left(Completions::reset).iter().all(|name| name.starts_with("runs")));
        assert!(left(Granted::reset).iter().all(|name| name.starts_with("entries")));
    }
}
