//! The ways in which every program is run.

use std::fmt;

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// As it is, over kernel TCP: what the other modes are compared with.
    Plain,
    /// Under `shunt run --dmb attach`.
    Attach,
    /// Under `shunt run --dmb copy`.
    Copy,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Attach, Self::Copy];

    /// The modes to test: all, or those named in `SHUNT_TEST_MODES`, separated by commas.
    ///
    /// # Panics
    /// When the variable names something else.
    #[must_use]
    pub fn enabled() -> Vec<Self> {
        let Ok(names) = std::env::var("SHUNT_TEST_MODES") else { return Self::ALL.to_vec() };
        names
            .split(',')
            .map(|name| {
                Self::ALL
                    .into_iter()
                    .find(|mode| mode.to_string() == name.trim())
                    .unwrap_or_else(|| panic!("SHUNT_TEST_MODES: no mode is called {name:?}"))
            })
            .collect()
    }

    /// The enabled modes that run under Shunt.
    #[must_use]
    pub fn enabled_shunted() -> Vec<Self> {
        Self::enabled().into_iter().filter(|mode| mode.is_shunted()).collect()
    }

    /// False for [`Mode::Plain`].
    #[must_use]
    pub const fn is_shunted(self) -> bool {
        !matches!(self, Self::Plain)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Attach => "attach",
            Self::Copy => "copy",
        })
    }
}
