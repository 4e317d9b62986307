//! The journal: an append-only log of opaque records, durable before it answers.
//!
//! A journal is a directory of segments with one writer. [`Journal::create`] and [`Journal::open`]
//! settle what an earlier process left behind and give an [`Opening`], whose records can be read;
//! [`Opening::begin`] writes the fence (with the first records, in one batch and one sync) and gives
//! the [`Journal`]. [`Journal::append`] writes one batch, atomically, and returns when it is durable.
//! [`JournalView`] reads without a lock and without writing a byte.
//!
//! The rooms, in the order in which a record passes them: `writer` stamps and syncs, `frame` and
//! `segment` are the bytes, `directory` the names and the manifests; after a crash `evidence` reads,
//! `decision` decides, `recovery` acts, `create` makes the fresh file.

mod action;
mod bytes;
mod create;
mod decision;
mod directory;
mod error;
mod evidence;
mod footer;
mod frame;
mod manifest;
mod names;
mod reader;
mod readonly;
mod recovery;
mod report;
mod roll;
mod salvage;
mod scan;
mod segment;
mod spans;
mod tails;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use error::{
    AppendError, CloseError, Damage, DiskError, Fault, FaultCause, NotCommitted, OpenError,
    Operation, ReadError,
};
pub use frame::FrameKind;
pub use names::SegmentName;
pub use reader::{Entry, Position, Reader};
pub use readonly::JournalView;
pub use report::{Cut, Quarantine, RecoveryReport};

use crate::identity::SessionId;
use crate::vfs::Vfs;
use directory::Directory;
use recovery::{Intent, Settled, settle};
use segment::BLOCK;
use spans::Spans;
use writer::{Unstamped, Writer};

/// A journal sequence: orders the records of a journal, 1-based, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

/// A session sequence: orders the records of a session, 1-based, without gaps. This is what users
/// see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(u64);

/// Counters on disk stay below this: no log gets there, and nothing overflows near it (P14). What
/// names more was not written by us.
const MAX_COUNTER: u64 = 1 << 62;

macro_rules! counter {
    ($name:ident) => {
        impl $name {
            /// Before the first.
            pub const ZERO: $name = $name(0);

            /// The counter with this number.
            pub const fn new(number: u64) -> $name {
                $name(number)
            }

            /// Its number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The one after it.
            #[must_use]
            pub const fn next(self) -> $name {
                $name(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}
counter!(Lsn);
counter!(Seq);

/// Whose records a journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One session; the manifest names it, and another session's opening is refused.
    Session(SessionId),
    /// Many sessions.
    Shared,
}

impl Owner {
    fn session(self) -> SessionId {
        match self {
            Owner::Session(session) => session,
            Owner::Shared => SessionId::nil(),
        }
    }
}

/// The sizes of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalOptions {
    /// Bytes for frames in the first segment; 64 KiB by default. A multiple of 4096.
    pub first_capacity: u64,
    /// Bytes for frames in the largest segments; 16 MiB by default. Each segment is four times as
    /// large as the one before, up to this. A batch that does not fit gets a segment that fits it.
    pub max_capacity: u64,
    /// Largest record in bytes; 17 MiB by default (an event of 16 MiB and its header). Fixed when
    /// the journal is created, since readers must accept what writers accept (P10).
    pub max_payload: u32,
    /// Opening for writing copies the active segment if it holds at most this many bytes, and closes
    /// it otherwise; 1 MiB by default.
    pub supersede_limit: u64,
    /// How many files of torn tails are kept; 64 by default.
    pub quarantine_files: u32,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            first_capacity: 64 * 1024,
            max_capacity: 16 * 1024 * 1024,
            max_payload: 17 * 1024 * 1024,
            supersede_limit: 1024 * 1024,
            quarantine_files: 64,
        }
    }
}

impl JournalOptions {
    fn check(&self) -> Result<(), OpenError> {
        let limit = frame::MAX_PAYLOAD;
        if self.max_payload > limit {
            return Err(OpenError::MaxPayload {
                bytes: self.max_payload,
                limit,
            });
        }
        for capacity in [self.first_capacity, self.max_capacity] {
            if capacity % BLOCK != 0 || !(BLOCK..=1 << 30).contains(&capacity) {
                return Err(OpenError::Capacity { capacity });
            }
        }
        Ok(())
    }

    /// The capacity of the segment after one of `capacity` bytes, large enough for `needed` (W4).
    fn capacity_after(&self, capacity: u64, needed: u64) -> u64 {
        let grown = capacity
            .saturating_mul(4)
            .min(self.max_capacity)
            .max(self.first_capacity);
        grown.max(needed.next_multiple_of(BLOCK))
    }
}

/// A record to append.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// The session that it belongs to.
    pub session: SessionId,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Proof that a batch is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the receipt is the proof that the records are durable"]
pub struct Receipt {
    /// The first Lsn of the batch.
    pub first: Lsn,
    /// Where each record is, in the order in which they were given.
    pub records: Vec<Placed>,
}

/// Where a durable record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its place in the journal.
    pub lsn: Lsn,
    /// Its place in its session.
    pub seq: Seq,
    /// Where it stands on disk.
    pub position: Position,
}

/// Supplies the carry record of a segment's footer: the state of the layer above as of an Lsn. It
/// is asked while the commit token is held, so it must not append.
pub trait Carry: fmt::Debug + Send + Sync {
    /// The state as of this Lsn; empty if it is not known.
    fn carry(&self, last: Lsn) -> Vec<u8>;
}

/// A layer above without state.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCarry;

impl Carry for NoCarry {
    fn carry(&self, _last: Lsn) -> Vec<u8> {
        Vec::new()
    }
}

/// A journal that is open for writing, before its fence: what is kept of the past is settled and
/// durable in a fresh file, and can be read. Dropping it gives the journal up.
#[derive(Debug)]
#[must_use = "the journal is open only after `begin`"]
pub struct Opening {
    settled: Settled,
    options: JournalOptions,
}

impl Opening {
    /// What was found and done.
    pub fn report(&self) -> &RecoveryReport {
        &self.settled.report
    }

    /// The last record of a session: its Seq, zero if it has none.
    pub fn last_seq(&self, session: SessionId) -> Seq {
        self.settled
            .tails
            .get(&session)
            .map_or(Seq::ZERO, |tail| tail.seq)
    }

    /// Reads what was kept, from an Lsn on.
    pub fn read(&self, from: Lsn) -> Reader {
        Reader::new(
            self.settled.directory.clone(),
            self.settled.spans.clone(),
            from,
            self.settled.report.last,
        )
    }

    /// Writes the fence and the given records as one batch, and opens the journal when they are
    /// durable (W9).
    ///
    /// # Errors
    /// [`OpenError::Fence`] with the outcome of the append.
    pub fn begin(
        self,
        records: &[NewRecord<'_>],
        carry: Arc<dyn Carry>,
    ) -> Result<(Journal, Receipt), OpenError> {
        let directory = self.settled.directory.clone();
        let fence = fence_payload(self.settled.report.epoch)?;
        let spans = Spans::new(self.settled.spans.clone(), self.settled.file.clone());
        let mut writer = Writer::new(self.settled, spans.clone(), self.options, carry);
        let mut batch = Vec::with_capacity(records.len() + 1);
        batch.push(Unstamped {
            kind: FrameKind::Fence,
            session: SessionId::nil(),
            payload: &fence,
            payload_crc: frame::payload_crc(&fence),
        });
        batch.extend(records.iter().map(Unstamped::record));
        let receipt = writer.append(&batch, None).map_err(OpenError::Fence)?;
        let journal = Journal {
            max_payload: writer.max_payload(),
            writer: Mutex::new(writer),
            directory,
            spans,
        };
        Ok((journal, receipt))
    }
}

/// Bytes of a fence's payload.
const FENCE_LEN: u32 = 32;

fn fence_payload(epoch: u64) -> Result<Vec<u8>, OpenError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| OpenError::NoRandomness)?;
    let mut payload = Vec::with_capacity(32);
    bytes::put_u64(&mut payload, epoch);
    bytes::put_u32(&mut payload, std::process::id());
    bytes::put_u32(&mut payload, 0);
    payload.extend_from_slice(&random);
    Ok(payload)
}

/// A journal that is open for writing. All methods may be called from many threads; appends are
/// ordered by who gets the commit token first.
#[derive(Debug)]
pub struct Journal {
    writer: Mutex<Writer>,
    directory: Directory,
    spans: Spans,
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
        let settled = settle(vfs, path, owner, Intent::Create, &options)?;
        Ok(Opening { settled, options })
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
        options.check()?;
        let settled = settle(vfs, path, owner, Intent::Open, &options)?;
        Ok(Opening { settled, options })
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
        let batch: Vec<Unstamped<'_>> = records.iter().map(Unstamped::record).collect();
        self.token().append(&batch, expected)
    }

    /// The commit token. A thread that panicked while it held it (a test's disk can) leaves the
    /// outcome of its group unknown, so the journal is faulted like after a failed write.
    fn token(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned| {
            let mut writer = PoisonError::into_inner(poisoned);
            writer.poison(FaultCause::Panic);
            writer
        })
    }

    /// The last durable Lsn.
    pub fn durable(&self) -> Lsn {
        self.spans.last()
    }

    /// The last durable Seq of a session, zero if it has none.
    pub fn last_seq(&self, session: SessionId) -> Seq {
        self.token().tail(session).seq
    }

    /// Largest record in bytes.
    pub fn max_payload(&self) -> u32 {
        self.max_payload
    }

    /// Why the journal takes no appends any more, if so.
    pub fn health(&self) -> Result<(), Fault> {
        self.token().fault().cloned().map_or(Ok(()), Err)
    }

    /// Reads from an Lsn on, up to what is durable now. Works after a fault too (P8).
    pub fn read(&self, from: Lsn) -> Reader {
        let spans = self.spans.snapshot();
        let last = spans.last().map_or(Lsn::ZERO, |span| span.last);
        Reader::new(self.directory.clone(), spans, from, last).pinned(self.spans.pinned())
    }

    /// Reads the record at a position; `None` if none stands there.
    ///
    /// # Errors
    /// As for [`Reader`].
    pub fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        let spans = self.spans.snapshot();
        let last = spans.last().map_or(Lsn::ZERO, |span| span.last);
        let pinned = self.spans.pinned();
        reader::read_at(&self.directory, &spans, &pinned, position, last)
    }

    /// Writes the witness slots: closes the window in which damage at rest to the last group would
    /// read as a torn tail (`docs/guarantees.md`). For hosts that know that they go idle.
    ///
    /// # Errors
    /// A failed write or sync faults the journal.
    pub fn witness(&self) -> Result<(), AppendError> {
        self.token().witness()
    }

    /// Closes: writes the clean slots and gives the lock back. Dropping a journal does not write
    /// anything; what was acknowledged is as safe, and the next opening has more to do.
    ///
    /// # Errors
    /// [`CloseError`]; the data is as safe as before.
    pub fn close(&self) -> Result<(), CloseError> {
        self.token().close()
    }
}
