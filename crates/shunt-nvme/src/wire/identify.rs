//! Data structures of Identify (Base 5.17.2, NVM 4.1.5).

use super::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of each data structure.
pub const LEN: usize = 4096;

/// CNS: which structure is asked for.
pub mod cns {
    /// Identify Namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active Namespace ID list.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptor list.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Identify Namespace of an I/O Command Set.
    pub const NAMESPACE_OF_COMMAND_SET: u8 = 0x05;
    /// Identify Controller of an I/O Command Set.
    pub const CONTROLLER_OF_COMMAND_SET: u8 = 0x06;
    /// Active Namespace ID list of an I/O Command Set.
    pub const ACTIVE_NAMESPACES_OF_COMMAND_SET: u8 = 0x07;
    /// Identify Namespace, independent of the I/O Command Set.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// I/O Command Set data structure.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// CSI of the NVM Command Set.
pub const CSI_NVM: u8 = 0;

/// CNTRLTYPE (Base 5.17.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ControllerType {
    /// A controller with namespaces.
    Io = 1,
    /// A discovery controller.
    Discovery = 2,
}

/// OAES and the Asynchronous Event Configuration feature: Namespace Attribute Notices.
pub const EVENT_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// The same: ANA Change Notices.
pub const EVENT_ANA_CHANGE: u32 = 1 << 11;
/// The same: Discovery Log Page Change Notification.
pub const EVENT_DISCOVERY_CHANGE: u32 = 1 << 31;

/// Identify Controller (Base 5.17.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Controller {
    /// VID.
    pub vid: U16,
    /// SSVID.
    pub ssvid: U16,
    /// SN: serial number, padded with spaces.
    pub sn: [u8; 20],
    /// MN: model number, padded with spaces.
    pub mn: [u8; 40],
    /// FR: firmware revision, padded with spaces.
    pub fr: [u8; 8],
    /// RAB.
    pub rab: u8,
    /// IEEE.
    pub ieee: [u8; 3],
    /// CMIC: bit 0 several ports, bit 1 several controllers, bit 3 ANA.
    pub cmic: u8,
    /// MDTS: the most data of a command, as a power of two of pages of 4 KiB.
    pub mdts: u8,
    /// CNTLID.
    pub cntlid: U16,
    /// VER.
    pub ver: U32,
    /// RTD3R.
    pub rtd3r: U32,
    /// RTD3E.
    pub rtd3e: U32,
    /// OAES: events that can be reported.
    pub oaes: U32,
    /// CTRATT: bit 0 host identifiers of 128 bits, bit 6 traffic based keep alive.
    pub ctratt: U32,
    reserved100: [u8; 11],
    /// CNTRLTYPE.
    pub cntrltype: u8,
    /// FGUID.
    pub fguid: [u8; 16],
    /// CRDT1 to CRDT3.
    pub crdt: [U16; 3],
    reserved134: [u8; 122],
    /// OACS.
    pub oacs: U16,
    /// ACL: Abort commands at once, zero's based.
    pub acl: u8,
    /// AERL: Asynchronous Event Requests at once, zero's based.
    pub aerl: u8,
    /// FRMW.
    pub frmw: u8,
    /// LPA: bit 1 Commands Supported and Effects log, bit 2 extended data of Get Log Page.
    pub lpa: u8,
    /// ELPE.
    pub elpe: u8,
    /// NPSS.
    pub npss: u8,
    /// AVSCC and APSTA.
    pub avscc: [u8; 2],
    /// WCTEMP.
    pub wctemp: U16,
    /// CCTEMP.
    pub cctemp: U16,
    /// MTFA.
    pub mtfa: U16,
    /// HMPRE and HMMIN.
    pub hmpre: [U32; 2],
    /// TNVMCAP.
    pub tnvmcap: U128,
    /// UNVMCAP.
    pub unvmcap: U128,
    /// RPMBS.
    pub rpmbs: U32,
    /// EDSTT, DSTO, FWUG.
    pub edstt: [u8; 4],
    /// KAS: granularity of KATO in 100 ms.
    pub kas: U16,
    /// HCTMA, MNTMT, MXTMT.
    pub hctma: [U16; 3],
    /// SANICAP, HMMINDS.
    pub sanicap: [U32; 2],
    /// HMMAXD, NSETIDMAX, ENDGIDMAX.
    pub hmmaxd: [U16; 3],
    /// ANATT: longest ANA transition in seconds.
    pub anatt: u8,
    /// ANACAP: bits 0 to 4 ANA states that are reported, bit 6 ANAGRPID of a namespace is fixed.
    pub anacap: u8,
    /// ANAGRPMAX.
    pub anagrpmax: U32,
    /// NANAGRPID.
    pub nanagrpid: U32,
    reserved352: [u8; 160],
    /// SQES.
    pub sqes: u8,
    /// CQES.
    pub cqes: u8,
    /// MAXCMD.
    pub maxcmd: U16,
    /// NN.
    pub nn: U32,
    /// ONCS: bit 0 Compare, 2 Dataset Management, 3 Write Zeroes, 5 Reservations, 7 Verify.
    pub oncs: U16,
    /// FUSES: bit 0 Compare and Write.
    pub fuses: U16,
    /// FNA.
    pub fna: u8,
    /// VWC: bit 0 a volatile write cache is present, bits 2:1 Flush for all namespaces.
    pub vwc: u8,
    /// AWUN.
    pub awun: U16,
    /// AWUPF.
    pub awupf: U16,
    /// ICSVSCC and NWPC.
    pub icsvscc: [u8; 2],
    /// ACWU: blocks of an atomic Compare and Write, zero's based.
    pub acwu: U16,
    reserved534: [u8; 2],
    /// SGLS: bit 0 SGLs, bit 20 address is an offset in the capsule.
    pub sgls: U32,
    /// MNAN.
    pub mnan: U32,
    reserved544: [u8; 224],
    /// SUBNQN.
    pub subnqn: [u8; 256],
    reserved1024: [u8; 768],
    /// IOCCSZ: largest command capsule of an I/O queue, in 16 bytes.
    pub ioccsz: U32,
    /// IORCSZ: largest response capsule, in 16 bytes.
    pub iorcsz: U32,
    /// ICDOFF: where data begins in a capsule, in 16 bytes behind the queue entry.
    pub icdoff: U16,
    /// FCATT: bit 0 the controller model is static.
    pub fcatt: u8,
    /// MSDBD: SGL descriptors in a capsule.
    pub msdbd: u8,
    /// OFCS: bit 0 Disconnect.
    pub ofcs: U16,
    /// DCTYPE.
    pub dctype: u8,
    reserved1807: [u8; 241],
    /// PSD0 to PSD31.
    pub psd: [[u8; 32]; 32],
    vendor: [u8; 1024],
}

/// Text in a field, padded with spaces; what is too long is cut.
#[must_use]
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = if from.is_ascii_graphic() || from == b' ' { from } else { b'?' };
    }
    field
}

/// Identify Namespace of the NVM Command Set (NVM 4.1.5.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Namespace {
    /// NSZE: blocks.
    pub nsze: U64,
    /// NCAP: blocks that may be allocated.
    pub ncap: U64,
    /// NUSE: blocks that are allocated.
    pub nuse: U64,
    /// NSFEAT: bit 0 thin provisioning, bit 1 NAWUN and its kin, bit 4 NPWG and its kin.
    pub nsfeat: u8,
    /// NLBAF: formats, zero's based.
    pub nlbaf: u8,
    /// FLBAS.
    pub flbas: u8,
    /// MC.
    pub mc: u8,
    /// DPC.
    pub dpc: u8,
    /// DPS.
    pub dps: u8,
    /// NMIC: bit 0 shared.
    pub nmic: u8,
    /// RESCAP: reservations.
    pub rescap: u8,
    /// FPI.
    pub fpi: u8,
    /// DLFEAT: bits 2:0 what deallocated blocks read as (001b zeroes), bit 3 Write Zeroes may
    /// deallocate.
    pub dlfeat: u8,
    /// NAWUN.
    pub nawun: U16,
    /// NAWUPF.
    pub nawupf: U16,
    /// NACWU: blocks of an atomic Compare and Write, zero's based.
    pub nacwu: U16,
    /// NABSN, NABO, NABSPF.
    pub nabsn: [U16; 3],
    /// NOIOB.
    pub noiob: U16,
    /// NVMCAP.
    pub nvmcap: U128,
    /// NPWG: preferred granularity of writes, in blocks, zero's based.
    pub npwg: U16,
    /// NPWA: preferred alignment of writes.
    pub npwa: U16,
    /// NPDG: preferred granularity of deallocation.
    pub npdg: U16,
    /// NPDA: preferred alignment of deallocation.
    pub npda: U16,
    /// NOWS: optimal size of writes.
    pub nows: U16,
    reserved74: [u8; 18],
    /// ANAGRPID.
    pub anagrpid: U32,
    reserved96: [u8; 3],
    /// NSATTR: bit 0 write protected.
    pub nsattr: u8,
    /// NVMSETID.
    pub nvmsetid: U16,
    /// ENDGID.
    pub endgid: U16,
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF63.
    pub lbaf: [LbaFormat; 64],
    vendor: [u8; 3712],
}

/// A format of blocks.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: bytes of metadata.
    pub ms: U16,
    /// LBADS: the size as a power of two.
    pub lbads: u8,
    /// RP.
    pub rp: u8,
}

impl Namespace {
    /// The format in use.
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas & 15 | self.flbas >> 1 & 0x30)]
    }
}

/// Identify Namespace, independent of the I/O Command Set (Base 5.17.2.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// NSFEAT.
    pub nsfeat: u8,
    /// NMIC.
    pub nmic: u8,
    /// RESCAP.
    pub rescap: u8,
    /// FPI.
    pub fpi: u8,
    /// ANAGRPID.
    pub anagrpid: U32,
    /// NSATTR.
    pub nsattr: u8,
    reserved9: u8,
    /// NVMSETID.
    pub nvmsetid: U16,
    /// ENDGID.
    pub endgid: U16,
    /// NSTAT: bit 0 ready.
    pub nstat: u8,
    reserved15: [u8; 4081],
}

/// Identify Controller of the NVM Command Set (NVM 4.1.5.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// VSL: largest Verify, as a power of two of pages.
    pub vsl: u8,
    /// WZSL: largest Write Zeroes, as a power of two of pages.
    pub wzsl: u8,
    /// WUSL.
    pub wusl: u8,
    /// DMRL: most ranges of a Dataset Management.
    pub dmrl: u8,
    /// DMRSL: most blocks of one range.
    pub dmrsl: U32,
    /// DMSL: most blocks of all ranges.
    pub dmsl: U64,
    reserved16: [u8; 4080],
}

/// Types of namespace identifiers: NIDT (Base 5.17.2.3).
pub mod nidt {
    /// EUI64, 8 bytes.
    pub const EUI64: u8 = 1;
    /// NGUID, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// CSI, 1 byte.
    pub const CSI: u8 = 4;
}

/// A list of descriptors of a namespace: type and bytes of each.
#[must_use]
pub fn descriptors(list: &[(u8, &[u8])]) -> [u8; LEN] {
    let mut data = [0; LEN];
    let mut at = 0;
    for (kind, id) in list {
        let end = at + 4 + id.len();
        let (Ok(len), true) = (u8::try_from(id.len()), end <= LEN) else { break };
        data[at] = *kind;
        data[at + 1] = len;
        data[at + 4..end].copy_from_slice(id);
        at = end;
    }
    data
}

/// The descriptors of a list, up to its end or to the first that is damaged.
pub fn parse_descriptors(data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = data;
    core::iter::from_fn(move || {
        let (&kind, &len) = (rest.first()?, rest.get(1)?);
        let id = rest.get(4..4 + usize::from(len))?;
        rest = &rest[4 + usize::from(len)..];
        (len > 0).then_some((kind, id))
    })
}

/// A list of namespaces: those of `nsids` (ascending) above `after`, 1,024 at most.
#[must_use]
pub fn namespace_list(nsids: impl Iterator<Item = u32>, after: u32) -> [u8; LEN] {
    let mut data = [0; LEN];
    let (slots, _) = data.as_chunks_mut::<4>();
    for (slot, nsid) in slots.iter_mut().zip(nsids.filter(|nsid| *nsid > after)) {
        *slot = nsid.to_le_bytes();
    }
    data
}

impl Controller {
    /// All zero.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

impl Namespace {
    /// All zero.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}
