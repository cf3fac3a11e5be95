//! Renderings of a report that was written before (`--from`): nothing is measured.

use std::fs;
use std::path::Path;

use crate::failure::{Context, Failure, Result};
use crate::options::Options;
use crate::report::{Report, SCHEMA, VERSION, front, html};

/// Reads a report that `--json` has written.
fn read(path: &Path) -> Result<Report> {
    let text = fs::read_to_string(path).context(path.display())?;
    let report: Report = serde_json::from_str(&text)
        .context(format!("{} is no report of `shunt bench --json`", path.display()))?;
    if report.schema == SCHEMA && report.version == VERSION {
        return Ok(report);
    }
    let (schema, version) = (&report.schema, report.version);
    let why = format!("{schema} {version} is not {SCHEMA} {VERSION}, which this version reads");
    Err(Failure::failed(format!("{}: {why}", path.display())))
}

/// Writes what the options ask for.
///
/// # Errors
/// A report cannot be read, is of another schema, or lacks rows; a file cannot be written.
pub fn render(options: &Options) -> Result<()> {
    if options.svg.is_none() && options.html.is_none() {
        return Err(Failure::failed("--from needs --html or --svg, to write to"));
    }
    let reports = options.from.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let [first, ..] = &*reports else { return Err(Failure::failed("--from names no report")) };
    if let Some(to) = &options.html {
        fs::write(to, html::page(first)).context(to.display())?;
    }
    if let Some(to) = &options.svg {
        fs::write(to, front::svg(first).context("--from")?).context(to.display())?;
        if let Some(readme) = &options.readme {
            let links = options.from.iter().map(|path| link(path, readme));
            let named: Vec<_> = links.zip(&reports).collect();
            let figures = front::markdown(&named, &link(to, readme)).context("--from")?;
            let old = fs::read_to_string(readme).context(readme.display())?;
            let new = front::replace(&old, &figures).context(readme.display())?;
            fs::write(readme, new).context(readme.display())?;
        }
    }
    Ok(())
}

/// A file as a document beside or above it names it.
fn link(file: &Path, document: &Path) -> String {
    let beside = document.parent().and_then(|directory| file.strip_prefix(directory).ok());
    beside.unwrap_or(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::front::{BEGIN, END};

    fn asked(dir: &Path) -> Options {
        Options {
            from: vec![dir.join("report.json"), dir.join("other.json")],
            svg: Some(dir.join("chart.svg")),
            readme: Some(dir.join("README.md")),
            html: Some(dir.join("report.html")),
            ..Options::default()
        }
    }

    #[test]
    fn what_is_asked_for_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let options = asked(dir.path());
        let report = front::tests::fit();
        for name in ["report.json", "other.json"] {
            fs::write(dir.path().join(name), serde_json::to_string(&report).unwrap()).unwrap();
        }
        fs::write(dir.path().join("README.md"), format!("a\n{BEGIN}x -->\n{END}\nb\n")).unwrap();
        render(&options).unwrap();
        let readme = fs::read_to_string(dir.path().join("README.md")).unwrap();
        assert!(
            readme.starts_with(&format!("a\n{BEGIN}report.json other.json -->\n![")),
            "{readme}"
        );
        assert!(
            readme.contains("](chart.svg)") && readme.ends_with(&format!("{END}\nb\n")),
            "{readme}"
        );
        assert_eq!(fs::read_to_string(dir.path().join("chart.svg")).ok(), front::svg(&report).ok());
        assert!(
            fs::read_to_string(dir.path().join("report.html")).unwrap().starts_with("<!DOCTYPE")
        );
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("report.json");
        let why =
            |options: &Options| render(options).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(why(&asked(dir.path())).contains("report.json: No such file"));
        fs::write(&json, "{}").unwrap();
        assert!(why(&asked(dir.path())).contains("missing field"));
        let report = Report { version: VERSION + 1, ..front::tests::fit() };
        fs::write(&json, serde_json::to_string(&report).unwrap()).unwrap();
        assert!(why(&asked(dir.path())).contains("which this version reads"));
        fs::write(&json, serde_json::to_string(&front::tests::fit()).unwrap()).unwrap();
        assert!(why(&asked(dir.path())).contains("other.json: No such file"));
        fs::copy(&json, dir.path().join("other.json")).unwrap();
        assert!(why(&Options::default()).contains("needs --html or --svg"));
        fs::write(dir.path().join("README.md"), "no marks").unwrap();
        assert!(why(&asked(dir.path())).contains("no lines"));
    }
}
