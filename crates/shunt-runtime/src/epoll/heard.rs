//! What is known of a kernel socket of which news is told.

use shunt_engine::events;

/// What somebody knows of a kernel socket who hears of its news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Nothing: it is to be asked.
    Nothing,
    /// There was nothing to read when it was last asked, and there was no news since.
    Silent,
    /// What it has just told, but for room, for the look of this number.
    Told(u32, u64),
}

impl Heard {
    /// What counts at a look. In a `shared` set news may go to somebody else.
    pub const fn at(self, look: u64, shared: bool) -> Self {
        match self {
            Self::Silent if shared => Self::Nothing,
            Self::Told(_, when) if when != look => Self::Nothing,
            known => known,
        }
    }

    /// What poll(2) would say now of bytes and the end, if that is known.
    pub const fn answer(self) -> Option<u32> {
        match self {
            Self::Told(bits, _) if bits & events::IN != 0 => Some(bits | events::RDNORM),
            Self::Told(bits, _) => Some(bits),
            Self::Silent | Self::Nothing => None,
        }
    }
}
