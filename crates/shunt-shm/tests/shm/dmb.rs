//! A DMB by itself.

use shunt_shm::dmb::Dmb;
use shunt_shm::memfd::create_sealed;

#[test]
fn both_ends_see_one_memory() {
    let (own, fd) = Dmb::create(5_000).unwrap();
    let other = Dmb::map(&fd).unwrap();
    assert_eq!((own.len(), other.len()), (5_000, 5_000));
    other.write(4_997, &[1, 2, 3]).unwrap();
    let mut got = [0; 4];
    own.read(4_996, &mut got).unwrap();
    assert_eq!(got, [0, 1, 2, 3]);
    assert!(!other.ended());
    own.end();
    assert!(other.ended());
}

#[test]
fn access_stays_inside() {
    let (dmb, _fd) = Dmb::create(64).unwrap();
    for (offset, len) in [(64, 1), (0, 65), (63, 2), (65, 0), (usize::MAX, 0), (usize::MAX, 1)] {
        assert_eq!(dmb.write(offset, &vec![1; len]), None, "{len} at {offset}");
        assert_eq!(dmb.read(offset, &mut vec![1; len]), None, "{len} at {offset}");
    }
    assert_eq!(dmb.write(64, &[]), Some(()));
    assert_eq!(dmb.read(0, &mut [0; 64]), Some(()));
}

#[test]
fn a_dmb_of_no_bytes_is_one() {
    let (_, fd) = Dmb::create(0).unwrap();
    let dmb = Dmb::map(fd).unwrap();
    assert!(dmb.is_empty());
    assert_eq!(dmb.write(0, &[1]), None);
}

#[test]
fn other_memory_is_refused() {
    assert!(Dmb::map(create_sealed("test", 1 << 16).unwrap()).is_err(), "no magic");
    assert!(Dmb::map(create_sealed("test", 4095).unwrap()).is_err(), "too short");
    assert!(Dmb::create(usize::MAX).is_err());
    assert!(Dmb::create(isize::MAX.cast_unsigned()).is_err());
}
