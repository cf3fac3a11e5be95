//! Numbers of errors, as `shunt_nvme.h` lists them: all negative.

use std::io::{self, ErrorKind};

use libc::c_int;
use shunt_nvme::wire::Status;
use shunt_nvme_host::{Error, Failure, Refusal};

/// What a call returns after a panic within.
pub const BROKEN: c_int = -libc::ENOTRECOVERABLE;

/// Of a call's system call, or of a connection.
pub fn of_io(error: &io::Error) -> c_int {
    if let Some(number) = error.raw_os_error() {
        return -number;
    }
    -match error.kind() {
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::UnexpectedEof => libc::ECONNRESET,
        // What the controller says breaks the rules, or says that this host does.
        _ => libc::EPROTO,
    }
}

/// Why there is no subsystem, or no queue, and the controller's status.
pub fn of_error(error: &Error) -> (c_int, u16) {
    let number = match error {
        Error::Down(why) => return of_error(why),
        Error::Queue(_, why) => return of_error(why),
        Error::Refused(_, status) => return (of_refusal(*status), status.code()),
        Error::Io(_, e) | Error::Local(e) => of_io(e),
        Error::TimedOut(..) => -libc::ETIMEDOUT,
        Error::KeyNeeded => -libc::ENOKEY,
        Error::Authentication(_) => -libc::EKEYREJECTED,
        Error::Senseless(_) => -libc::EPROTO,
        Error::Submit(_) => -libc::EAGAIN,
    };
    (number, 0)
}

/// Of a Fabrics command.
fn of_refusal(status: Status) -> c_int {
    let is = |other: Status| status.code() == other.code();
    if is(Status::CONNECT_INVALID_HOST) || is(Status::AUTHENTICATION_REQUIRED) {
        -libc::EACCES
    } else if is(Status::CONNECT_CONTROLLER_BUSY) {
        -libc::EBUSY
    } else {
        -libc::ECONNREFUSED
    }
}

/// Of a command that was not taken.
pub fn of_refused(why: Refusal) -> c_int {
    -match why {
        Refusal::Full => libc::EAGAIN,
        Refusal::ShortData => libc::EINVAL,
        Refusal::TooLong => libc::EMSGSIZE,
    }
}

/// Of a command that has failed, and the controller's status.
pub fn of_failure(failure: Failure) -> (c_int, u16) {
    match failure {
        Failure::Status(status) => (of_status(status), status.code()),
        Failure::Damaged => (-libc::EBADMSG, 0),
        Failure::TimedOut => (-libc::ETIMEDOUT, 0),
        Failure::Lost => (-libc::ECONNRESET, 0),
        Failure::NoPath => (-libc::EHOSTUNREACH, 0),
    }
}

fn of_status(status: Status) -> c_int {
    const NUMBERS: &[(Status, c_int)] = &[
        (Status::INVALID_OPCODE, libc::EOPNOTSUPP),
        (Status::INVALID_FIELD, libc::EINVAL),
        (Status::INVALID_NAMESPACE, libc::ENODEV),
        (Status::LBA_OUT_OF_RANGE, libc::ERANGE),
        (Status::CAPACITY_EXCEEDED, libc::ENOSPC),
        (Status::NAMESPACE_WRITE_PROTECTED, libc::EROFS),
        (Status::READ_ONLY_RANGE, libc::EROFS),
        (Status::ACCESS_DENIED, libc::EACCES),
        (Status::COMPARE_FAILURE, libc::EILSEQ),
        (Status::ATOMIC_WRITE_UNIT_EXCEEDED, libc::EMSGSIZE),
        (Status::RESERVATION_CONFLICT, libc::EBADE),
        (Status::ABORT_REQUESTED, libc::ECANCELED),
    ];
    let found = NUMBERS.iter().find(|(known, _)| known.code() == status.code());
    -found.map_or(libc::EIO, |(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn errors_have_the_number_of_what_they_are_about() {
        let address = ([127, 0, 0, 1], 4420).into();
        let refused = Error::Io(address, io::Error::from_raw_os_error(libc::ECONNREFUSED));
        assert_eq!(of_error(&Error::Down(Arc::new(refused))), (-libc::ECONNREFUSED, 0));
        let busy = Error::Refused("connect", Status::CONNECT_CONTROLLER_BUSY.dnr());
        let busy = Error::Queue(1, Box::new(busy));
        assert_eq!(of_error(&Error::Down(Arc::new(busy))), (-libc::EBUSY, 0x181));
        assert_eq!(of_io(&ErrorKind::TimedOut.into()), -libc::ETIMEDOUT);
        assert_eq!(of_io(&io::Error::other("a broken rule")), -libc::EPROTO);
        let full = Failure::Status(Status::CAPACITY_EXCEEDED.dnr());
        assert_eq!(of_failure(full), (-libc::ENOSPC, 0x081));
        assert_eq!(of_failure(Failure::Status(Status::WRITE_FAULT)), (-libc::EIO, 0x280));
        assert_eq!(of_failure(Failure::Lost), (-libc::ECONNRESET, 0));
    }
}
