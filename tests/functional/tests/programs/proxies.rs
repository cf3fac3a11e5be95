//! HAProxy, nginx and stunnel between a client and nginx.

use std::fs;
use std::path::Path;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};
use shunt_functional::servers;

use crate::{Outcome, compare, content, field};

const HAPROXY: Subject = Subject {
    kind: Kind::Programs,
    name: "HAProxy",
    version: Version::Said("haproxy", "-v"),
    done: "in front of nginx under curl and ab: http mode, tcp mode, tcp mode with splice; two threads",
    remark: "",
};

const NGINX: Subject = Subject {
    kind: Kind::Programs,
    name: "nginx as a proxy",
    version: Version::Said("nginx", "-v"),
    done: "proxy_pass to nginx under curl and ab: with connections kept, without buffering",
    remark: "",
};

const STUNNEL: Subject = Subject {
    kind: Kind::Programs,
    name: "stunnel",
    version: Version::Packaged("stunnel4"),
    done: "a client and a server of it in front of nginx, under curl",
    remark: "",
};

const SMALL: usize = 600;
const LARGE: usize = 5 << 20;

fn origin(sandbox: &Sandbox) -> (Process, u16) {
    let port = free_port();
    let files = [("small", &content(SMALL)[..]), ("large", &content(LARGE))];
    (servers::nginx(sandbox, port, 2, is_root().then_some("root"), &files), port)
}

/// What curl and ab make of the server at `port`. A request makes two connections, of two ends each.
fn requests(sandbox: &Sandbox, port: u16) -> Outcome {
    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    let mut outcome = fetch(sandbox, &url("large"), &[]);
    for (args, ends) in [(&["-k", "-n", "2000"][..], 42), (&["-n", "400"], 800)] {
        let mut command = sandbox.command(program("ab"));
        command.args(["-q", "-c", "20"]).args(args).arg(url("small"));
        let text = sandbox.expect(Expect::Ends(ends), || sandbox.run(command)).stdout;
        let facts = ["Complete requests:", "Failed requests:", "Non-2xx responses:"];
        let facts = facts.map(|f| format!("{f} {:?}", field(&text, f)));
        outcome.push(format!("ab {args:?}: {facts:?}"));
    }
    outcome
}

fn fetch(sandbox: &Sandbox, url: &str, args: &[&str]) -> Outcome {
    let out = sandbox.path().join("fetched");
    let mut command = sandbox.command(program("curl"));
    command.args(["-sS", "--fail", "-o"]).arg(&out).args(args).arg(url);
    let _done = sandbox.expect(Expect::Ends(4), || sandbox.run(command));
    vec![format!("curl: right {}", fs::read(&out).expect("fetched") == content(LARGE))]
}

fn haproxy(sandbox: &Sandbox) -> Outcome {
    let (mut server, origin) = origin(sandbox);
    let ports = [(); 3].map(|()| free_port());
    let [http, tcp, splice] = ports;
    let file = sandbox.path().join("haproxy.cfg");
    let configuration = format!(
        "global\n nbthread 2\n\
         defaults\n timeout connect 10s\n timeout client 30s\n timeout server 30s\n\
         listen http\n mode http\n bind 127.0.0.1:{http}\n server nginx 127.0.0.1:{origin}\n\
         listen tcp\n mode tcp\n bind 127.0.0.1:{tcp}\n server nginx 127.0.0.1:{origin}\n\
         listen splice\n mode tcp\n option splice-auto\n option splice-request\n \
         option splice-response\n bind 127.0.0.1:{splice}\n server nginx 127.0.0.1:{origin}\n"
    );
    fs::write(&file, configuration).expect("haproxy.cfg");
    let mut command = sandbox.command(program("haproxy"));
    command.arg("-db").arg("-f").arg(&file);
    let mut proxy = sandbox.serve(command, splice);
    let outcome = ports.into_iter().flat_map(|port| requests(sandbox, port)).collect();
    proxy.assert_running();
    server.assert_running();
    server.terminate(libc::SIGQUIT);
    outcome
}

#[test]
fn haproxy_in_front_of_nginx() {
    compare(&HAPROXY, Sandbox::new, haproxy);
}

fn nginx(sandbox: &Sandbox) -> Outcome {
    let (mut server, origin) = origin(sandbox);
    let [kept, unbuffered] = [(); 2].map(|()| free_port());
    let dir = sandbox.path().join("proxy");
    fs::create_dir(&dir).expect("proxy");
    let file = dir.join("nginx.conf");
    let user = if is_root() { "user root;" } else { "" };
    let configuration = format!(
        "daemon off; {user} worker_processes 2; pid {dir}/pid; error_log {dir}/error.log;\n\
         events {{}}\nhttp {{ access_log off; proxy_temp_path {dir}/proxied;\n\
         client_body_temp_path {dir}/bodies; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;\n\
         scgi_temp_path {dir}/s;\n\
         upstream origin {{ server 127.0.0.1:{origin}; keepalive 8; }}\n\
         server {{ listen 127.0.0.1:{kept}; location / {{ proxy_pass http://origin;\n\
         proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}\n\
         server {{ listen 127.0.0.1:{unbuffered}; location / {{\n\
         proxy_pass http://127.0.0.1:{origin}; proxy_buffering off; }} }} }}\n",
        dir = dir.display()
    );
    fs::write(&file, configuration).expect("nginx.conf");
    let mut command = sandbox.command(program("nginx"));
    command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
    let mut proxy = sandbox.serve(command, unbuffered);
    let outcome = [kept, unbuffered].into_iter().flat_map(|port| requests(sandbox, port)).collect();
    for process in [&mut proxy, &mut server] {
        process.assert_running();
        process.terminate(libc::SIGQUIT);
    }
    outcome
}

#[test]
fn nginx_in_front_of_nginx() {
    compare(&NGINX, Sandbox::new, nginx);
}

/// A key and a certificate of its own for localhost: (certificate, key).
pub fn certificate(sandbox: &Sandbox) -> [String; 2] {
    let files = ["certificate.pem", "key.pem"].map(|name| sandbox.path().join(name));
    let mut command = sandbox.plain(program("openssl"));
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    command.args(["-nodes", "-days", "2", "-subj", "/CN=localhost", "-out"]);
    command.arg(&files[0]).arg("-keyout").arg(&files[1]);
    let _done = sandbox.run(command);
    files.map(|file| file.display().to_string())
}

fn stunnel(sandbox: &Sandbox) -> Outcome {
    let (mut server, origin) = origin(sandbox);
    let [certificate, key] = certificate(sandbox);
    let [outer, inner] = [(); 2].map(|()| free_port());
    let start = |name: &str, port: u16, service: String| {
        let file = sandbox.path().join(name);
        let text =
            format!("foreground = yes\npid =\n[{name}]\naccept = 127.0.0.1:{port}\n{service}");
        fs::write(&file, text).expect("a configuration");
        let mut command = sandbox.command(stunnel_program());
        command.arg(&file);
        sandbox.serve(command, port)
    };
    let ends = format!("connect = 127.0.0.1:{origin}\ncert = {certificate}\nkey = {key}\n");
    let mut tunnels = [
        start("inner", inner, ends),
        start("outer", outer, format!("client = yes\nconnect = 127.0.0.1:{inner}\n")),
    ];
    let mut outcome = fetch(sandbox, &format!("https://127.0.0.1:{inner}/large"), &["-k"]);
    outcome.extend(fetch(sandbox, &format!("http://127.0.0.1:{outer}/large"), &[]));
    outcome.extend(requests(sandbox, outer));
    tunnels.iter_mut().for_each(Process::assert_running);
    server.assert_running();
    server.terminate(libc::SIGQUIT);
    outcome
}

fn stunnel_program() -> impl AsRef<std::ffi::OsStr> + use<> {
    // Debian's `stunnel` is a script around it.
    let all = program("stunnel");
    let four = all.with_file_name("stunnel4");
    if Path::is_file(&four) { four } else { all }
}

#[test]
fn stunnel_in_front_of_nginx() {
    compare(&STUNNEL, Sandbox::new, stunnel);
}
