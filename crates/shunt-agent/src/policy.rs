//! The policy file of an agent for the host: it says which programs may be shunted with each other.
//!
//! The agent asks the rules in order. The first that matches a connection decides; `default`
//! decides on the rest. Denied connections stay on TCP. docs/containers.md and shunt-policy(5)
//! describe the file.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, de};
use shunt_shm::registry::{NETWORKS, Network};

use crate::rdma_section::RdmaSection;
use crate::smc_section::SmcSection;

/// Networks to which connections are offered, unless the file says otherwise: this host's own, and those that are for
/// private use, as containers' are (RFC 1918, RFC 6598, RFC 3927, RFC 4193, RFC 4291).
const PRIVATE: [&str; 9] = [
    "127.0.0.0/8",
    "::1/128",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "fc00::/7",
    "fe80::/10",
];

/// What a rule says of connections that match it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// They may be shunted.
    #[default]
    Allow,
    /// They stay on TCP.
    Deny,
}

/// The policy.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Of connections that no rule speaks of.
    default: Verdict,
    /// Connections to addresses in these networks may lead to other containers or users of this host.
    networks: Vec<Cidr>,
    /// In order.
    rule: Vec<Rule>,
    /// Agents of other hosts.
    rdma: RdmaSection,
    /// Servers that speak the kernel's SMC-R.
    smc: SmcSection,
}

impl Default for Policy {
    fn default() -> Self {
        let networks = PRIVATE.iter().filter_map(|text| text.parse().ok()).collect();
        Self {
            default: Verdict::default(),
            networks,
            rule: Vec::new(),
            rdma: RdmaSection::default(),
            smc: SmcSection::default(),
        }
    }
}

/// One rule. What it does not name matches everything.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    verdict: Verdict,
    #[serde(default)]
    client: Side,
    #[serde(default)]
    server: Side,
    /// Of the acceptor's own address, behind whatever was rewritten.
    #[serde(default)]
    ports: Vec<Ports>,
    /// Whether both ends are of one user, in one user and pid namespace.
    #[serde(default)]
    same_party: Option<bool>,
    /// Whether both ends are in one network namespace.
    #[serde(default)]
    same_network: Option<bool>,
}

/// What a rule says of one end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Side {
    /// User ids, as the host counts them.
    uids: Vec<Span>,
    /// Control groups, as paths from the hierarchy's root: this one or any below it.
    cgroups: Vec<String>,
    /// Network namespaces: numbers of `lsns -t net`.
    namespaces: Vec<u64>,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// User, as the host counts.
    pub uid: u32,
    /// Control group.
    pub cgroup: &'a str,
    /// Number of the network namespace, 0: not known.
    pub namespace: u64,
}

/// What is asked of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who connected.
    pub client: End<'a>,
    /// Who accepted.
    pub server: End<'a>,
    /// At which port.
    pub port: u16,
    /// Both are of one user, in one user and pid namespace.
    pub same_party: bool,
    /// Both sockets are in one network namespace.
    pub same_network: bool,
}

impl Policy {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn load(path: &Path) -> Result<Self, String> {
        let failed = |what: &dyn fmt::Display| format!("the policy {}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
        Self::parse(&text).map_err(|e| failed(&e))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let policy: Self = toml::from_str(text).map_err(|e| {
            // A mistake without a place is at the end: something is missing.
            let before = e.span().and_then(|at| text.get(..at.start)).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            format!("line {line}, column {column}: {}", e.message().trim_end().replace('\n', "; "))
        })?;
        if policy.networks.len() > NETWORKS {
            return Err(format!("it names more than {NETWORKS} networks"));
        }
        if let Some(lacks) = policy.smc.lacks() {
            return Err(format!("the section [smc] lacks {lacks}"));
        }
        Ok(policy)
    }

    /// True when the two may be shunted with each other.
    #[must_use]
    pub fn permits(&self, question: &Question<'_>) -> bool {
        let rule = self.rule.iter().find(|rule| rule.speaks_of(question));
        rule.map_or(self.default, |rule| rule.verdict) == Verdict::Allow
    }

    /// What it says of agents of other hosts.
    #[must_use]
    pub const fn rdma(&self) -> &RdmaSection {
        &self.rdma
    }

    /// What it says of servers that speak the kernel's SMC-R.
    #[must_use]
    pub const fn smc(&self) -> &SmcSection {
        &self.smc
    }

    /// Connections to addresses in these networks are offered.
    #[must_use]
    pub fn networks(&self) -> Vec<Network> {
        self.networks.iter().map(|cidr| cidr.0).collect()
    }
}

/// True when nothing is named, or one of those named is it.
fn covers<T>(named: &[T], is_it: impl FnMut(&T) -> bool) -> bool {
    named.is_empty() || named.iter().any(is_it)
}

impl Rule {
    fn speaks_of(&self, question: &Question<'_>) -> bool {
        self.client.speaks_of(&question.client)
            && self.server.speaks_of(&question.server)
            && covers(&self.ports, |ports| ports.0.contains(&question.port))
            && self.same_party.is_none_or(|same| same == question.same_party)
            && self.same_network.is_none_or(|same| same == question.same_network)
    }
}

impl Side {
    fn speaks_of(&self, end: &End<'_>) -> bool {
        covers(&self.uids, |uids| uids.0.contains(&end.uid))
            && covers(&self.cgroups, |group| Path::new(end.cgroup).starts_with(group))
            && covers(&self.namespaces, |namespace| *namespace == end.namespace)
    }
}

/// A range of numbers: `7`, or `"7-9"`.
fn range<T: FromStr + PartialOrd + Copy>(text: &str) -> Result<RangeInclusive<T>, String> {
    let number = |text: &str| {
        text.trim().parse().map_err(|_| format!("`{text}` is neither a number nor a range of them"))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    if first > last { Err(format!("the range `{text}` is empty")) } else { Ok(first..=last) }
}

/// A number or a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Number(u64),
    Text(String),
}

macro_rules! ranges {
    ($($(#[doc = $doc:literal])+ $name:ident: $of:ty;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Eq, Debug)]
        struct $name(RangeInclusive<$of>);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = match Given::deserialize(from)? {
                    Given::Number(number) => number.to_string(),
                    Given::Text(text) => text,
                };
                range(&text).map(Self).map_err(de::Error::custom)
            }
        }
    )+};
}

ranges! {
    /// User ids.
    Span: u32;
    /// Ports.
    Ports: u16;
}

/// A network as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cidr(Network);

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no network; one is written like 10.0.0.0/8");
        let (ip, len) = text.split_once('/').map_or((text, None), |(ip, len)| (ip, Some(len)));
        let (ip, most, more) = match ip.parse().map_err(|_| wrong())? {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), 32, 96),
            IpAddr::V6(v6) => (v6.octets(), 128, 0),
        };
        let len: u8 = len.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if len > most { Err(wrong()) } else { Ok(Self(Network { ip, len: len + more })) }
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: End<'_> = End { uid: 1000, cgroup: "/pods/a/main", namespace: 5 };
    const SERVER: End<'_> = End { uid: 0, cgroup: "/pods/b", namespace: 6 };
    const QUESTION: Question<'_> = Question {
        client: CLIENT,
        server: SERVER,
        port: 80,
        same_party: false,
        same_network: false,
    };

    fn permits(text: &str) -> bool {
        Policy::parse(text).unwrap().permits(&QUESTION)
    }

    #[test]
    fn without_rules_the_default_decides() {
        assert!(Policy::default().permits(&QUESTION));
        assert!(permits(""));
        assert!(!permits("default = 'deny'"));
    }

    #[test]
    fn the_first_rule_that_speaks_of_a_connection_decides() {
        let allow =
            |what: &str| permits(&format!("default='deny'\n[[rule]]\nverdict='allow'\n{what}"));
        for matching in [
            "",
            "client.uids = [1000]",
            "client.uids = ['999-1001', 3]",
            "client.cgroups = ['/pods/a']",
            "client.cgroups = ['/other', '/pods']",
            "client.namespaces = [5]",
            "server.uids = [0]",
            "server.cgroups = ['/pods/b']",
            "ports = [443, '80-90']",
            "same-party = false",
            "same-network = false",
            "client.uids = [1000]\nserver.namespaces = [6]\nports = [80]",
        ] {
            assert!(allow(matching), "{matching}");
        }
        for other in [
            "client.uids = [0]",
            "client.cgroups = ['/pods/ab', '/pods/a/main/deeper']",
            "client.namespaces = [6]",
            "server.uids = ['1-4294967295']",
            "ports = [443]",
            "same-party = true",
            "same-network = true",
            "client.uids = [1000]\nserver.namespaces = [5]",
        ] {
            assert!(!allow(other), "{other}");
        }
        let first = "[[rule]]\nverdict='deny'\nports=[80]\n[[rule]]\nverdict='allow'\n";
        assert!(!permits(first));
    }

    #[test]
    fn mistakes_are_told() {
        for wrong in [
            "default = 'perhaps'",
            "unknown = 1",
            "[[rule]]\nports = [80]",
            "[[rule]]\nverdict='deny'\nports = [65536]",
            "[[rule]]\nverdict='deny'\nports = ['9-7']",
            "[[rule]]\nverdict='deny'\nclient.uid = [1]",
            "networks = ['10.0.0.0/33']",
            "networks = ['somewhere']",
        ] {
            let told = Policy::parse(wrong).unwrap_err();
            assert!(told.starts_with("line ") && !told.contains('\n'), "{wrong}: {told}");
        }
        let many = vec!["'10.0.0.1'"; NETWORKS + 1].join(",");
        assert!(Policy::parse(&format!("networks = [{many}]")).is_err());
    }

    #[test]
    fn networks_hold_their_addresses() {
        let policy = Policy::parse("networks = ['10.1.0.0/16', '192.0.2.7', 'fd00::/8']").unwrap();
        let held = |ip: &str| {
            let ip = match ip.parse().unwrap() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            policy.networks().iter().any(|network| network.holds(&ip))
        };
        assert!(["10.1.0.0", "10.1.255.255", "192.0.2.7", "fd12::1"].into_iter().all(held));
        assert!(!["10.2.0.0", "192.0.2.6", "::a01:1", "fe00::1"].into_iter().any(held));
        assert_eq!(Policy::default().networks().len(), PRIVATE.len());
        let all = Policy::parse("networks = ['::/0']").unwrap();
        assert!(all.networks()[0].holds(&[255; 16]));
    }
}
