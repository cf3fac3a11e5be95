//! The stores of a configuration, and what becomes of them when it changes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use shunt_nvme::wire::Nqn;

use crate::config::{Backing, Config, Namespace, Subsystem};
use crate::store::{FileStore, Geometry, MemoryStore, NullStore, Opening, Store};

/// Which namespace of which subsystem.
pub type Place = (Nqn, u32);

/// Why a namespace cannot be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unavailable {
    place: Place,
    reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nqn, nsid) = &self.place;
        write!(f, "namespace {nsid} of {nqn} cannot be served: {}", self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// A namespace and its store.
#[derive(Clone, Debug)]
struct Open {
    namespace: Namespace,
    store: Arc<dyn Store>,
}

/// All stores that are open.
#[derive(Clone, Debug, Default)]
pub struct Stores(BTreeMap<Place, Open>);

impl Stores {
    /// Opens what a configuration needs.
    ///
    /// # Errors
    /// The first that cannot be had.
    pub fn open(config: &Config) -> Result<Self, Unavailable> {
        Self::default().changed(config)
    }

    /// The store of a namespace.
    #[must_use]
    pub fn get(&self, nqn: &Nqn, nsid: u32) -> Option<&Arc<dyn Store>> {
        self.0.get(&(nqn.clone(), nsid)).map(|open| &open.store)
    }

    /// Those that another configuration needs: the ones that are still what it says, with other sizes if it has
    /// others, and new ones. Where something cannot be had everything stays as it is.
    ///
    /// # Errors
    /// The first that cannot be had.
    pub fn changed(&self, config: &Config) -> Result<Self, Unavailable> {
        let mut next = BTreeMap::new();
        let mut resized = Vec::new();
        for (place, namespace) in namespaces(config) {
            let kept = self.0.get(&place).filter(|open| is_same(&open.namespace, namespace));
            let store = match kept {
                Some(open) => {
                    resized.push((place.clone(), Arc::clone(&open.store), namespace));
                    Ok(Arc::clone(&open.store))
                }
                None => open(namespace),
            };
            let store = store.map_err(|reason| Unavailable { place: place.clone(), reason })?;
            next.insert(place, Open { namespace: namespace.clone(), store });
        }
        let mut done: Vec<(Arc<dyn Store>, u64)> = Vec::new();
        for (place, store, namespace) in resized {
            let before = store.geometry().blocks;
            let blocks = namespace.size.map(|size| size >> namespace.block.shift());
            if let Err(reason) = store.resize(blocks) {
                for (store, blocks) in done {
                    // It had as many a moment ago.
                    let _had = store.resize(Some(blocks));
                }
                return Err(Unavailable { place, reason });
            }
            done.push((store, before));
        }
        Ok(Self(next))
    }
}

fn namespaces(config: &Config) -> impl Iterator<Item = (Place, &Namespace)> {
    let of = |subsystem: &Subsystem, nsid| (subsystem.nqn.clone(), nsid);
    config.subsystems.iter().flat_map(move |subsystem| {
        subsystem.namespaces.iter().map(move |namespace| (of(subsystem, namespace.nsid), namespace))
    })
}

/// True if they are the same disk: they may differ in size, and in how hosts see it.
fn is_same(one: &Namespace, other: &Namespace) -> bool {
    *one == Namespace { size: one.size, ana_group: one.ana_group, ..other.clone() }
}

fn open(namespace: &Namespace) -> Result<Arc<dyn Store>, String> {
    let block = namespace.block;
    let geometry = || {
        let size = namespace.size.ok_or("it has no size")?;
        Ok::<_, String>(Geometry { block, blocks: size >> block.shift() })
    };
    Ok(match &namespace.store {
        Backing::Null => {
            Arc::new(NullStore::new(geometry()?).map_err(|e| format!("no memory for it: {e}"))?)
        }
        Backing::Memory => {
            let store = MemoryStore::new(geometry()?);
            Arc::new(store.map_err(|e| format!("no memory for it: {e}; ask for a smaller `size`"))?)
        }
        Backing::File { path, create, direct, threads } => Arc::new(FileStore::open(&Opening {
            path: path.clone(),
            block,
            size: namespace.size,
            create: *create,
            direct: *direct,
            read_only: namespace.read_only,
            threads: *threads,
        })?),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(namespaces: &str) -> Config {
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\n[[subsystem]]\nnqn = \"nqn.2024-01.a\"\nhosts = \"any\"\n{namespaces}"
        );
        Config::parse(Path::new("test"), &text).unwrap()
    }

    fn name(last: &str) -> Nqn {
        Nqn::new(&format!("nqn.2024-01.{last}")).unwrap()
    }

    fn memory(size: &str) -> String {
        format!("[[subsystem.namespace]]\nstore = \"memory\"\nsize = \"{size}\"\n")
    }

    fn file(path: &Path, size: &str) -> String {
        let path = path.display();
        format!("[[subsystem.namespace]]\nstore = \"file\"\npath = \"{path}\"\nsize = \"{size}\"\n")
    }

    #[test]
    fn stores_that_stay_are_kept_and_resized() {
        let before = Stores::open(&config(&memory("1MiB"))).unwrap();
        let next = before.changed(&config(&(memory("2MiB") + &memory("1MiB")))).unwrap();
        let (old, new) = (before.get(&name("a"), 1).unwrap(), next.get(&name("a"), 1).unwrap());
        assert!(Arc::ptr_eq(old, new));
        assert_eq!(new.geometry().blocks, 512);
        assert_eq!(next.get(&name("a"), 2).unwrap().geometry().blocks, 256);
        let other = next.changed(&config("")).unwrap();
        assert!(other.get(&name("a"), 1).is_none() && next.get(&name("b"), 1).is_none());
        let null = "[[subsystem.namespace]]\nstore = \"null\"\nsize = \"2MiB\"\n";
        let replaced = next.changed(&config(null)).unwrap();
        assert!(!Arc::ptr_eq(replaced.get(&name("a"), 1).unwrap(), new));
    }

    #[test]
    fn where_one_cannot_be_had_all_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let both = |one: &str, other: &str| config(&(memory(one) + &file(&path, other)));
        let stores = Stores::open(&both("1MiB", "1MiB")).unwrap();
        let refused = stores.changed(&both("2MiB", "2MiB")).unwrap_err().to_string();
        assert!(
            refused.starts_with("namespace 2 of nqn.2024-01.a cannot be served: "),
            "{refused}"
        );
        assert!(refused.contains("truncate -s 2097152"), "{refused}");
        assert_eq!(stores.get(&name("a"), 1).unwrap().geometry().bytes(), 1 << 20);
        let missing = file(&dir.path().join("none"), "1MiB");
        let refused = stores.changed(&config(&(memory("2MiB") + &missing))).unwrap_err();
        assert!(refused.to_string().contains("there is no "), "{refused}");
        assert_eq!(stores.get(&name("a"), 1).unwrap().geometry().bytes(), 1 << 20);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        let next = stores.changed(&both("2MiB", "2MiB")).unwrap();
        assert_eq!(next.get(&name("a"), 2).unwrap().geometry().bytes(), 2 << 20);
    }
}
