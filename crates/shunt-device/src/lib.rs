//! Back ends of the device port: loopback in attach and copy mode.
