//! The fold: what the events of a session mean (P4). Live commits and restores go through the same
//! function, so restored state equals live state.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::OrderError;
use super::committed::Committed;
use super::context::Contexts;
use super::keys::Keys;
use super::marks::Marks;
use super::metadata::Metadata;
use super::options::StoreOptions;
use super::pending::{Pending, PendingAdmission};
use crate::event::{Body, Event, Key, Kind, RecordHeader};
use crate::identity::{AgentName, Coordinates, LoopId, SessionId, Timestamp, TurnId};
use crate::journal::{Position, Seq};

/// A turn that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenTurn {
    /// The loop.
    pub loop_id: LoopId,
    /// The turn.
    pub turn: TurnId,
    /// Its number within its loop, from 1.
    pub index: u64,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TurnEnd {
    #[default]
    Done,
    Failed,
    Interrupted,
}

impl TurnEnd {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    pub(super) fn is_done(&self) -> bool {
        *self == TurnEnd::Done
    }
}

/// Where a session was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkedFrom {
    /// The session that it was forked from, which may be gone.
    pub parent: SessionId,
    /// The last sequence of the parent that belongs to the fork.
    pub at: Seq,
}

impl ForkedFrom {
    /// As it is written: parent, sequence.
    pub(super) fn parts(self) -> (SessionId, u64) {
        (self.parent, self.at.get())
    }

    pub(super) fn of_parts((parent, at): (SessionId, u64)) -> ForkedFrom {
        ForkedFrom {
            parent,
            at: Seq::new(at),
        }
    }
}

/// One loop of a session, without its messages.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoopState {
    pub(super) id: LoopId,
    pub(super) name: AgentName,
    /// The record of its beginning.
    pub(super) started: Seq,
    pub(super) turns: u64,
    pub(super) open: Option<OpenTurn>,
    /// The last step of the turn that is open, if there is one.
    pub(super) last_step: Option<Arc<Event>>,
    pub(super) marks: Marks,
}

/// What a session has come to. Its size does not depend on the length of its history.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionState {
    pub(super) last: Seq,
    /// What the host says of it.
    pub(super) metadata: Metadata,
    pub(super) created: Option<Timestamp>,
    pub(super) last_active: Option<Timestamp>,
    pub(super) stopped: bool,
    /// How the turn ended that ended last, of all loops.
    pub(super) last_end: TurnEnd,
    pub(super) forked: Option<ForkedFrom>,
    pub(super) steps: u64,
    pub(super) loops: Vec<LoopState>,
    pub(super) pending: Pending,
    pub(super) keys: Keys,
    /// What is kept in memory of the history.
    pub(super) contexts: Contexts,
}

impl SessionState {
    pub(super) fn new(options: &StoreOptions) -> SessionState {
        SessionState {
            keys: Keys::new(options.keyed_horizon),
            contexts: Contexts::new(options.context_bytes),
            ..SessionState::default()
        }
    }

    pub(super) fn find(&self, loop_id: LoopId) -> Option<&LoopState> {
        self.loops.iter().find(|state| state.id == loop_id)
    }

    fn find_mut(&mut self, loop_id: LoopId) -> Option<&mut LoopState> {
        self.loops.iter_mut().find(|state| state.id == loop_id)
    }

    pub(super) fn open_turns(&self) -> impl Iterator<Item = OpenTurn> + '_ {
        self.loops.iter().filter_map(|state| state.open)
    }

    /// Takes a durable event in.
    pub(super) fn apply(
        &mut self,
        committed: &Committed,
        key: Option<&Key>,
        position: Option<Position>,
    ) {
        let header = &committed.event().header;
        self.note(committed.seq(), header.created_at, key.zip(position));
        self.fold_header(committed.event().kind(), header.coordinates);
        self.fold(committed);
        self.contexts.take(committed);
    }

    /// Takes a durable event in whose body stands in a file: there are only such kinds as do nothing
    /// to the state that their header does not say. No context is in memory yet.
    pub(super) fn apply_outside(
        &mut self,
        seq: Seq,
        record: &RecordHeader<'_>,
        position: Position,
    ) {
        let key = record.key.as_ref();
        self.note(seq, record.created_at, key.zip(Some(position)));
        let coordinates = Coordinates {
            loop_id: record.loop_id,
            turn: record.turn,
            step: record.step,
            ..Coordinates::default()
        };
        if let Some(kind) = record.kind {
            self.fold_header(kind, coordinates);
        }
    }

    fn note(&mut self, seq: Seq, at: Option<Timestamp>, keyed: Option<(&Key, Position)>) {
        self.last = seq;
        if let Some((key, position)) = keyed {
            self.keys.remember(key, seq, position);
        }
        self.last_active = at.or(self.last_active);
    }

    /// The part of the fold for which a header suffices: all that is done by the kinds whose bodies may
    /// stand outside ([`Kind::may_stand_outside`]).
    fn fold_header(&mut self, kind: Kind, at: Coordinates) {
        if kind == Kind::StepDone {
            self.steps = self.steps.saturating_add(1);
            self.pending.take_step((at.loop_id, at.step));
        }
        let Some(state) = self.find_mut(at.loop_id) else {
            return;
        };
        if kind == Kind::TurnStarted {
            state.turns = state.turns.saturating_add(1);
            state.last_step = None;
            state.open = Some(OpenTurn {
                loop_id: at.loop_id,
                turn: at.turn,
                index: state.turns,
            });
        } else if kind.ends_turn() {
            state.open = None;
            state.last_step = None;
        }
    }

    fn fold(&mut self, committed: &Committed) {
        let (event, seq) = (committed.event(), committed.seq());
        let at = event.header.coordinates;
        self.pending.fold(event, seq);
        self.last_end = match &event.body {
            Body::TurnDone(_) => TurnEnd::Done,
            Body::TurnFailed(_) => TurnEnd::Failed,
            Body::TurnInterrupted(_) => TurnEnd::Interrupted,
            _ => self.last_end,
        };
        match &event.body {
            Body::SessionStarted(started) => {
                self.metadata.start(started);
                self.created = event.header.created_at;
            }
            Body::SessionChanged(changed) => self.metadata.change(changed),
            Body::SessionStopped(_) => self.stopped = true,
            Body::Forked(forked) => {
                self.forked = Some(ForkedFrom::of_parts((forked.parent, forked.at)));
            }
            Body::RestoreStarted(_) => self.stopped = false,
            Body::LoopStarted(_) => {
                if self.find(at.loop_id).is_none() {
                    self.loops.push(LoopState {
                        id: at.loop_id,
                        name: event.header.agent_name.clone(),
                        started: seq,
                        turns: 0,
                        open: None,
                        last_step: None,
                        marks: Marks::default(),
                    });
                }
            }
            _ => self.fold_loop(committed),
        }
    }

    /// The part of the fold that concerns one loop.
    fn fold_loop(&mut self, committed: &Committed) {
        let (event, seq) = (committed.event(), committed.seq());
        let at = event.header.coordinates;
        let Some(state) = self.find_mut(at.loop_id) else {
            return;
        };
        match &event.body {
            Body::StepDone(_) if state.open.is_some() => {
                state.last_step = Some(committed.shared());
            }
            Body::ContextCompacted(_) | Body::Rewound(_) => state.marks.fold(&event.body, seq),
            _ => {}
        }
    }
}

/// Where the loops stand while a batch is checked: each event must fit behind those before it.
pub(super) struct Admission<'a> {
    state: &'a SessionState,
    /// What the batch itself changes: the loops that it opens and the open turn of each loop.
    open: HashMap<LoopId, Option<TurnId>>,
    turns: HashMap<LoopId, u64>,
    pending: PendingAdmission,
}

impl<'a> Admission<'a> {
    pub(super) fn new(state: &'a SessionState) -> Admission<'a> {
        Admission {
            state,
            open: HashMap::new(),
            turns: HashMap::new(),
            pending: PendingAdmission::default(),
        }
    }

    fn open_turn(&self, loop_id: LoopId) -> Result<Option<TurnId>, OrderError> {
        if let Some(open) = self.open.get(&loop_id) {
            return Ok(*open);
        }
        let state = self
            .state
            .find(loop_id)
            .ok_or(OrderError::UnknownLoop(loop_id))?;
        Ok(state.open.map(|open| open.turn))
    }

    /// The number that the next turn of a loop has.
    pub(super) fn next_turn_index(&self, loop_id: LoopId) -> u64 {
        let before = self
            .turns
            .get(&loop_id)
            .copied()
            .unwrap_or_else(|| self.state.find(loop_id).map_or(0, |state| state.turns));
        before.saturating_add(1)
    }

    /// Whether an event fits, and what it changes for those behind it.
    pub(super) fn admit(&mut self, event: &Event) -> Result<(), OrderError> {
        let at = event.header.coordinates;
        if self.state.stopped {
            return Err(OrderError::Stopped);
        }
        self.pending.admit(&self.state.pending, event)?;
        if let Body::SessionChanged(changed) = &event.body {
            self.state.metadata.admit(changed)?;
        }
        if let Body::Rewound(rewound) = &event.body {
            let (to, last) = (Seq::new(rewound.to), self.state.last);
            if to > last {
                return Err(OrderError::Ahead { to, last });
            }
        }
        if at.loop_id.is_nil() {
            return Ok(());
        }
        if let Body::LoopStarted(_) = event.body {
            return match self.open_turn(at.loop_id) {
                Ok(_) => Err(OrderError::LoopExists(at.loop_id)),
                Err(_) => {
                    self.open.insert(at.loop_id, None);
                    Ok(())
                }
            };
        }
        let open = self.open_turn(at.loop_id)?;
        match (event.body.kind(), open) {
            (Kind::TurnStarted, Some(open)) => Err(OrderError::TurnOpen(open)),
            (Kind::TurnStarted, None) => {
                let index = self.next_turn_index(at.loop_id);
                self.turns.insert(at.loop_id, index);
                self.open.insert(at.loop_id, Some(at.turn));
                Ok(())
            }
            (kind, open) if needs_open_turn(kind) => {
                if open != Some(at.turn) {
                    return Err(OrderError::TurnNotOpen(at.turn));
                }
                if kind.ends_turn() {
                    self.open.insert(at.loop_id, None);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn needs_open_turn(kind: Kind) -> bool {
    kind.ends_turn()
        || matches!(
            kind,
            Kind::StepDone
                | Kind::TurnFoldedInto
                | Kind::PermissionRequested
                | Kind::PermissionDecided
                | Kind::UserInputRequested
                | Kind::ToolIntent
        )
}
