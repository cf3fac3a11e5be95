//! Finding and becoming a program, as a shell does.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Exit status for a program that is not found.
pub const NOT_FOUND: u8 = 127;
/// Exit status for a program that cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;

/// The file that `name` means: itself if it holds a slash, else the first match in `PATH`.
#[must_use]
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return path.exists().then_some(path);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

/// True for a file that this user may execute.
#[must_use]
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Replaces this process by the program `command[0]`. Returns only when that fails.
#[must_use]
pub fn become_program(command: &[OsString]) -> io::Error {
    let args: Result<Vec<_>, _> = command.iter().map(|a| CString::new(a.as_bytes())).collect();
    let Ok(args) = args else { return io::ErrorKind::InvalidInput.into() };
    let mut argv: Vec<_> = args.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    // libc's, not std's Command: that would reset SIGPIPE and the signal mask, which the program is
    // to inherit as they are.
    // SAFETY: argv is an array of C strings that ends with null.
    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
    io::Error::last_os_error()
}

/// What a shell would say and return for a program that could not be started.
#[must_use]
pub fn failure(name: &OsStr, error: &io::Error) -> (String, u8) {
    let name = name.display();
    match error.raw_os_error() {
        Some(libc::ENOENT) => (format!("{name}: not found"), NOT_FOUND),
        _ => (format!("{name}: cannot be executed: {error}"), NOT_EXECUTABLE),
    }
}
