//! The carry record: the state of a session without its messages, in the footer of each sealed
//! segment (`docs/format.md` section 4), so that a later opening need not read what lies before it.
//! `Store::verify` holds it against the fold.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::boundary::lock;
use super::metadata::Metadata;
use super::state::SessionState;
use super::tally::Tally;
use super::{GateAnswer, PendingGate, UnknownEffect};
use crate::event::{Gate, GateResolved};
use crate::identity::{LoopId, StepId, ToolExecutionId, TurnId};
use crate::journal::{Carry, Lsn};
use crate::sync::Mutex;

const VERSION: u32 = 1;

/// The state as of the last record of a segment, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CarryRecord {
    version: u32,
    seq: u64,
    steps: u64,
    stopped: bool,
    title: Option<String>,
    loops: Vec<CarriedLoop>,
    gates: Vec<CarriedGate>,
    /// Not written when empty, so that what older versions wrote compares equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    answers: Vec<CarriedAnswer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    intents: Vec<CarriedIntent>,
    /// Only once something was changed; `title` is the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CarriedLoop {
    id: LoopId,
    name: String,
    turns: u64,
    open_turn: Option<TurnId>,
    /// The record of its last compaction, 0 if there is none.
    compacted: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CarriedGate {
    seq: u64,
    loop_id: LoopId,
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

impl CarriedGate {
    fn of(pending: &PendingGate) -> CarriedGate {
        CarriedGate {
            seq: pending.seq.get(),
            loop_id: pending.loop_id,
            gate: pending.gate.clone(),
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
}

impl CarryRecord {
    pub(super) fn of(state: &SessionState) -> CarryRecord {
        let loops = state.loops.iter().map(|state| CarriedLoop {
            id: state.id,
            name: state.name.as_str().to_owned(),
            turns: state.turns,
            open_turn: state.open.map(|open| open.turn),
            compacted: state.compacted().get(),
        });
        let pending = &state.pending;
        CarryRecord {
            version: VERSION,
            seq: state.last.get(),
            steps: state.steps,
            stopped: state.stopped,
            title: state.first_title.clone(),
            loops: loops.collect(),
            gates: pending.gates.all().map(CarriedGate::of).collect(),
            answers: pending.answers.all().map(CarriedAnswer::of).collect(),
            intents: pending.effects.all().map(CarriedIntent::of).collect(),
            metadata: state.changed.then(|| state.metadata.clone()),
        }
    }

    /// What the bytes of a footer say of the session, if they say anything: what was changed up to
    /// there, if anything was, and the counts.
    pub(super) fn listed(bytes: &[u8]) -> Option<(Option<Metadata>, Tally)> {
        let carried: CarryRecord = serde_json::from_slice(bytes).ok()?;
        if carried.version != VERSION {
            return None;
        }
        let open = carried.loops.iter().filter(|one| one.open_turn.is_some());
        let tally = Tally {
            steps: carried.steps,
            turns: carried
                .loops
                .iter()
                .fold(0, |turns, one| one.turns.saturating_add(turns)),
            open: open.map(|one| one.id).collect(),
            gates: carried.gates.iter().map(|waits| waits.gate.id).collect(),
        };
        Some((carried.metadata, tally))
    }

    /// Whether the bytes of a footer say the same. `None` if they do not say anything that this
    /// version can compare.
    pub(super) fn agrees(&self, bytes: &[u8]) -> Option<bool> {
        #[derive(Deserialize)]
        struct Probe {
            version: u32,
        }
        let probe: Probe = serde_json::from_slice(bytes).ok()?;
        if probe.version != VERSION {
            return None;
        }
        Some(serde_json::from_slice::<CarryRecord>(bytes).is_ok_and(|carried| carried == *self))
    }
}

/// Gives the live state of a session to its journal when a segment is sealed. A segment is sealed on
/// behalf of the next commit, so the state is that of the last record in it.
#[derive(Debug)]
pub(super) struct LiveState(pub(super) Arc<Mutex<SessionState>>);

impl Carry for LiveState {
    fn carry(&self, _last: Lsn) -> Vec<u8> {
        let record = CarryRecord::of(&lock(&self.0));
        // The types cannot fail to encode; a footer without a carry record is rebuilt by reading.
        serde_json::to_vec(&record).unwrap_or_default()
    }
}
