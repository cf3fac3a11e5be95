//! Status codes of completions (Base 3.3.3.2.1, NVM 3.1.2).

/// A status field without the phase tag: status code, its type, and the bits beside them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Do Not Retry.
const DNR: u16 = 1 << 14;
/// Status code and type.
const CODE: u16 = 0x7ff;

/// Makes the constants and the list of names from one list.
macro_rules! statuses {
    ($list:ident, $(($name:ident, $code:literal, $text:literal),)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self($code);)*
        }

        const $list: &[(u16, &str)] = &[$(($code, $text)),*];
    };
}

statuses! {
    NAMES,
    (SUCCESS, 0x000, "Successful Completion"),
    (INVALID_OPCODE, 0x001, "Invalid Command Opcode"),
    (INVALID_FIELD, 0x002, "Invalid Field in Command"),
    (CID_CONFLICT, 0x003, "Command ID Conflict"),
    (DATA_TRANSFER_ERROR, 0x004, "Data Transfer Error"),
    (POWER_LOSS, 0x005, "Commands Aborted due to Power Loss Notification"),
    (INTERNAL_ERROR, 0x006, "Internal Error"),
    (ABORT_REQUESTED, 0x007, "Command Abort Requested"),
    (SQ_DELETION, 0x008, "Command Aborted due to SQ Deletion"),
    (FUSED_FAILED, 0x009, "Command Aborted due to Failed Fused Command"),
    (FUSED_MISSING, 0x00a, "Command Aborted due to Missing Fused Command"),
    (INVALID_NAMESPACE, 0x00b, "Invalid Namespace or Format"),
    (COMMAND_SEQUENCE_ERROR, 0x00c, "Command Sequence Error"),
    (SGL_INVALID_SEGMENT, 0x00d, "Invalid SGL Segment Descriptor"),
    (SGL_INVALID_COUNT, 0x00e, "Invalid Number of SGL Descriptors"),
    (SGL_INVALID_LENGTH, 0x00f, "Data SGL Length Invalid"),
    (METADATA_SGL_INVALID_LENGTH, 0x010, "Metadata SGL Length Invalid"),
    (SGL_INVALID_TYPE, 0x011, "SGL Descriptor Type Invalid"),
    (PRP_OFFSET_INVALID, 0x013, "PRP Offset Invalid"),
    (ATOMIC_WRITE_UNIT_EXCEEDED, 0x014, "Atomic Write Unit Exceeded"),
    (OPERATION_DENIED, 0x015, "Operation Denied"),
    (SGL_INVALID_OFFSET, 0x016, "SGL Offset Invalid"),
    (HOST_IDENTIFIER_INCONSISTENT, 0x018, "Host Identifier Inconsistent Format"),
    (KEEP_ALIVE_EXPIRED, 0x019, "Keep Alive Timer Expired"),
    (KEEP_ALIVE_INVALID, 0x01a, "Keep Alive Timeout Invalid"),
    (PREEMPT_ABORT, 0x01b, "Command Aborted due to Preempt and Abort"),
    (NAMESPACE_WRITE_PROTECTED, 0x020, "Namespace is Write Protected"),
    (COMMAND_INTERRUPTED, 0x021, "Command Interrupted"),
    (TRANSIENT_TRANSPORT_ERROR, 0x022, "Transient Transport Error"),
    (LBA_OUT_OF_RANGE, 0x080, "LBA Out of Range"),
    (CAPACITY_EXCEEDED, 0x081, "Capacity Exceeded"),
    (NAMESPACE_NOT_READY, 0x082, "Namespace Not Ready"),
    (RESERVATION_CONFLICT, 0x083, "Reservation Conflict"),
    (COMPLETION_QUEUE_INVALID, 0x100, "Completion Queue Invalid"),
    (INVALID_QUEUE_IDENTIFIER, 0x101, "Invalid Queue Identifier"),
    (INVALID_QUEUE_SIZE, 0x102, "Invalid Queue Size"),
    (ABORT_LIMIT_EXCEEDED, 0x103, "Abort Command Limit Exceeded"),
    (AER_LIMIT_EXCEEDED, 0x105, "Asynchronous Event Request Limit Exceeded"),
    (INVALID_INTERRUPT_VECTOR, 0x108, "Invalid Interrupt Vector"),
    (INVALID_LOG_PAGE, 0x109, "Invalid Log Page"),
    (INVALID_QUEUE_DELETION, 0x10c, "Invalid Queue Deletion"),
    (FEATURE_NOT_SAVEABLE, 0x10d, "Feature Identifier Not Saveable"),
    (FEATURE_NOT_CHANGEABLE, 0x10e, "Feature Not Changeable"),
    (FEATURE_NOT_NAMESPACE_SPECIFIC, 0x10f, "Feature Not Namespace Specific"),
    (CONFLICTING_ATTRIBUTES, 0x180, "Conflicting Attributes"),
    (READ_ONLY_RANGE, 0x182, "Attempted Write to Read Only Range"),
    (WRITE_FAULT, 0x280, "Write Fault"),
    (UNRECOVERED_READ, 0x281, "Unrecovered Read Error"),
    (COMPARE_FAILURE, 0x285, "Compare Failure"),
    (ACCESS_DENIED, 0x286, "Access Denied"),
    (UNWRITTEN_BLOCK, 0x287, "Deallocated or Unwritten Logical Block"),
    (ANA_PERSISTENT_LOSS, 0x301, "Asymmetric Access Persistent Loss"),
    (ANA_INACCESSIBLE, 0x302, "Asymmetric Access Inaccessible"),
    (ANA_TRANSITION, 0x303, "Asymmetric Access Transition"),
    (HOST_PATHING_ERROR, 0x370, "Host Pathing Error"),
    (ABORTED_BY_HOST, 0x371, "Command Aborted By Host"),
}

// Specific to Fabrics commands (Base 6): the numbers mean other things for I/O commands.
statuses! {
    FABRICS_NAMES,
    (CONNECT_INCOMPATIBLE_FORMAT, 0x180, "Incompatible Format"),
    (CONNECT_CONTROLLER_BUSY, 0x181, "Controller Busy"),
    (CONNECT_INVALID_PARAMETERS, 0x182, "Connect Invalid Parameters"),
    (CONNECT_RESTART_DISCOVERY, 0x183, "Connect Restart Discovery"),
    (CONNECT_INVALID_HOST, 0x184, "Connect Invalid Host"),
    (INVALID_QUEUE_TYPE, 0x185, "Invalid Queue Type"),
    (DISCOVERY_RESTART, 0x190, "Discover Restart"),
    (AUTHENTICATION_REQUIRED, 0x191, "Authentication Required"),
}

impl Status {
    /// From a status field that was shifted right by the phase tag.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The field, to be shifted left by the phase tag.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Status code (lower byte) and status code type (above it), as specifications print them.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & CODE
    }

    /// The same with Do Not Retry: the command would fail again.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// True if the command would fail again.
    #[must_use]
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// True if the command has succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// True if it tells of the path, not of the command: another path may do (Base 8.1).
    #[must_use]
    pub const fn is_path_error(self) -> bool {
        self.code() >> 8 == 3
    }

    /// The specification's name.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        find(NAMES, self.code())
    }

    /// The specification's name, for the status of a Fabrics command.
    #[must_use]
    pub fn fabrics_name(self) -> Option<&'static str> {
        find(FABRICS_NAMES, self.code()).or_else(|| self.name())
    }
}

fn find(list: &[(u16, &'static str)], code: u16) -> Option<&'static str> {
    list.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let dnr = if self.is_dnr() { ", do not retry" } else { "" };
        match self.name() {
            Some(name) => write!(f, "{name} ({:03x}h{dnr})", self.code()),
            None => write!(f, "status {:03x}h{dnr}", self.code()),
        }
    }
}
