//! The identity of a client, as the host sees it: from the kernel's view of its process, never from
//! its own words.

use std::io;

use shunt_sys::seqpacket::PeerCred;
use shunt_sys::{cgroup, namespaces};

/// Programs that trust each other as processes of one user do: they see each other, and may trace each other.
/// An agent of one user knows one party.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Party {
    /// User, as the host counts.
    pub uid: u32,
    /// Number of the user namespace, 0: they don't matter here.
    pub user_namespace: u64,
    /// Number of the pid namespace, 0: they don't matter here.
    pub pid_namespace: u64,
}

/// On whose account a client's share of the agent goes: whoever can make as many users, namespaces and processes as
/// they like is still one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Account {
    /// The host's own root, who needs no bounds but those of the agent.
    Host,
    /// A user of the host, with all the namespaces that they have made.
    User(u32),
    /// A control group: of containers that root runs, who would all be root, or a user of their own each.
    Group(String),
}

/// What is known of a client.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Whom it may trust.
    pub party: Party,
    /// Its share.
    pub account: Account,
    /// Its control group; empty: not known.
    pub cgroup: String,
    /// Number of the network namespace of the process, 0: not known.
    pub network: u64,
    /// It is root, in the agent's own user and pid namespaces.
    pub is_hosts_root: bool,
}

impl Origin {
    /// Of a client of an agent for one user.
    #[must_use]
    pub const fn own(cred: PeerCred) -> Self {
        Self {
            party: Party { uid: cred.uid, user_namespace: 0, pid_namespace: 0 },
            account: Account::User(cred.uid),
            cgroup: String::new(),
            network: 0,
            is_hosts_root: false,
        }
    }

    /// Of a client of an agent for the host. It is true of that very process only if it still lives
    /// afterwards.
    ///
    /// # Errors
    /// When that cannot be seen: the process is gone, or in a pid namespace that is not below this one.
    pub fn of_process(cred: PeerCred) -> io::Result<Self> {
        let of = namespaces::of_process(cred.pid)?;
        let cgroup = cgroup::of_process(cred.pid).ok_or(io::ErrorKind::NotFound)?;
        let is_hosts_root = cred.uid == 0 && of.made_by.is_none() && of.pid == own_pid_namespace();
        let account = match (of.made_by, cred.uid) {
            _ if is_hosts_root => Account::Host,
            (None, 0) | (Some(0), _) => Account::Group(cgroup.clone()),
            (None, uid) | (Some(uid), _) => Account::User(uid),
        };
        Ok(Self {
            party: Party { uid: cred.uid, user_namespace: of.user, pid_namespace: of.pid },
            account,
            cgroup,
            network: of.network,
            is_hosts_root,
        })
    }
}

fn own_pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}
