//! Why an import did not happen.

use crate::event::{DecodeError, EncodeError, Kind};
use crate::identity::{MintError, SessionId};
use crate::journal::{AppendError, CloseError, DiskError, OpenError};
use crate::store::making::MakingError;

/// Why a session was not imported. There is nothing of it in the store then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The lines could not be read.
    #[error("line {line} could not be read: {source}")]
    Read {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no event.
    #[error("line {line}: {source}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: DecodeError,
    },
    /// A line is longer than any event.
    #[error("line {line} has more than {max} bytes; no event has")]
    LineTooLong {
        /// The line, from 1.
        line: u64,
        /// Bytes that a line may have.
        max: usize,
    },
    /// A line belongs to another session. Import each session from a file of its own.
    #[error(
        "line {line} belongs to session {found}, those before it to {expected}; give each session a file of its own"
    )]
    Foreign {
        /// The line, from 1.
        line: u64,
        /// Whose lines came before.
        expected: SessionId,
        /// Whose it is.
        found: SessionId,
    },
    /// The first event does not begin a session.
    #[error(
        "line {line}: a session begins with SessionStarted, this is {found}; give the whole session"
    )]
    NotTheBeginning {
        /// The line, from 1.
        line: u64,
        /// The kind of its event.
        found: Kind,
    },
    /// The sequence of a line is not above those before it.
    #[error("line {line} has the sequence {seq}, which is not above the ones before")]
    OutOfOrder {
        /// The line, from 1.
        line: u64,
        /// Its `journal_seq`.
        seq: u64,
    },
    /// An event refers to a sequence so far back, behind so many lines that were passed over, that
    /// its new number is not known any more.
    #[error(
        "line {line} refers to the sequence {to}, too far back among lines that were passed over; leave those out of the file"
    )]
    TooFarBack {
        /// The line, from 1.
        line: u64,
        /// The sequence.
        to: u64,
    },
    /// There is no event.
    #[error("there is no event in it")]
    Empty,
    /// The id is taken.
    #[error(
        "the session {0} exists already; import under a new id (--new-id), or delete the other one"
    )]
    AlreadyExists(SessionId),
    /// The id belonged to a session that was deleted, and is not used again.
    #[error(
        "the session {0} was deleted, and its id is not used again; import under a new id (--new-id)"
    )]
    Deleted(SessionId),
    /// An event cannot be stored.
    #[error("line {line}: {source}")]
    Encode {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: EncodeError,
    },
    /// No id could be made.
    #[error(transparent)]
    Mint(#[from] MintError),
    /// The journal could not be made.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The journal took no more, up to this line.
    #[error("the events up to line {line} could not be written: {source}")]
    Append {
        /// The last line that was read.
        line: u64,
        /// Why.
        source: AppendError,
    },
    /// The journal could not be closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A store of this layout does not import.
    #[error("a store of the layout {0:?} does not import sessions")]
    Layout(crate::store::Layout),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl From<MakingError> for ImportError {
    fn from(error: MakingError) -> ImportError {
        match error {
            MakingError::AlreadyExists(id) => ImportError::AlreadyExists(id),
            MakingError::Deleted(id) => ImportError::Deleted(id),
            MakingError::Mint(error) => ImportError::Mint(error),
            MakingError::Journal(error) => ImportError::Journal(error),
            MakingError::Disk(error) => ImportError::Disk(error),
        }
    }
}
