//! A link against a far side that does what it likes, and over regions as the product has them.

mod ends;
mod failover;
mod hostile;
mod measure;
mod regions;
