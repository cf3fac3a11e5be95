//! What nbdkit's command line says.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use shunt_nvme::auth::Secret;
use shunt_nvme::wire::Nqn;
use shunt_nvme_host::{Identity, Options};

/// Shown by `nbdkit --help`.
pub const HELP: &str = "target=ADDRESS:PORT   (required) Where the target is; several are paths to it.
nqn=NQN               The subsystem. Default: nqn.2024-01.org.shunt:target.
nsid=NUMBER           The namespace. Default: 1.
host-nqn=NQN          This host's name. Default: that in /etc/nvme/hostnqn.
key-file=FILE         This host's key for DH-HMAC-CHAP.
give-up=SECONDS       Fail requests that have waited so long for the target. Default: they wait for ever.";

const SUBSYSTEM: &str = "nqn.2024-01.org.shunt:target";

/// What was said.
#[derive(Debug)]
pub struct Config {
    targets: Vec<SocketAddr>,
    nqn: Option<String>,
    nsid: Option<u32>,
    host_nqn: Option<String>,
    key_file: Option<PathBuf>,
    give_up: Option<u64>,
}

impl Config {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            targets: Vec::new(),
            nqn: None,
            nsid: None,
            host_nqn: None,
            key_file: None,
            give_up: None,
        }
    }

    /// One key and its value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |e: &dyn std::fmt::Display| format!("{key}={value}: {e}");
        match key {
            "target" => self.targets.push(value.parse().map_err(|e| wrong(&e))?),
            "nqn" => self.nqn = Some(value.to_owned()),
            "nsid" => self.nsid = Some(value.parse().map_err(|e| wrong(&e))?),
            "host-nqn" => self.host_nqn = Some(value.to_owned()),
            "key-file" => self.key_file = Some(value.into()),
            "give-up" => self.give_up = Some(value.parse().map_err(|e| wrong(&e))?),
            _ => {
                return Err(format!("{key}: there is no such parameter; nbdkit --help lists them"));
            }
        }
        Ok(())
    }

    /// How to reach the target, and which namespace it is.
    pub fn options(&self) -> Result<(Options, u32), String> {
        if self.targets.is_empty() {
            return Err("target=ADDRESS:PORT is missing".to_owned());
        }
        let name = self.nqn.as_deref().unwrap_or(SUBSYSTEM);
        let nqn = Nqn::new(name).map_err(|e| format!("nqn={name}: {e}"))?;
        let mut options = Options::new(self.targets.clone(), nqn);
        if let Some(name) = &self.host_nqn {
            options.identity =
                Identity::named(name).map_err(|e| format!("host-nqn={name}: {e}"))?;
        }
        if let Some(file) = &self.key_file {
            let failed = |e: &dyn std::fmt::Display| format!("key-file={}: {e}", file.display());
            let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
            options.identity.key = Some(Secret::new(text.trim()).map_err(|e| failed(&e))?);
        }
        options.grant = false;
        options.give_up = self.give_up.map(Duration::from_secs);
        Ok((options, self.nsid.unwrap_or(1)))
    }
}
