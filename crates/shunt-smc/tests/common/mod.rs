//! Two hosts, and a server as the kernel is one.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::VecDeque;
use std::time::Duration;

use shunt_smc::link::{Own, Settings};
use shunt_smc::wire::clc::{
    Accept, Confirm, Decline, Diagnosis, End, FirstContact, Host, Proposal,
};
use shunt_smc::wire::llc::{AddLink, ConfirmLink, ConfirmRkey, DeleteRkey, Llc};
use shunt_smc::wire::{Eid, RmbSize};
use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, Remote, RemoteKey};

pub const NOW: Duration = Duration::from_secs(100);
pub const SETTINGS: Settings =
    Settings { answer: Duration::from_secs(2), quiet: Duration::from_secs(30) };

pub fn eid(text: &str) -> Eid {
    Eid::new(text).unwrap()
}

pub fn host(n: u8) -> Host {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, n]);
    let mac = [0x52, 0x54, 0, 0x77, 0, n];
    Host { id: [n, n, 0x52, 0x54, 0, 0x77, 0, n], gid: Gid(gid), mac }
}

pub fn proposal() -> Proposal {
    let host = host(2);
    Proposal {
        host,
        gid: host.gid,
        eids: vec![eid("SHUNT"), eid("OTHER")],
        release: 1,
        max_connections: 32,
        max_links: 2,
    }
}

/// An end at a host, with a ring of this size.
pub fn end(n: u8, token: u32, size: RmbSize) -> End {
    End {
        host: host(n),
        pair: PairNumber(0x10 + u32::from(n)),
        first_packet: PacketNumber::new(0x123_456),
        mtu: if n == 2 { Mtu::B4096 } else { Mtu::B1024 },
        rmb: Remote {
            address: 0x7f00_0000_0000 + u64::from(token) * 0x100_0000,
            key: RemoteKey(token),
        },
        index: 1,
        size,
        token,
    }
}

pub fn own() -> Own {
    Own { host: host(2), pair: PairNumber(0x12), id: [1, 2, 3, 4] }
}

pub fn contact() -> FirstContact {
    FirstContact {
        is_direct: true,
        release: 1,
        name: *b"server                          ",
        max_connections: 32,
        max_links: 2,
    }
}

pub fn accept() -> Accept {
    Accept { end: end(3, 7, RmbSize::SMALLEST), eid: eid("SHUNT"), first_contact: Some(contact()) }
}

/// A server of the kernel's kind, as far as one connection after another needs it.
#[derive(Default)]
pub struct Server {
    pub eids: Vec<Eid>,
    /// Tokens of connections, and keys of rings, so far.
    next: u32,
    has_link: bool,
    /// What it says on the link, and hears there.
    pub says: VecDeque<Llc>,
    pub heard: Vec<Llc>,
    pub confirmed: Option<Confirm>,
}

impl Server {
    pub fn with(eids: &[&str]) -> Self {
        Self { eids: eids.iter().map(|text| eid(text)).collect(), next: 100, ..Self::default() }
    }

    /// The answer to a proposal.
    pub fn answer(&mut self, bytes: &[u8]) -> Vec<u8> {
        let proposal = Proposal::parse(bytes).unwrap();
        let Some(eid) = proposal.eids.iter().find(|eid| self.eids.contains(eid)) else {
            let diagnosis = Diagnosis::NO_DEVICE;
            return Decline { id: host(3).id, diagnosis, is_out_of_step: false }.bytes();
        };
        self.next += 1;
        let end = end(3, self.next, RmbSize::SMALLEST);
        let is_first = !self.has_link;
        if !is_first {
            self.says.push_back(Llc::ConfirmRkey(ConfirmRkey::of_ring(end.rmb)));
        }
        let contact = FirstContact {
            max_connections: proposal.max_connections,
            max_links: proposal.max_links,
            ..contact()
        };
        Accept { end, eid: *eid, first_contact: is_first.then_some(contact) }.bytes()
    }

    /// A confirm has come.
    pub fn confirm(&mut self, bytes: &[u8]) {
        let confirm = Confirm::parse(bytes).unwrap();
        if confirm.first_contact.is_some() {
            self.says.push_back(Llc::ConfirmLink(self.confirm_link()));
        }
        self.has_link = true;
        self.confirmed = Some(confirm);
    }

    pub fn confirm_link(&self) -> ConfirmLink {
        let end = end(3, self.next, RmbSize::SMALLEST);
        ConfirmLink {
            is_answer: false,
            is_plain: true,
            mac: end.host.mac,
            gid: end.host.gid,
            pair: end.pair,
            link: 1,
            id: [9; 4],
            max_links: 2,
            max_connections: 32,
        }
    }

    /// A message on the link.
    pub fn hear(&mut self, bytes: &[u8]) {
        let message = Llc::parse(bytes).unwrap();
        match &message {
            Llc::ConfirmLink(answer) if answer.is_answer => {
                let ConfirmLink { mac, gid, .. } = *answer;
                self.says.push_back(Llc::AddLink(AddLink {
                    is_answer: false,
                    is_rejected: false,
                    mac,
                    gid,
                    pair: PairNumber(0x99),
                    link: 2,
                    mtu: Some(Mtu::B1024),
                    first_packet: PacketNumber::new(1),
                }));
            }
            Llc::ConfirmRkey(ring) if !ring.is_answer => {
                self.says
                    .push_back(Llc::ConfirmRkey(ConfirmRkey { is_answer: true, ..ring.clone() }));
            }
            Llc::DeleteRkey(keys) if !keys.is_answer => {
                let answer = DeleteRkey { is_answer: true, unknown: 0, keys: Vec::new() };
                self.says.push_back(Llc::DeleteRkey(answer));
            }
            Llc::DeleteLink(delete) if !delete.is_answer => {
                self.has_link = false;
                self.says.push_back(Llc::DeleteLink(*delete));
            }
            _ => {}
        }
        self.heard.push(message);
    }
}
