//! What SMC-R gains, by programs as they are.

use shunt_functional::vm::SMC_RUN;

use crate::hosts::{AT, Hosts, PATIENCE};

/// What the same programs reach with the same server by the kernel's own client, under Shunt, and over TCP. Rounds of all in turn.
#[test]
#[ignore = "takes a machine for itself: `make smc-speed`, for the figures of docs/rdma.md"]
fn speed_of_the_kernels_client_and_of_programs_under_shunt() {
    const ROUNDS: usize = 5;
    let mut hosts = Hosts::boot();
    let site = "mkdir -p /tmp/site; head -c 612 /dev/urandom > /tmp/site/page";
    hosts.server.must(site);
    for (preload, redis, nginx) in [(SMC_RUN, 7010, 7011), ("", 7020, 7021)] {
        let conf = format!(
            "user root; worker_processes 1; error_log stderr; pid /tmp/nginx{nginx}.pid; events {{}} \
             http {{ access_log off; server {{ listen 0.0.0.0:{nginx}; keepalive_requests 1000000; root /tmp/site; }} }}"
        );
        hosts.server.must(&format!(
            "echo '{conf}' > /tmp/nginx{nginx}.conf; export LD_PRELOAD={preload}; \
             (redis-server --port {redis} --bind 0.0.0.0 --protected-mode no --save '' > /tmp/redis{redis} 2>&1) & \
             (nginx -c /tmp/nginx{nginx}.conf > /tmp/nginx{nginx} 2>&1) & unset LD_PRELOAD; sleep 2"
        ));
    }
    hosts.client.must("while read module; do insmod /mods/$module || exit 1; done < /mods/later");
    hosts.client.must("shunt-smc-peer eid SHUNT");
    hosts.start_agent("SHUNT", &[7010, 7011]);
    let rows = [
        ("redis, 16 connections", "redis-benchmark -t get -q -c 16 -n REQUESTS -p", 7010),
        ("redis, 64 connections", "redis-benchmark -t get -q -c 64 -n REQUESTS -p", 7010),
        ("nginx, 16 connections", "wrk -t 1 -c 16 -d 4s --timeout 30s http://", 7011),
    ];
    for (name, line, port) in rows {
        let mut figures = [const { Vec::new() }; 3];
        for round in 0..=ROUNDS {
            for (way, before) in ["shunt run --summary --", "smc", "tcp"].iter().enumerate() {
                let port = if *before == "tcp" { port + 10 } else { port };
                let line = match line.strip_suffix("-p") {
                    Some(line) => format!("{line} -p {port} -h {AT}"),
                    None => format!("{line}{AT}:{port}/page"),
                };
                // The first round is no figure.
                let line = line.replace("REQUESTS", if round == 0 { "500" } else { "3000" });
                let line = match *before {
                    "smc" => format!("LD_PRELOAD={SMC_RUN} {line}"),
                    "tcp" => line,
                    shunt => format!("{shunt} {line}"),
                };
                let agent = "cut -d ' ' -f 14,15 /proc/$(cat /tmp/agent.pid)/stat";
                let busy = hosts.client.must(agent);
                let said = hosts.client.run(&line, PATIENCE);
                assert!(said.ok && !said.text.contains("errors"), "{line}: {}", said.text);
                let after = hosts.client.must(agent);
                let text = said.text.replace('\r', "\n");
                let figure = text.lines().rev().find_map(|line| {
                    let redis = line.strip_prefix("GET: ").and_then(|it| it.split(' ').next());
                    let wrk = line.trim().strip_prefix("Requests/sec:").map(str::trim);
                    redis.or(wrk)?.parse::<f64>().ok()
                });
                let figure = figure.unwrap_or_else(|| panic!("{line}: {}", said.text));
                println!("{name}: round {round}: {before}: {figure} (agent {busy} -> {after})");
                if *before == "shunt run --summary --" {
                    assert!(!text.contains("shunt: 0 connection"), "{text}");
                }
                if round > 0 {
                    figures[way].push(figure);
                }
            }
        }
        for figures in &mut figures {
            figures.sort_by(f64::total_cmp);
        }
        let [shunt, smc, tcp] = figures.each_ref().map(|figures| figures[ROUNDS / 2]);
        println!(
            "{name}: {shunt:.0} a second under Shunt {:?}, {smc:.0} by the kernel's client {:?}, {tcp:.0} over TCP {:?}: {:.2} and {:.2}",
            figures[0],
            figures[1],
            figures[2],
            shunt / smc,
            shunt / tcp
        );
    }
}
