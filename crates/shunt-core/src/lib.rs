//! The sans-IO engine: handshake, stretches, readiness, spinning, and the ports it needs.
