//! The options of a store.

use super::IndexOptions;
use crate::event::{Factory, Limits};
use crate::journal::{JournalOptions, Workers};
use crate::metrics::{Meter, Metrics};

/// How a store lays out its sessions. Chosen when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Layout {
    /// One journal per session, with its own lock and its own blast radius: for command-line and
    /// desktop hosts, where several processes work side by side on one store.
    #[default]
    PerSession,
    /// One journal for all sessions, which one process owns as long as it has the store open: for servers.
    /// One sync acknowledges the steps of many sessions.
    Shared,
}

/// The options of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The layout of a new store. That of an existing one stands in its `STORE` file, and this is not
    /// looked at ([`Store::layout`](super::Store::layout)).
    pub layout: Layout,
    /// The sizes of its journals.
    pub journal: JournalOptions,
    /// The limits of events, shared by writing and reading (P10).
    pub limits: Limits,
    /// How many keyed records of a session are remembered for idempotency; 10,000 by default.
    pub keyed_horizon: usize,
    /// How many bytes of records a session keeps in memory at most, to have at hand what the models
    /// of its loops see ([`Session::loop_context`](super::Session::loop_context)); 32 MiB by default.
    /// What was not asked for the longest is dropped first, and read from the log when it is asked
    /// for again; the context of a loop that alone is larger is read each time.
    pub context_bytes: usize,
    /// Bodies of at least this many bytes stand in files of their own instead of the log (of steps,
    /// turns and events of the host; the other kinds are small); 256 KiB by default. 0 puts all of
    /// them there, `usize::MAX` none. It can be changed at any time: reading does not depend on it.
    pub blob_threshold: usize,
    /// Where ids and times come from.
    pub factory: Factory,
    /// The threads behind its journals. Clones of the options share them.
    pub workers: Workers,
    /// The index that makes listings fast ([`Store::list`](super::Store::list)); for stores on the file
    /// system of the machine.
    pub index: IndexOptions,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            layout: Layout::default(),
            journal: JournalOptions::default(),
            limits: Limits::default(),
            keyed_horizon: 10_000,
            context_bytes: 32 * 1024 * 1024,
            blob_threshold: 256 * 1024,
            factory: Factory::default(),
            workers: Workers::default(),
            index: IndexOptions::default(),
        }
    }
}

impl StoreOptions {
    /// With a collector of counters and times ([`JournalOptions::meter`]).
    #[must_use]
    pub fn metrics(mut self, metrics: impl Metrics + 'static) -> StoreOptions {
        self.journal.meter = Meter::new(metrics);
        self
    }
}
