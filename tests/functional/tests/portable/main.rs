//! Packages for old systems, `GLIBC=2.17`: `make test-portable` builds them, and names their installation by `SHUNT_TEST_STAGE`
//! and a root file system of Debian 11 by `SHUNT_TEST_ROOT`. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::program;

/// The version for which they are.
const GLIBC: (u32, u32) = (2, 17);
const PARTS: [&str; 4] = [
    "bin/shunt",
    "lib/shunt/libshunt.so",
    "lib/shunt/nbdkit-shunt-plugin.so",
    "lib/libshunt_nvme.so.0",
];

fn given(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name}: `make test-portable`")).into()
}

/// The newest version of glibc that a file's dynamic symbols have.
fn newest(file: &Path) -> (u32, u32) {
    let output = Command::new(program("objdump")).arg("-T").arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let versions = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut numbers = version.split('.').map(|n| n.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    });
    versions.max().unwrap_or_else(|| panic!("{}: no versions", file.display()))
}

#[test]
fn no_symbol_is_newer() {
    for part in PARTS {
        let file = given("SHUNT_TEST_STAGE").join("usr").join(part);
        let newest = newest(&file);
        assert!(newest <= GLIBC, "{part} needs glibc {newest:?}");
    }
}

/// A server and a client in Perl, of which Debian has a part everywhere.
const SERVER: &str = "use IO::Socket::INET; my $l = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', LocalPort => 7999, \
     ReuseAddr => 1) or die $!; my $c = $l->accept; $c->autoflush(1); while (my $line = <$c>) { print $c $line; }";
const CLIENT: &str = "use IO::Socket::INET; my $c; for (1 .. 100) { $c = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => 7999) \
     and last; select undef, undef, undef, 0.1; } $c->autoflush(1); for (1 .. 100) { print $c \"line $_\\n\"; \
     my $back = <$c>; die unless $back eq \"line $_\\n\"; } print \"100 lines\\n\";";

/// In a mount namespace and a network of its own, with the installation over the root file system's `/usr`.
const RUN: &str = r#"
set -e
ip link set lo up
for part in bin lib/shunt lib/libshunt_nvme.so.0; do
    [ -d "$1/usr/$part" ] && { mkdir -p "$2/usr/$part"; cp -a "$1/usr/$part/." "$2/usr/$part/"; } || cp -a "$1/usr/$part" "$2/usr/$part"
done
mount -t proc proc "$2/proc"
mkdir -p -m 700 "$2/run/shunt-test"
export SHUNT_RUN_DIR=/run/shunt-test PATH=/usr/sbin:/usr/bin:/sbin:/bin
chroot "$2" shunt run -- perl -e "$3" &
chroot "$2" shunt run -- perl -e "$4"
wait $!
chroot "$2" shunt stats --json
"#;

#[test]
fn programs_of_debian_11_are_shunted() {
    let (stage, root) = (given("SHUNT_TEST_STAGE"), given("SHUNT_TEST_ROOT"));
    let mut command = Command::new(program("unshare"));
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", RUN, "sh"]);
    let output = command.arg(&stage).arg(&root).args([SERVER, CLIENT]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let stats: serde_json::Value =
        serde_json::from_str(said.split_once("100 lines\n").unwrap().1).unwrap();
    assert_eq!(stats["connections_shunted"], 2, "{said}");
}
