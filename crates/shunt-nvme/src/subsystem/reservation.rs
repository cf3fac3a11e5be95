//! Reservations of a namespace (Base 8.19).

use crate::wire::{
    Status,
    reservation::{self as wire, Fields, Keys, Notification, Type},
};
use std::collections::BTreeMap;

type HostId = [u8; 16];

#[derive(Clone, Copy, Debug)]
struct Registrant {
    key: u64,
    cntlid: u16,
}

#[derive(Debug, Default)]
pub(super) struct Reservations {
    generation: u32,
    registrants: BTreeMap<HostId, Registrant>,
    /// The type, and who acquired it: of no meaning where all registrants hold it.
    held: Option<(Type, HostId)>,
    /// Notifications that are not made: the feature, of all hosts.
    pub(super) mask: u32,
    /// What hosts are to be told of, in order.
    told: Vec<(HostId, Notification)>,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT;

impl Reservations {
    /// RESCAP: all types, and IEKEY as of revision 1.3; nothing persists through power loss.
    pub(super) const CAPABILITIES: u8 = 0xfe;

    /// True if the host must not read, or write (Base 8.19.2).
    pub(super) fn excludes(&self, host: &HostId, is_write: bool) -> bool {
        let Some((rtype, holder)) = self.held else { return false };
        if !is_write && !rtype.excludes_reads() {
            return false;
        }
        let is_registrant = self.registrants.contains_key(host);
        let may = is_registrant && (holder == *host || rtype.for_registrants());
        !may
    }

    /// What hosts are to be told of since the last call.
    pub(super) fn notifications(&mut self) -> Vec<(HostId, Notification)> {
        core::mem::take(&mut self.told)
    }

    fn tell(&mut self, host: HostId, what: Notification) {
        if self.mask & what.mask() == 0 {
            self.told.push((host, what));
        }
    }

    /// Tells all registrants but this host.
    fn tell_others(&mut self, host: &HostId, what: Notification) {
        let others: Vec<_> =
            self.registrants.keys().filter(|other| *other != host).copied().collect();
        for other in others {
            self.tell(other, what);
        }
    }

    /// The registrant with this key.
    fn check_key(&self, host: &HostId, key: u64, ignore: bool) -> Result<(), Status> {
        match self.registrants.get(host) {
            Some(registrant) if ignore || registrant.key == key => Ok(()),
            _ => Err(CONFLICT),
        }
    }

    /// Register (Base 7.3).
    pub(super) fn register(
        &mut self,
        host: HostId,
        cntlid: u16,
        fields: Fields,
        keys: &Keys,
        limit: usize,
    ) -> Result<(), Status> {
        // On power loss nothing persists, and that can't be changed.
        if fields.persist == 1 || fields.persist == 3 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let (current, new) = (keys.current.get(), keys.other.get());
        let known = self.registrants.get(&host).map(|registrant| registrant.key);
        match (fields.action, known) {
            (0, Some(key)) if key == new => return Ok(()),
            (0, Some(_)) => return Err(CONFLICT),
            (0, None) => self.insert(host, new, cntlid, limit)?,
            (1, _) => {
                self.check_key(&host, current, fields.ignore_key)?;
                self.unregister(&host);
            }
            (2, Some(_)) => {
                self.check_key(&host, current, fields.ignore_key)?;
                self.registrants.insert(host, Registrant { key: new, cntlid });
            }
            (2, None) if fields.ignore_key => self.insert(host, new, cntlid, limit)?,
            (2, None) => return Err(CONFLICT),
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn insert(&mut self, host: HostId, key: u64, cntlid: u16, limit: usize) -> Result<(), Status> {
        if self.registrants.len() >= limit {
            return Err(Status::INTERNAL_ERROR);
        }
        self.registrants.insert(host, Registrant { key, cntlid });
        Ok(())
    }

    fn unregister(&mut self, host: &HostId) {
        self.registrants.remove(host);
        let releases = match self.held {
            Some((rtype, _)) if rtype.for_all() => self.registrants.is_empty(),
            Some((_, holder)) => holder == *host,
            None => false,
        };
        // Registrants may do now what the holder's type kept others from; hosts that are none never could.
        if releases
            && let Some((rtype, _)) = self.held.take()
            && rtype.for_registrants()
        {
            self.tell_others(host, Notification::ReservationReleased);
        }
    }

    /// Acquire and preempt (Base 7.2).
    pub(super) fn acquire(
        &mut self,
        host: HostId,
        fields: Fields,
        keys: &Keys,
    ) -> Result<(), Status> {
        self.check_key(&host, keys.current.get(), fields.ignore_key)?;
        let rtype = Type::from_code(fields.rtype).ok_or(Status::INVALID_FIELD.dnr())?;
        match fields.action {
            0 => match self.held {
                None => {
                    self.held = Some((rtype, host));
                    Ok(())
                }
                Some((held, holder)) if held == rtype && (held.for_all() || holder == host) => {
                    Ok(())
                }
                Some(_) => Err(CONFLICT),
            },
            1 => self.preempt(host, rtype, keys.other.get()),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn preempt(&mut self, host: HostId, rtype: Type, key: u64) -> Result<(), Status> {
        let takes = match self.held {
            None => false,
            Some((held, _)) if held.for_all() => key == 0,
            Some((_, holder)) => {
                self.registrants.get(&holder).is_some_and(|registrant| registrant.key == key)
            }
        };
        let everyone = takes && self.held.is_some_and(|(held, _)| held.for_all());
        if key == 0 && !takes {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let victims: Vec<HostId> = self
            .registrants
            .iter()
            .filter(|(other, registrant)| **other != host && (everyone || registrant.key == key))
            .map(|(other, _)| *other)
            .collect();
        if victims.is_empty() && !takes {
            return Err(CONFLICT);
        }
        // It is taken first: that of a holder which goes is not released.
        let before = if takes { self.held.replace((rtype, host)) } else { None };
        for victim in victims {
            self.unregister(&victim);
            self.tell(victim, Notification::RegistrationPreempted);
        }
        // Whoever is left learns that the type is another one.
        if before.is_some_and(|(before, _)| before != rtype && before.for_registrants()) {
            self.tell_others(&host, Notification::ReservationReleased);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    /// Release and clear (Base 7.4).
    pub(super) fn release(&mut self, host: HostId, fields: Fields, key: u64) -> Result<(), Status> {
        self.check_key(&host, key, fields.ignore_key)?;
        match fields.action {
            0 => {
                if let Some((rtype, holder)) = self.held
                    && (rtype.for_all() || holder == host)
                {
                    if rtype as u8 != fields.rtype {
                        return Err(Status::INVALID_FIELD.dnr());
                    }
                    self.held = None;
                    if rtype.for_registrants() {
                        self.tell_others(&host, Notification::ReservationReleased);
                    }
                }
                Ok(())
            }
            1 => {
                self.tell_others(&host, Notification::ReservationPreempted);
                self.registrants.clear();
                self.held = None;
                self.generation = self.generation.wrapping_add(1);
                Ok(())
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// The extended status structure (Base 7.5).
    pub(super) fn report(&self) -> Vec<u8> {
        let registrants: Vec<_> = self
            .registrants
            .iter()
            .map(|(host, registrant)| {
                let holds =
                    self.held.is_some_and(|(rtype, holder)| rtype.for_all() || holder == *host);
                (registrant.cntlid, holds, registrant.key, *host)
            })
            .collect();
        wire::extended_status(self.generation, self.held.map(|(rtype, _)| rtype), &registrants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = [1; 16];
    const B: HostId = [2; 16];

    const fn fields(action: u8, rtype: u8) -> Fields {
        Fields { action, ignore_key: false, rtype, persist: 0 }
    }

    fn keys(current: u64, other: u64) -> Keys {
        Keys { current: current.into(), other: other.into() }
    }

    fn both() -> Reservations {
        let mut reservations = Reservations::default();
        reservations.register(A, 1, fields(0, 0), &keys(0, 10), 8).unwrap();
        reservations.register(B, 2, fields(0, 0), &keys(0, 20), 8).unwrap();
        reservations
    }

    /// Base 8.19.2: who may read and write under each type.
    #[test]
    fn exclusion() {
        let stranger = [3; 16];
        // Type; whether another registrant and a stranger may read and write.
        for (rtype, b_reads, b_writes, c_reads) in [
            (1, true, false, true),
            (2, false, false, false),
            (3, true, true, true),
            (4, true, true, false),
            (5, true, true, true),
            (6, true, true, false),
        ] {
            let mut reservations = both();
            reservations.acquire(A, fields(0, rtype), &keys(10, 0)).unwrap();
            assert!(!reservations.excludes(&A, true) && !reservations.excludes(&A, false));
            assert_eq!(reservations.excludes(&B, false), !b_reads, "{rtype}");
            assert_eq!(reservations.excludes(&B, true), !b_writes, "{rtype}");
            assert_eq!(reservations.excludes(&stranger, false), !c_reads, "{rtype}");
            assert!(reservations.excludes(&stranger, true), "{rtype}");
        }
    }

    #[test]
    fn keys_and_preemption() {
        let mut reservations = both();
        assert_eq!(reservations.acquire(A, fields(0, 1), &keys(11, 0)), Err(CONFLICT));
        reservations.acquire(A, fields(0, 1), &keys(10, 0)).unwrap();
        assert_eq!(reservations.acquire(B, fields(0, 1), &keys(20, 0)), Err(CONFLICT));
        // B preempts A, which is no registrant any more.
        reservations.acquire(B, fields(1, 2), &keys(20, 10)).unwrap();
        assert!(reservations.excludes(&A, false) && !reservations.excludes(&B, true));
        assert_eq!(reservations.release(A, fields(0, 2), 10), Err(CONFLICT));
        assert_eq!(reservations.release(B, fields(0, 1), 20), Err(Status::INVALID_FIELD.dnr()));
        reservations.release(B, fields(0, 2), 20).unwrap();
        assert!(!reservations.excludes(&A, true));
    }

    #[test]
    fn the_holder_unregisters() {
        let mut reservations = both();
        reservations.acquire(A, fields(0, 2), &keys(10, 0)).unwrap();
        reservations.register(A, 1, fields(1, 0), &keys(10, 0), 8).unwrap();
        assert!(!reservations.excludes(&B, true));
        // All registrants hold it: it stays until the last one leaves.
        let mut reservations = both();
        reservations.acquire(A, fields(0, 6), &keys(10, 0)).unwrap();
        reservations.register(A, 1, fields(1, 0), &keys(10, 0), 8).unwrap();
        assert!(reservations.excludes(&A, false) && !reservations.excludes(&B, true));
        reservations.register(B, 2, fields(1, 0), &keys(20, 0), 8).unwrap();
        assert!(!reservations.excludes(&A, false));
    }

    /// Base 8.19: who is told of what.
    #[test]
    fn notifications() {
        use Notification::{RegistrationPreempted, ReservationPreempted, ReservationReleased};
        let three = |held: Option<u8>| {
            let mut reservations = both();
            reservations.register(C, 3, fields(0, 0), &keys(0, 30), 8).unwrap();
            if let Some(rtype) = held {
                reservations.acquire(A, fields(0, rtype), &keys(10, 0)).unwrap();
            }
            assert_eq!(reservations.notifications(), []);
            reservations
        };
        let released = vec![(B, ReservationReleased), (C, ReservationReleased)];
        for rtype in 1..=6 {
            // A release, of types that name registrants.
            let expected = if rtype >= 3 { released.clone() } else { vec![] };
            let mut reservations = three(Some(rtype));
            reservations.release(A, fields(0, rtype), 10).unwrap();
            assert_eq!(reservations.notifications(), expected, "{rtype}");
            // The holder unregisters; all registrants hold the last two types.
            let expected = if matches!(rtype, 3 | 4) { released.clone() } else { vec![] };
            let mut reservations = three(Some(rtype));
            reservations.register(A, 1, fields(1, 0), &keys(10, 0), 8).unwrap();
            assert_eq!(reservations.notifications(), expected, "{rtype}");
            // Another host preempts the holder, by the same type and by another one.
            for new in [rtype, 1 + rtype % 6] {
                let mut reservations = three(Some(rtype));
                let key = if rtype >= 5 { 0 } else { 10 };
                reservations.acquire(B, fields(1, new), &keys(20, key)).unwrap();
                let mut expected = vec![(A, RegistrationPreempted)];
                match rtype {
                    5.. => expected.push((C, RegistrationPreempted)),
                    3..=4 if new != rtype => expected.push((C, ReservationReleased)),
                    _ => {}
                }
                assert_eq!(reservations.notifications(), expected, "{rtype} {new}");
            }
        }
        // A registrant that holds nothing is preempted, with and without a reservation of others.
        for held in [None, Some(1)] {
            let mut reservations = three(held);
            reservations.acquire(A, fields(1, 1), &keys(10, 30)).unwrap();
            assert_eq!(reservations.notifications(), [(C, RegistrationPreempted)]);
        }
        let mut reservations = three(Some(1));
        reservations.release(C, fields(1, 0), 30).unwrap();
        let preempted = [(A, ReservationPreempted), (B, ReservationPreempted)];
        assert_eq!(reservations.notifications(), preempted);
        // What is masked is not made.
        let mut reservations = three(Some(3));
        reservations.mask = ReservationReleased.mask();
        reservations.release(A, fields(0, 3), 10).unwrap();
        assert_eq!(reservations.notifications(), []);
        reservations.release(A, fields(1, 0), 10).unwrap();
        assert_eq!(reservations.notifications().len(), 2);
        // What is refused is told to nobody.
        let mut reservations = three(Some(3));
        reservations.release(B, fields(1, 0), 10).unwrap_err();
        reservations.acquire(B, fields(1, 3), &keys(20, 99)).unwrap_err();
        assert_eq!(reservations.notifications(), []);
    }

    const INVALID: Status = Status::INVALID_FIELD.dnr();
    const C: HostId = [3; 16];

    /// A, B and C with the keys 10, 20 and 30; A holds a reservation of this type.
    fn three(rtype: u8) -> Reservations {
        let mut reservations = both();
        reservations.register(C, 3, fields(0, 0), &keys(0, 30), 8).unwrap();
        if rtype > 0 {
            reservations.acquire(A, fields(0, rtype), &keys(10, 0)).unwrap();
        }
        reservations
    }

    const fn ignoring(fields: Fields) -> Fields {
        Fields { ignore_key: true, ..fields }
    }

    /// The type and the holder.
    fn held(reservations: &Reservations) -> Option<(u8, HostId)> {
        reservations.held.map(|(rtype, holder)| (rtype as u8, holder))
    }

    /// The keys of all registrants.
    fn registered(reservations: &Reservations) -> Vec<u64> {
        reservations.registrants.values().map(|registrant| registrant.key).collect()
    }

    /// Base 7.3: registering, replacing a key, unregistering; and when the generation counts on.
    #[test]
    fn registration() {
        let mut reservations = both();
        let mut register = |host, fields, current, other| {
            let before = reservations.generation;
            let done = reservations.register(host, 1, fields, &keys(current, other), 8);
            (done, reservations.generation - before, registered(&reservations))
        };
        let (counted, refused) = ((Ok(()), 1), (Err(CONFLICT), 0));
        let with = |(done, counts): (_, u32), keys: &[u64]| (done, counts, keys.to_vec());
        // The same key again changes nothing; another one needs Replace.
        assert_eq!(register(A, fields(0, 0), 0, 10), with((Ok(()), 0), &[10, 20]));
        assert_eq!(register(A, fields(0, 0), 10, 11), with(refused, &[10, 20]));
        assert_eq!(register(A, fields(2, 0), 11, 12), with(refused, &[10, 20]));
        assert_eq!(register(A, fields(2, 0), 10, 11), with(counted, &[11, 20]));
        assert_eq!(register(A, ignoring(fields(2, 0)), 99, 10), with(counted, &[10, 20]));
        assert_eq!(register(C, fields(2, 0), 0, 30), with(refused, &[10, 20]));
        assert_eq!(register(C, ignoring(fields(2, 0)), 0, 30), with(counted, &[10, 20, 30]));
        assert_eq!(register(C, fields(1, 0), 31, 0), with(refused, &[10, 20, 30]));
        assert_eq!(register(C, ignoring(fields(1, 0)), 31, 0), with(counted, &[10, 20]));
        assert_eq!(register(C, ignoring(fields(1, 0)), 30, 0), with(refused, &[10, 20]));
        for wrong in [fields(3, 0), Fields { persist: 1, ..fields(0, 0) }, {
            Fields { persist: 3, ..fields(0, 0) }
        }] {
            assert_eq!(register(C, wrong, 0, 30), with((Err(INVALID), 0), &[10, 20]));
        }
    }

    /// Base 7.2: who may acquire what.
    #[test]
    fn acquiring() {
        for rtype in 1..=6 {
            let for_all = rtype >= 5;
            let other = 1 + rtype % 6;
            let mut reservations = three(0);
            let mut acquire = |host, fields, key| {
                let done = reservations.acquire(host, fields, &keys(key, 0));
                (done, held(&reservations).map(|(rtype, _)| rtype))
            };
            let stranger = [4; 16];
            assert_eq!(acquire(stranger, ignoring(fields(0, rtype)), 10), (Err(CONFLICT), None));
            assert_eq!(acquire(A, fields(0, rtype), 20), (Err(CONFLICT), None));
            assert_eq!(acquire(A, ignoring(fields(0, rtype)), 20), (Ok(()), Some(rtype)));
            // Once more, by the holder, and by another one: all registrants hold the last two types.
            assert_eq!(acquire(A, fields(0, rtype), 10), (Ok(()), Some(rtype)));
            let again = if for_all { Ok(()) } else { Err(CONFLICT) };
            assert_eq!(acquire(B, fields(0, rtype), 20), (again, Some(rtype)));
            for (host, key) in [(A, 10), (B, 20)] {
                assert_eq!(acquire(host, fields(0, other), key), (Err(CONFLICT), Some(rtype)));
            }
            for wrong in [fields(0, 0), fields(0, 7), fields(2, rtype), fields(3, rtype)] {
                assert_eq!(acquire(A, wrong, 10), (Err(INVALID), Some(rtype)));
            }
            let holder = held(&reservations).unwrap().1;
            assert_eq!(holder, A);
        }
    }

    /// Base 8.19.7: what becomes of the reservation, and of whose registrations.
    #[test]
    fn preempting() {
        let preempt = |reservations: &mut Reservations, host, own, rtype, key| {
            let before = reservations.generation;
            let done = reservations.acquire(host, fields(1, rtype), &keys(own, key));
            let generations = reservations.generation - before;
            assert_eq!(generations, u32::from(done.is_ok()));
            (done, held(reservations), registered(reservations))
        };
        for rtype in 1..=6 {
            let for_all = rtype >= 5;
            let (as_it_was, new) = (Some((rtype, A)), 1 + rtype % 6);
            let all = vec![10, 20, 30];
            // A key of nobody, and none.
            let mut reservations = three(rtype);
            let seen = preempt(&mut reservations, B, 20, new, 99);
            assert_eq!(seen, (Err(CONFLICT), as_it_was, all.clone()));
            if !for_all {
                let seen = preempt(&mut reservations, B, 20, new, 0);
                assert_eq!(seen, (Err(INVALID), as_it_was, all.clone()));
            }
            // That of a registrant which is not the only holder: it is unregistered, and that is all.
            let key = if for_all { 10 } else { 30 };
            let left = if for_all { vec![20, 30] } else { vec![10, 20] };
            let seen = preempt(&mut reservations, B, 20, new, key);
            assert_eq!(seen, (Ok(()), as_it_was, left));
            // The holder's; where all hold it that is no key, and all others go.
            let mut reservations = three(rtype);
            let (key, left) = if for_all { (0, vec![20]) } else { (10, vec![20, 30]) };
            let seen = preempt(&mut reservations, B, 20, new, key);
            assert_eq!(seen, (Ok(()), Some((new, B)), left));
            // The holder preempts itself: it stays registered, with another type.
            let mut reservations = three(rtype);
            let (key, left) = if for_all { (0, vec![10]) } else { (10, all.clone()) };
            let seen = preempt(&mut reservations, A, 10, new, key);
            assert_eq!(seen, (Ok(()), Some((new, A)), left));
        }
        // Without a reservation none is taken.
        let mut reservations = three(0);
        let seen = preempt(&mut reservations, A, 10, 1, 0);
        assert_eq!(seen, (Err(INVALID), None, vec![10, 20, 30]));
        assert_eq!(preempt(&mut reservations, A, 10, 1, 30), (Ok(()), None, vec![10, 20]));
        // Whoever has the same key as the holder goes with it.
        let mut reservations = three(0);
        reservations.register(C, 3, fields(2, 0), &keys(30, 10), 8).unwrap();
        reservations.acquire(A, fields(0, 1), &keys(10, 0)).unwrap();
        let seen = preempt(&mut reservations, B, 20, 2, 10);
        assert_eq!(seen, (Ok(()), Some((2, B)), vec![20]));
    }

    /// Base 7.4: Release and Clear; and 7.5, who holds it.
    #[test]
    fn releasing() {
        for rtype in 1..=6 {
            let for_all = rtype >= 5;
            let mut reservations = three(rtype);
            let holds = |reservations: &Reservations| {
                let report = reservations.report();
                [0, 1, 2].map(|n| report[64 + n * 64 + 2] & 1 == 1)
            };
            assert_eq!(holds(&reservations), [true, for_all, for_all]);
            let before = reservations.generation;
            let wrong = reservations.release(A, fields(0, 1 + rtype % 6), 10);
            assert_eq!((wrong, held(&reservations)), (Err(INVALID), Some((rtype, A))));
            for (host, key) in [(A, 20), ([4; 16], 10)] {
                let wrong = reservations.release(host, fields(0, rtype), key);
                assert_eq!((wrong, held(&reservations)), (Err(CONFLICT), Some((rtype, A))));
            }
            assert_eq!(reservations.release(A, fields(2, rtype), 10), Err(INVALID));
            // One that does not hold it has nothing to release.
            reservations.release(B, fields(0, rtype), 20).unwrap();
            assert_eq!(held(&reservations).is_none(), for_all, "{rtype}");
            reservations.release(A, ignoring(fields(0, rtype)), 99).unwrap();
            assert_eq!((held(&reservations), holds(&reservations)), (None, [false; 3]));
            reservations.release(A, fields(0, rtype), 10).unwrap();
            assert_eq!(reservations.generation, before);
            // Clear, by whoever is registered.
            let mut reservations = three(rtype);
            assert_eq!(reservations.release(B, fields(1, 0), 10), Err(CONFLICT));
            assert_eq!(held(&reservations), Some((rtype, A)));
            reservations.release(B, fields(1, 0), 20).unwrap();
            assert_eq!((held(&reservations), registered(&reservations)), (None, vec![]));
            assert_eq!(reservations.generation, before + 1);
        }
    }

    /// Who leaves, and whether the reservation does.
    #[test]
    fn leaving() {
        for rtype in 1..=6 {
            let for_all = rtype >= 5;
            let mut reservations = three(rtype);
            let mut leave = |host, key| {
                reservations.register(host, 1, fields(1, 0), &keys(key, 0), 8).unwrap();
                held(&reservations)
            };
            assert_eq!(leave(B, 20), Some((rtype, A)));
            assert_eq!(leave(A, 10).is_some(), for_all);
            assert_eq!(leave(C, 30), None);
        }
    }

    #[test]
    fn bounded() {
        let mut reservations = Reservations::default();
        for host in 0..3 {
            let result = reservations.register([host; 16], 1, fields(0, 0), &keys(0, 1), 2);
            assert_eq!(result.is_ok(), host < 2);
        }
    }
}
