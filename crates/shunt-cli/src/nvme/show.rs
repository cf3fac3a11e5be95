//! `shunt nvme discover`, `shunt nvme list`.

use serde_json::{Value, json};
use shunt_nvme::wire::Nqn;
use shunt_nvme::wire::discovery::{Record, SubsystemType};
use shunt_nvme::wire::log::AnaState;
use shunt_nvme_host::{Namespace, Options, PathStatus};

use super::way::{connect, identity, text};
use crate::cli::nvme::{Discover, List};
use crate::output::{complain, print};
use crate::table::Table;

/// Runs `shunt nvme discover`.
pub fn discover(args: &Discover) -> u8 {
    finish(found(args), args.json, |found| {
        let mut table = Table::new(&["Kind", "Address:Port", "Subsystem"], &[]);
        for record in found.as_array().into_iter().flatten() {
            table.row(["kind", "address", "subsystem"].map(|name| cell(&record[name])).to_vec());
        }
        table.render()
    })
}

fn found(args: &Discover) -> Result<Value, String> {
    let mut options = Options::new(args.to.clone(), Nqn::discovery());
    options.identity = identity(&args.host)?;
    let records = shunt_nvme_host::discover(&options).map_err(text)?;
    let of = |record: &Record| {
        let kind = match record.kind {
            SubsystemType::Referral => "referral",
            SubsystemType::Nvm => "subsystem",
            SubsystemType::CurrentDiscovery => "discovery",
        };
        let (address, subsystem) = (record.address.to_string(), record.subnqn.as_str());
        json!({ "kind": kind, "address": address, "subsystem": subsystem })
    };
    Ok(records.iter().map(of).collect())
}

/// Runs `shunt nvme list`.
pub fn list(args: &List) -> u8 {
    finish(listed(args), args.json, |listed| {
        let mut table =
            Table::new(&["Namespace", "Size", "Block", "Access", "UUID"], &[true, true, true]);
        for disk in listed["namespaces"].as_array().into_iter().flatten() {
            let access = if disk["read_only"] == true { "read" } else { "read, write" };
            table.row(vec![
                cell(&disk["number"]),
                cell(&disk["bytes"]),
                cell(&disk["block_size"]),
                access.to_owned(),
                cell(&disk["uuid"]),
            ]);
        }
        let mut paths = Table::new(&["Path", "State", "Access", "Model", "Serial", "Error"], &[]);
        for path in listed["paths"].as_array().into_iter().flatten() {
            let names = ["address", "state", "access", "model", "serial", "error"];
            paths.row(names.map(|name| cell(&path[name])).to_vec());
        }
        format!("{}\n{}", table.render(), paths.render())
    })
}

fn listed(args: &List) -> Result<Value, String> {
    let subsystem = connect(&args.way)?;
    let namespaces: Vec<_> = subsystem.namespaces().iter().map(namespace).collect();
    let paths: Vec<_> = subsystem.paths().iter().map(path).collect();
    let report = json!({
        "subsystem": args.way.subsystem.as_str(),
        "namespaces": namespaces,
        "paths": paths,
    });
    subsystem.close();
    Ok(report)
}

fn namespace(disk: &Namespace) -> Value {
    json!({
        "number": disk.nsid,
        "bytes": disk.len(),
        "block_size": disk.block_size,
        "read_only": disk.read_only,
        "ana_group": disk.ana_group,
        "uuid": disk.uuid.map(uuid),
    })
}

fn path(path: &PathStatus) -> Value {
    let state = |code: u8| match AnaState::from_code(code) {
        Some(AnaState::Optimized) => "optimized",
        Some(AnaState::NonOptimized) => "non-optimized",
        Some(AnaState::Inaccessible) => "inaccessible",
        Some(AnaState::PersistentLoss) => "lost",
        Some(AnaState::Change) => "changing",
        None => "unknown",
    };
    let mut states: Vec<_> = path.ana.iter().map(|group| state(group.state)).collect();
    states.dedup();
    let access = (!states.is_empty()).then(|| states.join(", "));
    let attributes = path.attributes.as_ref();
    json!({
        "address": path.address.to_string(),
        "state": if path.is_up { "up" } else { "down" },
        "access": access,
        "model": attributes.map(|known| known.model.as_str()),
        "serial": attributes.map(|known| known.serial.as_str()),
        "error": path.error,
    })
}

fn uuid(id: [u8; 16]) -> String {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Prints a report, or says why there is none.
fn finish(report: Result<Value, String>, json: bool, table: impl Fn(&Value) -> String) -> u8 {
    match report {
        Ok(report) if json => print(&format!("{report:#}\n")),
        Ok(report) => print(&table(&report)),
        Err(why) => {
            complain(&why);
            1
        }
    }
}
