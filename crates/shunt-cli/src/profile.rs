//! `--profile`: several settings by one word.

use std::collections::BTreeMap;

use shunt_wire::knob::{self, Knob};

/// What is to be had at the cost of the rest.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Answers come soon: waiting calls spin for long, and rings keep their memory. Costs processor time and memory.
    Latency,
    /// Bytes come fast: rings keep their memory. Costs memory.
    Throughput,
    /// Little is used: no call spins, and memory goes back soon. Costs a wake-up for each wait.
    Efficient,
}

impl Profile {
    /// What it sets.
    const fn settings(self) -> &'static [(Knob, &'static str)] {
        match self {
            Self::Latency => {
                &[(knob::SPIN, "200"), (knob::IDLE, "never"), (knob::SHORT_LIVED, "all")]
            }
            Self::Throughput => &[(knob::SPIN, "auto"), (knob::PIN, "auto"), (knob::IDLE, "never")],
            Self::Efficient => &[
                (knob::SPIN, "never"),
                (knob::PIN, "never"),
                (knob::IDLE, "100"),
                (knob::VECTORS, "1"),
            ],
        }
    }

    /// The variables that it sets, by name.
    #[must_use]
    pub fn variables(self) -> BTreeMap<&'static str, &'static str> {
        self.settings().iter().map(|(knob, value)| (knob.env, *value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_value_means_something() {
        for profile in Profile::value_variants() {
            for (knob, value) in profile.settings() {
                assert!(knob.accepts(value.as_bytes()), "{profile:?}: {}={value}", knob.env);
            }
            assert_eq!(profile.variables().len(), profile.settings().len(), "{profile:?}");
        }
    }

    #[test]
    fn the_page_has_every_setting() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profiles.md");
        let text = std::fs::read_to_string(path).unwrap();
        for profile in Profile::value_variants() {
            let name = profile.to_possible_value().unwrap();
            let row = format!("| `{}` |", name.get_name());
            let row = text.lines().find(|line| line.starts_with(&row)).unwrap();
            let settings: Vec<_> = profile
                .settings()
                .iter()
                .map(|(knob, value)| format!("`{}={value}`", knob.env))
                .collect();
            assert!(row.contains(&settings.join(", ")), "{row}\n{settings:?}");
        }
    }
}
