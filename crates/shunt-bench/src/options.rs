//! The command line of `shunt bench`.

use std::path::PathBuf;

use clap::Args;

use crate::contender::Contender;

/// `shunt bench`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Programs that it drives (nginx, wrk, redis, sockperf, iperf3, PostgreSQL, HAProxy, \
                        Node, Java, Python, memcached) come from the distribution; rows whose \
                        program is missing are skipped. As root it also \
                        measures eBPF sockmap and counts system calls. The exit status is 1 when a \
                        row went wrong."
)]
pub struct Options {
    /// About a minute in all: fewer rows, contenders, rounds and seconds, and system calls are not
    /// counted. Marked so in the output.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each row; figures are medians over them. Default: 5, or 1 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Seconds of load per round and contender. Default: 2, or 0.4 with --quick. Some programs know
    /// whole seconds only.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Only these rows: names of --list, or their beginnings up to a dot; `*` stands for a part of a
    /// name, and `=NAME` for that row alone.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Only these contenders, in all rows. Kernel TCP, which all are compared with, always runs.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    pub contenders: Vec<Contender>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report with charts, in one file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: take the figures of this report, written by --json, and write what is asked for from it. Further
    /// reports, of other runs and machines, show in --readme how far the gains spread.
    #[arg(long, value_name = "REPORT", num_args = 1.., conflicts_with_all = ["json", "list", "only", "quick", "rounds", "seconds", "contenders"])]
    pub from: Vec<PathBuf>,
    /// Write the chart of the README.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub svg: Option<PathBuf>,
    /// Write chart and table into a Markdown file, between its lines `<!-- figures of … -->` and `<!-- end of the figures -->`.
    #[arg(long, value_name = "FILE", requires_all = ["from", "svg"])]
    pub readme: Option<PathBuf>,
    /// List the rows and do nothing.
    #[arg(long)]
    pub list: bool,
}

fn seconds(value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(s) if s.is_finite() && (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("it must be a number of seconds, 0.01 to 3600".to_owned()),
    }
}

impl Options {
    /// Rounds of each row.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    /// Seconds of load per round and contender.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.4 } else { 2.0 })
    }

    /// The contenders of a row that has these unless others are asked for; kernel TCP first.
    #[must_use]
    pub fn contenders(&self, usual: &[Contender]) -> Vec<Contender> {
        let wanted = |c: &Contender| match c {
            Contender::Tcp => true,
            asked if !self.contenders.is_empty() => self.contenders.contains(asked),
            Contender::Copy | Contender::Spin20 | Contender::Spin100 | Contender::Spin200 => {
                !self.quick && usual.contains(c)
            }
            other => usual.contains(other),
        };
        Contender::ALL.into_iter().filter(wanted).collect()
    }

    /// True when the row of this name is to run.
    #[must_use]
    pub fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| is_named(row, only))
    }

    /// The first name that none of these rows has.
    #[must_use]
    pub fn unknown(&self, rows: &[&str]) -> Option<&str> {
        let is_unknown = |only: &&String| !rows.iter().any(|row| is_named(row, only));
        self.only.iter().find(is_unknown).map(String::as_str)
    }
}

/// True for the name of a row, and for its beginning up to a dot, in which `*` stands for any part;
/// after `=` for the name alone.
fn is_named(row: &str, only: &str) -> bool {
    if let Some(name) = only.strip_prefix('=') {
        return row == name;
    }
    let only = only.strip_suffix('.').unwrap_or(only);
    let mut parts = row.split('.');
    only.split('.').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_selects_a_row_or_all_that_begin_with_it() {
        let only = |names: &[&str]| Options {
            only: names.iter().map(|n| (*n).to_owned()).collect(),
            ..Options::default()
        };
        assert!(only(&[]).wants("ipc.100"));
        assert!(only(&["ipc"]).wants("ipc.100"));
        assert!(only(&["nginx", "ipc.100"]).wants("ipc.100"));
        assert!(!only(&["ipc.10"]).wants("ipc.100"));
        assert!(!only(&["ip"]).wants("ipc.100"));
        let rows = ["ipc.100", "rare"];
        assert_eq!(only(&["ipc", "rare"]).unknown(&rows), None);
        assert_eq!(only(&["ipc", "rar"]).unknown(&rows), Some("rar"));
        assert_eq!(only(&[]).unknown(&rows), None);
        assert_eq!(only(&["ipc.", "=rare"]).unknown(&rows), None);
        assert!(only(&["shapes.poll.100"]).wants("shapes.poll.100.1c.5us"));
        assert!(!only(&["=shapes.poll.100"]).wants("shapes.poll.100.1c"));
        assert!(only(&["=shapes.poll.100"]).wants("shapes.poll.100"));
        assert!(only(&["shapes.*.100"]).wants("shapes.poll.100.1c"));
        assert!(!only(&["shapes.*.100"]).wants("shapes.poll.8"));
        assert!(!only(&["shapes.poll.100.*"]).wants("shapes.poll.100"));
        assert_eq!(only(&["*.100", "shapes.*"]).unknown(&rows), Some("shapes.*"));
    }

    #[test]
    fn kernel_tcp_always_runs() {
        let options = Options { contenders: vec![Contender::Attach], ..Options::default() };
        let usual = &Contender::USUAL;
        assert_eq!(options.contenders(usual), [Contender::Tcp, Contender::Attach]);
        assert_eq!(Options::default().contenders(usual), Contender::USUAL);
    }

    #[test]
    fn rows_have_contenders_of_their_own_unless_others_are_asked_for() {
        let own = [Contender::Tcp, Contender::Attach, Contender::Spin20, Contender::Spin50];
        assert_eq!(Options::default().contenders(&own), own);
        let quick = Options { quick: true, ..Options::default() };
        let few = [Contender::Tcp, Contender::Attach, Contender::Spin50];
        assert_eq!(quick.contenders(&own), few);
        let contenders = vec![Contender::Spin200];
        let asked = Options { quick: true, contenders, ..Options::default() };
        assert_eq!(asked.contenders(&own), [Contender::Tcp, Contender::Spin200]);
    }
}
