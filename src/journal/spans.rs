//! What of each segment counts: shared by the writer, which moves the end on, and by readers.

use std::sync::{Arc, PoisonError, RwLock};

use super::Lsn;
use super::manifest::SegmentEntry;
use super::segment::FRAMES;

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

/// The segments of a journal that is open for writing, as far as they are durable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Arc<RwLock<Vec<Span>>>);

impl Spans {
    pub(crate) fn new(spans: Vec<Span>) -> Spans {
        Spans(Arc::new(RwLock::new(spans)))
    }

    pub(crate) fn snapshot(&self) -> Vec<Span> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The last Lsn that is durable.
    pub(crate) fn last(&self) -> Lsn {
        let spans = self.0.read().unwrap_or_else(PoisonError::into_inner);
        spans.last().map_or(Lsn::ZERO, |span| span.last)
    }

    /// Moves the end of the active segment on, after its sync.
    pub(crate) fn advance(&self, end: u64, last: Lsn) {
        let mut spans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(active) = spans.last_mut() {
            active.end = end;
            active.last = last;
        }
    }

    /// Adds the next active segment.
    pub(crate) fn push(&self, span: Span) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(span);
    }
}
