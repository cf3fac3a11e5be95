//! The device that link groups go over.
//!
//! A device that software emulates (rxe, siw) is slower than TCP as a rule, so it is used only where it is named.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use shunt_verbs::port::Patience;
use shunt_verbs::{Device, Library, Unavailable};

/// Where the kernel shows devices.
const SYSFS: &str = "/sys/class/infiniband";
/// Where those lie that have no hardware below them.
const VIRTUAL: &str = "/virtual/";

/// Which device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The first one that is hardware and works.
    Hardware,
    /// The first of these that works, each with its port (1 for the first one).
    Named(Vec<(String, u8)>),
}

/// What is named is no device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadDevice;

impl fmt::Display for BadDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it must be auto, or NAME or NAME/PORT, as `rdma link` shows them, and several of these with commas between")
    }
}

impl std::error::Error for BadDevice {}

impl FromStr for Wanted {
    type Err = BadDevice;

    fn from_str(text: &str) -> Result<Self, BadDevice> {
        if text == "auto" {
            return Ok(Self::Hardware);
        }
        text.split(',').map(named).collect::<Result<_, _>>().map(Self::Named)
    }
}

fn named(text: &str) -> Result<(String, u8), BadDevice> {
    let (name, port) = text.split_once('/').unwrap_or((text, "1"));
    let port = port.parse().ok().filter(|port| *port != 0).ok_or(BadDevice)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_right = !name.is_empty() && !name.starts_with('.') && name.chars().all(is_name);
    if is_right { Ok((name.to_owned(), port)) } else { Err(BadDevice) }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Named(names) = self else { return f.write_str("auto") };
        for (at, (name, port)) in names.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{name}")?;
            if *port != 1 {
                write!(f, "/{port}")?;
            }
        }
        Ok(())
    }
}

/// Why there is no device.
#[derive(Debug)]
pub enum NoDevice {
    /// It cannot be used.
    Unavailable(Unavailable),
    /// There are devices, but none of them is hardware. With their names.
    Software(Vec<String>),
}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => why.fmt(f),
            Self::Software(names) => write!(
                f,
                "this machine's RDMA devices are emulated by software ({}), which is slower than TCP as a rule: name one by --rdma \
                 to use it all the same",
                names.join(", ")
            ),
        }
    }
}

impl std::error::Error for NoDevice {}

impl From<Unavailable> for NoDevice {
    fn from(why: Unavailable) -> Self {
        Self::Unavailable(why)
    }
}

/// True for a device without hardware below it.
#[must_use]
fn is_software(sysfs: &Path, name: &str) -> bool {
    let place = sysfs.join(name).canonicalize();
    place.is_ok_and(|place| place.to_string_lossy().contains(VIRTUAL))
}

/// How long its queue pairs wait for an answer.
fn patience(sysfs: &Path, name: &str) -> Patience {
    if is_software(sysfs, name) { Patience::SOFTWARE } else { Patience::DEFAULT }
}

/// Opens it.
///
/// # Errors
/// Why there is none.
pub fn open(wanted: &Wanted) -> Result<Device, NoDevice> {
    let library = Library::load()?;
    match wanted {
        Wanted::Named(names) => Ok(first_of(names, |name, port| {
            let device = Device::open(&library, name, port, None)?;
            Ok(device.with_patience(patience(Path::new(SYSFS), name)))
        })?),
        Wanted::Hardware => {
            let names = Device::names(&library)?;
            first(Path::new(SYSFS), names, |name| Device::open(&library, name, 1, None))
        }
    }
}

/// The first of these that can be used; else why the first one cannot.
fn first_of<D>(
    names: &[(String, u8)],
    open: impl Fn(&str, u8) -> Result<D, Unavailable>,
) -> Result<D, Unavailable> {
    let mut opened = names.iter().map(|(name, port)| open(name, *port));
    let first = opened.next().unwrap_or(Err(Unavailable::NoDevice));
    first.or_else(|why| opened.find_map(Result::ok).ok_or(why))
}

/// The first one that is hardware and can be used; else why the last one cannot.
fn first<D>(
    sysfs: &Path,
    names: Vec<String>,
    open: impl Fn(&str) -> Result<D, Unavailable>,
) -> Result<D, NoDevice> {
    let hardware = names.iter().filter(|name| !is_software(sysfs, name));
    let mut why = None;
    for name in hardware {
        match open(name) {
            Ok(device) => return Ok(device),
            Err(unavailable) => why = Some(unavailable),
        }
    }
    Err(why.map_or(NoDevice::Software(names), NoDevice::Unavailable))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn devices_are_named_as_people_write() {
        let named = |name: &str, port| (name.to_owned(), port);
        let of = |names: &[(String, u8)]| Ok(Wanted::Named(names.to_vec()));
        assert_eq!("auto".parse(), Ok(Wanted::Hardware));
        assert_eq!("mlx5_0".parse(), of(&[named("mlx5_0", 1)]));
        assert_eq!("mlx5_0/2".parse(), of(&[named("mlx5_0", 2)]));
        assert_eq!("mlx5_0/2,rxe0".parse(), of(&[named("mlx5_0", 2), named("rxe0", 1)]));
        for bad in
            ["", "/1", "a/0", "a/x", "a/256", "../x", ".", "a b", "a/1/2", "a,", ",a", "a, b"]
        {
            assert_eq!(bad.parse::<Wanted>(), Err(BadDevice), "{bad}");
        }
        for text in ["auto", "mlx5_0", "mlx5_0/2", "mlx5_0,mlx5_0/2,mlx5_1"] {
            assert_eq!(text.parse::<Wanted>().unwrap().to_string(), text);
        }
    }

    /// A directory as the kernel's, with hardware `mlx5_0` and `mlx5_1`, and software `rxe0` and `siw0`.
    fn sysfs() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let class = dir.path().join("class");
        std::fs::create_dir(&class).unwrap();
        for (name, place) in [
            ("mlx5_0", "devices/pci0000:00/infiniband"),
            ("mlx5_1", "devices/pci0000:00/infiniband"),
            ("rxe0", "devices/virtual/infiniband"),
            ("siw0", "devices/virtual/infiniband"),
        ] {
            let place = dir.path().join(place).join(name);
            std::fs::create_dir_all(&place).unwrap();
            symlink(&place, class.join(name)).unwrap();
        }
        dir
    }

    fn chosen(names: &[&str], broken: &[&str]) -> Result<String, NoDevice> {
        let dir = sysfs();
        let names = names.iter().map(ToString::to_string).collect();
        first(&dir.path().join("class"), names, |name| {
            let is_broken = broken.contains(&name);
            if is_broken {
                Err(Unavailable::PortDown(name.to_owned(), 1))
            } else {
                Ok(name.to_owned())
            }
        })
    }

    #[test]
    fn of_several_the_first_that_works_is_used() {
        let names = [("a".to_owned(), 1), ("b".to_owned(), 2), ("c".to_owned(), 1)];
        let with = |broken: &[&str]| {
            first_of(&names, |name, port| match broken.contains(&name) {
                true => Err(Unavailable::PortDown(name.to_owned(), port)),
                false => Ok((name.to_owned(), port)),
            })
        };
        assert_eq!(with(&[]).unwrap(), names[0]);
        assert_eq!(with(&["a"]).unwrap(), names[1]);
        assert_eq!(with(&["a", "b"]).unwrap(), names[2]);
        let why = with(&["a", "b", "c"]).unwrap_err();
        assert!(matches!(why, Unavailable::PortDown(name, 1) if name == "a"));
    }

    #[test]
    fn software_may_take_its_time() {
        let dir = sysfs();
        let patience = |name| patience(&dir.path().join("class"), name);
        assert_eq!([patience("rxe0"), patience("siw0")], [Patience::SOFTWARE; 2]);
        assert_eq!([patience("mlx5_0"), patience("stub0")], [Patience::DEFAULT; 2]);
    }

    #[test]
    fn software_is_used_only_where_it_is_named() {
        assert_eq!(chosen(&["rxe0", "mlx5_0"], &[]).unwrap(), "mlx5_0");
        assert_eq!(chosen(&["mlx5_0", "mlx5_1"], &["mlx5_0"]).unwrap(), "mlx5_1");
        let why = chosen(&["rxe0", "siw0"], &[]).unwrap_err();
        assert!(matches!(&why, NoDevice::Software(names) if names[..] == ["rxe0", "siw0"]));
        assert!(why.to_string().contains("rxe0, siw0") && why.to_string().contains("--rdma"));
        let why = chosen(&["rxe0", "mlx5_0"], &["mlx5_0"]).unwrap_err();
        assert!(
            matches!(why, NoDevice::Unavailable(Unavailable::PortDown(name, 1)) if name == "mlx5_0")
        );
    }
}
