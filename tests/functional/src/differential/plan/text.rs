//! Plans as text: a line for each process, and one for each group of steps.

use std::fmt;
use std::str::FromStr;

use super::{Actor, Level, Op, PROCESSES, Plan, STEPS, Signal, Step, THREADS};

/// Stands between the steps of a group.
const BETWEEN: &str = " | ";
/// Stands before an operation in a handler.
const HANDLERS: [(&str, Signal); 3] =
    [("!USR1", Signal::Interrupts), ("!USR2", Signal::Restarts), ("!JUMP", Signal::Jumps)];
/// Stands after an operation that time ends.
const TIMED: &str = " timed";

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.actor)?;
        let handler = HANDLERS.iter().find(|(_, signal)| self.level == Level::Handler(*signal));
        if let Some((mark, _)) = handler {
            f.write_str(mark)?;
        }
        f.write_str(" ")?;
        self.op.show(f)?;
        if self.timed { f.write_str(TIMED) } else { Ok(()) }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, threads) in self.processes.iter().enumerate() {
            writeln!(f, "p{n}: {threads}")?;
        }
        for group in &self.groups {
            for (n, step) in group.iter().enumerate() {
                write!(f, "{}{step}", if n > 0 { BETWEEN } else { "" })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (timed, text) =
            text.strip_suffix(TIMED).map_or((false, text), |text| (true, text.trim_end()));
        let (who, op) = text.split_once(' ').ok_or("an actor and an operation are wanted")?;
        let mut level = Level::Base;
        let mut who = who;
        for (mark, signal) in HANDLERS {
            if let Some(actor) = who.strip_suffix(mark) {
                (who, level) = (actor, Level::Handler(signal));
            }
        }
        let actor = actor(who).ok_or_else(|| format!("{who:?} is no actor"))?;
        let (name, args) = op
            .trim()
            .strip_suffix(')')
            .and_then(|op| op.split_once('('))
            .ok_or_else(|| format!("{op:?} is no operation"))?;
        let args: Vec<&str> =
            args.split(',').map(str::trim).filter(|arg| !arg.is_empty()).collect();
        Ok(Self { actor, level, op: Op::parse(name, &args)?, timed })
    }
}

/// `p1.2`
fn actor(text: &str) -> Option<Actor> {
    let (process, thread) = text.strip_prefix('p')?.split_once('.')?;
    let (process, thread) = (process.parse().ok()?, thread.parse().ok()?);
    let known = usize::from(process) < PROCESSES && usize::from(thread) < THREADS;
    known.then_some(Actor { process, thread })
}

/// `p1: 2`
fn process(line: &str) -> Option<(usize, u8)> {
    let (name, threads) = line.split_once(':')?;
    Some((name.strip_prefix('p')?.parse().ok()?, threads.trim().parse().ok()?))
}

impl FromStr for Plan {
    type Err = String;

    /// Empty lines and those that begin with `#` are passed over.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| format!("line {}: {why}: {line}", n + 1);
            if let Some((process, threads)) = process(line) {
                let fits = process == plan.processes.len()
                    && process < PROCESSES
                    && (1..=THREADS).contains(&usize::from(threads));
                if !fits {
                    return Err(wrong("processes stand in order, with their threads"));
                }
                plan.processes.push(threads);
                continue;
            }
            let steps = line.split(BETWEEN).map(|step| step.trim().parse());
            let group = steps.collect::<Result<Vec<Step>, _>>().map_err(|e| wrong(&e))?;
            let known = |step: &Step| {
                let threads = plan.processes.get(usize::from(step.actor.process));
                threads.is_some_and(|threads| step.actor.thread < *threads)
            };
            if !group.iter().all(known) {
                return Err(wrong("an actor is of no process"));
            }
            plan.groups.push(group);
        }
        if plan.steps().count() > STEPS {
            return Err(format!("more than {STEPS} steps"));
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
p0: 2
p1: 1
p0.0 listen(l0, 0)
p1.0 connect(a0, l0, 65536, NONBLOCK|CLOEXEC)
p0.0 accept(b0, l0, 0)
p1.0 ping(a0, 4) | p0.0 pong(b0, 4)
p0.1 poll([b0:IN|OUT b0.1:0], -1, poll)
p0.1!USR1 send(b0, 10, DONTWAIT, sendmsg)
p0.0 select([b0:IN], 10, limit, pselect) timed
p0.0 epoll_create(e0)
";

    #[test]
    fn plans_are_read_as_they_are_written() {
        let plan: Plan = TEXT.parse().unwrap();
        assert_eq!(plan.to_string(), TEXT);
        assert_eq!(plan.steps().count(), 9);
    }

    #[test]
    fn what_an_older_plan_has_not_got_is_the_simplest() {
        let plan: Plan = "p0: 1\np0.0 recv(b0, 10)\n".parse().unwrap();
        assert_eq!(plan.to_string(), "p0: 1\np0.0 recv(b0, 10, 0, recv)\n");
    }

    #[test]
    fn nonsense_is_named() {
        for (text, why) in [
            ("p0: 1\np0.0 fly(b0)\n", "no operation is called \"fly\""),
            ("p0: 1\np1.0 close(b0)\n", "an actor is of no process"),
            ("p0: 1\np0.0 close(x0)\n", "fd cannot be \"x0\""),
            ("p0: 1\np0.0 close(b0, close, 3)\n", "close has no argument \"3\""),
            ("p0: 1\np0.0 send(b0)\n", "len is missing"),
            ("p1: 1\n", "processes stand in order"),
        ] {
            let error = text.parse::<Plan>().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
