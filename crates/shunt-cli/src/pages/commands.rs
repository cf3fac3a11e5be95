//! Command lines in pages: of `shunt` itself, and of make.

use clap::Parser;
use clap::error::ErrorKind;

use super::Page;
use super::words::commands;
use crate::cli::Cli;

/// What a page shows a reader to type: lines of blocks whole, code within a line maybe in part.
fn typed(page: &Page) -> impl Iterator<Item = (Vec<String>, bool)> {
    let blocks = page.blocks.iter().filter_map(|(language, text)| {
        let is_session = text.lines().any(|line| line.starts_with("$ "));
        match &**language {
            "sh" => Some(text.clone()),
            "" | "console" if is_session => {
                let lines = text.lines().filter_map(|line| line.strip_prefix("$ "));
                Some(lines.collect::<Vec<_>>().join("\n"))
            }
            _ => None,
        }
    });
    let whole = blocks.flat_map(|text| commands(&text)).map(|words| (words, true));
    let parts = page.spans.iter().flat_map(|span| commands(span)).map(|words| (words, false));
    whole.chain(parts)
}

/// A value for what stands for one.
fn value(word: &str) -> &str {
    match word {
        "HOST:PORT" | "ADDRESS:PORT" => "127.0.0.1:80",
        "PID:FD" => "1:3",
        "SECONDS" | "PID" | "N" | "S" | "ID" | "PORT" | "COUNT" | "BYTES" | "MICROSECONDS" => "1",
        "FILTER" => "mode=tcp",
        other => other,
    }
}

/// True for what stands for some words, and cannot be parsed: `[OPTIONS]`, `auto|never`, `…`.
fn is_pattern(word: &str) -> bool {
    word.contains(['[', '<', '…', '|', '*']) || word.ends_with("...")
}

/// Says what is wrong with the arguments of `shunt`.
fn fault(arguments: &[String], whole: bool) -> Option<String> {
    let pattern = arguments.iter().position(|word| is_pattern(word));
    // What stands behind `--` is another program's.
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let cut = pattern.filter(|at| *at < end);
    let known = arguments[..cut.unwrap_or(arguments.len())].iter().map(|word| value(word));
    let error = Cli::try_parse_from(["shunt"].into_iter().chain(known)).err()?;
    let unfinished = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
    );
    // A name alone is no whole line, and an option without its value neither.
    let named = !whole || cut.is_some();
    let short = named
        && error.kind() == ErrorKind::InvalidValue
        && error.to_string().contains("a value is required");
    if named && (unfinished || short) {
        return None;
    }
    Some(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// The words of a command behind variables for it, if it is this program.
fn of<'a>(program: &str, words: &'a [String]) -> Option<&'a [String]> {
    let is_variable = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let before = words.iter().take_while(|word| is_variable(word) || *word == "sudo").count();
    let (first, rest) = words[before..].split_first()?;
    (first == program || first.strip_prefix("target/release/") == Some(program)).then_some(rest)
}

/// What cannot be parsed, and how much was looked at.
pub fn wrong(pages: &[Page]) -> (Vec<String>, usize) {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages {
        for (words, whole) in typed(page) {
            let Some(arguments) = of("shunt", &words) else { continue };
            // The project's name, or that of the files' directory.
            if arguments.is_empty() {
                continue;
            }
            seen += 1;
            if let Some(why) = fault(arguments, whole) {
                wrong.push(format!("{}: {}: {why}", page.path.display(), words.join(" ")));
            }
        }
    }
    (wrong, seen)
}

/// What is no target of this makefile, and how much was looked at.
pub fn wrong_targets(pages: &[Page], makefile: &str) -> (Vec<String>, usize) {
    let is_target = |name: &str| {
        makefile
            .lines()
            .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))
    };
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages {
        for (words, _) in typed(page) {
            let Some(arguments) = of("make", &words) else { continue };
            for target in arguments
                .iter()
                .filter(|word| !word.contains('=') && !word.starts_with('-') && !is_pattern(word))
            {
                seen += 1;
                if !is_target(target) {
                    wrong.push(format!("{}: make {target}", page.path.display()));
                }
            }
        }
    }
    (wrong, seen)
}

mod tests {
    use super::*;

    fn faults(line: &str, whole: bool) -> Option<String> {
        commands(line).iter().find_map(|words| fault(of("shunt", words)?, whole))
    }

    #[test]
    fn what_cannot_be_typed_is_found() {
        for good in [
            "SHUNT_SPIN=never shunt run -- nginx -g 'daemon off;'",
            "sudo target/release/shunt agent --host --detach",
            "shunt doctor --pid PID | less",
            "shunt list sport = :80 not program nginx",
        ] {
            assert_eq!(faults(good, true), None, "{good}");
        }
        for bad in [
            "shunt rum -- nginx",
            "shunt list --jsn",
            "shunt run --spin soon -- nginx",
            "shunt run",
            "shunt doctor --pid nginx",
        ] {
            assert!(faults(bad, true).is_some(), "{bad}");
        }
        for name in
            ["shunt run", "shunt agent --metrics [ADDRESS]", "shunt nvme", "shunt doctor --unit"]
        {
            assert_eq!(faults(name, false), None, "{name}");
        }
        assert!(faults("shunt run --spim", false).is_some());
    }

    #[test]
    fn examples_of_man_pages_can_be_typed() {
        let wrong: Vec<_> = crate::man::examples()
            .filter_map(|line| Some(format!("{line}: {}", faults(line, true)?)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn what_cannot_be_made_is_found() {
        let blocks = vec![("sh".to_owned(), "make all PREFIX=/usr\nmake fun -j2\n".to_owned())];
        let page = Page { path: "a.md".into(), blocks, ..Page::default() };
        assert_eq!(wrong_targets(&[page], "all: x\n"), (vec!["a.md: make fun".to_owned()], 2));
    }
}
