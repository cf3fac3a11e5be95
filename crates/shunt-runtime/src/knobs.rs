//! The `SHUNT_*` variables, and the program's name, as this process started with them.
//!
//! The library reads them once, from the dynamic loader's arguments to constructors, and copies
//! them: programs rewrite their environment in place (to set the title that `ps` shows). A value
//! that makes no sense counts as not set. `shunt run` and `shunt doctor` tell the user; a guest
//! does not print.

use core::ffi::{CStr, c_char};
use core::time::Duration;
use std::ffi::CString;
use std::sync::OnceLock;

use shunt_engine::pinning::Pin;
use shunt_wire::knob;

/// `SHUNT_SPIN`: how long a waiting call spins before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spin {
    /// Learnt from what paid.
    #[default]
    Auto,
    /// Not at all.
    Never,
    /// So many microseconds.
    Micros(u32),
}

/// `SHUNT_DMB`: how bytes reach the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dmb {
    /// Written straight into the peer's RMB.
    #[default]
    Attach,
    /// Moved by the device from an own sndbuf.
    Copy,
}

/// `SHUNT_IDLE`: when memory of an idle ring goes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Idle {
    /// After half a second.
    #[default]
    Auto,
    /// Not at all.
    Never,
    /// After so many milliseconds; 0: whenever it is empty.
    Millis(u32),
}

/// Longest name of a program, in bytes.
pub const PROGRAM_MAX: usize = 64;

/// Every variable that the library looks at.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Knobs {
    /// Name of the program: the last part of its path, cut to [`PROGRAM_MAX`] bytes.
    pub program: String,
    /// `LD_PRELOAD` names the library; else all programs have it, whatever their environment.
    pub preloaded: bool,
    /// Variables whose values mean nothing.
    pub wrong: u32,
    /// `SHUNT_DISABLE`: leave every connection on kernel TCP.
    pub disabled: bool,
    /// `SHUNT_CORE`: core dumps hold the shared memory.
    pub core: bool,
    /// `SHUNT_SPIN`.
    pub spin: Spin,
    /// `SHUNT_PLACE`: threads stay where the scheduler has them.
    pub stay: bool,
    /// `SHUNT_DMB`.
    pub dmb: Dmb,
    /// `SHUNT_RUN_ID`, or 0.
    pub run_id: u64,
    /// `SHUNT_RUN_PAGE`.
    pub run_page: Option<CString>,
    /// `SHUNT_RUN_DIR`.
    pub run_dir: Option<CString>,
    /// `XDG_RUNTIME_DIR`, under which the agent's socket is by default.
    pub xdg_runtime_dir: Option<CString>,
    /// `SHUNT_VECTORS`; unset: as many as there can be.
    pub vectors: Option<u8>,
    /// `SHUNT_CONNS_PER_LG`.
    pub conns_per_lg: Option<u8>,
    /// `SHUNT_AGENT_TIMEOUT`, in milliseconds.
    pub agent_timeout: Option<u32>,
    /// `SHUNT_GRANT_TIMEOUT`, in milliseconds.
    pub grant_timeout: Option<u32>,
    /// `SHUNT_PIN`.
    pub pin: Pin,
    /// `SHUNT_IDLE`.
    pub idle: Idle,
    /// `SHUNT_SHORT_LIVED`, connections a second; `u32::MAX`: all.
    pub short_lived: Option<u32>,
}

static KNOBS: OnceLock<Knobs> = OnceLock::new();

/// The knobs; the defaults before the constructor ran.
#[must_use]
pub fn get() -> &'static Knobs {
    static DEFAULT: Knobs = Knobs {
        program: String::new(),
        preloaded: false,
        wrong: 0,
        disabled: false,
        core: false,
        spin: Spin::Auto,
        stay: false,
        dmb: Dmb::Attach,
        run_id: 0,
        run_page: None,
        run_dir: None,
        xdg_runtime_dir: None,
        vectors: None,
        conns_per_lg: None,
        agent_timeout: None,
        grant_timeout: None,
        pin: Pin::Auto,
        idle: Idle::Auto,
        short_lived: None,
    };
    KNOBS.get().unwrap_or(&DEFAULT)
}

/// Reads the knobs; for the constructor.
///
/// # Safety
/// Both are null or arrays of C strings that end with null, as at the start of a process.
pub unsafe fn init(argv: *const *const c_char, envp: *const *const c_char) {
    let mut knobs = Knobs::default();
    // SAFETY: the caller promises that `argv` is null or an array of C strings that ends with null.
    if let Some(path) = unsafe { strings(argv) }.next() {
        knobs.program = program_name(path.to_bytes());
    }
    // SAFETY: the caller promises that `envp` is null or an array of C strings that ends with null.
    for variable in unsafe { strings(envp) } {
        knobs.take_up(variable.to_bytes());
        #[cfg(feature = "points")]
        crate::points::take_up(variable.to_bytes());
    }
    let _ = KNOBS.set(knobs);
}

/// The strings of such an array.
///
/// # Safety
/// `array` is null or an array of C strings that ends with null and outlives the iterator.
pub unsafe fn strings<'a>(array: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    let mut at = array;
    core::iter::from_fn(move || {
        // SAFETY: `at` is null or points into the array, at most to the null that ends it; what
        // stands before that is a C string.
        unsafe {
            if at.is_null() || (*at).is_null() {
                return None;
            }
            let string = CStr::from_ptr(*at);
            at = at.add(1);
            Some(string)
        }
    })
}

fn program_name(path: &[u8]) -> String {
    let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let mut name = String::from_utf8_lossy(&path[start..]).into_owned();
    name.truncate(name.floor_char_boundary(PROGRAM_MAX));
    name
}

impl Knobs {
    /// How long an answer of the agent may take.
    pub fn agent_timeout(&self) -> Duration {
        Duration::from_millis(self.agent_timeout.unwrap_or(500).into())
    }

    /// How long what is granted may lie unread, in nanoseconds.
    pub fn grant_timeout(&self) -> u64 {
        u64::from(self.grant_timeout.unwrap_or(1000)) * 1_000_000
    }

    /// How long a ring is left alone before its memory goes back, in nanoseconds. `None`: for ever.
    pub fn idle(&self) -> Option<u64> {
        match self.idle {
            Idle::Auto => Some(500_000_000),
            Idle::Never => None,
            Idle::Millis(n) => Some(u64::from(n) * 1_000_000),
        }
    }

    /// How many connections a second that gain nothing may be asked for at one address; not 0.
    pub fn short_lived(&self) -> u32 {
        self.short_lived.unwrap_or(16)
    }

    fn take_up(&mut self, variable: &[u8]) {
        // Most variables are of no interest: one look at the first byte tells.
        if !matches!(variable.first(), Some(b'S' | b'X' | b'L')) {
            return;
        }
        self.preloaded |= is_preload(variable);
        let Some(equals) = variable.iter().position(|byte| *byte == b'=') else { return };
        let (name, value) = (&variable[..equals], &variable[equals + 1..]);
        let is = |knob: knob::Knob| name == knob.env.as_bytes();
        // `shunt run` and `shunt doctor` say so, by the same rule.
        let is_wrong = knob::named(name).is_some_and(|knob| !knob.accepts(value));
        self.wrong += u32::from(is_wrong);
        if is(knob::DISABLE) {
            self.disabled = knob::is_on(value);
        } else if is_wrong {
            // As if it were not set.
        } else if is(knob::CORE) {
            self.core = knob::switch(value) == Some(true);
        } else if is(knob::SPIN) {
            self.spin = match value {
                b"never" => Spin::Never,
                _ => number(value).map_or(Spin::Auto, Spin::Micros),
            };
        } else if is(knob::PLACE) {
            self.stay = value == b"never";
        } else if is(knob::DMB) {
            self.dmb = if value == b"copy" { Dmb::Copy } else { Dmb::Attach };
        } else if is(knob::RUN_ID) {
            self.run_id = number(value).unwrap_or(0);
        } else if is(knob::RUN_PAGE) {
            self.run_page = path(value);
        } else if is(knob::RUN_DIR) {
            self.run_dir = path(value);
        } else if name == b"XDG_RUNTIME_DIR" {
            self.xdg_runtime_dir = path(value);
        } else if is(knob::VECTORS) {
            self.vectors = number(value).filter(|n| *n > 0);
        } else if is(knob::CONNS_PER_LG) {
            self.conns_per_lg = number(value).filter(|n| *n > 0);
        } else if is(knob::AGENT_TIMEOUT) {
            self.agent_timeout = number(value).filter(|n| *n > 0);
        } else if is(knob::GRANT_TIMEOUT) {
            self.grant_timeout = number(value);
        } else if is(knob::PIN) {
            self.pin = match value {
                b"never" => Pin::Never,
                _ => number(value).map_or(Pin::Auto, Pin::From),
            };
        } else if is(knob::IDLE) {
            self.idle = match value {
                b"never" => Idle::Never,
                _ => number(value).map_or(Idle::Auto, Idle::Millis),
            };
        } else if is(knob::SHORT_LIVED) {
            let all = (value == b"all").then_some(u32::MAX);
            self.short_lived = all.or_else(|| number(value)).filter(|n| *n > 0);
        }
    }
}

/// True for a variable that has the library leave all to TCP.
#[must_use]
pub fn disables(variable: &[u8]) -> bool {
    let value = variable.strip_prefix(knob::DISABLE.env.as_bytes()).unwrap_or_default();
    value.strip_prefix(b"=").is_some_and(knob::is_on)
}

fn number<T: core::str::FromStr>(value: &[u8]) -> Option<T> {
    core::str::from_utf8(value).ok()?.parse().ok()
}

fn path(value: &[u8]) -> Option<CString> {
    if value.is_empty() { None } else { CString::new(value).ok() }
}

/// True for the variable by which the dynamic loader is told of the library.
pub fn is_preload(variable: &[u8]) -> bool {
    const NAME: &[u8] = b"libshunt";
    variable
        .strip_prefix(b"LD_PRELOAD=")
        .is_some_and(|value| value.windows(NAME.len()).any(|part| part == NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_known_by_its_name() {
        assert!(is_preload(b"LD_PRELOAD=/usr/lib/shunt/libshunt.so:/other.so"));
        assert!(!is_preload(b"LD_PRELOAD=/other.so"));
        assert!(!is_preload(b"XLD_PRELOAD=libshunt.so"));
    }

    fn read(variables: &[&str]) -> Knobs {
        let mut knobs = Knobs::default();
        for variable in variables {
            knobs.take_up(variable.as_bytes());
        }
        knobs
    }

    #[test]
    fn values_are_taken_up() {
        let knobs = read(&[
            "PATH=/bin",
            "LD_PRELOAD=/lib/libshunt.so",
            "SHUNT_SPIN=250",
            "SHUNT_PLACE=never",
            "SHUNT_DMB=copy",
            "SHUNT_RUN_ID=18446744073709551615",
            "SHUNT_RUN_PAGE=/proc/1/fd/3",
            "SHUNT_RUN_DIR=/run/x=y",
            "XDG_RUNTIME_DIR=/run/user/1",
            "SHUNT_VECTORS=4",
            "SHUNT_CONNS_PER_LG=12",
            "SHUNT_AGENT_TIMEOUT=9000",
            "SHUNT_GRANT_TIMEOUT=30",
            "SHUNT_PIN=32768",
            "SHUNT_IDLE=0",
            "SHUNT_SHORT_LIVED=100",
            "SHUNT_CORE=1",
            "SHUNT_DISABLE=1",
        ]);
        assert_eq!(
            knobs,
            Knobs {
                program: String::new(),
                preloaded: true,
                wrong: 0,
                disabled: true,
                core: true,
                spin: Spin::Micros(250),
                stay: true,
                dmb: Dmb::Copy,
                run_id: u64::MAX,
                run_page: Some(c"/proc/1/fd/3".to_owned()),
                run_dir: Some(c"/run/x=y".to_owned()),
                xdg_runtime_dir: Some(c"/run/user/1".to_owned()),
                vectors: Some(4),
                conns_per_lg: Some(12),
                agent_timeout: Some(9000),
                grant_timeout: Some(30),
                pin: Pin::From(32768),
                idle: Idle::Millis(0),
                short_lived: Some(100),
            }
        );
        assert_eq!(read(&["SHUNT_SPIN=never"]).spin, Spin::Never);
        assert_eq!(read(&["SHUNT_PIN=never"]).pin, Pin::Never);
        assert_eq!(read(&["SHUNT_IDLE=never"]).idle(), None);
        assert_eq!(read(&["SHUNT_SHORT_LIVED=all"]).short_lived(), u32::MAX);
    }

    #[test]
    fn nonsense_counts_as_not_set() {
        let nonsense = [
            "SHUNT_SPIN=-5",
            "SHUNT_PLACE=here",
            "SHUNT_DMB=teleport",
            "SHUNT_RUN_ID=x",
            "SHUNT_RUN_DIR=",
            "SHUNT_VECTORS=0",
            "SHUNT_CONNS_PER_LG=256",
            "SHUNT_AGENT_TIMEOUT=0",
            "SHUNT_PIN=-1",
            "SHUNT_IDLE=soon",
            "SHUNT_SHORT_LIVED=0",
            "SHUNT_CORE=0",
            "SHUNT_CORE=maybe",
            "SHUNT_DISABLE=0",
            "SHUNT_DISABLE=false",
            "SHUNT_DISABLE=No",
            "SHUNT_DISABLE=off",
            "SHUNT_DISABLE",
            "SHUNT",
            "=",
            "",
        ];
        let wrong = 11;
        assert_eq!(read(&nonsense), Knobs { wrong, ..Knobs::default() });
    }

    #[test]
    fn only_what_is_plainly_off_leaves_shunt_on() {
        for on in ["1", "true", "yes", "flase"] {
            let knobs = read(&[&format!("SHUNT_DISABLE={on}")]);
            assert_eq!((knobs.disabled, knobs.wrong), (true, u32::from(on == "flase")), "{on}");
        }
    }

    #[test]
    fn a_program_is_named_by_the_last_part_of_its_path() {
        assert_eq!(program_name(b"/usr/sbin/nginx"), "nginx");
        assert_eq!(program_name(b"redis-server"), "redis-server");
        assert_eq!(program_name(b""), "");
        assert_eq!(program_name(b"dir/"), "");
        assert_eq!(program_name("é".repeat(60).as_bytes()), "é".repeat(32));
        assert_eq!(program_name(b"bad\xff"), "bad\u{fffd}");
    }

    #[test]
    fn arrays_of_the_loader_end_with_null() {
        let array = [c"A=1".as_ptr(), c"B".as_ptr(), core::ptr::null()];
        // SAFETY: ends with null.
        assert_eq!(unsafe { strings(array.as_ptr()) }.collect::<Vec<_>>(), [c"A=1", c"B"]);
        // SAFETY: null is permitted.
        assert_eq!(unsafe { strings(core::ptr::null()) }.count(), 0);
    }
}
