//! This project's host and target prove to each other who they are (DH-HMAC-CHAP).

use std::time::Duration;

use shunt_functional::binaries::built;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::waiting::settles;
use shunt_nvme::auth::Secret;
use shunt_nvme::wire::Nqn;
use shunt_nvme_host::{Data, Failure, Identity, Options, Subsystem};

use crate::{QUICK, Target, configure};

/// Of 32 zero bytes, and of 32 times 2, with their CRC-32s.
const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
const OTHER: &str = "DHHC-1:00:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:";
const HOST: &str = "nqn.2024-01.org.shunt:test-host";

/// A configuration in which the host has such keys.
fn with(keys: &str) -> String {
    format!(
        "[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = [{{ nqn = \"{HOST}\"{keys} }}]\n\
         [[subsystem.namespace]]\nstore = \"memory\"\nsize = \"1MiB\"\n"
    )
}

fn one_sided() -> String {
    with(&format!(", key = \"{KEY}\""))
}

fn both() -> String {
    with(&format!(", key = \"{KEY}\", controller-key = \"{OTHER}\""))
}

/// A host with such keys.
fn options(target: &Target, key: Option<&str>, controller: Option<&str>) -> Options {
    let mut options = Options::new(vec![target.way().to], Nqn::new(QUICK).unwrap());
    options.identity = Identity::named(HOST).unwrap();
    options.identity.key = key.map(|text| Secret::new(text).unwrap());
    options.identity.controller_key = controller.map(|text| Secret::new(text).unwrap());
    options.give_up = Some(Duration::from_millis(500));
    options
}

fn refused(options: Options, why: &str) {
    let said = Subsystem::connect(options).unwrap_err().to_string();
    assert!(said.contains(why), "{said}, not {why}");
}

/// Connects with an Admin Queue and an I/O queue, and uses them.
fn works(options: Options) {
    let subsystem = Subsystem::connect(options).unwrap();
    let disk = subsystem.namespace(1).unwrap();
    let mut queue = subsystem.queue().unwrap();
    for (request, data) in
        [(disk.write(3, 1), Data::from(vec![7; 4096])), (disk.read(3, 1), vec![0; 4096].into())]
    {
        queue.submit(request, data, 1).unwrap();
        let mut done = Vec::new();
        queue.poll(&mut done, Some(Duration::from_secs(60))).unwrap();
        assert!(done[0].result == Ok(0) && done[0].data.bytes() == [7; 4096], "{done:?}");
    }
    drop(queue);
    subsystem.close();
}

#[test]
fn a_host_proves_who_it_is_with_its_key_and_no_other() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &one_sided());
    works(options(&target, Some(KEY), None));
    refused(options(&target, Some(OTHER), None), "refused the key");
    refused(options(&target, None, None), "give the key");
    // The controller has no key with which it could answer, and says that this is no way to authenticate.
    refused(options(&target, Some(KEY), Some(OTHER)), "the controller refused");
    target.end();
}

#[test]
fn a_controller_proves_who_it_is_to_hosts_that_ask() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &both());
    works(options(&target, Some(KEY), Some(OTHER)));
    works(options(&target, Some(KEY), None));
    refused(options(&target, Some(KEY), Some(KEY)), "no valid proof");
    refused(options(&target, Some(OTHER), Some(OTHER)), "refused the key");
    target.end();
}

/// A key that is not good any more ends what was connected with it; with the old one, commands go on.
#[test]
fn keys_that_change_are_asked_for_again() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &both());
    let mut patient = options(&target, Some(KEY), Some(OTHER));
    patient.give_up = Some(Duration::from_secs(60));
    let subsystem = Subsystem::connect(patient).unwrap();
    let disk = subsystem.namespace(1).unwrap();
    let mut queue = subsystem.queue().unwrap();
    let reload = |text: &str, count: u64| {
        configure(&sandbox, target.port, text);
        target.process.signal(libc::SIGHUP);
        settles("the new keys", &count, || target.count(&sandbox, "reloads"));
    };
    reload(&with(&format!(", key = \"{OTHER}\"")), 1);
    settles("the end", &false, || subsystem.paths()[0].is_up);
    let why = || subsystem.paths()[0].error.clone().unwrap_or_default();
    settles("the refusal", &true, || why().contains("refused the key"));
    queue.submit(disk.flush(), Data::None, 5).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done, Some(Duration::from_millis(300))).unwrap();
    assert!(done.is_empty(), "{done:?}");
    reload(&both(), 2);
    queue.poll(&mut done, Some(Duration::from_secs(60))).unwrap();
    assert_eq!((done[0].token, done[0].result), (5, Ok::<u64, Failure>(0)));
    drop(queue);
    subsystem.close();
    target.end();
}

/// The same with files, as people have them.
#[test]
fn keys_are_read_from_files() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &both());
    let file = |name: &str, key: &str| {
        let path = sandbox.path().join(name);
        std::fs::write(&path, format!("{key}\n")).unwrap();
        path
    };
    let (good, bad) = (file("good", KEY), file("bad", OTHER));
    for (key, controller, why) in [
        (&good, &bad, None),
        (&bad, &bad, Some("refused the key")),
        (&good, &good, Some("no valid proof")),
    ] {
        let mut command = sandbox.command(built("shunt"));
        command.args(["nvme", "list", "--host", HOST, "--to"]);
        command.arg(format!("127.0.0.1:{}", target.port));
        command.arg("--key-file").arg(key).arg("--controller-key-file").arg(controller);
        let finished = sandbox.spawn(command).wait();
        match why {
            None => assert!(finished.success().stdout.contains("4096")),
            Some(why) => assert!(finished.stderr.contains(why), "{finished}"),
        }
    }
    target.end();
}
