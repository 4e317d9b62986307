//! The errors of a store, one enum per operation.

use std::path::PathBuf;

use crate::event::{DecodeError, EncodeError, Event, Key, PairingError};
use crate::identity::{GateId, LoopId, MintError, SessionId, ToolExecutionId, TurnId};
use crate::journal::{CloseError, DiskError, Fault, Lsn, NotCommitted, OpenError, ReadError, Seq};

/// Why an event does not fit where the session stands. The caller's fault; nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The session does not stand where the commit was to follow ([`Session::commit_behind`]).
    ///
    /// [`Session::commit_behind`]: super::Session::commit_behind
    #[error(
        "the session stands at {actual} and not at {expected}; look at what came and try again"
    )]
    Moved {
        /// Where it was expected.
        expected: Seq,
        /// Its last record.
        actual: Seq,
    },
    /// The session has no such loop.
    #[error("the session has no loop {0}")]
    UnknownLoop(LoopId),
    /// The loop exists already.
    #[error("the loop {0} exists already")]
    LoopExists(LoopId),
    /// Another handle has the loop; drop it first.
    #[error("another handle has the loop {0}")]
    LoopHeld(LoopId),
    /// The loop has an open turn; it must end before the next begins.
    #[error("the turn {0} is still open")]
    TurnOpen(TurnId),
    /// The turn is not the open one of its loop.
    #[error("the turn {0} is not open")]
    TurnNotOpen(TurnId),
    /// A loop goes back to a record that is there.
    #[error("a loop cannot be rewound to the record {to}: the last one is {last}")]
    Ahead {
        /// Where it was to go.
        to: Seq,
        /// The last record of the session.
        last: Seq,
    },
    /// The gate is open already.
    #[error("the gate {0} is open already")]
    GateExists(GateId),
    /// The gate is not open in this loop: it was answered, given up, or never opened.
    #[error("the gate {0} is not open")]
    GateNotOpen(GateId),
    /// There is no intent of this execution in this loop that waits to be settled.
    #[error("the execution {0} has no unsettled intent")]
    NoIntent(ToolExecutionId),
    /// The session was stopped.
    #[error("the session was stopped")]
    Stopped,
    /// Title, labels and data of the session would be more than it may have.
    #[error(
        "title, labels and data of a session have at most {max} bytes, these have {got}; keep the rest elsewhere and its name here"
    )]
    TooMuchMetadata {
        /// Bytes that they would have.
        got: usize,
        /// Bytes that they may have.
        max: usize,
    },
}

/// Why a commit did not happen, for certain (P7). Nothing was published and history is unchanged;
/// the turn stays open, so the host may try again or end it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The caller offered nothing.
    #[error("there is nothing to commit")]
    Empty,
    /// The caller's step pairs calls and results wrongly.
    #[error(transparent)]
    Pairing(#[from] PairingError),
    /// The caller's event breaks a rule of its kind, or could not be read back (P10).
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The caller's event does not fit where the session stands.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The key was used before for another body.
    #[error("the key {key} was used for another body, committed as {first}; use a new key")]
    KeyReused {
        /// The key.
        key: Key,
        /// The first commit under it.
        first: Seq,
    },
    /// Two events of one batch have the same key.
    #[error("two events of one batch have the key {key}; give each a key of its own")]
    KeyTwice {
        /// The key.
        key: Key,
    },
    /// The first commit under a repeated key cannot be read to compare it.
    #[error("the first commit under a repeated key cannot be read: {0}")]
    FirstUnreadable(ReplayError),
    /// Which keys earlier processes used cannot be read, so a repeat would not be known.
    #[error(
        "the keys of earlier commits cannot be read: {0}; commit without a key, or repair the session"
    )]
    KeysUnreadable(ReplayError),
    /// No id could be made.
    #[error(transparent)]
    Mint(#[from] MintError),
    /// The session is open for reading only.
    #[error("the session is open for reading only")]
    ReadOnly,
    /// The session is faulted since an earlier commit; open it again.
    #[error("the session is faulted: {0}")]
    Faulted(Fault),
    /// An observer of the session, or a collector of metrics, called this while it was being told: the
    /// operation would wait for itself. Do it in another thread or task, which nobody there waits for.
    #[error("an observer or a collector of metrics must not do this while it is being told")]
    Reentrant,
    /// The file for a large body could not be written, for another reason than a full disk or the want
    /// of handles. Nothing of it is in the log, and the session goes on.
    #[error("the file for a large body could not be written: {0}")]
    Blob(DiskError),
    /// The journal refused; it goes on. Also of a large body: [`NotCommitted::StorageFull`],
    /// [`NotCommitted::TooManyHandles`], [`NotCommitted::Busy`].
    #[error(transparent)]
    Journal(NotCommitted),
}

impl Refusal {
    /// Of a large body whose file could not be written.
    pub(super) fn of_blob(error: DiskError) -> Refusal {
        if error.is_full() {
            Refusal::Journal(NotCommitted::StorageFull(error))
        } else if error.is_out_of_handles() {
            let limit = crate::vfs::handle_limit();
            Refusal::Journal(NotCommitted::TooManyHandles { limit })
        } else {
            Refusal::Blob(error)
        }
    }
}

/// The outcome of a commit that gave no receipt.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommitError {
    /// Definitely not committed.
    #[error("not committed: {0}")]
    NotCommitted(#[from] Refusal),
    /// It may be on disk. The session is faulted; reopening decides, and publishes what was kept.
    #[error("the outcome is unknown: {fault}")]
    Unknown {
        /// Why.
        fault: Fault,
        /// What was prepared, stamped, as it may reappear.
        events: Vec<Event>,
    },
    /// The store's I/O thread ended without an answer.
    #[error(transparent)]
    Gone(#[from] super::IoThreadGone),
}

impl CommitError {
    /// Whether it is certain that nothing was committed.
    pub fn is_definite(&self) -> bool {
        matches!(self, CommitError::NotCommitted(_))
    }
}

/// What is wrong with the file of a body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyProblem {
    /// It is not there.
    #[error("there is no such file")]
    Missing,
    /// It has another length than its record says.
    #[error("it has {found} bytes, and its record says {expected}")]
    Length {
        /// Bytes that it has.
        found: u64,
        /// Bytes that it must have.
        expected: u64,
    },
    /// It has the right length and another digest: bytes were changed.
    #[error("it is damaged: its digest is not the one in its record")]
    Digest,
    /// The disk does not give it.
    #[error(transparent)]
    Disk(DiskError),
}

/// Why an event could not be read from the log.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The journal could not give the record.
    #[error(transparent)]
    Journal(#[from] ReadError),
    /// The record is intact, but it is not an event that this version can read.
    #[error("the record {seq} cannot be read as an event: {source}")]
    Decode {
        /// The record.
        seq: Seq,
        /// Why.
        source: DecodeError,
    },
    /// The body of the record stands in a file of its own, which does not give it. All else can be
    /// read; restore the file from a backup, or repair the session.
    #[error("the body of the record {seq} cannot be read from {}: {problem}", path.display())]
    Body {
        /// The record.
        seq: Seq,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: BodyProblem,
    },
    /// The record belongs to another session.
    #[error("the record {seq} belongs to session {found}")]
    Foreign {
        /// The record.
        seq: Seq,
        /// Whose it is.
        found: SessionId,
    },
    /// The state that a sealed segment carries is not what its events say.
    #[error("the carry record as of {lsn} is not what the events say: please report it")]
    Carry {
        /// The last record of the segment.
        lsn: Lsn,
    },
    /// The record's sequence does not follow the one before.
    #[error("after {expected} comes {found}: records between them are missing")]
    Gap {
        /// What was expected.
        expected: Seq,
        /// What came.
        found: Seq,
    },
}

/// Why a session could not be created or opened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no such session.
    #[error("there is no session {0}")]
    NotFound(SessionId),
    /// The session exists already.
    #[error("the session {0} exists already")]
    AlreadyExists(SessionId),
    /// The session was deleted, and its id is not used again.
    #[error("the session {0} was deleted, and its id is not used again; use another id")]
    Deleted(SessionId),
    /// Its journal could not be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// What its state depends on could not be read to its end. Open it read-only to read what is intact.
    #[error("the history cannot be read: {0}; open the session read-only")]
    History(#[from] ReplayError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The first events could not be prepared.
    #[error("the first events could not be prepared: {0}")]
    Prepare(Refusal),
    /// A store of this layout does not do this.
    #[error("a store of the layout {0:?} does not do this")]
    Layout(super::Layout),
}

/// Why a store could not be opened or listed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory holds something else.
    #[error("{} is not a stepwell store; choose an empty or new directory", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// There is nothing at this place, and it was not to be created.
    #[error("there is no store at {}", path.display())]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds sessions, but not the file that says what it is. That file is the same in
    /// every store of this format and layout, and the sessions do not need it: `Store::open` writes it
    /// anew.
    #[error("the store's file {} is missing, its sessions are there; copy the STORE file of another store of the same layout to this place (it is the same in all), or open the store for writing, which makes it anew: the sessions are not touched", path.display())]
    StoreFileMissing {
        /// The file.
        path: PathBuf,
    },
    /// A backup that was cut off: it is not complete, and no store.
    #[error("{} holds a backup that was cut off; remove it and back up again", path.display())]
    UnfinishedBackup {
        /// The directory.
        path: PathBuf,
    },
    /// The file that says what the store is, is damaged.
    #[error("{} is damaged; move it away and open the store for writing: it is written anew, the sessions are not touched", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A newer version wrote it.
    #[error("{} has format version {version}; use a newer build", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The one journal of its sessions could not be opened; [`OpenError::Locked`] if another process has
    /// the store open.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// A store of this layout does not do this.
    #[error("a store of the layout {0:?} does not do this")]
    Layout(super::Layout),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a session was not closed cleanly. What was acknowledged is as safe as before.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionCloseError {
    /// Its journal was not closed cleanly.
    #[error(transparent)]
    Journal(#[from] CloseError),
    /// As [`Refusal::Reentrant`]; the session goes on.
    #[error("an observer or a collector of metrics must not close while it is being told")]
    Reentrant,
}
