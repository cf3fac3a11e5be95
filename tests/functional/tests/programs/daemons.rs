//! Servers of other protocols than HTTP: LDAP, DNS, Subversion, mail, FTP. Threads over one epoll instance, libuv, a process
//! for each connection, one that passes it on after the login, and one that limits itself and gives up its rights.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};
use shunt_functional::waiting::settles;

use crate::runtimes::{lines, source};
use crate::{Outcome, compare, content};

const SLAPD: Subject = Subject {
    kind: Kind::Programs,
    name: "OpenLDAP (slapd)",
    version: Version::Packaged("slapd"),
    done: "500 entries added and found by ldapadd and ldapsearch, four clients at once; a wrong password",
    remark: "",
};

const NAMED: Subject = Subject {
    name: "BIND (named)",
    version: Version::Packaged("bind9"),
    done: "transfers of a zone, 400 queries on one connection, and one on each of 20, by dig +tcp",
    ..SLAPD
};

const SVNSERVE: Subject = Subject {
    name: "Subversion (svnserve)",
    version: Version::Packaged("subversion"),
    done: "a process or a thread for each connection; commits and exports",
    ..SLAPD
};

const VSFTPD: Subject = Subject {
    name: "vsftpd",
    version: Version::Packaged("vsftpd"),
    done: "files fetched and stored by curl, passive and active; as root",
    remark: "limits its addresses, gives up its rights, and passes its connections between processes and to the descriptors 0 to 2: it stays on TCP",
    ..SLAPD
};

const DOVECOT: Subject = Subject {
    name: "Dovecot",
    version: Version::Packaged("dovecot-core"),
    done: "IMAP and POP3 sessions, five at once; commands sent before the login is through; as root",
    remark: "with default_vsz_limit = 2G; the process that reads the login passes the connection on, which goes back to TCP then",
    ..SLAPD
};

/// What a client prints, in which no fact may depend on time.
fn said(sandbox: &Sandbox, command: Command) -> String {
    sandbox.run(command).stdout
}

/// Long text as a fact that can be printed.
fn in_short(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{} lines, hash {:x}", text.lines().count(), hasher.finish())
}

/// Runs `count` of a client at once; what they print, in order.
fn at_once(sandbox: &Sandbox, count: usize, make: impl Fn(usize) -> Command) -> Outcome {
    let clients: Vec<Process> = (0..count).map(|n| sandbox.spawn(make(n))).collect();
    clients.into_iter().map(|client| client.wait().success().stdout).collect()
}

fn slapd(sandbox: &Sandbox) -> Outcome {
    let dir = sandbox.path().display();
    let port = free_port();
    fs::create_dir(sandbox.path().join("db")).expect("db");
    let schemas = ["core", "cosine", "inetorgperson"]
        .map(|name| format!("include /etc/ldap/schema/{name}.schema\n"))
        .concat();
    let configuration = format!(
        "{schemas}pidfile {dir}/slapd.pid\nargsfile {dir}/slapd.args\n\
         modulepath /usr/lib/ldap\nmoduleload back_mdb\ndatabase mdb\ndbnosync\nmaxsize 67108864\n\
         suffix dc=ex\nrootdn cn=a,dc=ex\nrootpw secret\ndirectory {dir}/db\n"
    );
    fs::write(sandbox.path().join("slapd.conf"), configuration).expect("slapd.conf");
    let mut entries =
        "dn: dc=ex\nobjectClass: dcObject\nobjectClass: organization\no: ex\ndc: ex\n\n".to_owned();
    for n in 0..500 {
        let text = "x".repeat(n + 1);
        entries += &format!(
            "dn: cn=u{n},dc=ex\nobjectClass: inetOrgPerson\ncn: u{n}\nsn: s\ndescription: {text}\n\n"
        );
    }
    let file = sandbox.path().join("entries");
    fs::write(&file, entries).expect("entries");

    let url = format!("ldap://127.0.0.1:{port}/");
    let mut command = sandbox.command(program("slapd"));
    command.args(["-d", "0", "-h", &url, "-f"]).arg(sandbox.path().join("slapd.conf"));
    let mut server = sandbox.serve(command, port);
    let client = |name: &str| {
        let mut command = sandbox.command(program(name));
        command.args(["-x", "-H", &url, "-D", "cn=a,dc=ex"]);
        command
    };
    let mut outcome = Outcome::new();
    let mut command = client("ldapadd");
    command.args(["-w", "secret", "-f"]).arg(&file);
    outcome.push(in_short(&sandbox.expect(Expect::Ends(2), || said(sandbox, command))));
    let found = sandbox.expect(Expect::Ends(8), || {
        at_once(sandbox, 4, |n| {
            let mut command = client("ldapsearch");
            command.args(["-w", "secret", "-LLL", "-b", "dc=ex", &format!("(cn=u{n}*)")]);
            command
        })
    });
    outcome.extend(found.iter().map(|entries| in_short(entries)));
    let mut command = client("ldapsearch");
    command.args(["-w", "wrong", "-b", "dc=ex"]);
    let refused = sandbox.spawn(command).wait();
    outcome.push(format!("{} {}", refused.status, refused.stderr));
    server.assert_running();
    server.terminate(libc::SIGTERM);
    outcome
}

#[test]
fn openldap() {
    compare(&SLAPD, Sandbox::new, slapd);
}

fn named(sandbox: &Sandbox) -> Outcome {
    let dir = sandbox.path().display();
    let port = free_port();
    let mut zone =
        "$TTL 300\n@ IN SOA ns.ex. a.ex. 1 60 60 600 60\n@ IN NS ns.ex.\nns IN A 127.0.0.1\n"
            .to_owned();
    for n in 0..1000 {
        let text = "x".repeat(n % 200 + 1);
        zone += &format!("h{n} IN A 10.0.{}.{}\nh{n} IN TXT {text}\n", n / 250, n % 250);
    }
    fs::write(sandbox.path().join("ex.zone"), zone).expect("ex.zone");
    let configuration = format!(
        "options {{ directory \"{dir}\"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};\n\
         recursion no; dnssec-validation no; allow-transfer {{ any; }};\n\
         pid-file \"{dir}/named.pid\"; session-keyfile \"{dir}/key\"; }};\n\
         controls {{ }}; zone \"ex\" {{ type primary; file \"{dir}/ex.zone\"; }};\n"
    );
    let file = sandbox.path().join("named.conf");
    fs::write(&file, configuration).expect("named.conf");
    let mut command = sandbox.command(program("named"));
    command.arg("-g").arg("-c").arg(&file);
    let mut server = sandbox.serve(command, port);

    let dig = || {
        let mut command = sandbox.command(program("dig"));
        command.args(["@127.0.0.1", "-p", &port.to_string(), "+tcp", "+noall", "+answer"]);
        command
    };
    // It listens before it has read the zone.
    let answers = || {
        let mut command = dig();
        command.args(["ex", "SOA"]);
        !said(sandbox, command).is_empty()
    };
    settles("the zone is there", &true, answers);
    let transfers = sandbox.expect(Expect::Ends(6), || {
        at_once(sandbox, 3, |_| {
            let mut command = dig();
            command.args(["ex", "AXFR"]);
            command
        })
    });
    let mut outcome: Outcome = transfers.iter().map(|zone| in_short(zone)).collect();
    let mut command = dig();
    command.arg("+keepopen");
    for n in 0..200 {
        command.args([&format!("h{n}.ex"), "A", &format!("h{n}.ex"), "TXT"]);
    }
    outcome.push(in_short(&sandbox.expect(Expect::Ends(2), || said(sandbox, command))));
    for n in 0..5 {
        outcome.extend(at_once(sandbox, 4, |k| {
            let mut command = dig();
            command.args([&format!("h{n}{k}.ex"), "TXT"]);
            command
        }));
    }
    server.assert_running();
    server.terminate(libc::SIGTERM);
    outcome
}

#[test]
fn bind() {
    compare(&NAMED, Sandbox::new, named);
}

fn svnserve(sandbox: &Sandbox) -> Outcome {
    let dir = sandbox.path();
    let mut command = sandbox.plain(program("svnadmin"));
    command.args(["create", "repository"]);
    let _made = sandbox.run(command);
    fs::write(dir.join("repository/conf/svnserve.conf"), "[general]\nanon-access = write\n")
        .expect("svnserve.conf");
    let mut outcome = Outcome::new();
    for (n, way) in [&[][..], &["-T"]].into_iter().enumerate() {
        let port = free_port();
        let mut command = sandbox.command(program("svnserve"));
        command.args(["-d", "--foreground", "--listen-host", "127.0.0.1", "-r"]).arg(dir);
        command.args(["--listen-port", &port.to_string()]).args(way);
        let mut server = sandbox.serve(command, port);
        let url = format!("svn://127.0.0.1:{port}/repository");
        let svn = |args: &[&str]| {
            let mut command = sandbox.command(program("svn"));
            command.args(["--non-interactive", "-q"]).args(args).arg("--config-dir").arg(dir);
            command
        };
        let sent = dir.join(format!("sent{n}"));
        fs::create_dir(&sent).expect("sent");
        for k in 0..20 {
            fs::write(sent.join(format!("f{k}")), content(k * 10_000)).expect("a file");
        }
        let from = sent.display().to_string();
        let to = format!("{url}/{n}");
        let import = svn(&["import", "-m", "all", &from, &to]);
        outcome.push(sandbox.expect(Expect::Ends(2), || said(sandbox, import)));
        let came = |k: usize| dir.join(format!("came{n}{k}"));
        outcome.extend(sandbox.expect(Expect::Ends(6), || {
            at_once(sandbox, 3, |k| svn(&["export", &to, &came(k).display().to_string()]))
        }));
        for k in 0..3 {
            let right = (0..20)
                .filter(|f| {
                    fs::read(came(k).join(format!("f{f}"))).ok() == Some(content(f * 10_000))
                })
                .count();
            outcome.push(format!("{way:?}: {right} files are right"));
        }
        server.assert_running();
        server.terminate(libc::SIGTERM);
    }
    outcome
}

#[test]
fn subversion() {
    compare(&SVNSERVE, Sandbox::new, svnserve);
}

fn vsftpd(sandbox: &Sandbox) -> Outcome {
    let dir = sandbox.path();
    let port = free_port();
    // The servers' user must reach the files.
    for (name, mode) in [("", 0o755), ("files", 0o755), ("files/pub", 0o777), ("empty", 0o755)] {
        fs::create_dir_all(dir.join(name)).expect("a directory");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let bytes = content(3 << 20);
    fs::write(dir.join("files/large"), &bytes).expect("large");
    fs::write(dir.join("sent"), &bytes).expect("sent");
    let configuration = format!(
        "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\n\
         anonymous_enable=YES\nanon_root={dir}/files\nftp_username=ftp\n\
         write_enable=YES\nanon_upload_enable=YES\nconnect_from_port_20=NO\nxferlog_enable=NO\n\
         seccomp_sandbox=NO\nsecure_chroot_dir={dir}/empty\n",
        dir = dir.display()
    );
    fs::write(dir.join("vsftpd.conf"), configuration).expect("vsftpd.conf");
    let mut command = sandbox.command(program("vsftpd"));
    command.arg(dir.join("vsftpd.conf"));
    let mut server = sandbox.serve(command, port);
    let curl = |args: &[&str], path: &str| {
        let mut command = sandbox.command(program("curl"));
        command.args(["-sS", "--max-time", "20"]).args(args);
        command.arg(format!("ftp://127.0.0.1:{port}/{path}"));
        command
    };
    let mut outcome = Outcome::new();
    for way in [&[][..], &["-P", "127.0.0.1"]] {
        let name = format!("pub/{}", way.len());
        let got = dir.join("got").display().to_string();
        let _got = sandbox.run(curl(&[way, &["-o", &got]].concat(), "large"));
        let sent = dir.join("sent").display().to_string();
        let _sent = sandbox.run(curl(&[way, &["-T", &sent]].concat(), &name));
        let right = |path: &str| fs::read(path).is_ok_and(|got| got == bytes);
        let stored = dir.join("files").join(&name).display().to_string();
        outcome.push(format!("{way:?}: fetched {}, stored {}", right(&got), right(&stored)));
        outcome.push(sandbox.run(curl(&[way, &["-l"]].concat(), "pub/")).stdout);
    }
    server.assert_running();
    server.terminate(libc::SIGTERM);
    outcome
}

#[test]
fn an_ftp_server_that_limits_itself() {
    if !is_root() {
        println!("left out: only root can become another user");
        return;
    }
    compare(&VSFTPD, Sandbox::new, vsftpd);
}

fn dovecot(sandbox: &Sandbox) -> Outcome {
    let dir = sandbox.path();
    let [imap, pop3] = [(); 2].map(|()| free_port());
    // The mail's user must reach the letters.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::create_dir(dir.join("joe")).expect("joe");
    fs::set_permissions(dir.join("joe"), fs::Permissions::from_mode(0o777)).expect("chmod");
    let dir = dir.display();
    fs::write(sandbox.path().join("users"), format!("joe:{{PLAIN}}pw:65534:65534::{dir}/joe::\n"))
        .expect("users");
    let login = |name: &str, port: u16| {
        format!(
            "service {name}-login {{\n inet_listener {name} {{\n  port = {port}\n }}\n \
             inet_listener {name}s {{\n  port = 0\n }}\n}}\n"
        )
    };
    let configuration = format!(
        "base_dir = {dir}/base\nstate_dir = {dir}/base\nprotocols = imap pop3\n\
         listen = 127.0.0.1\nssl = no\ndisable_plaintext_auth = no\nauth_failure_delay = 0\n\
         log_path = {dir}/dovecot.log\nmail_location = maildir:~/Maildir\nmail_fsync = never\n\
         first_valid_uid = 1\nmail_max_userip_connections = 50\ndefault_vsz_limit = 2G\n\
         import_environment = TZ LD_PRELOAD SHUNT_RUN_DIR SHUNT_LIB SHUNT_DMB SHUNT_RUN_ID \
         SHUNT_AGENT_TIMEOUT SHUNT_TEST_SANDBOX\n{imap}{pop3}\
         passdb {{\n driver = passwd-file\n args = {dir}/users\n}}\n\
         userdb {{\n driver = passwd-file\n args = {dir}/users\n}}\n",
        imap = login("imap", imap),
        pop3 = login("pop3", pop3),
    );
    let file = sandbox.path().join("dovecot.conf");
    fs::write(&file, configuration).expect("dovecot.conf");
    let mut command = sandbox.command(program("dovecot"));
    command.arg("-F").arg("-c").arg(&file);
    let mut server = sandbox.serve(command, pop3);
    server.wait_for_port(imap);
    let mut command = sandbox.command(program("python3"));
    command.arg(source("mail.py")).args([imap.to_string(), pop3.to_string()]);
    let outcome = lines(&sandbox.expect(Expect::Ends(10), || sandbox.run(command)).stdout);
    server.assert_running();
    server.terminate(libc::SIGTERM);
    outcome
}

#[test]
fn a_mail_server_that_passes_connections_on() {
    if !is_root() {
        println!("left out: only root can become another user");
        return;
    }
    compare(&DOVECOT, Sandbox::new, dovecot);
}
