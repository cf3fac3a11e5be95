//! One suite that every device must pass.
//!
//! A back end describes itself by a [`Rig`] and instantiates the suite in an integration test:
//!
//! ```ignore
//! shunt_conformance::device_conformance!(MyRig);
//! ```
//!
//! Each case becomes a `#[test]` of its name. A case makes a fabric of its own, so they run in any
//! order and at the same time.

mod attaching;
mod lifecycle;
mod moving;
mod rig;
mod signalling;

pub use attaching::{
    a_device_that_cannot_attach_says_so, attached_memory_and_moved_bytes_are_the_same,
    attached_memory_outlives_its_registration, detaching_undoes_one_attaching,
    what_is_written_to_attached_memory_reaches_its_owner,
};
pub use lifecycle::{
    a_dmb_begins_as_zeroes, a_dmb_that_is_too_large_is_refused, a_fabric_that_is_gone_is_noticed,
    a_stranger_s_tokens_are_unknown, ends_of_one_fabric_share_its_gid, memory_cannot_be_resized,
    only_its_owner_unregisters_a_dmb, tokens_are_never_reused, unknown_tokens_are_refused,
};
pub use moving::{
    a_ring_s_pieces_arrive_in_place, an_end_moves_data_to_itself, bytes_arrive_exactly,
    concurrent_movers_do_not_disturb_each_other, moving_meets_unregistering,
    what_does_not_fit_is_refused_whole,
};
pub use rig::Rig;
pub use signalling::{
    data_is_visible_before_its_signal, one_end_s_signal_wakes_only_the_owner,
    signals_are_given_when_asked_for,
};

/// Makes a test of every case of the suite. The argument is a type that implements [`Rig`].
#[macro_export]
macro_rules! device_conformance {
    ($rig:ty) => {
        $crate::device_conformance! { @tests $rig:
            ends_of_one_fabric_share_its_gid
            a_stranger_s_tokens_are_unknown
            a_dmb_begins_as_zeroes
            a_dmb_that_is_too_large_is_refused
            tokens_are_never_reused
            unknown_tokens_are_refused
            only_its_owner_unregisters_a_dmb
            memory_cannot_be_resized
            a_fabric_that_is_gone_is_noticed
            bytes_arrive_exactly
            a_ring_s_pieces_arrive_in_place
            what_does_not_fit_is_refused_whole
            an_end_moves_data_to_itself
            concurrent_movers_do_not_disturb_each_other
            moving_meets_unregistering
            signals_are_given_when_asked_for
            one_end_s_signal_wakes_only_the_owner
            data_is_visible_before_its_signal
            a_device_that_cannot_attach_says_so
            attached_memory_and_moved_bytes_are_the_same
            what_is_written_to_attached_memory_reaches_its_owner
            detaching_undoes_one_attaching
            attached_memory_outlives_its_registration
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
