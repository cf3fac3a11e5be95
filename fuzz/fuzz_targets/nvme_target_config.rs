//! Any text as the target's configuration: what is taken for sound can be served, a mistake has a place, and no key is
//! ever printed.
#![no_main]

use std::collections::HashSet;
use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_nvme_target::config::{Backing, Config, Hosts};

const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

/// What configurations are made of.
const WORDS: &[&str] = &[
    "listen = [\"127.0.0.1:4420\"]\n",
    "listen = ",
    "threads = ",
    "[limits]\n",
    "connections = ",
    "unconnected = ",
    "connect-timeout = ",
    "queues = ",
    "queue-depth = ",
    "transfer = ",
    "in-flight = ",
    "in-capsule = ",
    "[[referral]]\naddress = \"10.0.0.2:8009\"\n",
    "[[subsystem]]\n",
    "nqn = \"nqn.2024-01.org.example:a\"\n",
    "nqn = \"nqn.2024-01.org.example:b\"\n",
    "serial = ",
    "model = ",
    "hosts = \"any\"\n",
    "hosts = [{ nqn = \"nqn.2024-01.org.example:h\", grant = true }]\n",
    "hosts = [{ nqn = \"nqn.2024-01.org.example:h\", key = \"DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:\" }]\n",
    "controller-key = \"DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:\"\n",
    "[[subsystem.ana]]\n",
    "group = ",
    "at = \"127.0.0.1:4420\"\n",
    "state = \"inaccessible\"\n",
    "[[subsystem.namespace]]\n",
    "nsid = ",
    "store = \"memory\"\n",
    "store = \"null\"\n",
    "store = \"file\"\npath = \"disk\"\n",
    "size = ",
    "size = \"1MiB\"\n",
    "block-size = ",
    "ana-group = ",
    "create = true\n",
    "direct = true\n",
    "read-only = true\n",
    "uuid = \"6f1d3f6e-5a0e-4c37-8f4e-0d5c8a1b2c3d\"\n",
    "nguid = \"6f1d3f6e5a0e4c378f4e0d5c8a1b2c3d\"\n",
    "\n",
];

#[derive(Arbitrary, Debug)]
enum Piece {
    Word(u8),
    Number(i64),
    Small(u8),
    Quoted(String),
    Size(u16, u8),
    Raw(String),
}

fn text(pieces: &[Piece]) -> String {
    pieces.iter().fold(String::new(), |text, piece| {
        text + &match piece {
            Piece::Word(n) => WORDS[usize::from(*n) % WORDS.len()].to_owned(),
            Piece::Number(n) => format!("{n}\n"),
            Piece::Small(n) => format!("{n}\n"),
            Piece::Quoted(words) => format!("{words:?}\n"),
            Piece::Size(n, unit) => {
                let units = ["", "KiB", "MiB", "GiB", "TiB", "kB"];
                format!("\"{n}{}\"\n", units[usize::from(*unit) % units.len()])
            }
            Piece::Raw(words) => words.clone(),
        }
    })
}

fuzz_target!(|pieces: Vec<Piece>| {
    let text = text(&pieces);
    let parsed = Config::parse(Path::new("nvme.toml"), &text);
    let config = match parsed {
        Ok(config) => config,
        Err(mistake) => {
            let lines = text.matches('\n').count() + 1;
            assert!(mistake.line().is_some_and(|line| (1..=lines).contains(&line)), "{mistake}");
            let said = mistake.to_string();
            // The name of the file, the place, and a reason.
            assert!(said.starts_with("nvme.toml:") && said.len() > "nvme.toml:1:1: ".len());
            assert!(!said.contains(&KEY[10..50]), "a key is printed: {said}");
            return;
        }
    };
    assert!(!format!("{config:?}").contains(&KEY[10..50]), "a key is printed");
    assert!(!config.listen.is_empty());
    assert!(config.limits.transfer.is_power_of_two() && config.limits.queue_depth >= 2);
    assert!(config.limits.in_capsule <= config.limits.transfer);
    let names: HashSet<_> = config.subsystems.iter().map(|known| known.nqn.as_str()).collect();
    assert_eq!(names.len(), config.subsystems.len(), "two subsystems of one name");
    for subsystem in &config.subsystems {
        assert!(subsystem.serial.len() <= 20 && subsystem.model.len() <= 40);
        let mut before = 0;
        for namespace in &subsystem.namespaces {
            assert!(namespace.nsid > before && namespace.nsid <= 1024, "{}", namespace.nsid);
            before = namespace.nsid;
            let blocks = namespace.size.map(|size| (size, size % u64::from(namespace.block.bytes())));
            assert!(blocks.is_none_or(|(size, rest)| size > 0 && rest == 0), "{blocks:?}");
            let is_file = matches!(namespace.store, Backing::File { .. });
            assert!(is_file || namespace.size.is_some(), "a disk without a size");
        }
        if let Hosts::Listed(hosts) = &subsystem.hosts {
            let names: HashSet<_> = hosts.iter().map(|host| host.nqn.as_str()).collect();
            assert_eq!(names.len(), hosts.len(), "two hosts of one name");
            assert!(hosts.iter().all(|host| host.controller_key.is_none() || host.key.is_some()));
        }
    }
    assert_eq!(Config::parse(Path::new("nvme.toml"), &text).as_ref(), Ok(&config));
});
