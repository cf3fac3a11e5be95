//! Streams and exchanges without copies: of the sender's, and of both ends.

use super::ipc::{PAIRS_CORES, outcome, size_of_text, streams};
use super::row::{Better, Family, Outcome, Row};
use crate::contender::Contender;
use crate::failure::Result;
use crate::rig::{Budget, Session};

static SENDING: Family = Family {
    title: "Sending without copies",
    meaning: "One connection, one direction, from 16 buffers in turn, by plain sends and with MSG_ZEROCOPY, each buffer used \
              again when the error queue says that it may be. Under Shunt the buffers are registered memory (shunt_alloc), which \
              the receiver copies from, or private memory, which is pinned for it where that pays; over kernel TCP the kernel copies \
              on loopback all the same.",
};

static BORROWING: Family = Family {
    title: "Looking at bytes in place",
    meaning: "The same with a receiver that looks at the bytes where they are (shunt_recv_borrow) and does not touch them; and \
              with receivers that add all bytes up, after recv or in place. Over kernel TCP the bytes are copied, by a look (MSG_PEEK), \
              and passed over.",
};

static IN_PLACE: Family = Family {
    title: "One message without copies in flight",
    meaning: "Request and response of the same size, granted by the sender and looked at in place by the receiver, which touches \
              none of the bytes. The rate is the inverse of the round trip; one way takes half of that.",
};

/// Buffers that are sent from in turn: no fewer than a connection takes at once.
const BUFFERS: &str = "16";

const SIZES: [usize; 6] = [4096, 16_384, 65_536, 262_144, 1 << 20, 16 << 20];

/// Sizes of which two streams run at once, too.
const SIZES_OF_TWO: [usize; 2] = [65_536, 1 << 20];

/// Messages that are looked at in place, one in flight.
const IN_PLACE_SIZES: [usize; 3] = [65_536, 262_144, 1 << 20];

/// Arguments of the sender and of the sink.
type Ends = (&'static [&'static str], &'static [&'static str]);

const PLAIN: &[&str] = &["--buffers", BUFFERS];
const GRANTED: &[&str] = &["--buffers", BUFFERS, "--zerocopy"];
const PRIVATE: &[&str] = &["--buffers", BUFFERS, "--zerocopy-private"];

/// Name, title, and arguments of the streams.
const STREAMS: [(&str, &Family, &str, Ends); 6] = [
    ("plain", &SENDING, "plain sends", (PLAIN, &[])),
    ("zerocopy", &SENDING, "MSG_ZEROCOPY", (GRANTED, &[])),
    ("private", &SENDING, "MSG_ZEROCOPY from private memory", (PRIVATE, &[])),
    ("borrow", &BORROWING, "MSG_ZEROCOPY, looked at in place,", (GRANTED, &["--how", "borrow"])),
    ("sum", &BORROWING, "plain sends, added up after recv,", (PLAIN, &["--sum"])),
    (
        "borrow-sum",
        &BORROWING,
        "MSG_ZEROCOPY, added up in place,",
        (GRANTED, &["--how", "borrow", "--sum"]),
    ),
];

/// Requests and answers without copies.
fn in_place(session: &Session<'_>, budget: Budget, size: usize) -> Result<Outcome> {
    let (at, size) = (session.endpoint()?, size.to_string());
    let mut command = session.load("serve-in-place");
    command.args(["--at", &at.to_string(), "--size", &size]);
    let _server = session.serve(command, &at)?;
    let mut command = session.load("ping-in-place");
    command.args(["--to", &at.to_string(), "--seconds", &budget.seconds.to_string()]);
    command.args(["--size", &size]);
    let (seen, cost) = session.drive(vec![command], budget)?;
    Ok(outcome(&seen, cost))
}

/// All of them.
pub fn rows() -> Vec<Row> {
    let single = SIZES.into_iter().map(|size| (1, size));
    let loads = single.chain(SIZES_OF_TWO.map(|size| (2, size)));
    let rows = loads.flat_map(|load| STREAMS.map(|stream| (load, stream)));
    let rows = rows.map(|((pairs, size), (name, family, how, ends))| {
        let drive = move |session: &Session<'_>, budget: Budget| {
            if pairs > 1 {
                session.share_cores(PAIRS_CORES);
            }
            streams(session, budget, (pairs, size), ends)
        };
        let size_text = size_of_text(size);
        let (id, title) = match pairs {
            1 => (format!("{name}.{size}"), format!("stream, {how} of {size_text}")),
            _ => {
                let cores = format!("{pairs} streams on {PAIRS_CORES} cores");
                (format!("{name}.{size}.p{pairs}"), format!("{cores}, {how} of {size_text}"))
            }
        };
        Row::new(id, family, title, drive)
            .unit("MB/s", Better::Higher)
            .contenders(&Contender::BULK)
            .per_gigabyte()
            .quick(pairs == 1 && matches!(name, "zerocopy" | "borrow") && size == 65_536)
    });
    let exchanges = IN_PLACE_SIZES.into_iter().map(|size| {
        let drive = move |session: &Session<'_>, budget: Budget| in_place(session, budget, size);
        let title = format!("request/response in place, {}", size_of_text(size));
        Row::new(format!("lent.{size}"), &IN_PLACE, title, drive).unit("msg/s", Better::Higher)
    });
    rows.chain(exchanges).collect()
}
