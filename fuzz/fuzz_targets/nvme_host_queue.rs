//! Any bytes that a target sends on the connection of a queue with commands under way: they reach the memory of these
//! commands and no other, and each command ends once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shunt_nvme_host::victim::Victim;

fuzz_target!(|input: (u8, Vec<Vec<u8>>)| {
    let (digests, chunks) = input;
    let mut victim = Victim::new(digests & 1 != 0, digests & 2 != 0);
    for chunk in chunks.iter().take(64) {
        victim.submit();
        victim.hear(chunk);
    }
    victim.end();
});
