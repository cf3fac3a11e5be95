//! What the policy file of an agent for the host says of agents of other hosts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use shunt_rdma::device::Wanted;
use shunt_rdma::{PeerName, Promote};

/// The section `[rdma]`. What the command line names goes before it; peers are those of both.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RdmaSection {
    /// The device.
    #[serde(deserialize_with = "parsed")]
    pub device: Option<Wanted>,
    /// Where peers are heard.
    pub listen: Option<SocketAddr>,
    /// The file with this agent's key.
    pub key: Option<PathBuf>,
    /// When connections are promoted.
    #[serde(deserialize_with = "parsed")]
    pub promote: Option<Promote>,
    /// The peers.
    peer: Vec<Entry>,
}

/// One `[[rdma.peer]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry(PeerName);

/// It, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    host: String,
    key: String,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Written { host, key } = Written::deserialize(from)?;
        let of_peer = |why: &dyn std::fmt::Display| D::Error::custom(format!("peer {host}: {why}"));
        let key = key.parse().map_err(|why| of_peer(&why))?;
        PeerName::new(&host, key).map(Self).map_err(|why| of_peer(&why))
    }
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

impl RdmaSection {
    /// The peers.
    pub fn peers(&self) -> impl Iterator<Item = &PeerName> {
        self.peer.iter().map(|entry| &entry.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

    fn read(text: &str) -> Result<RdmaSection, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_section_as_people_write_it() {
        let section = read(&format!(
            "device = 'mlx5_0'\nlisten = '[::]:7700'\nkey = '/etc/key'\npromote = 'always'\n\
             [[peer]]\nhost = 'db1'\nkey = '{KEY}'\n[[peer]]\nhost = '[fd00::1]:7700'\nkey = '{KEY}'"
        ));
        let section = section.unwrap();
        assert_eq!(section.device, Some("mlx5_0".parse().unwrap()));
        assert_eq!(section.listen.map(|at| at.port()), Some(7700));
        assert_eq!(section.promote, Some(Promote::Always));
        let peers: Vec<_> = section.peers().map(ToString::to_string).collect();
        assert_eq!(peers, ["db1", "[fd00::1]:7700"]);
        assert_eq!(read("").unwrap(), RdmaSection::default());
    }

    #[test]
    fn mistakes_are_told() {
        for (wrong, why) in [
            ("device = '../x'", "as `rdma link` shows them"),
            ("listen = 'x'", "socket address"),
            ("promote = 'x'", "it must be `faster` or `always`"),
            ("[[peer]]\nhost = 'a'", "missing field `key`"),
            ("[[peer]]\nhost = 'db1'\nkey = 'x'", "peer db1: a key is 44 characters"),
            ("[[peer]]\nhost = 'a'\nkey = 'secret:x'", "secret key"),
            ("unknown = 1", "unknown field"),
        ] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
        let no_host = format!("[[peer]]\nhost = ''\nkey = '{KEY}'");
        assert!(read(&no_host).unwrap_err().contains("no host"));
    }
}
