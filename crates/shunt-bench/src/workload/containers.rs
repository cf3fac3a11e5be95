//! Rows whose programs are in containers of their own.

use super::row::{Family, Row};

static FAMILY: Family = Family {
    title: "Between containers",
    meaning: "Rows from above, but server and client are in network namespaces of their own, at a bridge of \
              a third one. So TCP goes over veth and bridge, and Shunt runs with an agent for the host. \
              Needs root. Where a connection carries one request Shunt leaves most connections to TCP.",
};

const ROWS: [&str; 5] =
    ["sockperf.ping-pong", "iperf3.1", "nginx.612.w1.c50", "nginx.close.w1", "redis.get.p1"];

/// Those of `rows` that are run so, too.
pub fn rows(rows: Vec<Row>) -> impl Iterator<Item = Row> {
    rows.into_iter().filter(|row| ROWS.contains(&row.id.as_str())).map(|row| Row {
        id: format!("bridge.{}", row.id),
        family: &FAMILY,
        title: format!("{}, between containers", row.title),
        point: None,
        bound: None,
        unix: false,
        quick: false,
        isolated: true,
        ..row
    })
}
