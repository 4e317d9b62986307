//! The errors of a journal: one enum per operation, each variant saying where and whose fault.

use std::cmp::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Lsn;
use super::names::SegmentName;
use crate::identity::SessionId;

/// What was asked of the disk when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Opening a file or directory.
    Open,
    /// Creating a file or directory.
    Create,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making contents durable.
    Sync,
    /// Making names durable.
    SyncDirectory,
    /// Changing or asking the length.
    Length,
    /// Giving a file a second name.
    Link,
    /// Renaming.
    Rename,
    /// Removing a name.
    Remove,
    /// Listing a directory.
    List,
    /// Asking for the identity of a file.
    Stat,
    /// Taking a lock.
    Lock,
}

/// A call to the disk that failed: which, where, and what the system said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation:?} of {} failed: {}", path.display(), said(*kind, *code))]
pub struct DiskError {
    /// The call.
    pub operation: Operation,
    /// The file or directory.
    pub path: PathBuf,
    /// The offset in the file, for reads and writes.
    pub offset: Option<u64>,
    /// The kind of the error.
    pub kind: io::ErrorKind,
    /// The system's own number for it, if there is one.
    pub code: Option<i32>,
}

/// What the system said, in its own words where it has a number for it.
fn said(kind: io::ErrorKind, code: Option<i32>) -> String {
    code.map_or_else(
        || kind.to_string(),
        |code| io::Error::from_raw_os_error(code).to_string(),
    )
}

impl DiskError {
    /// From what the system said.
    pub fn new(operation: Operation, path: &Path, error: &io::Error) -> DiskError {
        DiskError {
            operation,
            path: path.to_owned(),
            offset: None,
            kind: error.kind(),
            code: error.raw_os_error(),
        }
    }

    pub(crate) fn at(self, offset: u64) -> DiskError {
        DiskError {
            offset: Some(offset),
            ..self
        }
    }

    /// Whether the disk or a quota is full, or a file as large as it may be.
    pub fn is_full(&self) -> bool {
        matches!(
            self.kind,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }

    /// Whether the process, or the system, has as many files open as it may.
    pub fn is_out_of_handles(&self) -> bool {
        self.code.is_some_and(crate::vfs::is_out_of_handles)
    }
}

/// Why a journal stopped taking appends (P8, W10). The first cause is kept; only reopening ends it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; open the session again: recovery decides what was kept")]
pub struct Fault(Arc<FaultCause>);

impl Fault {
    pub(crate) fn new(cause: FaultCause) -> Fault {
        Fault(Arc::new(cause))
    }

    /// The first cause.
    pub fn cause(&self) -> &FaultCause {
        &self.0
    }
}

/// The first cause of a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultCause {
    /// A write of frames failed: bytes may be on disk.
    #[error("a write of the log failed: {0}")]
    Write(DiskError),
    /// A sync failed. It is never tried again: a later success would prove nothing (P8).
    #[error("a sync of the log failed: {0}")]
    Sync(DiskError),
    /// The directory could not be made durable.
    #[error("a sync of the journal's directory failed: {0}")]
    Directory(DiskError),
    /// Another process opened the journal for writing; this one lost its right (W12).
    #[error("another process has taken over the journal {}", path.display())]
    Overtaken {
        /// The journal's directory.
        path: PathBuf,
    },
    /// A thread panicked while it was writing.
    #[error("a thread panicked while it was writing to the log")]
    Panic,
    /// It could not be checked whether this process still owns the journal (W12).
    #[error("the ownership of the journal could not be checked: {0}")]
    Ownership(DiskError),
}

/// Why an append did not happen, for certain: no byte of it was handed to a write call (W3). The
/// journal goes on, except after [`NotCommitted::Faulted`] and [`NotCommitted::Closed`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotCommitted {
    /// The caller gave no record.
    #[error("an append needs at least one record")]
    Empty,
    /// The caller's record is larger than the journal's limit.
    #[error("a record of {length} bytes is above the limit of {limit} bytes")]
    RecordTooLarge {
        /// Bytes of the record.
        length: u64,
        /// The journal's limit in bytes.
        limit: u64,
    },
    /// The caller's batch has more records than a batch may have.
    #[error("a batch of {count} records is above the limit of {limit}")]
    BatchTooLarge {
        /// Records in the batch.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The caller's batch has more bytes than a segment may be large.
    #[error("a batch of {bytes} bytes is above the limit of {limit} bytes")]
    BatchTooLong {
        /// Bytes of its frames.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The caller expected another position of the session; nothing was written.
    #[error("the session stands at {actual}, not at {expected} as the caller expected")]
    WrongPosition {
        /// What the caller expected.
        expected: super::Seq,
        /// The session's last sequence.
        actual: super::Seq,
    },
    /// Too much waits for the disk already, and the caller did not want to wait. Try again later, or
    /// wait ([`Journal::append`](super::Journal::append)).
    #[error("{records} records of {bytes} bytes wait for the disk already")]
    Busy {
        /// Records that wait.
        records: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// The disk is full, found while space was prepared or the file of a large body was written. Free
    /// some space and try again.
    #[error("the disk is full: {0}; free some space and try again")]
    StorageFull(DiskError),
    /// The process has as many files open as it may: they could not be opened to write to. Close or
    /// park some sessions, or raise the limit, and try again.
    #[error("no file handle is left{}; park or close some sessions, or raise the limit", of_limit(*limit))]
    TooManyHandles {
        /// How many handles the process may have, where the system says so.
        limit: Option<u64>,
    },
    /// The next segment could not be prepared for another reason.
    #[error("the next segment could not be prepared: {0}")]
    Prepare(DiskError),
    /// Where the session stands cannot be read, in a journal that many share. Read the session to see
    /// what is damaged; the others go on.
    #[error("where the session stands cannot be read: {0}")]
    TailUnreadable(ReadError),
    /// The journal was faulted before this append began.
    #[error("the journal is faulted: {0}")]
    Faulted(Fault),
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// The outcome of an append that did not return a receipt (P7).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Definitely not written; the journal goes on.
    #[error("not committed: {0}")]
    NotCommitted(#[from] NotCommitted),
    /// Bytes may be on disk. The journal is faulted; reopening decides.
    #[error("the outcome is unknown: {0}")]
    Unknown(Fault),
}

/// What is wrong with a journal, by the row of the decision table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// Row 4: segments with frames, but no manifest that can be read.
    #[error("there is no readable manifest, but there are segments (docs/guarantees.md, row 4)")]
    ManifestLost,
    /// Row 4: a segment bears a newer epoch than the highest manifest.
    #[error(
        "{segment} is newer than the highest manifest, so a newer manifest is lost (docs/guarantees.md, row 4)"
    )]
    ManifestOutdated {
        /// The segment.
        segment: SegmentName,
    },
    /// Row 5: a listed segment is absent.
    #[error("{segment} is listed but absent (docs/guarantees.md, row 5)")]
    SegmentMissing {
        /// The segment.
        segment: SegmentName,
    },
    /// Row 5: every listed segment is finished.
    #[error(
        "all listed segments are finished, so the last one is lost (docs/guarantees.md, row 5)"
    )]
    SuccessorLost,
    /// Row 6: a finished segment is not whole.
    #[error("{segment} is damaged at offset {offset}, at Lsn {lsn} (docs/guarantees.md, row 6)")]
    Sealed {
        /// The segment.
        segment: SegmentName,
        /// Where the first bad frame stands.
        offset: u64,
        /// The Lsn expected there.
        lsn: Lsn,
    },
    /// Row 7: the static header of the active segment is bad.
    #[error("the header of {segment} is damaged (docs/guarantees.md, row 7)")]
    Header {
        /// The segment.
        segment: SegmentName,
    },
    /// Row 7: a segment behind the active one was used.
    #[error(
        "{segment} was used, although the one before it is not finished (docs/guarantees.md, row 7)"
    )]
    SuccessorUsed {
        /// The segment.
        segment: SegmentName,
    },
    /// Row 8: the active segment is shorter than it was made.
    #[error(
        "{segment} has {length} of the {expected} bytes that it was made with, and no slot that can be read says that a close cut it (docs/guarantees.md, row 8)"
    )]
    Truncated {
        /// The segment.
        segment: SegmentName,
        /// Its length in bytes.
        length: u64,
        /// The length it was made with.
        expected: u64,
    },
    /// Row 9: acknowledged records cannot be read.
    #[error(
        "{segment} is damaged at offset {offset}, where the record with Lsn {first} should be; records up to Lsn {last} were acknowledged{} (docs/guarantees.md, row 9)",
        without_header(missing)
    )]
    Acknowledged {
        /// The segment.
        segment: SegmentName,
        /// Where the first bad frame stands.
        offset: u64,
        /// The first Lsn that is missing.
        first: Lsn,
        /// The last Lsn known to have been durable.
        last: Lsn,
        /// The Lsns among them without a readable header, as ranges.
        missing: Vec<(Lsn, Lsn)>,
    },
}

/// The records of a range, for people. It may be empty: a segment of which no record is known.
fn records(first: Lsn, last: Lsn) -> String {
    match first.cmp(&last) {
        Ordering::Less => format!("the records with Lsn {first} to {last}"),
        Ordering::Equal => format!("the record with Lsn {first}"),
        Ordering::Greater => format!("any record from Lsn {first} on"),
    }
}

/// The Lsns of which nothing is left, for people.
fn without_header(missing: &[(Lsn, Lsn)]) -> String {
    let ranges: Vec<String> = missing
        .iter()
        .take(8)
        .map(|(first, last)| match first == last {
            true => format!("{first}"),
            false => format!("{first} to {last}"),
        })
        .collect();
    match ranges.is_empty() {
        true => String::new(),
        false => format!(", and of Lsn {} nothing is left", ranges.join(", ")),
    }
}

/// Who holds a lock, for people.
fn held_by(holder: Option<&super::Holder>) -> String {
    match holder {
        Some(holder) if holder.is_this_process() => ", by this process".to_owned(),
        Some(holder) => format!(", by {holder}"),
        None => String::new(),
    }
}

/// Why a journal could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no journal here.
    #[error("there is no journal at {}", path.display())]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// There is a journal already where one was to be created.
    #[error("there is a journal at {} already", path.display())]
    AlreadyExists {
        /// The directory.
        path: PathBuf,
    },
    /// Another process, or another handle of this one, has it open for writing.
    #[error("{} is open for writing{}; close it there (reading it works meanwhile)", path.display(), held_by(.holder.as_ref()))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, if that can be told. The lock alone decides; this is for people.
        holder: Option<super::Holder>,
    },
    /// The disk failed; nothing was decided from it (row 1).
    #[error("{0}; nothing was decided from it (docs/guarantees.md, row 1)")]
    Disk(DiskError),
    /// A newer version wrote it (row 2).
    #[error("{} has format version {version}, this build knows up to {known}; use a newer build (docs/guarantees.md, row 2)", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest version that this build knows.
        known: u32,
    },
    /// A file of another log stands in the place of ours (row 2).
    #[error("{} belongs to another log; put the right file back (docs/guarantees.md, row 2)", path.display())]
    ForeignLog {
        /// The file.
        path: PathBuf,
    },
    /// The journal belongs to another session (robustness: records must not enter foreign files).
    #[error("{} belongs to session {found}, not to {expected}", path.display())]
    WrongOwner {
        /// The directory.
        path: PathBuf,
        /// Whose it should be.
        expected: SessionId,
        /// Whose it is.
        found: SessionId,
    },
    /// Damage to acknowledged data (rows 4 to 9): writing is refused, nothing is cut.
    #[error("{} is damaged: {damage}; open it read-only to read what is intact", path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// Another process took the journal over while it was being opened (W12).
    #[error("another process has taken over {} meanwhile; try again", path.display())]
    Overtaken {
        /// The directory.
        path: PathBuf,
    },
    /// A sync failed while opening; what was published counts, the rest does not. Open it again.
    #[error("a sync failed while opening: {0}; open it again")]
    Sync(DiskError),
    /// Who was told of the progress ended it. What was on disk counts as before.
    #[error("opening {} was ended while it was reading", path.display())]
    Aborted {
        /// The directory.
        path: PathBuf,
    },
    /// The disk is full. Read-only opening needs no space.
    #[error("no space to open for writing: {0}; free some space, or open it read-only")]
    StorageFull(DiskError),
    /// The process has as many files open as it may. Close or park some sessions, or raise the limit.
    #[error("no file handle is left{}; park or close some sessions, or raise the limit", of_limit(*limit))]
    TooManyHandles {
        /// How many handles the process may have, where the system says so.
        limit: Option<u64>,
    },
    /// The first group of the opening was not committed or is unknown.
    #[error("the opening fence was not committed: {0}")]
    Fence(AppendError),
    /// The capacity options do not make sense.
    #[error(
        "a segment capacity of {capacity} bytes is not a multiple of 4096, or below 4096 or above 1 GiB"
    )]
    Capacity {
        /// The capacity asked for.
        capacity: u64,
    },
    /// The option for the largest record is not what the format allows: fences must fit, and nothing
    /// may be larger than the limit.
    #[error("a largest record of {bytes} bytes is not allowed; from 32 to {limit} bytes are")]
    MaxPayload {
        /// The largest record asked for.
        bytes: u32,
        /// What the format allows.
        limit: u32,
    },
    /// The system gave no random bytes for the id of a new log.
    #[error("the system gave no random bytes")]
    NoRandomness,
}

impl OpenError {
    /// Tells the want of handles from other failures of the disk.
    pub(crate) fn of_handles(self) -> OpenError {
        match self {
            OpenError::Disk(error) | OpenError::Sync(error) if error.is_out_of_handles() => {
                OpenError::TooManyHandles {
                    limit: crate::vfs::handle_limit(),
                }
            }
            OpenError::Fence(AppendError::NotCommitted(NotCommitted::TooManyHandles { limit })) => {
                OpenError::TooManyHandles { limit }
            }
            other => other,
        }
    }
}

fn of_limit(limit: Option<u64>) -> String {
    limit.map_or_else(String::new, |limit| {
        format!(" of the {limit} of this process")
    })
}

/// Why a record could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The disk failed.
    #[error("{0}")]
    Disk(DiskError),
    /// The bytes are not those that were written. Reading goes on behind them.
    #[error("{} is damaged at offset {offset}: {} cannot be read", path.display(), records(*.first, *.last))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// The first Lsn that cannot be read.
        first: Lsn,
        /// The last one before reading goes on.
        last: Lsn,
    },
    /// The header of a segment is damaged. Its frames have checksums of their own and are read all
    /// the same; those that cannot be read are reported one by one.
    #[error("the header of {} is damaged; {} can be checked all the same, one by one", path.display(), records(*.first, *.last))]
    Header {
        /// The file.
        path: PathBuf,
        /// The first Lsn of the segment.
        first: Lsn,
        /// Its last.
        last: Lsn,
    },
    /// The record was deleted, or given up by a repair.
    #[error("nothing is left of {}: {kind:?}", records(*.first, *.last))]
    Gap {
        /// The first Lsn.
        first: Lsn,
        /// The last Lsn.
        last: Lsn,
        /// Erased or lost.
        kind: super::FrameKind,
    },
    /// A newer version wrote a kind of frame that must not be passed over.
    #[error(
        "the frame at {lsn} has kind {kind}, which this build does not know; use a newer build"
    )]
    UnknownFrame {
        /// Its Lsn.
        lsn: Lsn,
        /// Its kind.
        kind: u8,
    },
}

/// Why a close was not clean. The data is as safe as before; the next opening recovers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The journal was faulted: nothing that destroys evidence follows a fault (W10).
    #[error("the journal is faulted: {0}")]
    Faulted(Fault),
    /// The disk failed while closing.
    #[error("closing failed: {0}; the next opening recovers")]
    Disk(DiskError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{RealVfs, Vfs};

    #[test]
    fn ranges_are_said_as_what_they_are() {
        let said = |first, last| {
            let (first, last) = (Lsn::new(first), Lsn::new(last));
            let path = PathBuf::from("seg");
            ReadError::Header { path, first, last }.to_string()
        };
        assert!(said(5, 6).contains("the records with Lsn 5 to 6 can"));
        assert!(said(5, 5).contains("the record with Lsn 5 can"));
        assert!(said(46, 45).contains("any record from Lsn 46 on can"));
    }

    #[test]
    fn a_lock_names_its_holder_and_an_error_of_the_disk_the_words_of_the_system() {
        let locked = |holder| {
            let path = PathBuf::from("LOCK");
            OpenError::Locked { path, holder }.to_string()
        };
        assert!(locked(Some(RealVfs.holder())).contains("for writing, by this process; "));
        let mut other = RealVfs.holder();
        other.pid += 1;
        assert!(locked(Some(other.clone())).contains(&format!("by {other}; ")));
        assert!(locked(None).contains("for writing; "));
        let absent = io::Error::from_raw_os_error(2);
        let error = DiskError::new(Operation::Open, Path::new("x"), &absent);
        assert_eq!(error.to_string(), format!("Open of x failed: {absent}"));
    }
}
