//! One suite that the memory of link groups must pass, wherever it comes from.
//!
//! Its cases run the very code that the product runs: regions as the agent makes them and as the library maps them, both
//! ways in which bytes get into a peer's RMB (*attach* and *copy*: [`Way`]), and the doorbells. A device describes itself by
//! a [`Rig`] and instantiates the suite in an integration test:
//!
//! ```ignore
//! shunt_conformance::link_group_conformance!(MyRig);
//! ```
//!
//! Each case becomes a `#[test]` of its name. A case makes a fabric of its own, so they run in any
//! order and at the same time.

mod lifecycle;
mod moving;
mod rig;
mod signalling;

pub use lifecycle::{
    a_region_begins_as_zeroes, a_region_has_the_name_that_it_was_given,
    attached_memory_outlives_its_registration, memory_cannot_be_resized,
    what_is_no_region_is_refused,
};
pub use moving::{
    bytes_arrive_exactly, concurrent_senders_do_not_disturb_each_other, every_ring_is_its_own,
    one_memory_at_both_ends, streams_go_round_the_ring, what_does_not_fit_is_refused_whole,
};
pub use rig::{Rig, Way};
pub use signalling::{a_signal_wakes_only_the_one_it_is_for, data_is_visible_before_its_signal};

/// Makes a test of every case of the suite. The argument is a type that implements [`Rig`].
#[macro_export]
macro_rules! link_group_conformance {
    ($rig:ty) => {
        $crate::link_group_conformance! { @tests $rig:
            a_region_has_the_name_that_it_was_given
            a_region_begins_as_zeroes
            attached_memory_outlives_its_registration
            memory_cannot_be_resized
            what_is_no_region_is_refused
            one_memory_at_both_ends
            every_ring_is_its_own
            bytes_arrive_exactly
            what_does_not_fit_is_refused_whole
            streams_go_round_the_ring
            concurrent_senders_do_not_disturb_each_other
            a_signal_wakes_only_the_one_it_is_for
            data_is_visible_before_its_signal
        }
    };
    (@tests $rig:ty: $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                $crate::$case::<$rig>();
            }
        )+
    };
}
