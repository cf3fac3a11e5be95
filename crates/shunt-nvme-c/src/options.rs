//! How to reach a subsystem, as a program in C says it.

use std::ffi::{CStr, CString};
use std::mem::{offset_of, size_of};
use std::net::SocketAddr;
use std::time::Duration;

use libc::{c_char, c_int};
use shunt_nvme::auth::Secret;
use shunt_nvme::wire::Nqn;
use shunt_nvme_host::{Identity, Options as HostOptions};

use crate::types::{DATA_DIGEST, HEADER_DIGEST, NEVER, NO_GRANT, Options};

/// Most addresses.
const ADDRESSES: usize = 64;
/// Commands at once, at most: as many as a queue has entries.
const DEPTH: u32 = 1024;

/// What is wrong: a number, and words.
pub type Wrong = (c_int, String);

fn wrong(why: impl std::fmt::Display) -> Wrong {
    (-libc::EINVAL, why.to_string())
}

/// A copy. A program that was built with an older header has a shorter structure, one with a newer
/// one a longer structure, of which no more may be set than this library knows.
///
/// # Safety
/// `options` points to as many bytes as its `size` says, or is null.
pub unsafe fn copy(options: *const Options) -> Result<Options, Wrong> {
    if options.is_null() {
        return Err((-libc::EFAULT, "options: a null pointer".to_owned()));
    }
    // SAFETY: `size` is the first field of all.
    let size = unsafe { (&raw const (*options).size).read() };
    if size < offset_of!(Options, host) || size > 4096 {
        return Err(wrong("options: size must be sizeof(struct shunt_nvme_options)"));
    }
    let known = size.min(size_of::<Options>());
    // SAFETY: all zero is a valid value; `known` bytes are there, and fit. What is behind them is
    // compared as bytes.
    unsafe {
        let behind = std::slice::from_raw_parts(options.cast::<u8>().add(known), size - known);
        if behind.iter().any(|byte| *byte != 0) {
            let why = "options: something is set that this library does not know".to_owned();
            return Err((-libc::E2BIG, why));
        }
        let mut copy = std::mem::zeroed::<Options>();
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut copy).cast::<u8>(), known);
        Ok(copy)
    }
}

/// A string, if there is one.
///
/// # Safety
/// It ends with a zero, or is null.
unsafe fn text<'a>(name: &str, at: *const c_char) -> Result<Option<&'a str>, Wrong> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so the caller promises that it ends with a zero.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map(Some).map_err(|e| wrong(format!("{name}: {e}")))
}

/// A key. Its text is in no message.
///
/// # Safety
/// It ends with a zero, or is null.
unsafe fn key(name: &str, at: *const c_char) -> Result<Option<Secret>, Wrong> {
    // SAFETY: the caller promises that it ends with a zero, or is null.
    let Some(text) = (unsafe { text(name, at) })? else { return Ok(None) };
    Secret::new(text.trim()).map(Some).map_err(|e| wrong(format!("{name}: {e}")))
}

/// A time, where one is given; `None` for [`NEVER`].
fn time(milliseconds: u32, default: Option<Duration>) -> Option<Duration> {
    match milliseconds {
        0 => default,
        NEVER => None,
        other => Some(Duration::from_millis(other.into())),
    }
}

/// The same for a discovery service, which has a name of its own.
///
/// # Safety
/// As of [`read`].
pub unsafe fn read_for_discovery(options: &Options) -> Result<HostOptions, Wrong> {
    let name = CString::new(Nqn::discovery().as_str()).map_err(wrong)?;
    let options = Options { subsystem: name.as_ptr(), ..*options };
    // SAFETY: the name outlives the call; of the others the caller promises it.
    unsafe { read(&options) }
}

/// Takes them over.
///
/// # Safety
/// The pointers are null, or lead to as much as the header says.
pub unsafe fn read(options: &Options) -> Result<HostOptions, Wrong> {
    if options.flags & !(HEADER_DIGEST | DATA_DIGEST | NO_GRANT) != 0 || options.reserved != 0 {
        return Err(wrong("flags: some are set that this library does not know"));
    }
    // SAFETY: the caller promises that each of these is null, or a string as the header says.
    let (name, host, host_key, controller_key) = unsafe {
        (
            text("subsystem", options.subsystem)?,
            text("host", options.host)?,
            key("key", options.key)?,
            key("controller_key", options.controller_key)?,
        )
    };
    let name = name.ok_or_else(|| wrong("subsystem: its name is missing"))?;
    let name = Nqn::new(name).map_err(|e| wrong(format!("subsystem: {e}")))?;
    if options.addresses.is_null() || !(1..=ADDRESSES).contains(&options.address_count) {
        return Err(wrong(format!("addresses: there must be 1 to {ADDRESSES}")));
    }
    let mut addresses = Vec::new();
    for index in 0..options.address_count {
        // SAFETY: so many are there.
        let address = unsafe { text("address", options.addresses.add(index).read())? };
        let address = address.ok_or_else(|| wrong("addresses: a null pointer"))?;
        let parsed: Result<SocketAddr, _> = address.parse();
        addresses.push(parsed.map_err(|_| {
            wrong(format!("{address}: not an address such as 127.0.0.1:4420 or [::1]:4420"))
        })?);
    }
    let mut read = HostOptions::new(addresses, name);
    if let Some(host) = host {
        read.identity = Identity::named(host).map_err(|e| wrong(format!("host: {e}")))?;
    }
    if controller_key.is_some() && host_key.is_none() {
        return Err(wrong("controller_key: the host needs a key, too"));
    }
    (read.identity.key, read.identity.controller_key) = (host_key, controller_key);
    read.header_digest = options.flags & HEADER_DIGEST != 0;
    read.data_digest = options.flags & DATA_DIGEST != 0;
    read.grant = options.flags & NO_GRANT == 0;
    if options.depth > DEPTH {
        return Err(wrong(format!("depth: at most {DEPTH} commands at once")));
    }
    if options.depth > 0 {
        read.depth = u16::try_from(options.depth).map_err(wrong)?;
    }
    // These have an end always.
    let finite = |name: &str, value: u32, default: Duration| {
        time(value, Some(default)).ok_or_else(|| wrong(format!("{name}: it cannot be for ever")))
    };
    read.connect_timeout =
        finite("connect_timeout_ms", options.connect_timeout_ms, read.connect_timeout)?;
    read.command_timeout =
        finite("command_timeout_ms", options.command_timeout_ms, read.command_timeout)?;
    read.reconnect_delay =
        finite("reconnect_delay_ms", options.reconnect_delay_ms, read.reconnect_delay)?;
    read.keep_alive = time(options.keep_alive_ms, Some(read.keep_alive)).unwrap_or_default();
    read.give_up = time(options.give_up_ms, read.give_up);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &CStr = c"nqn.2024-01.org.shunt:target";

    fn options(addresses: &[*const c_char]) -> Options {
        // SAFETY: all zero is a valid value.
        let mut options = unsafe { std::mem::zeroed::<Options>() };
        options.size = size_of::<Options>();
        options.subsystem = NAME.as_ptr();
        options.addresses = addresses.as_ptr();
        options.address_count = addresses.len();
        options
    }

    fn taken(options: &Options) -> Result<HostOptions, Wrong> {
        // SAFETY: `options` has made it.
        unsafe { read(&copy(options)?) }
    }

    #[test]
    fn zeroes_are_defaults() {
        let addresses = [c"127.0.0.1:4420".as_ptr(), c"[::1]:1".as_ptr()];
        let mut given = options(&addresses);
        let read = taken(&given).unwrap();
        let default = HostOptions::new(read.addresses.clone(), read.subsystem.clone());
        assert_eq!(read.addresses[1], "[::1]:1".parse().unwrap());
        assert_eq!((read.depth, read.keep_alive), (default.depth, default.keep_alive));
        assert_eq!((read.give_up, read.grant), (default.give_up, true));
        given.flags = HEADER_DIGEST | NO_GRANT;
        (given.depth, given.keep_alive_ms, given.give_up_ms) = (7, NEVER, NEVER);
        given.command_timeout_ms = 1500;
        let read = taken(&given).unwrap();
        assert!(read.header_digest && !read.data_digest && !read.grant);
        assert_eq!((read.depth, read.keep_alive, read.give_up), (7, Duration::ZERO, None));
        assert_eq!(read.command_timeout, Duration::from_millis(1500));
    }

    #[test]
    fn mistakes_are_told() {
        let good = [c"127.0.0.1:4420".as_ptr()];
        let bad = [c"localhost".as_ptr()];
        type Change<'a> = &'a dyn Fn(&mut Options);
        let cases: &[(Change<'_>, &str)] = &[
            (&|o| o.size = 8, "sizeof"),
            (&|o| o.subsystem = std::ptr::null(), "missing"),
            (&|o| o.subsystem = c"disk".as_ptr(), "subsystem: "),
            (&|o| o.address_count = 0, "1 to 64"),
            (&|o| o.addresses = bad.as_ptr(), "localhost: not an address"),
            (&|o| o.flags = 8, "flags"),
            (&|o| o.key = c"DHHC-1:00:secret:".as_ptr(), "key: secret: "),
            (&|o| o.depth = 2000, "1024"),
            (&|o| o.connect_timeout_ms = NEVER, "for ever"),
            (&|o| o.host = c"\xff".as_ptr(), "host: "),
        ];
        for (change, why) in cases {
            let mut options = options(&good);
            change(&mut options);
            let (number, said) = taken(&options).unwrap_err();
            assert!(number == -libc::EINVAL && said.contains(why), "{number} {said}, not {why}");
        }
        // SAFETY: null is taken.
        assert_eq!(unsafe { copy(std::ptr::null()) }.err().unwrap().0, -libc::EFAULT);
    }

    #[test]
    fn structures_of_other_headers() {
        #[repr(C)]
        struct Newer {
            known: Options,
            more: u64,
        }
        let good = [c"127.0.0.1:4420".as_ptr()];
        let mut newer = Newer { known: options(&good), more: 0 };
        newer.known.size = size_of::<Newer>();
        // SAFETY: so many bytes are there.
        unsafe {
            assert!(copy((&raw const newer).cast()).is_ok());
            newer.more = 1;
            assert_eq!(copy((&raw const newer).cast()).err().unwrap().0, -libc::E2BIG);
        }
        let mut older = options(&good);
        (older.size, older.depth) = (offset_of!(Options, depth), 9);
        assert_eq!(taken(&older).unwrap().depth, 128);
    }
}
