use std::num::NonZeroUsize;
use std::time::Duration;

use shunt_nvme::wire::log::AnaState;

use super::*;
use crate::store::BlockSize;

const WHOLE: &str = r#"
listen = ["127.0.0.1:4420", "[::1]:4420"]
threads = 2

[limits]
connections = 100
connect-timeout = 5
queue-depth = 64
transfer = "256KiB"
in-flight = 8388608

[[referral]]
address = "10.0.0.2:8009"

[[subsystem]]
nqn = "nqn.2024-01.org.example:one"
serial = "S1"
model = "A disk"
hosts = [
    { nqn = "nqn.2024-01.org.example:host", key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", grant = true },
    { nqn = "nqn.2024-01.org.example:other" },
]

[[subsystem.namespace]]
store = "memory"
size = "64MiB"
uuid = "00112233-4455-6677-8899-aabbccddeeff"

[[subsystem.namespace]]
store = "file"
path = "/dev/vdb"
block-size = 512
direct = true
read-only = true

[[subsystem]]
nqn = "nqn.2024-01.org.example:two"
hosts = "any"

[[subsystem.namespace]]
nsid = 7
store = "null"
size = 4096
nguid = "00112233445566778899aabbccddeeff"
ana-group = 3

[[subsystem.ana]]
group = 3
at = "[::1]:4420"
state = "inaccessible"
"#;

fn parse(text: &str) -> Result<Config, Mistake> {
    Config::parse(Path::new("/etc/t.toml"), text)
}

#[test]
fn a_whole_file() {
    let config = parse(WHOLE).unwrap();
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.threads, NonZeroUsize::new(2));
    let limits = Limits {
        connections: 100,
        connect_timeout: Duration::from_secs(5),
        queue_depth: 64,
        transfer: 256 << 10,
        in_flight: 8 << 20,
        ..Limits::default()
    };
    assert_eq!(config.limits, limits);
    assert_eq!(config.referrals[0].nqn, None);
    let [one, two] = &config.subsystems[..] else { panic!("{config:?}") };
    assert_eq!((one.serial.as_str(), one.model.as_str()), ("S1", "A disk"));
    let Hosts::Listed(hosts) = &one.hosts else { panic!("{one:?}") };
    assert!(hosts[0].grant && !hosts[1].grant && hosts[1].key.is_none());
    assert!(!format!("{config:?}").contains("ia6z"), "a key is shown");
    let [memory, file] = &one.namespaces[..] else { panic!("{one:?}") };
    assert_eq!(
        (memory.nsid, memory.size, memory.store.clone()),
        (1, Some(64 << 20), Backing::Memory)
    );
    assert_eq!(memory.identity.uuid[1], 0x11);
    assert_eq!((file.nsid, file.size, file.block), (2, None, BlockSize::B512));
    assert!(file.read_only);
    assert!(matches!(&file.store, Backing::File { direct: true, create: false, .. }));
    assert_eq!(two.hosts, Hosts::Any);
    assert_eq!(two.namespaces[0].nsid, 7);
    assert!(two.namespaces[0].identity.nguid.is_some());
    assert_eq!((one.namespaces[0].ana_group, two.namespaces[0].ana_group), (1, 3));
    let state = |at: &str, group| two.ana_state(at.parse().unwrap(), group);
    assert_eq!(state("[::1]:4420", 3), AnaState::Inaccessible);
    assert_eq!(state("127.0.0.1:4420", 3), AnaState::Optimized);
    assert_eq!(state("[::1]:4420", 1), AnaState::Optimized);
}

#[test]
fn capsules_hold_no_more_than_a_transfer() {
    let of = |limits: &str| {
        let text = format!("listen = [\"127.0.0.1:4420\"]\n[limits]\n{limits}\n");
        parse(&text).unwrap().limits.in_capsule
    };
    assert_eq!((of(""), of("in-capsule = \"128KiB\""), of("in-capsule = 0")), (8192, 128 << 10, 0));
    assert_eq!(of("transfer = \"4KiB\""), 4096);
}

#[test]
fn mistakes_have_a_line_and_a_reason() {
    for (from, to, line, reason) in [
        (
            "listen = [\"127.0.0.1:4420\", \"[::1]:4420\"]",
            "listen = []",
            2,
            "no address to listen at",
        ),
        ("\"[::1]:4420\"", "\"127.0.0.1:4420\"", 2, "is in line 2 already"),
        ("\"[::1]:4420\"", "\"localhost\"", 2, "invalid socket address"),
        ("threads = 2", "threads = 0", 3, "from 1 to 1024"),
        ("threads = 2", "thread = 2", 3, "unknown field `thread`"),
        ("connections = 100", "connections = 0", 6, "from 1 to"),
        ("\"256KiB\"", "\"257KiB\"", 9, "power of two"),
        ("\"256KiB\"", "\"256KB\"", 9, "such as \"10GiB\""),
        ("transfer = \"256KiB\"", "in-capsule = 100", 9, "a multiple of 16"),
        ("transfer = \"256KiB\"", "in-capsule = \"2MiB\"", 9, "no longer than the longest"),
        ("nqn.2024-01.org.example:one", "disk", 16, "no NVMe qualified name"),
        (
            "nqn.2024-01.org.example:one",
            "nqn.2014-08.org.nvmexpress.discovery",
            16,
            "served anyway",
        ),
        ("example:two", "example:one", 37, "is in line 16 already"),
        ("\"S1\"", "\"123456789012345678901\"", 17, "1 to 20 characters"),
        ("DHHC-1:00:", "DHHC-2:00:", 20, "nvme gen-dhchap-key"),
        (
            "org.example:other",
            "org.example:host",
            21,
            "host nqn.2024-01.org.example:host is in line 20",
        ),
        ("\"64MiB\"", "1000", 26, "such as 4096"),
        ("size = \"64MiB\"\n", "", 25, "needs a `size`"),
        ("00112233-4455", "0011", 27, "32 hexadecimal digits"),
        ("store = \"file\"", "store = \"flie\"", 30, "say \"null\", \"memory\" or \"file\""),
        ("path = \"/dev/vdb\"\n", "", 30, "needs its `path`"),
        ("block-size = 512", "block-size = 520", 32, "say 512 or 4096"),
        ("hosts = \"any\"", "hosts = \"all\"", 38, "\"any\", or a list of hosts"),
        ("hosts = \"any\"\n", "", 36, "missing field `hosts`"),
        ("nsid = 7", "nsid = 0", 41, "from 1 to 1024"),
        ("store = \"null\"", "store = \"null\"\ndirect = true", 43, "is for stores of files"),
        ("nsid = 7", "nsid = 7\nnsid = 7", 42, "duplicate key"),
        ("nsid = 7", "nsid = ", 41, ""),
        ("ana-group = 3", "ana-group = 129", 45, "from 1 to 128"),
        ("group = 3\nat", "group = 0\nat", 48, "from 1 to 128"),
        ("at = \"[::1]:4420\"", "at = \"[::1]:4421\"", 49, "an address of `listen`"),
        ("\"inaccessible\"", "\"broken\"", 50, "there is no ANA state \"broken\""),
    ] {
        assert_eq!(WHOLE.matches(from).count().min(1), 1, "{from}");
        let mistake = parse(&WHOLE.replacen(from, to, 1)).expect_err(to);
        let text = mistake.to_string();
        assert_eq!(mistake.line(), Some(line), "{text}");
        assert!(text.contains(reason), "{text}");
        assert!(text.starts_with(&format!("/etc/t.toml:{line}:")), "{text}");
        assert!(!text.contains("ia6z"), "a key is shown: {text}");
    }
}

#[test]
fn a_namespace_can_be_named_once() {
    let twice = WHOLE.replacen("store = \"file\"", "nsid = 1\nstore = \"file\"", 1);
    let mistake = parse(&twice).unwrap_err();
    assert!(mistake.to_string().contains("namespace 1 is in line 24 already"), "{mistake}");
}

#[test]
fn a_group_has_one_state_at_an_address() {
    let twice = WHOLE.to_owned() + "[[subsystem.ana]]\ngroup = 3\nstate = \"change\"\n";
    assert_eq!(parse(&twice).unwrap().subsystems[1].ana.len(), 2);
    let again = twice + "[[subsystem.ana]]\ngroup = 3\nstate = \"change\"\n";
    let mistake = parse(&again).unwrap_err().to_string();
    assert!(mistake.contains("ANA group 3 everywhere is in line 52 already"), "{mistake}");
}

#[test]
fn a_missing_file() {
    let mistake = Config::load(Path::new("/nowhere/t.toml")).unwrap_err().to_string();
    assert!(mistake.starts_with("/nowhere/t.toml: it cannot be read: "), "{mistake}");
}
