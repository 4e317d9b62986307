//! A place in a segment, from which frames are taken one after the other while the file grows.

use crate::journal::directory::OpenFile;
use crate::journal::error::{DiskError, ReadError};
use crate::journal::frame::{self, ALIGN, HEADER, Header};
use crate::journal::manifest::SegmentEntry;
use crate::journal::segment::FRAMES;
use crate::journal::{Entry, FrameKind, Lsn, Position};

/// Bytes that are read at once at first: a look at what is new costs no more.
const LEAST: usize = 4 * 1024;
/// Bytes that are read at once in the long run.
const MOST: usize = 256 * 1024;

#[derive(Debug, Clone)]
pub(super) struct Cursor {
    pub(super) entry: SegmentEntry,
    pub(super) file: OpenFile,
    /// Where the next frame is expected, and its Lsn.
    pub(super) offset: u64,
    pub(super) expected: Lsn,
    /// No frame stands behind this.
    pub(super) limit: u64,
    /// That of the last frame; none has a lower one.
    epoch: u64,
    /// Bytes of the file from `start` on.
    buffer: Vec<u8>,
    start: u64,
    /// How much is read at once.
    ahead: usize,
}

impl Cursor {
    /// At the first frame of a segment; `base` is the last Lsn before it.
    pub(super) fn begin(entry: SegmentEntry, file: OpenFile, base: Lsn, limit: u64) -> Cursor {
        Cursor {
            entry,
            file,
            offset: FRAMES,
            expected: base.next(),
            limit,
            epoch: 0,
            buffer: Vec::new(),
            start: 0,
            ahead: LEAST,
        }
    }

    /// Forgets what was read: the file may have grown since.
    pub(super) fn refresh(&mut self) {
        self.buffer.clear();
        self.ahead = LEAST;
    }

    /// Goes where another one of the same file is.
    pub(super) fn follow(&mut self, other: &Cursor) {
        self.offset = other.offset;
        self.expected = other.expected;
        self.epoch = other.epoch;
    }

    /// The bytes at an offset, fewer where the file or the limit ends.
    fn bytes(&mut self, offset: u64, length: usize) -> Result<&[u8], DiskError> {
        let held = self.start.saturating_add(self.buffer.len() as u64);
        if offset < self.start || offset.saturating_add(length as u64) > held {
            let mut want = self.limit.saturating_sub(offset);
            if length > MOST {
                // A wild length costs no more than the file is long.
                want = want.min(self.file.len()?.saturating_sub(offset));
            }
            let want = usize::try_from(want).unwrap_or(usize::MAX);
            let want = want.min(length.max(self.ahead));
            self.ahead = (self.ahead * 4).min(MOST);
            self.start = offset;
            self.buffer.resize(want, 0);
            match self.file.read_full(&mut self.buffer, offset) {
                Ok(filled) => self.buffer.truncate(filled),
                Err(error) => {
                    self.buffer.clear();
                    return Err(error);
                }
            }
            self.buffer.shrink_to(MOST.max(want));
        }
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let rest = self.buffer.get(from..).unwrap_or_default();
        Ok(rest.get(..length).unwrap_or(rest))
    }

    /// The header that stands here, if it was written for this place and continues the segment.
    pub(super) fn peek(&mut self) -> Result<Option<Header>, DiskError> {
        let (place, offset) = (self.entry.place(), self.offset);
        let head = self.bytes(offset, HEADER as usize)?;
        let header = frame::decode_header(head, &place, offset);
        Ok(header.filter(|header| {
            header.lsn == self.expected
                && header.epoch >= self.epoch
                && offset.saturating_add(header.frame_len()) <= self.limit
        }))
    }

    /// The payload of the frame that stands here, if it is intact.
    pub(super) fn payload(&mut self, header: &Header) -> Result<Option<Vec<u8>>, DiskError> {
        let length = usize::try_from(header.frame_len() - HEADER).unwrap_or(usize::MAX);
        let rest = self.bytes(self.offset.saturating_add(HEADER), length)?;
        let intact = frame::payload_is_intact(header, rest);
        let payload = rest.get(..header.payload_len as usize);
        Ok(payload.filter(|_| intact).map(<[u8]>::to_vec))
    }

    /// Goes on behind the frame that stands here.
    pub(super) fn pass(&mut self, header: &Header) {
        self.offset = self.offset.saturating_add(header.frame_len());
        self.expected = header.next_lsn();
        self.epoch = header.epoch;
    }

    /// Whether what was read from here on holds anything but zeros.
    pub(super) fn something_stands_here(&self) -> bool {
        let from = self.offset.checked_sub(self.start);
        let from = from.and_then(|from| usize::try_from(from).ok());
        let rest = from.and_then(|from| self.buffer.get(from..));
        rest.unwrap_or_default().iter().any(|byte| *byte != 0)
    }

    /// The claim of a header that was written for its place further on, which shows that what is
    /// missing here was durable (`docs/guarantees.md` 2). Reads the rest of the segment.
    pub(super) fn claim_beyond(&mut self, epoch: u64) -> Result<Option<Lsn>, DiskError> {
        let (place, start) = (self.entry.place(), self.offset);
        let mut offset = start.saturating_add(ALIGN);
        while offset.saturating_add(HEADER) <= self.limit {
            let head = self.bytes(offset, HEADER as usize)?;
            if head.len() < HEADER as usize {
                break;
            }
            if let Some(header) = frame::decode_header(head, &place, offset) {
                let most = self
                    .expected
                    .get()
                    .saturating_add((offset - start) / HEADER);
                if header.epoch <= epoch
                    && (self.expected.get()..=most).contains(&header.lsn.get())
                    && (self.expected..header.lsn).contains(&header.watermark)
                {
                    return Ok(Some(header.watermark));
                }
            }
            offset += ALIGN;
        }
        Ok(None)
    }

    /// What a frame that stands here means to a reader: nothing if it is one of a later version that
    /// may be passed over.
    pub(super) fn entry(
        &self,
        header: &Header,
        payload: Vec<u8>,
    ) -> Result<Option<Entry>, ReadError> {
        match header.kind {
            FrameKind::Erased | FrameKind::Lost => Err(ReadError::Gap {
                first: header.lsn,
                last: Lsn::new(header.next_lsn().get() - 1),
                kind: header.kind,
            }),
            FrameKind::Unknown(_) if header.flags & 1 == 1 => Ok(None),
            FrameKind::Unknown(kind) => Err(ReadError::UnknownFrame {
                lsn: header.lsn,
                kind,
            }),
            FrameKind::Record | FrameKind::Fence => Ok(Some(Entry {
                lsn: header.lsn,
                seq: header.seq,
                session: self.entry.session_of(header.session),
                previous: header.previous,
                kind: header.kind,
                epoch: header.epoch,
                batch: (header.batch_index, header.batch_count),
                position: Position {
                    segment: self.entry.name,
                    offset: self.offset,
                },
                proven: true,
                payload,
            })),
        }
    }

    /// The damage that begins here and takes the records up to an Lsn.
    pub(super) fn damage(&self, last: Lsn) -> ReadError {
        ReadError::Damaged {
            path: self.file.path.clone(),
            offset: self.offset,
            first: self.expected,
            last: last.max(self.expected),
        }
    }
}
