//! What of each segment counts: shared by the writer, which moves the end on, and by readers.

use std::sync::{Arc, PoisonError, RwLock};

use super::Lsn;
use super::directory::OpenFile;
use super::footer::{Footer, SessionRange};
use super::manifest::SegmentEntry;
use super::names::SegmentName;
use super::parts::Part;
use super::scan::Found;
use super::segment::FRAMES;
use super::tails::Tail;
use crate::identity::SessionId;

/// One segment with the range of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) entry: SegmentEntry,
    /// Last Lsn before it.
    pub(crate) base: Lsn,
    /// Offset behind the last frame that counts.
    pub(crate) end: u64,
    /// The last Lsn that counts.
    pub(crate) last: Lsn,
}

impl Span {
    pub(crate) fn empty(entry: SegmentEntry, base: Lsn) -> Span {
        Span {
            entry,
            base,
            end: FRAMES,
            last: base,
        }
    }
}

/// Files that are held open.
pub(crate) type Pinned = Vec<(SegmentName, OpenFile)>;

/// What a session has in a segment.
pub(crate) type Share = (SessionRange, Part);

/// The segments of a journal that is open for writing, as far as they are durable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Arc<RwLock<Table>>);

#[derive(Debug, Default)]
struct Table {
    spans: Vec<Span>,
    /// Bytes for frames in the active segment.
    capacity: u64,
    /// The footer that the active segment will have.
    footer: Option<Footer>,
    /// The files of the segments whose end no manifest names yet. A later owner (this process after
    /// a fault, or another) replaces them by fresh ones and removes their names; what was read from
    /// them stays readable for those that hold this table.
    pinned: Vec<(SegmentName, OpenFile)>,
}

impl Spans {
    pub(crate) fn new(
        spans: Vec<Span>,
        active: OpenFile,
        capacity: u64,
        mut footer: Footer,
    ) -> Spans {
        let name = spans.last().map(|span| span.entry.name);
        footer.reserve(capacity);
        Spans(Arc::new(RwLock::new(Table {
            footer: Some(footer),
            pinned: name.map(|name| (name, active)).into_iter().collect(),
            spans,
            capacity,
        })))
    }

    /// The files that are held open.
    pub(crate) fn pinned(&self) -> Vec<(SegmentName, OpenFile)> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.pinned.clone()
    }

    pub(crate) fn snapshot(&self) -> Vec<Span> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.spans.clone()
    }

    /// The last Lsn that is durable.
    pub(crate) fn last(&self) -> Lsn {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.spans.last().map_or(Lsn::ZERO, |span| span.last)
    }

    /// The segment that holds a record, with its file if that is held open; `None` if the record is
    /// not there yet.
    pub(crate) fn covering(&self, lsn: Lsn) -> Option<(Span, Option<OpenFile>)> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let index = table.spans.partition_point(|span| span.last < lsn);
        let span = *table.spans.get(index)?;
        let name = span.entry.name;
        let held = table.pinned.iter().find(|(held, _)| *held == name);
        Some((span, held.map(|(_, file)| file.clone())))
    }

    /// The share of the active segment that is used, from 0 to 1.
    pub(crate) fn used(&self) -> f64 {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let used = table.spans.last().map_or(0, |span| span.end - FRAMES);
        used as f64 / table.capacity.max(1) as f64
    }

    /// What of a session is where: the segments, the files that are held open, and what the active
    /// segment holds of it.
    pub(crate) fn of_session(&self, session: SessionId) -> (Vec<Span>, Pinned, Option<Share>) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let part = table.footer.as_ref().and_then(|found| found.part(session));
        let part = part.map(|(range, part)| (range, part.clone()));
        (table.spans.clone(), table.pinned.clone(), part)
    }

    /// The last record of a session in the active segment, if it has one there.
    pub(crate) fn tail(&self, session: SessionId) -> Option<Tail> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let range = table.footer.as_ref()?.sessions.get(&session)?;
        Some(Tail {
            seq: range.last_seq,
            lsn: range.last,
        })
    }

    /// All of it, with the footer that the active segment has so far.
    pub(crate) fn all(&self) -> (Vec<Span>, Pinned, Option<Footer>) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let footer = table.footer.clone();
        (table.spans.clone(), table.pinned.clone(), footer)
    }

    /// The footer that the active segment has so far.
    pub(crate) fn footer(&self) -> Option<Footer> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.footer.clone()
    }

    /// Moves the end of the active segment on, after the sync of these frames.
    pub(crate) fn advance(&self, end: u64, last: Lsn, frames: &[Found]) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(footer) = &mut table.footer {
            for found in frames {
                footer.add(found);
            }
        }
        if let Some(active) = table.spans.last_mut() {
            active.end = end;
            active.last = last;
        }
    }

    /// Manifests name the ends of these now: nobody replaces them any more.
    pub(crate) fn unpin(&self, finished: impl Fn(&SegmentName) -> bool) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.pinned.retain(|(name, _)| !finished(name));
    }

    /// The active file, opened again.
    pub(crate) fn pin(&self, name: SegmentName, file: OpenFile) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.pinned.push((name, file));
    }

    /// Adds the next active segment. The one before it is sealed, but only the next manifest names
    /// its end, so both stay pinned; at most two files are.
    pub(crate) fn push(&self, span: Span, file: OpenFile, capacity: u64, shared: bool) {
        let mut footer = Footer::new(span.base).shared(shared);
        footer.reserve(capacity);
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.pinned.push((span.entry.name, file));
        let extra = table.pinned.len().saturating_sub(2);
        table.pinned.drain(..extra);
        table.spans.push(span);
        table.footer = Some(footer);
        table.capacity = capacity;
    }
}
