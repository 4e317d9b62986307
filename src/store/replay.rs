//! Reading a session's events from its log.

use super::ReplayError;
use super::boundary::SessionCore;
use super::committed::Committed;
use crate::event::{Decoded, Key, Kind, Limits, decode_header, decode_record};
use crate::identity::{LoopId, SessionId};
use crate::journal::{Entry, ReadError, Seq};

/// Whether a record is one of the session.
pub(super) fn own(session: SessionId, entry: &Entry) -> Result<(), ReplayError> {
    match entry.session == session {
        true => Ok(()),
        false => Err(ReplayError::Foreign {
            seq: entry.seq,
            found: entry.session,
        }),
    }
}

/// Decodes one record; `None` for an optional event of a newer version, which is passed over.
pub(super) fn decode(
    session: SessionId,
    entry: &Entry,
    limits: &Limits,
) -> Result<Option<(Committed, Option<Key>)>, ReplayError> {
    own(session, entry)?;
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

/// Which records are decoded: those of a loop, or of all, and of some kinds.
#[derive(Clone, Copy)]
struct Wanted {
    only: Option<LoopId>,
    kinds: fn(Kind) -> bool,
}

/// The committed events of a session, in order. An event that cannot be read is one error, and
/// reading goes on behind it (P6); an error of the disk ends it.
pub struct Replay {
    session: SessionId,
    limits: Limits,
    entries: Box<dyn Iterator<Item = Result<Entry, ReadError>> + Send>,
    order: Order,
    /// The last record that is given.
    last: Seq,
    /// Others are passed over without a look at their bodies.
    wanted: Option<Wanted>,
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
    pub(super) fn new(core: &SessionCore, from: Seq) -> Replay {
        let from = from.max(Seq::new(1));
        Replay {
            session: core.id,
            limits: core.limits,
            entries: core.log.read(from),
            order: Order::from(from),
            last: Seq::new(u64::MAX),
            wanted: None,
            held: None,
        }
    }

    /// Those of some kinds, up to a record.
    pub(super) fn of_kinds(
        core: &SessionCore,
        from: Seq,
        last: Seq,
        kinds: fn(Kind) -> bool,
    ) -> Replay {
        Replay {
            last,
            wanted: Some(Wanted { only: None, kinds }),
            ..Replay::new(core, from)
        }
    }

    /// Those of some kinds that one loop has, up to a record.
    pub(super) fn of_loop(
        core: &SessionCore,
        loop_id: LoopId,
        from: Seq,
        last: Seq,
        kinds: fn(Kind) -> bool,
    ) -> Replay {
        Replay {
            last,
            wanted: Some(Wanted {
                only: Some(loop_id),
                kinds,
            }),
            ..Replay::new(core, from)
        }
    }

    /// Whether a record may be one of those that are wanted.
    fn wants(&self, entry: &Entry) -> bool {
        let Some(Wanted { only, kinds }) = self.wanted else {
            return true;
        };
        // What is strange shows when it is decoded.
        decode_header(&entry.payload, &self.limits).map_or(true, |header| {
            header.kind.is_none_or(kinds) && only.is_none_or(|only| only == header.loop_id)
        })
    }

    fn next_entry(&mut self) -> Option<Result<Entry, ReplayError>> {
        if let Some(held) = self.held.take() {
            return (held.seq <= self.last).then_some(Ok(held));
        }
        if self.order.expected > self.last {
            return None;
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
            if entry.seq > self.last {
                return None;
            }
            if !self.wants(&entry) {
                continue;
            }
            match decode(self.session, &entry, &self.limits) {
                Ok(Some((committed, _))) => return Some(Ok(committed)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
