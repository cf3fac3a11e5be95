//! Whether a process may reach into the memory of another one anyway, as by ptrace(2). For our own programs.

use std::fs::{self, File};

/// True when `reader` gains nothing by being shown memory of `owner`'s: the kernel would let it trace that process.
///
/// The kernel itself is asked about the caller, an ordinary program of the same user: it knows of Yama, of security
/// modules, and of processes that are not to be dumped. That the reader has the same users and groups, and all
/// capabilities of the owner's, is looked up (`__ptrace_may_access` and `cap_ptrace_access_check`).
#[must_use]
pub fn may_trace(reader: i32, owner: i32) -> bool {
    let may_caller = File::open(format!("/proc/{owner}/mem")).is_ok();
    let (Some(of_reader), Some(of_owner)) = (Standing::of(reader), Standing::of(owner)) else {
        return false;
    };
    may_caller && of_reader.reaches(&of_owner)
}

/// What the kernel judges a process by.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Standing {
    /// Real, effective and saved user.
    users: [u32; 3],
    /// The same of groups.
    groups: [u32; 3],
    permitted: u64,
    effective: u64,
    /// The number of the user namespace, in which all this means something.
    namespace: String,
}

impl Standing {
    fn of(pid: i32) -> Option<Self> {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/user")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Self::parse(&status, namespace.to_str()?.to_owned())
    }

    fn parse(status: &str, namespace: String) -> Option<Self> {
        let line = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let ids = |name| {
            let mut ids = line(name)?.split_whitespace().map_while(|id| id.parse().ok());
            Some([ids.next()?, ids.next()?, ids.next()?])
        };
        let capabilities = |name| u64::from_str_radix(line(name)?, 16).ok();
        Some(Self {
            users: ids("Uid")?,
            groups: ids("Gid")?,
            permitted: capabilities("CapPrm")?,
            effective: capabilities("CapEff")?,
            namespace,
        })
    }

    fn reaches(&self, owner: &Self) -> bool {
        owner.users == [self.users[0]; 3]
            && owner.groups == [self.groups[0]; 3]
            && owner.permitted & !self.effective == 0
            && owner.namespace == self.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(users: &str, groups: &str, permitted: &str, effective: &str) -> Standing {
        let status = format!(
            "Name:\tx\nUid:\t{users}\nGid:\t{groups}\nCapInh:\t0\nCapPrm:\t{permitted}\nCapEff:\t{effective}\n"
        );
        Standing::parse(&status, "user:[1]".to_owned()).unwrap()
    }

    #[test]
    fn who_has_less_does_not_reach_who_has_more() {
        let plain = standing("7\t7\t7\t7", "8\t8\t8\t8", "0", "0");
        let capable = standing("7\t7\t7\t7", "8\t8\t8\t8", "400", "400");
        let changed = standing("7\t7\t0\t7", "8\t8\t8\t8", "0", "0");
        let grouped = standing("7\t7\t7\t7", "8\t9\t8\t8", "0", "0");
        let other = standing("6\t6\t6\t6", "8\t8\t8\t8", "0", "0");
        let elsewhere = Standing { namespace: "user:[2]".to_owned(), ..plain.clone() };
        assert!(plain.reaches(&plain) && capable.reaches(&plain) && capable.reaches(&capable));
        for owner in [&capable, &changed, &grouped, &other, &elsewhere] {
            assert!(!plain.reaches(owner), "{owner:?}");
        }
        let lent = standing("7\t7\t7\t7", "8\t8\t8\t8", "400", "0");
        assert!(!lent.reaches(&capable), "not what it may take, but what it has");
        assert_eq!(Standing::parse("Uid:\t1\t1\n", String::new()), None);
    }

    #[test]
    fn a_process_reaches_itself_and_none_that_is_not_there() {
        let me = std::process::id().cast_signed();
        assert!(may_trace(me, me));
        assert!(!may_trace(me, i32::MAX) && !may_trace(i32::MAX, me));
    }
}
