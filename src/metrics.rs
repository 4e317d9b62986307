//! Counters and times of a store, for whoever collects them.
//!
//! One trait with one method, not the `metrics` crate: a host that uses that one (or any other)
//! forwards in a few lines, and all others do not build it, nor pay for its global recorder and its
//! lookups by name on the commit path.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contain::{Held, contained};
use crate::identity::{LoopId, SessionId};

/// Collects what is measured. Called where it happens, also by the thread that commits while others
/// wait for it, so it must be quick and must not block. What would commit to a store, or close a
/// session, is refused while it is told
/// ([`Refusal::Reentrant`](crate::store::Refusal::Reentrant)); appending to a journal of its own that
/// measures to it is not, and waits for itself. A panic is logged and changes nothing.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use stepwell::metrics::{Measure, Metrics};
///
/// #[derive(Default)]
/// struct Syncs(AtomicU64);
///
/// impl Metrics for Syncs {
///     fn record(&self, measure: &Measure) {
///         if let Measure::Group { .. } = measure {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// let options = stepwell::store::StoreOptions::default().metrics(Syncs::default());
/// ```
pub trait Metrics: Send + Sync {
    /// One measurement.
    fn record(&self, measure: &Measure);
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measure {
    /// A batch was committed. A repeat that gave an earlier commit is none.
    Commit {
        /// The session.
        session: SessionId,
        /// Its records.
        records: usize,
        /// Bytes of their payloads.
        bytes: usize,
    },
    /// A batch was refused behind the queue of its session, for certain.
    Refused {
        /// The session.
        session: SessionId,
    },
    /// A journal wrote a group and synced it (or a part of one that filled its segment).
    Group {
        /// The batches that shared the sync.
        batches: usize,
        /// Their frames.
        records: usize,
        /// Bytes on disk.
        bytes: u64,
        /// How long the writes took.
        write: Duration,
        /// How long the sync took.
        sync: Duration,
    },
    /// The queue of a loop changed.
    Queue {
        /// The loop.
        loop_id: LoopId,
        /// How many inputs wait now.
        depth: usize,
    },
    /// A live event found no room with one subscriber and was dropped for it.
    Dropped {
        /// The session.
        session: SessionId,
    },
    /// A session was faulted.
    Fault {
        /// The session.
        session: SessionId,
    },
}

/// Where measurements go; nowhere by default, and then nothing is measured. Clones go to the same
/// place.
#[derive(Clone, Default)]
pub struct Meter(Option<Held<Arc<dyn Metrics>>>);

impl Meter {
    /// To a collector.
    pub fn new(metrics: impl Metrics + 'static) -> Meter {
        Meter(Some(Held::new(Arc::new(metrics))))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn metrics(&self) -> Option<&Arc<dyn Metrics>> {
        self.0.as_ref().and_then(Held::get)
    }

    pub(crate) fn record(&self, measure: impl FnOnce() -> Measure) {
        if let Some(metrics) = self.metrics() {
            let measure = measure();
            let _recording = Recording::begin();
            if contained(|| metrics.record(&measure)).is_err() {
                tracing::error!("the metrics of a host panicked");
            }
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meter").field(&self.is_on()).finish()
    }
}

/// Whether they go to the same place.
impl PartialEq for Meter {
    fn eq(&self, other: &Meter) -> bool {
        match (self.metrics(), other.metrics()) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Meter {}

crate::sync::thread_local! {
    /// How many collectors this thread is telling something.
    static RECORDING: Cell<usize> = const { Cell::new(0) };
}

/// While a collector is told: it may be asked for under any lock, so it must not use the store.
struct Recording(());

impl Recording {
    fn begin() -> Recording {
        let _ = RECORDING.try_with(|count| count.set(count.get() + 1));
        Recording(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = RECORDING.try_with(|count| count.set(count.get().saturating_sub(1)));
    }
}

/// Whether this thread is telling a collector something.
pub(crate) fn is_recording() -> bool {
    RECORDING.try_with(Cell::get).unwrap_or(0) > 0
}
