use super::*;

/// What `systemctl show` of systemd 252 says of Debian 12's own units.
const NGINX: &str = include_str!("recorded/nginx.txt");
const REDIS: &str = include_str!("recorded/redis-server.txt");
const HAPROXY: &str = include_str!("recorded/haproxy.txt");
const POSTGRES: &str = include_str!("recorded/postgresql@15-main.txt");
const POSTGRES_META: &str = include_str!("recorded/postgresql.txt");

fn host() -> Host {
    Host {
        library: "/usr/lib/shunt/libshunt.so".into(),
        entry: "/usr/lib/shunt/$LIB/libshunt.so".into(),
        run_dir: OF_HOST.to_owned(),
        has_agent_unit: true,
    }
}

fn planned(name: &str, said: &str) -> Result<Plan, String> {
    plan(&Unit::parse(name, said), &host(), &BTreeMap::new(), None)
}

const PLAIN: &str = "# Written by `shunt enable`, which writes it anew; `shunt disable` removes it.\n\
    [Unit]\nWants=shunt-host.socket\nAfter=shunt-host.socket\n\n\
    [Service]\nEnvironment=\"LD_PRELOAD=/usr/lib/shunt/$LIB/libshunt.so\"\n\
    Environment=\"SHUNT_RUN_DIR=/run/shunt\"\n";

#[test]
fn debians_units_without_a_sandbox_need_two_variables() {
    for (name, said) in [("nginx.service", NGINX), ("haproxy.service", HAPROXY)] {
        let expected = Plan { text: PLAIN.to_owned(), loosened: Vec::new(), doubts: Vec::new() };
        assert_eq!(planned(name, said), Ok(expected), "{name}");
    }
}

#[test]
fn debians_redis_may_map_no_library_but_those_of_the_system() {
    assert_eq!(planned("redis-server.service", REDIS).unwrap().text, PLAIN);
    let elsewhere = Host {
        library: "/opt/shunt/libshunt.so".into(),
        entry: "/opt/shunt/libshunt.so".into(),
        ..host()
    };
    let unit = Unit::parse("redis-server.service", REDIS);
    let found = plan(&unit, &elsewhere, &BTreeMap::new(), None).unwrap();
    assert!(found.text.ends_with("\nExecPaths=/opt/shunt\n"), "{}", found.text);
    assert!(found.loosened[0].contains("NoExecPaths="), "{found:?}");
}

#[test]
fn debians_postgresql_drops_the_variables() {
    let why = planned("postgresql@15-main.service", POSTGRES).unwrap_err();
    for part in [
        "/etc/postgresql/15/main/environment",
        "LD_PRELOAD = '/usr/lib/shunt/$LIB/libshunt.so'",
        "SHUNT_RUN_DIR = '/run/shunt'",
    ] {
        assert!(why.contains(part), "{why}");
    }
    let why = planned("postgresql.service", POSTGRES_META).unwrap_err();
    assert!(why.contains("'postgresql@*'"), "{why}");
    let parts = POSTGRES_META.replace("ConsistsOf=", "ConsistsOf=postgresql@15-main.service");
    let why = planned("postgresql.service", &parts).unwrap_err();
    assert!(why.ends_with("name its parts: postgresql@15-main.service"), "{why}");
}

/// Debian's nginx with these settings instead of its own.
fn with(settings: &[&str]) -> String {
    let name = |line: &str| line.split('=').next().unwrap_or_default().to_owned();
    let changed: Vec<_> = settings.iter().map(|line| name(line)).collect();
    let kept = NGINX.lines().filter(|line| !changed.contains(&name(line)));
    kept.chain(settings.iter().copied()).map(|line| format!("{line}\n")).collect()
}

#[test]
fn what_a_sandbox_takes_is_given_back_and_told() {
    for (settings, line) in [
        (&["RestrictAddressFamilies=AF_INET AF_INET6"][..], "RestrictAddressFamilies=AF_UNIX"),
        (&["RestrictAddressFamilies=~AF_UNIX"], "RestrictAddressFamilies=AF_UNIX"),
        (&["SystemCallFilter=~memfd_create ptrace"], "SystemCallFilter=memfd_create"),
        (&["TemporaryFileSystem=/run:ro"], "BindReadOnlyPaths=/run/shunt"),
        (&["TemporaryFileSystem=/usr/lib/shunt"], "BindReadOnlyPaths=/usr/lib/shunt"),
        (&["NoExecPaths=/", "ExecPaths=/usr/sbin/nginx"], "ExecPaths=/usr/lib/shunt"),
        (&["ExecPaths=/", "NoExecPaths=/usr"], "ExecPaths=/usr/lib/shunt"),
    ] {
        let found = planned("nginx.service", &with(settings)).unwrap();
        assert_eq!(found.text.strip_prefix(PLAIN), Some(format!("{line}\n").as_str()));
        assert!(found.loosened[0].starts_with(line), "{found:?}");
        // When it is in force systemd tells of it, and it stays.
        let unit = with(&[]);
        let unit = Unit::parse("nginx.service", &unit);
        let again = plan(&unit, &host(), &BTreeMap::new(), Some(&found.text)).unwrap();
        assert_eq!(again.text, found.text);
    }
    let root = planned("nginx.service", &with(&["RootDirectory=/srv/root"])).unwrap();
    assert!(
        root.text.ends_with("BindReadOnlyPaths=/usr/lib/shunt\nBindReadOnlyPaths=/run/shunt\n"),
        "{}",
        root.text
    );
    for settings in [
        &["MemoryDenyWriteExecute=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"][..],
        &["PrivateTmp=yes", "PrivateUsers=yes", "DynamicUser=yes", "ProtectHome=yes"],
        &[
            "ProtectHome=read-only",
            "SystemCallFilter=~ptrace",
            "RestrictAddressFamilies=~AF_PACKET",
        ],
    ] {
        let found = planned("nginx.service", &with(settings)).unwrap();
        assert_eq!((found.text.as_str(), found.loosened.len()), (PLAIN, 0));
    }
}

#[test]
fn what_cannot_be_given_is_refused() {
    for (settings, why) in [
        (&["InaccessiblePaths=-/run"][..], "hides /run, and with it the agent"),
        (&["InaccessiblePaths=/usr/lib/shunt"], "hides /usr/lib/shunt, and with it the library"),
        (&["RootImage=/srv/image.raw"], "RootImage="),
        (&["UnsetEnvironment=LD_PRELOAD"], "takes LD_PRELOAD away"),
        (&["DefaultDependencies=no"], "before sockets are made"),
        (
            &["ExecStart={ path=/usr/bin/shunt ; argv[]=/usr/bin/shunt run nginx ; }"],
            "starts it already",
        ),
        (&["Id=shunt-host.service"], "a part of Shunt"),
    ] {
        let found = planned("nginx.service", &with(settings)).unwrap_err();
        assert!(found.contains(why), "{found}");
    }
}

#[test]
fn files_with_variables_win_over_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("default");
    let with_file = with(&[&format!("EnvironmentFiles={} (ignore_errors=yes)", file.display())]);
    for (text, is_refused) in [
        ("", false),
        ("OTHER=1\n# LD_PRELOAD=/x\n", false),
        ("LD_PRELOAD=/usr/lib/libjemalloc.so\n", true),
        ("LD_PRELOAD=\"/usr/lib/shunt/libshunt.so /x\"\n", false),
        ("SHUNT_RUN_DIR=\"/run/shunt\"\n", false),
        ("SHUNT_RUN_DIR=/elsewhere\n", true),
    ] {
        std::fs::write(&file, text).unwrap();
        let found = planned("nginx.service", &with_file);
        assert_eq!(found.is_err(), is_refused, "{text}: {found:?}");
    }
}

#[test]
fn what_else_is_preloaded_stays() {
    let set = |value: &str| with(&[&format!("Environment=A=1 \"LD_PRELOAD={value}\"")]);
    let line = |value: &str| {
        planned("nginx.service", &set(value)).unwrap().text.lines().nth(6).unwrap().to_owned()
    };
    let first = "Environment=\"LD_PRELOAD=/usr/lib/shunt/$LIB/libshunt.so";
    assert_eq!(line("/l/a.so"), format!("{first}:/l/a.so\""));
    assert_eq!(line("/old/libshunt.so:/l/a.so"), format!("{first}:/l/a.so\""), "an older one goes");
    assert_eq!(line("/old/\\$LIB/libshunt.so"), format!("{first}\""));
    assert_eq!(line("/l/100%.so"), format!("{first}:/l/100%%.so\""));
}

#[test]
fn a_library_that_the_services_user_cannot_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join(library::NAME);
    std::fs::write(&library, "").unwrap();
    let host = Host { library: library.clone(), entry: library, ..host() };
    let judge = |user: &str| {
        let said = with(&[&format!("User={user}")]);
        plan(&Unit::parse("nginx.service", &said), &host, &BTreeMap::new(), None)
    };
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    assert!(judge("www-data").unwrap_err().contains("because of the mode of"));
    assert!(judge("").is_ok());
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(judge("www-data").is_ok());
}

#[test]
fn other_agents_and_other_variables() {
    let host = Host { run_dir: "/srv/agent".to_owned(), has_agent_unit: false, ..host() };
    let said = with(&["PrivateNetwork=yes", "AppArmorProfile=nginx"]);
    let variables = BTreeMap::from([("SHUNT_SPIN", "never")]);
    let found = plan(&Unit::parse("nginx.service", &said), &host, &variables, None).unwrap();
    assert!(!found.text.contains("[Unit]") && found.text.contains("\"SHUNT_RUN_DIR=/srv/agent\""));
    assert!(found.text.ends_with("Environment=\"SHUNT_SPIN=never\"\n"));
    assert_eq!(found.doubts.len(), 2, "{found:?}");
}
