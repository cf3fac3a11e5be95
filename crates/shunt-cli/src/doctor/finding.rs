//! Something that `shunt doctor` has found out.

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// As it should be.
    Good,
    /// Not in the way, but worth knowing.
    Warning,
    /// Keeps connections on TCP.
    Obstacle,
    /// So does this; and the program would not start with the library, so it is not given it.
    Harm,
}

/// Something that was found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub(super) mark: Mark,
    pub(super) text: String,
}

impl Finding {
    pub(super) fn good(text: impl Into<String>) -> Self {
        Self { mark: Mark::Good, text: text.into() }
    }

    pub(super) fn warning(text: impl Into<String>) -> Self {
        Self { mark: Mark::Warning, text: text.into() }
    }

    pub(super) fn obstacle(text: impl Into<String>) -> Self {
        Self { mark: Mark::Obstacle, text: text.into() }
    }

    pub(super) fn harm(text: impl Into<String>) -> Self {
        Self { mark: Mark::Harm, text: text.into() }
    }

    pub(super) fn is_in_the_way(&self) -> bool {
        matches!(self.mark, Mark::Obstacle | Mark::Harm)
    }
}
