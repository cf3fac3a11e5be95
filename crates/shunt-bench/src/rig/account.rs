//! A user that programs run as where root runs the bench: some servers refuse to run as root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Result};

/// A user of the system, with a directory of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// Its number.
    pub uid: u32,
    /// That of its first group.
    pub gid: u32,
    /// Where it may make files.
    pub dir: PathBuf,
}

impl Account {
    /// The user of this name, with a directory in `parent`.
    ///
    /// # Errors
    /// [`Failure::Skipped`] when there is no such user.
    pub fn new(name: &str, parent: &Path) -> Result<Self> {
        let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
        let (uid, gid) = numbers(&passwd, name)
            .ok_or_else(|| Failure::Skipped(format!("there is no user {name}")))?;
        let dir = parent.join(format!("user-{name}"));
        // Others may go through the bench's directory, and see no more of it.
        let through = fs::Permissions::from_mode(0o711);
        fs::set_permissions(parent, through).context("the bench's directory")?;
        fs::create_dir_all(&dir).context("a user's directory")?;
        chown(&dir, Some(uid), Some(gid)).context("a user's directory")?;
        Ok(Self { uid, gid, dir })
    }
}

/// Numbers of user and group, from passwd(5).
fn numbers(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let mut lines = passwd.lines().map(|line| line.split(':'));
    let mut fields = lines.find_map(|mut fields| (fields.next()? == name).then_some(fields))?;
    fields.next()?;
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passwd_holds() {
        let text = "root:x:0:0:root:/root:/bin/bash\npostgres:x:101:104::/var/lib/x:/bin/sh\n";
        assert_eq!(numbers(text, "postgres"), Some((101, 104)));
        assert_eq!(numbers(text, "post"), None);
        assert_eq!(numbers("", "postgres"), None);
    }
}
