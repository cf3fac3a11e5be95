//! Whether a program that is about to start will have the library in it.

use core::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat};
use rustix::io::pread;

use crate::knobs;
use crate::system::abi::Strings;

/// A program that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    file: File,
    /// Its environment; null: this program's.
    env: Strings,
}

#[derive(Clone, Copy, Debug)]
enum File {
    /// Looked up by the kernel, from a directory.
    Path(c_int, *const c_char),
    Open(c_int),
    /// Looked for by libc in several places, or a shell.
    Sought,
}

unsafe extern "C" {
    static environ: Strings;
}

impl Program {
    /// That at a path.
    pub const fn at(path: *const c_char, env: Strings) -> Self {
        Self::beneath(libc::AT_FDCWD, path, env)
    }

    /// That at a path from a directory on.
    pub const fn beneath(dir: c_int, path: *const c_char, env: Strings) -> Self {
        Self { file: File::Path(dir, path), env }
    }

    /// That behind a descriptor.
    pub const fn behind(fd: c_int, env: Strings) -> Self {
        Self { file: File::Open(fd), env }
    }

    /// One that libc looks for.
    pub const fn sought(env: Strings) -> Self {
        Self { file: File::Sought, env }
    }

    /// True when it certainly cannot start, as its path leads nowhere.
    ///
    /// # Safety
    /// As for [`Self::is_without_library`].
    pub unsafe fn is_missing(&self) -> bool {
        let File::Path(dir, path) = self.file else { return false };
        if path.is_null() {
            return false;
        }
        // SAFETY: a directory of the program's, or AT_FDCWD; a C string, by the caller's promise.
        let (dir, path) = unsafe { (BorrowedFd::borrow_raw(dir), CStr::from_ptr(path)) };
        // An empty one may be the directory itself (`AT_EMPTY_PATH`).
        !path.is_empty() && statat(dir, path, AtFlags::empty()).is_err()
    }

    /// True when it will certainly not have the library in it. Where that can't be told it has.
    ///
    /// # Safety
    /// Path and environment are what execve(2) wants, as the function was given them that starts it.
    pub unsafe fn is_without_library(&self) -> bool {
        // SAFETY: the C library's variable, which programs change before they start others, if they do.
        let env = if self.env.is_null() { unsafe { environ } } else { self.env };
        // SAFETY: the caller promises an environment that execve(2) takes; `environ` is one.
        let is_preloaded =
            || unsafe { knobs::strings(env) }.any(|v| knobs::is_preload(v.to_bytes()));
        // SAFETY: the caller promises an environment that execve(2) takes; `environ` is one.
        let is_off = unsafe { knobs::strings(env) }.any(|v| knobs::disables(v.to_bytes()));
        if is_off || (knobs::get().preloaded && !is_preloaded()) {
            return true;
        }
        let read = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match self.file {
            File::Path(_, path) if path.is_null() => false,
            File::Path(dir, path) => {
                // SAFETY: a directory of the program's, or AT_FDCWD; a C string, by the caller's promise.
                let (dir, path) = unsafe { (BorrowedFd::borrow_raw(dir), CStr::from_ptr(path)) };
                openat(dir, path, read, Mode::empty()).is_ok_and(|file| is_on_its_own(&file))
            }
            // SAFETY: only looked at.
            File::Open(fd) if fd >= 0 => is_on_its_own(unsafe { BorrowedFd::borrow_raw(fd) }),
            File::Open(_) | File::Sought => false,
        }
    }
}

/// True for an executable into which the dynamic loader will put no library that a user names: static, for another
/// machine, or one that gains rights.
fn is_on_its_own(file: impl AsFd) -> bool {
    let Ok(stat) = fstat(&file) else { return false };
    if stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0
        && !rustix::thread::no_new_privs().unwrap_or(true)
    {
        // Where the library is in it nevertheless, it takes nothing over.
        return true;
    }
    let mut head = [0; 64];
    let is_whole = pread(&file, &mut head, 0).is_ok_and(|n| n == head.len());
    is_whole
        && of_elf(&head, |entry, at| pread(&file, &mut *entry, at).is_ok_and(|n| n == entry.len()))
}

/// The same of an ELF file, by its head and `read`, which reads at an offset. False for what is none: a script, for example.
fn of_elf(head: &[u8; 64], read: impl Fn(&mut [u8], u64) -> bool) -> bool {
    const INTERPRETER: u32 = 3;
    const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let u16_at = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    if head[..4] != *b"\x7fELF" {
        return false;
    }
    if head[4] != 2 || u16_at(18) != MACHINE {
        return true;
    }
    let [size, count] = [u16_at(54), u16_at(56)];
    let mut at = [0; 8];
    at.copy_from_slice(&head[32..40]);
    let first = u64::from_ne_bytes(at);
    let is_interpreter = |n: u16| {
        let mut kind = [0; 4];
        // What can't be read may be one.
        !read(&mut kind, first.saturating_add(u64::from(n) * u64::from(size)))
            || u32::from_ne_bytes(kind) == INTERPRETER
    };
    !(0..count).any(is_interpreter)
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    /// The head of a file for this machine with program headers of these kinds behind it.
    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut file = std::fs::read("/proc/self/exe").unwrap();
        file.truncate(64);
        file[32..40].copy_from_slice(&64_u64.to_ne_bytes());
        file[56..58].copy_from_slice(&u16::try_from(kinds.len()).unwrap().to_ne_bytes());
        for kind in kinds {
            file.extend(kind.to_ne_bytes());
            file.extend([0; 52]);
        }
        file
    }

    fn is_own(file: &[u8]) -> bool {
        let mut head = [0; 64];
        head.copy_from_slice(&file[..64]);
        of_elf(&head, |to, at| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let from = at.checked_add(to.len()).and_then(|end| file.get(at..end));
            from.is_some_and(|from| {
                to.copy_from_slice(from);
                true
            })
        })
    }

    #[test]
    fn a_path_that_leads_nowhere_is_known() {
        // SAFETY: paths, or none.
        let is_missing = |program: Program| unsafe { program.is_missing() };
        let at = |path: &CStr| is_missing(Program::at(path.as_ptr(), ptr::null()));
        assert!(at(c"/nowhere") && at(c"/proc/self/exe/below"));
        assert!(!at(c"/proc/self/exe") && !at(c"/proc"), "it may start");
        assert!(!at(c""), "what the descriptor stands for");
        assert!(!is_missing(Program::at(ptr::null(), ptr::null())));
        assert!(!is_missing(Program::sought(ptr::null())), "libc knows where");
        assert!(!is_missing(Program::behind(0, ptr::null())));
    }

    #[test]
    fn a_static_program_is_known() {
        assert!(is_own(&elf(&[1, 1, 6])));
        assert!(!is_own(&elf(&[1, 3, 1])));
        let mut other = elf(&[1, 3]);
        other[18] ^= 0xff;
        assert!(is_own(&other));
        // Cut short, so that it can't be told.
        assert!(!is_own(&elf(&[1, 1])[..100]));
        let mut script = elf(&[1]);
        script[..4].copy_from_slice(b"#!/b");
        assert!(!is_own(&script));
    }

    #[test]
    fn the_environment_tells() {
        let path = c"/proc/self/exe".as_ptr();
        let of = |env: &[*const c_char]| {
            // SAFETY: a C string, and an environment that ends with null.
            unsafe { Program::at(path, env.as_ptr()).is_without_library() }
        };
        // This one was started without.
        assert!(!of(&[ptr::null()]));
        assert!(of(&[c"SHUNT_DISABLE=1".as_ptr(), ptr::null()]));
    }
}
