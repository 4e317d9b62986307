//! Whose records a journal holds, and how large its parts are.

use super::error::OpenError;
use super::segment::BLOCK;
use super::{FENCE_LEN, frame};
use crate::identity::SessionId;
use crate::metrics::Meter;

/// Whose records a journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One session; the manifest names it, and another session's opening is refused.
    Session(SessionId),
    /// Many sessions.
    Shared,
}

impl Owner {
    pub(super) fn session(self) -> SessionId {
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
    /// How many records may wait for a group; 4,096 by default. Appends wait for room then, and
    /// those that must not wait are refused ([`NotCommitted::Busy`](super::NotCommitted::Busy)).
    pub queue_records: usize,
    /// How many bytes may wait for a group; 16 MiB by default. A larger batch goes into an empty
    /// queue.
    pub queue_bytes: u64,
    /// Where its counters and times go; nowhere by default.
    pub meter: Meter,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            first_capacity: 64 * 1024,
            max_capacity: 16 * 1024 * 1024,
            max_payload: 17 * 1024 * 1024,
            supersede_limit: 1024 * 1024,
            quarantine_files: 64,
            queue_records: 4096,
            queue_bytes: 16 * 1024 * 1024,
            meter: Meter::default(),
        }
    }
}

impl JournalOptions {
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let limit = frame::MAX_PAYLOAD;
        if self.max_payload > limit || self.max_payload < FENCE_LEN {
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
    pub(super) fn capacity_after(&self, capacity: u64, needed: u64) -> u64 {
        let grown = capacity
            .saturating_mul(4)
            .min(self.max_capacity)
            .max(self.first_capacity);
        grown.max(needed.next_multiple_of(BLOCK))
    }
}
