//! One session in a journal that many share: where it stands, what it has come to, and its records,
//! found without reading those of the others. Its newest segment is looked for in the footers; from
//! there each part names the record before its first, so segments without a record of the session are
//! passed over.

use super::directory::{Directory, OpenFile};
use super::error::{DiskError, ReadError};
use super::footer::{Footer, SessionRange};
use super::manifest::End;
use super::names::SegmentName;
use super::parts::{Heads, Part, load_part};
use super::reader::held;
use super::rot::RotCell;
use super::scan::{Window, scan};
use super::segment::FRAMES;
use super::session_reader::SessionReader;
use super::spans::{Share, Span, Spans};
use super::tails::Tail;
use super::{Lsn, Seq};
use crate::identity::SessionId;
use crate::vfs::Access;

/// Rows of heads that one who looks for one session keeps.
const FEW: usize = 1 << 14;

/// What there is of one session, as of the moment when it was made.
#[derive(Debug, Clone)]
pub(crate) struct SessionLog {
    pub(super) directory: Directory,
    pub(super) session: SessionId,
    pub(super) spans: Vec<Span>,
    /// What the active segment has of it; `None` if no segment is known to be the active one.
    active: Option<Option<Share>>,
    heads: Heads,
    /// Files that are held open: a new owner may have replaced them since.
    pub(super) pinned: Vec<(SegmentName, OpenFile)>,
    pub(super) proven: Lsn,
    pub(super) rot: RotCell,
}

/// What a segment has of a session.
#[derive(Debug, Clone)]
pub(super) enum Held {
    Nothing,
    Share(Share),
    /// It cannot be told: the segment is damaged, and has no footer.
    Unknown,
}

impl SessionLog {
    /// Of a journal that is open for writing.
    pub(super) fn live(
        directory: Directory,
        spans: &Spans,
        heads: Heads,
        session: SessionId,
    ) -> SessionLog {
        let (spans, pinned, share) = spans.of_session(session);
        let proven = spans.last().map_or(Lsn::ZERO, |span| span.last);
        SessionLog {
            directory,
            session,
            spans,
            active: Some(share),
            heads,
            pinned,
            proven,
            rot: RotCell::default(),
        }
    }

    /// Of these segments, the last of which has the footer.
    pub(super) fn of(
        directory: Directory,
        spans: Vec<Span>,
        session: SessionId,
        active: Option<&Footer>,
    ) -> SessionLog {
        let share = |footer: &Footer| {
            let (range, part) = footer.part(session)?;
            Some((range, part.clone()))
        };
        SessionLog {
            directory,
            session,
            proven: spans.last().map_or(Lsn::ZERO, |span| span.last),
            spans,
            active: active.map(share),
            heads: Heads::new(FEW),
            pinned: Vec::new(),
            rot: RotCell::default(),
        }
    }

    /// With heads of footers that are kept for others too.
    pub(super) fn heads(self, heads: Heads) -> SessionLog {
        SessionLog { heads, ..self }
    }

    /// With files that are held open.
    pub(super) fn pinned(self, pinned: Vec<(SegmentName, OpenFile)>) -> SessionLog {
        SessionLog { pinned, ..self }
    }

    /// Records up to this Lsn are proven durable.
    pub(super) fn proven(self, proven: Lsn) -> SessionLog {
        SessionLog { proven, ..self }
    }

    /// Damage is noted there.
    pub(super) fn noting(self, rot: RotCell) -> SessionLog {
        SessionLog { rot, ..self }
    }

    /// Its last record; zero if it has none.
    pub(crate) fn tail(&self) -> Result<Tail, ReadError> {
        match self.back().next() {
            None => Ok(Tail::default()),
            Some(Ok((_, Held::Share((range, _))))) => Ok(Tail {
                seq: range.last_seq,
                lsn: range.last,
            }),
            Some(Ok((at, _))) => Err(self.damaged(at)),
            Some(Err(error)) => Err(error),
        }
    }

    /// Whether it certainly has no record.
    pub(crate) fn is_absent(&self) -> bool {
        self.back().next().is_none()
    }

    /// The newest state in a footer that is accepted; it speaks of the session up to this Seq. One that
    /// cannot be read is passed over: that costs reading more, and says nothing about the records (P6).
    pub(crate) fn newest_state<T>(
        &self,
        accept: impl Fn(&[u8], Seq) -> Option<T>,
    ) -> Option<(Seq, T)> {
        self.back().map_while(Result::ok).find_map(|(_, held)| {
            let Held::Share((range, part)) = held else {
                return None;
            };
            let state = (!part.state.is_empty()).then_some(&*part.state)?;
            Some((range.last_seq, accept(state, range.last_seq)?))
        })
    }

    /// All states in footers, oldest first, each with the last record of which it speaks.
    pub(crate) fn states(&self) -> Result<Vec<(Lsn, Vec<u8>)>, DiskError> {
        let mut states = Vec::new();
        for held in self.back() {
            match held {
                Ok((_, Held::Share((range, part)))) if !part.state.is_empty() => {
                    states.push((range.last, part.state));
                }
                Ok(_) => {}
                Err(ReadError::Disk(error)) => return Err(error),
                Err(error) => self.rot.note(&error),
            }
        }
        states.reverse();
        Ok(states)
    }

    /// The Seq of its first record in the last segment that has one: reading from here reads the tail only.
    pub(crate) fn last_part(&self) -> Seq {
        match self.back().next() {
            Some(Ok((_, Held::Share((range, _))))) => range.first_seq,
            _ => Seq::new(1),
        }
    }

    /// Its records from a Seq on.
    pub(crate) fn read(&self, from: Seq) -> SessionReader {
        SessionReader::new(self.clone(), from)
    }

    /// Its records in the last segment that has one with a Seq below `before`: reading backwards. Those
    /// from `before` on may be among them.
    pub(crate) fn segment_before(&self, before: Seq) -> Result<Option<SessionReader>, ReadError> {
        for held in self.back() {
            let (at, held) = held?;
            let below = match held {
                Held::Share((range, _)) => range.first_seq < before,
                Held::Nothing => false,
                Held::Unknown => true,
            };
            if below {
                return Ok(Some(SessionReader::of(self.clone(), at)));
            }
        }
        Ok(None)
    }

    /// The segments with records of the session, the newest first.
    pub(super) fn back(&self) -> Back<'_> {
        Back {
            log: self,
            next: self.spans.len().checked_sub(1),
        }
    }

    pub(super) fn held(&self, at: usize) -> Result<Held, ReadError> {
        let Some(span) = self.spans.get(at) else {
            return Ok(Held::Nothing);
        };
        if let Some(share) = self.active.as_ref().filter(|_| at + 1 == self.spans.len()) {
            return Ok(share.clone().map_or(Held::Nothing, Held::Share));
        }
        if span.last == span.base {
            return Ok(Held::Nothing);
        }
        let end = End {
            offset: span.end,
            last: span.last,
        };
        let segment = (&span.entry, end, span.base);
        let known = load_part(&self.directory, &self.heads, segment, self.session);
        match known.map_err(ReadError::Disk)? {
            Some(Some(share)) => Ok(Held::Share(share)),
            Some(None) => Ok(Held::Nothing),
            None => self.rebuilt(span, end),
        }
    }

    /// The same by reading the segment, whose footer is bad or missing.
    fn rebuilt(&self, span: &Span, end: End) -> Result<Held, ReadError> {
        let Some(file) = self.open(&span.entry.name)? else {
            return Ok(Held::Unknown);
        };
        let place = span.entry.place();
        let scanned = scan(
            &mut Window::new(file),
            &place,
            FRAMES,
            span.base,
            end.offset,
        )
        .map_err(ReadError::Disk)?;
        if scanned.position != end.offset || scanned.expected != end.last.next() {
            return Ok(Held::Unknown);
        }
        let footer = Footer::of(span.base, &scanned.frames, true);
        let share = footer.part(self.session);
        Ok(
            share.map_or(Held::Nothing, |(range, part): (SessionRange, &Part)| {
                Held::Share((range, part.clone()))
            }),
        )
    }

    /// The file of a segment; `None` if it is absent.
    pub(super) fn open(&self, name: &SegmentName) -> Result<Option<OpenFile>, ReadError> {
        match held(&self.pinned, name) {
            Some(file) => Ok(Some(file)),
            None => self
                .directory
                .open_segment(name, Access::Read)
                .map_err(ReadError::Disk),
        }
    }

    /// A whole segment of which it cannot be told what it holds.
    fn damaged(&self, at: usize) -> ReadError {
        let span = self.spans.get(at);
        let name = span.map(|span| span.entry.name.to_string());
        let error = ReadError::Damaged {
            path: self.directory.file_path(&name.unwrap_or_default()),
            offset: FRAMES,
            first: span.map_or(Lsn::ZERO, |span| span.base.next()),
            last: span.map_or(Lsn::ZERO, |span| span.last),
        };
        self.rot.note(&error);
        error
    }
}

/// See [`SessionLog::back`]. A segment of which it cannot be told whether it has some is among them.
pub(super) struct Back<'a> {
    log: &'a SessionLog,
    next: Option<usize>,
}

impl Iterator for Back<'_> {
    type Item = Result<(usize, Held), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.next?;
            let before = at.checked_sub(1);
            let held = match self.log.held(at) {
                Ok(held) => held,
                Err(error) => {
                    self.next = None;
                    return Some(Err(error));
                }
            };
            self.next = match &held {
                Held::Share((range, _)) if range.previous == Lsn::ZERO => None,
                Held::Share((range, _)) => {
                    let spans = self.log.spans.iter().take(at);
                    // Where that segment is gone, all before it are looked at.
                    let named = { spans }.rposition(|span| span.base < range.previous);
                    named.or(before)
                }
                Held::Nothing | Held::Unknown => before,
            };
            if !matches!(held, Held::Nothing) {
                return Some(Ok((at, held)));
            }
        }
    }
}
