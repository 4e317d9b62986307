//! The carry record: the state of a session without its messages, in the footer of each sealed
//! segment (`docs/format.md` section 4), so that an opening does not read what lies before it.
//! `Store::verify` holds it against the fold.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::boundary::lock;
use super::context::Contexts;
use super::keys::Keys;
use super::marks::{Compaction, Marks, Rewind};
use super::metadata::Metadata;
use super::options::StoreOptions;
use super::pending::{Closed, Pending};
use super::state::{ForkedFrom, LoopState, OpenTurn, SessionState, TurnEnd};
use super::{GateAnswer, PendingGate, UnknownEffect};
use crate::event::{Gate, GateResolved};
use crate::identity::{GateId, LoopId, SessionId, StepId, Timestamp, ToolExecutionId, TurnId};
use crate::journal::{Carried, Carry, Lsn, Seq};
use crate::sync::Mutex;

const VERSION: u32 = 2;

/// The state as of the last record of a segment, as JSON. What is empty is not written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CarryRecord {
    version: u32,
    seq: u64,
    steps: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    stopped: bool,
    #[serde(default, skip_serializing_if = "TurnEnd::is_done")]
    last_end: TurnEnd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forked: Option<(SessionId, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_active: Option<Timestamp>,
    metadata: Metadata,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    loops: Vec<CarriedLoop>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gates: Vec<CarriedGate>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    answers: Vec<CarriedAnswer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    intents: Vec<CarriedIntent>,
    /// The gates that were closed last: gate, record, whether by an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    closed: Vec<(GateId, u64, bool)>,
    /// The oldest record of the horizon of keys, 0 if it has none, and that horizon.
    #[serde(default)]
    keys_from: u64,
    #[serde(default)]
    keys_horizon: u64,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CarriedLoop {
    id: LoopId,
    name: String,
    started: u64,
    turns: u64,
    /// Its index is `turns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    open_turn: Option<TurnId>,
    /// The last ones: record, first record that stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    compactions: Vec<(u64, u64)>,
    /// The last ones: record, last record that stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rewinds: Vec<(u64, u64)>,
    /// The newest record of each that is not listed any more, 0 if all are.
    #[serde(default, skip_serializing_if = "is_zero")]
    forgotten: (u64, u64),
}

fn is_zero(pair: &(u64, u64)) -> bool {
    *pair == (0, 0)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CarriedGate {
    seq: u64,
    loop_id: LoopId,
    turn: TurnId,
    step: StepId,
    gate: Gate,
}

/// An answer that no turn has used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CarriedAnswer {
    seq: u64,
    opened: CarriedGate,
    resolved: GateResolved,
}

/// An intent whose step has not come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CarriedIntent {
    seq: u64,
    loop_id: LoopId,
    turn: TurnId,
    step: StepId,
    execution: ToolExecutionId,
    call_id: String,
    tool: String,
    input_preview: String,
}

impl CarriedLoop {
    fn of(state: &LoopState) -> CarriedLoop {
        let marks = &state.marks;
        let compactions = marks.compactions.iter();
        let rewinds = marks.rewinds.iter();
        CarriedLoop {
            id: state.id,
            name: state.name.as_str().to_owned(),
            started: state.started.get(),
            turns: state.turns,
            open_turn: state.open.map(|open| open.turn),
            compactions: compactions
                .map(|compaction| (compaction.seq.get(), compaction.keep_from))
                .collect(),
            rewinds: rewinds
                .map(|rewind| (rewind.at.get(), rewind.to.get()))
                .collect(),
            forgotten: (marks.forgotten.0.get(), marks.forgotten.1.get()),
        }
    }

    fn restore(self) -> LoopState {
        let compactions = self.compactions.into_iter();
        let rewinds = self.rewinds.into_iter();
        LoopState {
            id: self.id,
            name: self.name.into(),
            started: Seq::new(self.started),
            turns: self.turns,
            open: self.open_turn.map(|turn| OpenTurn {
                loop_id: self.id,
                turn,
                index: self.turns,
            }),
            last_step: None,
            marks: Marks::carried(
                compactions.map(|(seq, keep_from)| Compaction {
                    seq: Seq::new(seq),
                    keep_from,
                }),
                rewinds.map(|(at, to)| Rewind {
                    at: Seq::new(at),
                    to: Seq::new(to),
                }),
                (Seq::new(self.forgotten.0), Seq::new(self.forgotten.1)),
            ),
        }
    }
}

impl CarriedGate {
    fn of(pending: &PendingGate) -> CarriedGate {
        CarriedGate {
            seq: pending.seq.get(),
            loop_id: pending.loop_id,
            turn: pending.turn,
            step: pending.step,
            gate: pending.gate.clone(),
        }
    }

    fn restore(self) -> PendingGate {
        PendingGate {
            seq: Seq::new(self.seq),
            loop_id: self.loop_id,
            turn: self.turn,
            step: self.step,
            gate: self.gate,
        }
    }
}

impl CarriedAnswer {
    fn of(answer: &GateAnswer) -> CarriedAnswer {
        CarriedAnswer {
            seq: answer.seq.get(),
            opened: CarriedGate::of(&answer.opened),
            resolved: answer.resolved.clone(),
        }
    }

    fn restore(self) -> GateAnswer {
        GateAnswer {
            seq: Seq::new(self.seq),
            opened: self.opened.restore(),
            resolved: self.resolved,
        }
    }
}

impl CarriedIntent {
    fn of(effect: &UnknownEffect) -> CarriedIntent {
        CarriedIntent {
            seq: effect.seq.get(),
            loop_id: effect.loop_id,
            turn: effect.turn,
            step: effect.step,
            execution: effect.execution,
            call_id: effect.call_id.clone(),
            tool: effect.tool.clone(),
            input_preview: effect.input_preview.clone(),
        }
    }

    fn restore(self) -> UnknownEffect {
        UnknownEffect {
            seq: Seq::new(self.seq),
            loop_id: self.loop_id,
            turn: self.turn,
            step: self.step,
            execution: self.execution,
            call_id: self.call_id,
            tool: self.tool,
            input_preview: self.input_preview,
        }
    }
}

/// The version of what a footer says, if it is an object that has one.
fn version(bytes: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Probe {
        version: u32,
    }
    let probe: Probe = serde_json::from_slice(bytes).ok()?;
    Some(probe.version)
}

impl CarryRecord {
    pub(super) fn of(state: &SessionState) -> CarryRecord {
        let pending = &state.pending;
        let closed = pending.closed.iter();
        CarryRecord {
            version: VERSION,
            seq: state.last.get(),
            steps: state.steps,
            stopped: state.stopped,
            last_end: state.last_end,
            forked: state.forked.map(ForkedFrom::parts),
            created: state.created,
            last_active: state.last_active,
            metadata: state.metadata.clone(),
            loops: state.loops.iter().map(CarriedLoop::of).collect(),
            gates: pending.gates.all().map(CarriedGate::of).collect(),
            answers: pending.answers.all().map(CarriedAnswer::of).collect(),
            intents: pending.effects.all().map(CarriedIntent::of).collect(),
            closed: closed
                .map(|closed| (closed.gate, closed.at.get(), closed.answered))
                .collect(),
            keys_from: state.keys.from().get(),
            keys_horizon: state.keys.horizon() as u64,
        }
    }

    /// The bytes for a footer. The types cannot fail to encode; where a footer has no carry record,
    /// an opening reads more.
    pub(super) fn bytes_of(state: &SessionState) -> Vec<u8> {
        serde_json::to_vec(&CarryRecord::of(state)).unwrap_or_default()
    }

    /// The state that a footer says; `None` if it says nothing to start from, or something that is
    /// not the end of its segment.
    pub(super) fn restore(carried: Carried<'_>, options: &StoreOptions) -> Option<SessionState> {
        let state = CarryRecord::state(carried, options.keyed_horizon)?;
        Some(SessionState {
            contexts: Contexts::new(options.context_bytes),
            ..state
        })
    }

    /// The same without a message in memory, and of keys no more than where they begin.
    pub(super) fn state(carried: Carried<'_>, keyed_horizon: usize) -> Option<SessionState> {
        if version(carried.bytes)? != VERSION {
            return None;
        }
        let record: CarryRecord = serde_json::from_slice(carried.bytes).ok()?;
        let last = Seq::new(record.seq);
        if carried.seq.is_some_and(|seq| seq != last) || record.seq > carried.last.get() {
            return None;
        }
        let horizon = usize::try_from(record.keys_horizon).unwrap_or(usize::MAX);
        let from = Seq::new(record.keys_from);
        let closed = record
            .closed
            .into_iter()
            .map(|(gate, at, answered)| Closed {
                gate,
                at: Seq::new(at),
                answered,
            });
        Some(SessionState {
            last,
            metadata: record.metadata,
            created: record.created,
            last_active: record.last_active,
            stopped: record.stopped,
            last_end: record.last_end,
            forked: record.forked.map(ForkedFrom::of_parts),
            steps: record.steps,
            loops: record.loops.into_iter().map(CarriedLoop::restore).collect(),
            pending: Pending::carried(
                record.gates.into_iter().map(CarriedGate::restore).collect(),
                record
                    .answers
                    .into_iter()
                    .map(CarriedAnswer::restore)
                    .collect(),
                record
                    .intents
                    .into_iter()
                    .map(CarriedIntent::restore)
                    .collect(),
                closed.collect(),
            ),
            keys: Keys::carried(keyed_horizon, from, horizon, last),
            contexts: Contexts::default(),
        })
    }

    /// Whether the bytes of a footer say the same of the events. `None` if they do not say anything
    /// that this version can compare. How far the horizon of keys reaches depends on its writer.
    pub(super) fn agrees(&self, bytes: &[u8]) -> Option<bool> {
        if version(bytes)? != VERSION {
            return None;
        }
        let same = |carried: CarryRecord| {
            let (keys_from, keys_horizon) = (self.keys_from, self.keys_horizon);
            *self
                == CarryRecord {
                    keys_from,
                    keys_horizon,
                    ..carried
                }
        };
        Some(serde_json::from_slice::<CarryRecord>(bytes).is_ok_and(same))
    }
}

/// Gives the live state of a session to its journal when a segment is sealed. A segment is sealed on
/// behalf of the next commit, so the state is that of the last record in it.
#[derive(Debug)]
pub(super) struct LiveState(pub(super) Arc<Mutex<SessionState>>);

impl Carry for LiveState {
    fn carry(&self, _last: Lsn) -> Vec<u8> {
        CarryRecord::bytes_of(&lock(&self.0))
    }
}
