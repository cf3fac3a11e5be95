//! What is measured: families of rows, and how each row is run.

mod connections;
mod containers;
mod crowds;
mod ipc;
mod iperf;
mod memory;
pub mod nginx;
mod nvme;
mod output;
mod programs;
mod redis;
mod row;
pub mod shapes;
mod sockperf;
mod zerocopy;

pub use row::{Better, Bound, Cell, Drive, Family, Outcome, Per, Point, Row};

/// All rows, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Row> {
    together().into_iter().chain(containers::rows(together())).collect()
}

/// Those whose programs are in one network.
fn together() -> Vec<Row> {
    let mut rows = ipc::rows();
    rows.extend(sockperf::rows());
    rows.extend(ipc::stream_rows());
    rows.extend(zerocopy::rows());
    rows.extend(iperf::rows());
    rows.extend(nginx::rows());
    rows.extend(redis::rows());
    rows.extend(programs::rows());
    rows.extend(nvme::rows());
    rows.extend(connections::rows());
    rows.extend(crowds::rows());
    rows.extend(memory::rows());
    rows.extend(shapes::rows());
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own() {
        let rows = all();
        let names: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().any(|row| row.quick));
        for row in &rows {
            assert!(!row.family.meaning.is_empty() && !row.title.is_empty(), "{}", row.id);
        }
    }

    #[test]
    fn bounds_are_limits() {
        for bound in all().iter().filter_map(|row| row.bound) {
            assert!(crate::limits::NAMES.contains(&bound.limit), "{}", bound.limit);
        }
    }
}
