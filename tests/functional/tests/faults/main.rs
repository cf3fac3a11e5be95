//! What goes wrong on a machine: programs that are killed or stopped, agents that die, memory and
//! descriptors that run out, clocks that jump, and connections that change their way in mid-stream. Whoever
//! is left goes on as over TCP, byte for byte, and nothing is left behind.
//!
//! The short forms run always; `SHUNT_TEST_FULL=1` asks for the long ones, of which each ends after
//! `SOAK_SECONDS` at the latest, if that is set.

mod agents;
mod clocks;
mod crowds;
mod kills;
mod limits;
mod many;
mod stops;
mod traces;
mod ways;

use shunt_functional::rounds;
