//! The manifest: which segments there are, and where those that are finished end
//! (`docs/format.md` section 5, W6).

use super::bytes::{patch_u32, put_u32, put_u64, take_array, take_u32, take_u64};
use super::frame::{LogId, Place};
use super::names::SegmentName;
use super::segment::VERSION;
use super::{Lsn, MAX_COUNTER};
use crate::identity::SessionId;

const MAGIC: [u8; 8] = *b"STEPMAN\0";
const HEAD_LEN: usize = 96;
const ENTRY_LEN: usize = 80;
/// Most segments that a manifest may list; a longer file is refused before it is read.
pub(crate) const MAX_SEGMENTS: u32 = 1 << 20;
/// Longest manifest in bytes.
pub(crate) const MAX_LEN: u64 = HEAD_LEN as u64 + MAX_SEGMENTS as u64 * ENTRY_LEN as u64;

/// Where a finished segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    /// Offset behind the last frame that counts.
    pub(crate) offset: u64,
    /// The last Lsn that counts.
    pub(crate) last: Lsn,
}

/// One listed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub(crate) name: SegmentName,
    pub(crate) end: Option<End>,
    /// The log under which its frames were written (a fork links files of its parent).
    pub(crate) log: LogId,
    /// The session under which its frames were written, if it is not the journal's own; nil: as the
    /// frames say.
    pub(crate) session: SessionId,
    /// The session that they are read as in its place: the owner of the journal. It is not written
    /// beside each entry; nil if `session` is.
    pub(crate) reads_as: SessionId,
}

impl SegmentEntry {
    /// A segment that the journal itself has written.
    pub(crate) fn own(name: SegmentName, log: LogId, end: Option<End>) -> SegmentEntry {
        SegmentEntry {
            name,
            end,
            log,
            session: SessionId::nil(),
            reads_as: SessionId::nil(),
        }
    }

    /// The session of a frame, by what its header says.
    pub(crate) fn session_of(&self, found: SessionId) -> SessionId {
        match !self.session.is_nil() && found == self.session {
            true => self.reads_as,
            false => found,
        }
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            log: self.log,
            segment: self.name.number,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) log: LogId,
    /// The session that owns the journal; nil when many share it.
    pub(crate) owner: SessionId,
    pub(crate) shared: bool,
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    /// Largest payload that writer and reader accept, in bytes (P10).
    pub(crate) max_payload: u32,
    pub(crate) segments: Vec<SegmentEntry>,
}

/// What a manifest file turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ManifestFound {
    Good(Manifest),
    Newer(u32),
    Bad,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_LEN + self.segments.len() * ENTRY_LEN);
        out.extend_from_slice(&MAGIC);
        put_u32(&mut out, 0);
        put_u32(&mut out, VERSION);
        put_u32(&mut out, 0);
        put_u32(&mut out, u32::from(self.shared));
        out.extend_from_slice(&self.log.0);
        out.extend_from_slice(&self.owner.to_bytes());
        put_u64(&mut out, self.number);
        put_u64(&mut out, self.epoch);
        put_u64(
            &mut out,
            self.segments
                .iter()
                .map(|s| s.name.number)
                .min()
                .unwrap_or(0),
        );
        put_u32(&mut out, self.max_payload);
        put_u32(&mut out, self.segments.len() as u32);
        put_u64(&mut out, 0);
        for entry in &self.segments {
            put_u64(&mut out, entry.name.number);
            put_u32(&mut out, entry.name.generation);
            put_u32(&mut out, u32::from(entry.end.is_some()));
            put_u64(&mut out, entry.name.epoch);
            put_u64(&mut out, entry.end.map_or(0, |end| end.offset));
            put_u64(&mut out, entry.end.map_or(0, |end| end.last.get()));
            out.extend_from_slice(&entry.log.0);
            out.extend_from_slice(&entry.session.to_bytes());
            put_u64(&mut out, 0);
        }
        let length = out.len() as u32;
        patch_u32(&mut out, 16, length);
        let crc = crc32fast::hash(out.get(12..).unwrap_or_default());
        patch_u32(&mut out, 8, crc);
        out
    }

    /// Decodes the bytes of a file that is named with `number`.
    pub(crate) fn decode(bytes: &[u8], number: u64) -> ManifestFound {
        Self::read(bytes, number).unwrap_or(ManifestFound::Bad)
    }

    fn read(bytes: &[u8], number: u64) -> Option<ManifestFound> {
        if bytes.get(..8)? != MAGIC {
            return None;
        }
        let mut at = 8;
        if take_u32(bytes, &mut at)? != crc32fast::hash(bytes.get(12..)?) {
            return None;
        }
        let version = take_u32(bytes, &mut at)?;
        if version != VERSION {
            return Some(ManifestFound::Newer(version));
        }
        let length = take_u32(bytes, &mut at)?;
        let flags = take_u32(bytes, &mut at)?;
        let log = LogId(take_array(bytes, &mut at)?);
        let owner = SessionId::from_bytes(take_array(bytes, &mut at)?);
        let found_number = take_u64(bytes, &mut at)?;
        let epoch = take_u64(bytes, &mut at)?;
        let _lowest = take_u64(bytes, &mut at)?;
        let max_payload = take_u32(bytes, &mut at)?;
        let count = take_u32(bytes, &mut at)?;
        let expected = (count as usize)
            .checked_mul(ENTRY_LEN)
            .and_then(|entries| entries.checked_add(HEAD_LEN))?;
        if number >= MAX_COUNTER || epoch >= MAX_COUNTER {
            return None;
        }
        if found_number != number || length as usize != bytes.len() || expected != bytes.len() {
            return None;
        }
        let mut segments = Vec::with_capacity(count as usize);
        for chunk in bytes.get(HEAD_LEN..)?.chunks_exact(ENTRY_LEN) {
            segments.push(Self::read_entry(chunk, owner)?);
        }
        Some(ManifestFound::Good(Manifest {
            log,
            owner,
            shared: flags & 1 == 1,
            number,
            epoch,
            max_payload,
            segments,
        }))
    }

    fn read_entry(chunk: &[u8], owner: SessionId) -> Option<SegmentEntry> {
        let mut at = 0;
        let number = take_u64(chunk, &mut at)?;
        let generation = take_u32(chunk, &mut at)?;
        let flags = take_u32(chunk, &mut at)?;
        let epoch = take_u64(chunk, &mut at)?;
        let offset = take_u64(chunk, &mut at)?;
        let last = Lsn::new(take_u64(chunk, &mut at)?);
        let log = LogId(take_array(chunk, &mut at)?);
        let session = SessionId::from_bytes(take_array(chunk, &mut at)?);
        let counters = [
            number,
            u64::from(generation) << 31,
            epoch,
            offset,
            last.get(),
        ];
        if counters.iter().any(|counter| *counter >= MAX_COUNTER) {
            return None;
        }
        Some(SegmentEntry {
            name: SegmentName {
                number,
                generation,
                epoch,
            },
            end: (flags & 1 == 1).then_some(End { offset, last }),
            log,
            session,
            reads_as: match session.is_nil() {
                true => session,
                false => owner,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let log = LogId([1; 16]);
        let entry = |number, end| {
            let name = SegmentName {
                number,
                generation: 0,
                epoch: 1,
            };
            SegmentEntry::own(name, log, end)
        };
        let linked = SegmentEntry {
            log: LogId([2; 16]),
            session: SessionId::from_bytes([6; 16]),
            reads_as: SessionId::from_bytes([5; 16]),
            ..entry(
                1,
                Some(End {
                    offset: 20000,
                    last: Lsn::new(17),
                }),
            )
        };
        Manifest {
            log,
            owner: SessionId::from_bytes([5; 16]),
            shared: false,
            number: 9,
            epoch: 3,
            max_payload: 1 << 24,
            segments: vec![linked, entry(2, None)],
        }
    }

    #[test]
    fn a_manifest_reads_back_and_every_flip_and_cut_is_seen() {
        let bytes = sample().encode();
        assert_eq!(Manifest::decode(&bytes, 9), ManifestFound::Good(sample()));
        assert_eq!(Manifest::decode(&bytes, 10), ManifestFound::Bad);
        for byte in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[byte] ^= 4;
            assert_eq!(Manifest::decode(&bad, 9), ManifestFound::Bad, "byte {byte}");
            assert_eq!(Manifest::decode(&bytes[..byte], 9), ManifestFound::Bad);
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(Manifest::decode(&longer, 9), ManifestFound::Bad);
    }

    #[test]
    fn a_count_that_does_not_fit_the_file_allocates_nothing() {
        let mut bytes = sample().encode();
        patch_u32(&mut bytes, 84, u32::MAX);
        let crc = crc32fast::hash(&bytes[12..]);
        patch_u32(&mut bytes, 8, crc);
        assert_eq!(Manifest::decode(&bytes, 9), ManifestFound::Bad);
    }
}
