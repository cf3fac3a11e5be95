//! prctl(2), before which the library may have to step back ([`shunt_runtime::fallback`]).

use crate::next;
use shunt_runtime::fallback::before_prctl;
use shunt_runtime::system::abi::{c_int, c_ulong};

/// # Safety
/// As the C function.
pub unsafe fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    before_prctl(option, a, b);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::prctl(option, a, b, c, d) }
}
