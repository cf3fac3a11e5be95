//! An emulated disk on a target: `shunt nvme disk`, and a guest without a processor.

use crate::failure::{Failure, Result};
use crate::rig::{Budget, Session};
use crate::workload::ipc::size_of_text;
use crate::workload::nvme::common::{DEPTH, NO_SOCKMAP};
use crate::workload::row::{Family, Outcome, Row};

static DISK: Family = Family {
    title: "A virtual machine's disk over NVMe/TCP",
    meaning: "shunt nvme disk on one processor, and shunt nvme target with a store that keeps nothing on another one. A \
              vhost-user front end, which runs on either and never under Shunt, writes as a guest would that does nothing \
              else. Granted, the target may read the guest's pages in place; without, they are copied. \
              nvme.core.granted.write has the initiator alone at the same place.",
};

/// Bytes of writes.
const SIZES: [usize; 2] = [4096, 65_536];

fn run(session: &Session<'_>, budget: Budget, size: usize, grant: bool) -> Result<Outcome> {
    let at = session.endpoint()?;
    let place = format!("{}:{}", at.ip(), at.port());
    session.take_core(0);
    let mut command = session.own();
    command.args(["nvme", "target", "--null", "4GiB", "--listen", &place]);
    let _target = session.serve(command, &at)?;
    session.take_core(1);
    let socket = session.rig().new_path("disk");
    let mut command = session.own();
    command.args(["nvme", "disk", "--target", &place, "--queues", "1", "--socket"]).arg(&socket);
    if grant {
        command.arg("--grant");
    }
    // It listens under another name, and then gives the socket this one.
    let disk = session.start(command)?;
    disk.wait_until(budget.patience(), |_| socket.exists())?;
    session.share_cores(2);
    let mut command = session.load_apart("guest");
    command.args(["--size", &size.to_string(), "--depth", &DEPTH.to_string()]);
    command.args(["--seconds", &budget.seconds.to_string(), "--socket"]).arg(&socket);
    let (seen, cost) = session.drive(vec![command], budget)?;
    let seen = seen.into_iter().next().ok_or_else(|| Failure::failed("no guest"))?;
    Ok(Outcome {
        value: seen.rate(),
        operations: seen.operations as f64,
        bytes: seen.bytes as f64,
        latency: seen.latency,
        cost,
    })
}

/// All of them.
pub(super) fn rows() -> Vec<Row> {
    let row = |(size, grant): (usize, bool)| {
        let (name, how) =
            if grant { ("granted", "granted") } else { ("ungranted", "without grants") };
        let title = format!("Guest's writes of {}, depth {DEPTH}, {how}", size_of_text(size));
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, size, grant);
        Row::new(format!("nvme.disk.{name}.write.{size}"), &DISK, title, drive)
            .no_sockmap(NO_SOCKMAP)
    };
    SIZES.iter().flat_map(|size| [(*size, true), (*size, false)]).map(row).collect()
}
