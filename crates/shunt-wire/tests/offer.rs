//! The word of an offer: every value and back, and words that nobody writes.

use proptest::prelude::*;
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

fn offers() -> impl Strategy<Value = Offer> {
    prop_oneof![
        Just(Offer::None),
        (0..1_u64 << 62).prop_map(Offer::Open),
        (0..Reason::ALL.len()).prop_map(|i| Offer::Declined(Reason::ALL[i])),
        (0..1_u64 << 53, any::<u8>()).prop_map(|(region, slot)| Offer::Claimed { region, slot }),
    ]
}

proptest! {
    #[test]
    fn offers_survive(offer in offers()) {
        prop_assert_eq!(Offer::from_word(offer.to_word()), offer);
    }

    #[test]
    fn any_word_says_something(word: u64) {
        let _ = Offer::from_word(word);
    }
}

#[test]
fn nothing_is_the_empty_word() {
    assert_eq!(Offer::None.to_word(), 0);
    assert_eq!(Offer::from_word(2), Offer::None, "declined for no reason");
}
