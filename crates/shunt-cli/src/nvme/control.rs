//! `shunt nvme control`.

use std::fmt::Write;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use shunt_nvme_target::control::report::{Report, Subsystem};
use shunt_nvme_target::control::{Request, ask};

use crate::cli::nvme::{Control, ControlCommand};
use crate::output::{complain, print};
use crate::table::{Table, count_of};

/// Runs the subcommand.
pub fn run(args: Control) -> u8 {
    let (request, json) = match args.command {
        ControlCommand::Reload => (Request::Reload, true),
        ControlCommand::Apply { file } => match configuration(&file) {
            Ok((name, text)) => (Request::Apply { name, text }, true),
            Err(e) => {
                complain(&format_args!("{} cannot be read: {e}", file.display()));
                return 1;
            }
        },
        ControlCommand::Show { json } => (Request::Show, json),
    };
    let answer = ask(&args.socket, &request).map_err(|e| e.to_string());
    let text = answer.and_then(|answer| match request {
        Request::Show if json => Ok(answer + "\n"),
        Request::Show => {
            serde_json::from_str(&answer).map(|report| text(&report)).map_err(|e| e.to_string())
        }
        Request::Reload | Request::Apply { .. } => Ok(answer),
    });
    match text {
        Ok(text) => print(&text),
        Err(why) => {
            complain(&why);
            1
        }
    }
}

fn configuration(file: &Path) -> io::Result<(PathBuf, String)> {
    if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        return Ok(("standard input".into(), text));
    }
    fs::read_to_string(file).map(|text| (file.to_owned(), text))
}

fn text(report: &Report) -> String {
    let listening: Vec<_> = report.listening.iter().map(ToString::to_string).collect();
    let connections = u64::try_from(report.connections).unwrap_or(u64::MAX);
    let mut text =
        format!("Listening at {}; {}\n", listening.join(", "), count_of(connections, "connection"));
    for subsystem in &report.subsystems {
        let _infallible = write!(text, "\n{}\n", subsystem.nqn);
        text += &of_subsystem(subsystem);
    }
    text
}

fn of_subsystem(subsystem: &Subsystem) -> String {
    let mut table = Table::without_heading(&[]);
    for namespace in &subsystem.namespaces {
        let path = namespace.path.as_ref().map(|path| format!(" {}", path.display()));
        let read_only = if namespace.read_only { ", read-only" } else { "" };
        table.row(vec![
            format!("namespace {}", namespace.nsid),
            format!("{} bytes in blocks of {}", namespace.bytes, namespace.block_size),
            format!("{}{}{read_only}", namespace.store, path.unwrap_or_default()),
            format!("ANA group {}", namespace.ana_group),
        ]);
    }
    for ana in &subsystem.ana {
        let (group, at) = (format!("ANA group {}", ana.group), format!("at {}", ana.at));
        table.row(vec![group, ana.state.clone(), at, String::new()]);
    }
    for host in subsystem.hosts.iter().flatten() {
        let key = if host.authenticates { "with a key" } else { "without a key" };
        let grant = if host.grant { "may map memory" } else { "" };
        table.row(vec!["host".to_owned(), host.nqn.clone(), key.to_owned(), grant.to_owned()]);
    }
    if subsystem.hosts.is_none() {
        let anybody = ["hosts", "any", "without a key", ""].map(str::to_owned);
        table.row(anybody.into());
    }
    for controller in &subsystem.controllers {
        let queues = u64::try_from(controller.io_queues).unwrap_or(u64::MAX);
        table.row(vec![
            format!("controller {}", controller.cntlid),
            controller.host.clone(),
            count_of(queues, "I/O queue"),
            String::new(),
        ]);
    }
    table.render()
}
