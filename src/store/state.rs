//! The fold: what the events of a session mean (P4). Live commits and restores go through the same
//! function, so restored state equals live state.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::OrderError;
use super::committed::Committed;
use super::metadata::Metadata;
use super::pending::{Pending, PendingAdmission};
use crate::content::{Message, UserMessage};
use crate::event::{Body, Event, Key, Kind};
use crate::identity::{AgentName, LoopId, StepId, Timestamp, TurnId};
use crate::journal::{Position, Seq};

/// One message of a history, with the record that it came with.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryItem {
    /// The record.
    pub seq: Seq,
    /// The loop.
    pub loop_id: LoopId,
    /// The turn; nil for the summary of a compaction.
    pub turn: TurnId,
    /// The step; nil for what a user said.
    pub step: StepId,
    /// The message; shared and never changed.
    pub message: Arc<Message>,
}

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

/// One loop of a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoopState {
    pub(super) id: LoopId,
    pub(super) name: AgentName,
    pub(super) turns: u64,
    pub(super) open: Option<OpenTurn>,
    /// All messages, also those that a compaction took out of the model's context.
    pub(super) history: Vec<HistoryItem>,
    compactions: Vec<Compaction>,
}

#[derive(Debug, Clone, PartialEq)]
struct Compaction {
    summary: HistoryItem,
    /// The first record whose messages stay in the context; 0: none.
    keep_from: u64,
}

/// The commits under idempotency keys, within the horizon.
#[derive(Debug, Clone, Default)]
struct Keys {
    first: HashMap<Key, Position>,
    order: VecDeque<Key>,
    horizon: usize,
}

/// What a session has come to.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionState {
    pub(super) last: Seq,
    /// What the host says of it.
    pub(super) metadata: Metadata,
    /// The title that it was created with, and whether anything was changed since.
    pub(super) first_title: Option<String>,
    pub(super) changed: bool,
    pub(super) created: Option<Timestamp>,
    pub(super) last_active: Option<Timestamp>,
    pub(super) stopped: bool,
    pub(super) steps: u64,
    pub(super) loops: Vec<LoopState>,
    pub(super) pending: Pending,
    keys: Keys,
    /// Messages are not kept: for who reads a session of any size.
    lean: bool,
}

impl SessionState {
    /// A state without messages, so that its size does not grow with the history.
    pub(super) fn lean() -> SessionState {
        SessionState {
            lean: true,
            ..SessionState::new(0)
        }
    }

    pub(super) fn new(horizon: usize) -> SessionState {
        let keys = Keys {
            horizon,
            ..Keys::default()
        };
        SessionState {
            keys,
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

    /// Where the first commit under a key stands.
    pub(super) fn keyed(&self, key: &Key) -> Option<Position> {
        self.keys.first.get(key).copied()
    }

    /// The messages of all loops, by record.
    pub(super) fn history(&self) -> Vec<HistoryItem> {
        let mut items: Vec<HistoryItem> = self
            .loops
            .iter()
            .flat_map(|state| state.history.iter().cloned())
            .collect();
        items.sort_by_key(|item| item.seq);
        items
    }

    /// Takes a durable event in.
    pub(super) fn apply(
        &mut self,
        committed: &Committed,
        key: Option<&Key>,
        position: Option<Position>,
    ) {
        self.last = committed.seq();
        if let Some((key, position)) = key.zip(position) {
            self.keys.remember(key, position);
        }
        let event = committed.event();
        if let Some(at) = event.header.created_at {
            self.last_active = Some(at);
        }
        self.fold(event, committed.seq());
    }

    fn fold(&mut self, event: &Event, seq: Seq) {
        let at = event.header.coordinates;
        self.pending.fold(event, seq);
        match &event.body {
            Body::SessionStarted(started) => {
                self.metadata.start(started);
                self.first_title.clone_from(&started.title);
                self.created = event.header.created_at;
            }
            Body::SessionChanged(changed) => {
                self.metadata.change(changed);
                self.changed = true;
            }
            Body::SessionStopped(_) => self.stopped = true,
            Body::RestoreStarted(_) => self.stopped = false,
            Body::LoopStarted(_) => {
                if self.find(at.loop_id).is_none() {
                    self.loops.push(LoopState {
                        id: at.loop_id,
                        name: event.header.agent_name.clone(),
                        turns: 0,
                        open: None,
                        history: Vec::new(),
                        compactions: Vec::new(),
                    });
                }
            }
            Body::StepDone(_) => {
                self.steps += 1;
                self.fold_loop(event, seq);
            }
            _ => self.fold_loop(event, seq),
        }
    }

    /// The part of the fold that a loop's own history depends on.
    fn fold_loop(&mut self, event: &Event, seq: Seq) {
        let at = event.header.coordinates;
        let lean = self.lean;
        let Some(state) = self.find_mut(at.loop_id) else {
            return;
        };
        let item = |message: Message| HistoryItem {
            seq,
            loop_id: at.loop_id,
            turn: at.turn,
            step: at.step,
            message: Arc::new(message),
        };
        let said = |message: &UserMessage| item(Message::User(message.clone()));
        match &event.body {
            Body::TurnStarted(started) => {
                state.turns += 1;
                state.open = Some(OpenTurn {
                    loop_id: at.loop_id,
                    turn: at.turn,
                    index: state.turns,
                });
                state.history.push(said(&started.message));
            }
            Body::TurnFoldedInto(folded) => state.history.push(said(&folded.message)),
            Body::StepDone(step) => {
                let messages = step.messages.iter().cloned().map(item);
                state.history.extend(messages);
            }
            // Their records are counted also without their summaries, which are few.
            Body::ContextCompacted(compacted) => state.compactions.push(Compaction {
                summary: said(&compacted.summary),
                keep_from: compacted.keep_from,
            }),
            Body::Rewound(rewound) => {
                let stays = |item: &HistoryItem| item.seq.get() <= rewound.to;
                state.history.retain(stays);
                state.compactions.retain(|kept| stays(&kept.summary));
            }
            body if body.kind().ends_turn() => state.open = None,
            _ => {}
        }
        if lean {
            state.history.clear();
        }
    }
}

impl LoopState {
    /// The record of the last compaction; zero if there is none.
    pub(super) fn compacted(&self) -> Seq {
        self.compactions
            .last()
            .map_or(Seq::ZERO, |last| last.summary.seq)
    }

    /// What the model sees: the last summary and the messages that stay beside it, or all.
    pub(super) fn context(&self) -> Vec<HistoryItem> {
        let Some(last) = self.compactions.last() else {
            return self.history.clone();
        };
        let kept = self
            .history
            .iter()
            .filter(|item| {
                let after = item.seq > last.summary.seq;
                let kept = last.keep_from != 0 && item.seq.get() >= last.keep_from;
                after || kept
            })
            .cloned();
        std::iter::once(last.summary.clone()).chain(kept).collect()
    }
}

impl Keys {
    fn remember(&mut self, key: &Key, position: Position) {
        if self.first.insert(key.clone(), position).is_none() {
            self.order.push_back(key.clone());
        }
        while self.order.len() > self.horizon {
            if let Some(oldest) = self.order.pop_front() {
                self.first.remove(&oldest);
            }
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
        before + 1
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
