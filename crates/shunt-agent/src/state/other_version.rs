//! Programs whose library is of a version that the agent does not speak.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use shunt_sys::process::has_exited;

use crate::party::Party;

/// Most programs that are remembered.
const MOST: usize = 64;

/// The programs that were refused lately, and how often one was.
#[derive(Debug, Default)]
pub(crate) struct OtherVersions {
    programs: BTreeMap<i32, Program>,
    refused: u64,
}

#[derive(Debug)]
struct Program {
    pidfd: OwnedFd,
    party: Party,
    version: u32,
}

impl OtherVersions {
    /// A program was refused. It asks again and again.
    pub(super) fn note(&mut self, pid: i32, party: Party, version: u32) {
        self.refused += 1;
        let is_known = self.programs.get(&pid).is_some_and(|known| !has_exited(&known.pidfd));
        if is_known {
            return;
        }
        if self.programs.len() >= MOST {
            self.programs.retain(|_, program| !has_exited(&program.pidfd));
        }
        let Some(Ok(pidfd)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            return;
        };
        if self.programs.len() < MOST {
            self.programs.insert(pid, Program { pidfd, party, version });
        }
    }

    /// How often one was refused.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused
    }

    /// Those that live, with their versions. `of`: whose; `None`: all.
    pub(crate) fn living(&self, of: Option<Party>) -> impl Iterator<Item = (i32, u32)> {
        let shown = self.programs.iter().filter(move |(_, program)| {
            of.is_none_or(|party| program.party == party) && !has_exited(&program.pidfd)
        });
        shown.map(|(pid, program)| (*pid, program.version))
    }
}
