//! The licences of all that is built into Shunt, or tests it, are those that `deny.toml` allows.
//!
//! `make check` has cargo-deny look at more than that, where it is installed. This test always runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode, license_id};

/// Licences by name, and those that single crates may have besides.
struct Allowed {
    all: Vec<String>,
    besides: BTreeMap<String, Vec<String>>,
}

impl Allowed {
    fn read(root: &Path) -> Self {
        let text = std::fs::read_to_string(root.join("deny.toml")).unwrap();
        let config: toml::Table = text.parse().unwrap();
        let names = |value: &toml::Value| -> Vec<String> {
            let names = value.as_array().unwrap().iter();
            names.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        let licenses = &config["licenses"];
        let exceptions = licenses["exceptions"].as_array().unwrap().iter();
        let besides = exceptions
            .map(|one| (one["crate"].as_str().unwrap().to_owned(), names(&one["allow"])))
            .collect();
        Self { all: names(&licenses["allow"]), besides }
    }

    /// Why a crate with this licence may not be used, if so.
    fn refuses(&self, name: &str, licence: Option<&str>) -> Option<String> {
        let Some(licence) = licence else { return Some("it names no licence".into()) };
        let expression = match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(e) => return Some(format!("{licence}: {}", e.reason)),
        };
        let besides = self.besides.get(name).into_iter().flatten();
        let ids: Vec<_> = self.all.iter().chain(besides).map(|name| license_id(name)).collect();
        let agrees = expression.evaluate(|wanted| {
            wanted.license.id().is_some_and(|id| ids.contains(&Some(id)))
                && wanted.addition.is_none()
        });
        (!agrees).then(|| licence.to_owned())
    }
}

#[test]
fn licences_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let allowed = Allowed::read(root);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{} crates", packages.len());
    let refused: Vec<_> = packages
        .iter()
        .filter_map(|package| {
            let name = package["name"].as_str().unwrap();
            let why = allowed.refuses(name, package["license"].as_str())?;
            Some(format!("{name}: {why}"))
        })
        .collect();
    assert!(refused.is_empty(), "not in deny.toml: {refused:#?}");
}

#[test]
fn what_is_not_allowed_is_refused() {
    let allowed = Allowed {
        all: vec!["MIT".into(), "Apache-2.0".into()],
        besides: BTreeMap::from([("one".into(), vec!["Zlib".into()])]),
    };
    for (name, licence, agrees) in [
        ("any", Some("MIT"), true),
        ("any", Some("MIT/GPL-3.0"), true),
        ("any", Some("GPL-3.0-only OR Apache-2.0"), true),
        ("any", Some("MIT AND GPL-3.0-only"), false),
        ("any", Some("Apache-2.0 WITH LLVM-exception"), false),
        ("any", Some("Zlib"), false),
        ("one", Some("Zlib"), true),
        ("one", Some("ISC"), false),
        ("any", Some("no licence"), false),
        ("any", None, false),
    ] {
        let refused = allowed.refuses(name, licence);
        assert_eq!(refused.is_none(), agrees, "{name} {licence:?}: {refused:?}");
    }
}
