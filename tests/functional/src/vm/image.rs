//! What a guest boots.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::{self, built, library, program};

use super::archive::Archive;

/// Modules that a guest needs; what they depend on comes with them.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_net", "tcp_diag", "vfio_iommu_type1", "vfio-pci"];

/// Programs of the host that guests run.
const PROGRAMS: [&str; 6] =
    ["sockperf", "iperf3", "nginx", "wrk", "redis-server", "redis-benchmark"];

/// What an RDMA device on a network card takes: its checksums come from the kernel's list of algorithms, which would ask for
/// `modprobe`. And what a cut wire takes.
/// And a second card on the same wire.
const RDMA_MODULES: [&str; 7] =
    ["crc32_generic", "ib_uverbs", "rdma_rxe", "sch_prio", "sch_netem", "cls_u32", "macvlan"];
const RDMA_PROGRAMS: [&str; 3] = ["rdma", "redis-cli", "tc"];

/// The kernel's own SMC, which a guest has only if it loads what `/mods/later` lists.
const SMC_MODULES: [&str; 2] = ["smc", "smc_diag"];

/// Where a guest with the kernel's SMC finds what has programs use it, to be preloaded.
pub const SMC_RUN: &str = "/lib/smc_run.so";

/// Compiles that.
fn smc_run(dir: &Path) -> Vec<u8> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/vm/smc_run.c");
    let library = dir.join("smc_run.so");
    let mut compiler = Command::new(program("cc"));
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
    let compiled = compiler.output().expect("cc runs");
    assert!(compiled.status.success(), "{compiled:?}");
    fs::read(library).expect("a library")
}

/// The first program. It waits for command lines on the second serial line, and answers with what they say and, after
/// `@@`, their status.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /sbin /usr/sbin
/bin/busybox --install -s
export PATH=/bin:/sbin:/usr/bin:/usr/sbin SHUNT_RUN_DIR=/run/shunt
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run
ln -s /proc/self/fd /dev/fd
while read module; do
    case $module in
        vfio_iommu_type1) insmod /mods/$module allow_unsafe_interrupts=1;;
        *) insmod /mods/$module;;
    esac
done < /mods/order
ip link set lo up
for word in $(cat /proc/cmdline); do
    case $word in
        shunt.ip=*) ip addr add ${word#*=}/24 dev eth0; ip link set eth0 up;;
        shunt.interrupts=*) interrupts=${word#*=};;
    esac
done
mkdir -m 700 /run/shunt
for device in /sys/bus/pci/devices/*; do
    if [ "$(cat $device/device)" = 0x1110 ]; then
        ln -s ${device##*/} /run/ivshmem
        if [ "$interrupts" = 1 ]; then
            echo vfio-pci > $device/driver_override
            echo ${device##*/} > /sys/bus/pci/drivers_probe
        fi
    fi
done
# Open from before the first word until the end: closing a line throws away what has come in.
exec 3<> /dev/ttyS1
stty -F /dev/ttyS1 raw -echo
echo @@0 >&3
listen() {
    while read -r line <&3; do
        sh -c "$line" > /run/said 2>&1 3<&- < /dev/null
        status=$?
        { cat /run/said; echo; echo "@@$status"; } >&3
    done
}
# What command lines leave in the background is the first process' child. A shell that is told of a child's end while it
# reads begins the line anew, so another one reads.
listen &
while sleep 1; do wait; done
"#;

/// Kernel and initramfs.
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
}

/// Which kernel a guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kernel {
    /// The distribution's own, 6.1.
    #[default]
    Own,
    /// 6.12, from the distribution's archive of security updates: its NVMe hosts can authenticate.
    Newer,
}

impl Kernel {
    /// Where `make deps-vm` has put the files of its package: `SHUNT_TEST_VM_DIR`, or `vm` in the target directory,
    /// and beside it.
    fn package(self) -> PathBuf {
        let own = std::env::var_os("SHUNT_TEST_VM_DIR")
            .map_or_else(|| binaries::dir().join("../vm"), PathBuf::from);
        match self {
            Self::Own => own,
            Self::Newer => {
                let mut name = own.into_os_string();
                name.push("-6.12");
                name.into()
            }
        }
    }
}

fn found(dir: &Path, wanted: &mut dyn FnMut(&Path) -> bool) -> Option<PathBuf> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        let deeper = if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found(&path, wanted)
        } else {
            wanted(&path).then_some(path)
        };
        if deeper.is_some() {
            return deeper;
        }
    }
    None
}

fn file_named(dir: &Path, name: &str) -> PathBuf {
    let same = |path: &Path| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.replace('_', "-").starts_with(&name.replace('_', "-"))
    };
    found(dir, &mut |path| same(path))
        .unwrap_or_else(|| panic!("{name} is not in {}: `make deps-vm`", dir.display()))
}

/// True if the kernel has a module in itself.
fn is_built_in(modules: &Path, name: &str) -> bool {
    let list = found(modules, &mut |path| path.ends_with("modules.builtin"));
    let list = fs::read_to_string(list.expect("a list of modules")).expect("its text");
    let mut files = list.lines().filter_map(|line| line.rsplit('/').next()?.strip_suffix(".ko"));
    files.any(|file| file.replace('-', "_") == name)
}

/// A module as the kernel wants it.
fn module_data(file: &Path) -> Vec<u8> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(file).expect("a module");
    }
    let output = Command::new("xz").arg("-dc").arg(file).output().expect("xz runs");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// A module behind those on which it depends.
fn module(modules: &Path, name: &str, archive: &mut Archive, order: &mut Vec<String>) {
    let name = name.replace('-', "_");
    if order.contains(&name) {
        return;
    }
    if is_built_in(modules, &name) {
        return;
    }
    let data = module_data(&file_named(modules, &format!("{name}.ko")));
    const DEPENDS: &[u8] = b"\0depends=";
    let at = data.windows(DEPENDS.len()).position(|window| window == DEPENDS);
    let list = at.map_or(&[][..], |at| &data[at + DEPENDS.len()..]);
    let list = list.split(|byte| *byte == 0).next().unwrap_or_default();
    for needed in String::from_utf8_lossy(list).split(',').filter(|name| !name.is_empty()) {
        module(modules, needed, archive, order);
    }
    archive.file(&format!("/mods/{name}"), &data);
    order.push(name);
}

/// The libraries of a program, by where it looks for them.
fn libraries(path: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("ldd").arg(path).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

impl Image {
    /// Puts it together in `dir`.
    ///
    /// # Panics
    /// When something of it is missing.
    #[must_use]
    pub fn assemble(dir: &Path) -> Self {
        Self::with(dir, Kernel::Own, &[], &[])
    }

    /// The same with any kernel, more modules of it, and more of the host's programs.
    ///
    /// # Panics
    /// When something of it is missing.
    #[must_use]
    pub fn with(dir: &Path, kernel: Kernel, modules: &[&str], programs: &[&str]) -> Self {
        let archive = Archive::default();
        Self::of(archive, dir, kernel, (modules, &[]), programs, BTreeSet::new())
    }

    /// The same with the modules of the RDMA device that software emulates on a network card (rxe), with libibverbs and its part
    /// for that device, and with `rdma`, which makes and removes one.
    ///
    /// # Panics
    /// When something of it is missing.
    #[must_use]
    pub fn with_rdma(dir: &Path) -> Self {
        Self::of_rdma(Archive::default(), dir, &[])
    }

    /// The same with the kernel's own SMC at hand, and with both ends of a connection (`shunt-smc-peer`).
    ///
    /// # Panics
    /// When something of it is missing.
    #[must_use]
    pub fn with_smc(dir: &Path) -> Self {
        let mut archive = Archive::default();
        let peer = fs::read(built("shunt-smc-peer")).expect("a program");
        archive.file("/bin/shunt-smc-peer", &peer);
        archive.file(SMC_RUN, &smc_run(dir));
        Self::of_rdma(archive, dir, &SMC_MODULES)
    }

    fn of_rdma(mut archive: Archive, dir: &Path, later: &[&str]) -> Self {
        let library = library("libibverbs.so.1");
        // libibverbs looks for its drivers where it was built for: below /usr, also where /lib is a link there.
        let drivers = library.parent().and_then(|dir| dir.canonicalize().ok());
        let drivers = drivers.expect("a directory").join("libibverbs");
        let driver = found(&drivers, &mut |path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe-"))
        });
        let driver = driver.expect("ibverbs-providers is not installed: `make deps-test`");
        archive.file("/etc/libibverbs.d/rxe.driver", b"driver rxe\n");
        let mut files = BTreeSet::from([library, driver]);
        files.extend(files.clone().iter().flat_map(|file| libraries(file)));
        Self::of(archive, dir, Kernel::Newer, (&RDMA_MODULES, later), &RDMA_PROGRAMS, files)
    }

    /// What was begun in `archive`, and all else; `needed` are files that stand where they stand here. Of the modules, some are
    /// loaded at once, and others are at hand.
    fn of(
        mut archive: Archive,
        dir: &Path,
        kernel: Kernel,
        (modules, later): (&[&str], &[&str]),
        programs: &[&str],
        mut needed: BTreeSet<PathBuf>,
    ) -> Self {
        let packages = kernel.package();
        for path in
            ["/dev", "/proc", "/sys", "/run", "/tmp", "/bin", "/var/log/nginx", "/var/lib/nginx"]
        {
            archive.directory(path);
        }
        archive.file("/init", INIT.as_bytes());
        let busybox = Kernel::Own.package().join("bin/busybox");
        let busybox = fs::read(busybox).expect("busybox is there: `make deps-vm`");
        archive.file("/bin/busybox", &busybox);
        archive.link("/bin/sh", "busybox");
        archive.file("/etc/passwd", b"root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n");
        archive.file("/etc/group", b"root:x:0:\nnogroup:x:65534:\n");
        let mut order = Vec::new();
        for name in MODULES.iter().chain(modules) {
            module(&packages, name, &mut archive, &mut order);
        }
        let loaded = order.len();
        for name in later {
            module(&packages, name, &mut archive, &mut order);
        }
        for (list, names) in [("/mods/order", &order[..loaded]), ("/mods/later", &order[loaded..])]
        {
            archive.file(list, format!("{}\n", names.join("\n")).as_bytes());
        }
        let ours = ["shunt", "libshunt.so", "shunt-gen"].map(built);
        for path in
            ours.into_iter().chain(PROGRAMS.iter().chain(programs).map(|name| program(name)))
        {
            needed.extend(libraries(&path));
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            archive.file(&format!("/bin/{name}"), &fs::read(&path).expect("a program"));
        }
        for path in needed {
            let name = path.to_str().expect("a path");
            archive.file(name, &fs::read(&path).expect("a library"));
        }
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, archive.finish()).expect("an initramfs");
        Self { kernel: file_named(&packages, "vmlinuz"), initramfs }
    }
}
