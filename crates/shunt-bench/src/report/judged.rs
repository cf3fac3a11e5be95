//! Cells of the family `shapes`, judged by what default settings come to beside other contenders.

use super::row::{ResultReport, RowReport};
use crate::contender::Contender;
use crate::workload::Cell;

/// Default settings should not be behind the best fixed length by more.
pub const FIXED_GOAL: f64 = 0.9;

/// A cell with figures, as ratios of default settings to others.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged<'r> {
    /// The row.
    pub row: &'r RowReport,
    /// Its place.
    pub cell: Cell,
    /// How many times better than kernel TCP.
    pub gain: f64,
    /// How many times better than the best fixed length of spinning, and which that is.
    pub fixed: Option<(f64, Contender)>,
    /// Processor time for the same work, as a part of kernel TCP's.
    pub cpu: Option<f64>,
    /// What 99 % of requests do not exceed, as a part of kernel TCP's.
    pub tail: Option<f64>,
}

impl<'r> Judged<'r> {
    /// None for rows of other families, and without figures of both.
    #[must_use]
    pub fn of(row: &'r RowReport) -> Option<Self> {
        let (cell, gain) = (row.cell?, row.result(Contender::Attach)?.gain?);
        let of_both = |figure: fn(&ResultReport) -> Option<f64>| {
            let of = |contender| row.result(contender).and_then(figure).filter(|n| *n > 0.0);
            Some(of(Contender::Attach)? / of(Contender::Tcp)?)
        };
        Some(Self {
            row,
            cell,
            gain,
            fixed: against_fixed(row),
            cpu: of_both(|result| result.cpu),
            tail: of_both(|result| result.latency.iter().find(|p| p.q == 0.99).map(|p| p.us)),
        })
    }

    /// Ends that were shunted, and all, if they were not the same.
    pub(super) fn partly(&self) -> Option<(u64, u64)> {
        let result = self.row.result(Contender::Attach)?;
        let (shunted, all) = (result.ends_shunted?, result.ends?);
        (shunted < all).then_some((shunted, all))
    }
}

/// How many times better default settings are than the best fixed length of spinning, and which
/// that is.
#[must_use]
pub fn against_fixed(row: &RowReport) -> Option<(f64, Contender)> {
    let own = row.median(Contender::Attach)?;
    let others = Contender::FIXED.into_iter();
    let gains = others.filter_map(|other| Some((row.gain(own, row.median(other)?)?, other)));
    gains.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// All cells with figures, the least favourable first.
#[must_use]
pub fn judged(rows: &[RowReport]) -> Vec<Judged<'_>> {
    let mut all: Vec<_> = rows.iter().filter_map(Judged::of).collect();
    all.sort_by(|a, b| a.gain.total_cmp(&b.gain));
    all
}
