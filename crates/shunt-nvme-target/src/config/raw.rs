//! The file as it is written: names and types. What the values mean is looked at in [`super::check`].

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use toml::Spanned;

use super::size::Size;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub listen: Spanned<Vec<Spanned<SocketAddr>>>,
    pub threads: Option<Spanned<usize>>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub referral: Vec<Referral>,
    #[serde(default)]
    pub subsystem: Vec<Spanned<Subsystem>>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Limits {
    pub connections: Option<Spanned<usize>>,
    pub unconnected: Option<Spanned<usize>>,
    pub connect_timeout: Option<Spanned<u64>>,
    pub queues: Option<Spanned<u16>>,
    pub queue_depth: Option<Spanned<u16>>,
    pub transfer: Option<Spanned<Size>>,
    pub in_capsule: Option<Spanned<Size>>,
    pub in_flight: Option<Spanned<Size>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Referral {
    pub address: Spanned<SocketAddr>,
    pub nqn: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Subsystem {
    pub nqn: Spanned<String>,
    pub serial: Option<Spanned<String>>,
    pub model: Option<Spanned<String>>,
    pub hosts: Hosts,
    #[serde(default)]
    pub ana: Vec<Ana>,
    #[serde(default)]
    pub namespace: Vec<Spanned<Namespace>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Ana {
    pub group: Spanned<u32>,
    pub at: Option<Spanned<SocketAddr>>,
    pub state: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Namespace {
    pub nsid: Option<Spanned<u32>>,
    pub ana_group: Option<Spanned<u32>>,
    pub store: Spanned<String>,
    pub path: Option<Spanned<PathBuf>>,
    pub size: Option<Spanned<Size>>,
    pub block_size: Option<Spanned<u64>>,
    pub uuid: Option<Spanned<String>>,
    pub nguid: Option<Spanned<String>>,
    pub create: Option<Spanned<bool>>,
    pub direct: Option<Spanned<bool>>,
    pub read_only: Option<Spanned<bool>>,
    pub threads: Option<Spanned<usize>>,
}

/// `"any"`, or a list.
pub(super) enum Hosts {
    Any,
    Listed(Vec<Host>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Host {
    pub nqn: Spanned<String>,
    pub key: Option<Spanned<String>>,
    pub controller_key: Option<Spanned<String>>,
    #[serde(default)]
    pub grant: bool,
}

struct HostsReader;

impl<'de> Visitor<'de> for HostsReader {
    type Value = Hosts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\"any\", or a list of hosts, such as [{ nqn = \"nqn.2024-01.org.example:host\" }]",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Hosts, E> {
        if text == "any" {
            Ok(Hosts::Any)
        } else {
            Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Hosts, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Hosts::Listed)
    }
}

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(HostsReader)
    }
}
