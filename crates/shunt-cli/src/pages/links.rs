//! Relative links of pages.

use std::path::{Component, Path, PathBuf};

use super::{Page, root};

/// Without `..`, which a file system would follow through links.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Links to what is not there.
pub fn broken(pages: &[Page]) -> Vec<String> {
    let mut broken = Vec::new();
    for page in pages {
        for link in
            page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (file, anchor) =
                link.split_once('#').map_or((&**link, None), |(file, anchor)| (file, Some(anchor)));
            let directory = page.path.parent().unwrap_or(Path::new(""));
            // The site is put together at the root.
            let directory =
                if page.path.ends_with("SUMMARY.md") { Path::new("") } else { directory };
            let path =
                if file.is_empty() { page.path.clone() } else { plain(&directory.join(file)) };
            let why = if !root().join(&path).is_file() {
                "is no file"
            } else if let Some(anchor) = anchor {
                let there = pages.iter().find(|other| other.path == path);
                match there {
                    Some(there) if there.anchors.iter().any(|a| a == anchor) => continue,
                    Some(_) => "has no such heading",
                    None => "is no page that has headings",
                }
            } else {
                continue;
            };
            broken.push(format!("{}: {link}: {} {why}", page.path.display(), path.display()));
        }
    }
    broken
}

mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_is_found() {
        let page = Page {
            path: "docs/limits.md".into(),
            links: [
                "#here",
                "#nowhere",
                "limits.md#here",
                "none.md",
                "../README.md",
                "https://x/y",
                "../../README.md",
            ]
            .map(String::from)
            .to_vec(),
            anchors: vec!["here".into()],
            ..Page::default()
        };
        let wrong = broken(&[page]);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("#nowhere: docs/limits.md has no such heading"), "{wrong:?}");
        assert!(wrong[1].contains("none.md: docs/none.md is no file"), "{wrong:?}");
    }
}
