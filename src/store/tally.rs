//! What a listing counts: turns, steps, what is open. From a carry record on, so that the tail of a log
//! suffices.

use std::collections::HashSet;

use crate::event::{Body, Event};
use crate::identity::{GateId, LoopId};

/// The counts of a session, up to the last event that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) turns: u64,
    /// The loops that have an open turn.
    pub(super) open: HashSet<LoopId>,
    /// The gates that wait for an answer.
    pub(super) gates: HashSet<GateId>,
}

impl Tally {
    /// The same rules as those of the fold.
    pub(super) fn see(&mut self, event: &Event) {
        let loop_id = event.header.coordinates.loop_id;
        match &event.body {
            Body::StepDone(_) => self.steps += 1,
            Body::TurnStarted(_) => {
                self.turns += 1;
                self.open.insert(loop_id);
            }
            Body::GateOpened(opened) => drop(self.gates.insert(opened.gate.id)),
            Body::GateResolved(resolved) => drop(self.gates.remove(&resolved.gate_id)),
            body if body.kind().ends_turn() => drop(self.open.remove(&loop_id)),
            _ => {}
        }
    }
}
