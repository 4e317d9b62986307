//! The fixed blocks of a segment file: static header, witness slots, seal (`docs/format.md`
//! section 2). Each stands in a 4 KiB block of its own, apart from the frames that it vouches for
//! (W8): one damaged block never takes a frame and its witness together.

use super::bytes::{patch_u32, put_u32, put_u64, take_array, take_u32, take_u64};
use super::frame::{LogId, Place};
use super::names::SegmentName;
use super::{Lsn, MAX_COUNTER};

/// Unit of damage: claims and frames never share one.
pub(crate) const BLOCK: u64 = 4096;
const BLOCK_LEN: usize = 4096;
/// Where the frames of a segment begin.
pub(crate) const FRAMES: u64 = 4 * BLOCK;
/// Where the two witness slots stand.
pub(crate) const SLOTS: [u64; 2] = [BLOCK, 2 * BLOCK];
/// Where the seal stands.
pub(crate) const SEAL: u64 = 3 * BLOCK;
/// The format version of this build.
pub(crate) const VERSION: u32 = 1;
/// Largest capacity that any version makes, in bytes: a header that names more is not ours.
pub(crate) const MAX_CAPACITY: u64 = 2 * 1024 * 1024 * 1024;
/// Bytes of a slot or a seal.
pub(crate) const CLAIM_LEN: usize = 64;

const HEADER_MAGIC: [u8; 8] = *b"STEPSEG\0";
const SLOT_MAGIC: [u8; 4] = *b"SWS1";
const SEAL_MAGIC: [u8; 4] = *b"SWE1";

/// The static header: what the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StaticHeader {
    pub(crate) log: LogId,
    pub(crate) name: SegmentName,
    /// Bytes for frames, from [`FRAMES`] on.
    pub(crate) capacity: u64,
}

/// What the first block of a file turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFound {
    Good(StaticHeader),
    Newer(u32),
    Bad,
}

impl StaticHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_LEN);
        out.extend_from_slice(&HEADER_MAGIC);
        put_u32(&mut out, 0);
        put_u32(&mut out, VERSION);
        out.extend_from_slice(&self.log.0);
        put_u64(&mut out, self.name.number);
        put_u32(&mut out, self.name.generation);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.name.epoch);
        put_u64(&mut out, self.capacity);
        out.resize(BLOCK_LEN, 0);
        let crc = crc32fast::hash(out.get(12..).unwrap_or_default());
        patch_u32(&mut out, 8, crc);
        out
    }

    pub(crate) fn decode(block: &[u8]) -> HeaderFound {
        Self::read(block).unwrap_or(HeaderFound::Bad)
    }

    fn read(block: &[u8]) -> Option<HeaderFound> {
        if block.len() != BLOCK_LEN || block.get(..8)? != HEADER_MAGIC {
            return None;
        }
        let mut at = 8;
        if take_u32(block, &mut at)? != crc32fast::hash(block.get(12..)?) {
            return None;
        }
        let version = take_u32(block, &mut at)?;
        if version != VERSION {
            return Some(HeaderFound::Newer(version));
        }
        let log = LogId(take_array(block, &mut at)?);
        let number = take_u64(block, &mut at)?;
        let generation = take_u32(block, &mut at)?;
        at = 48;
        let epoch = take_u64(block, &mut at)?;
        let capacity = take_u64(block, &mut at)?;
        // A capacity above the largest, or one that breaks the alignment, was never written by us.
        let counters = number.max(epoch).max(u64::from(generation) << 31);
        if counters >= MAX_COUNTER || capacity % 8 != 0 || capacity > MAX_CAPACITY {
            return None;
        }
        Some(HeaderFound::Good(StaticHeader {
            log,
            name: SegmentName {
                number,
                generation,
                epoch,
            },
            capacity,
        }))
    }
}

/// A witness slot: "durable up to here".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) watermark: Lsn,
    pub(crate) tail: u64,
    pub(crate) epoch: u64,
    pub(crate) clean: bool,
}

impl Slot {
    pub(crate) fn encode(&self, place: &Place, offset: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(CLAIM_LEN);
        out.extend_from_slice(&SLOT_MAGIC);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.watermark.get());
        put_u64(&mut out, self.tail);
        put_u64(&mut out, self.epoch);
        put_u32(&mut out, u32::from(self.clean));
        finish_claim(out, place, offset)
    }

    pub(crate) fn decode(bytes: &[u8], place: &Place, offset: u64) -> Option<Slot> {
        let mut at = begin_claim(bytes, SLOT_MAGIC, place, offset)?;
        let slot = Slot {
            watermark: Lsn::new(take_u64(bytes, &mut at)?),
            tail: take_u64(bytes, &mut at)?,
            epoch: take_u64(bytes, &mut at)?,
            clean: take_u32(bytes, &mut at)? & 1 == 1,
        };
        (slot.watermark.get() < MAX_COUNTER && slot.epoch < MAX_COUNTER).then_some(slot)
    }
}

/// A seal: "this is all that the segment holds" (W7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) end: u64,
    pub(crate) last: Lsn,
    pub(crate) count: u64,
    /// Offset and length of the footer, if there is one.
    pub(crate) footer: Option<(u64, u32)>,
    pub(crate) epoch: u64,
}

impl Seal {
    pub(crate) fn encode(&self, place: &Place) -> Vec<u8> {
        let (footer_offset, footer_len) = self.footer.unwrap_or((0, 0));
        let mut out = Vec::with_capacity(CLAIM_LEN);
        out.extend_from_slice(&SEAL_MAGIC);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.end);
        put_u64(&mut out, self.last.get());
        put_u64(&mut out, self.count);
        put_u64(&mut out, footer_offset);
        put_u32(&mut out, footer_len);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.epoch);
        finish_claim(out, place, SEAL)
    }

    pub(crate) fn decode(bytes: &[u8], place: &Place) -> Option<Seal> {
        let mut at = begin_claim(bytes, SEAL_MAGIC, place, SEAL)?;
        let end = take_u64(bytes, &mut at)?;
        let last = Lsn::new(take_u64(bytes, &mut at)?);
        let count = take_u64(bytes, &mut at)?;
        let footer_offset = take_u64(bytes, &mut at)?;
        let footer_len = take_u32(bytes, &mut at)?;
        take_u32(bytes, &mut at)?;
        let epoch = take_u64(bytes, &mut at)?;
        if end >= MAX_COUNTER || last.get() >= MAX_COUNTER {
            return None;
        }
        Some(Seal {
            end,
            last,
            count,
            footer: (footer_offset != 0).then_some((footer_offset, footer_len)),
            epoch,
        })
    }
}

fn finish_claim(mut out: Vec<u8>, place: &Place, offset: u64) -> Vec<u8> {
    out.resize(CLAIM_LEN, 0);
    let crc = place.seal(offset, &out);
    patch_u32(&mut out, 4, crc);
    out
}

/// Checks magic and checksum of a claim; gives where its fields begin.
fn begin_claim(bytes: &[u8], magic: [u8; 4], place: &Place, offset: u64) -> Option<usize> {
    if bytes.len() != CLAIM_LEN || bytes.get(..4)? != magic {
        return None;
    }
    let mut at = 4;
    (take_u32(bytes, &mut at)? == place.seal(offset, bytes)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place {
        log: LogId([3; 16]),
        segment: 12,
    };

    #[test]
    fn a_static_header_reads_back_and_every_flip_is_seen() {
        let header = StaticHeader {
            log: PLACE.log,
            name: SegmentName {
                number: 12,
                generation: 1,
                epoch: 4,
            },
            capacity: 16384,
        };
        let block = header.encode();
        assert_eq!(StaticHeader::decode(&block), HeaderFound::Good(header));
        for byte in 0..block.len() {
            let mut bad = block.clone();
            bad[byte] ^= 0x10;
            assert_eq!(StaticHeader::decode(&bad), HeaderFound::Bad, "byte {byte}");
        }
        assert_eq!(StaticHeader::decode(&block[..100]), HeaderFound::Bad);
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let header = StaticHeader {
            log: PLACE.log,
            name: SegmentName {
                number: 1,
                generation: 0,
                epoch: 1,
            },
            capacity: 64,
        };
        let mut block = header.encode();
        patch_u32(&mut block, 12, 2);
        assert_eq!(StaticHeader::decode(&block), HeaderFound::Bad);
        let crc = crc32fast::hash(&block[12..]);
        patch_u32(&mut block, 8, crc);
        assert_eq!(StaticHeader::decode(&block), HeaderFound::Newer(2));
    }

    #[test]
    fn claims_read_back_only_in_their_place() {
        let slot = Slot {
            watermark: Lsn::new(8),
            tail: 20000,
            epoch: 3,
            clean: true,
        };
        let seal = Seal {
            end: 20000,
            last: Lsn::new(8),
            count: 8,
            footer: Some((20480, 96)),
            epoch: 3,
        };
        let written = slot.encode(&PLACE, SLOTS[0]);
        assert_eq!(Slot::decode(&written, &PLACE, SLOTS[0]), Some(slot));
        assert_eq!(Slot::decode(&written, &PLACE, SLOTS[1]), None);
        let sealed = seal.encode(&PLACE);
        assert_eq!(Seal::decode(&sealed, &PLACE), Some(seal));
        assert_eq!(Seal::decode(&written, &PLACE), None);
        for byte in 0..CLAIM_LEN {
            let mut bad = written.clone();
            bad[byte] ^= 1;
            assert_eq!(Slot::decode(&bad, &PLACE, SLOTS[0]), None);
            let mut bad = sealed.clone();
            bad[byte] ^= 1;
            assert_eq!(Seal::decode(&bad, &PLACE), None);
        }
    }
}
