//! What is appended, and the proof that it is durable.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use super::frame::{self, FrameKind};
use super::{Lsn, Position, Seq};
use crate::identity::SessionId;

/// A record to append, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// The session that it belongs to.
    pub session: SessionId,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// A record to append that is given away: a large payload is moved to the write, not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The session that it belongs to.
    pub session: SessionId,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Proof that a batch is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the receipt is the proof that the records are durable"]
pub struct Receipt {
    /// The first Lsn of the batch.
    pub first: Lsn,
    /// Where each record is, in the order in which they were given.
    pub records: PlacedRecords,
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

/// The places of the records of a batch: a slice. Of a single record it allocates nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PlacedRecords(Few);

#[derive(Clone, PartialEq, Eq)]
enum Few {
    One([Placed; 1]),
    Many(Vec<Placed>),
}

impl PlacedRecords {
    /// Of as many records as the iterator gives.
    pub(crate) fn of(mut records: impl Iterator<Item = Placed>) -> PlacedRecords {
        PlacedRecords(match (records.next(), records.next()) {
            (Some(one), None) => Few::One([one]),
            (first, second) => Few::Many(first.into_iter().chain(second).chain(records).collect()),
        })
    }
}

impl Deref for PlacedRecords {
    type Target = [Placed];

    fn deref(&self) -> &[Placed] {
        match &self.0 {
            Few::One(one) => one,
            Few::Many(many) => many,
        }
    }
}

impl fmt::Debug for PlacedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Payloads above this many bytes are written from where they are; smaller ones are copied into the
/// buffer of their group.
pub(crate) const LARGE: usize = 64 * 1024;

/// A frame before it is stamped. Its payload checksum is computed by the caller, outside the queue
/// and the token (W1).
pub(crate) struct Unstamped<'a> {
    pub(crate) kind: FrameKind,
    pub(crate) session: SessionId,
    pub(crate) payload: Cow<'a, [u8]>,
    pub(crate) payload_crc: u32,
}

impl<'a> Unstamped<'a> {
    pub(crate) fn new(kind: FrameKind, session: SessionId, payload: Cow<'a, [u8]>) -> Self {
        // Only an owned payload can wait for another thread; a large one is copied here, where
        // nobody waits for it.
        let payload = match payload {
            Cow::Borrowed(borrowed) if borrowed.len() > LARGE => Cow::Owned(borrowed.to_vec()),
            other => other,
        };
        Unstamped {
            kind,
            session,
            payload_crc: frame::payload_crc(&payload),
            payload,
        }
    }

    pub(crate) fn record(record: &NewRecord<'a>) -> Unstamped<'a> {
        let payload = Cow::Borrowed(record.payload);
        Unstamped::new(FrameKind::Record, record.session, payload)
    }

    pub(crate) fn owned(record: OwnedRecord) -> Unstamped<'static> {
        let payload = Cow::Owned(record.payload);
        Unstamped::new(FrameKind::Record, record.session, payload)
    }

    /// Bytes of its frame on disk.
    pub(crate) fn frame_len(&self) -> u64 {
        frame::frame_len(self.payload.len() as u64)
    }
}
