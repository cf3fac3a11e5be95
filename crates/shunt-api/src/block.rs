//! Bytes that somebody else may be changing, a block at a time: each is read once, and what was read is the reader's own.

/// Bytes of a block.
pub const BLOCK: usize = 64;

/// What one load takes.
#[cfg(target_arch = "x86_64")]
type Load = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Load = [u8; 16];

const LOADS: usize = BLOCK / size_of::<Load>();

/// One load, from any address. A volatile read would have to be aligned.
///
/// # Safety
/// So many bytes can be read there.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn load(at: *const Load) -> Load {
    let loaded;
    // SAFETY: the caller promises that these bytes can be read, and the instruction reads nothing else.
    unsafe {
        core::arch::asm!(
            "movdqu {}, [{}]",
            out(xmm_reg) loaded,
            in(reg) at,
            options(nostack, readonly, preserves_flags)
        );
    }
    loaded
}

/// The same, a byte at a time.
///
/// # Safety
/// So many bytes can be read there.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn load(at: *const Load) -> Load {
    // SAFETY: the caller promises that these bytes can be read. Volatile, as the bytes can change at any time.
    core::array::from_fn(|i| unsafe { at.cast::<u8>().add(i).read_volatile() })
}

/// Reads a block, which may begin anywhere.
///
/// # Safety
/// So many bytes can be read there. Others may write there.
#[inline]
pub unsafe fn read(at: *const u8) -> [u8; BLOCK] {
    // SAFETY: each load lies in the block, of which the caller promises that it can be read.
    let loads: [Load; LOADS] =
        core::array::from_fn(|i| unsafe { load(at.cast::<Load>().wrapping_add(i)) });
    // SAFETY: both are the same number of plain bytes.
    unsafe { core::mem::transmute(loads) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_from_any_address() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for from in 0..=bytes.len() - BLOCK {
            // SAFETY: so many bytes are left.
            assert_eq!(unsafe { read(bytes.as_ptr().add(from)) }, bytes[from..from + BLOCK]);
        }
    }
}
