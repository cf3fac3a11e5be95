//! `shunt machines`.

use serde_json::Value;
use shunt_wire::agent::Request;

use crate::cli::Format;
use crate::directory::Directory;
use crate::output::{complain, print};
use crate::table::Table;

/// Runs the subcommand.
pub fn run(args: &Format) -> u8 {
    let status = match Directory::open().and_then(|agent| agent.report(&Request::Status)) {
        Ok(status) => status,
        Err(e) => {
            complain(&e);
            return 1;
        }
    };
    let (shared, rdma) = (&status["ivshmem"], &status["rdma"]);
    if args.json {
        return print(&format!("{:#}\n", if rdma.is_null() { shared } else { rdma }));
    }
    if !rdma.is_null() {
        return print(&peers(rdma).render());
    }
    if shared.is_null() {
        complain(
            &"this agent shares no memory with other machines; start it by `shunt agent --ivshmem \
              DEVICE`, or set SHUNT_IVSHMEM",
        );
        return 1;
    }
    print(&table(shared).render())
}

/// Agents of other hosts.
fn peers(rdma: &Value) -> Table {
    let mut table = Table::new(
        &["Host", "State", "Name", "Listeners", "Links", "Connections", "Reason"],
        &[false, false, false, true, true, true, false],
    );
    for peer in rdma["peers"].as_array().into_iter().flatten() {
        let text = |name: &str| peer[name].as_str().unwrap_or("-").to_owned();
        let listeners = peer["listeners"].as_array().map_or(0, Vec::len).to_string();
        let links = peer["link_groups"].as_u64().unwrap_or(0).to_string();
        let connections = peer["connections"].as_u64().unwrap_or(0).to_string();
        let reasons = ["reason", "promotion_reason", "link_group_reason"];
        let reason = reasons.iter().find_map(|name| peer[*name].as_str());
        let reason = reason.unwrap_or("-").to_owned();
        let (host, state, name) = (text("host"), text("state"), text("name"));
        table.row(vec![host, state, name, listeners, links, connections, reason]);
    }
    // Their links are shared, whatever the server's address.
    for server in rdma["servers"].as_array().into_iter().flatten() {
        let text = |name: &str| server[name].as_str().unwrap_or("-").to_owned();
        let (links, connections) = ("-".to_owned(), server["connections"].to_string());
        let (state, name, listeners) = ("smc-r".to_owned(), "-".to_owned(), "1".to_owned());
        table.row(vec![text("at"), state, name, listeners, links, connections, text("reason")]);
    }
    table
}

fn table(shared: &Value) -> Table {
    let mut table =
        Table::new(&["Member", "Peer", "Listeners", "Note"], &[true, true, true, false]);
    for member in shared["members"].as_array().into_iter().flatten() {
        let number = |name: &str| member[name].as_u64().map_or("-".to_owned(), |n| n.to_string());
        let note = if member["self"] == true { "this machine" } else { "" };
        table.row(vec![number("member"), number("peer"), number("listeners"), note.to_owned()]);
    }
    table
}
