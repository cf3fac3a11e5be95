//! An initramfs: a cpio archive of the "newc" kind (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// An archive that grows.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let (links, len, name_len) = (1, data.len(), name.len() + 1);
        let header = [self.entries, mode, 0, 0, links, 0, u32::try_from(len).expect("a file")];
        let mut text = String::from("070701");
        for field in
            header.into_iter().chain([0; 4]).chain([u32::try_from(name_len).expect("a name"), 0])
        {
            text.push_str(&format!("{field:08x}"));
        }
        self.bytes.extend(text.as_bytes());
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// A directory with all above it; `path` is absolute, as everywhere here.
    pub fn directory(&mut self, path: &str) {
        let mut whole = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if !whole.is_empty() {
                whole.push('/');
            }
            whole.push_str(part);
            if self.directories.insert(whole.clone()) {
                self.entry(&whole.clone(), DIRECTORY, &[]);
            }
        }
    }

    fn above(&mut self, path: &str) {
        if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
            self.directory(parent);
        }
    }

    /// A file that can be executed.
    pub fn file(&mut self, path: &str, data: &[u8]) {
        self.above(path);
        self.entry(path.trim_start_matches('/'), FILE, data);
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.above(path);
        self.entry(path.trim_start_matches('/'), LINK, to.as_bytes());
    }

    /// All of it.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
