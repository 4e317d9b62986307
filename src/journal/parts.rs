//! The footer of a segment of a journal that many sessions share (`docs/format.md` section 4): of each
//! session where its records stand and what it has come to. Each part has a checksum of its own, so
//! that what one session has is found without reading the parts of the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};

use super::bytes::{patch_u32, put_u32, put_u64, take_array, take_u32, take_u64};
use super::directory::{Directory, OpenFile};
use super::error::DiskError;
use super::footer::{Footer, HEAD_LEN, INDEX_LEN, MAGIC, MAX_LEN, SessionRange, find};
use super::frame::Place;
use super::manifest::{End, SegmentEntry};
use super::names::SegmentName;
use super::{Lsn, Seq};
use crate::identity::SessionId;
use crate::sync::{Mutex, MutexGuard};
use crate::vfs::Access;

/// The version of such a footer.
pub(super) const VERSION: u32 = 2;
const ROW_LEN: usize = 72;

/// What one session has in a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Part {
    /// The offsets of its records in the file.
    pub(crate) places: Vec<u32>,
    /// Its state as of its last record here, by the layer above; empty if it was not supplied.
    pub(crate) state: Vec<u8>,
}

/// By session.
pub(crate) type Parts = BTreeMap<SessionId, Part>;

impl Part {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.places.len() * 4 + self.state.len());
        for place in &self.places {
            put_u32(&mut out, *place);
        }
        out.extend_from_slice(&self.state);
        out
    }

    fn decode(bytes: &[u8], row: &Row, place: &Place) -> Option<Part> {
        if checksum(place, &row.session, bytes) != row.crc {
            return None;
        }
        let (places, state) = bytes.split_at_checked(row.places as usize * 4)?;
        let mut at = 0;
        Some(Part {
            places: (0..row.places)
                .map(|_| take_u32(places, &mut at))
                .collect::<Option<_>>()?,
            state: state.to_vec(),
        })
    }
}

fn checksum(place: &Place, session: &SessionId, part: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&place.log.0);
    hasher.update(&place.segment.to_le_bytes());
    hasher.update(session.as_bytes());
    hasher.update(part);
    hasher.finalize()
}

/// Where the part of a session stands.
#[derive(Debug)]
struct Row {
    session: SessionId,
    range: SessionRange,
    /// Behind the index.
    offset: u32,
    places: u32,
    state: u32,
    crc: u32,
}

impl Row {
    fn length(&self) -> usize {
        (self.places as usize)
            .saturating_mul(4)
            .saturating_add(self.state as usize)
    }
}

pub(super) fn encode(footer: &Footer, parts: &Parts, place: &Place) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    put_u32(&mut out, 0);
    put_u32(&mut out, 0);
    put_u32(&mut out, VERSION);
    put_u64(&mut out, footer.base.get());
    put_u64(&mut out, footer.last.get());
    put_u32(&mut out, footer.sessions.len() as u32);
    put_u32(&mut out, footer.index.len() as u32);
    put_u64(&mut out, 0);
    let mut bodies = Vec::new();
    for (session, range) in &footer.sessions {
        let none = Part::default();
        let part = parts.get(session).unwrap_or(&none);
        let body = part.encode();
        out.extend_from_slice(&session.to_bytes());
        put_u64(&mut out, range.first_seq.get());
        put_u64(&mut out, range.last_seq.get());
        put_u64(&mut out, range.first.get());
        put_u64(&mut out, range.last.get());
        put_u64(&mut out, range.previous.get());
        put_u32(&mut out, bodies.len() as u32);
        put_u32(&mut out, part.places.len() as u32);
        put_u32(&mut out, part.state.len() as u32);
        put_u32(&mut out, checksum(place, session, &body));
        bodies.extend_from_slice(&body);
    }
    for (lsn, offset) in &footer.index {
        put_u64(&mut out, lsn.get());
        put_u64(&mut out, *offset);
    }
    let length = out.len() + bodies.len();
    patch_u32(&mut out, 8, length as u32);
    let crc = place.seal(0, &out);
    patch_u32(&mut out, 4, crc);
    out.extend_from_slice(&bodies);
    out
}

/// The head of a footer: all but the parts.
#[derive(Debug)]
struct Head {
    base: Lsn,
    last: Lsn,
    rows: Vec<Row>,
    index: Vec<(Lsn, u64)>,
    /// Bytes of the head, and of all.
    length: usize,
    whole: usize,
    /// Where it stands: behind the seal of its segment, or, at 0, in a file of its own.
    offset: u64,
}

impl Head {
    /// How long the head is that begins with these bytes.
    fn length_of(bytes: &[u8]) -> Option<usize> {
        let sessions = take_u32(bytes, &mut 32)? as usize;
        let index = take_u32(bytes, &mut 36)? as usize;
        let version = take_u32(bytes, &mut 12)?;
        let length = HEAD_LEN
            .checked_add(sessions.checked_mul(ROW_LEN)?)?
            .checked_add(index.checked_mul(INDEX_LEN)?)?;
        (version == VERSION && bytes.get(..4)? == MAGIC).then_some(length)
    }

    fn decode(bytes: &[u8], place: &Place) -> Option<Head> {
        let length = Head::length_of(bytes)?;
        let bytes = bytes.get(..length)?;
        let mut at = 4;
        if take_u32(bytes, &mut at)? != place.seal(0, bytes) {
            return None;
        }
        let whole = take_u32(bytes, &mut at)? as usize;
        at += 4;
        let base = Lsn::new(take_u64(bytes, &mut at)?);
        let last = Lsn::new(take_u64(bytes, &mut at)?);
        let sessions = take_u32(bytes, &mut at)?;
        let entries = take_u32(bytes, &mut at)?;
        at = HEAD_LEN;
        let mut rows = Vec::with_capacity(sessions as usize);
        for _ in 0..sessions {
            let row = Row {
                session: SessionId::from_bytes(take_array(bytes, &mut at)?),
                range: SessionRange {
                    first_seq: Seq::new(take_u64(bytes, &mut at)?),
                    last_seq: Seq::new(take_u64(bytes, &mut at)?),
                    first: Lsn::new(take_u64(bytes, &mut at)?),
                    last: Lsn::new(take_u64(bytes, &mut at)?),
                    previous: Lsn::new(take_u64(bytes, &mut at)?),
                },
                offset: take_u32(bytes, &mut at)?,
                places: take_u32(bytes, &mut at)?,
                state: take_u32(bytes, &mut at)?,
                crc: take_u32(bytes, &mut at)?,
            };
            rows.push(row);
        }
        let mut index = Vec::with_capacity(entries as usize);
        for _ in 0..entries {
            let lsn = Lsn::new(take_u64(bytes, &mut at)?);
            index.push((lsn, take_u64(bytes, &mut at)?));
        }
        Some(Head {
            base,
            last,
            rows,
            index,
            length,
            whole,
            offset: 0,
        })
    }

    /// The head of a footer of so many bytes at an offset.
    fn read(
        file: &OpenFile,
        place: &Place,
        offset: u64,
        length: u32,
    ) -> Result<Option<Head>, DiskError> {
        // Lengths are checked against the file before anything is allocated by them (P14).
        if length > MAX_LEN || offset.saturating_add(u64::from(length)) > file.len()? {
            return Ok(None);
        }
        let mut bytes = vec![0; HEAD_LEN.min(length as usize)];
        file.read_full(&mut bytes, offset)?;
        let Some(head) = Head::length_of(&bytes).filter(|head| *head <= length as usize) else {
            return Ok(None);
        };
        bytes.resize(head, 0);
        file.read_full(&mut bytes, offset)?;
        let head = Head::decode(&bytes, place).filter(|head| head.whole == length as usize);
        Ok(head.map(|head| Head { offset, ..head }))
    }
}

/// Heads that were read, so that looking for one session after the other reads each once. A finished
/// segment does not change under its name, so they stay right.
#[derive(Debug, Clone)]
pub(crate) struct Heads(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    heads: HashMap<SegmentName, Arc<Head>>,
    rows: usize,
    /// Rows that are kept at most; all are dropped then.
    limit: usize,
}

impl Heads {
    /// For so many rows, of about 100 bytes each.
    pub(crate) fn new(limit: usize) -> Heads {
        Heads(Arc::new(Mutex::new(Kept {
            heads: HashMap::new(),
            rows: 0,
            limit,
        })))
    }

    /// The head of a finished segment, read if it is not kept; `None` if there is none that fits.
    fn of(
        &self,
        directory: &Directory,
        entry: &SegmentEntry,
        end: End,
        base: Lsn,
    ) -> Result<Option<Arc<Head>>, DiskError> {
        let fits = |head: &Head| head.last == end.last && head.base == base;
        let known = self.kept().heads.get(&entry.name).cloned();
        if let Some(head) = known.filter(|head| fits(head)) {
            return Ok(Some(head));
        }
        let place = entry.place();
        let found = find(directory, entry, |file, offset, length| {
            Ok(Head::read(file, &place, offset, length)?.filter(fits))
        })?;
        let Some(head) = found.map(Arc::new) else {
            return Ok(None);
        };
        let mut kept = self.kept();
        if kept.rows.saturating_add(head.rows.len()) > kept.limit {
            kept.heads.clear();
            kept.rows = 0;
        }
        kept.rows += head.rows.len();
        kept.heads.insert(entry.name, head.clone());
        Ok(Some(head))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn decode(bytes: &[u8], place: &Place) -> Option<Footer> {
    let head = Head::decode(bytes, place)?;
    if head.whole != bytes.len() {
        return None;
    }
    let bodies = bytes.get(head.length..)?;
    let mut footer = Footer::new(head.base);
    footer.last = head.last;
    footer.index = head.index;
    let mut parts = Parts::new();
    let mut used = 0;
    for row in &head.rows {
        let body = bodies.get(row.offset as usize..)?.get(..row.length())?;
        used += body.len();
        footer.sessions.insert(row.session, row.range);
        parts.insert(row.session, Part::decode(body, row, place)?);
    }
    footer.parts = Some(parts);
    (used == bodies.len()).then_some(footer)
}

/// What a session has in a finished segment, `None` if nothing; the whole is `None` if the segment has no
/// footer that says it: then it is rebuilt by reading the segment.
pub(crate) fn load_part(
    directory: &Directory,
    heads: &Heads,
    (entry, end, base): (&SegmentEntry, End, Lsn),
    session: SessionId,
) -> Result<Option<Option<(SessionRange, Part)>>, DiskError> {
    let Some(head) = heads.of(directory, entry, end, base)? else {
        return Ok(None);
    };
    let row = head.rows.binary_search_by_key(&session, |row| row.session);
    let Some(row) = row.ok().and_then(|at| head.rows.get(at)) else {
        return Ok(Some(None));
    };
    let begin = head.length.saturating_add(row.offset as usize);
    if begin.saturating_add(row.length()) > head.whole {
        return Ok(None);
    }
    let file = match head.offset {
        0 => directory.open_file(&entry.name.footer(), Access::Read)?,
        _ => directory.open_segment(&entry.name, Access::Read)?,
    };
    let Some(file) = file else { return Ok(None) };
    let mut body = vec![0; row.length()];
    file.read_full(&mut body, head.offset.saturating_add(begin as u64))?;
    let part = Part::decode(&body, row, &entry.place());
    Ok(part.map(|part| Some((row.range, part))))
}

/// The sessions that have records in a finished segment; `None` as for [`load_part`].
pub(crate) fn load_sessions(
    directory: &Directory,
    heads: &Heads,
    (entry, end, base): (&SegmentEntry, End, Lsn),
) -> Result<Option<Vec<SessionId>>, DiskError> {
    let head = heads.of(directory, entry, end, base)?;
    Ok(head.map(|head| head.rows.iter().map(|row| row.session).collect()))
}

#[cfg(test)]
mod tests {
    use super::super::frame::LogId;
    use super::*;

    #[test]
    fn a_footer_of_many_reads_back_and_every_flip_and_cut_is_seen() {
        let place = Place {
            log: LogId([2; 16]),
            segment: 4,
        };
        let mut footer = Footer::new(Lsn::new(10)).shared(true);
        footer.last = Lsn::new(15);
        footer.index.push((Lsn::new(11), 16384));
        for (id, places) in [(1, vec![16384, 16640]), (2, vec![16512])] {
            let session = SessionId::from_bytes([id; 16]);
            let range = SessionRange {
                first_seq: Seq::new(9),
                last_seq: Seq::new(8 + places.len() as u64),
                first: Lsn::new(11),
                last: Lsn::new(12),
                previous: Lsn::new(3),
            };
            footer.sessions.insert(session, range);
            let state = vec![id; 5];
            let parts = footer.parts.as_mut().unwrap();
            parts.insert(session, Part { places, state });
        }
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
