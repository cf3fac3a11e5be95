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
    let shared = &status["ivshmem"];
    if args.json {
        return print(&format!("{shared:#}\n"));
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
