//! What a guest is told of its disk: features, and the device's configuration (VIRTIO 1.2, 5.2.3 and 5.2.4).

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

use crate::port::Geometry;

/// Most buffers of a request. With its header and its status that is a ring of 128, what QEMU gives disks by default.
pub const MAX_SEGMENTS: u32 = 126;
/// Most bytes of a buffer.
pub const MAX_SEGMENT: u32 = 1 << 20;
/// Most bytes of a request.
pub const MAX_DATA: u64 = MAX_SEGMENTS as u64 * MAX_SEGMENT as u64;
/// Most ranges that a request gives up or makes zero.
pub const MAX_RANGES: u32 = 32;
/// Most sectors of such a range.
pub const MAX_RANGE: u32 = 1 << 21;

/// `struct virtio_blk_config`, as far as its last field that a feature of ours fills.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Config {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    block_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

impl Config {
    /// That of a disk with so many queues.
    #[must_use]
    pub fn new(disk: &Geometry, queues: u16) -> Self {
        let per_block = u32::try_from(disk.sectors_per_block()).unwrap_or(u32::MAX);
        Self {
            capacity: disk.sectors().into(),
            size_max: MAX_SEGMENT.into(),
            seg_max: MAX_SEGMENTS.into(),
            geometry: [0; 4],
            block_size: disk.block_size.into(),
            physical_block_exp: 0,
            alignment_offset: 0,
            min_io_size: 1.into(),
            opt_io_size: 0.into(),
            writeback: 0,
            unused0: 0,
            num_queues: queues.into(),
            max_discard_sectors: MAX_RANGE.into(),
            max_discard_seg: MAX_RANGES.into(),
            discard_sector_alignment: per_block.into(),
            max_write_zeroes_sectors: MAX_RANGE.into(),
            max_write_zeroes_seg: MAX_RANGES.into(),
            write_zeroes_may_unmap: u8::from(disk.discard),
            unused1: [0; 3],
        }
    }

    /// A part of it; what lies behind it is zero.
    #[must_use]
    pub fn part(&self, offset: u32, len: u32) -> Vec<u8> {
        let (offset, len) = (offset as usize, len as usize);
        let bytes = self.as_bytes().iter().skip(offset).take(len).copied();
        let mut part: Vec<u8> = bytes.collect();
        part.resize(len, 0);
        part
    }
}

/// The features of such a disk, vhost-user's own among them.
#[must_use]
pub fn features(disk: &Geometry, queues: u16) -> u64 {
    let mut features = bits(&[
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
    ]);
    if queues > 1 {
        features |= bits(&[VIRTIO_BLK_F_MQ]);
    }
    if disk.read_only {
        features |= bits(&[VIRTIO_BLK_F_RO]);
    } else {
        if disk.discard {
            features |= bits(&[VIRTIO_BLK_F_DISCARD]);
        }
        if disk.write_zeroes {
            features |= bits(&[VIRTIO_BLK_F_WRITE_ZEROES]);
        }
    }
    features | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
}

/// The parts of the vhost-user protocol that are spoken.
#[must_use]
pub fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
}

fn bits(features: &[u32]) -> u64 {
    features.iter().fold(0, |all, feature| all | 1 << feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Geometry {
        Geometry {
            blocks: 256,
            block_size: 4096,
            read_only: false,
            serial: [0; 20],
            nguid: None,
            uuid: None,
            compare: true,
            discard: true,
            write_zeroes: true,
        }
    }

    /// Offsets are those of VIRTIO 1.2, 5.2.4.
    #[test]
    fn fields_are_where_they_belong() {
        let config = Config::new(&disk(), 3);
        let all = config.part(0, 60);
        assert_eq!(all[0..8], 2048u64.to_le_bytes());
        assert_eq!(all[8..12], MAX_SEGMENT.to_le_bytes());
        assert_eq!(all[12..16], MAX_SEGMENTS.to_le_bytes());
        assert_eq!(all[20..24], 4096u32.to_le_bytes());
        assert_eq!(all[34..36], 3u16.to_le_bytes());
        assert_eq!(all[36..40], MAX_RANGE.to_le_bytes());
        assert_eq!(all[44..48], 8u32.to_le_bytes());
        assert_eq!(all[56], 1);
        assert_eq!(config.part(56, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(config.part(u32::MAX, 2), [0, 0]);
    }

    #[test]
    fn what_cannot_be_written_cannot_be_given_up() {
        let one = features(&Geometry { read_only: true, ..disk() }, 1);
        let has = |features: u64, bit: u32| features & 1 << bit != 0;
        assert!(has(one, VIRTIO_BLK_F_RO) && !has(one, VIRTIO_BLK_F_DISCARD));
        assert!(!has(one, VIRTIO_BLK_F_WRITE_ZEROES) && !has(one, VIRTIO_BLK_F_MQ));
        let many = features(&disk(), 2);
        assert!(!has(many, VIRTIO_BLK_F_RO) && has(many, VIRTIO_BLK_F_DISCARD));
        assert!(has(many, VIRTIO_BLK_F_WRITE_ZEROES) && has(many, VIRTIO_BLK_F_MQ));
    }
}
