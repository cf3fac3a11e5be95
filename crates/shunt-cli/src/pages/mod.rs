//! Checks of the documentation. Links and anchors lead somewhere, command lines parse, targets of
//! make and variables exist, every reason has its cure, and source files are where pages say.

mod commands;
mod files;
mod links;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use shunt_wire::knob;
use shunt_wire::reason::Reason;

/// A page, as far as it is checked.
#[derive(Debug, Default)]
struct Page {
    /// From the repository's root.
    path: PathBuf,
    /// All of it.
    text: String,
    /// Destinations of links and pictures.
    links: Vec<String>,
    /// Where links can lead, as GitHub and mdBook name headings.
    anchors: Vec<String>,
    /// Blocks of code, with their language.
    blocks: Vec<(String, String)>,
    /// Code within a line.
    spans: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The name of a heading in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let mut page = Self { path: path.to_owned(), ..Self::default() };
        let (mut heading, mut block) = (None::<String>, None::<(String, String)>);
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let twice = page.anchors.iter().filter(|a| **a == name).count();
                    page.anchors.push(if twice == 0 { name } else { format!("{name}-{twice}") });
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(language) => language.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    block = Some((language, String::new()));
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.spans.push(code.into_string());
                }
                Event::Text(text) => {
                    if let Some((_, block)) = &mut block {
                        block.push_str(&text);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page.text = text;
        page
    }
}

/// All pages.
fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::new(), PathBuf::from("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if path.starts_with("docs") {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    // Else a wrong directory would pass for pages without faults.
    for known in ["README.md", "ARCHITECTURE.md", "docs/limits.md", "docs/design/waiting.md"] {
        assert!(found.iter().any(|path| path == Path::new(known)), "{known} is not found");
    }
    found.iter().map(|path| Page::read(path)).collect()
}

/// Fails with all that is wrong.
#[track_caller]
fn nothing(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn links_and_anchors_lead_somewhere() {
    nothing(&links::broken(&pages()));
}

#[test]
fn command_lines_can_be_parsed() {
    let (wrong, seen) = commands::wrong(&pages());
    nothing(&wrong);
    assert!(seen > 100, "only {seen} command lines were found");
}

#[test]
fn targets_of_make_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let (wrong, seen) = commands::wrong_targets(&pages(), &makefile);
    nothing(&wrong);
    assert!(seen > 20, "only {seen} targets were found");
}

#[test]
fn variables_exist() {
    // The example of a misspelt one.
    let known = |name: &str| name == "SHUNT_SPINN" || knob::ALL.iter().any(|knob| knob.env == name);
    let of_tests = {
        let mut text = fs::read_to_string(root().join("Makefile")).unwrap();
        for file in ["mode.rs", "binaries.rs", "record.rs", "points.rs", "lib.rs"] {
            text += &fs::read_to_string(root().join("tests/functional/src").join(file)).unwrap();
        }
        text
    };
    let mut wrong = Vec::new();
    for page in pages() {
        let others =
            page.text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        for name in others.filter(|word| word.starts_with("SHUNT_") && !word.ends_with('_')) {
            let test = name.starts_with("SHUNT_TEST_") && of_tests.contains(name);
            if !known(name) && !test {
                wrong.push(format!("{}: {name}", page.path.display()));
            }
        }
    }
    nothing(&wrong);
}

/// But of the changelog, which tells of files that were.
#[test]
fn files_of_the_code_exist() {
    let pages: Vec<_> =
        pages().into_iter().filter(|page| page.path != Path::new("CHANGELOG.md")).collect();
    let (wrong, seen) = files::missing(&pages, &files::sources());
    nothing(&wrong);
    assert!(seen > 100, "only {seen} files were found");
}

/// And says the same as the commands do, before anything else.
#[test]
fn every_reason_has_its_cure() {
    let page = Page::read(Path::new("docs/troubleshooting.md"));
    let wrong = |reason: &Reason| {
        let heading = format!("\n### {}\n\n", reason.name());
        let told = format!("{}\n{}\n", reason.explain().trim(), reason.fix());
        let has = page.text.split_once(&heading).is_some_and(|(_, rest)| rest.starts_with(&told));
        (!has).then(|| format!("{}: {heading}{told}", page.path.display()))
    };
    nothing(&Reason::ALL.iter().filter_map(wrong).collect::<Vec<_>>());
}

#[test]
fn the_first_pages_stay_short() {
    for (path, most) in [("README.md", 8 * 1024), ("ARCHITECTURE.md", 15 * 1024)] {
        let length = Page::read(Path::new(path)).text.len();
        assert!(
            length <= most,
            "{path} has {length} bytes, {most} are allowed: move something to docs/"
        );
    }
}

#[test]
fn the_site_has_every_page() {
    let summary = Page::read(Path::new("docs/site/SUMMARY.md"));
    let listed = |page: &Page| summary.links.iter().any(|link| Path::new(link) == page.path);
    let pages = pages();
    let lacking = pages.iter().filter(|page| page.path != summary.path && !listed(page));
    nothing(
        &lacking
            .map(|page| format!("docs/site/SUMMARY.md lacks {}", page.path.display()))
            .collect::<Vec<_>>(),
    );
}
