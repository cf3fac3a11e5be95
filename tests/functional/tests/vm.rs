//! Connections between virtual machines, and between them and their host, through an ivshmem device.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use shunt_functional::generator::parse;
use shunt_functional::machines::Lab;
use shunt_functional::record::compare;
use shunt_functional::rounds::rounds;
use shunt_functional::vm::{Device, Guest, Image};
use shunt_functional::waiting::settles;

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `shunt-gen` between two guests, and compares every byte. The kernel's buffers are small, so that neither end of a
/// connection can be through with it over TCP while the other one is not, and all of them get into shared memory.
fn between(server: &mut Guest, client: &mut Guest, traffic: &str) {
    let traffic = format!("{traffic} --buffers 4096");
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
    let [one, two] = [2, 3].map(|n| Guest::start(&lab, &image, n, Device::Doorbell));
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

    agents_are_stopped(&mut one, &mut two);

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
        a_guest_comes_and_is_killed(&lab, &image, &mut one);
        between(&mut one, &mut two, "-n 30 -b 100000 --style poll");
    }
}

/// Guests' programs are woken by interrupts that lead to them: what is connected goes on while their agents are stopped.
fn agents_are_stopped(server: &mut Guest, client: &mut Guest) {
    let traffic = "-n 4 -b 60000000 --style poll --stall 100";
    let ip = server.ip.map(|part| part.to_string()).join(".");
    let port = 7001;
    server.must(&format!(
        "(shunt run -- shunt-gen serve --listen {ip}:{port} {traffic} > /tmp/serve 2>&1) & \
         until grep -q port /tmp/serve; do sleep 0.1; done"
    ));
    settles("the listener is known", &true, || {
        client.must("shunt machines --json").contains(&format!("{ip}:{port}"))
    });
    let before = [client.counter("connections_shunted"), server.counter("connections_shunted")];
    client.must(&format!(
        "(shunt run -- shunt-gen connect --to {ip}:{port} {traffic} > /tmp/connect 2>&1; echo $? > /tmp/over) & \
         rm -f /tmp/over"
    ));
    settles("shunted", &before.map(|n| n + 4), || {
        [client.counter("connections_shunted"), server.counter("connections_shunted")]
    });
    for guest in [&mut *client, &mut *server] {
        guest.must("killall -STOP shunt");
    }
    assert!(
        !client.run("test -e /tmp/over", PATIENCE).ok,
        "it is not over before the agents are stopped"
    );
    let said = client.run("until [ -e /tmp/over ]; do sleep 0.1; done; cat /tmp/connect", PATIENCE);
    for guest in [&mut *client, &mut *server] {
        guest.must("killall -CONT shunt");
    }
    let serving = server.must("cat /tmp/serve");
    compare(&parse(&said.text), &parse(&serving)).expect("the same bytes");
}

/// Without a server and interrupts: memory of a file that two devices have, in which both agents look for themselves.
#[test]
fn guests_share_a_file_without_a_server() {
    let lab = Lab::new(1, "32M");
    let image = Image::assemble(lab.path());
    let file = lab.path().join("memory");
    let [one, two] = [5, 6].map(|n| Guest::start(&lab, &image, n, Device::Plain(&file)));
    let (mut one, mut two) = (one.ready(), two.ready());
    for guest in [&mut one, &mut two] {
        guest.join();
    }
    for guest in [&mut one, &mut two] {
        settles("machines that are known", &2, || {
            let status: Value =
                serde_json::from_str(&guest.must("shunt machines --json")).unwrap_or_default();
            status["members"].as_array().map_or(0, Vec::len)
        });
    }
    between(&mut one, &mut two, "-n 30 -b 100000 --style epoll-et");
    between(&mut two, &mut one, "-n 10 -b 100000 --style blocking");
    // Its ends wait for each other so often that it would not be over in time if the agents only looked once a second.
    between(&mut one, &mut two, "-n 1 -b 60000000 --style blocking");
    assert_eq!((one.counter("connections_shunted"), two.counter("connections_shunted")), (41, 41));
}

/// A third guest comes, talks and goes; comes, and is killed under load; and the others use its memory again.
fn a_guest_comes_and_is_killed(lab: &Lab, image: &Image, one: &mut Guest) {
    let host = &lab.machines[0];
    let shunted = || host.sandbox().stats().get("connections_shunted");
    let before = shunted();
    let mut third = Guest::start(lab, image, 4, Device::Doorbell).ready();
    third.join();
    lab.until_all_see(4);
    between(&mut third, one, "-n 30 -b 100000 --style epoll-lt");
    // Its place is free a moment before it answers nobody any more.
    third.must("killall shunt; while pidof shunt; do sleep 0.1; done");
    lab.until_all_see(3);
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
