//! Which processes hold a connection.
//!
//! Parent and children share an arena, and a connection ends with the last process that holds it. A
//! process that is killed gives nothing back, so the arena has a table of the processes that share
//! it, and each record names those that hold it: whoever lets go of a connection that others seem to
//! hold can look whether they live, and let go in the place of those who don't.
//!
//! How many processes hold a record is counted; their names stand in a few places beside the count.
//! A holder that finds no place is counted only, and is not missed when it is killed.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Processes that can share an arena and be known by name; further ones are counted only.
pub const PROCESSES: usize = 4096;
/// Holders of one connection that are known by name.
pub const NAMED: usize = 6;

const INDEX_BITS: u32 = PROCESSES.trailing_zeros();
/// In the place of the pid: claimed, and not yet (or never) said by whom.
const UNBORN: u32 = u32::MAX;

/// In [`Processes::starts`].
const BY_CLOCK: u32 = 1;
const NOT_BY_CLOCK: u32 = 2;

/// A process's name among its relatives: the use of a place in the table. 0: it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Member(u32);

impl Member {
    /// A process without a place in the table.
    pub const UNNAMED: Self = Self(0);

    /// As a plain number, for storage.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.0
    }

    /// The reverse of [`Self::code`].
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        Self(code)
    }

    const fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }
}

/// What the kernel knows a process by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// Its pid.
    pub pid: u32,
    /// Its start time, 0: not known.
    pub start: u64,
    /// Its pid namespace, 0: not known.
    pub namespace: u64,
}

/// A place in the table.
#[repr(C, align(32))]
#[derive(Debug, Default)]
struct Process {
    /// 0: the place is free.
    pid: AtomicU32,
    /// Uses of the place: a name from an earlier use is told by this.
    uses: AtomicU32,
    start: AtomicU64,
    namespace: AtomicU64,
}

/// The processes that share an arena.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Processes {
    /// Places ever used.
    high_water: AtomicU32,
    /// Where [`Self::next`] goes on.
    turn: AtomicU32,
    /// [`Self::starts_by_clock`]; 0: nobody has looked, which also stands in arenas of older agents.
    starts: AtomicU32,
    places: [Process; PROCESSES],
}

impl Processes {
    /// A place for a process that is about to be, or for this one. [`Member::UNNAMED`] when all are
    /// taken.
    #[must_use]
    pub fn claim(&self) -> Member {
        for (index, place) in (0..).zip(&self.places) {
            let claim = |pid: &AtomicU32| {
                pid.load(Ordering::Relaxed) == 0
                    && pid.compare_exchange(0, UNBORN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            if claim(&place.pid) {
                place.start.store(0, Ordering::Relaxed);
                place.namespace.store(0, Ordering::Relaxed);
                self.high_water.fetch_max(index + 1, Ordering::AcqRel);
                let uses = place.uses.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
                return name(index, uses);
            }
        }
        Member::UNNAMED
    }

    fn place(&self, member: Member) -> Option<&Process> {
        let index = member.index();
        let place = self.places.get(index).filter(|_| member != Member::UNNAMED)?;
        let uses = place.uses.load(Ordering::Acquire);
        (name(u32::try_from(index).unwrap_or(0), uses) == member).then_some(place)
    }

    /// Says who the calling process is. What its parent said before it is overruled: that may be its
    /// name in another pid namespace.
    pub fn introduce(&self, member: Member, me: Who) {
        let Some(place) = self.place(member) else { return };
        place.start.store(me.start, Ordering::Relaxed);
        place.namespace.store(me.namespace, Ordering::Relaxed);
        // Last: who finds this pid finds the rest, too.
        place.pid.store(me.pid, Ordering::Release);
    }

    /// Says what a parent knows of its child: the pid, as its own namespace counts. What the child has
    /// said stays.
    pub fn born(&self, member: Member, pid: u32, namespace: u64) {
        let Some(place) = self.place(member) else { return };
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = place.namespace.compare_exchange(0, namespace, ok, no);
        let _ = place.pid.compare_exchange(UNBORN, pid, ok, no);
    }

    /// Whether the kernel's start times of processes are what a clock says, so that a child need not ask for its own; `None`: not known.
    #[must_use]
    pub fn starts_by_clock(&self) -> Option<bool> {
        match self.starts.load(Ordering::Relaxed) {
            0 => None,
            starts => Some(starts == BY_CLOCK),
        }
    }

    /// A child has found it so, or not so; the latter stays.
    pub fn note_starts(&self, by_clock: bool) {
        if by_clock {
            let (ok, no) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.starts.compare_exchange(0, BY_CLOCK, ok, no);
        } else {
            self.starts.store(NOT_BY_CLOCK, Ordering::Relaxed);
        }
    }

    /// Who a member is; `None` while it is about to be, and for a name that is no longer in use.
    #[must_use]
    pub fn who(&self, member: Member) -> Option<Who> {
        let place = self.place(member)?;
        let pid = place.pid.load(Ordering::Acquire);
        (pid != 0 && pid != UNBORN).then(|| Who {
            pid,
            start: place.start.load(Ordering::Relaxed),
            namespace: place.namespace.load(Ordering::Relaxed),
        })
    }

    /// True for a name that is no longer in use.
    #[must_use]
    pub fn has_left(&self, member: Member) -> bool {
        self.place(member).is_none_or(|place| place.pid.load(Ordering::Acquire) == 0)
    }

    /// Frees the place of a process that holds nothing any more.
    pub fn free(&self, member: Member) {
        if let Some(place) = self.place(member) {
            place.pid.store(0, Ordering::Release);
        }
    }

    /// The next member in turn, for those who look now and then whether all live.
    #[must_use]
    pub fn next(&self) -> Option<Member> {
        let high = self.high_water.load(Ordering::Acquire);
        let index = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(high)?;
        let place = self.places.get(index as usize)?;
        let member = name(index, place.uses.load(Ordering::Acquire));
        self.who(member).map(|_| member)
    }
}

fn name(index: u32, uses: u32) -> Member {
    // A use whose number has no low bits would be told from UNNAMED by the index alone.
    Member((uses | 1 << (31 - INDEX_BITS)) << INDEX_BITS | index)
}

/// Who holds a record.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Holders {
    count: AtomicU32,
    names: [AtomicU32; NAMED],
}

impl Holders {
    /// For a record that nobody but `member` holds.
    pub fn begin(&self, member: Member) {
        self.names.iter().for_each(|name| name.store(0, Ordering::Relaxed));
        self.count.store(0, Ordering::Relaxed);
        self.add(member);
    }

    /// `member` holds the record, too.
    pub fn add(&self, member: Member) {
        self.count.fetch_add(1, Ordering::AcqRel);
        if member == Member::UNNAMED {
            return;
        }
        let enter = |name: &AtomicU32| {
            name.load(Ordering::Relaxed) == 0
                && name.compare_exchange(0, member.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let _ = self.names.iter().any(enter);
    }

    /// `member` lets go. True when it was the last.
    pub fn remove(&self, member: Member) -> bool {
        self.strike(member);
        self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The same, unless it is the last. True when it was not.
    pub fn remove_if_shared(&self, member: Member) -> bool {
        let less = |n: u32| (n > 1).then(|| n - 1);
        let shared = self.count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_ok();
        if shared {
            self.strike(member);
        }
        shared
    }

    /// Lets go in the place of a member that has died; of several who see that, one does. True when
    /// it was the last.
    pub fn bereave(&self, member: Member) -> bool {
        self.strike(member) && self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn strike(&self, member: Member) -> bool {
        member != Member::UNNAMED
            && self.names.iter().any(|name| {
                name.compare_exchange(member.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
    }

    /// Processes that hold the record.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Those that are known by name.
    pub fn names(&self) -> impl Iterator<Item = Member> + '_ {
        let named = |name: &AtomicU32| Some(Member(name.load(Ordering::Acquire)));
        self.names.iter().filter_map(named).filter(|member| *member != Member::UNNAMED)
    }

    /// True when `member` is among them.
    #[must_use]
    pub fn has(&self, member: Member) -> bool {
        self.names().any(|name| name == member)
    }
}
