//! Reading a session's events from its log.

use super::blobs::Blobs;
use super::boundary::SessionCore;
use super::committed::Committed;
use super::{BodyProblem, ReplayError, Store};
use crate::event::{
    DecodeError, Decoded, Key, Kind, Limits, Outside, RecordHeader, StoredBody, decode_header,
    decode_outside, decode_record,
};
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

/// What a record holds, as far as the log says it.
pub(super) enum Recorded {
    Event(Committed, Option<Key>),
    /// An event whose body stands in a file.
    Outside(RecordHeader<'static>),
    /// An optional event of a newer version.
    Skipped,
}

/// Makes events of the records of one session.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    pub(super) session: SessionId,
    pub(super) limits: Limits,
    pub(super) blobs: Blobs,
}

impl Decoder {
    /// What stands in the log; bodies in files are not looked at.
    pub(super) fn look(&self, entry: &Entry) -> Result<Recorded, ReplayError> {
        own(self.session, entry)?;
        match decode_record(self.session, &entry.payload, &self.limits) {
            Ok(Decoded::Event { event, key }) => {
                let length = entry.payload.len();
                let committed = Committed::read(event, entry.seq, entry.lsn, length, entry.proven);
                Ok(Recorded::Event(committed, key))
            }
            Ok(Decoded::Outside(record)) => Ok(Recorded::Outside(record)),
            Ok(Decoded::Skipped { .. }) => Ok(Recorded::Skipped),
            Err(source) => Err(ReplayError::Decode {
                seq: entry.seq,
                source,
            }),
        }
    }

    /// The event of a record, with its body wherever it stands; `None` for an optional event of a
    /// newer version, which is passed over.
    pub(super) fn decode(
        &self,
        entry: &Entry,
    ) -> Result<Option<(Committed, Option<Key>)>, ReplayError> {
        match self.look(entry)? {
            Recorded::Event(committed, key) => Ok(Some((committed, key))),
            Recorded::Outside(record) => {
                let committed = self.fetch(entry, &record)?;
                Ok(Some((committed, record.key)))
            }
            Recorded::Skipped => Ok(None),
        }
    }

    /// The event of a record whose body stands in a file. The body is checked each time (P6).
    pub(super) fn fetch(
        &self,
        entry: &Entry,
        record: &RecordHeader<'_>,
    ) -> Result<Committed, ReplayError> {
        let seq = entry.seq;
        let failed = |source| ReplayError::Decode { seq, source };
        let StoredBody::Outside(outside) = record.body else {
            return Err(failed(DecodeError::Header));
        };
        let (body, path) = self.blobs.read(seq, record, &outside)?;
        let event = decode_outside(self.session, record, &body, &self.limits);
        let event = event.map_err(|source| match source {
            DecodeError::WrongBody => ReplayError::Body {
                seq,
                path,
                problem: BodyProblem::Digest,
            },
            source => failed(source),
        })?;
        let length = entry.payload.len().saturating_sub(Outside::BYTES) + body.len();
        Ok(Committed::read(event, seq, entry.lsn, length, entry.proven))
    }
}

impl Store {
    /// The event of a record of a session, and its key: of one that was read with [`JournalView`] or a
    /// [`JournalFollower`], also in another process. Its body is read from its file if it stands in one.
    /// `None` for an optional event of a newer version. Takes no lock, and blocks.
    ///
    /// # Errors
    /// [`ReplayError`]; the other records can be read all the same.
    ///
    /// [`JournalView`]: crate::journal::JournalView
    /// [`JournalFollower`]: crate::journal::JournalFollower
    pub fn event_of(
        &self,
        id: SessionId,
        entry: &Entry,
    ) -> Result<Option<(Committed, Option<Key>)>, ReplayError> {
        self.decoder(id).decode(entry)
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
    decoder: Decoder,
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
            .field("session", &self.decoder.session)
            .finish_non_exhaustive()
    }
}

impl Replay {
    pub(super) fn new(core: &SessionCore, from: Seq) -> Replay {
        let from = from.max(Seq::new(1));
        Replay {
            decoder: core.decoder.clone(),
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
        decode_header(&entry.payload, &self.decoder.limits).map_or(true, |header| {
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
            match self.decoder.decode(&entry) {
                Ok(Some((committed, _))) => return Some(Ok(committed)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
