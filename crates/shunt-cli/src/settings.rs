//! Mistakes in the `SHUNT_*` variables. The library passes over them in silence; `shunt run` and
//! `shunt doctor` report them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use shunt_agent::config::Place;
use shunt_agent::metrics::Address;
use shunt_wire::knob::{self, Knob};

/// What all of them begin with.
const PREFIX: &str = "SHUNT_";

/// The mistakes in this process's environment, each in a sentence.
#[must_use]
pub fn mistakes() -> Vec<String> {
    let variables = std::env::vars_os();
    variables.filter_map(|(name, value)| mistake(name.as_bytes(), value.as_bytes())).collect()
}

/// What is wrong with one variable, if anything is.
#[must_use]
pub fn mistake(name: &[u8], value: &[u8]) -> Option<String> {
    let Some(knob) = knob::named(name) else { return misspelt(name) };
    let shown = OsStr::from_bytes(value).display();
    let name = knob.env;
    if let Some(why) = refused(knob, value) {
        return Some(format!("{name}={shown} is not heeded: {why}; correct or unset it"));
    }
    if knob.accepts(value) {
        return None;
    }
    Some(if name == knob::DISABLE.env {
        format!(
            "{name}={shown} is neither yes nor no, and switches Shunt off; unset it, or set it to {}",
            knob.syntax
        )
    } else {
        format!(
            "{name}={shown} is not heeded, and its default ({}) holds: it must be {}; correct or unset it",
            knob.default, knob.syntax
        )
    })
}

/// Why the agent passes over an address or a device.
fn refused(knob: &Knob, value: &[u8]) -> Option<String> {
    let value = std::str::from_utf8(value).ok().filter(|value| !value.is_empty())?;
    match knob.env {
        name if name == knob::METRICS.env => value.parse::<Address>().err().map(|e| e.to_string()),
        name if name == knob::IVSHMEM.env => value.parse::<Place>().err().map(|e| e.to_string()),
        _ => None,
    }
}

/// A name that is almost one of ours. Others may be anybody's: Kubernetes names variables after services.
fn misspelt(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let rest = name.strip_prefix(PREFIX)?;
    let distance = |knob: &&Knob| strsim::damerau_levenshtein(rest, &knob.env[PREFIX.len()..]);
    let nearest = knob::ALL.iter().min_by_key(distance)?;
    let most = if rest.len() <= 5 { 1 } else { 2 };
    (distance(&nearest) <= most).then(|| {
        format!("{name} is no variable of Shunt, and is not heeded; did you mean {}?", nearest.env)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, value: &str) -> String {
        mistake(name.as_bytes(), value.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn values_that_make_no_sense_are_told_with_what_would() {
        let spin = said("SHUNT_SPIN", "nevr");
        assert!(
            spin.contains("SHUNT_SPIN=nevr is not heeded, and its default (auto) holds"),
            "{spin}"
        );
        assert!(spin.contains("auto, never or a whole number"), "{spin}");
        assert!(said("SHUNT_DISABLE", "flase").contains("switches Shunt off"));
        assert!(said("SHUNT_METRICS", "everywhere").contains("is not heeded"));
        for (name, value) in [
            ("SHUNT_SPIN", "never"),
            ("SHUNT_DISABLE", "false"),
            ("SHUNT_METRICS", "unix"),
            ("SHUNT_RUN_DIR", "/run/shunt"),
            ("SHUNT_VECTORS", ""),
        ] {
            assert_eq!(said(name, value), "", "{name}={value}");
        }
    }

    #[test]
    fn names_that_are_almost_ours_are_told() {
        assert!(said("SHUNT_SPINN", "1").ends_with("did you mean SHUNT_SPIN?"));
        assert!(said("SHUNT_RUNDIR", "/x").ends_with("did you mean SHUNT_RUN_DIR?"));
        for other in ["SHUNT_PORT", "SHUNT_SERVICE_HOST", "SHUNT_TEST_FULL", "PATH", "SHUN_SPIN"] {
            assert_eq!(said(other, "1"), "", "{other}");
        }
    }
}
