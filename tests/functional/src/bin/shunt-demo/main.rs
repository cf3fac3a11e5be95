//! Runs pairs of well-known programs once over kernel TCP and once under Shunt, and prints what
//! they measured side by side, with the proof that the connections were shunted.

mod measure;

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Sandbox, Stats};

use measure::{MEASUREMENTS, Measurement};

/// Connection ends under Shunt, how many of them were shunted, and how many were closed before they
/// were used: wrk tries a connection first, and closes it.
struct Proof {
    ends: u64,
    shunted: u64,
    unused: u64,
}

impl Proof {
    /// What a measurement has done since `before`.
    fn since(before: &Stats, after: &Stats) -> Self {
        let (ends, shunted) = after.since(before);
        let declined = |reason| after.declined(reason) - before.declined(reason);
        let closed = declined("short-lived");
        // A client that is gone again has taken its proposal back, so its server may have found none.
        let unused = closed + declined("no-proposal").min(closed);
        Self { ends, shunted, unused }
    }

    /// All that carried anything were shunted, and there were some.
    const fn holds(&self) -> bool {
        self.shunted > 0 && self.shunted + self.unused == self.ends
    }
}

/// One line of the table.
struct Row {
    measurement: &'static Measurement,
    tcp: f64,
    shunt: f64,
    proof: Proof,
}

impl Row {
    /// How many times better Shunt is.
    fn gain(&self) -> f64 {
        if self.measurement.less_is_better { self.tcp / self.shunt } else { self.shunt / self.tcp }
    }
}

fn main() -> ExitCode {
    // Whatever goes wrong here is about the machine or a program: a sentence, not a trace.
    std::panic::set_hook(Box::new(|info| eprintln!("\nThe demo stopped: {info}")));
    let steps = 2 * MEASUREMENTS.len() as u64;
    let bar = ProgressBar::new(steps);
    let look = "{bar:24} {pos}/{len}  {wide_msg}  {elapsed}";
    bar.set_style(ProgressStyle::with_template(look).unwrap_or(ProgressStyle::default_bar()));
    bar.enable_steady_tick(std::time::Duration::from_millis(250));

    let rows: Vec<Row> = MEASUREMENTS.iter().map(|m| measure_both(m, &bar)).collect();
    bar.finish_and_clear();
    print(&rows);
    if rows.iter().all(|row| row.proof.holds()) {
        ExitCode::SUCCESS
    } else {
        println!("\nSome connections stayed on TCP: `target/release/shunt doctor nginx` says why.");
        ExitCode::FAILURE
    }
}

/// One measurement without and with Shunt.
fn measure_both(measurement: &'static Measurement, bar: &ProgressBar) -> Row {
    let say = |how: &str| bar.set_message(format!("{} {how}", measurement.name));
    say("over TCP");
    let tcp = (measurement.run)(&Sandbox::new(Mode::Plain));
    bar.inc(1);
    say("over Shunt");
    let sandbox = Sandbox::new(Mode::Attach);
    let before = sandbox.stats();
    let shunt = (measurement.run)(&sandbox);
    let proof = Proof::since(&before, &sandbox.stats());
    bar.inc(1);
    Row { measurement, tcp, shunt, proof }
}

/// Columns that the whole table takes.
const WHOLE: u16 = 127;

fn print(rows: &[Row]) {
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|_| is_terminal);
    let is_narrow = size.is_some_and(|size| size.ws_col < WHOLE);
    let (bold, plain) = if is_terminal { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    for (i, line) in table(rows, is_narrow).iter().enumerate() {
        if i == 0 { println!("{bold}{line}{plain}") } else { println!("{line}") }
    }
}

/// The lines of the table; `is_narrow`: such as 80 columns have room for.
fn table(rows: &[Row], is_narrow: bool) -> Vec<String> {
    let line = |[name, tcp, shunt, unit, gain, shunted]: [&str; 6]| {
        if is_narrow {
            format!("{name:<36} {tcp:>9} {shunt:>9} {unit:<5} {gain:>8} {shunted:>7}")
        } else {
            format!("{name:<38} {tcp:>12} {shunt:>12} {unit:<8} {gain:>7}  {shunted}")
        }
    };
    let row = |row: &Row| {
        let m = row.measurement;
        let Proof { ends, shunted, unused } = &row.proof;
        let proof = match (is_narrow, unused) {
            (true, _) => format!("{shunted}/{ends}"),
            (false, 0) => format!("{shunted} of {ends} connection ends"),
            (false, _) => format!("{shunted} of {ends} connection ends ({unused} closed unused)"),
        };
        let gain = format!("{:.2}×", row.gain());
        line([m.name, &figure(row.tcp), &figure(row.shunt), m.unit, &gain, &proof])
    };
    let mut lines = vec![line(["", "TCP", "Shunt", "", "gain", "shunted"])];
    lines.extend(rows.iter().map(row));
    if is_narrow && rows.iter().any(|row| row.proof.unused > 0) {
        lines.push("shunted: connection ends; clients closed the others unused".to_owned());
    }
    lines
}

/// Three digits at least, and thousands in groups.
fn figure(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns() {
        let proof = || Proof { ends: 102, shunted: 100, unused: 2 };
        let rows: Vec<_> = MEASUREMENTS
            .iter()
            .map(|measurement| Row {
                measurement,
                tcp: 1_796_945.0,
                shunt: 4_255_319.0,
                proof: proof(),
            })
            .collect();
        let widest = |is_narrow| {
            let lines = table(&rows, is_narrow);
            lines.iter().map(|line| line.chars().count()).max()
        };
        assert!(widest(true).is_some_and(|n| n <= 80), "{:#?}", table(&rows, true));
        assert!(widest(false).is_some_and(|n| n <= WHOLE.into()), "{:#?}", table(&rows, false));
    }

    #[test]
    fn figures() {
        assert_eq!(figure(3.2), "3.20");
        assert_eq!(figure(100.0), "100");
        assert_eq!(figure(226_754.4), "226,754");
        assert_eq!(figure(1_226_754.0), "1,226,754");
    }
}
