//! What goes wrong, by a seed.

/// A generator of numbers: the same ones for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 where there is none.
    #[allow(clippy::cast_possible_truncation, reason = "below a usize")]
    pub const fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// True as often as that in 10,000.
    pub const fn chance(&mut self, in_ten_thousand: u16) -> bool {
        self.next() % 10_000 < in_ten_thousand as u64
    }
}

/// How often what goes wrong, in 10,000 steps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// A peer says that it has no receive request, though it has.
    pub not_ready: u16,
    /// A queue pair fails.
    pub pair: u16,
    /// A queue pair's completions stay away from now on, until it fails.
    pub withheld: u16,
    /// The link is cut: nothing arrives any more, in either direction.
    pub cut: u16,
}

impl Faults {
    /// None.
    pub const NONE: Self = Self { not_ready: 0, pair: 0, withheld: 0, cut: 0 };
}
