//! Reading the records of one session in a journal that many share, in their order: the bytes of the
//! others are not read, and damage to them is not met.

use super::directory::OpenFile;
use super::error::ReadError;
use super::evidence::read_static_header;
use super::footer::SessionRange;
use super::frame::HEADER;
use super::reader::{Entry, Reader, entry, payload};
use super::scan::{At, Found, Window, look};
use super::segment::HeaderFound;
use super::session_log::{Held, SessionLog};
use super::spans::{Share, Span};
use super::{FrameKind, Lsn, Seq};

/// From so many records on it is worth while to read ahead.
const DENSE: u64 = 16;

/// The records of a session. Damage yields one error that names what cannot be read, and reading goes on
/// behind it (P6). An error of the disk ends it.
#[derive(Debug)]
pub(crate) struct SessionReader {
    log: SessionLog,
    from: Seq,
    /// The segments that are still to be read, the next one last; not known before the first is asked for.
    segments: Option<Vec<usize>>,
    current: Option<Current>,
    ended: bool,
}

enum Current {
    Places(Box<Places>),
    /// A segment of which it cannot be told where the records of the session stand.
    All(Box<Reader>),
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

struct Places {
    span: Span,
    window: Window,
    range: SessionRange,
    places: std::vec::IntoIter<u32>,
    /// The record before the next.
    before: Lsn,
    bad_header: bool,
}

impl SessionReader {
    pub(super) fn new(log: SessionLog, from: Seq) -> SessionReader {
        SessionReader {
            log,
            from,
            segments: None,
            current: None,
            ended: false,
        }
    }

    /// Those in one segment.
    pub(super) fn of(log: SessionLog, segment: usize) -> SessionReader {
        SessionReader {
            segments: Some(vec![segment]),
            ..SessionReader::new(log, Seq::ZERO)
        }
    }

    /// The segments that have the records from `from` on.
    fn wanted(&self) -> Result<Vec<usize>, ReadError> {
        let mut found = Vec::new();
        for held in self.log.back() {
            let (at, held) = held?;
            found.push(at);
            if matches!(held, Held::Share((range, _)) if range.first_seq <= self.from) {
                break;
            }
        }
        Ok(found)
    }

    fn begin(&self, at: usize) -> Result<Option<Current>, ReadError> {
        let Some(span) = self.log.spans.get(at).copied() else {
            return Ok(None);
        };
        match self.log.held(at)? {
            Held::Nothing => Ok(None),
            Held::Share(share) if share.0.last_seq < self.from => Ok(None),
            Held::Share(share) => {
                let name = span.entry.name;
                let Some(file) = self.log.open(&name)? else {
                    return Err(ReadError::Damaged {
                        path: self.log.directory.file_path(&name.to_string()),
                        offset: 0,
                        first: share.0.first,
                        last: share.0.last,
                    });
                };
                let header = read_static_header(&file).map_err(ReadError::Disk)?;
                let good = matches!(header, HeaderFound::Good(header)
                    if header.name == name && header.log == span.entry.log);
                let places = Places {
                    // The frames behind a bad header are checked one by one, by their own seeds; it is
                    // reported first.
                    bad_header: !good,
                    ..Places::new(span, share, file, self.from)
                };
                Ok(Some(Current::Places(Box::new(places))))
            }
            Held::Unknown => {
                let (directory, spans) = (self.log.directory.clone(), vec![span]);
                let reader = Reader::new(directory, spans, Lsn::ZERO, self.log.proven)
                    .pinned(self.log.pinned.clone());
                Ok(Some(Current::All(Box::new(reader))))
            }
        }
    }

    fn advance(&mut self) -> Result<Option<Entry>, ReadError> {
        loop {
            let next = match &mut self.current {
                Some(Current::Places(places)) => places.take(&self.log)?,
                Some(Current::All(reader)) => Iterator::next(&mut **reader).transpose()?.map(Some),
                None => None,
            };
            match next {
                Some(Some(entry)) => {
                    let own = entry.session == self.log.session;
                    if own && entry.kind == FrameKind::Record && entry.seq >= self.from {
                        return Ok(Some(entry));
                    }
                    continue;
                }
                Some(None) => continue,
                None => self.current = None,
            }
            if self.segments.is_none() {
                self.segments = Some(self.wanted()?);
            }
            let Some(at) = self.segments.as_mut().and_then(Vec::pop) else {
                return Ok(None);
            };
            self.current = self.begin(at)?;
        }
    }
}

impl Iterator for SessionReader {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = matches!(next, Ok(None) | Err(ReadError::Disk(_)));
        if let Err(error) = &next {
            self.log.rot.note(error);
        }
        next.transpose()
    }
}

impl Places {
    fn new(span: Span, (range, part): Share, file: OpenFile, from: Seq) -> Places {
        // Where most of the records between are its own, reading ahead reads little of the others.
        let own = part.places.len() as u64;
        let among = range.last.get().saturating_sub(range.first.get()) + 1;
        let window = match own >= DENSE && own.saturating_mul(2) > among {
            true => Window::new(file),
            false => Window::for_few(file),
        };
        let mut places = part.places.into_iter();
        let mut before = range.previous;
        // One after the other, unless something is missing between them.
        let gapless = range.last_seq.get() - range.first_seq.get() + 1 == own;
        let passed = from.get().saturating_sub(range.first_seq.get());
        if let Some(last) = passed.checked_sub(1).filter(|_| gapless) {
            places.nth(usize::try_from(last).unwrap_or(usize::MAX));
            // Not known without reading it; only named in errors.
            before = range.first;
        }
        Places {
            span,
            window,
            range,
            places,
            before,
            bad_header: false,
        }
    }

    /// The next record; `Some(None)` if what stands there is not given, `None` at the end.
    fn take(&mut self, log: &SessionLog) -> Result<Option<Option<Entry>>, ReadError> {
        if std::mem::take(&mut self.bad_header) {
            return Err(ReadError::Header {
                path: log.directory.file_path(&self.span.entry.name.to_string()),
                first: self.range.first,
                last: self.range.last,
            });
        }
        let Some(offset) = self.places.next().map(u64::from) else {
            return Ok(None);
        };
        let span = self.span;
        let place = span.entry.place();
        let looked = look(&mut self.window, &place, offset, span.end).map_err(ReadError::Disk)?;
        let damaged = |first, last| ReadError::Damaged {
            path: log.directory.file_path(&span.entry.name.to_string()),
            offset,
            first,
            last,
        };
        match looked {
            At::Frame(header) if header.session == log.session => {
                self.before = header.lsn;
                let frame = Found { offset, header };
                let Some(entry) = entry(&span, &frame, Lsn::ZERO, log.proven)? else {
                    return Ok(Some(None));
                };
                let bytes = payload(&mut self.window, &entry).map_err(ReadError::Disk)?;
                Ok(Some(Some(entry.with(bytes).into_owned())))
            }
            At::DamagedPayload(header) if header.session == log.session => {
                self.before = header.lsn;
                Err(damaged(header.lsn, header.lsn))
            }
            _ => {
                // The record behind it names it.
                let next = self.places.as_slice().first().copied().map(u64::from);
                let named = match next {
                    Some(next) => self.previous_of(&place, next)?,
                    None => Some(self.range.last),
                };
                let first = named.unwrap_or(self.before.next());
                self.before = first;
                Err(damaged(first, named.unwrap_or(self.range.last)))
            }
        }
    }

    /// The record before one, as its header says.
    fn previous_of(
        &mut self,
        place: &super::frame::Place,
        offset: u64,
    ) -> Result<Option<Lsn>, ReadError> {
        let head = self.window.get(offset, HEADER as usize);
        let head = head.map_err(ReadError::Disk)?;
        let header = super::frame::decode_header(head, place, offset);
        Ok(header.map(|header| header.previous))
    }
}
