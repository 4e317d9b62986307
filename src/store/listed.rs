//! What a listing says of a session: read from the head and the tail of its log.

use super::ReplayError;
use super::carry::CarryRecord;
use super::metadata::Metadata;
use super::replay::decode;
use super::tally::Tally;
use crate::event::{Body, Event, Limits};
use crate::identity::{SessionId, Timestamp};
use crate::journal::{Damage, Entry, FrameKind, JournalView, Lsn, ReadError, Seq};

/// What a session is doing, as far as its log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionStatus {
    /// No turn is open, and the last one ended well (or there was none).
    Idle,
    /// A turn is open: it runs, or its process ended in it.
    Active,
    /// The last turn was interrupted.
    Interrupted,
    /// The last turn failed.
    Failed,
    /// It was stopped.
    Stopped,
    /// It is damaged, or cannot be read: what it is doing is not known. Never in [`Listed::status`],
    /// which says what can be read; see [`SessionEntry::status`].
    Damaged,
}

/// What the log of a listed session says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Listed {
    /// What the host says of it: title, labels, data.
    pub metadata: Metadata,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When its last event was made.
    pub last_active: Option<Timestamp>,
    /// What it is doing.
    pub status: SessionStatus,
    /// Its last sequence.
    pub last_seq: Seq,
    /// The turns that have begun, of all loops.
    pub turns: u64,
    /// The committed steps.
    pub steps: u64,
    /// The loops that have an open turn.
    pub open_turns: usize,
    /// The gates that wait for an answer.
    pub pending_gates: usize,
    /// Damage to acknowledged data: it opens read-only.
    pub damage: Option<Damage>,
    /// The first record that cannot be read, of those that a listing looks at.
    pub unreadable: Option<ReplayError>,
}

impl Listed {
    pub(super) fn new(damage: Option<Damage>) -> Listed {
        Listed {
            metadata: Metadata::default(),
            created: None,
            last_active: None,
            status: SessionStatus::Idle,
            last_seq: Seq::ZERO,
            turns: 0,
            steps: 0,
            open_turns: 0,
            pending_gates: 0,
            damage,
            unreadable: None,
        }
    }

    /// Whether nothing of what a listing looks at is damaged.
    pub(super) fn is_whole(&self) -> bool {
        self.damage.is_none() && self.unreadable.is_none()
    }

    /// Whether the entry was an event of the session. What cannot be read is kept.
    fn take(
        &mut self,
        id: SessionId,
        entry: Result<Entry, ReadError>,
        limits: &Limits,
        tally: &mut Tally,
    ) -> bool {
        let read = entry
            .map_err(ReplayError::from)
            .and_then(|entry| match entry.kind {
                FrameKind::Record => decode(id, &entry, limits),
                _ => Ok(None),
            });
        match read {
            Ok(Some((committed, _))) => {
                self.last_seq = self.last_seq.max(committed.seq());
                self.see(committed.event());
                tally.see(committed.event());
                true
            }
            Ok(None) => false,
            // What a repair gave up is named, and no damage.
            Err(ReplayError::Journal(ReadError::Gap { .. })) => false,
            Err(error) => {
                self.unreadable.get_or_insert(error);
                false
            }
        }
    }

    fn see(&mut self, event: &Event) {
        self.last_active = event.header.created_at.or(self.last_active);
        match &event.body {
            Body::SessionStarted(started) => {
                self.metadata.start(started);
                self.created = event.header.created_at;
            }
            Body::SessionChanged(changed) => self.metadata.change(changed),
            Body::TurnStarted(_) => self.status = SessionStatus::Active,
            Body::TurnDone(_) => self.status = SessionStatus::Idle,
            Body::TurnFailed(_) => self.status = SessionStatus::Failed,
            Body::TurnInterrupted(_) => self.status = SessionStatus::Interrupted,
            Body::SessionStopped(_) => self.status = SessionStatus::Stopped,
            _ => {}
        }
    }
}

/// What a log says, by its head and its tail; `None` for a session whose creation was cut off.
pub(super) fn listed(id: SessionId, view: &JournalView, limits: &Limits) -> Option<Listed> {
    let mut listed = Listed::new(view.damage().cloned());
    // The head: fence, then SessionStarted.
    for entry in view.read(Lsn::ZERO).take(4) {
        if listed.take(id, entry, limits, &mut Tally::default()) {
            break;
        }
    }
    // The tail, and what was changed before it: by the last carry record, or by reading from
    // there on where recovery closed segments without one.
    let tail = view.tail();
    let mut from = tail;
    let mut tally = Tally::default();
    if tail > Lsn::new(1) {
        let carried = view.last_carry(tail).ok().flatten();
        let said = carried.and_then(|(last, bytes)| Some((last, CarryRecord::listed(&bytes)?)));
        from = said.as_ref().map_or(Lsn::ZERO, |(last, _)| last.next());
        if let Some((_, (metadata, counted))) = said {
            listed.metadata = metadata.unwrap_or(listed.metadata);
            tally = counted;
        }
    }
    for entry in view.read(from) {
        listed.take(id, entry, limits, &mut tally);
    }
    listed.turns = tally.turns;
    listed.steps = tally.steps;
    listed.open_turns = tally.open.len();
    listed.pending_gates = tally.gates.len();
    let found = listed.last_seq > Seq::ZERO;
    (found || !listed.is_whole()).then_some(listed)
}
