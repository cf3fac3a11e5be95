//! `shunt enable --status`.

use std::path::Path;

use super::drop_in::DropIn;
use super::manager;
use super::unit::Unit;
use crate::output::{complain, print};
use crate::table::Table;
use crate::{doctor, library};

/// Prints which services are enabled below `directory`.
pub fn run(directory: &Path) -> u8 {
    let all = match DropIn::all(directory) {
        Ok(all) if all.is_empty() => return print("no service is enabled\n"),
        Ok(all) => all,
        Err(e) => {
            complain(&format!("{} cannot be read: {e}", directory.display()));
            return 1;
        }
    };
    let mut table = Table::new(&["Service", "Drop-in", "Process"], &[]);
    for drop_in in all {
        let (state, process) = if drop_in.unit.ends_with("@.service") {
            ("for each instance".to_owned(), "-".to_owned())
        } else {
            match manager::show(&drop_in.unit) {
                Ok(said) => judge(&drop_in, &Unit::parse(&drop_in.unit, &said)),
                Err(why) => {
                    complain(&format!("systemctl does not answer: {why}"));
                    return 1;
                }
            }
        };
        table.row(vec![drop_in.unit, state, process]);
    }
    print(&table.render())
}

fn judge(drop_in: &DropIn, unit: &Unit<'_>) -> (String, String) {
    let path = drop_in.path().to_string_lossy();
    let preload = unit.variable(library::VARIABLE).unwrap_or_default();
    let state = if unit.get("LoadState") != "loaded" {
        "there is no such service"
    } else if !unit.words("DropInPaths").any(|there| there == path) {
        "not read yet: systemctl daemon-reload"
    } else if library::without(preload.as_ref()).is_none() {
        "another drop-in wins over it"
    } else {
        "in force"
    };
    let process = unit.main_pid().map(|pid| (pid, doctor::has_library(pid)));
    let process = match process {
        None => "does not run".to_owned(),
        Some((pid, Some(true))) => format!("{pid}, with the library"),
        Some((pid, Some(false))) => format!("{pid}, without the library: restart it"),
        Some((pid, None)) => format!("{pid}, of which nothing can be seen"),
    };
    (state.to_owned(), process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_drop_in() {
        let drop_in = DropIn::of(Path::new("/e"), "a.service");
        let state = |said: &str| judge(&drop_in, &Unit::parse("a.service", said));
        let path = drop_in.path().display();
        let read = format!("LoadState=loaded\nDropInPaths=/x {path}\nMainPID=0\n");
        let given = format!("{read}Environment=\"LD_PRELOAD=/l/\\$LIB/libshunt.so\"\n");
        assert_eq!(state(&given), ("in force".to_owned(), "does not run".to_owned()));
        assert_eq!(state(&read).0, "another drop-in wins over it");
        assert!(state("LoadState=loaded\nDropInPaths=/x\n").0.starts_with("not read yet"));
        assert_eq!(state("LoadState=not-found\n").0, "there is no such service");
        let own = std::process::id();
        let runs = state(&format!("{given}MainPID={own}\n")).1;
        assert_eq!(runs, format!("{own}, without the library: restart it"));
    }
}
