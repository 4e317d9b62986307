//! What an opening found, for people.

use std::path::PathBuf;

use super::Lsn;

/// What recovery found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The epoch of this opening: how often the journal was opened for writing.
    pub epoch: u64,
    /// Everything up to here was proven durable (*W*).
    pub watermark: Lsn,
    /// The last Lsn that was kept. Those above the watermark were kept although nobody can know
    /// whether they were acknowledged.
    pub last: Lsn,
    /// What was cut off, all of it not proven acknowledged.
    pub cut: Option<Cut>,
}

impl RecoveryReport {
    pub(crate) fn fresh(epoch: u64) -> RecoveryReport {
        RecoveryReport {
            epoch,
            watermark: Lsn::ZERO,
            last: Lsn::ZERO,
            cut: None,
        }
    }
}

/// A torn tail: bytes that were not kept. Nothing in them is proven to have been acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The segment.
    pub path: PathBuf,
    /// Where the cut begins.
    pub offset: u64,
    /// Bytes up to the last one that is not zero.
    pub bytes: u64,
    /// The first and last Lsn that can still be read among them.
    pub lsns: Option<(Lsn, Lsn)>,
    /// Whether it begins with whole records of a batch that is not whole.
    pub incomplete_batch: bool,
    /// Where the old file is kept.
    pub quarantine: Quarantine,
}

/// What became of a file of which something was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quarantine {
    /// It is kept under this name.
    Kept {
        /// The name in the quarantine folder.
        path: PathBuf,
    },
    /// The folder holds as many files as the options allow, so the cut bytes were not kept.
    Full {
        /// The folder.
        folder: PathBuf,
    },
    /// Opened read-only: the file is where it was.
    NotNeeded,
}
