//! What a host is told: of changes, and of other subsystems.

use std::io;

use serde_json::json;
use shunt_functional::nvme::{Host, Way};
use shunt_nvme::host::Transfer;
use shunt_nvme::wire::discovery::{Entry, Record};
use shunt_nvme::wire::identify::EVENT_NAMESPACE_ATTRIBUTE;
use shunt_nvme::wire::log::{GetLogPage, lid};
use shunt_nvme::wire::{Sqe, feature, nqn, opcode};
use zerocopy::FromBytes;

/// Waits for an event, and says what the namespace is then.
pub fn watch(host: &mut Host) -> io::Result<()> {
    let mut set = Sqe::new(opcode::admin::SET_FEATURES, 0);
    set.cdw10 = u32::from(feature::fid::ASYNC_EVENT).into();
    set.cdw11 = EVENT_NAMESPACE_ATTRIBUTE.into();
    host.admin(&set, 0)?;
    let disk = host.disk(1)?;
    let request = Sqe::new(opcode::admin::ASYNC_EVENT, 0);
    host.admin.submit(&request, Transfer::None, Vec::new())?;
    println!("{}", json!({ "watching": disk.blocks }));
    let event = host.admin.wait()?.completion.cqe.result.get();
    let changed = host.admin(&GetLogPage::sqe(lid::CHANGED_NAMESPACES, u32::MAX, 0, 4096), 4096)?.1;
    let first = u32::from_le_bytes([changed[0], changed[1], changed[2], changed[3]]);
    let disk = host.disk(1)?;
    println!("{}", json!({ "event": event, "changed": first, "blocks": disk.blocks }));
    Ok(())
}

/// Reads the discovery log.
pub fn discover(way: &Way) -> io::Result<()> {
    let way = Way { nqn: nqn::DISCOVERY.to_owned(), depth: 32, ..way.clone() };
    let mut host = Host::connect(&way)?;
    let (_, log) = host.admin(&GetLogPage::sqe(lid::DISCOVERY, 0, 0, 16384), 16384)?;
    let count = usize::try_from(u64::from_le_bytes(log[8..16].try_into().expect("8 bytes")))
        .map_err(io::Error::other)?;
    let records = log[1024..].chunks_exact(1024).take(count).filter_map(|bytes| {
        let record = Record::of(&Entry::read_from_bytes(bytes).ok()?)?;
        Some(json!({ "nqn": record.subnqn.as_str(), "address": record.address.to_string() }))
    });
    println!("{}", json!({ "records": records.collect::<Vec<_>>() }));
    Ok(())
}
