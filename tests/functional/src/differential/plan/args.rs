//! Arguments of operations, and how they are written.

use std::fmt::{self, Display};

/// Something that stands between the parentheses of an operation.
pub trait Arg: Sized + Clone {
    /// Reads what [`Arg::show`] has written.
    fn read(text: &str) -> Option<Self>;

    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result;

    /// What is meant where an older plan has nothing.
    #[must_use]
    fn absent() -> Option<Self> {
        None
    }

    /// The descriptors that it names.
    fn vars(&self, _each: &mut dyn FnMut(Var)) {}

    /// Simpler values that may show the same, the simplest first.
    #[must_use]
    fn simpler(&self) -> Vec<Self> {
        Vec::new()
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Arg for $type {
            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
                write!(out, "{self}")
            }

            fn simpler(&self) -> Vec<Self> {
                let all = [1, 10, 100, *self / 64, *self / 8, *self / 2];
                all.into_iter().filter(|n| *n > 0 && *n < *self).collect()
            }
        }
    )*};
}

numbers!(u32, i32);

/// What a descriptor was made as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The connecting end of a connection.
    Client,
    /// The accepted end.
    Server,
    /// A listener.
    Listener,
    /// An epoll instance.
    Epoll,
    /// The end of a pipe that is read.
    Reader,
    /// The other one.
    Writer,
    /// A file.
    File,
    /// One end of a pair of UNIX sockets.
    Left,
    /// The other one.
    Right,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Self; 9] = [
        Self::Client,
        Self::Server,
        Self::Listener,
        Self::Epoll,
        Self::Reader,
        Self::Writer,
        Self::File,
        Self::Left,
        Self::Right,
    ];
}

const KINDS: [(Kind, char); 9] = [
    (Kind::Client, 'a'),
    (Kind::Server, 'b'),
    (Kind::Listener, 'l'),
    (Kind::Epoll, 'e'),
    (Kind::Reader, 'r'),
    (Kind::Writer, 'w'),
    (Kind::File, 'f'),
    (Kind::Left, 'u'),
    (Kind::Right, 'v'),
];

/// A variable that holds a descriptor: `b3` is the accepted end of connection 3, `b3.1` a duplicate of it.
///
/// It keeps its number when the descriptor is closed, as programs' variables do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Var {
    /// As what it was made.
    pub kind: Kind,
    /// Which of its kind.
    pub n: u8,
    /// Which duplicate; 0 is the first descriptor.
    pub copy: u8,
}

/// A sequence of bytes that are known by their position: what is written to one descriptor and its duplicates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stream {
    /// The descriptor that is written to.
    pub kind: Kind,
    /// Which of its kind.
    pub n: u8,
}

/// Numbers of each kind that streams can have.
const PER_KIND: usize = 12;

impl Stream {
    /// How many there can be.
    pub const COUNT: usize = PER_KIND * 6;

    /// Its number among all.
    #[must_use]
    pub const fn index(self) -> usize {
        let kind = match self.kind {
            Kind::Client => 0,
            Kind::Server => 1,
            Kind::Writer => 2,
            Kind::File => 3,
            Kind::Left => 4,
            _ => 5,
        };
        kind * PER_KIND + self.n as usize % PER_KIND
    }

    /// The stream of this number.
    #[must_use]
    pub fn at(index: usize) -> Self {
        const ORDER: [Kind; 6] =
            [Kind::Client, Kind::Server, Kind::Writer, Kind::File, Kind::Left, Kind::Right];
        let n = u8::try_from(index % PER_KIND).unwrap_or(0);
        Self { kind: ORDER[index / PER_KIND % ORDER.len()], n }
    }

    /// The label of its bytes (`pattern`): no two streams have a word in common.
    #[must_use]
    pub const fn label(self) -> u64 {
        (self.index() as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

impl Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Var { kind: self.kind, n: self.n, copy: 0 }.fmt(f)
    }
}

impl Var {
    /// The first descriptor of its kind and number.
    #[must_use]
    pub const fn new(kind: Kind, n: u8) -> Self {
        Self { kind, n, copy: 0 }
    }

    /// What is written to it.
    #[must_use]
    pub const fn stream(self) -> Stream {
        Stream { kind: self.kind, n: self.n }
    }

    /// What is read from it.
    #[must_use]
    pub const fn incoming(self) -> Stream {
        let kind = match self.kind {
            Kind::Client => Kind::Server,
            Kind::Server => Kind::Client,
            Kind::Reader => Kind::Writer,
            Kind::Left => Kind::Right,
            Kind::Right => Kind::Left,
            kind => kind,
        };
        Stream { kind, n: self.n }
    }
}

impl Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or('?', |k| k.1);
        write!(f, "{letter}{}", self.n)?;
        if self.copy > 0 { write!(f, ".{}", self.copy) } else { Ok(()) }
    }
}

impl Arg for Var {
    fn read(text: &str) -> Option<Self> {
        let mut rest = text.chars();
        let letter = rest.next()?;
        let kind = KINDS.iter().find(|k| k.1 == letter)?.0;
        let (n, copy) = rest.as_str().split_once('.').unwrap_or((rest.as_str(), "0"));
        let n = n.parse().ok().filter(|n| usize::from(*n) < PER_KIND)?;
        Some(Self { kind, n, copy: copy.parse().ok()? })
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{self}")
    }

    fn vars(&self, each: &mut dyn FnMut(Var)) {
        each(*self);
    }
}

macro_rules! names {
    ($($(#[doc = $doc:literal])+ $type:ident: $($(#[doc = $each:literal])+ $name:ident = $text:literal),+;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub enum $type { #[default] $($(#[doc = $each])+ $name),+ }

        impl $type {
            /// Each of them, the simplest first.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }

        impl Arg for $type {
            fn read(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)+ _ => None }
            }

            fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
                out.write_str(self.name())
            }

            fn absent() -> Option<Self> {
                Some(Self::default())
            }

            fn simpler(&self) -> Vec<Self> {
                Self::ALL.iter().copied().take_while(|other| other != self).take(1).collect()
            }
        }
    )+};
}
pub(crate) use names;

macro_rules! flags {
    ($($(#[doc = $doc:literal])+ $type:ident: $($(#[doc = $each:literal])+ $name:ident = $value:expr),+;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct $type(pub i32);

        impl $type {
            $($(#[doc = $each])+ pub const $name: Self = Self($value);)+

            const NAMES: &'static [(&'static str, i32)] = &[$((stringify!($name), $value)),+];

            /// True when all of these are among them.
            #[must_use]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Writes them.
            ///
            /// # Errors
            /// Those of `out`.
            pub fn write(self, out: &mut dyn fmt::Write) -> fmt::Result {
                let mut rest = self.0;
                let mut between = "";
                for (name, value) in Self::NAMES {
                    if rest & value != 0 && self.0 & value == *value {
                        write!(out, "{between}{name}")?;
                        (rest, between) = (rest & !value, "|");
                    }
                }
                match (rest, between) {
                    (0, "") => out.write_str("0"),
                    (0, _) => Ok(()),
                    _ => write!(out, "{between}{rest:#x}"),
                }
            }
        }

        impl std::ops::BitOr for $type {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl Arg for $type {
            fn read(text: &str) -> Option<Self> {
                if text == "0" {
                    return Some(Self(0));
                }
                text.split('|').try_fold(Self(0), |all, name| {
                    let known = Self::NAMES.iter().find(|(n, _)| *n == name)?;
                    Some(Self(all.0 | known.1))
                })
            }

            fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
                self.write(out)
            }

            fn absent() -> Option<Self> {
                Some(Self(0))
            }

            fn simpler(&self) -> Vec<Self> {
                let set = Self::NAMES.iter().filter(|(_, value)| self.0 & value == *value);
                let mut less: Vec<_> = set.map(|(_, value)| Self(self.0 & !value)).collect();
                less.insert(0, Self(0));
                less.retain(|other| other != self);
                less
            }
        }
    )+};
}
pub(crate) use flags;

impl<T: Arg> Arg for Vec<T> {
    fn read(text: &str) -> Option<Self> {
        let inside = text.strip_prefix('[')?.strip_suffix(']')?;
        inside.split_whitespace().map(T::read).collect()
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_char('[')?;
        for (n, one) in self.iter().enumerate() {
            if n > 0 {
                out.write_char(' ')?;
            }
            one.show(out)?;
        }
        out.write_char(']')
    }

    fn vars(&self, each: &mut dyn FnMut(Var)) {
        for one in self {
            one.vars(each);
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let without = |n: usize| {
            let mut fewer = self.clone();
            fewer.remove(n);
            fewer
        };
        (0..self.len()).map(without).collect()
    }
}
