//! Asks servers whether they speak SMC, by an option in the SYN, and hears the answer (RFC 7609
//! section 3.1 and appendix A.1).
//!
//! A program at a control group writes two options into the SYN of sockets that are *marked*:
//! SMC's, and a decoy of the same kind with a random number. A server's answer counts where its
//! SYN-ACK has the first one and not the second: a stack that merely sends back what it gets has
//! both. SMC's bytes on the connection look like the program's to any other server, so none may be
//! sent before that is known.
//!
//! Both options take 12 bytes of the 40 that options have, of which Linux uses 20; [`super::Marks`]
//! takes 16. So a socket has either.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::insn::{Assembler, FRAME, R0, R1, R2, R6, R7};
use super::map::Hash;
use super::sock_ops::SYN;
use super::{CGROUP_SOCK_OPS, PROG_TYPE_SOCK_OPS, link_to_group, load, ops};

/// *SMCR* in EBCDIC.
const MAGIC: u32 = 0xe2d4_c3d9;

/// Kind, length and number of an option.
const LENGTH: i32 = 6;

/// An option as it lies in memory: kind 254 (experiments, RFC 4727), length, number (RFC 6994), and
/// nothing.
const fn option(number: u32) -> u64 {
    let [a, b, c, d] = number.to_be_bytes();
    u64::from_ne_bytes([254, 6, a, b, c, d, 0, 0])
}

/// Places on the stack: the socket's cookie, an option.
const COOKIE: i16 = -8;
const OPTION: i16 = -16;
/// Bytes that the kernel may put there.
const ROOM: i32 = 8;

/// Value of a marked socket: the decoy, and the answer.
type Marked = [u64; 2];
const DECOY: i16 = 0;
const ANSWER: i16 = 8;
const CONNECTING: u64 = 0;
const NONE: u64 = 1;
const SMC: u64 = 2;
const ECHO: u64 = 3;

/// A server's answer to a marked SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The connection is not made yet.
    Connecting,
    /// It does not speak SMC, or something on the way has taken the option out.
    None,
    /// It speaks SMC.
    Smc,
    /// Something sends back what it gets: it does not speak SMC.
    Echo,
}

/// The program and its map, as long as this value lives.
#[derive(Debug)]
pub struct SmcMarks {
    marked: Hash<Marked>,
    _link: OwnedFd,
}

impl SmcMarks {
    /// For sockets that programs of this control group, or one below it, make. The map has room for
    /// so many marked ones.
    ///
    /// # Errors
    /// Those of bpf(2): `EPERM` without the privilege, `EINVAL` before Linux 5.10.
    pub fn attach(group: BorrowedFd<'_>, sockets: u32) -> io::Result<Self> {
        let marked = Hash::new(sockets)?;
        let program = load(PROG_TYPE_SOCK_OPS, &program(marked.number()))?;
        let link = link_to_group(&program, group, CGROUP_SOCK_OPS)?;
        Ok(Self { marked, _link: link })
    }

    /// The SYN of the socket with this cookie is to be marked. Before it connects. `decoy` is a
    /// random number.
    ///
    /// # Errors
    /// Those of bpf(2): `E2BIG` when the map is full.
    pub fn mark(&self, socket: u64, decoy: u32) -> io::Result<()> {
        let decoy = if decoy == MAGIC { !decoy } else { decoy };
        self.marked.put(socket, &[option(decoy), CONNECTING])
    }

    /// The server's answer; `None` when the socket was not marked, or is not any more.
    #[must_use]
    pub fn answer(&self, socket: u64) -> Option<Answer> {
        self.marked.get(socket).map(|[_, answer]| match answer {
            CONNECTING => Answer::Connecting,
            SMC => Answer::Smc,
            ECHO => Answer::Echo,
            _ => Answer::None,
        })
    }

    /// The socket is marked no more.
    pub fn withdraw(&self, socket: u64) {
        self.marked.remove(socket);
    }
}

impl Assembler {
    /// `R7` = the value of the socket; to the end where it is not marked.
    fn marked(self, map: u32) -> Self {
        self.cookie(COOKIE).find(map, COOKIE).end_if(R0, 0).copy(R7, R0)
    }

    /// SMC's option on the stack.
    fn put_smc(self) -> Self {
        self.set_wide(R1, option(MAGIC)).store_wide(FRAME, OPTION, R1)
    }

    /// The decoy on the stack.
    fn put_decoy(self) -> Self {
        self.load_wide(R1, R7, DECOY).store_wide(FRAME, OPTION, R1)
    }

    fn set_answer(self, answer: u64) -> Self {
        self.set_wide(R1, answer).store_wide(R7, ANSWER, R1)
    }
}

fn program(marked: u32) -> Vec<u64> {
    Assembler::default()
        .copy(R6, R1)
        .load(R7, R6, ops::OP)
        .go_if(R7, ops::OPTION_LENGTH, "length")
        .go_if(R7, ops::WRITE_OPTION, "write")
        .go_if(R7, ops::CONNECT, "connect")
        .end_unless(R7, ops::ACTIVE_ESTABLISHED)
        .marked(marked)
        .stop_calls()
        .put_smc()
        .load_option(OPTION, ROOM, 0)
        .go_if(R0, LENGTH, "smc")
        // Once, as others may look meanwhile.
        .set_answer(NONE)
        .end()
        .at("smc")
        .put_decoy()
        .load_option(OPTION, ROOM, 0)
        .go_if(R0, LENGTH, "echo")
        .set_answer(SMC)
        .end()
        .at("echo")
        .set_answer(ECHO)
        .end()
        .at("connect")
        .marked(marked)
        .begin_calls()
        .end()
        .at("length")
        .packet()
        .end_unless(R2, SYN)
        .marked(marked)
        .reserve(2 * LENGTH)
        .end()
        .at("write")
        .packet()
        .end_unless(R2, SYN)
        .marked(marked)
        .put_smc()
        .store_option(OPTION, LENGTH)
        .put_decoy()
        .store_option(OPTION, LENGTH)
        .finish(1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::os::fd::AsFd;
    use std::sync::{Mutex, PoisonError};

    use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};

    use super::super::sock_ops::{ACK, IN_SYN};
    use super::*;
    use crate::cgroup;
    use crate::sockinfo::{cookie, local_addr};

    const DECOY_NUMBER: u32 = 0x1234_5678;

    /// Programs at one control group are called for each other's sockets, and servers here answer all that ask.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Without the privilege there is nothing to be seen; with it nothing else will do.
    fn privileged<T>(made: io::Result<T>) -> Option<T> {
        match made {
            Ok(made) => Some(made),
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => None,
            Err(e) => panic!("{e}"),
        }
    }

    fn group() -> Option<File> {
        File::open(cgroup::root()?).ok()
    }

    /// A server that answers a SYN with SMC's option by these numbers.
    fn answering(listeners: u32, numbers: &[u32]) -> Vec<u64> {
        let syn_has_it = |program: Assembler| {
            program
                .packet()
                .end_unless(R2, SYN | ACK)
                .put_smc()
                .load_option(OPTION, ROOM, IN_SYN)
                .end_unless(R0, LENGTH)
        };
        let start = Assembler::default()
            .copy(R6, R1)
            .load(R7, R6, ops::OP)
            .go_if(R7, ops::OPTION_LENGTH, "length")
            .go_if(R7, ops::WRITE_OPTION, "write")
            .end_unless(R7, ops::LISTEN)
            .marked(listeners)
            .begin_calls()
            .end()
            .at("length");
        let count = i32::try_from(numbers.len()).unwrap();
        let mut program = syn_has_it(start).reserve(count * LENGTH).end().at("write");
        program = syn_has_it(program);
        for number in numbers {
            program = program
                .set_wide(R1, option(*number))
                .store_wide(FRAME, OPTION, R1)
                .store_option(OPTION, LENGTH);
        }
        program.finish(1)
    }

    /// What a marked client hears of a server that answers by these numbers.
    fn answer_of(numbers: &[u32]) -> Option<Answer> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let group = group()?;
        let marks = privileged(SmcMarks::attach(group.as_fd(), 4))?;
        let listeners: Hash<Marked> = Hash::new(4).unwrap();
        let server = load(PROG_TYPE_SOCK_OPS, &answering(listeners.number(), numbers)).unwrap();
        let _link = link_to_group(&server, group.as_fd(), CGROUP_SOCK_OPS).unwrap();
        let tcp = || socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let listener = tcp();
        bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listeners.put(cookie(&listener).unwrap(), &[0, 0]).unwrap();
        listen(&listener, 4).unwrap();
        let listener: TcpListener = listener.into();
        let to = SocketAddr::from(local_addr(&listener).unwrap());
        let (marked, unmarked) = (tcp(), tcp());
        let name = cookie(&marked).unwrap();
        marks.mark(name, DECOY_NUMBER).unwrap();
        assert_eq!(marks.answer(name), Some(Answer::Connecting));
        for client in [&marked, &unmarked] {
            connect(client, &to).unwrap();
            listener.accept().unwrap();
        }
        assert_eq!(marks.answer(cookie(&unmarked).unwrap()), None);
        let answer = marks.answer(name);
        assert!(answer.is_some());
        marks.withdraw(name);
        assert_eq!(marks.answer(name), None);
        answer
    }

    /// Checks an answer where there is the privilege to hear one.
    fn check(numbers: &[u32], expected: Answer) {
        let answer = answer_of(numbers);
        assert!(answer.is_none_or(|answer| answer == expected), "{answer:?}");
    }

    #[test]
    fn a_server_that_says_nothing_does_not_speak_smc() {
        check(&[], Answer::None);
        check(&[DECOY_NUMBER], Answer::None);
    }

    #[test]
    fn a_server_that_answers_with_the_option_speaks_smc() {
        check(&[MAGIC], Answer::Smc);
        check(&[MAGIC, !DECOY_NUMBER], Answer::Smc);
    }

    #[test]
    fn a_stack_that_sends_back_what_it_gets_does_not_speak_smc() {
        check(&[MAGIC, DECOY_NUMBER], Answer::Echo);
        check(&[DECOY_NUMBER, MAGIC], Answer::Echo);
    }
}
