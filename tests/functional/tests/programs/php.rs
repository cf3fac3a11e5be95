//! PHP behind nginx. It loads its extensions such that they bind to libc before all others (`RTLD_DEEPBIND`).

use std::fs;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox, is_root};

use crate::{Outcome, compare, content, field};

const PHP: Subject = Subject {
    kind: Kind::Programs,
    name: "PHP (php-fpm)",
    version: Version::Packaged("php8.2-fpm"),
    done: "behind nginx under curl and ab: connections kept, and one for each request; it asks the server itself, by streams",
    remark: "",
};

/// Says how much it was sent, and a hash of it; of what is at another address with `?from=`.
const SCRIPT: &str = r"<?php
$from = $_GET['from'] ?? 'php://input';
$bytes = file_get_contents($from);
echo extension_loaded('ctype') ? 'extended ' : 'bare ', strlen($bytes), ' ', md5($bytes);
";

/// Large enough for many pieces.
const LARGE: usize = 3 << 20;

fn scenario(sandbox: &Sandbox) -> Outcome {
    let [fpm, kept, short] = [(); 3].map(|()| free_port());
    let dir = sandbox.path().join("php");
    fs::create_dir(&dir).expect("php");
    let dir = dir.display();
    fs::write(format!("{dir}/index.php"), SCRIPT).expect("index.php");
    fs::write(format!("{dir}/sent"), content(LARGE)).expect("sent");

    let user = if is_root() { "user = root\ngroup = root\n" } else { "" };
    let configuration = format!(
        "[global]\nerror_log = {dir}/fpm.log\ndaemonize = no\n\
         [www]\n{user}listen = 127.0.0.1:{fpm}\npm = static\npm.max_children = 4\n"
    );
    fs::write(format!("{dir}/fpm.conf"), configuration).expect("fpm.conf");
    let mut command = sandbox.command(program("php-fpm8.2"));
    command.args(["--allow-to-run-as-root", "--fpm-config"]).arg(format!("{dir}/fpm.conf"));
    let mut php = sandbox.serve(command, fpm);

    let user = if is_root() { "user root;" } else { "" };
    let server = |port: u16, to: &str, keeps: &str| {
        format!(
            "server {{ listen 127.0.0.1:{port}; location / {{ fastcgi_pass {to};\n\
             fastcgi_keep_conn {keeps}; include /etc/nginx/fastcgi_params;\n\
             fastcgi_param SCRIPT_FILENAME {dir}/index.php; }}\n\
             location /sent {{ root {dir}; }} }}\n"
        )
    };
    let servers = server(kept, "fpm", "on") + &server(short, &format!("127.0.0.1:{fpm}"), "off");
    let configuration = format!(
        "daemon off; {user} worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;\n\
         events {{}}\nhttp {{ access_log off; client_max_body_size 10m;\n\
         client_body_temp_path {dir}/b; fastcgi_temp_path {dir}/f; proxy_temp_path {dir}/p;\n\
         uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
         upstream fpm {{ server 127.0.0.1:{fpm}; keepalive 2; }}\n{servers} }}\n"
    );
    fs::write(format!("{dir}/nginx.conf"), configuration).expect("nginx.conf");
    let mut command = sandbox.command(program("nginx"));
    command.args(["-e", &format!("{dir}/error.log"), "-c", &format!("{dir}/nginx.conf")]);
    let mut nginx = sandbox.serve(command, short);

    let mut outcome = Outcome::new();
    for port in [kept, short] {
        // nginx and its client, nginx and PHP, each with two ends.
        let mut post = sandbox.command(program("curl"));
        post.args(["-sS", "--fail", "--data-binary", &format!("@{dir}/sent")]);
        post.arg(format!("http://127.0.0.1:{port}/"));
        outcome.push(sandbox.expect(Expect::Ends(4), || sandbox.run(post)).stdout);

        // And PHP's own connection to nginx. Nginx may have kept the one to PHP.
        let mut fetch = sandbox.command(program("curl"));
        fetch.args(["-sS", "--fail"]);
        fetch.arg(format!("http://127.0.0.1:{port}/?from=http://127.0.0.1:{port}/sent"));
        outcome.push(sandbox.expect(Expect::Ends(4), || sandbox.run(fetch)).stdout);

        let mut ab = sandbox.command(program("ab"));
        ab.args(["-q", "-k", "-c", "4", "-n", "500"]).arg(format!("http://127.0.0.1:{port}/"));
        let ends = if port == short { 900 } else { 8 };
        let text = sandbox.expect(Expect::Ends(ends), || sandbox.run(ab)).stdout;
        let facts = ["Complete requests:", "Failed requests:", "Non-2xx responses:"];
        outcome.push(format!("{:?}", facts.map(|fact| field(&text, fact))));
    }
    for process in [&mut nginx, &mut php] {
        process.assert_running();
        process.terminate(libc::SIGQUIT);
    }
    outcome
}

#[test]
fn php_behind_nginx() {
    compare(&PHP, Sandbox::new, scenario);
}
