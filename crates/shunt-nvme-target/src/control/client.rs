//! The end that asks.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Request;

/// How long a target may take: it may have to open, and to make longer, many files.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no good answer.
#[derive(Debug)]
pub enum AskError {
    /// No target listens there.
    Unreachable(PathBuf, io::Error),
    /// The conversation broke off.
    Broken(io::Error),
    /// The target has refused, for this reason.
    Refused(String),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(path, e) if e.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "{}: {e}: ask as the user that the target runs as", path.display())
            }
            Self::Unreachable(path, e) => write!(
                f,
                "no target is commanded at {}: {e}; start one with `shunt nvme target --control {0}`",
                path.display()
            ),
            Self::Broken(e) => write!(f, "the target did not answer: {e}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for AskError {}

/// Asks the target that is commanded at `path`.
///
/// # Errors
/// Why there is no good answer.
pub fn ask(path: &Path, request: &Request) -> Result<String, AskError> {
    let socket = UnixStream::connect(path);
    let mut socket = socket.map_err(|e| AskError::Unreachable(path.to_owned(), e))?;
    let mut answer = String::new();
    let mut talk = || {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.write_all(request.text().as_bytes())?;
        socket.shutdown(Shutdown::Write)?;
        socket.read_to_string(&mut answer)
    };
    talk().map_err(AskError::Broken)?;
    match answer.split_once('\n') {
        Some(("ok", text)) => Ok(text.to_owned()),
        Some(("refused", why)) => Err(AskError::Refused(why.to_owned())),
        _ => Err(AskError::Broken(io::ErrorKind::UnexpectedEof.into())),
    }
}
