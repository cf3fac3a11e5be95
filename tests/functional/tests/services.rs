//! Debian's own services under Shunt, by `shunt enable`, in a system that systemd has booted.

use serde_json::Value;
use shunt_functional::booted::Booted;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

/// Runs something in it, which must succeed, and returns what it says.
fn run(booted: &Booted<'_>, program: &str, args: &[&str]) -> String {
    let output = booted.command(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}\n{}", booted.logs());
    String::from_utf8(output.stdout).unwrap()
}

/// The same, which must fail with status 1.
fn fails(booted: &Booted<'_>, args: &[&str]) -> String {
    let output = booted.command("shunt").args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A client under Shunt.
fn client(booted: &Booted<'_>, args: &[&str]) -> String {
    let own = ["SHUNT_RUN_DIR=/run/shunt", "shunt", "run", "--"];
    run(booted, "env", &[&own[..], args].concat())
}

fn shunted(booted: &Booted<'_>) -> u64 {
    let said = run(booted, "env", &["SHUNT_RUN_DIR=/run/shunt", "shunt", "stats", "--json"]);
    let stats: Value = serde_json::from_str(&said).unwrap();
    stats["connections_shunted"].as_u64().unwrap()
}

/// Enables a service, starts it, and has a client come: both ends are shunted. Then the same without Shunt again.
fn enabled(booted: &Booted<'_>, unit: &str, ask: &[&str], answer: &str) {
    let said = run(booted, "shunt", &["enable", unit]);
    assert!(said.contains("is enabled"), "{said}");
    booted.systemctl(&["start", unit]);
    let before = shunted(booted);
    assert!(client(booted, ask).contains(answer), "{}", booted.logs());
    let ends = shunted(booted) - before;
    assert!(ends >= 2, "{ends} ends\n{}\n{}", booted.systemctl(&["status", unit]), booted.logs());
    let status = run(booted, "shunt", &["enable", "--status"]);
    let is_in_force = |line: &str| {
        line.starts_with(unit) && line.contains("in force") && line.contains("with the library")
    };
    assert!(status.lines().any(is_in_force), "{status}");

    let said = run(booted, "shunt", &["disable", unit, "--restart"]);
    assert!(said.contains("was restarted"), "{said}");
    let before = shunted(booted);
    assert!(client(booted, ask).contains(answer), "{}", booted.logs());
    assert_eq!(shunted(booted), before, "{}", booted.logs());
    let said = run(booted, "shunt", &["enable", unit, "--restart"]);
    assert!(said.contains("was restarted"), "{said}");
    assert!(client(booted, ask).contains(answer), "{}", booted.logs());
    assert!(shunted(booted) >= before + 2, "{}", booted.logs());
}

const NGINX: &str =
    "events {}\nhttp { server { listen 127.0.0.1:8081; location / { return 200 'it works'; } } }\n";
const HAPROXY: &str = "defaults\n timeout connect 9s\n timeout client 9s\n timeout server 9s\n mode tcp\n\
                       listen all\n bind 127.0.0.1:8082\n server one 127.0.0.1:8081\n";
const CURL: [&str; 3] = ["curl", "-sS", "--max-time"];

#[test]
fn nginx_and_haproxy() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.bring_unit("nginx.service");
    booted.bring_unit("haproxy.service");
    booted.write("/etc/nginx/nginx.conf", NGINX);
    for directory in ["lib", "log"] {
        booted.write(&format!("/var/{directory}/nginx/.keep"), "");
    }
    booted.write("/etc/haproxy/haproxy.cfg", HAPROXY);
    // The journal's, which the unit mounts.
    booted.write("/dev/log", "");
    booted.systemctl(&["daemon-reload"]);
    let ask = |port: &'static str| [&CURL[..], &["9", port]].concat();
    enabled(&booted, "nginx.service", &ask("http://127.0.0.1:8081/"), "it works");
    enabled(&booted, "haproxy.service", &ask("http://127.0.0.1:8082/"), "it works");
}

/// A user of its own, PrivateUsers=, NoExecPaths=/, a filter of system calls.
#[test]
fn redis_in_its_sandbox() {
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.bring_unit("redis-server.service");
    booted.write("/etc/redis/redis.conf", "port 7811\nbind 127.0.0.1\nsave \"\"\n");
    booted.systemctl(&["daemon-reload"]);
    enabled(
        &booted,
        "redis-server.service",
        &["redis-cli", "-p", "7811", "-r", "5", "incr", "key"],
        "5",
    );
    // It is one unit by whatever name.
    run(&booted, "ln", &["-s", "redis-server.service", "/etc/systemd/system/redis.service"]);
    booted.systemctl(&["daemon-reload"]);
    assert!(
        run(&booted, "shunt", &["disable", "redis"]).contains("redis-server.service is disabled")
    );

    // A narrower one: neither the agent's sockets nor the library's calls.
    let narrow = "[Service]\nRestrictAddressFamilies=\nRestrictAddressFamilies=AF_INET AF_INET6\n\
                  SystemCallFilter=~memfd_create eventfd2 epoll_pwait2 vmsplice mremap\nRestart=no\n";
    booted.drop_in("redis-server.service", "10-narrow", narrow);
    // `notify` needs a UNIX socket.
    booted.drop_in("redis-server.service", "11-type", "[Service]\nType=simple\n");
    booted.write("/etc/redis/redis.conf", "port 7811\nbind 127.0.0.1\nsave \"\"\nsupervised no\n");
    let said = run(&booted, "shunt", &["enable", "redis-server", "--dry-run"]);
    for line in [
        "RestrictAddressFamilies=AF_UNIX\n",
        "SystemCallFilter=epoll_pwait2 eventfd2 memfd_create mremap vmsplice\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    run(&booted, "shunt", &["enable", "redis-server", "--restart"]);
    let before = shunted(&booted);
    let ask = ["redis-cli", "-p", "7811", "-r", "5", "incr", "key"];
    let mut answer = String::new();
    for _ in 0..100 {
        let mut command = booted.command("env");
        command.args(["SHUNT_RUN_DIR=/run/shunt", "shunt", "run", "--"]).args(ask);
        answer = String::from_utf8(command.output().unwrap().stdout).unwrap();
        if answer.contains('5') {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(answer.contains('5') && shunted(&booted) >= before + 2, "{answer}{}", booted.logs());
}

/// Debian's wrapper clears the environment, and `enable` says where the variables belong.
#[test]
fn postgresql_and_its_wrapper() {
    const UNIT: &str = "postgresql@15-main.service";
    let sandbox = Sandbox::new(Mode::Plain);
    let Some(booted) = Booted::new(&sandbox) else { return };
    booted.bring_unit("postgresql.service");
    booted.write("/etc/hosts", "127.0.0.1 localhost\n");
    booted.bring_unit("postgresql@.service");
    let script = "set -e; ln -s /run /var/run; install -d -o postgres -g postgres /var/lib/postgresql /var/log/postgresql /etc/postgresql \
                  /run/postgresql; mkdir -p /etc/postgresql-common\n\
                  pg_createcluster 15 main --port 7812 --locale C -- --auth=trust --no-sync\n\
                  echo 'host all all 127.0.0.1/32 trust' > /etc/postgresql/15/main/pg_hba.conf";
    run(&booted, "sh", &["-c", script]);
    booted.systemctl(&["daemon-reload"]);
    assert!(fails(&booted, &["enable", "postgresql"]).contains("no program of its own"));
    let why = fails(&booted, &["enable", UNIT]);
    let (_, lines) = why.trim_end().split_once("add these two lines there: ").expect("advice");
    let file = "/etc/postgresql/15/main/environment";
    let lines = lines.replace(" and ", "\n") + "\n";
    booted.write(file, &lines);
    let said = run(&booted, "shunt", &["enable", UNIT]);
    assert!(said.contains("is enabled"), "{said}");
    booted.systemctl(&["start", UNIT]);
    let before = shunted(&booted);
    let ask = ["psql", "-h", "127.0.0.1", "-p", "7812", "-U", "postgres", "-Atc", "select 6 * 7"];
    assert!(client(&booted, &ask).contains("42"), "{}", booted.logs());
    let ends = shunted(&booted) - before;
    assert!(ends >= 2, "{ends}\n{}", booted.logs());
    booted.systemctl(&["stop", UNIT]);
}
