//! Reading records in the order of the journal, across segments and across damage.

use std::path::PathBuf;

use super::directory::{Directory, OpenFile};
use super::error::{DiskError, Operation, ReadError};
use super::evidence::read_static_header;
use super::frame::HEADER;
use super::names::SegmentName;
use super::rot::RotCell;
use super::scan::{At, Found, Window, look, next_header};
use super::segment::{FRAMES, HeaderFound};
use super::spans::Span;
use super::{FrameKind, Lsn, Seq};
use crate::identity::SessionId;
use crate::vfs::Access;

/// Where a frame stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The segment.
    pub segment: SegmentName,
    /// The offset of the frame in its file, in bytes.
    pub offset: u64,
}

/// One record (or fence) of a journal, with its bytes owned or borrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<P = Vec<u8>> {
    /// Its place in the journal.
    pub lsn: Lsn,
    /// Its place in the session; zero for a fence.
    pub seq: Seq,
    /// The session; nil for a fence.
    pub session: SessionId,
    /// The Lsn of the session's record before this one; zero for its first.
    pub previous: Lsn,
    /// What it is.
    pub kind: FrameKind,
    /// The opening that wrote it.
    pub epoch: u64,
    /// Its index in its batch, and the number of frames of the batch.
    pub batch: (u16, u16),
    /// Where it stands.
    pub position: Position,
    /// Whether it is proven to have been durable (at or below the watermark). On a journal that is
    /// open for writing here, always.
    pub proven: bool,
    /// The record's bytes.
    pub payload: P,
}

impl Entry<&[u8]> {
    /// With bytes of its own.
    pub fn into_owned(self) -> Entry {
        self.with(self.payload.to_vec())
    }
}

impl<P> Entry<P> {
    pub(super) fn with<Q>(&self, payload: Q) -> Entry<Q> {
        Entry {
            lsn: self.lsn,
            seq: self.seq,
            session: self.session,
            previous: self.previous,
            kind: self.kind,
            epoch: self.epoch,
            batch: self.batch,
            position: self.position,
            proven: self.proven,
            payload,
        }
    }
}

/// Reads the records of a journal from an Lsn on, up to what was there when it was made.
///
/// Damage yields one error that names what cannot be read, and reading goes on behind it (P6). An
/// error of the disk ends the reader.
pub struct Reader {
    directory: Directory,
    spans: Vec<Span>,
    /// The next span to open.
    next: usize,
    current: Option<Current>,
    /// Files that are held open: a new owner may have replaced them since.
    pinned: Vec<(SegmentName, OpenFile)>,
    /// Nothing below this is given.
    from: Lsn,
    proven: Lsn,
    ended: bool,
    /// Whether only the first record is wanted.
    one: bool,
    rot: RotCell,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("directory", &self.directory.path())
            .field("from", &self.from)
            .field("proven", &self.proven)
            .finish_non_exhaustive()
    }
}

struct Current {
    span: Span,
    window: Window,
    offset: u64,
    expected: Lsn,
}

impl Reader {
    pub(crate) fn new(directory: Directory, spans: Vec<Span>, from: Lsn, proven: Lsn) -> Reader {
        let next = spans
            .iter()
            .position(|span| span.last >= from)
            .unwrap_or(spans.len());
        Reader {
            directory,
            spans,
            next,
            current: None,
            pinned: Vec::new(),
            from,
            proven,
            ended: false,
            one: false,
            rot: RotCell::default(),
        }
    }

    /// Damage is noted there.
    pub(crate) fn noting(self, rot: RotCell) -> Reader {
        Reader { rot, ..self }
    }

    /// The first Seq that it can give, reading little at once. Damage before it is named by who reads
    /// on.
    pub(crate) fn first_seq(self) -> Result<Option<Seq>, ReadError> {
        let mut reader = Reader { one: true, ..self };
        while let Some(entry) = reader.advance() {
            match entry {
                Ok(entry) if entry.kind == FrameKind::Record => return Ok(Some(entry.seq)),
                Err(error @ ReadError::Disk(_)) => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }

    /// With files that are held open.
    pub(crate) fn pinned(self, pinned: Vec<(SegmentName, OpenFile)>) -> Reader {
        Reader { pinned, ..self }
    }

    /// Opens the next span. A segment that is absent or has a bad header is one error for its whole
    /// range (rows 5 and 6).
    fn open_next(&mut self) -> Option<Result<(), ReadError>> {
        let span = *self.spans.get(self.next)?;
        self.next += 1;
        let name = span.entry.name;
        let whole = |offset| ReadError::Damaged {
            path: self.directory.file_path(&name.to_string()),
            offset,
            first: span.base.next(),
            last: span.last,
        };
        let pinned = held(&self.pinned, &name);
        let opened = match pinned.map_or_else(
            || self.directory.open_segment(&name, Access::Read),
            |file| Ok(Some(file)),
        ) {
            Ok(Some(file)) => file,
            Ok(None) => return Some(Err(whole(0))),
            Err(error) => return Some(self.disk(error)),
        };
        match read_static_header(&opened) {
            Ok(HeaderFound::Good(header))
                if header.name == name && header.log == span.entry.log => {}
            // The frames behind a bad header are still checked one by one, by their own seeds; the
            // header is reported first.
            Ok(_) => {
                self.begin(span, opened);
                return Some(Err(ReadError::Header {
                    path: self.directory.file_path(&name.to_string()),
                    first: span.base.next(),
                    last: span.last,
                }));
            }
            Err(error) => return Some(self.disk(error)),
        }
        self.begin(span, opened);
        Some(Ok(()))
    }

    fn begin(&mut self, span: Span, file: OpenFile) {
        let window = match self.one {
            true => Window::for_one(file),
            false => Window::new(file),
        };
        self.current = Some(Current {
            span,
            window,
            offset: FRAMES,
            expected: span.base.next(),
        });
    }

    fn disk<T>(&mut self, error: DiskError) -> Result<T, ReadError> {
        self.ended = true;
        Err(ReadError::Disk(error))
    }

    /// The next frame of the current span; `None` at its end. Of a record that is given, the
    /// length instead of its bytes.
    fn step(&mut self) -> Option<Result<Option<Entry<u32>>, ReadError>> {
        let current = self.current.as_mut()?;
        let span = current.span;
        let place = span.entry.place();
        let path = || self.directory.file_path(&span.entry.name.to_string());
        if current.offset >= span.end {
            let expected = current.expected;
            self.current = None;
            // The range that the end names must be there, neither less nor more (row 6).
            return (expected != span.last.next()).then(|| {
                Err(ReadError::Damaged {
                    path: path(),
                    offset: span.end,
                    first: expected.min(span.last),
                    last: span.last,
                })
            });
        }
        let offset = current.offset;
        let first = current.expected;
        match look(&mut current.window, &place, offset, span.end) {
            Err(error) => Some(self.disk(error)),
            Ok(At::Frame(header)) if header.lsn == first => {
                current.offset += header.frame_len();
                current.expected = header.next_lsn();
                let frame = Found { offset, header };
                Some(entry(&span, &frame, self.from, self.proven))
            }
            Ok(At::DamagedPayload(header))
                if header.lsn == first && offset + header.frame_len() <= span.end =>
            {
                current.offset += header.frame_len();
                current.expected = header.next_lsn();
                Some(Err(ReadError::Damaged {
                    path: path(),
                    offset,
                    first,
                    last: Lsn::new(header.next_lsn().get() - 1),
                }))
            }
            Ok(_) => {
                let from = offset + super::frame::ALIGN;
                let (name, least) = (&span.entry.name, first.next());
                match next_header(&mut current.window, name, &place, from, least, span.end) {
                    Err(error) => Some(self.disk(error)),
                    Ok(found) => {
                        let last = match found {
                            Some(found) => {
                                current.offset = found.offset;
                                current.expected = found.header.lsn;
                                Lsn::new(found.header.lsn.get() - 1)
                            }
                            None => {
                                self.current = None;
                                span.last
                            }
                        };
                        Some(Err(ReadError::Damaged {
                            path: path(),
                            offset,
                            first,
                            last,
                        }))
                    }
                }
            }
        }
    }

    /// The next record to be given, with the length instead of its bytes.
    fn advance(&mut self) -> Option<Result<Entry<u32>, ReadError>> {
        let advanced = self.pass();
        if let Some(Err(error)) = &advanced {
            self.rot.note(error);
        }
        advanced
    }

    fn pass(&mut self) -> Option<Result<Entry<u32>, ReadError>> {
        while !self.ended {
            if self.current.is_none() {
                match self.open_next()? {
                    Ok(()) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.step() {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(entry))) => return Some(Ok(entry)),
                Some(Err(error)) => return Some(Err(error)),
            }
        }
        None
    }

    /// The next record, with its bytes borrowed: the fastest way to read. As an [`Iterator`] the
    /// reader gives each its own bytes.
    pub fn read_next(&mut self) -> Option<Result<Entry<&[u8]>, ReadError>> {
        let entry = match self.advance()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        let current = self.current.as_mut()?;
        let read = payload(&mut current.window, &entry).map_err(ReadError::Disk);
        Some(read.map(|payload| entry.with(payload)))
    }
}

impl Iterator for Reader {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.read_next()?.map(Entry::into_owned))
    }
}

/// A record, with the length instead of its bytes; `None` if it is not given.
pub(super) fn entry(
    span: &Span,
    frame: &Found,
    from: Lsn,
    proven: Lsn,
) -> Result<Option<Entry<u32>>, ReadError> {
    let header = &frame.header;
    if header.lsn < from {
        return Ok(None);
    }
    match header.kind {
        FrameKind::Erased | FrameKind::Lost => {
            return Err(ReadError::Gap {
                first: header.lsn,
                last: Lsn::new(header.next_lsn().get() - 1),
                kind: header.kind,
            });
        }
        FrameKind::Unknown(_) if header.flags & 1 == 1 => return Ok(None),
        FrameKind::Unknown(kind) => {
            return Err(ReadError::UnknownFrame {
                lsn: header.lsn,
                kind,
            });
        }
        FrameKind::Record | FrameKind::Fence => {}
    }
    Ok(Some(Entry {
        lsn: header.lsn,
        seq: header.seq,
        session: span.entry.session_of(header.session),
        previous: header.previous,
        kind: header.kind,
        epoch: header.epoch,
        batch: (header.batch_index, header.batch_count),
        position: Position {
            segment: span.entry.name,
            offset: frame.offset,
        },
        proven: header.lsn <= proven,
        payload: header.payload_len,
    }))
}

/// The bytes of a record whose frame was looked at a moment ago.
pub(super) fn payload<'a>(
    window: &'a mut Window,
    entry: &Entry<u32>,
) -> Result<&'a [u8], DiskError> {
    window.get(entry.position.offset + HEADER, entry.payload as usize)
}

/// The file of a segment, if it is held open.
pub(super) fn held(pinned: &[(SegmentName, OpenFile)], name: &SegmentName) -> Option<OpenFile> {
    let found = pinned.iter().find(|(held, _)| held == name);
    found.map(|(_, file)| file.clone())
}

/// Reads the one record that stands at a position; `None` if the journal has no such place.
pub(crate) fn read_at(
    directory: &Directory,
    spans: &[Span],
    pinned: &[(SegmentName, OpenFile)],
    position: &Position,
    proven: Lsn,
) -> Result<Option<Entry>, ReadError> {
    let Some(span) = spans
        .iter()
        .find(|span| span.entry.name == position.segment && position.offset < span.end)
    else {
        return Ok(None);
    };
    let path: PathBuf = directory.file_path(&position.segment.to_string());
    let file = held(pinned, &position.segment)
        .map_or_else(
            || directory.open_segment(&position.segment, Access::Read),
            |file| Ok(Some(file)),
        )
        .map_err(ReadError::Disk)?
        .ok_or_else(|| {
            let absent = std::io::ErrorKind::NotFound.into();
            ReadError::Disk(DiskError::new(Operation::Open, &path, &absent))
        })?;
    let mut window = Window::for_one(file);
    let place = span.entry.place();
    match look(&mut window, &place, position.offset, span.end).map_err(ReadError::Disk)? {
        At::Frame(header) => {
            let frame = Found {
                offset: position.offset,
                header,
            };
            let Some(entry) = entry(span, &frame, Lsn::ZERO, proven)? else {
                return Ok(None);
            };
            let payload = payload(&mut window, &entry).map_err(ReadError::Disk)?;
            Ok(Some(entry.with(payload).into_owned()))
        }
        At::DamagedPayload(header) => Err(ReadError::Damaged {
            path,
            offset: position.offset,
            first: header.lsn,
            last: header.lsn,
        }),
        // A place that was given out holds a record: nothing there is damage.
        At::Nothing => Err(ReadError::Damaged {
            path,
            offset: position.offset,
            first: span.base.next(),
            last: span.last,
        }),
    }
}
