//! The footer of a finished segment (`docs/format.md` section 4): which sessions it holds, where
//! some of its frames stand, and the carry record of the layer above. All of it can be rebuilt by
//! reading the segment, so a bad footer costs time only.

use std::collections::BTreeMap;

use super::bytes::{patch_u32, put_u32, put_u64, take_array, take_u32, take_u64};
use super::directory::{Directory, OpenFile};
use super::error::DiskError;
use super::evidence::read_seal;
use super::frame::Place;
use super::manifest::{End, SegmentEntry};
use super::parts::{self, Part, Parts};
use super::scan::Found;
use super::{FrameKind, Lsn, Seq};
use crate::identity::SessionId;
use crate::vfs::Access;

pub(super) const MAGIC: [u8; 4] = *b"SWO1";
const VERSION: u32 = 1;
pub(super) const HEAD_LEN: usize = 48;
const SESSION_LEN: usize = 48;
pub(super) const INDEX_LEN: usize = 16;
/// Bytes of frames between two entries of the index.
const INDEX_STEP: u64 = 64 * 1024;
/// Longest footer that is read; a longer one is rebuilt instead.
pub(crate) const MAX_LEN: u32 = 64 * 1024 * 1024;

/// The records of one session in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionRange {
    pub(crate) first_seq: Seq,
    pub(crate) last_seq: Seq,
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    /// The Lsn of the session's record before the first; known in a journal of many sessions only.
    pub(crate) previous: Lsn,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footer {
    /// Last Lsn before the segment.
    pub(crate) base: Lsn,
    /// Last Lsn of the segment.
    pub(crate) last: Lsn,
    pub(crate) sessions: BTreeMap<SessionId, SessionRange>,
    /// Lsns with the offsets of their frames, ascending.
    pub(crate) index: Vec<(Lsn, u64)>,
    /// The state of the layer above as of `last`; empty if it was not supplied.
    pub(crate) carry: Vec<u8>,
    /// In a journal of many sessions: where the records of each stand, and what it has come to.
    pub(crate) parts: Option<Parts>,
}

impl Footer {
    pub(crate) fn new(base: Lsn) -> Footer {
        Footer {
            base,
            last: base,
            sessions: BTreeMap::new(),
            index: Vec::new(),
            carry: Vec::new(),
            parts: None,
        }
    }

    /// For a journal that many sessions share, if it is one.
    pub(crate) fn shared(self, shared: bool) -> Footer {
        Footer {
            parts: shared.then(Parts::new),
            ..self
        }
    }

    /// Makes room for the index of a segment of this capacity, so that appends allocate nothing.
    pub(crate) fn reserve(&mut self, capacity: u64) {
        let entries = usize::try_from(capacity / INDEX_STEP).unwrap_or(0);
        self.index.reserve(entries + 1);
    }

    /// Builds the footer of the frames of a segment, without a carry record.
    pub(crate) fn of(base: Lsn, frames: &[Found], shared: bool) -> Footer {
        let mut footer = Footer::new(base).shared(shared);
        for frame in frames {
            footer.add(frame);
        }
        footer
    }

    /// Takes one more frame in.
    pub(crate) fn add(&mut self, frame: &Found) {
        let header = &frame.header;
        self.last = Lsn::new(header.next_lsn().get().saturating_sub(1));
        let due = self
            .index
            .last()
            .is_none_or(|(_, offset)| frame.offset >= offset + INDEX_STEP);
        if due {
            self.index.push((header.lsn, frame.offset));
        }
        if header.kind == FrameKind::Record {
            let range = self.sessions.entry(header.session).or_insert(SessionRange {
                first_seq: header.seq,
                last_seq: header.seq,
                first: header.lsn,
                last: header.lsn,
                previous: header.previous,
            });
            range.last_seq = header.seq;
            range.last = header.lsn;
            if let Some(parts) = &mut self.parts {
                let part = parts.entry(header.session).or_default();
                part.places
                    .push(u32::try_from(frame.offset).unwrap_or(u32::MAX));
            }
        }
    }

    /// What a session has here, in a journal of many.
    pub(crate) fn part(&self, session: SessionId) -> Option<(SessionRange, &Part)> {
        let range = self.sessions.get(&session)?;
        Some((*range, self.parts.as_ref()?.get(&session)?))
    }

    pub(crate) fn encode(&self, place: &Place) -> Vec<u8> {
        match &self.parts {
            Some(found) => parts::encode(self, found, place),
            None => self.encode_one(place),
        }
    }

    fn encode_one(&self, place: &Place) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        put_u32(&mut out, 0);
        put_u32(&mut out, 0);
        put_u32(&mut out, VERSION);
        put_u64(&mut out, self.base.get());
        put_u64(&mut out, self.last.get());
        put_u32(&mut out, self.sessions.len() as u32);
        put_u32(&mut out, self.index.len() as u32);
        put_u32(&mut out, self.carry.len() as u32);
        put_u32(&mut out, 0);
        for (session, range) in &self.sessions {
            out.extend_from_slice(&session.to_bytes());
            put_u64(&mut out, range.first_seq.get());
            put_u64(&mut out, range.last_seq.get());
            put_u64(&mut out, range.first.get());
            put_u64(&mut out, range.last.get());
        }
        for (lsn, offset) in &self.index {
            put_u64(&mut out, lsn.get());
            put_u64(&mut out, *offset);
        }
        out.extend_from_slice(&self.carry);
        let length = out.len() as u32;
        patch_u32(&mut out, 8, length);
        let crc = checksum(place, &out);
        patch_u32(&mut out, 4, crc);
        out
    }

    pub(crate) fn decode(bytes: &[u8], place: &Place) -> Option<Footer> {
        match take_u32(bytes, &mut 12)? {
            parts::VERSION => parts::decode(bytes, place),
            _ => Footer::decode_one(bytes, place),
        }
    }

    fn decode_one(bytes: &[u8], place: &Place) -> Option<Footer> {
        if bytes.get(..4)? != MAGIC {
            return None;
        }
        let mut at = 4;
        if take_u32(bytes, &mut at)? != checksum(place, bytes)
            || take_u32(bytes, &mut at)? as usize != bytes.len()
            || take_u32(bytes, &mut at)? != VERSION
        {
            return None;
        }
        let base = Lsn::new(take_u64(bytes, &mut at)?);
        let last = Lsn::new(take_u64(bytes, &mut at)?);
        let sessions = take_u32(bytes, &mut at)? as usize;
        let index = take_u32(bytes, &mut at)? as usize;
        let carry = take_u32(bytes, &mut at)? as usize;
        let expected = HEAD_LEN
            .checked_add(sessions.checked_mul(SESSION_LEN)?)?
            .checked_add(index.checked_mul(INDEX_LEN)?)?
            .checked_add(carry)?;
        if expected != bytes.len() {
            return None;
        }
        at = HEAD_LEN;
        let mut footer = Footer::new(base);
        footer.last = last;
        for _ in 0..sessions {
            let session = SessionId::from_bytes(take_array(bytes, &mut at)?);
            let range = SessionRange {
                first_seq: Seq::new(take_u64(bytes, &mut at)?),
                last_seq: Seq::new(take_u64(bytes, &mut at)?),
                first: Lsn::new(take_u64(bytes, &mut at)?),
                last: Lsn::new(take_u64(bytes, &mut at)?),
                previous: Lsn::ZERO,
            };
            footer.sessions.insert(session, range);
        }
        for _ in 0..index {
            let lsn = Lsn::new(take_u64(bytes, &mut at)?);
            footer.index.push((lsn, take_u64(bytes, &mut at)?));
        }
        footer.carry = bytes.get(at..)?.to_vec();
        Some(footer)
    }
}

/// Magic and all behind the checksum, with the place.
fn checksum(place: &Place, bytes: &[u8]) -> u32 {
    place.seal(0, bytes)
}

/// Loads the footer of a finished segment from behind its seal or from the file beside it; `None`
/// if there is none that fits the end: then it is rebuilt by reading the segment.
pub(crate) fn load(
    directory: &Directory,
    entry: &SegmentEntry,
    end: End,
    base: Lsn,
) -> Result<Option<Footer>, DiskError> {
    let place = entry.place();
    find(directory, entry, |file, offset, length| {
        let footer = read(file, &place, offset, length)?;
        Ok(footer.filter(|footer| footer.last == end.last && footer.base == base))
    })
}

/// The first that is found of what `read` finds behind the seal of a segment, and in the file beside it.
pub(super) fn find<T>(
    directory: &Directory,
    entry: &SegmentEntry,
    read: impl Fn(&OpenFile, u64, u32) -> Result<Option<T>, DiskError>,
) -> Result<Option<T>, DiskError> {
    if let Some(file) = directory.open_segment(&entry.name, Access::Read)?
        && let Some((offset, length)) =
            read_seal(&file, &entry.place())?.and_then(|seal| seal.footer)
        && let Some(found) = read(&file, offset, length)?
    {
        return Ok(Some(found));
    }
    match directory.open_file(&entry.name.footer(), Access::Read)? {
        Some(file) => {
            let length = u32::try_from(file.len()?).unwrap_or(u32::MAX);
            read(&file, 0, length)
        }
        None => Ok(None),
    }
}

pub(crate) fn read(
    file: &OpenFile,
    place: &Place,
    offset: u64,
    length: u32,
) -> Result<Option<Footer>, DiskError> {
    // The length is checked against the file before anything is allocated by it.
    if length > MAX_LEN || offset.saturating_add(u64::from(length)) > file.len()? {
        return Ok(None);
    }
    let mut bytes = vec![0; length as usize];
    file.read_full(&mut bytes, offset)?;
    Ok(Footer::decode(&bytes, place))
}

#[cfg(test)]
mod tests {
    use super::super::frame::LogId;
    use super::*;

    #[test]
    fn a_footer_reads_back_and_every_flip_and_cut_is_seen() {
        let place = Place {
            log: LogId([2; 16]),
            segment: 4,
        };
        let mut footer = Footer::new(Lsn::new(10));
        footer.last = Lsn::new(12);
        footer.sessions.insert(
            SessionId::from_bytes([1; 16]),
            SessionRange {
                first_seq: Seq::new(9),
                last_seq: Seq::new(10),
                first: Lsn::new(11),
                last: Lsn::new(12),
                previous: Lsn::ZERO,
            },
        );
        footer.index.push((Lsn::new(11), 16384));
        footer.carry = vec![5; 7];
        let bytes = footer.encode(&place);
        assert_eq!(Footer::decode(&bytes, &place), Some(footer));
        for byte in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[byte] ^= 2;
            assert_eq!(Footer::decode(&bad, &place), None, "byte {byte}");
            assert_eq!(Footer::decode(&bytes[..byte], &place), None);
        }
    }
}
