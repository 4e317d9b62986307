//! Frames: the unit of the log (`docs/format.md` section 3).
//!
//! The header has a checksum of its own, so a wild length is caught before it is used and a damaged
//! payload can be named and passed over. That checksum is seeded with the place of the frame (W5):
//! an image of a frame elsewhere, in a payload or in another file, is never a frame.

use super::bytes::{take_array, take_u16, take_u32, take_u64};
use super::{Lsn, MAX_COUNTER, Seq};
use crate::identity::SessionId;

/// Length of a frame header in bytes, which is also the smallest frame.
pub(crate) const HEADER: u64 = 80;
const HEADER_LEN: usize = 80;
/// Bytes of the place of a frame: log, segment, offset.
const SEED_LEN: usize = 32;
/// Frames start at multiples of this.
pub(crate) const ALIGN: u64 = 8;
const MAGIC: [u8; 4] = *b"SWF1";
/// Largest payload that any version writes, in bytes. A header that names more is not ours, so no
/// length that was read leads to a larger allocation (P14).
pub(crate) const MAX_PAYLOAD: u32 = 256 * 1024 * 1024;

/// 128 random bits that name a log. Never shown to a tool: whoever knows them can forge a header.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LogId(pub(crate) [u8; 16]);

impl std::fmt::Debug for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogId(..)")
    }
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A record of a session.
    Record,
    /// The first frame of an opening for writing.
    Fence,
    /// Stands for a range of records that were deleted on purpose.
    Erased,
    /// Stands for a range of records that were lost and given up by a repair.
    Lost,
    /// A kind of a later version.
    Unknown(u8),
}

impl FrameKind {
    fn code(self) -> u8 {
        match self {
            FrameKind::Record => 1,
            FrameKind::Fence => 2,
            FrameKind::Erased => 3,
            FrameKind::Lost => 4,
            FrameKind::Unknown(code) => code,
        }
    }

    fn from_code(code: u8) -> FrameKind {
        match code {
            1 => FrameKind::Record,
            2 => FrameKind::Fence,
            3 => FrameKind::Erased,
            4 => FrameKind::Lost,
            other => FrameKind::Unknown(other),
        }
    }
}

/// The header of a frame, without its place and its checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) payload_crc: u32,
    pub(crate) payload_len: u32,
    pub(crate) session: SessionId,
    pub(crate) lsn: Lsn,
    pub(crate) seq: Seq,
    pub(crate) previous: Lsn,
    pub(crate) watermark: Lsn,
    pub(crate) epoch: u64,
    pub(crate) batch_index: u16,
    pub(crate) batch_count: u16,
    pub(crate) kind: FrameKind,
    pub(crate) flags: u8,
}

impl Header {
    /// Bytes of the whole frame on disk, padding included.
    pub(crate) fn frame_len(&self) -> u64 {
        frame_len(u64::from(self.payload_len))
    }

    /// The Lsn that the next frame must have.
    pub(crate) fn next_lsn(&self) -> Lsn {
        let span = match self.kind {
            FrameKind::Erased | FrameKind::Lost => self.seq.get().max(1),
            _ => 1,
        };
        Lsn::new(self.lsn.get().saturating_add(span))
    }

    /// Whether the frame is the last of its batch.
    pub(crate) fn ends_batch(&self) -> bool {
        self.batch_index.saturating_add(1) >= self.batch_count
    }
}

/// Bytes on disk of a frame with a payload of this many bytes.
pub(crate) fn frame_len(payload: u64) -> u64 {
    HEADER.saturating_add(payload).next_multiple_of(ALIGN)
}

/// The place that seeds the header checksum of the frames of one segment (W5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) log: LogId,
    pub(crate) segment: u64,
}

impl Place {
    /// A checksum begun with the place and an offset in the file.
    pub(crate) fn seed(&self, offset: u64) -> crc32fast::Hasher {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.log.0);
        hasher.update(&self.segment.to_le_bytes());
        hasher.update(&offset.to_le_bytes());
        hasher
    }

    /// The checksum of a small block with its own checksum at bytes 4 to 7.
    pub(crate) fn seal(&self, offset: u64, block: &[u8]) -> u32 {
        let (before, after) = (
            block.get(..4).unwrap_or_default(),
            block.get(8..).unwrap_or_default(),
        );
        // All of it in one piece is much faster than piece by piece, and headers are many.
        let mut gathered = [0; SEED_LEN + HEADER_LEN];
        let pieces: [&[u8]; 5] = [
            &self.log.0,
            &self.segment.to_le_bytes(),
            &offset.to_le_bytes(),
            before,
            after,
        ];
        let length = pieces.iter().map(|piece| piece.len()).sum();
        let Some(mut room) = gathered.get_mut(..length) else {
            let mut hasher = self.seed(offset);
            hasher.update(before);
            hasher.update(after);
            return hasher.finalize();
        };
        for piece in pieces {
            let (field, rest) = room.split_at_mut_checked(piece.len()).unwrap_or_default();
            field.copy_from_slice(piece);
            room = rest;
        }
        crc32fast::hash(gathered.get(..length).unwrap_or_default())
    }
}

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

pub(crate) fn payload_crc(payload: &[u8]) -> u32 {
    crc(payload)
}

/// The bytes of a header that stands at `offset` in the segment.
pub(crate) fn encode_header(place: &Place, offset: u64, header: &Header) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(field) = out.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
        at += bytes.len();
    };
    put(&MAGIC);
    put(&[0; 4]);
    put(&header.payload_crc.to_le_bytes());
    put(&header.payload_len.to_le_bytes());
    put(&header.session.to_bytes());
    put(&header.lsn.get().to_le_bytes());
    put(&header.seq.get().to_le_bytes());
    put(&header.previous.get().to_le_bytes());
    put(&header.watermark.get().to_le_bytes());
    put(&header.epoch.to_le_bytes());
    put(&header.batch_index.to_le_bytes());
    put(&header.batch_count.to_le_bytes());
    put(&[header.kind.code(), header.flags]);
    let crc = place.seal(offset, &out).to_le_bytes();
    if let Some(field) = out.get_mut(4..8) {
        field.copy_from_slice(&crc);
    }
    out
}

/// Appends the frame to a buffer whose end stands at `offset` in the segment.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    place: &Place,
    offset: u64,
    header: &Header,
    payload: &[u8],
) {
    let start = out.len();
    out.extend_from_slice(&encode_header(place, offset, header));
    out.extend_from_slice(payload);
    while !((out.len() - start) as u64).is_multiple_of(ALIGN) {
        out.push(0);
    }
}

/// Whether bytes begin like a header.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Decodes a header if the bytes hold one that was written for this place (W5). Says nothing about
/// the payload.
pub(crate) fn decode_header(bytes: &[u8], place: &Place, offset: u64) -> Option<Header> {
    let bytes = bytes.get(..HEADER_LEN)?;
    if bytes.get(..4)? != MAGIC {
        return None;
    }
    let mut at = 4;
    let crc = take_u32(bytes, &mut at)?;
    if place.seal(offset, bytes) != crc {
        return None;
    }
    let payload_crc = take_u32(bytes, &mut at)?;
    let payload_len = take_u32(bytes, &mut at)?;
    if payload_len > MAX_PAYLOAD {
        return None;
    }
    let header = Header {
        payload_crc,
        payload_len,
        session: SessionId::from_bytes(take_array(bytes, &mut at)?),
        lsn: Lsn::new(take_u64(bytes, &mut at)?),
        seq: Seq::new(take_u64(bytes, &mut at)?),
        previous: Lsn::new(take_u64(bytes, &mut at)?),
        watermark: Lsn::new(take_u64(bytes, &mut at)?),
        epoch: take_u64(bytes, &mut at)?,
        batch_index: take_u16(bytes, &mut at)?,
        batch_count: take_u16(bytes, &mut at)?,
        kind: FrameKind::from_code(*bytes.get(76)?),
        flags: *bytes.get(77)?,
    };
    let counters = [
        header.lsn.get(),
        header.seq.get(),
        header.previous.get(),
        header.watermark.get(),
        header.epoch,
    ];
    let ours = header.lsn > Lsn::ZERO
        && counters.iter().all(|counter| *counter < MAX_COUNTER)
        && (header.kind != FrameKind::Record || header.seq > Seq::ZERO);
    ours.then_some(header)
}

/// Whether payload and padding (the bytes of the frame behind its header) are those that the
/// header names.
pub(crate) fn payload_is_intact(header: &Header, rest: &[u8]) -> bool {
    let length = header.payload_len as usize;
    let (Some(payload), Some(padding)) = (rest.get(..length), rest.get(length..)) else {
        return false;
    };
    let whole = header.frame_len().saturating_sub(HEADER);
    rest.len() as u64 == whole
        && padding.iter().all(|byte| *byte == 0)
        && payload_crc(payload) == header.payload_crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            log: LogId([7; 16]),
            segment: 3,
        }
    }

    fn sample(payload: &[u8]) -> Header {
        Header {
            payload_crc: payload_crc(payload),
            payload_len: payload.len() as u32,
            session: SessionId::from_bytes([9; 16]),
            lsn: Lsn::new(5),
            seq: Seq::new(4),
            previous: Lsn::new(3),
            watermark: Lsn::new(4),
            epoch: 2,
            batch_index: 0,
            batch_count: 1,
            kind: FrameKind::Record,
            flags: 0,
        }
    }

    #[test]
    fn a_frame_reads_back() {
        for length in 0..24 {
            let payload = vec![0xa5; length];
            let header = sample(&payload);
            let mut out = Vec::new();
            encode(&mut out, &place(), 16384, &header, &payload);
            assert_eq!(out.len() as u64, header.frame_len());
            assert_eq!(decode_header(&out, &place(), 16384), Some(header));
            assert!(payload_is_intact(&header, &out[HEADER_LEN..]));
        }
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let payload = b"some payload!";
        let header = sample(payload);
        let mut out = Vec::new();
        encode(&mut out, &place(), 16384, &header, payload);
        for byte in 0..out.len() {
            for bit in 0..8 {
                let mut bad = out.clone();
                bad[byte] ^= 1 << bit;
                let intact = decode_header(&bad, &place(), 16384)
                    .is_some_and(|found| payload_is_intact(&found, &bad[HEADER_LEN..]));
                assert!(!intact, "byte {byte} bit {bit}");
            }
        }
    }

    /// W5: a payload that contains frames of a log is never mistaken for frames.
    #[test]
    fn a_frame_counts_only_in_its_place() {
        let mut out = Vec::new();
        encode(&mut out, &place(), 16384, &sample(b"x"), b"x");
        let mut other_log = place();
        other_log.log.0[0] ^= 1;
        let mut other_segment = place();
        other_segment.segment += 1;
        assert_eq!(decode_header(&out, &place(), 16392), None);
        assert_eq!(decode_header(&out, &other_log, 16384), None);
        assert_eq!(decode_header(&out, &other_segment, 16384), None);
    }

    /// The bytes of `docs/format.md` section 3, written out.
    #[test]
    fn golden_frame() {
        let mut out = Vec::new();
        encode(&mut out, &place(), 16384, &sample(b"abc"), b"abc");
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "53574631",
                "9a4bdea6",
                "c2412435",
                "03000000",
                "09090909090909090909090909090909",
                "0500000000000000",
                "0400000000000000",
                "0300000000000000",
                "0400000000000000",
                "0200000000000000",
                "0000",
                "0100",
                "01",
                "00",
                "0000",
                "616263",
                "0000000000",
            )
        );
    }
}
