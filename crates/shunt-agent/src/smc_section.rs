//! What the policy file of an agent for the host says of servers that speak the kernel's SMC-R.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use shunt_rdma::Reach;
use shunt_shm::ivshmem::LISTENERS;
use shunt_smc::wire::Eid;

/// Most EIDs of a proposal (`smc_clc.h`: `SMC_CLC_MAX_UEID`).
const EIDS: usize = 8;

/// The section `[smc]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SmcSection {
    /// Servers, one by one or those of a network: programs of this host that connect to one of them talk to it by SMC-R, where it agrees.
    #[serde(deserialize_with = "servers")]
    pub server: Vec<Reach>,
    /// Groups in which this host is, of which a server has one, too.
    #[serde(deserialize_with = "eids")]
    pub eid: Vec<Eid>,
}

fn servers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Reach>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    if texts.len() > LISTENERS {
        return Err(D::Error::custom(format!("{LISTENERS} servers and networks at most")));
    }
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

fn eids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Eid>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    if texts.len() > EIDS {
        return Err(D::Error::custom(format!("a host proposes {EIDS} EIDs at most")));
    }
    let eid = |text: &String| {
        Eid::new(text).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is no EID: up to 32 capital letters, digits, dots and hyphens, as `smcr ueid show` prints them"
            ))
        })
    };
    texts.iter().map(eid).collect()
}

impl SmcSection {
    /// What is missing in it; `None`: nothing.
    #[must_use]
    pub fn lacks(&self) -> Option<&'static str> {
        match (self.server.is_empty(), self.eid.is_empty()) {
            (false, true) => Some("an EID: servers agree to none without one in common"),
            (true, false) => Some("servers: connections to those that are named go by SMC-R"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SmcSection, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_section_as_people_write_it() {
        let section =
            read("server = ['10.0.0.2:6379', '10.1.0.0/16:*']\neid = ['SHUNT', 'A-1']").unwrap();
        assert_eq!(
            section.server,
            ["10.0.0.2:6379", "10.1.0.0/16:*"].map(|at| at.parse().unwrap())
        );
        assert_eq!(section.eid, ["SHUNT", "A-1"].map(|eid| Eid::new(eid).unwrap()));
        assert_eq!(section.lacks(), None);
        assert_eq!(read("").unwrap(), SmcSection::default());
        assert_eq!(SmcSection::default().lacks(), None);
    }

    #[test]
    fn mistakes_are_told() {
        for (wrong, why) in [
            ("server = ['10.0.0.2']", "`10.0.0.2` names no server"),
            ("eid = ['shunt']", "`shunt` is no EID"),
            ("eid = ['A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I']", "8 EIDs at most"),
            ("port = 1", "unknown field"),
        ] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
        assert!(read("server = ['10.0.0.2:1']").unwrap().lacks().unwrap().contains("EID"));
        assert!(read("eid = ['A']").unwrap().lacks().unwrap().contains("servers"));
    }
}
