//! The journal: an append-only log of opaque records, durable before it answers.
//!
//! A journal is a directory of segments with one writer. [`Journal::create`] and [`Journal::open`]
//! settle what an earlier process left behind and give an [`Opening`], whose records can be read;
//! [`Opening::begin`] writes the fence (with the first records, in one batch and one sync) and gives
//! the [`Journal`]. [`Journal::append`] writes one batch, atomically, and returns when it is durable;
//! those that append at the same time share a write and a sync. [`JournalView`] reads without a lock
//! and without writing a byte. [`Follower`] and [`JournalFollower`] go on from replay to live.
//!
//! The rooms, in the order in which a record passes them: `record` is what the caller gives, `commit`
//! the queue and who serves it, `group` the frames that wait, `writer` stamps, writes and syncs them,
//! `ticket` brings the outcome back; `frame` and `segment` are the bytes, `directory` the names and
//! the manifests. `prepare` makes the next segment aside, `roll` moves to it, `witness` vouches for
//! an idle journal, `workers` are the threads. After a crash `evidence` reads, `decision` decides,
//! `recovery` acts, `create` makes the fresh file.

mod action;
mod bytes;
mod carried;
mod commit;
mod counters;
mod create;
mod decision;
mod directory;
mod error;
mod evidence;
mod fault;
mod fingerprint;
mod follow;
mod footer;
mod fork;
mod frame;
mod group;
mod holder;
mod inspect;
mod lenient;
mod manifest;
mod names;
mod opening;
mod options;
mod park;
mod parts;
mod prepare;
mod progress;
mod reader;
mod readonly;
mod record;
mod recovery;
mod repair;
mod report;
mod rewrite;
mod roll;
mod rot;
mod salvage;
mod scan;
mod segment;
mod session_log;
mod session_reader;
mod spans;
mod tails;
#[cfg(test)]
mod tests;
mod ticket;
mod witness;
mod workers;
mod writer;

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use carried::Carried;
use counters::MAX_COUNTER;
pub use counters::{Lsn, Seq};
pub(crate) use directory::{read_full, uninterrupted, write_all};
pub use error::{
    AppendError, CloseError, Damage, DiskError, Fault, FaultCause, NotCommitted, OpenError,
    Operation, ReadError,
};
pub(crate) use fingerprint::{Fingerprint, Names};
pub use follow::{FollowError, Follower, JournalFollower, Polling};
pub use fork::{ForkError, ForkPoint};
pub use frame::FrameKind;
pub use inspect::{InspectError, InspectedFrame, Part, inspect};
pub use lenient::UnreadableBlock;
pub use names::SegmentName;
pub(crate) use names::{LOCK, QUARANTINE};
pub use opening::Opening;
pub use options::{JournalOptions, Owner};
pub(crate) use progress::Watch;
pub use progress::{Phase, Progress};
pub use reader::{Entry, Position, Reader};
pub use readonly::JournalView;
pub use record::{NewRecord, OwnedRecord, Placed, PlacedRecords, Receipt};
pub(crate) use repair::{CopyError, Extent, Repair};
pub use repair::{Gap, RepairReport};
pub use report::{Cut, Quarantine, RecoveryReport};
use rot::RotCell;
pub(crate) use ticket::Sink;
pub use ticket::{AppendTicket, Stalled};
pub use workers::Workers;
pub(crate) use workers::{Chore, Serve};

use crate::identity::SessionId;
pub use crate::vfs::Holder;
use crate::vfs::Vfs;
use commit::Core;
pub(crate) use commit::WhenFull;
use directory::Directory;
use opening::FENCE_LEN;
use parts::Heads;
use record::Unstamped;
pub(crate) use recovery::take_lock;
use recovery::{Intent, settle};
pub(crate) use session_log::SessionLog;
use spans::Spans;

/// Supplies the carry record of a segment's footer: the state of the layer above as of an Lsn. It
/// is asked while the commit token is held, so it must not append.
pub trait Carry: fmt::Debug + Send + Sync {
    /// The state as of this Lsn; empty if it is not known.
    fn carry(&self, last: Lsn) -> Vec<u8>;

    /// In a journal that many sessions share, instead: the state of one of them as of its last record;
    /// empty if it is not known.
    fn state_of(&self, _session: SessionId) -> Vec<u8> {
        Vec::new()
    }

    /// The journal takes no appends any more (P8): told once, before anybody is who follows it.
    fn faulted(&self, _fault: &Fault) {}
}

/// A layer above without state.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCarry;

impl Carry for NoCarry {
    fn carry(&self, _last: Lsn) -> Vec<u8> {
        Vec::new()
    }
}

/// How a journal is: read at any time, also while the disk does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why it takes no appends any more (P8, W10).
    pub fault: Option<Fault>,
    /// Why the next segment could not be prepared: the disk is getting full. Appends go on in the
    /// active segment, and it is tried again when there is no room left in it.
    pub lacking: Option<NotCommitted>,
    /// For how long the disk has owed an answer to what holds the commit token: a group, a roll, a
    /// witness slot, opening the files again.
    pub waiting: Option<Duration>,
    /// How many batches wait for a group.
    pub queued: usize,
    /// Whether it was closed.
    pub closed: bool,
    /// The first damage that a reader of this journal met, if any did. It stops nothing; `stepwell
    /// verify` finds all of it.
    pub damage: Option<ReadError>,
}

/// A journal that is open for writing. All methods may be called from many threads; appends are in
/// the order in which they were queued.
#[derive(Debug)]
pub struct Journal {
    core: Arc<Core>,
    directory: Directory,
    spans: Spans,
    rot: RotCell,
    /// What was read of the footers of a journal that many sessions share.
    heads: Heads,
    max_payload: u32,
}

impl Journal {
    /// Creates a journal in a directory that exists and holds none.
    ///
    /// # Errors
    /// [`OpenError::AlreadyExists`], and those of [`Journal::open`].
    pub fn create(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        owner: Owner,
        options: JournalOptions,
    ) -> Result<Opening, OpenError> {
        options.check()?;
        let watch = Watch::default();
        let settled = settle(vfs, path, owner, Intent::Create, &options, &watch)
            .map_err(OpenError::of_handles)?;
        Ok(Opening {
            settled,
            options,
            workers: Workers::default(),
        })
    }

    /// Opens a journal for writing: takes the lock, ends the right of earlier writers, decides what
    /// the bytes mean, and moves what is kept to a fresh file (P5, P9, W9, W12).
    ///
    /// # Errors
    /// Each variant of [`OpenError`] says whose fault it is. Damage to acknowledged data is refused
    /// here ([`OpenError::Damaged`]) and can be read with [`JournalView`].
    pub fn open(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        owner: Owner,
        options: JournalOptions,
    ) -> Result<Opening, OpenError> {
        Journal::open_watched(vfs, path, owner, options, &Watch::default())
    }

    /// The same, and tells how far it has come, at most about every 256 KiB. A `Break` ends it, at a
    /// moment when nothing is half done: from the first change to the files that hold records until
    /// the opening is settled, the answer is passed over.
    ///
    /// # Errors
    /// As for [`Journal::open`], and [`OpenError::Aborted`].
    pub fn open_with_progress(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        owner: Owner,
        options: JournalOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Opening, OpenError> {
        let watch = Watch::new(progress);
        let opened = Journal::open_watched(vfs, path, owner, options, &watch);
        watch.dismiss();
        opened
    }

    pub(crate) fn open_watched(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        owner: Owner,
        options: JournalOptions,
        watch: &Watch,
    ) -> Result<Opening, OpenError> {
        options.check()?;
        let settled = settle(vfs, path, owner, Intent::Open, &options, watch)
            .map_err(OpenError::of_handles)?;
        Ok(Opening {
            settled,
            options,
            workers: Workers::default(),
        })
    }

    /// Appends a batch, all of it or nothing, and returns when it is durable (P1, P3).
    ///
    /// `expected` is the last Seq that the caller knows of the first record's session; if it is not
    /// the last any more, nothing is written.
    ///
    /// # Errors
    /// [`AppendError::NotCommitted`]: nothing was written and the journal goes on.
    /// [`AppendError::Unknown`]: bytes may be on disk; the journal is faulted until it is opened
    /// again (P7, P8).
    pub fn append(
        &self,
        records: &[NewRecord<'_>],
        expected: Option<Seq>,
    ) -> Result<Receipt, AppendError> {
        self.append_when(records, expected, WhenFull::Wait)
    }

    /// The same, but where an append would wait for room in the queue it is refused.
    ///
    /// # Errors
    /// As for [`Journal::append`], and [`NotCommitted::Busy`].
    pub fn try_append(
        &self,
        records: &[NewRecord<'_>],
        expected: Option<Seq>,
    ) -> Result<Receipt, AppendError> {
        self.append_when(records, expected, WhenFull::Refuse)
    }

    fn append_when(
        &self,
        records: &[NewRecord<'_>],
        expected: Option<Seq>,
        full: WhenFull,
    ) -> Result<Receipt, AppendError> {
        match records {
            // A single record needs no list.
            [record] => self
                .core
                .append(&mut [Unstamped::record(record)], expected, full),
            records => {
                let mut batch: Vec<_> = records.iter().map(Unstamped::record).collect();
                self.core.append(&mut batch, expected, full)
            }
        }
    }

    /// Queues a batch, and gives a ticket for its outcome, which can be awaited or waited for. It
    /// never blocks, and the append runs to its end whatever becomes of the ticket. When too much
    /// waits already, the outcome is [`NotCommitted::Busy`].
    pub fn submit(&self, records: Vec<OwnedRecord>, expected: Option<Seq>) -> AppendTicket {
        let mut batch: Vec<_> = records.into_iter().map(Unstamped::owned).collect();
        let slot = self.core.submit(&mut batch, expected);
        AppendTicket::new(slot, Arc::downgrade(&self.core))
    }

    /// Queues a batch for one that is told the outcome; nothing is told if this is an error. Whether
    /// the caller has to call [`Journal::lead`]: only one that may block can `offer` that.
    pub(crate) fn enqueue(
        &self,
        records: impl Iterator<Item = OwnedRecord>,
        expected: Option<Seq>,
        sink: Arc<dyn Sink>,
        full: WhenFull,
        offer: bool,
    ) -> Result<bool, NotCommitted> {
        let mut batch: Vec<_> = records.map(Unstamped::owned).collect();
        self.core.enqueue(&mut batch, expected, sink, full, offer)
    }

    /// Writes what is queued, for who was told so by [`Journal::enqueue`].
    pub(crate) fn lead(&self) {
        self.core.lead();
    }

    /// The last durable Lsn.
    pub fn durable(&self) -> Lsn {
        self.spans.last()
    }

    /// The last durable Seq of a session, zero if it has none (or if where it stands cannot be read:
    /// an append to it is refused then).
    pub fn last_seq(&self, session: SessionId) -> Seq {
        self.learn(session).unwrap_or(Seq::ZERO)
    }

    /// The same, where a failure is told. In a journal that many share it is looked up without holding up
    /// appends, and the first append to the session need not do it.
    pub(crate) fn learn(&self, session: SessionId) -> Result<Seq, ReadError> {
        let known = self.core.token().known(session);
        if let Some(tail) = known {
            return Ok(tail.seq);
        }
        let tail = self.session(session).tail()?;
        // Somebody else may have looked it up, and appended, meanwhile.
        Ok(self.core.token().learnt(session, tail).seq)
    }

    /// Whether a session has records in a segment that has no footer yet.
    pub(crate) fn lacks_footer(&self, session: SessionId) -> bool {
        self.spans.tail(session).is_some()
    }

    /// Nobody here will append to a session soon: where it stands is looked up again when it is asked for.
    pub(crate) fn forget(&self, session: SessionId) {
        self.core.token().forget(session);
    }

    /// Returns when all that was queued before is settled; blocks.
    pub(crate) fn settle_queued(&self) {
        self.core.settle_queued();
    }

    /// What is durable now of one session, in a journal that many share.
    pub(crate) fn session(&self, session: SessionId) -> SessionLog {
        let (directory, heads) = (self.directory.clone(), self.heads.clone());
        SessionLog::live(directory, &self.spans, heads, session).noting(self.rot.clone())
    }

    /// What is durable now, as it is read without a lock.
    pub(crate) fn view(&self) -> JournalView {
        let (owner, epoch) = self.core.token().outline();
        JournalView::live(&self.directory, &self.spans, owner, epoch)
    }

    /// Largest record in bytes.
    pub fn max_payload(&self) -> u32 {
        self.max_payload
    }

    /// Why the journal takes no appends any more, if so. Never waits for the disk.
    pub fn fault(&self) -> Option<Fault> {
        self.core.fault.get().cloned()
    }

    /// How the journal is. Never waits for the disk.
    pub fn health(&self) -> Health {
        Health {
            fault: self.fault(),
            lacking: self.core.preparer.lacking(),
            waiting: self.core.pulse.waiting(),
            queued: self.core.queued(),
            closed: self.core.is_closed(),
            damage: self.rot.get().cloned(),
        }
    }

    /// Reads from an Lsn on, up to what is durable now. Works after a fault too (P8).
    pub fn read(&self, from: Lsn) -> Reader {
        let spans = self.spans.snapshot();
        let last = spans.last().map_or(Lsn::ZERO, |span| span.last);
        Reader::new(self.directory.clone(), spans, from, last)
            .pinned(self.spans.pinned())
            .noting(self.rot.clone())
    }

    /// The records of the last segment that holds one with a Seq below `before`, for a journal of one
    /// session: reading backwards. Those from `before` on may be among them.
    pub(crate) fn segment_before(&self, before: Seq) -> Result<Option<Reader>, ReadError> {
        let spans = self.spans.snapshot();
        let last = spans.last().map_or(Lsn::ZERO, |span| span.last);
        let pinned = self.spans.pinned();
        let of = |span: &spans::Span| {
            Reader::new(self.directory.clone(), vec![*span], Lsn::ZERO, last)
                .pinned(pinned.clone())
                .noting(self.rot.clone())
        };
        let found = carried::segment_before(&spans, before, |span| of(span).first_seq())?;
        Ok(found.map(|span| of(&span)))
    }

    /// Follows from an Lsn on: every durable record, first those that are there, then each as it is
    /// acknowledged, in order. Also over a fault and the close, which end it. Costs the commits
    /// nothing as long as nobody waits.
    pub fn follow(&self, from: Lsn) -> Follower {
        let bell = self.core.bell.clone();
        Follower::new(self.directory.clone(), self.spans.clone(), bell, from)
            .noting(self.rot.clone())
    }

    /// Reads the record at a position; `None` if none stands there.
    ///
    /// # Errors
    /// As for [`Reader`].
    pub fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        let spans = self.spans.snapshot();
        let last = spans.last().map_or(Lsn::ZERO, |span| span.last);
        let pinned = self.spans.pinned();
        let read = reader::read_at(&self.directory, &spans, &pinned, position, last);
        read.inspect_err(|error| self.rot.note(error))
    }

    /// Writes the witness slots: closes the window in which damage at rest to the last group would
    /// read as a torn tail (`docs/guarantees.md`). For hosts that know that they go idle.
    ///
    /// # Errors
    /// A failed write or sync faults the journal.
    pub fn witness(&self) -> Result<(), AppendError> {
        let outcome = self.core.token().witness();
        self.core.tell_of_fault();
        outcome
    }

    /// Closes the files of a journal that will be idle for a while, until it is used again: it holds
    /// one file handle then, its lock, and stays the only writer. What was appended last is vouched
    /// for first, as by [`Journal::witness`]. The next append opens the files again and checks that
    /// they are the same; when that fails for want of handles, it is refused for certain
    /// ([`NotCommitted::TooManyHandles`]). Reading opens the files by name meanwhile.
    ///
    /// # Errors
    /// A failed write or sync faults the journal.
    pub fn park(&self) -> Result<(), AppendError> {
        self.core.park()
    }

    /// Closes: writes the clean slots and gives the lock back. Dropping a journal does not write
    /// anything; what was acknowledged is as safe, and the next opening has more to do.
    ///
    /// # Errors
    /// [`CloseError`]; the data is as safe as before.
    pub fn close(&self) -> Result<(), CloseError> {
        self.core.close()
    }
}
