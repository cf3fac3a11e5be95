//! What `shunt agent` is told of agents of other hosts, and `shunt agent-key`.

use std::path::PathBuf;

use shunt_agent::HostConfig;
use shunt_rdma::{Config, Host, KeyFileError, config, key_file};

use crate::cli::{Agent, AgentKey};
use crate::output::{complain, print};

/// The key of an agent for the host.
const OF_HOST: &str = "/etc/shunt/rdma.key";
/// That of a user's, in the directory for configuration.
const OF_USER: &str = "shunt/rdma.key";

/// Where the key is, unless it is told.
fn usual(of_host: bool) -> Result<PathBuf, String> {
    if of_host {
        return Ok(OF_HOST.into());
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let of_home = || set("HOME").map(|home| PathBuf::from(home).join(".config"));
    let directory = set("XDG_CONFIG_HOME").map(PathBuf::from).or_else(of_home);
    let directory =
        directory.ok_or("there is no place for a key, as HOME is not set: name a file for it")?;
    Ok(directory.join(OF_USER))
}

/// Runs `shunt agent-key`.
pub fn print_key(args: &AgentKey) -> u8 {
    let file = args.file.clone().map_or_else(|| usual(args.host), Ok);
    let key = file.and_then(|file| {
        let key = key_file::load_or_make(&file).map_err(|why| why.to_string())?;
        key.public().map_err(|why| KeyFileError::Key(file, why).to_string())
    });
    match key {
        Ok(key) => print(&format!("{key}\n")),
        Err(why) => {
            complain(&why);
            1
        }
    }
}

/// What the agent is told: by the command line, else by the policy.
///
/// # Errors
/// What is wrong with it, for people.
pub fn wanted(args: &Agent, host: Option<&HostConfig>) -> Result<Option<Config>, String> {
    let section = host.map(|host| host.policy.rdma());
    let device = args.rdma.clone().or_else(|| section.and_then(|section| section.device.clone()));
    let Some(device) = device else {
        let is_told = !args.peer.is_empty()
            || args.rdma_listen.is_some()
            || args.rdma_key.is_some()
            || args.rdma_promote.is_some();
        return if is_told {
            Err("agents of other hosts are met where a device is named: add --rdma DEVICE"
                .to_owned())
        } else {
            Ok(None)
        };
    };
    let file = args.rdma_key.clone().or_else(|| section.and_then(|section| section.key.clone()));
    let file = file.map_or_else(|| usual(args.host), Ok)?;
    let key = key_file::load(&file).map_err(|why| why.to_string())?;
    let listen = args.rdma_listen.or_else(|| section.and_then(|section| section.listen));
    let listen = listen.unwrap_or_else(config::everywhere);
    // The agent knows what the policy says of it, also when that is read anew.
    let (peers, promote) = (args.peer.clone(), args.rdma_promote.unwrap_or_default());
    let (servers, host) = (None, Host::default());
    Ok(Some(Config { device, listen, key, peers, promote, servers, host }))
}
