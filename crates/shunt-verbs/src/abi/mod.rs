//! libibverbs' ABI: the structures that cross it and the numbers in them, as `infiniband/verbs.h` has them.
//!
//! Version 1.1 of the symbols, which has been stable since 2006; what was added since stands behind what is here, or is
//! reached through functions that this crate does not use. A test compiles a C program with the installed header and compares
//! every size, offset and number (`layout`).

#![allow(
    missing_docs,
    non_camel_case_types,
    reason = "names and meanings are those of infiniband/verbs.h"
)]

pub mod constants;
#[cfg(test)]
mod layout;
pub mod structs;
