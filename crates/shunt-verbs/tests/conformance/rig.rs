//! What the suite runs on.

use std::time::Duration;

use shunt_verbs::fake::{FakePort, Faults, Network};
use shunt_verbs::port::Port;
use shunt_verbs::{Device, Library};

use crate::stub;

/// Two hosts that reach each other, or one that reaches itself.
pub trait Rig {
    type Port: Port;

    /// The hosts.
    fn hosts(&self) -> (Self::Port, Self::Port);

    /// Lets the devices go on for a while.
    fn go_on(&self);
}

/// The device in the process.
pub struct FakeRig {
    network: Network,
}

impl FakeRig {
    pub fn new(seed: u64) -> Self {
        Self { network: Network::new(seed, Faults::NONE) }
    }
}

impl Rig for FakeRig {
    type Port = FakePort;

    fn hosts(&self) -> (FakePort, FakePort) {
        (self.network.host(), self.network.host())
    }

    fn go_on(&self) {
        let _ = self.network.step();
    }
}

/// libibverbs, with a stub in its place.
pub struct StubRig {
    device: Device,
}

impl StubRig {
    pub fn new() -> Self {
        Self { device: Device::open(&stub::library(), "stub0", 1, None).unwrap() }
    }
}

impl Rig for StubRig {
    type Port = Device;

    fn hosts(&self) -> (Device, Device) {
        (self.device.clone(), self.device.clone())
    }

    fn go_on(&self) {}
}

/// A device of this machine.
pub struct NamedRig {
    device: Device,
}

impl NamedRig {
    pub fn new() -> Option<Self> {
        let name = std::env::var("SHUNT_TEST_RDMA_DEVICE").ok()?;
        let device = Library::load().and_then(|library| Device::open(&library, &name, 1, None));
        Some(Self { device: device.unwrap_or_else(|why| panic!("{why}")) })
    }
}

impl Rig for NamedRig {
    type Port = Device;

    fn hosts(&self) -> (Device, Device) {
        (self.device.clone(), self.device.clone())
    }

    fn go_on(&self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
