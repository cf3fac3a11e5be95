//! The connection of the host's subcommands to a subsystem.

use std::fmt::Display;
use std::path::Path;

use shunt_nvme::auth::Secret;
use shunt_nvme_host::{Identity, Namespace, Options, Subsystem};

use crate::cli::nvme::{Host, Way};

/// Why it cannot be done, for people.
pub fn text(e: impl Display) -> String {
    e.to_string()
}

/// Who the host is.
pub fn identity(host: &Host) -> Result<Identity, String> {
    let mut identity = match &host.name {
        Some(name) => Identity::named(name.as_str()).map_err(text)?,
        None => Identity::of_machine(),
    };
    identity.key = host.key_file.as_deref().map(key).transpose()?;
    identity.controller_key = host.controller_key_file.as_deref().map(key).transpose()?;
    Ok(identity)
}

fn key(file: &Path) -> Result<Secret, String> {
    let found = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Secret::new(found.trim()).map_err(|e| format!("{}: {e}", file.display()))
}

/// The options of a way.
pub fn options(way: &Way) -> Result<Options, String> {
    let mut options = Options::new(way.to.clone(), way.subsystem.clone());
    options.identity = identity(&way.host)?;
    options.header_digest = way.header_digest;
    options.data_digest = way.data_digest;
    options.grant = !way.no_grant;
    Ok(options)
}

/// Connects.
pub fn connect(way: &Way) -> Result<Subsystem, String> {
    Subsystem::connect(options(way)?).map_err(text)
}

/// A namespace of a subsystem.
pub fn namespace(subsystem: &Subsystem, nsid: u32) -> Result<Namespace, String> {
    subsystem.namespace(nsid).ok_or_else(|| {
        let there: Vec<_> =
            subsystem.namespaces().iter().map(|namespace| namespace.nsid.to_string()).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        format!("there is no namespace {nsid}: those of the subsystem are {there}")
    })
}

/// A number of bytes in blocks.
pub fn blocks(what: &str, bytes: u64, namespace: &Namespace) -> Result<u64, String> {
    let block = u64::from(namespace.block_size);
    if bytes.is_multiple_of(block) {
        return Ok(bytes / block);
    }
    Err(format!("{what} of {bytes} bytes does not fit: the blocks have {block} bytes"))
}
