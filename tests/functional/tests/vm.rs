//! Connections between virtual machines, and between them and their host, through an ivshmem device.

use std::net::SocketAddr;
use std::time::Duration;

use shunt_functional::generator::parse;
use shunt_functional::machines::Lab;
use shunt_functional::record::compare;
use shunt_functional::rounds::rounds;
use shunt_functional::vm::{Guest, Image};
use shunt_functional::waiting::settles;

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `shunt-gen` between two guests, and compares every byte.
fn between(server: &mut Guest, client: &mut Guest, traffic: &str) {
    let ip = server.ip.map(|part| part.to_string()).join(".");
    let port = 7000;
    server.must(&format!(
        "(shunt run -- shunt-gen serve --listen {ip}:{port} {traffic} > /tmp/serve 2> /tmp/errors; \
         echo $? > /tmp/status) & until grep -q port /tmp/serve; do sleep 0.1; done; rm -f /tmp/status"
    ));
    settles("the listener is known", &true, || {
        client.must("shunt machines --json").contains(&format!("{ip}:{port}"))
    });
    let said =
        client.run(&format!("shunt run -- shunt-gen connect --to {ip}:{port} {traffic}"), PATIENCE);
    assert!(said.ok, "{}", said.text);
    let serving =
        server.must("until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/errors /tmp/serve");
    compare(&parse(&said.text), &parse(&serving)).expect("the same bytes");
}

#[test]
fn guests_talk_to_each_other_and_to_their_host() {
    let lab = Lab::new(1, "512M");
    let image = Image::assemble(lab.path());
    let [one, two] = [2, 3].map(|n| Guest::start(&lab, &image, n));
    let (mut one, mut two) = (one.ready(), two.ready());
    one.join();
    two.join();
    lab.until_all_see(3);

    between(&mut one, &mut two, "-n 300 -b 20000 --style epoll-et");
    assert_eq!(
        (one.counter("connections_shunted"), two.counter("connections_shunted")),
        (300, 300)
    );
    between(&mut two, &mut one, "-n 20 -b 200000 --style blocking");
    assert_eq!(
        (one.counter("connections_shunted"), two.counter("connections_shunted")),
        (320, 320)
    );

    // The host serves, a guest connects.
    let host = &lab.machines[0];
    let traffic = ["-n", "300", "-b", "20000", "--style", "epoll-lt"];
    let serving = host.serve(&traffic);
    let at = SocketAddr::from((host.ip, serving.port)).to_string();
    settles("the listener is known", &true, || one.must("shunt machines --json").contains(&at));
    let line = format!("shunt run -- shunt-gen connect --to {at} {}", traffic.join(" "));
    let said = one.run(&line, PATIENCE);
    assert!(said.ok, "{}", said.text);
    compare(&parse(&said.text), &serving.finish()).expect("the same bytes");
    settles("shunted", &300, || host.sandbox().stats().get("connections_shunted"));

    for _ in rounds(1, 20) {
        a_guest_is_killed(&lab, &image);
        between(&mut one, &mut two, "-n 30 -b 100000 --style poll");
    }
}

/// A third guest comes, is killed under load, and the others use its memory again.
fn a_guest_is_killed(lab: &Lab, image: &Image) {
    let host = &lab.machines[0];
    let shunted = || host.sandbox().stats().get("connections_shunted");
    let before = shunted();
    let mut third = Guest::start(lab, image, 4).ready();
    third.join();
    lab.until_all_see(4);
    let serving = host.serve(&["-n", "20", "-b", "1000000000000", "--style", "epoll-et"]);
    let at = SocketAddr::from((host.ip, serving.port)).to_string();
    settles("the listener is known", &true, || third.must("shunt machines --json").contains(&at));
    third.must(&format!(
        "(shunt run -- shunt-gen connect --to {at} -n 20 -b 1000000000000 --style epoll-et > /tmp/load 2>&1) &"
    ));
    settles("shunted", &(before + 20), shunted);
    third.kill();
    let told = serving.into_process().wait();
    assert!(told.stderr.contains("reset"), "{told}");
    lab.until_all_see(3);
    settles("link groups", &0, || host.status()["link_groups"].as_u64().unwrap_or(99));
}
