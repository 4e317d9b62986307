//! Forking: a new journal begins with the files of another one, up to one of its records.
//!
//! The child has further names (hard links) of the parent's segments, and its manifest ends them at the
//! record, under the log and the session that wrote them. It begins a fresh file of its own, so a fork
//! writes as much for one segment as for a hundred, but for the 80 bytes that the manifest has for each.
//! Neither refers to the other: names are removed, bytes are never changed. The parent may go on writing
//! behind the record into a file that the child has too: the end in the manifest decides (W6), and what
//! stands behind it is not the child's.
//!
//! Nothing of the parent is locked, written or synced (W11): what is proven of it was synced by its own
//! writer (W1, W12).

mod make;

use std::path::PathBuf;

use super::carried::{self, Carried};
use super::directory::{Directory, OpenFile};
use super::error::{Damage, OpenError, ReadError};
use super::evidence::absent;
use super::footer::Footer;
use super::manifest::{End, ManifestFound};
use super::names::SegmentName;
use super::reader::Reader;
use super::scan::{Found, Window, scan};
use super::segment::FRAMES;
use super::spans::Span;
use super::tails::{self, Tail};
use super::{FrameKind, Journal, JournalView, Lsn, Owner, Seq};
use crate::identity::SessionId;
use crate::vfs::Access;

/// Why a journal was not forked. The parent is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The caller named a record that is not there, or not proven durable. Of a journal whose writer
    /// runs in another process the last group is proven a moment later; of one whose process was killed,
    /// when it was opened for writing.
    #[error(
        "the record {at} is not there, or not proven durable; the last one that is, is {proven}"
    )]
    NotProven {
        /// The record.
        at: Seq,
        /// The last that is proven.
        proven: Seq,
    },
    /// The caller named a record within a batch, which is there whole or not at all (P3).
    #[error("the record {at} is not the last of its batch; the record {last} is")]
    WithinBatch {
        /// The record.
        at: Seq,
        /// The last record of its batch.
        last: Seq,
    },
    /// Nothing of the parent is proven durable.
    #[error("{} has no record that is proven durable", path.display())]
    Empty {
        /// Its directory.
        path: PathBuf,
    },
    /// Many sessions share the parent.
    #[error("{} is shared by many sessions", path.display())]
    Shared {
        /// Its directory.
        path: PathBuf,
    },
    /// The parent is damaged, and what its files mean is not certain. Repair it, and fork the copy.
    #[error("{} is damaged: {damage}; repair it and fork the copy", path.display())]
    Damaged {
        /// Its directory.
        path: PathBuf,
        /// How.
        damage: Damage,
    },
    /// The segment that holds the record cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file of the parent was replaced meanwhile. Try again.
    #[error("{} was replaced meanwhile; try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The child could not be made.
    #[error(transparent)]
    Make(#[from] OpenError),
}

/// A record of a journal of one session at which it can be forked: the last of its batch, and proven
/// durable. What comes behind it changes nothing here.
#[derive(Debug, Clone)]
pub struct ForkPoint {
    directory: Directory,
    session: SessionId,
    max_payload: u32,
    /// The segments up to the record, the last one ended there.
    spans: Vec<Span>,
    pinned: Vec<(SegmentName, OpenFile)>,
    /// The last record of the session.
    tail: Tail,
    /// What the last segment holds up to the record.
    footer: Footer,
}

/// A journal that is to be forked.
struct Source {
    directory: Directory,
    session: SessionId,
    max_payload: u32,
    spans: Vec<Span>,
    pinned: Vec<(SegmentName, OpenFile)>,
    proven: Lsn,
}

impl Journal {
    /// The place behind the record `at` of its session, inclusive; without one, behind the last that is
    /// durable. Reads one segment at most, and a few bytes of some others to find it; commits go on.
    ///
    /// # Errors
    /// [`ForkError`].
    pub fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        let manifest = self.core.preparer.right.manifest();
        let spans = self.spans.snapshot();
        let source = Source {
            session: match manifest.shared {
                true => SessionId::nil(),
                false => manifest.owner,
            },
            max_payload: manifest.max_payload,
            proven: spans.last().map_or(Lsn::ZERO, |span| span.last),
            spans,
            pinned: self.spans.pinned(),
            directory: self.directory.clone(),
        };
        source.point(at)
    }
}

impl JournalView {
    /// The same for a journal that is not open, or that another process writes to: up to what is proven.
    ///
    /// # Errors
    /// [`ForkError`].
    pub fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        let (directory, spans) = self.parts();
        if let Some(damage) = self.damage() {
            return Err(ForkError::Damaged {
                path: directory.path().to_owned(),
                damage: damage.clone(),
            });
        }
        let manifest = directory.highest_manifest().map_err(OpenError::Disk)?;
        let Some((_, ManifestFound::Good(manifest))) = manifest else {
            return Err(ForkError::Changed {
                path: directory.path().to_owned(),
            });
        };
        let source = Source {
            session: match self.owner() {
                Owner::Session(session) => session,
                Owner::Shared => SessionId::nil(),
            },
            max_payload: manifest.max_payload,
            spans: spans.to_vec(),
            pinned: self.pinned().to_vec(),
            proven: self.report().watermark,
            directory: directory.clone(),
        };
        source.point(at)
    }
}

impl Source {
    fn point(mut self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        let path = || self.directory.path().to_owned();
        if self.session.is_nil() {
            return Err(ForkError::Shared { path: path() });
        }
        let index = match at {
            Some(at) => self.segment_of(at)?,
            None => (self.spans.iter()).position(|span| span.last >= self.proven),
        };
        let Some((index, span)) = index.and_then(|index| Some((index, *self.spans.get(index)?)))
        else {
            return Err(match at {
                Some(at) => self.not_proven(at)?,
                None => ForkError::Empty { path: path() },
            });
        };
        let frames = self.frames(&span)?;
        let last = match at {
            Some(at) => self.find(at, &frames)?,
            // Claims end batches, since they end groups (W1, W2).
            None => frames
                .iter()
                .rposition(|frame| frame.header.lsn <= self.proven),
        };
        let kept = last
            .and_then(|last| frames.get(..=last))
            .unwrap_or_default();
        let Some(last) = kept.last().filter(|last| last.header.ends_batch()) else {
            return Err(ForkError::Empty { path: path() });
        };
        let end = End {
            offset: last.end(),
            last: Lsn::new(last.header.next_lsn().get().saturating_sub(1)),
        };
        self.spans.truncate(index);
        self.spans.push(Span {
            end: end.offset,
            last: end.last,
            ..span
        });
        self.end(Footer::of(span.base, kept, false))
    }

    fn end(self, footer: Footer) -> Result<ForkPoint, ForkError> {
        let mut spans = self.spans;
        for span in &mut spans {
            span.entry.end = Some(End {
                offset: span.end,
                last: span.last,
            });
        }
        // Of the last segment the footer is known; those of the others are asked only if it has no record.
        let tail = match footer.sessions.values().max_by_key(|range| range.last) {
            Some(range) => Tail {
                seq: range.last_seq,
                lsn: range.last,
            },
            None => {
                let all = tails::load(&self.directory, &spans, &[], Some(self.session))?;
                all.get(&self.session).copied().unwrap_or_default()
            }
        };
        Ok(ForkPoint {
            directory: self.directory,
            session: self.session,
            max_payload: self.max_payload,
            spans,
            pinned: self.pinned,
            tail,
            footer,
        })
    }

    /// The segment that holds a record, if there is one so far.
    fn segment_of(&self, at: Seq) -> Result<Option<usize>, ReadError> {
        let first = |span: &Span| self.read(span).first_seq();
        let found = carried::segment_before(&self.spans, at.next(), first)?;
        let holds = |found: Span| {
            self.spans
                .iter()
                .position(|span| span.entry.name == found.entry.name)
        };
        Ok(found.and_then(holds))
    }

    fn read(&self, span: &Span) -> Reader {
        Reader::new(self.directory.clone(), vec![*span], Lsn::ZERO, self.proven)
            .pinned(self.pinned.clone())
    }

    /// The frames of a segment, all of which must be whole: the fork is made of them.
    fn frames(&self, span: &Span) -> Result<Vec<Found>, ForkError> {
        let file = open(&self.directory, &self.pinned, &span.entry.name)?;
        let path = file.path.clone();
        let mut window = Window::new(file);
        let found = scan(
            &mut window,
            &span.entry.place(),
            FRAMES,
            span.base,
            span.end,
        );
        let found = found.map_err(ReadError::Disk)?;
        let proven = span.last.min(self.proven);
        if found.expected > proven {
            return Ok(found.frames);
        }
        Err(ForkError::Read(ReadError::Damaged {
            path,
            offset: found.position,
            first: found.expected,
            last: proven,
        }))
    }

    /// The place of a record among the frames of its segment.
    fn find(&self, at: Seq, frames: &[Found]) -> Result<Option<usize>, ForkError> {
        let is = |frame: &&Found| frame.header.kind == FrameKind::Record && frame.header.seq == at;
        let found = frames.iter().position(|frame| is(&frame));
        let Some((place, frame)) = found.and_then(|place| Some((place, frames.get(place)?))) else {
            return Err(self.not_proven(at)?);
        };
        if frame.header.lsn > self.proven {
            return Err(self.not_proven(at)?);
        }
        if frame.header.ends_batch() {
            return Ok(Some(place));
        }
        let rest = frames.get(place..).unwrap_or_default().iter();
        let same = rest.take(usize::from(
            frame.header.batch_count - frame.header.batch_index,
        ));
        let records = same.filter(|frame| frame.header.kind == FrameKind::Record);
        let last = records.map(|frame| frame.header.seq).max().unwrap_or(at);
        Err(ForkError::WithinBatch { at, last })
    }

    /// The error of a record that is not proven, with the last one that is.
    fn not_proven(&self, at: Seq) -> Result<ForkError, ForkError> {
        let mut proven = Seq::ZERO;
        let used = self.spans.iter().rev();
        for span in used.filter(|span| span.base < self.proven) {
            for entry in self.read(span) {
                let entry = entry?;
                if entry.proven && entry.kind == FrameKind::Record {
                    proven = entry.seq;
                }
            }
            if proven > Seq::ZERO {
                break;
            }
        }
        Ok(ForkError::NotProven { at, proven })
    }
}

/// A segment of the parent, as it is held open or by its name.
fn open(
    directory: &Directory,
    pinned: &[(SegmentName, OpenFile)],
    name: &SegmentName,
) -> Result<OpenFile, ForkError> {
    if let Some((_, file)) = pinned.iter().find(|(held, _)| held == name) {
        return Ok(file.clone());
    }
    let opened = directory.open_segment(name, Access::Read);
    let opened = opened
        .map_err(OpenError::Disk)
        .map_err(OpenError::of_handles)?;
    opened.ok_or_else(|| ForkError::Changed {
        path: absent(directory, name).path,
    })
}

impl ForkPoint {
    /// The session that is forked.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The last record of the session that the child has.
    pub fn seq(&self) -> Seq {
        self.tail.seq
    }

    /// The last Lsn that the child has.
    pub fn lsn(&self) -> Lsn {
        self.footer.last
    }

    /// Reads what the child gets, from an Lsn on, as the parent has it.
    pub fn read(&self, from: Lsn) -> Reader {
        let (directory, spans) = (self.directory.clone(), self.spans.clone());
        Reader::new(directory, spans, from, self.lsn()).pinned(self.pinned.clone())
    }

    /// The newest carry record up to here that is accepted, with the last Lsn that it speaks of.
    pub(crate) fn newest_carry<T>(
        &self,
        accept: impl Fn(Carried<'_>) -> Option<T>,
    ) -> Option<(Lsn, T)> {
        carried::newest(&self.directory, &self.spans, self.lsn().next(), accept)
    }
}
