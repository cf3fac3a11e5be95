//! What `shunt-gen` prints about each connection, and how two ends are compared.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// One end of one connection, as one line of JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Name of the stream that this end sent.
    pub sent_label: u64,
    /// Its length.
    pub sent_bytes: u64,
    /// XXH3 of its bytes.
    pub sent_hash: u64,
    /// Name of the stream that this end received; `None` when it was shorter than a label.
    pub received_label: Option<u64>,
    /// Its length.
    pub received_bytes: u64,
    /// XXH3 of its bytes.
    pub received_hash: u64,
}

/// The first line that a server prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listening {
    /// Its port.
    pub port: u16,
}

/// What `shunt-gen --survive` says, beside the records, about a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// It was made or accepted.
    Begun,
    /// The other end is gone.
    Lost {
        /// When this end knew it: nanoseconds of [`crate::sys::monotonic`].
        at: u64,
        /// What the call said that told it.
        how: String,
    },
}

/// What `shunt-gen --totals` prints at its end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Connections that were carried to their end.
    pub connections: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received, each of them as expected.
    pub received_bytes: u64,
}

/// Compares the records of both ends, which print them independently of each other.
///
/// # Errors
/// A sentence on the first difference.
pub fn compare(clients: &[Record], servers: &[Record]) -> Result<(), String> {
    if clients.len() != servers.len() {
        return Err(format!(
            "{} connections at the clients, {} at the servers",
            clients.len(),
            servers.len()
        ));
    }
    let by_label: HashMap<u64, &Record> =
        servers.iter().filter_map(|r| Some((r.received_label?, r))).collect();
    for client in clients {
        let Some(server) = by_label.get(&client.sent_label) else {
            return Err(format!("no server received stream {:#x}", client.sent_label));
        };
        let there = (client.sent_bytes, client.sent_hash);
        if there != (server.received_bytes, server.received_hash) {
            return Err(format!("client to server: sent {client:?}, received {server:?}"));
        }
        // A client that leaves early has not read anything.
        let back = (client.received_bytes, client.received_hash);
        if back != (server.sent_bytes, server.sent_hash) {
            return Err(format!("server to client: sent {server:?}, received {client:?}"));
        }
        if client.received_bytes > 0 && client.received_label != Some(server.sent_label) {
            return Err(format!("crossed connections: {client:?}, {server:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Record, Record) {
        let client = Record {
            sent_label: 1,
            sent_bytes: 10,
            sent_hash: 100,
            received_label: Some(2),
            received_bytes: 20,
            received_hash: 200,
        };
        let server = Record {
            sent_label: 2,
            sent_bytes: 20,
            sent_hash: 200,
            received_label: Some(1),
            received_bytes: 10,
            received_hash: 100,
        };
        (client, server)
    }

    #[test]
    fn equal_ends_agree() {
        let (client, server) = ends();
        assert_eq!(compare(&[client], &[server]), Ok(()));
    }

    #[test]
    fn a_wrong_hash_is_a_difference() {
        let (client, mut server) = ends();
        server.received_hash += 1;
        assert!(compare(&[client], &[server]).is_err());
    }

    #[test]
    fn a_lost_connection_is_a_difference() {
        let (client, server) = ends();
        assert!(compare(&[client.clone(), client], &[server]).is_err());
    }
}
