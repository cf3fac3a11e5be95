//! HTTP under wrk: HAProxy in front of nginx, and Node.

use std::fs;

use super::connections::{CONNECTIONS, connections_text};
use crate::failure::{Context, Result};
use crate::rig::{Budget, Session, program};
use crate::workload::nginx::{configuration, server, wrk};
use crate::workload::row::{Better, Family, Outcome, Row};

static HAPROXY: Family = Family {
    title: "HAProxy in front of nginx",
    meaning: "wrk asks HAProxy, which asks nginx (tuned, one worker), for a page of 612 B: two connections \
              for each request, both kept. HAProxy has as many threads as there are cores, its default.",
};

static NODE: Family = Family {
    title: "Node",
    meaning: "wrk asks a server of Node's module http, one thread, for a page of 612 B.",
};

/// Bytes of a page.
const SIZE: usize = 612;

/// Threads of wrk, if there are as many connections.
const THREADS: u32 = 2;

fn haproxy(session: &Session<'_>, budget: Budget, connections: u32) -> Result<Outcome> {
    let haproxy = program("haproxy", "haproxy")?;
    let (origin, front) = (session.endpoint()?, session.endpoint()?);
    let (nginx, dir) = server(session, SIZE, |dir, user| configuration(dir, &origin, 1, user))?;
    let file = dir.join("haproxy.cfg");
    let text = format!(
        "defaults\n mode http\n timeout connect 10s\n timeout client 60s\n timeout server 60s\n\
         frontend front\n bind {front}\n default_backend back\n\
         backend back\n server nginx {origin}\n"
    );
    fs::write(&file, text).context("haproxy.cfg")?;
    let mut command = session.command(haproxy);
    command.arg("-db").arg("-f").arg(&file);
    let servers = session.serve_all(vec![(nginx, origin), (command, front.clone())])?;
    let outcome = wrk(session, budget, &front, SIZE, (THREADS, connections), false)?;
    drop(servers);
    let _kept = fs::remove_dir_all(&dir);
    Ok(outcome)
}

fn node(session: &Session<'_>, budget: Budget, connections: u32) -> Result<Outcome> {
    let node = program("node", "nodejs")?;
    let at = session.endpoint()?;
    let file = session.rig().new_path("server").with_extension("js");
    fs::write(&file, include_str!("server.js")).context("server.js")?;
    let mut command = session.command(node);
    command.arg(&file).args([at.ip().to_string(), at.port().to_string(), SIZE.to_string()]);
    let _server = session.serve(command, &at)?;
    wrk(session, budget, &at, SIZE, (THREADS, connections), false)
}

/// Both, by connections.
pub fn rows() -> Vec<Row> {
    type Run = fn(&Session<'_>, Budget, u32) -> Result<Outcome>;
    let mut rows = Vec::new();
    let all: [(_, _, _, Run); 2] = [
        ("haproxy", &HAPROXY, "HAProxy in front of nginx", haproxy),
        ("node", &NODE, "Node http", node),
    ];
    for (name, family, title, run) in all {
        for connections in CONNECTIONS {
            let drive =
                move |session: &Session<'_>, budget: Budget| run(session, budget, connections);
            let text = format!("{title}, 612 B, {}", connections_text(connections));
            rows.push(
                Row::new(format!("{name}.c{connections}"), family, text, drive)
                    .unit("req/s", Better::Higher)
                    .point(title, "connections", connections.into()),
            );
        }
    }
    rows
}
