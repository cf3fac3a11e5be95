//! `shunt ivshmem-server`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use shunt_ivshmem::config::{Config, Limits, Start};
use shunt_ivshmem::control;
use shunt_ivshmem::report::Report;
use tracing_subscriber::EnvFilter;

use crate::cli::{IvshmemCommand, IvshmemServer, IvshmemStatus};
use crate::output::{complain, log, print};
use crate::table::{Table, count_of};

/// Runs the subcommand.
pub fn run(args: IvshmemServer) -> u8 {
    match args.command {
        Some(IvshmemCommand::Status(status)) => show(&args.socket, &status),
        None => serve(args),
    }
}

fn serve(args: IvshmemServer) -> u8 {
    // A closed standard error must not end the server.
    // SAFETY: changes this process's disposition of one signal, before any thread is made.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    log(filter);
    let limits = Limits::default();
    let config = Config {
        socket: args.socket,
        mode: args.mode,
        size: args.size,
        hugetlbfs: args.hugetlbfs,
        vectors: args.vectors,
        limits: Limits {
            peers: args.max_peers.unwrap_or(limits.peers),
            reuse_ids: args.reuse_ids,
            queue: args.queue.unwrap_or(limits.queue),
            stall: args.stall_timeout.map_or(limits.stall, Duration::from_secs),
            ..limits
        },
        start: if args.take_over { Start::TakeOver } else { Start::Fresh },
        fd_store: args.fd_store,
    };
    match shunt_ivshmem::serve(config) {
        Ok(()) => 0,
        Err(e) => {
            complain(&e);
            1
        }
    }
}

fn show(socket: &Path, args: &IvshmemStatus) -> u8 {
    let report = match control::status(socket) {
        Ok(report) => report,
        Err(e) => {
            complain(&e);
            return 1;
        }
    };
    if !args.json {
        return print(&text(&report, SystemTime::now()));
    }
    match serde_json::to_string_pretty(&report) {
        Ok(text) => print(&(text + "\n")),
        Err(e) => {
            complain(&e);
            1
        }
    }
}

/// A number of bytes with the largest unit that leaves no rest.
fn bytes(n: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let fits = units.iter().find(|(bits, _)| n > 0 && n.is_multiple_of(1 << bits));
    fits.map_or_else(|| n.to_string(), |(bits, unit)| format!("{}{unit}", n >> bits))
}

fn text(report: &Report, now: SystemTime) -> String {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let ago = |since: u64| format!("{} s", now.saturating_sub(since));
    let pages = if report.huge_pages { ", huge pages" } else { "" };
    let peers = report.peers.len();
    let mut table = Table::without_heading(&[]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    row("socket", report.socket.clone());
    row("server", format!("pid {}, version {}", report.pid, report.version));
    row("memory", format!("{}{pages}, for {}", bytes(report.size), ago(report.since)));
    row("vectors", report.vectors.to_string());
    row("peers", format!("{peers} of at most {}", report.peers_max));
    row("IDs left", report.ids_left.to_string());
    let totals = &report.totals;
    row("accepted", totals.accepted.to_string());
    row("left", totals.left.to_string());
    for (what, count, why) in [
        ("dropped", totals.dropped.sent, "had sent something"),
        ("dropped", totals.dropped.overflow, "had too many messages waiting"),
        ("dropped", totals.dropped.stalled, "had taken none for too long"),
        ("dropped", totals.dropped.failed, "had a connection that failed"),
        ("dropped", totals.dropped.incomplete, "did not survive a restart"),
        ("refused", totals.refused.full, "were too many"),
        ("refused", totals.refused.ids, "found no free ID"),
        ("refused", totals.refused.resources, "found no descriptors or memory"),
    ] {
        if count > 0 {
            row(what, format!("{} that {why}", count_of(count, "client")));
        }
    }
    let mut text = table.render();
    if peers > 0 {
        let heading = ["ID", "Pid", "Uid", "Connected", "Queued", "Messages", "Bytes"];
        let mut table = Table::new(&heading, &[true; 7]);
        for peer in &report.peers {
            table.row(vec![
                peer.id.to_string(),
                peer.pid.to_string(),
                peer.uid.to_string(),
                ago(peer.since),
                peer.queued.to_string(),
                peer.messages.to_string(),
                peer.bytes.to_string(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_ivshmem::reason::Totals;
    use shunt_ivshmem::report::PeerReport;

    #[test]
    fn what_is_shown() {
        let peer =
            PeerReport { id: 3, pid: 77, uid: 107, since: 90, queued: 2, messages: 9, bytes: 72 };
        let mut totals = Totals { accepted: 5, left: 3, ..Totals::default() };
        totals.dropped.stalled = 1;
        let report = Report {
            version: "0.1.0".to_owned(),
            pid: 1,
            socket: "/run/x".to_owned(),
            size: 256 << 20,
            huge_pages: true,
            vectors: 2,
            since: 40,
            peers_max: 1000,
            ids_left: 65530,
            peers: vec![peer],
            totals,
        };
        let text = text(&report, SystemTime::UNIX_EPOCH + Duration::from_secs(100));
        assert!(text.contains("memory    256M, huge pages, for 60 s\n"), "{text}");
        assert!(text.contains("peers     1 of at most 1000\n"), "{text}");
        assert!(text.contains("dropped   1 client that had taken none"), "{text}");
        assert!(!text.contains("refused"), "{text}");
        assert!(text.ends_with(" 3   77  107       10 s       2         9     72\n"), "{text}");
        assert_eq!([bytes(4096), bytes(3 << 19), bytes(4097)], ["4K", "1536K", "4097"]);
    }
}
