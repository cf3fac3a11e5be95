//! The functions that `shunt_nvme.h` declares.
//!
//! A pointer that is null or leads to one value is an optional reference here, which is the same to C: what the header asks of the
//! program is what a reference promises, and nothing is left to be said of each use. A place to be written holds anything before.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use libc::{c_char, c_int, c_void, size_t};
use shunt_nvme::wire::Status;
use shunt_nvme::wire::discovery::{self, SubsystemType};
use shunt_nvme_host::{Error, Namespace as Disk, PathStatus, Subsystem};

use crate::commands::{Commands, Exchange};
use crate::errors::{self, BROKEN};
use crate::guest;
use crate::options;
use crate::types::{
    self, CAN_COMPARE, CAN_DISCARD, CAN_WRITE_ZEROES, Command, Completion, Namespace, Options,
    READ_ONLY, Record, WRITE_CACHE, Why,
};

/// Where the program wants something written; null: nowhere.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// `struct shunt_nvme`.
pub struct Handle {
    subsystem: Subsystem,
    /// One for the handle, and one for each queue.
    queues: Arc<()>,
}

/// `struct shunt_nvme_queue`.
pub struct QueueHandle {
    commands: Mutex<Commands>,
    fd: c_int,
    _queue: Arc<()>,
}

/// Puts words where the program wants them.
fn tell(why: Out<Why>, status: u16, text: &str) {
    let Some(why) = why else { return };
    why.write(Why { status, text: c_text(text) });
}

/// A text as C has it, cut off where there is no room for all of it.
fn c_text<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    let mut room = [0; ROOM];
    // The last byte is zero; a character that is cut in two is left out.
    let mut len = text.len().min(ROOM - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    for (to, byte) in room.iter_mut().zip(text[..len].bytes()) {
        *to = c_char::from_ne_bytes([byte]);
    }
    room
}

/// Tells of an error; its number.
fn report(why: Out<Why>, error: &Error) -> c_int {
    let (number, status) = errors::of_error(error);
    tell(why, status, &error.to_string());
    number
}

/// Does something with a queue's commands. The data of all of them is the program's again if that
/// breaks.
fn with(queue: Option<&QueueHandle>, work: impl FnOnce(&mut Commands) -> c_int) -> c_int {
    let Some(queue) = queue else { return -libc::EFAULT };
    let done = guest::call(BROKEN, || match queue.commands.try_lock() {
        Ok(mut commands) => work(&mut commands),
        Err(TryLockError::WouldBlock) => -libc::EBUSY,
        Err(TryLockError::Poisoned(_)) => BROKEN,
    });
    if done == BROKEN {
        guest::call((), || {
            if let Err(TryLockError::Poisoned(poisoned)) = queue.commands.try_lock() {
                poisoned.into_inner().abandon();
            }
        });
    }
    done
}

/// Connects to a subsystem.
///
/// # Safety
/// The pointers lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_connect(
    options: *const Options,
    subsystem: Out<*mut Handle>,
    why: Out<Why>,
) -> c_int {
    guest::call(BROKEN, || {
        let Some(subsystem) = subsystem else { return -libc::EFAULT };
        // SAFETY: the program promises as many bytes as the options' size says, and strings as the header says.
        let read = unsafe { options::copy(options).and_then(|options| options::read(&options)) };
        let options = match read {
            Ok(options) => options,
            Err((number, text)) => {
                tell(why, 0, &text);
                return number;
            }
        };
        match guest::without_signals(|| Subsystem::connect(options)) {
            Ok(made) => {
                let handle = Box::new(Handle { subsystem: made, queues: Arc::new(()) });
                subsystem.write(Box::into_raw(handle));
                0
            }
            Err(error) => report(why, &error),
        }
    })
}

/// Asks a discovery service; how many records it has.
///
/// # Safety
/// The pointers lead to what the header says, and there is room for `most` records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_discover(
    options: *const Options,
    list: *mut Record,
    most: size_t,
    why: Out<Why>,
) -> c_int {
    guest::call(BROKEN, || {
        if list.is_null() && most > 0 {
            return -libc::EFAULT;
        }
        // SAFETY: the program promises as many bytes as the options' size says, and strings as the header says.
        let read = unsafe {
            options::copy(options).and_then(|options| options::read_for_discovery(&options))
        };
        let options = match read {
            Ok(options) => options,
            Err((number, text)) => {
                tell(why, 0, &text);
                return number;
            }
        };
        let records = match guest::without_signals(|| shunt_nvme_host::discover(&options)) {
            Ok(records) => records,
            Err(error) => return report(why, &error),
        };
        for (index, record) in records.iter().take(most).enumerate() {
            // SAFETY: not null, and the program promises room for `most`, of which this is one.
            unsafe { list.add(index).write(told(record)) };
        }
        c_int::try_from(records.len()).unwrap_or(c_int::MAX)
    })
}

/// What the header says of a discovery service's record.
fn told(record: &discovery::Record) -> Record {
    let kind = match record.kind {
        SubsystemType::Referral => types::REFERRAL,
        SubsystemType::Nvm => types::SUBSYSTEM,
        SubsystemType::CurrentDiscovery => types::DISCOVERY,
    };
    let (address, subsystem) = (record.address.to_string(), record.subnqn.as_str());
    Record { kind, address: c_text(&address), subsystem: c_text(subsystem) }
}

/// Shuts the controllers down. `EBUSY` while there are queues.
///
/// # Safety
/// It is one of `shunt_nvme_connect`, or null, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_disconnect(subsystem: *mut Handle) -> c_int {
    guest::call(BROKEN, || {
        // SAFETY: null, or made by `shunt_nvme_connect` and not given up, as the program promises.
        let Some(handle) = (unsafe { subsystem.as_ref() }) else { return 0 };
        if Arc::strong_count(&handle.queues) > 1 {
            return -libc::EBUSY;
        }
        // SAFETY: `shunt_nvme_connect` has made it by `Box::into_raw`, and it is given up here.
        let handle = unsafe { Box::from_raw(subsystem) };
        handle.subsystem.close();
        0
    })
}

/// Counts changes of namespaces and paths.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_changes(subsystem: Option<&Handle>) -> u64 {
    guest::call(0, || subsystem.map_or(0, |handle| handle.subsystem.version()))
}

/// What the header says of a namespace.
fn describe(disk: &Disk, paths: &[PathStatus], max_transfer: u32) -> Namespace {
    let attributes = paths.iter().find_map(|path| path.attributes.as_ref());
    let has = |what: fn(&shunt_nvme_host::Attributes) -> bool| attributes.is_some_and(what);
    let flags = [
        (disk.read_only, READ_ONLY),
        (has(|known| known.has_write_cache), WRITE_CACHE),
        (has(|known| known.can_compare), CAN_COMPARE),
        (has(|known| known.can_discard), CAN_DISCARD),
        (has(|known| known.can_write_zeroes), CAN_WRITE_ZEROES),
    ];
    Namespace {
        nsid: disk.nsid,
        block_size: disk.block_size,
        blocks: disk.blocks,
        max_transfer,
        flags: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
        nguid: disk.nguid.unwrap_or_default(),
        uuid: disk.uuid.unwrap_or_default(),
    }
}

/// Lists namespaces; how many there are.
///
/// # Safety
/// There is room for `most` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_namespaces(
    subsystem: Option<&Handle>,
    list: *mut Namespace,
    most: size_t,
) -> c_int {
    guest::call(BROKEN, || {
        let Some(handle) = subsystem else { return -libc::EFAULT };
        if list.is_null() && most > 0 {
            return -libc::EFAULT;
        }
        let (disks, paths) = (handle.subsystem.namespaces(), handle.subsystem.paths());
        let max_transfer = handle.subsystem.max_transfer();
        for (index, disk) in disks.iter().take(most).enumerate() {
            // SAFETY: not null, and the program promises room for `most`, of which this is one.
            unsafe { list.add(index).write(describe(disk, &paths, max_transfer)) };
        }
        c_int::try_from(disks.len()).unwrap_or(c_int::MAX)
    })
}

/// One namespace. `ENODEV` where there is none of this number.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_namespace(
    subsystem: Option<&Handle>,
    nsid: u32,
    namespace: Out<Namespace>,
) -> c_int {
    guest::call(BROKEN, || {
        let Some(handle) = subsystem else { return -libc::EFAULT };
        let Some(namespace) = namespace else { return -libc::EFAULT };
        let Some(disk) = handle.subsystem.namespace(nsid) else { return -libc::ENODEV };
        let said = describe(&disk, &handle.subsystem.paths(), handle.subsystem.max_transfer());
        namespace.write(said);
        0
    })
}

/// Makes a queue.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_queue_create(
    subsystem: Option<&Handle>,
    queue: Out<*mut QueueHandle>,
    why: Out<Why>,
) -> c_int {
    guest::call(BROKEN, || {
        let Some(handle) = subsystem else { return -libc::EFAULT };
        let Some(queue) = queue else { return -libc::EFAULT };
        match handle.subsystem.queue() {
            Ok(made) => {
                let fd = made.fd().as_raw_fd();
                let commands = Mutex::new(Commands::new(handle.subsystem.clone(), made));
                let made = QueueHandle { commands, fd, _queue: Arc::clone(&handle.queues) };
                queue.write(Box::into_raw(Box::new(made)));
                0
            }
            Err(error) => report(why, &error),
        }
    })
}

/// Ends a queue's connections. What it had under way is over, and nobody is told.
///
/// # Safety
/// It is one of `shunt_nvme_queue_create`, or null, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_queue_destroy(queue: *mut QueueHandle) -> c_int {
    if !queue.is_null() {
        // SAFETY: `shunt_nvme_queue_create` has made it by `Box::into_raw`, and it is given up here.
        let queue = unsafe { Box::from_raw(queue) };
        return guest::call(BROKEN, move || {
            drop(queue);
            0
        });
    }
    0
}

/// A descriptor for poll(2).
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_queue_fd(queue: Option<&QueueHandle>) -> c_int {
    queue.map_or(-libc::EFAULT, |queue| queue.fd)
}

/// Commands that the program has not been told the end of.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_outstanding(queue: Option<&QueueHandle>) -> c_int {
    with(queue, |commands| c_int::try_from(commands.outstanding()).unwrap_or(c_int::MAX))
}

/// Takes a command.
///
/// # Safety
/// The pointers lead to what the header says, the data's until the command is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_submit(
    queue: Option<&QueueHandle>,
    command: Option<&Command>,
) -> c_int {
    let submit = |commands: &mut Commands| {
        let Some(command) = command else { return -libc::EFAULT };
        // SAFETY: the program promises that the data stays the queue's until the command is over.
        unsafe { commands.submit(command) }.err().unwrap_or(0)
    };
    with(queue, submit)
}

/// Room of the program's for completions.
struct Room {
    next: *mut Completion,
}

impl Extend<Completion> for Room {
    fn extend<T: IntoIterator<Item = Completion>>(&mut self, over: T) {
        for completion in over {
            // SAFETY: no more are given than there is room for.
            unsafe {
                self.next.write(completion);
                self.next = self.next.add(1);
            }
        }
    }
}

/// Sends, receives, and gives commands that are over; how many.
///
/// # Safety
/// There is room for `most` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_poll(
    queue: Option<&QueueHandle>,
    done: *mut Completion,
    most: size_t,
    timeout_ms: c_int,
) -> c_int {
    let poll = |commands: &mut Commands| {
        if done.is_null() {
            return -libc::EFAULT;
        }
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let most = most.min(usize::from(u16::MAX));
        if most == 0 {
            return -libc::EINVAL;
        }
        match commands.poll(&mut Room { next: done }, most, timeout) {
            Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
            Err(error) => error,
        }
    };
    with(queue, poll)
}

/// What calls that wait have in common.
///
/// # Safety
/// The data is as long as so many blocks are, where the operation has any.
unsafe fn wait(
    queue: Option<&QueueHandle>,
    (op, nsid, flags): (u32, u32, u32),
    blocks: (u64, u64),
    data: *mut u8,
    status: Out<u16>,
) -> c_int {
    let call = move |commands: &mut Commands| {
        // SAFETY: the caller promises data of so many blocks, for the time of this call.
        let outcome = unsafe { commands.call(op, nsid, blocks, data, flags) };
        let (error, code) = outcome.err().unwrap_or((0, 0));
        if let Some(status) = status {
            status.write(code);
        }
        error
    };
    with(queue, call)
}

/// Reads blocks.
///
/// # Safety
/// There is room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_read(
    queue: Option<&QueueHandle>,
    nsid: u32,
    start: u64,
    blocks: u64,
    data: *mut c_void,
    status: Out<u16>,
) -> c_int {
    // SAFETY: the program promises room for so many blocks.
    unsafe { wait(queue, (types::READ, nsid, 0), (start, blocks), data.cast(), status) }
}

/// Writes blocks.
///
/// # Safety
/// They are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_write(
    queue: Option<&QueueHandle>,
    nsid: u32,
    start: u64,
    blocks: u64,
    data: *const c_void,
    flags: u32,
    status: Out<u16>,
) -> c_int {
    let data = data.cast_mut().cast();
    // SAFETY: the program promises data of so many blocks, which is only read.
    unsafe { wait(queue, (types::WRITE, nsid, flags), (start, blocks), data, status) }
}

/// Compares blocks.
///
/// # Safety
/// They are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_compare(
    queue: Option<&QueueHandle>,
    nsid: u32,
    start: u64,
    blocks: u64,
    data: *const c_void,
    status: Out<u16>,
) -> c_int {
    let data = data.cast_mut().cast();
    // SAFETY: the program promises data of so many blocks, which is only read.
    unsafe { wait(queue, (types::COMPARE, nsid, 0), (start, blocks), data, status) }
}

/// Writes zeroes.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_write_zeroes(
    queue: Option<&QueueHandle>,
    nsid: u32,
    start: u64,
    blocks: u64,
    flags: u32,
    status: Out<u16>,
) -> c_int {
    let what = (types::WRITE_ZEROES, nsid, flags);
    // SAFETY: the operation has no data.
    unsafe { wait(queue, what, (start, blocks), std::ptr::null_mut(), status) }
}

/// Gives blocks up.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_discard(
    queue: Option<&QueueHandle>,
    nsid: u32,
    start: u64,
    blocks: u64,
    status: Out<u16>,
) -> c_int {
    let what = (types::DISCARD, nsid, 0);
    // SAFETY: the operation has no data.
    unsafe { wait(queue, what, (start, blocks), std::ptr::null_mut(), status) }
}

/// Makes durable what was written.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_nvme_flush(
    queue: Option<&QueueHandle>,
    nsid: u32,
    status: Out<u16>,
) -> c_int {
    // SAFETY: the operation has no data.
    unsafe { wait(queue, (types::FLUSH, nsid, 0), (0, 0), std::ptr::null_mut(), status) }
}

/// Writes blocks if they are as expected.
///
/// # Safety
/// Both are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_compare_and_write(
    queue: Option<&QueueHandle>,
    nsid: u32,
    start: u64,
    blocks: u32,
    expected: *const c_void,
    data: *const c_void,
    flags: u32,
    status: Out<u16>,
) -> c_int {
    let (expected, data) = (expected.cast_mut(), data.cast_mut());
    let exchange = move |commands: &mut Commands| {
        let exchange = Exchange { nsid, start, blocks, flags, expected, data };
        // SAFETY: the program promises so many blocks, which are only read, for the time of this call.
        let outcome = unsafe { commands.compare_and_write(&exchange) };
        let (error, code) = outcome.err().unwrap_or((0, 0));
        if let Some(status) = status {
            status.write(code);
        }
        error
    };
    with(queue, exchange)
}

/// Writes the specification's name of a status, cut off where there is no room for all of it.
///
/// # Safety
/// There is so much room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_nvme_status_name(
    status: u16,
    name: *mut c_char,
    room: size_t,
) -> c_int {
    guest::call(BROKEN, || {
        if name.is_null() || room == 0 {
            return -libc::EFAULT;
        }
        let text = Status::from_bits(status).name().unwrap_or("unknown");
        let len = text.len().min(room - 1);
        // SAFETY: so many bytes fit, and the last one.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast::<u8>(), len);
            name.add(len).write(0);
        }
        0
    })
}
