//! A strict reader of the OpenMetrics text format, as far as an agent uses it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, HashMap, HashSet};

/// Labels and their values.
pub type Labels = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub struct Family {
    pub help: String,
    pub kind: String,
    pub unit: Option<String>,
    pub samples: Vec<(String, Labels, f64)>,
}

/// What a scrape said.
#[derive(Debug, Default)]
pub struct Exposition {
    pub families: HashMap<String, Family>,
}

impl Exposition {
    /// Panics with the line that is not as the specification has it.
    pub fn parse(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("no end");
        let mut all = Self::default();
        let mut current = String::new();
        let mut seen = HashSet::new();
        for line in body.split_terminator('\n') {
            match line.strip_prefix("# ") {
                Some(about) => {
                    let mut words = about.splitn(3, ' ');
                    let mut word = || words.next().filter(|w| !w.is_empty()).expect(line);
                    let (what, name, rest) = (word(), word(), word());
                    if what == "HELP" {
                        assert!(is_name(name) && !all.families.contains_key(name), "{line}");
                        name.clone_into(&mut current);
                    }
                    assert_eq!(name, current, "{line}");
                    let family = all.families.entry(current.clone()).or_default();
                    assert!(family.samples.is_empty(), "{line}");
                    match what {
                        "HELP" => rest.clone_into(&mut family.help),
                        "TYPE" => rest.clone_into(&mut family.kind),
                        "UNIT" => family.unit = Some(rest.to_owned()),
                        _ => panic!("{line}"),
                    }
                    assert!(what != "UNIT" || name.ends_with(&format!("_{rest}")), "{line}");
                }
                None => {
                    let (name, labels, value) = sample(line);
                    let family = all.families.get_mut(&current).expect(line);
                    let suffixes: &[&str] = match family.kind.as_str() {
                        "counter" => &["_total"],
                        "gauge" => &[""],
                        "info" => &["_info"],
                        "histogram" => &["_bucket", "_sum", "_count"],
                        _ => panic!("{line}"),
                    };
                    let suffix = name.strip_prefix(current.as_str()).expect(line);
                    assert!(suffixes.contains(&suffix), "{line}");
                    assert_eq!(suffix == "_bucket", labels.contains_key("le"), "{line}");
                    assert!(family.kind != "info" || value.total_cmp(&1.0).is_eq(), "{line}");
                    assert!(value >= 0.0 && value.is_finite(), "{line}");
                    assert!(seen.insert((name.clone(), labels.clone())), "{line}");
                    family.samples.push((name, labels, value));
                }
            }
        }
        for (name, family) in &all.families {
            assert!(!family.samples.is_empty() && !family.help.is_empty(), "{name}");
            if family.kind == "histogram" {
                all.check_histograms(name, family);
            }
        }
        all
    }

    /// Buckets grow from each to the next, up to the count, and there is a sum.
    fn check_histograms(&self, name: &str, family: &Family) {
        let mut series = BTreeMap::<Labels, Vec<(f64, f64)>>::new();
        for (_, labels, n) in family.samples.iter().filter(|(_, l, _)| l.contains_key("le")) {
            let mut labels = labels.clone();
            let end = labels.remove("le").unwrap();
            let end = if end == "+Inf" { f64::INFINITY } else { end.parse().unwrap() };
            series.entry(labels).or_default().push((end, *n));
        }
        for (labels, buckets) in series {
            let rises = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
            assert!(rises, "{name} {labels:?} {buckets:?}");
            let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let (count, sum) = (format!("{name}_count"), format!("{name}_sum"));
            let last = (f64::INFINITY, self.value(&count, &labels));
            assert_eq!(buckets.last(), Some(&last), "{name} {labels:?}");
            assert!(self.value(&sum, &labels) >= 0.0);
        }
    }

    pub fn samples(&self) -> impl Iterator<Item = &(String, Labels, f64)> {
        self.families.values().flat_map(|family| &family.samples)
    }

    /// The value of the sample with exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: Labels =
            labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let found = self.samples().find(|(n, l, _)| n == name && *l == labels);
        found.unwrap_or_else(|| panic!("no {name} {labels:?}")).2
    }
}

fn is_name(text: &str) -> bool {
    let first = text.bytes().next();
    first.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Name, labels and value of a line.
fn sample(line: &str) -> (String, Labels, f64) {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let value = value.parse().expect(line);
    let Some((name, labels)) = series.split_once('{') else {
        assert!(is_name(series), "{line}");
        return (series.to_owned(), Labels::new(), value);
    };
    assert!(is_name(name), "{line}");
    let labels = labels.strip_suffix('}').expect(line).split(',').map(|label| {
        let (key, value) = label.split_once('=').expect(line);
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).expect(line);
        assert!(is_name(key) && !value.contains(['"', '\\']), "{line}");
        (key.to_owned(), value.to_owned())
    });
    (name.to_owned(), labels.collect(), value)
}
