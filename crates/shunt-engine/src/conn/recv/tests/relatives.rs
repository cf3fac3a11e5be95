//! Other programs hold the end, too, and may take the connection up.

use shunt_shm::holders::Member;

use super::*;

#[test]
fn nothing_is_read_where_another_program_may_have_gone_into_the_ring() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let record = memory.end().record;
    (0..2).for_each(|_| record.id.holders.add(Member::UNNAMED));
    record.id.phase.store(Phase::Candidate as u32, Relaxed);
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!(receive(record, None, &mut call, true), Ok(Step::Wait(Until::Kernel)));
    socket.arrive(Arrival::Bytes(3));
    record.id.phase.store(Phase::Active as u32, Relaxed);
    assert_eq!((receive(record, None, &mut call, true), call.got), (Ok(Step::Again), 0));
    record.id.phase.store(Phase::Candidate as u32, Relaxed);
    assert_eq!((receive(record, None, &mut call, true), call.got), (Ok(Step::Done), 3));
}
