//! A service, as systemctl reports it.

use std::collections::BTreeMap;
use std::path::Path;

/// Properties that are asked for.
pub const PROPERTIES: [&str; 36] = [
    "ActiveState",
    "AppArmorProfile",
    "BindPaths",
    "BindReadOnlyPaths",
    "ConsistsOf",
    "DefaultDependencies",
    "DropInPaths",
    "DynamicUser",
    "Environment",
    "EnvironmentFiles",
    "ExecPaths",
    "ExecStart",
    "FragmentPath",
    "Id",
    "InaccessiblePaths",
    "LoadState",
    "MainPID",
    "MemoryDenyWriteExecute",
    "NoExecPaths",
    "NoNewPrivileges",
    "PrivateNetwork",
    "PrivateTmp",
    "PrivateUsers",
    "ProtectHome",
    "ProtectSystem",
    "RestrictAddressFamilies",
    "RootDirectory",
    "RootImage",
    "SELinuxContext",
    "SystemCallErrorNumber",
    "SystemCallFilter",
    "TemporaryFileSystem",
    "Type",
    "UnsetEnvironment",
    "User",
    "Names",
];

/// What systemctl has told of a service.
#[derive(Clone, Debug)]
pub struct Unit<'a> {
    name: &'a str,
    /// A property may have several lines: one for each file or command.
    properties: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Unit<'a> {
    /// Reads it. `name`: as it was asked for.
    #[must_use]
    pub fn parse(name: &'a str, said: &'a str) -> Self {
        let mut properties = BTreeMap::<_, Vec<_>>::new();
        for (property, value) in said.lines().filter_map(|line| line.split_once('=')) {
            properties.entry(property).or_default().push(value);
        }
        Self { name, properties }
    }

    /// Its name: systemd's own, where there is one; an alias leads to it.
    #[must_use]
    pub fn name(&self) -> &'a str {
        Some(self.get("Id")).filter(|id| !id.is_empty()).unwrap_or(self.name)
    }

    /// A property; the last line of it.
    #[must_use]
    pub fn get(&self, property: &str) -> &'a str {
        self.all(property).last().copied().unwrap_or_default()
    }

    fn all(&self, property: &str) -> &[&'a str] {
        self.properties.get(property).map_or(&[], Vec::as_slice)
    }

    /// A list of words.
    pub fn words(&self, property: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.get(property).split(' ').filter(|word| !word.is_empty())
    }

    /// A switch that may have other values beside yes.
    #[must_use]
    pub fn is_on(&self, property: &str) -> bool {
        !matches!(self.get(property), "" | "no" | "false")
    }

    /// A number.
    #[must_use]
    pub fn number(&self, property: &str) -> Option<u32> {
        self.get(property).parse().ok()
    }

    /// The process that runs.
    #[must_use]
    pub fn main_pid(&self) -> Option<u32> {
        self.number("MainPID").filter(|pid| *pid != 0)
    }

    /// `{ path=/usr/sbin/nginx ; argv[]=... ; ... }`
    #[must_use]
    pub fn program(&self) -> Option<&'a str> {
        let (_, rest) = self.get("ExecStart").split_once("path=")?;
        Some(rest.split(" ;").next().unwrap_or(rest).trim())
    }

    /// True where `shunt run` starts it.
    #[must_use]
    pub fn is_started_by_shunt(&self) -> bool {
        let starts = self.program().map(Path::new).and_then(Path::file_name);
        starts == Some("shunt".as_ref()) && self.get("ExecStart").contains(" run ")
    }

    /// Files with more variables, which win over those of the unit.
    #[must_use]
    pub fn environment_files(&self) -> Vec<&'a Path> {
        let path =
            |line: &&'a str| Path::new(line.rsplit_once(" (").map_or(*line, |(path, _)| path));
        self.all("EnvironmentFiles").iter().filter(|line| !line.is_empty()).map(path).collect()
    }

    /// The variables that the unit sets.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let words = split_quoted(self.get("Environment"));
        let pair = |word: &String| word.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()));
        words.iter().filter_map(pair).collect()
    }

    /// One of them.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        let all = self.variables();
        all.into_iter().rev().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// True for a service of root's.
    #[must_use]
    pub fn is_root(&self) -> bool {
        matches!(self.get("User"), "" | "root" | "0") && !self.is_on("DynamicUser")
    }

    /// Directories of which nothing can be seen inside, as far as the unit says.
    #[must_use]
    pub fn hidden(&self) -> Vec<&'a str> {
        let homes = self.is_on("ProtectHome") && self.get("ProtectHome") != "read-only";
        let homes = if homes { &["/home", "/root", "/run/user"][..] } else { &[] };
        let said = self.words("InaccessiblePaths").map(|path| path.trim_start_matches(['-', '+']));
        said.chain(homes.iter().copied()).collect()
    }

    /// Directories in which there is nothing but what is put there.
    #[must_use]
    pub fn emptied(&self) -> Vec<&'a str> {
        let path = |word: &'a str| word.split(':').next().unwrap_or(word);
        self.words("TemporaryFileSystem").map(path).collect()
    }
}

/// A list as systemctl prints it: what is permitted or, behind `~`, what is not.
#[must_use]
pub fn permits(list: &str, what: &str) -> bool {
    // A call may stand there with the error that it gives.
    let names = |word: &str| word.split(':').next() == Some(what);
    match list.strip_prefix('~') {
        Some(forbidden) => !forbidden.split(' ').any(names),
        None => list.split(' ').any(names),
    }
}

/// Words of which some stand in quotes, as a shell would read them.
fn split_quoted(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (' ', None) => words.extend(word.take()),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (_, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(chars.next()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted() {
        let unit = Unit::parse(
            "x",
            "Environment=A=1 \"B=two words\" \"LD_PRELOAD=/l/\\$LIB/x.so\" A=3 'C=\"' D=\n",
        );
        assert_eq!(unit.variable("B").as_deref(), Some("two words"));
        assert_eq!(unit.variable("LD_PRELOAD").as_deref(), Some("/l/$LIB/x.so"));
        assert_eq!(unit.variable("A").as_deref(), Some("3"), "the last one counts");
        assert_eq!(unit.variable("C").as_deref(), Some("\""));
        assert_eq!(unit.variable("D").as_deref(), Some(""));
        assert_eq!(unit.variable("E"), None);
    }

    #[test]
    fn lists() {
        assert!(permits("~", "read") && permits("~write", "read") && !permits("~write", "write"));
        assert!(permits("read:EPERM write", "read") && !permits("reads", "read"));
        assert!(!permits("~ptrace:EPERM", "ptrace") && !permits("none", "AF_UNIX"));
    }

    #[test]
    fn properties_with_several_lines() {
        let said = "EnvironmentFiles=/etc/default/a (ignore_errors=yes)\nEnvironmentFiles=/b c (ignore_errors=no)\n";
        let unit = Unit::parse("x", said);
        assert_eq!(unit.environment_files(), [Path::new("/etc/default/a"), Path::new("/b c")]);
        assert!(Unit::parse("x", "EnvironmentFiles=\n").environment_files().is_empty());
        assert!(Unit::parse("x", "").environment_files().is_empty());
    }
}
