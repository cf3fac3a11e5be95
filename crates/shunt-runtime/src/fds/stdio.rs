//! The descriptors that stdio has.

use crate::system::abi::c_int;

/// The last descriptor that stdio has from the beginning: standard error.
const LAST: c_int = 2;

/// True for standard input, output and error, which stdio reads and writes though it was never told
/// of them: a connection that comes to have such a number goes back to TCP, or stays there.
#[must_use]
pub const fn uses(fd: c_int) -> bool {
    fd <= LAST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_first_three() {
        assert!([0, 1, 2].into_iter().all(uses));
        assert!(!uses(3));
    }
}
