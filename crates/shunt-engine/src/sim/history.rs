//! A history: what two programs do, and how the scheduler chooses. As text it is one line, by which it is run again.

use core::fmt;
use core::str::FromStr;

use super::{Op, run};

/// What two programs do, and how the scheduler chooses.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct History {
    /// The program that has connected.
    pub client: Vec<Op>,
    /// The one that has accepted.
    pub server: Vec<Op>,
    /// Which program goes on, for how long, and whether things happen that may.
    pub choices: Vec<u8>,
}

impl History {
    /// Runs it. Returns at how many points a program could have stopped.
    ///
    /// # Panics
    /// When something does not hold that must.
    #[must_use]
    pub fn run(&self) -> u32 {
        run(self)
    }

    /// The programs begin without a connection: the client makes them.
    pub(super) fn connects(&self) -> bool {
        self.client.iter().any(|op| matches!(op, Op::Connect | Op::ConnectPlain))
    }

    /// One of any bytes: for fuzzers.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut bytes = bytes.iter().copied();
        let mut programs = [const { Vec::new() }; 2];
        for program in &mut programs {
            let len = bytes.next().unwrap_or(0) % 13;
            for _ in 0..len {
                let (kind, size, times) = (
                    bytes.next().unwrap_or(0),
                    bytes.next().unwrap_or(0),
                    bytes.next().unwrap_or(0),
                );
                // Mostly few, up to more than two rings.
                let size = 1 + usize::from(size) * [1, 1, 4, 36][usize::from(times & 3)];
                program.push(Op::from_code(kind % Op::CODES, size));
            }
        }
        let [client, server] = programs;
        Self { client, server, choices: bytes.collect() }
    }
}

/// The operations by their names: those alone, and those with a number.
const ALONE: [(&str, Op); 27] = [
    ("meet", Op::Meet),
    ("check", Op::Check),
    ("sleep", Op::Sleep),
    ("shut", Op::Shut),
    ("close", Op::Close),
    ("connect", Op::Connect),
    ("connect-plain", Op::ConnectPlain),
    ("accept", Op::Accept),
    ("accept-now", Op::AcceptNow),
    ("accept-late", Op::AcceptLate),
    ("accept-plain", Op::AcceptPlain),
    ("tire", Op::Tire),
    ("agent-dies", Op::AgentDies),
    ("agent-returns", Op::AgentReturns),
    ("hear", Op::Hear),
    ("hear-all", Op::HearAll),
    ("refuse", Op::Refuse),
    ("share", Op::Share),
    ("unmap", Op::Unmap),
    ("bypass", Op::Bypass),
    ("urgent", Op::Urgent),
    ("leave", Op::Leave),
    ("exec", Op::Exec),
    ("starve", Op::Starve),
    ("feed", Op::Feed),
    ("shut-rd", Op::ShutReading),
    ("shut-both", Op::ShutBoth),
];

type Numbered = fn(usize) -> Op;

#[allow(clippy::cast_possible_truncation, reason = "no history has so many accesses")]
const SIZED: [(&str, Numbered); 23] = [
    ("send", Op::Send),
    ("recv", Op::Receive),
    ("recv-all", Op::ReceiveAll),
    ("look", Op::Look),
    ("poll-send", Op::PollSend),
    ("poll-recv", Op::PollReceive),
    ("edge-send", Op::EdgeSend),
    ("edge-recv", Op::EdgeReceive),
    ("die", |n| Op::Die(n as u32)),
    ("signal", |n| Op::Signal(n as u32)),
    ("panic", |n| Op::Panic(n as u32)),
    ("lie", |n| Op::Lie(n as u32)),
    ("on", Op::On),
    ("fork", Op::Fork),
    ("skip", Op::Skip),
    ("grant", Op::Grant),
    ("pin", Op::Pin),
    ("count-recv", Op::CountReceive),
    ("stall", |n| Op::Stall(n as u32)),
    ("spawn", Op::Spawn),
    ("low-water", Op::LowWater),
    ("buffers", Op::Buffers),
    ("parts", Op::Parts),
];

impl Op {
    const CODES: u8 = 50;

    fn from_code(code: u8, size: usize) -> Self {
        match usize::from(code).checked_sub(ALONE.len()) {
            None => ALONE[usize::from(code)].1,
            // A fuzzer that has them receive all of much would wait for most of it in vain.
            Some(2) => Self::ReceiveAll(size % 40 + 1),
            Some(at) => SIZED[at].1(size),
        }
    }

    pub(super) fn size(self) -> Option<usize> {
        match self {
            Self::Send(n)
            | Self::Receive(n)
            | Self::ReceiveAll(n)
            | Self::Look(n)
            | Self::PollSend(n)
            | Self::PollReceive(n)
            | Self::EdgeSend(n)
            | Self::EdgeReceive(n)
            | Self::Skip(n)
            | Self::CountReceive(n)
            | Self::Grant(n)
            | Self::Pin(n)
            | Self::Parts(n)
            | Self::On(n)
            | Self::Fork(n)
            | Self::Spawn(n)
            | Self::LowWater(n)
            | Self::Buffers(n) => Some(n),
            Self::Die(n) | Self::Signal(n) | Self::Panic(n) | Self::Stall(n) | Self::Lie(n) => {
                Some(n as usize)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size() {
            None => {
                let name = ALONE.iter().find(|(_, op)| op == self).map_or("", |(name, _)| name);
                f.write_str(name)
            }
            Some(n) => {
                let name = SIZED.iter().find(|(_, of)| of(n) == *self).map_or("", |(name, _)| name);
                write!(f, "{name}:{n}")
            }
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("no operation: {text}");
        match text.split_once(':') {
            None => ALONE.iter().find(|(name, _)| *name == text).map(|(_, op)| *op),
            Some((name, n)) => SIZED
                .iter()
                .find(|(its, _)| *its == name)
                .and_then(|(_, of)| Some(of(n.parse().ok()?))),
        }
        .ok_or_else(unknown)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for program in [&self.client, &self.server] {
            for op in program {
                write!(f, "{op} ")?;
            }
            f.write_str("/ ")?;
        }
        self.choices.iter().try_for_each(|choice| write!(f, "{choice:02x}"))
    }
}

/// As the line by which it is run again.
impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIM_HISTORY='{self}'")
    }
}

impl FromStr for History {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let parts: Vec<&str> = line.split('/').map(str::trim).collect();
        let [client, server, choices] = parts[..] else {
            return Err("a history has three parts, with / between them".into());
        };
        let program =
            |text: &str| text.split_whitespace().map(str::parse).collect::<Result<_, String>>();
        let choice = |at: usize| {
            let digits = choices.get(at..at + 2).ok_or("an odd number of digits")?;
            u8::from_str_radix(digits, 16).map_err(|error| error.to_string())
        };
        Ok(Self {
            client: program(client)?,
            server: program(server)?,
            choices: (0..choices.len()).step_by(2).map(choice).collect::<Result<_, _>>()?,
        })
    }
}
