//! Waiting for what a plane reports.

use std::time::{Duration, Instant};

use shunt_rdma::Plane;
use shunt_rdma::report::Report;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a report is as wanted.
pub fn until(plane: &Plane, wanted: impl Fn(&Report) -> bool) -> Report {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let report = plane.report().unwrap();
        if wanted(&report) {
            return report;
        }
        assert!(Instant::now() < deadline, "{report:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
