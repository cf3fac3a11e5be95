//! Counts the system calls of a control group.

use std::io;
use std::os::fd::OwnedFd;

use super::insn::{Assembler, R0, R1};
use super::map::Counter;
use super::{load, number, open_tracepoint};

const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const HELPER_CURRENT_CGROUP_ID: i32 = 80;

/// Counts as long as it lives. Each system call of the machine costs a little more meanwhile.
#[derive(Debug)]
pub struct CallCounter {
    calls: Counter,
    _tracepoint: OwnedFd,
}

impl CallCounter {
    /// Counts those of the control group with this number, that is, the inode of its directory.
    ///
    /// # Errors
    /// Those of bpf(2): `EPERM` without the privilege.
    pub fn start(group: u64) -> io::Result<Self> {
        let calls = Counter::new()?;
        let program = load(PROG_TYPE_RAW_TRACEPOINT, &program(group, number(&calls.map)))?;
        let tracepoint = open_tracepoint(&program, c"sys_enter")?;
        Ok(Self { calls, _tracepoint: tracepoint })
    }

    /// How many there were.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn calls(&self) -> io::Result<u64> {
        self.calls.get()
    }
}

fn program(group: u64, calls: u32) -> Vec<u64> {
    Assembler::default()
        .call(HELPER_CURRENT_CGROUP_ID)
        .set_wide(R1, group)
        .end_unless_same(R0, R1)
        .count(calls)
        .finish(0)
}
