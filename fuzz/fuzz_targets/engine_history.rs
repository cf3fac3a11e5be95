//! Two programs on one connection, by the simulator of the engine: what they do, and where each of them stops or is killed.
//! A failure is printed as the line by which `cargo test -p shunt-engine` runs it again.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::{Corpus, fuzz_target};
use shunt_engine::sim::History;

#[derive(Debug)]
struct Any(History);

impl<'a> Arbitrary<'a> for Any {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(History::of(bytes.bytes(bytes.len())?)))
    }

    fn arbitrary_take_rest(bytes: Unstructured<'a>) -> Result<Self> {
        Ok(Self(History::of(bytes.take_rest())))
    }
}

fuzz_target!(|history: Any| -> Corpus {
    let Any(history) = history;
    if !history.is_modelled() {
        return Corpus::Reject;
    }
    let _ = history.run();
    Corpus::Keep
});
