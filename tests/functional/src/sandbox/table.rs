//! The machine's processes, as /proc has them.

use std::fs;

/// A process.
pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) session: u32,
    pub(super) state: String,
    /// Its name, in parentheses.
    pub(super) name: String,
}

/// All of them.
pub(super) fn all() -> Vec<Entry> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(entry).collect()
}

fn entry(pid: u32) -> Option<Entry> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A name may have any bytes, parentheses among them.
    let (front, fields) = stat.rsplit_once(')')?;
    let name = format!("({})", front.split_once('(')?.1);
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Entry { pid, parent, session, state, name })
}

/// What each thread of a process and of all that it has started waits for in the kernel.
pub(super) fn where_stuck(pid: u32) -> String {
    let all = all();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(all.iter().filter(|entry| entry.parent == parent).map(|entry| entry.pid));
        next += 1;
    }
    family.into_iter().map(threads).collect()
}

fn threads(pid: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return String::new() };
    tasks
        .flatten()
        .map(|task| {
            let field = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (name, wait) = (field("comm"), field("wchan"));
            format!("{pid} {} {wait} {}\n", name.trim(), field("syscall").trim())
        })
        .collect()
}
