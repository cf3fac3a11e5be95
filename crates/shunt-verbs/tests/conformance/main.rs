//! One suite for every implementation of the port: the device in the process, libibverbs with a stub below it, and a device of
//! this machine where `SHUNT_TEST_RDMA_DEVICE` names one (rxe, siw, or a card).

mod cases;
mod rig;
mod stub;

use rig::{FakeRig, NamedRig, StubRig};

/// The suite, for one rig.
macro_rules! suite {
    ($($case:ident)+) => {
        mod fake {
            $(#[test]
            fn $case() {
                // Orders differ by the seed.
                for seed in 0..20 {
                    super::cases::$case(&super::FakeRig::new(seed));
                }
            })+
        }

        mod library {
            $(#[test]
            fn $case() {
                super::cases::$case(&super::StubRig::new());
            })+
        }

        /// Every case, on the device that the environment names.
        #[test]
        fn named_device() {
            let Some(rig) = NamedRig::new() else {
                eprintln!("SHUNT_TEST_RDMA_DEVICE names no device: nothing is tested on one");
                return;
            };
            $(
                eprintln!("{}", stringify!($case));
                cases::$case(&rig);
            )+
        }
    };
}

suite! {
    states_come_in_order
    a_message_arrives_whole
    pieces_are_one_message
    a_write_is_there_when_a_later_message_is_told
    a_write_with_immediate_tells
    completions_keep_their_order
    what_is_not_signaled_completes_in_silence
    an_armed_queue_tells_of_the_next_completion_once
    queues_tell_their_own_channels
    a_full_queue_refuses
    failing_flushes_in_order
    what_is_posted_after_a_failure_is_flushed
    a_peer_that_failed_does_not_answer
    a_message_without_a_receive_request_waits
    a_message_without_a_receive_request_fails_in_the_end
    a_message_that_is_too_long_fails_both
    writes_stay_inside_of_what_is_registered
    what_is_registered_for_sending_is_not_written
    a_key_is_void_with_its_registration
    a_vector_that_there_is_not_is_refused
}
