//! Programs that start another one with an environment of its own making.

use std::fs;
use std::path::{Path, PathBuf};

use super::unit::Unit;
use crate::library;

/// Where Debian keeps the configuration of PostgreSQL's clusters.
const CLUSTERS: &str = "/etc/postgresql";

/// Debian's wrapper of PostgreSQL gives the server the variables of a file of the cluster's, and no others. What is to
/// be done, where that file does not name the library.
#[must_use]
pub fn environment_is_cleared(unit: &Unit<'_>, library: &Path, run_dir: &str) -> Option<String> {
    let file = cluster_environment(Path::new(CLUSTERS), unit)?;
    let said = fs::read_to_string(&file).unwrap_or_default();
    (!names_library(&said)).then(|| {
        format!(
            "pg_ctlcluster starts the server with the variables of {0} alone; add these two lines there: \
             LD_PRELOAD = '{1}' and SHUNT_RUN_DIR = '{run_dir}'",
            file.display(),
            library.display()
        )
    })
}

fn cluster_environment(clusters: &Path, unit: &Unit<'_>) -> Option<PathBuf> {
    let program = Path::new(unit.program()?).file_name()?;
    if program != "pg_ctlcluster" {
        return None;
    }
    // postgresql@VERSION-CLUSTER.service
    let (_, instance) = unit.name().strip_suffix(".service")?.split_once('@')?;
    let (version, cluster) = instance.split_once('-').unwrap_or((instance, "main"));
    Some(clusters.join(version).join(cluster).join("environment"))
}

fn names_library(environment: &str) -> bool {
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    let mut preloads = variables.filter(|(name, _)| name.trim() == library::VARIABLE);
    preloads.any(|(_, value)| {
        let value = value.trim().trim_matches(['\'', '"']);
        library::without(value.as_ref()).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_have_a_file_of_variables() {
        let unit = |name: &'static str, path: &str| {
            let said = format!("ExecStart={{ path={path} ; argv[]={path} 15-main start ; }}\n");
            cluster_environment(Path::new("/etc/postgresql"), &Unit::parse(name, &said))
        };
        let expected = Path::new("/etc/postgresql/15/main/environment");
        let found = unit("postgresql@15-main.service", "/usr/bin/pg_ctlcluster");
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(unit("nginx.service", "/usr/sbin/nginx"), None);
    }

    #[test]
    fn the_file_is_read_as_postgresqls_tools_read_it() {
        assert!(names_library("# x\nLD_PRELOAD = '/usr/lib/shunt/$LIB/libshunt.so'\n"));
        assert!(names_library("LD_PRELOAD=/x/libshunt.so"));
        assert!(!names_library("#LD_PRELOAD = '/x/libshunt.so'\nPATH = '/x/libshunt.so'\n"));
    }
}
