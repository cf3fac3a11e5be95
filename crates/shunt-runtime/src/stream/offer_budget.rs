//! Decides whether asking the agent pays off: an offer and a claim take longer than a connection of
//! one request gains.
//!
//! Each destination of offers has an account, and so has each origin of claimed connections. A
//! connection that ends is charged with its cost, less its gain. A lasting one does not wait for
//! its end: parts of its gain come off before ([`earn`]), for other lasting ones may be among many
//! that are short. Charges fade with time, so that [`crate::knobs::Knobs::short_lived`] connections
//! a second without gain leave the account as it is. Where more than a second's worth of them is
//! open, the library does not ask; the connection is TCP, at TCP's cost.

use core::sync::atomic::{AtomicU64, Ordering};

use shunt_wire::addr::{Addr, FourTuple};

use crate::conn::{ASKED, Sock};
use crate::knobs;
use crate::system::clock;

/// A second, in the units of [`now`].
const SECOND: u64 = 1_000_000_000 >> UNIT;
const UNIT: u32 = 16;
/// The most that is charged: what many connections have cost that ended at once is forgotten soon, too.
const MOST: u64 = 3 * SECOND;

/// Messages through the ring that gain as much as an offer and a claim cost: a message saves some ten microseconds.
const MESSAGES: u64 = 16;
/// Bytes that gain as much as a message.
const BYTES: u64 = 16 * 1024;

/// Messages sent for which something is taken off before the end: so many for the first time, then at twice as many each time.
pub const EARNED: u64 = 64;
/// How often at most. So one connection that lasts makes good for 64 offers that gain nothing, and not for any number of them.
const TIMES: u32 = 16;

/// Accounts, each in the place of its hash. One that finds its place taken begins anew.
pub struct Accounts([AtomicU64; 256]);

/// Of connections that were offered, by destination.
pub static OFFERS: Accounts = Accounts::new();
/// Of those that were claimed, by the address that they come from, and the port that they come to.
pub static CLAIMS: Accounts = Accounts::new();
/// Of destinations at which nobody could claim a connection a moment ago.
pub static UNANSWERED: Accounts = Accounts::new();

/// The part of a place's word that says until when there is something open; the rest tells whose it is.
const UNTIL: u64 = (1 << 40) - 1;

/// In units of 2^16 ns. It begins anew after two years.
fn now() -> u64 {
    clock::now() >> UNIT & UNTIL
}

/// Whose account it is.
#[derive(Clone, Copy)]
pub struct Key(u64);

impl Key {
    /// Of a destination.
    pub fn of_destination(to: &Addr) -> Self {
        Self(FourTuple { local: Addr::default(), peer: *to }.hash64())
    }

    /// Of where an accepted connection comes from.
    pub fn of_origin(tuple: &FourTuple) -> Self {
        let local = Addr { port: tuple.local.port, ..Addr::default() };
        Self(FourTuple { local, peer: Addr { port: 0, ..tuple.peer } }.hash64())
    }
}

impl Accounts {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 256])
    }

    fn place(&self, key: Key) -> &AtomicU64 {
        &self.0[usize::from(key.0.to_le_bytes()[0])]
    }

    /// What is open, in units of time; of another key's place nothing.
    fn open(key: Key, word: u64, now: u64) -> u64 {
        let ahead = word.wrapping_sub(now) & UNTIL;
        if (word ^ key.0) & !UNTIL == 0 && ahead <= MOST { ahead } else { 0 }
    }

    /// True where less than a second's worth is open.
    pub fn permits(&self, key: Key) -> bool {
        Self::open(key, self.place(key).load(Ordering::Relaxed), now()) <= SECOND
    }

    /// Changes what is open.
    fn charge(&self, key: Key, cost: u64, gain: u64) {
        let (place, now) = (self.place(key), now());
        let update = |word| {
            let before = Self::open(key, word, now);
            let after = before.saturating_add(cost).saturating_sub(gain).min(MOST);
            // Where nothing is open, who has the place keeps it.
            (before != after).then_some(key.0 & !UNTIL | now.wrapping_add(after) & UNTIL)
        };
        let _ = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    /// Nothing is permitted for two seconds.
    pub fn close(&self, key: Key) {
        self.charge(key, MOST, 0);
    }
}

/// What is charged for an offer, or a claim.
fn cost() -> u64 {
    SECOND / u64::from(knobs::get().short_lived())
}

/// The connection ends, of which the agent was asked maybe.
pub fn settle(sock: &Sock) {
    if !sock.has(ASKED) {
        return;
    }
    let (rx, tx) = (&sock.record().rx, &sock.record().tx);
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let messages = load(&rx.messages).saturating_add(load(&tx.messages));
    let bytes = load(&rx.bytes).saturating_add(load(&tx.bytes));
    // No more was taken off than there were.
    let gained = messages.saturating_add(bytes / BYTES).saturating_sub(earned(load(&tx.messages)));
    charge(sock, cost(), gained);
}

/// Messages for which something was taken off by the time that so many were sent.
const fn earned(sent: u64) -> u64 {
    match (sent / EARNED).checked_ilog2() {
        Some(doublings) if doublings < TIMES => EARNED * (doublings as u64 + 1),
        Some(_) => EARNED * TIMES as u64,
        None => 0,
    }
}

/// The connection has sent so many messages, a multiple of [`EARNED`].
#[cold]
pub fn earn(sock: &Sock, sent: u64) {
    if sock.has(ASKED) && earned(sent) != earned(sent - 1) {
        charge(sock, 0, EARNED);
    }
}

/// Charges a connection's account with a cost, less what so many messages gain.
fn charge(sock: &Sock, cost: u64, messages: u64) {
    let gain = self::cost().saturating_mul(messages) / MESSAGES;
    let tuple = sock.record().id.tuple();
    match sock.listener() {
        Some(_) => CLAIMS.charge(Key::of_origin(&tuple), cost, gain),
        None => OFFERS.charge(Key::of_destination(&tuple.peer), cost, gain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> Key {
        Key::of_destination(&Addr::any_v4(port))
    }

    #[test]
    fn what_gains_nothing_is_asked_for_so_often_and_no_more() {
        let accounts = Accounts::new();
        let asked = (0..1000)
            .take_while(|_| {
                let permitted = accounts.permits(key(1));
                accounts.charge(key(1), SECOND / 50, 0);
                permitted
            })
            .count();
        // More where the test was not quick.
        assert!(asked >= 50, "{asked}");
        let other =
            (2..).map(key).find(|other| accounts.place(*other).load(Ordering::Relaxed) == 0);
        assert!(accounts.permits(other.unwrap()), "another destination");
    }

    #[test]
    fn what_gains_makes_good_for_what_does_not() {
        let accounts = Accounts::new();
        accounts.charge(key(1), SECOND * 2, 0);
        assert!(!accounts.permits(key(1)));
        accounts.charge(key(1), 1, SECOND * 2);
        assert!(accounts.permits(key(1)));
        accounts.charge(key(1), 1, SECOND * 2);
        accounts.charge(key(1), SECOND + SECOND / 2, 0);
        assert!(!accounts.permits(key(1)), "nothing is saved up");
    }

    #[test]
    fn no_more_is_taken_off_before_the_end_than_was_gained() {
        assert_eq!(earned(EARNED - 1), 0);
        assert_eq!(earned(EARNED), EARNED);
        assert_eq!(earned(2 * EARNED - 1), EARNED);
        assert_eq!(earned(2 * EARNED), 2 * EARNED);
        assert_eq!(earned(u64::MAX), EARNED * u64::from(TIMES));
        let changes = (1..EARNED << 20).filter(|sent| earned(*sent) != earned(sent - 1));
        let changes: Vec<_> = changes.collect();
        assert_eq!(changes.len(), TIMES as usize);
        // Where it is looked at.
        assert!(changes.iter().all(|sent| sent % EARNED == 0 && earned(*sent) <= *sent));
    }

    #[test]
    fn it_is_forgotten_and_never_more_than_is_forgotten_soon() {
        let (key, now) = (key(1), 77);
        let word = |until: u64| key.0 & !UNTIL | until & UNTIL;
        assert_eq!(Accounts::open(key, word(now + MOST), now), MOST);
        assert_eq!(Accounts::open(key, word(now + 5), now + 5), 0);
        assert_eq!(Accounts::open(key, word(now), now + 100 * SECOND), 0, "long ago");
        // The time begins anew.
        assert_eq!(Accounts::open(key, word(UNTIL.wrapping_add(3)), UNTIL - 1), 4);
        assert_eq!(Accounts::open(key, 0, now), 0);
        let accounts = Accounts::new();
        for _ in 0..10 {
            accounts.charge(key, MOST, 0);
        }
        let word = accounts.place(key).load(Ordering::Relaxed);
        assert!(Accounts::open(key, word, self::now()) <= MOST && !accounts.permits(key));
    }

    #[test]
    fn origins_are_told_by_address_and_port() {
        let tuple = |from: u8, port: u16, to: u16| FourTuple {
            local: Addr::any_v4(to),
            peer: Addr { ip: [from; 16], port },
        };
        let key = |from, port, to| Key::of_origin(&tuple(from, port, to)).0;
        assert_eq!(key(1, 4000, 80), key(1, 4001, 80));
        assert_ne!(key(1, 4000, 80), key(2, 4000, 80));
        assert_ne!(key(1, 4000, 80), key(1, 4000, 81));
    }
}
