//! Any messages of an authentication, to both ends of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shunt_nvme::auth::{Group, Initiator, Responder, Secret, Step};
use shunt_nvme::wire::Nqn;

const KEY: &str = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";

fuzz_target!(|messages: Vec<Vec<u8>>| {
    let name = Nqn::new("nqn.2014-08.org.nvmexpress:uuid:1").expect("a name");
    let key = Secret::new(KEY).expect("a key");
    let mut responder = Responder::new(name.clone(), name.clone(), key.clone(), Some(key.clone()));
    let groups = vec![Group::Ffdhe2048, Group::Null];
    let mut initiator = Initiator::new(name.clone(), name, key.clone(), Some(key), groups, 1);
    let mut random = |bytes: &mut [u8]| bytes.fill(0x5a);
    for message in &messages {
        responder.receive(message);
        let _ = responder.send(&mut random);
        while matches!(initiator.step(), Ok(Step::Send(_))) {}
        initiator.receive(message, &mut random);
    }
});
