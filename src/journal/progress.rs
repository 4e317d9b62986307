//! How far a long reading has come, told to who waits for it and may end it.
//!
//! Everything that is read while a journal is opened or verified passes one function
//! ([`OpenFile::read_full`](super::directory::OpenFile::read_full)), so that is where it is counted,
//! and where it ends.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, PoisonError};

use super::Lsn;
use super::error::OpenError;
use super::spans::Span;
use crate::sync::Mutex;

/// What is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The active segment, to decide what counts. It may begin again: another process was at work.
    Recovery,
    /// The records, to rebuild the state or to check them.
    Replay,
}

/// How far a reading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being read.
    pub phase: Phase,
    /// Bytes read in this phase.
    pub done: u64,
    /// Bytes that the phase reads, as far as that is known before; never below `done`.
    pub total: u64,
}

/// Bytes between two reports.
const STEP: u64 = 256 * 1024;

/// Breaks end the reading.
const OPEN: u8 = 0;
/// Something is half done: breaks are passed over.
const BOUND: u8 = 1;
/// Nobody is told anything any more.
const DISMISSED: u8 = 2;

type Told = dyn FnMut(Progress) -> ControlFlow<()> + Send;

/// Who is told; nobody by default.
#[derive(Clone, Default)]
pub(crate) struct Watch(Option<Arc<Inner>>);

struct Inner {
    state: AtomicU8,
    aborted: AtomicBool,
    count: Mutex<Count>,
}

struct Count {
    told: Box<Told>,
    now: Progress,
    reported: u64,
}

impl Watch {
    pub(crate) fn new(told: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static) -> Watch {
        let now = Progress {
            phase: Phase::Recovery,
            done: 0,
            total: 0,
        };
        Watch(Some(Arc::new(Inner {
            state: AtomicU8::new(OPEN),
            aborted: AtomicBool::new(false),
            count: Mutex::new(Count {
                told: Box::new(told),
                now,
                reported: 0,
            }),
        })))
    }

    /// A phase begins that reads so many bytes.
    pub(crate) fn begin(&self, phase: Phase, total: u64) {
        self.tell(|count| {
            count.now = Progress {
                phase,
                done: 0,
                total,
            };
            true
        });
    }

    /// The records of these spans are read next, from an Lsn on.
    pub(crate) fn begin_replay(&self, spans: &[Span], from: Lsn) {
        let read = spans.iter().filter(|span| span.last >= from);
        let bytes = read.map(|span| span.end).fold(0, u64::saturating_add);
        self.begin(Phase::Replay, bytes);
    }

    /// The phase is at its end.
    pub(crate) fn end(&self) {
        self.tell(|count| {
            count.now.done = count.now.total;
            true
        });
    }

    /// So many bytes were read. Whether to go on.
    pub(crate) fn read(&self, bytes: u64) -> bool {
        self.tell(|count| {
            let now = &mut count.now;
            now.done = now.done.saturating_add(bytes);
            now.total = now.total.max(now.done);
            now.done - count.reported >= STEP
        });
        !self.aborted()
    }

    /// From here on, or until the next call with `false`, something is half done: it goes on
    /// whatever the answer is.
    pub(crate) fn bind(&self, bound: bool) {
        if let Some(inner) = &self.0 {
            let state = if bound { BOUND } else { OPEN };
            inner.state.store(state, Ordering::Release);
        }
    }

    /// Tells nobody anything any more.
    pub(crate) fn dismiss(&self) {
        if let Some(inner) = &self.0 {
            inner.state.store(DISMISSED, Ordering::Release);
        }
    }

    pub(crate) fn aborted(&self) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.aborted.load(Ordering::Acquire))
    }

    /// An outcome, or that it was ended.
    pub(crate) fn outcome<T>(
        &self,
        path: &Path,
        outcome: Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        if self.aborted() {
            return Err(OpenError::Aborted {
                path: path.to_owned(),
            });
        }
        outcome
    }

    /// Changes the count; tells it if `change` says so.
    fn tell(&self, change: impl FnOnce(&mut Count) -> bool) {
        let Some(inner) = &self.0 else { return };
        if inner.state.load(Ordering::Acquire) == DISMISSED {
            return;
        }
        let mut count = inner.count.lock().unwrap_or_else(PoisonError::into_inner);
        if !change(&mut count) {
            return;
        }
        let now = count.now;
        count.reported = now.done;
        let answer = (count.told)(now);
        if answer.is_break() && inner.state.load(Ordering::Acquire) == OPEN {
            inner.aborted.store(true, Ordering::Release);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("told", &self.0.is_some())
            .finish_non_exhaustive()
    }
}
