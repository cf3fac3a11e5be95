//! What happens to the names of the library and the command.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

const NAMES: [&str; 2] = ["libshunt.so", "shunt"];

/// Sees every change of these names in directories and those below them.
pub struct Watch(OwnedFd);

impl Watch {
    pub fn of(directories: Vec<PathBuf>) -> Self {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let mut left = directories;
        while let Some(directory) = left.pop() {
            inotify::add_watch(&watch, &directory, WatchFlags::ALL_EVENTS).unwrap();
            let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap());
            left.extend(entries.filter(|e| e.file_type().unwrap().is_dir()).map(|e| e.path()));
        }
        Self(watch)
    }

    /// Sees that each name was there all the time, and no file of that name written to.
    pub fn assert_only_renamed(&self) {
        let forbidden = ReadFlags::CREATE
            | ReadFlags::DELETE
            | ReadFlags::MODIFY
            | ReadFlags::CLOSE_WRITE
            | ReadFlags::MOVED_FROM
            | ReadFlags::QUEUE_OVERFLOW;
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.0, &mut room);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    let is_ours = name.as_deref().is_none_or(|name| NAMES.contains(&name));
                    let seen = event.events() & forbidden;
                    assert!(!is_ours || seen.is_empty(), "{name:?}: {seen:?}");
                }
                Err(Errno::AGAIN) => return,
                Err(e) => panic!("{e}"),
            }
        }
    }
}
