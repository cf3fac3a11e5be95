//! The conformance suite on the loopback device, in each of its modes.

mod fabric;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fabric::{End, Fabric};
use shunt_conformance::Rig;
use shunt_device::loopback::{Loopback, Mode};
use shunt_engine::ports::Token;
use shunt_shm::dmb::Dmb;

/// A loopback fabric; `ATTACH`: its ends map their peers' memory.
struct Loop<const ATTACH: bool>(Arc<Fabric>);

impl<const ATTACH: bool> Rig for Loop<ATTACH> {
    type Device = Loopback<End>;

    fn new() -> Self {
        Self(Fabric::new())
    }

    fn end(&self) -> Self::Device {
        let mode = if ATTACH { Mode::Attach } else { Mode::Copy };
        Loopback::new(self.0.join(), mode).unwrap()
    }

    fn read(dmb: &Arc<Dmb>, offset: usize, into: &mut [u8]) {
        dmb.read(offset, into).unwrap();
    }

    fn write(dmb: &Arc<Dmb>, offset: usize, data: &[u8]) {
        dmb.write(offset, data).unwrap();
    }

    fn told(end: &Self::Device, patience: Duration) -> bool {
        end.exchange().is_told(patience)
    }

    fn resize(&self, token: Token, len: u64) -> Option<io::Result<()>> {
        Some(self.0.memory(token).unwrap().set_len(len))
    }

    fn die(&self) {
        self.0.die();
    }
}

mod attach {
    shunt_conformance::device_conformance!(super::Loop<true>);
}

mod copy {
    shunt_conformance::device_conformance!(super::Loop<false>);
}
