//! A library that binds to libc before the hooks (`RTLD_DEEPBIND`), as PHP loads its extensions.
//!
//! It is to find all else as the loader has it find that: its own functions, and those of what it needs, come before the program's.
//! So it is loaded as asked for. Then the places in which it has, or will get, the address of a hooked function of libc get that of the hook.
//! What its constructors call is libc's still. Where something is not as expected everything goes back to TCP.

use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::mm::{MprotectFlags, mprotect};
use rustix::param::page_size;

use crate::contain::contain;
use crate::fallback::before_unseen_calls;
use crate::loader::objects::{libc, object_of, own};
use crate::system::dynamic::Import;
use crate::system::errno::KeepErrno;
use crate::system::loaded::{self, Loaded};
use crate::system::next::{Slot, symbol};

/// Finds the slot of a hook by its name.
type SlotOf = fn(&CStr) -> Option<&'static Slot>;

/// More than there are objects in all but few programs, which have TCP then.
const OBJECTS: usize = 4096;
/// More than there are hooks.
const NAMES: usize = 512;

/// Some thread loads one. A forked child in which this stays set has TCP from its next one on.
static LOADS: AtomicBool = AtomicBool::new(false);

/// Only one at a time.
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        (!LOADS.swap(true, Ordering::Acquire)).then_some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        LOADS.store(false, Ordering::Release);
    }
}

/// Calls `load`, the loader's own `dlopen`, and leads what came with it to the hooks.
pub fn open(load: impl FnOnce() -> *mut c_void, slot_of: SlotOf) -> *mut c_void {
    let turn = Turn::take();
    let mut before = None;
    contain(|| before = turn.as_ref().and_then(|_| Before::look()));
    if before.is_none() {
        contain(before_unseen_calls);
    }
    let handle = load();
    let _keep = KeepErrno::new();
    if let Some(before) = before.filter(|_| !handle.is_null()) {
        let mut is_led = false;
        contain(|| is_led = before.leads_to_hooks(handle, slot_of));
        if !is_led {
            contain(before_unseen_calls);
        }
    }
    drop(turn);
    handle
}

/// What was loaded before.
struct Before {
    known: Vec<usize>,
    unloaded: u64,
}

impl Before {
    /// `None`: what is loaded cannot be told, or what a library needs may be found elsewhere if somebody else loads it.
    fn look() -> Option<Self> {
        let mut known = Vec::with_capacity(OBJECTS);
        let mut is_simple = true;
        let unloaded = loaded::each(|object| {
            // What the program itself says counts for all.
            is_simple &= known.is_empty() || !object.has_path();
            if known.len() < OBJECTS {
                known.push(object.id());
            }
        })?;
        (is_simple && known.len() < OBJECTS).then_some(Self { known, unloaded })
    }

    fn is_new(&self, object: &Loaded<'_>) -> bool {
        !self.known.contains(&object.id())
    }

    /// False where a function may be called past its hook.
    fn leads_to_hooks(&self, handle: *mut c_void, slot_of: SlotOf) -> bool {
        let mut names: Vec<&'static Slot> = Vec::with_capacity(NAMES);
        let mut is_whole = true;
        let mut of_libc = 0..0;
        let asked = loaded::each(|object| {
            let extent = object.extent();
            if extent.contains(&(libc::gnu_get_libc_version as *const () as usize)) {
                of_libc = extent;
            }
            if self.is_new(object) {
                for slot in object.imports().filter_map(|import| slot_of(import.name)) {
                    if !names.iter().any(|known| ptr::eq(*known, slot)) {
                        is_whole &= names.len() < NAMES;
                        if is_whole {
                            names.push(slot);
                        }
                    }
                }
            }
        });
        // Else one that is new may have the place of one that was known.
        if asked != Some(self.unloaded) || !is_whole {
            return false;
        }
        let Some(hooks) = Hook::all(handle, &names) else { return false };
        let mut all_done = true;
        let done = loaded::each(|object| {
            if self.is_new(object) {
                all_done &= leads(object, &hooks, &of_libc);
            }
        });
        done == Some(self.unloaded) && all_done
    }
}

/// A hook, where the library would have what is behind it.
struct Hook {
    name: &'static CStr,
    behind: usize,
    hook: usize,
}

impl Hook {
    /// Of those names that the library finds libc's functions by. `None`: another library wraps one of them, and
    /// the hook would lead there.
    fn all(handle: *mut c_void, names: &[&'static Slot]) -> Option<Vec<Self>> {
        let mut all = Vec::with_capacity(names.len());
        let mut has_failed = false;
        for slot in names {
            // SAFETY: a handle of dlopen(3).
            let found = unsafe { symbol(handle, slot.name()) };
            has_failed |= found.is_null();
            let hook = own(slot.name());
            if !found.is_null() && found == slot.get() && !hook.is_null() {
                all.push(Self { name: slot.name(), behind: found.addr(), hook: hook.addr() });
            } else if !found.is_null() && object_of(found) == libc() {
                return None;
            }
        }
        if has_failed {
            // SAFETY: takes no arguments; the program is not to hear of what it has not asked for.
            unsafe { libc::dlerror() };
        }
        Some(all)
    }
}

/// Leads an object's calls to the hooks. False: it cannot be done.
fn leads(object: &Loaded<'_>, hooks: &[Hook], of_libc: &Range<usize>) -> bool {
    let own = object.extent();
    object.imports().all(|import| {
        let Some(hook) = hooks.iter().find(|hook| hook.name == import.name) else { return true };
        // SAFETY: a place that the loader has filled, or fills at the first call, in an object that stays loaded.
        let place = unsafe { AtomicUsize::from_ptr(import.place) };
        let now = place.load(Ordering::Relaxed);
        // In libc: perhaps an older version. In the object itself: code that has the loader look the function up.
        let is_past = now == hook.behind || of_libc.contains(&now) || own.contains(&now);
        now == hook.hook || !is_past || put(object, &import, hook.hook)
    })
}

fn put(object: &Loaded<'_>, import: &Import<'_>, hook: usize) -> bool {
    // SAFETY: as above.
    let place = unsafe { AtomicUsize::from_ptr(import.place) };
    let Some(pages) =
        object.read_only().map(pages_of).filter(|pages| pages.contains(&import.place.addr()))
    else {
        place.store(hook, Ordering::Relaxed);
        return true;
    };
    let protect = |flags| {
        let begin = ptr::with_exposed_provenance_mut(pages.start);
        // SAFETY: pages of an object that is loaded: only the loader writes there, and has done so.
        unsafe { mprotect(begin, pages.len(), flags) }.is_ok()
    };
    if !protect(MprotectFlags::READ | MprotectFlags::WRITE) {
        return false;
    }
    place.store(hook, Ordering::Relaxed);
    protect(MprotectFlags::READ);
    true
}

/// The whole pages of this, as the loader protects them.
fn pages_of(range: Range<usize>) -> Range<usize> {
    let down = |address: usize| address & !(page_size() - 1);
    down(range.start)..down(range.end)
}
