//! One suite that every device must pass.
