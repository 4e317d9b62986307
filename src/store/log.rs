//! The log as a store sees it: one narrow trait, so that another log (a replicated one) can stand in
//! for the local journal without a change above.

use std::fmt::Debug;
use std::sync::Arc;

use crate::identity::SessionId;
use crate::journal::{
    AppendError, CloseError, Damage, Entry, Fault, ForkError, ForkPoint, FrameKind, Health,
    Journal, JournalView, Lsn, NotCommitted, OwnedRecord, Position, ReadError, Seq, Sink, WhenFull,
};

/// Records in their order.
pub(super) type Entries = Box<dyn Iterator<Item = Result<Entry, ReadError>> + Send>;

/// The records of one session.
pub(super) trait Log: Debug + Send + Sync {
    /// Queues a batch behind an expected position, all of it or nothing. The sink is told how it came
    /// out, in the order of the log, when it is durable or has failed; not if this is an error.
    /// Whether the caller has to call [`Log::lead`], which only one that may block can `offer`.
    fn submit(
        &self,
        payloads: Vec<Vec<u8>>,
        expected: Seq,
        sink: Arc<dyn Sink>,
        full: WhenFull,
        offer: bool,
    ) -> Result<bool, NotCommitted>;
    /// Writes what is queued; blocks.
    fn lead(&self);
    /// The records from a position on, up to what is durable now.
    fn read(&self, from: Seq) -> Entries;
    /// The records of the last part of the log (a segment) that holds one below a position: reading
    /// backwards. Those from the position on may be among them. `None` if there is none.
    fn segment_before(&self, before: Seq) -> Result<Option<Entries>, ReadError>;
    /// The record at a place.
    fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError>;
    /// Why the log takes no appends any more, if so.
    fn fault(&self) -> Option<Fault>;
    /// Vouches for the last record outside its block.
    fn witness(&self) -> Result<(), AppendError>;
    /// Closes the files of an idle log until it is used again.
    fn park(&self) -> Result<(), AppendError>;
    /// How the log is; never waits for the disk. `None` if it is open for reading only.
    fn health(&self) -> Option<Health>;
    /// Damage to acknowledged data, in a log that is open for reading only.
    fn damage(&self) -> Option<Damage>;
    /// Which commit token its commits wait for, if others wait for the same; an address.
    fn token(&self) -> Option<usize> {
        None
    }
    /// The place behind a record at which the log can be forked, or behind the last that is proven.
    fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError>;
    /// Closes the log.
    fn close(&self) -> Result<(), CloseError>;
}

/// The records (not the fences) of a journal from a session sequence on. A record's Lsn is never
/// below its Seq, so reading begins there.
fn records(reader: crate::journal::Reader, from: Seq) -> Entries {
    Box::new(reader.filter(move |entry| match entry {
        Ok(entry) => entry.kind == FrameKind::Record && entry.seq >= from,
        Err(_) => true,
    }))
}

/// A journal that one session owns.
#[derive(Debug)]
pub(super) struct OwnJournal {
    pub(super) journal: Journal,
    pub(super) session: SessionId,
}

impl Log for OwnJournal {
    fn submit(
        &self,
        payloads: Vec<Vec<u8>>,
        expected: Seq,
        sink: Arc<dyn Sink>,
        full: WhenFull,
        offer: bool,
    ) -> Result<bool, NotCommitted> {
        let session = self.session;
        let records = payloads
            .into_iter()
            .map(|payload| OwnedRecord { session, payload });
        self.journal
            .enqueue(records, Some(expected), sink, full, offer)
    }

    fn lead(&self) {
        self.journal.lead();
    }

    fn read(&self, from: Seq) -> Entries {
        records(self.journal.read(Lsn::new(from.get())), from)
    }

    fn segment_before(&self, before: Seq) -> Result<Option<Entries>, ReadError> {
        let reader = self.journal.segment_before(before)?;
        Ok(reader.map(|reader| records(reader, Seq::ZERO)))
    }

    fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        self.journal.read_at(position)
    }

    fn fault(&self) -> Option<Fault> {
        self.journal.fault()
    }

    fn witness(&self) -> Result<(), AppendError> {
        self.journal.witness()
    }

    fn park(&self) -> Result<(), AppendError> {
        self.journal.park()
    }

    fn health(&self) -> Option<Health> {
        Some(self.journal.health())
    }

    fn damage(&self) -> Option<Damage> {
        None
    }

    fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        self.journal.fork_point(at)
    }

    fn close(&self) -> Result<(), CloseError> {
        self.journal.close()
    }
}

/// A journal that is open for reading only.
#[derive(Debug)]
pub(super) struct ViewedJournal {
    pub(super) view: JournalView,
}

impl Log for ViewedJournal {
    fn submit(
        &self,
        _payloads: Vec<Vec<u8>>,
        _expected: Seq,
        _sink: Arc<dyn Sink>,
        _full: WhenFull,
        _offer: bool,
    ) -> Result<bool, NotCommitted> {
        Err(NotCommitted::Closed)
    }

    fn lead(&self) {}

    fn read(&self, from: Seq) -> Entries {
        records(self.view.read(Lsn::new(from.get())), from)
    }

    fn segment_before(&self, before: Seq) -> Result<Option<Entries>, ReadError> {
        let reader = self.view.segment_before(before)?;
        Ok(reader.map(|reader| records(reader, Seq::ZERO)))
    }

    fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        self.view.read_at(position)
    }

    fn fault(&self) -> Option<Fault> {
        None
    }

    fn witness(&self) -> Result<(), AppendError> {
        Err(NotCommitted::Closed.into())
    }

    fn park(&self) -> Result<(), AppendError> {
        Err(NotCommitted::Closed.into())
    }

    fn health(&self) -> Option<Health> {
        None
    }

    fn damage(&self) -> Option<Damage> {
        self.view.damage().cloned()
    }

    fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        self.view.fork_point(at)
    }

    fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }
}
