//! What a listing says of a session: read from the head and the tail of its log.

use super::ReplayError;
use super::carry::CarryRecord;
use super::metadata::Metadata;
use super::replay::{Decoder, Recorded};
use super::state::{ForkedFrom, SessionState, TurnEnd};
use crate::identity::Timestamp;
use crate::journal::{Carried, Damage, Entry, FrameKind, JournalView, Lsn, ReadError, Seq};

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
    /// which says what can be read; see [`SessionEntry::status`](super::SessionEntry::status).
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
    /// Where it was forked from, if it was.
    pub forked_from: Option<ForkedFrom>,
    /// The bytes of its log, up to its last record. What is prepared for more is not counted. 0 in the
    /// shared layout ([`Layout::Shared`](super::Layout::Shared)), where the log is that of all.
    pub bytes: u64,
    /// Damage to acknowledged data: it opens read-only.
    pub damage: Option<Damage>,
    /// The first record that cannot be read, of those that a listing looks at.
    pub unreadable: Option<ReplayError>,
}

impl Listed {
    fn of(state: &SessionState) -> Listed {
        let open_turns = state.open_turns().count();
        let status = match state.last_end {
            _ if state.stopped => SessionStatus::Stopped,
            _ if open_turns > 0 => SessionStatus::Active,
            TurnEnd::Done => SessionStatus::Idle,
            TurnEnd::Failed => SessionStatus::Failed,
            TurnEnd::Interrupted => SessionStatus::Interrupted,
        };
        let turns = state.loops.iter().map(|one| one.turns);
        Listed {
            metadata: state.metadata.clone(),
            created: state.created,
            last_active: state.last_active,
            status,
            last_seq: state.last,
            turns: turns.fold(0, u64::saturating_add),
            steps: state.steps,
            open_turns,
            pending_gates: state.pending.gates.all().count(),
            forked_from: state.forked,
            bytes: 0,
            damage: None,
            unreadable: None,
        }
    }

    /// Whether nothing of what a listing looks at is damaged.
    pub(super) fn is_whole(&self) -> bool {
        self.damage.is_none() && self.unreadable.is_none()
    }
}

/// What a log says, by its tail and the carry record before it, and whether its head can be read;
/// `None` for a session whose creation was cut off.
pub(super) fn listed(decoder: &Decoder, view: &JournalView) -> Option<Listed> {
    let mut reading = Reading::new(decoder);
    let tail = view.tail();
    let mut from = Lsn::ZERO;
    if tail > Lsn::new(1)
        && let Some((last, state)) = view.newest_carry(tail, |said| CarryRecord::state(said, 0))
    {
        // The head: fence, then SessionStarted.
        for entry in view.read(Lsn::ZERO).take(4) {
            if reading.take(entry) {
                break;
            }
        }
        reading.state = state;
        from = last.next();
    }
    for entry in view.read(from) {
        reading.take(entry);
    }
    let listed = Listed {
        bytes: view.bytes(),
        ..reading.listed(view)
    };
    let found = listed.last_seq > Seq::ZERO;
    (found || !listed.is_whole()).then_some(listed)
}

/// The same for one of the sessions that share a journal. Damage that the opening met is damage to what
/// is shared; a session of which nothing is known is none for that.
pub(super) fn listed_shared(decoder: &Decoder, view: &JournalView) -> Option<Listed> {
    let mut reading = Reading::new(decoder);
    let log = view.session(decoder.session);
    let tail = log.last_part();
    let said = log.newest_state(|bytes, seq| {
        let carried = Carried {
            last: Lsn::new(u64::MAX),
            seq: Some(seq),
            bytes,
        };
        let state = CarryRecord::state(carried, 0)?;
        (seq < tail).then_some(state)
    });
    let mut from = Seq::new(1);
    if let Some((seq, state)) = said {
        for entry in log.read(from).take(4) {
            if reading.take(entry) {
                break;
            }
        }
        reading.state = state;
        from = seq.next();
    }
    for entry in log.read(from) {
        reading.take(entry);
    }
    let listed = reading.listed(view);
    (listed.last_seq > Seq::ZERO || listed.unreadable.is_some()).then_some(listed)
}

/// The fold of what a listing reads (P4).
struct Reading<'a> {
    decoder: &'a Decoder,
    state: SessionState,
    unreadable: Option<ReplayError>,
}

impl<'a> Reading<'a> {
    fn new(decoder: &'a Decoder) -> Reading<'a> {
        Reading {
            decoder,
            state: SessionState::default(),
            unreadable: None,
        }
    }

    fn listed(self, view: &JournalView) -> Listed {
        Listed {
            damage: view.damage().cloned(),
            unreadable: self.unreadable,
            ..Listed::of(&self.state)
        }
    }

    /// Whether the entry was an event of the session. The first that cannot be read is kept.
    fn take(&mut self, entry: Result<Entry, ReadError>) -> bool {
        let read = entry.map_err(ReplayError::from).and_then(|entry| {
            if entry.kind != FrameKind::Record {
                return Ok(false);
            }
            match self.decoder.look(&entry)? {
                Recorded::Event(committed, _) => self.state.apply(&committed, None, None),
                Recorded::Outside(record) => {
                    self.state.apply_outside(entry.seq, &record, entry.position);
                }
                // An optional event of a newer version.
                Recorded::Skipped => self.state.last = entry.seq,
            }
            Ok(true)
        });
        match read {
            Ok(event) => event,
            // What a repair gave up is named, and no damage.
            Err(ReplayError::Journal(ReadError::Gap { .. })) => false,
            Err(error) => {
                self.unreadable.get_or_insert(error);
                false
            }
        }
    }
}
