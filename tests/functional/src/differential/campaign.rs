//! Comparing: a plan over kernel TCP and under Shunt, again where they differ.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use super::plan::{Op, Plan};
use super::run::{Differs, Expected, Runner, Transcript};
use super::shrink::shrink;
use crate::mode::Mode;
use crate::sandbox::Sandbox;

/// Plans that are tried to find a small one.
const TRIES: u32 = 600;

/// How a plan is compared.
#[derive(Clone, Copy, Debug)]
pub struct Care {
    /// How long a step may take that ends over kernel TCP.
    pub patience: Duration,
    /// Runs over kernel TCP after a difference was seen, which have to agree.
    pub plain: u32,
    /// Runs under Shunt.
    pub again: u32,
    /// How many of them have to differ.
    pub enough: u32,
    /// Runs under Shunt, each after one more over kernel TCP, where too few of those have differed.
    pub rare: u32,
    /// Runs over kernel TCP at last, where not each of those under Shunt has differed: what depends on how busy the machine
    /// is varies there, too, if seldom.
    pub plain_again: u32,
}

impl Care {
    /// For plans that must not differ.
    pub const KEPT: Self = Self {
        patience: Duration::from_secs(20),
        plain: 5,
        again: 3,
        enough: 2,
        rare: 12,
        plain_again: 30,
    };
    /// For plans that nobody has seen yet.
    pub const SEARCH: Self = Self {
        patience: Duration::from_secs(4),
        plain: 5,
        again: 4,
        enough: 2,
        rare: 16,
        plain_again: 30,
    };
    /// For plans that differ, which are to become small.
    pub const SHRINK: Self = Self {
        patience: Duration::from_millis(1000),
        plain: 1,
        again: 1,
        enough: 1,
        rare: 1,
        plain_again: 0,
    };
}

/// A plan does not do the same under Shunt.
#[derive(Clone, Debug)]
pub struct Difference {
    /// In which mode.
    pub mode: Mode,
    /// In so many of how many runs.
    pub times: (u32, u32),
    /// What differs.
    pub differs: Differs,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (times, of) = self.times;
        let Differs { kind, what } = &self.differs;
        write!(f, "differs in mode {} ({times} of {of} runs)\nkind: {kind}\n{what}", self.mode)
    }
}

/// What a comparison says.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The same in all modes; how many connection ends were shunted.
    Same(u64),
    /// It is not the same each time over kernel TCP either, or has differed once and never again: what varies.
    Varies(String),
    /// It differs.
    Differs(Difference),
}

/// A place for each mode.
pub struct Campaign {
    plain: Sandbox,
    shunted: Vec<Sandbox>,
}

impl Campaign {
    /// For these modes beside kernel TCP.
    ///
    /// # Panics
    /// When a sandbox cannot be made.
    #[must_use]
    pub fn new(modes: &[Mode]) -> Self {
        let shunted = modes.iter().filter(|mode| mode.is_shunted());
        Self {
            plain: Sandbox::new(Mode::Plain),
            shunted: shunted.map(|mode| Sandbox::new(*mode)).collect(),
        }
    }

    /// In these places.
    #[must_use]
    pub fn of(plain: Sandbox, shunted: Vec<Sandbox>) -> Self {
        Self { plain, shunted }
    }

    /// A small plan that differs in the same way.
    #[must_use]
    pub fn shrunk(&self, plan: &Plan, kind: &str, at_most: Duration) -> Plan {
        let started = Instant::now();
        let known = BTreeSet::from([kind.to_owned()]);
        shrink(plan, TRIES, |plan| {
            started.elapsed() < at_most
                && matches!(
                    self.compare_knowing(plan, Care::SHRINK, &known),
                    Ok(Verdict::Differs(found)) if found.differs.kind == kind
                )
        })
    }

    /// What comes of a plan over kernel TCP.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub fn plain(&self, plan: &Plan) -> io::Result<Transcript> {
        Runner::new(&self.plain).run(plan, None)
    }

    /// Compares a plan in all modes.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub fn compare(&self, plan: &Plan, care: Care) -> io::Result<Verdict> {
        self.compare_knowing(plan, care, &BTreeSet::new())
    }

    /// The same, where differences of some kinds are known and need no second look.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub fn compare_knowing(
        &self,
        plan: &Plan,
        care: Care,
        known: &BTreeSet<String>,
    ) -> io::Result<Verdict> {
        let transcript = self.plain(plan)?;
        if transcript.restless {
            return Ok(Verdict::Varies("a call neither ends nor sleeps".into()));
        }
        let mut shunted = 0;
        for sandbox in &self.shunted {
            let found = Self::under(sandbox, plan, &transcript, care)?;
            shunted += found.shunted;
            match &found.differs {
                None => {}
                Some(differs) if known.contains(&differs.kind) => {
                    let (mode, differs) = (sandbox.mode, differs.clone());
                    return Ok(Verdict::Differs(Difference { mode, times: (1, 1), differs }));
                }
                Some(differs) => {
                    return self.look_again(sandbox, plan, &transcript, differs, care);
                }
            }
        }
        Ok(Verdict::Same(shunted))
    }

    fn under(
        sandbox: &Sandbox,
        plan: &Plan,
        transcript: &Transcript,
        care: Care,
    ) -> io::Result<Transcript> {
        let expected = Expected { transcript, patience: care.patience };
        let mut found = Runner::new(sandbox).run(plan, Some(expected))?;
        let wanted = warmed(plan, transcript);
        if found.differs.is_none() && found.shunted < wanted {
            let (shunted, declined) = (found.shunted, &found.declined);
            let what = format!(
                "  {shunted} connection ends were shunted, of {wanted} that carried messages both ways: {declined}\n"
            );
            found.differs = Some(Differs { kind: format!("not shunted: {declined}"), what });
        }
        Ok(found)
    }

    /// Whether a difference is one: kernel TCP has to do the same each time, and Shunt something else more than once.
    fn look_again(
        &self,
        sandbox: &Sandbox,
        plan: &Plan,
        transcript: &Transcript,
        differs: &Differs,
        care: Care,
    ) -> io::Result<Verdict> {
        for _ in 0..care.plain {
            if let Some(what) = self.varies(plan, transcript)? {
                return Ok(Verdict::Varies(what));
            }
        }
        let (mut times, mut of) = (1, 1);
        while of < care.again || (times < care.enough && of < care.rare) {
            if of >= care.again
                && let Some(what) = self.varies(plan, transcript)?
            {
                return Ok(Verdict::Varies(what));
            }
            of += 1;
            times += u32::from(Self::under(sandbox, plan, transcript, care)?.differs.is_some());
        }
        if times < care.enough {
            return Ok(Verdict::Varies(format!("{}, in one of {of} runs", differs.kind)));
        }
        for _ in 0..if times < of { care.plain_again } else { 0 } {
            if let Some(what) = self.varies(plan, transcript)? {
                return Ok(Verdict::Varies(what));
            }
        }
        let (mode, differs) = (sandbox.mode, differs.clone());
        Ok(Verdict::Differs(Difference { mode, times: (times, of), differs }))
    }

    /// What another run over kernel TCP comes to that is not the same.
    fn varies(&self, plan: &Plan, transcript: &Transcript) -> io::Result<Option<String>> {
        let other = self.plain(plan)?;
        let mut pairs = other.events.iter().zip(&transcript.events);
        let differs = pairs.find(|(a, b)| a != b).map(|(a, b)| {
            let step = plan.steps().nth(a.step).map(ToString::to_string).unwrap_or_default();
            format!("{step}: {:?} and {:?}", (a.group, a.step, &a.text), (b.group, b.step, &b.text))
        });
        let is_short = other.restless || other.events.len() != transcript.events.len();
        Ok(differs.or_else(|| is_short.then(|| "a call neither ends nor sleeps".into())))
    }
}

/// Ends of connections that have carried some messages both ways, before another program has taken over a listener.
fn warmed(plan: &Plan, transcript: &Transcript) -> u64 {
    let done = |step: usize| {
        let event = transcript.events.iter().find(|event| event.step == step);
        event.is_some_and(|event| event.text.starts_with("done"))
    };
    let before = plan.steps().enumerate().take_while(|(_, step)| !matches!(step.op, Op::Exec {}));
    let warm = before
        .filter(|(step, s)| matches!(s.op, Op::Ping { times, .. } if times >= 4) && done(*step));
    warm.count() as u64 * 2
}
