//! The summary at the end of `shunt run --summary`.

use std::fmt::Write;

use shunt_shm::counters::Counters;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::output::width_of_complaints;
use crate::table::{count_of, wrapped};

/// Of lines that a terminal has no room for.
const INDENT: usize = "shunt:     ".len();

/// Prints the summary on standard error.
pub fn print(counters: Option<&Counters>, obstacles: &[String]) {
    let text = text(counters, obstacles, width_of_complaints());
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

fn text(counters: Option<&Counters>, obstacles: &[String], width: Option<u16>) -> String {
    let mut text = String::new();
    let mut line = |what: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{}", wrapped(&format!("shunt: {what}"), width, INDENT));
    };
    if let Some(counters) = counters {
        let (counts, declined) = (counters.counters(), counters.declined());
        let get = |c: Counter| counts[c as usize];
        line(format_args!(
            "{} shunted ({} attach, {} copy), {} not, {} moved back to TCP",
            count_of(get(Counter::Shunted), "connection end"),
            get(Counter::ShuntedAttach),
            get(Counter::ShuntedCopy),
            declined.iter().sum::<u64>(),
            get(Counter::Demoted),
        ));
        by_reason(&declined).iter().for_each(|row| line(format_args!("{row}")));
        let unregistered = counters.unregistered();
        let n = unregistered.iter().sum::<u64>();
        if n > 0 {
            line(format_args!("{} not registered", count_of(n, "listener")));
        }
        by_reason(&unregistered).iter().for_each(|row| line(format_args!("{row}")));
        let uncounted = get(Counter::Uncounted);
        if uncounted > 0 {
            line(format_args!(
                "{} started as another user, not counted here: put `shunt run --summary` behind what changes the user, as in \
                 `setpriv ... shunt run --summary PROGRAM`",
                count_of(uncounted, "program")
            ));
        }
    }
    for obstacle in obstacles {
        line(format_args!("not shunted: {obstacle}"));
    }
    text
}

/// A line with what happened for each, and one with what to do.
fn by_reason(counts: &[u64]) -> Vec<String> {
    let occurred = |reason: &&Reason| counts[**reason as usize] > 0;
    let explained = |reason: &Reason| {
        let n = counts[*reason as usize];
        let happened = format!("  {n} {}: {}", reason.name(), reason.explain().trim());
        [happened, format!("    {}", reason.fix())]
    };
    Reason::ALL.iter().filter(occurred).flat_map(explained).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_that_occurred_is_explained() {
        let counters = Counters::new();
        counters.of(1).add(Counter::Shunted, 3);
        counters.of(1).add(Counter::ShuntedAttach, 3);
        counters.of(2).decline(Reason::Remote);
        counters.of(2).decline(Reason::Remote);
        let text = text(Some(&counters), &["no library".to_owned()], None);
        assert!(text.starts_with("shunt: 3 connection ends shunted (3 attach, 0 copy), 2 not"));
        assert!(text.contains("shunt:   2 remote: The other end is not on this host,"), "{text}");
        assert!(text.contains("\nshunt:     To another host: nothing"), "{text}");
        assert!(text.ends_with("shunt: not shunted: no library\n"));
        assert!(!text.contains("no-agent") && !text.contains("listener"), "{text}");
    }

    #[test]
    fn listeners_that_nobody_finds_are_told_with_their_reasons() {
        let counters = Counters::new();
        counters.of(1).leave_unregistered(Reason::NoAgent);
        let text = text(Some(&counters), &[], None);
        let told =
            "shunt: 1 listener not registered\nshunt:   1 no-agent: The agent could not be reached";
        assert!(text.contains(told), "{text}");
    }
    #[test]
    fn programs_that_are_not_counted_are_told() {
        let counters = Counters::new();
        assert!(!text(Some(&counters), &[], None).contains("another user"));
        counters.of(1).add(Counter::Uncounted, 1);
        let said = text(Some(&counters), &[], None);
        assert!(said.contains("\nshunt: 1 program started as another user, not counted"), "{said}");
    }

    #[test]
    fn it_fits_the_terminal() {
        let counters = Counters::new();
        counters.of(1).decline(Reason::Remote);
        let text = text(Some(&counters), &[], Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("\n           "), "{text}");
    }
}
