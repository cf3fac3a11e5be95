//! The lists that docs, tools and library share: codes and names are unique and stable.

use std::collections::HashSet;

use shunt_wire::counter::{COUNTER_SLOTS, Counter};
use shunt_wire::reason::Reason;
use shunt_wire::{knob, metric};

#[test]
fn reasons() {
    let names: HashSet<_> = Reason::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
    for reason in Reason::ALL {
        assert_eq!(Reason::from_code(*reason as u8), Some(*reason));
        assert!(reason.explain().trim().ends_with('.'), "{reason:?}");
        assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
    }
    assert_eq!(Reason::from_code(0), None);
    assert_eq!(Reason::from_code(255), None);
}

#[test]
fn counters() {
    let names: HashSet<_> = Counter::ALL.iter().map(|c| c.name()).collect();
    assert_eq!(names.len(), Counter::ALL.len());
    for (index, counter) in Counter::ALL.iter().enumerate() {
        assert_eq!(*counter as usize, index);
        assert!(index < COUNTER_SLOTS && !counter.explain().is_empty());
    }
}

#[test]
fn knobs() {
    let names: HashSet<_> = knob::ALL.iter().map(|k| k.env).collect();
    assert_eq!(names.len(), knob::ALL.len());
    assert!(knob::ALL.iter().all(|k| k.env.starts_with("SHUNT_") && k.doc.ends_with('.')));
    assert!(knob::is_on(b"1") && knob::is_on(b"yes"));
    assert!(!knob::is_on(b"0") && !knob::is_on(b""));
    assert!(!knob::is_on(b"false") && !knob::is_on(b"No") && !knob::is_on(b"off"));
    assert!(knob::is_on(b"flase"), "who sets it wants Shunt off");
}

#[test]
fn values_of_knobs() {
    for (knob, good, bad) in [
        (knob::SPIN, &["auto", "never", "0", "250", ""][..], &["nevr", "-5", "1.5", "Never"][..]),
        (knob::DMB, &["attach", "copy"], &["teleport"]),
        (knob::PLACE, &["auto", "never"], &["1", "always"]),
        (knob::CONNS_PER_LG, &["1", "255"], &["0", "256", "all"]),
        (knob::SHORT_LIVED, &["all", "16"], &["0", "none"]),
        (knob::DISABLE, &["1", "0", "TRUE", "off"], &["flase", "2"]),
        (knob::RUN_DIR, &["/x", "anything"], &[]),
    ] {
        assert!(good.iter().all(|value| knob.accepts(value.as_bytes())), "{}", knob.env);
        assert!(!bad.iter().any(|value| knob.accepts(value.as_bytes())), "{}", knob.env);
    }
    assert_eq!(knob::SPIN.syntax.to_string(), "auto, never or a whole number from 0");
    assert_eq!(knob::DMB.syntax.to_string(), "attach or copy");
    assert_eq!(knob::VECTORS.syntax.to_string(), "a whole number from 1 to 255");
    assert_eq!(knob::named(b"SHUNT_SPIN").map(|k| k.env), Some("SHUNT_SPIN"));
    assert!(knob::named(b"SHUNT_SPIN=1").is_none());
}

#[test]
fn metrics() {
    let names: HashSet<_> = metric::all().map(|m| m.to_string()).collect();
    assert_eq!(names.len(), Counter::ALL.len() + metric::OTHERS.len());
    for name in &names {
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
    }
    for metric in metric::all() {
        // The encoder writes it as it stands.
        let help = metric.help.trim();
        assert!(help.ends_with('.') && !help.contains(['"', '\\', '\n']), "{metric}");
        assert!(!metric.stem.contains("byte") && !metric.stem.contains("second"), "{metric}");
    }
    assert_eq!(Counter::BytesSent.metric().to_string(), "shunt_sent_bytes_total");
    assert_eq!(Counter::Connections.metric().to_string(), "shunt_connections_total");
    assert_eq!(metric::LINK_GROUP_MEMORY.to_string(), "shunt_link_group_memory_bytes");
    assert_eq!(metric::BUILD.to_string(), "shunt_build_info");
}
