//! Reading a session's events from its log.

use std::sync::Arc;

use super::ReplayError;
use super::boundary::SessionCore;
use super::committed::Committed;
use crate::event::{Decoded, Key, Limits, decode_record};
use crate::identity::SessionId;
use crate::journal::{Entry, ReadError, Seq};

/// Decodes one record; `None` for an optional event of a newer version, which is passed over.
pub(super) fn decode(
    session: SessionId,
    entry: &Entry,
    limits: &Limits,
) -> Result<Option<(Committed, Option<Key>)>, ReplayError> {
    if entry.session != session {
        return Err(ReplayError::Foreign {
            seq: entry.seq,
            found: entry.session,
        });
    }
    match decode_record(session, &entry.payload, limits) {
        Ok(Decoded::Event { event, key }) => Ok(Some((
            Committed::read(
                event,
                entry.seq,
                entry.lsn,
                entry.payload.len(),
                entry.proven,
            ),
            key,
        ))),
        Ok(Decoded::Skipped { .. }) => Ok(None),
        Err(source) => Err(ReplayError::Decode {
            seq: entry.seq,
            source,
        }),
    }
}

/// Checks that sequences follow each other; damage that was reported may leave a gap behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    expected: Seq,
    reported: bool,
}

impl Order {
    pub(super) fn from(expected: Seq) -> Order {
        Order {
            expected,
            reported: false,
        }
    }

    pub(super) fn damage(&mut self) {
        self.reported = true;
    }

    /// The record at this sequence comes next.
    pub(super) fn take(&mut self, seq: Seq) -> Result<(), ReplayError> {
        let expected = self.expected;
        self.expected = seq.next();
        let reported = std::mem::take(&mut self.reported);
        if seq == expected || reported && seq > expected {
            return Ok(());
        }
        Err(ReplayError::Gap {
            expected,
            found: seq,
        })
    }
}

/// The committed events of a session, in order. An event that cannot be read is one error, and
/// reading goes on behind it (P6); an error of the disk ends it.
pub struct Replay {
    session: SessionId,
    limits: Limits,
    entries: Box<dyn Iterator<Item = Result<Entry, ReadError>> + Send>,
    order: Order,
    /// A gap was found before this entry, which comes next.
    held: Option<Entry>,
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Replay {
    pub(super) fn new(core: &Arc<SessionCore>, from: Seq) -> Replay {
        let from = from.max(Seq::new(1));
        Replay {
            session: core.id,
            limits: core.limits,
            entries: core.log.read(from),
            order: Order::from(from),
            held: None,
        }
    }

    fn next_entry(&mut self) -> Option<Result<Entry, ReplayError>> {
        if let Some(held) = self.held.take() {
            return Some(Ok(held));
        }
        match self.entries.next()? {
            Ok(entry) => match self.order.take(entry.seq) {
                Ok(()) => Some(Ok(entry)),
                Err(gap) => {
                    self.held = Some(entry);
                    Some(Err(gap))
                }
            },
            Err(error @ ReadError::Header { .. }) => Some(Err(error.into())),
            Err(error) => {
                self.order.damage();
                Some(Err(error.into()))
            }
        }
    }
}

impl Iterator for Replay {
    type Item = Result<Committed, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.next_entry()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error)),
            };
            match decode(self.session, &entry, &self.limits) {
                Ok(Some((committed, _))) => return Some(Ok(committed)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
