//! Control groups whose memory is limited: what a container is given.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binaries::program;

/// A control group, of either version, that is taken away again when nobody is in it any more.
pub struct MemoryGroup {
    path: PathBuf,
    /// Which file tells how often the limit was reached, and what the line says before the number.
    reached: (&'static str, &'static str),
}

impl MemoryGroup {
    /// A group whose programs and their kernel memory have `limit` bytes; `None` where none can be made.
    #[must_use]
    pub fn new(limit: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", ("memory.failcnt", "")),
            ("/sys/fs/cgroup", "memory.max", ("memory.events", "max ")),
        ];
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shunt-test-{}-{n}", std::process::id());
        versions.into_iter().find_map(|(root, file, reached)| {
            let group = Self { path: Path::new(root).join(&name), reached };
            fs::create_dir(&group.path).ok()?;
            // Not created: a group without this controller has no such file.
            let made = group.path.join(file).exists();
            (made && fs::write(group.path.join(file), limit.to_string()).is_ok()).then_some(group)
        })
    }

    /// The same command, in the group.
    #[must_use]
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new(program("sh"));
        inside.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        inside
    }

    /// How often somebody wanted more than the limit.
    ///
    /// # Panics
    /// When the kernel does not tell.
    #[must_use]
    pub fn times_reached(&self) -> u64 {
        let (file, before) = self.reached;
        let text = fs::read_to_string(self.path.join(file)).expect("a control group");
        let count = text.lines().find_map(|line| line.strip_prefix(before)?.parse().ok());
        count.unwrap_or_else(|| panic!("{file}: {text}"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Refused while somebody is in it, who then has not ended as he should: left for people to see.
        let _ = fs::remove_dir(&self.path);
    }
}
