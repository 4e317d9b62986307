//! What of a session waits for somebody: gates for an answer, answers for a turn that uses them,
//! cut-off calls for a person who looks at what they did. Part of the fold (P4).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

use super::{Draft, GateAnswer, OrderError, PendingGate, UnknownEffect};
use crate::event::{Body, Event, GateResolved};
use crate::identity::{GateId, LoopId, StepId, ToolExecutionId, TurnId};
use crate::journal::Seq;

/// Closed gates that are remembered, to tell a late answer from one to a gate that never was. A carry
/// record holds them.
const CLOSED: usize = 256;

/// `GateResolved::reason` of a gate that a person answered.
pub(super) const ANSWERED: &str = "answered";
/// That of a gate whose turn ended without its answer.
const ABANDONED: &str = "abandoned";

/// A gate that is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) gate: GateId,
    /// The record that closed it.
    pub(super) at: Seq,
    /// Whether by an answer, of a person or of its policy.
    pub(super) answered: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    pub(super) gates: Shelf<GateId, PendingGate>,
    /// Answers of persons that no turn has used.
    pub(super) answers: Shelf<GateId, GateAnswer>,
    /// Intents whose step has not come.
    pub(super) effects: Shelf<ToolExecutionId, UnknownEffect>,
    pub(super) closed: VecDeque<Closed>,
}

/// Things by the record that brought them, found by key and by step, all in constant time: a log may
/// hold any number of them.
#[derive(Debug, Clone)]
pub(super) struct Shelf<K, T> {
    things: BTreeMap<Seq, (K, T)>,
    by_key: HashMap<K, Seq>,
    by_step: HashMap<(LoopId, StepId), Vec<Seq>>,
}

impl<K, T> Default for Shelf<K, T> {
    fn default() -> Self {
        Shelf {
            things: BTreeMap::new(),
            by_key: HashMap::new(),
            by_step: HashMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, T> Shelf<K, T> {
    /// Puts a thing in, in the place of one with the same key.
    fn put(&mut self, key: K, seq: Seq, thing: T) {
        if let Some(before) = self.by_key.insert(key, seq) {
            self.things.remove(&before);
        }
        self.things.insert(seq, (key, thing));
    }

    /// The same for a thing that goes with its step.
    fn put_in_step(&mut self, key: K, step: (LoopId, StepId), seq: Seq, thing: T) {
        self.put(key, seq, thing);
        self.by_step.entry(step).or_default().push(seq);
    }

    fn take(&mut self, key: &K) -> Option<T> {
        let seq = self.by_key.remove(key)?;
        self.things.remove(&seq).map(|(_, thing)| thing)
    }

    fn take_step(&mut self, step: (LoopId, StepId)) {
        for seq in self.by_step.remove(&step).into_iter().flatten() {
            if let Some((key, _)) = self.things.remove(&seq) {
                self.by_key.remove(&key);
            }
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&T> {
        let seq = self.by_key.get(key)?;
        self.things.get(seq).map(|(_, thing)| thing)
    }

    /// All, by record.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.things.values().map(|(_, thing)| thing)
    }
}

impl Pending {
    /// What a carry record says.
    pub(super) fn carried(
        gates: Vec<PendingGate>,
        answers: Vec<GateAnswer>,
        effects: Vec<UnknownEffect>,
        closed: Vec<Closed>,
    ) -> Pending {
        let mut pending = Pending::default();
        for gate in gates {
            pending.gates.put(gate.gate.id, gate.seq, gate);
        }
        for answer in answers {
            let step = (answer.opened.loop_id, answer.opened.step);
            let (gate, seq) = (answer.resolved.gate_id, answer.seq);
            pending.answers.put_in_step(gate, step, seq, answer);
        }
        for effect in effects {
            let step = (effect.loop_id, effect.step);
            let (execution, seq) = (effect.execution, effect.seq);
            pending.effects.put_in_step(execution, step, seq, effect);
        }
        let surplus = closed.len().saturating_sub(CLOSED);
        pending.closed = closed.into_iter().skip(surplus).collect();
        pending
    }

    pub(super) fn fold(&mut self, event: &Event, seq: Seq) {
        let at = event.header.coordinates;
        match &event.body {
            Body::GateOpened(opened) => {
                let pending = PendingGate {
                    seq,
                    loop_id: at.loop_id,
                    turn: at.turn,
                    step: at.step,
                    gate: opened.gate.clone(),
                };
                self.gates.put(opened.gate.id, seq, pending);
            }
            Body::GateResolved(resolved) => self.close(resolved, seq),
            // They were given to the parent, once.
            Body::Forked(_) => self.answers = Shelf::default(),
            Body::PermissionDecided(decided) => drop(self.answers.take(&decided.gate_id)),
            Body::ToolIntent(intent) => {
                let effect = UnknownEffect {
                    seq,
                    loop_id: at.loop_id,
                    turn: at.turn,
                    step: at.step,
                    execution: intent.tool_execution_id,
                    call_id: intent.call_id.clone(),
                    tool: intent.tool_name.clone(),
                    input_preview: intent.input_preview.clone(),
                };
                let step = (at.loop_id, at.step);
                self.effects
                    .put_in_step(intent.tool_execution_id, step, seq, effect);
            }
            Body::ToolIntentSettled(settled) => {
                drop(self.effects.take(&settled.tool_execution_id));
            }
            _ => {}
        }
    }

    /// A step is there: its answers are used, and its intents are settled.
    pub(super) fn take_step(&mut self, step: (LoopId, StepId)) {
        self.answers.take_step(step);
        self.effects.take_step(step);
    }

    fn close(&mut self, resolved: &GateResolved, seq: Seq) {
        let Some(opened) = self.gates.take(&resolved.gate_id) else {
            return;
        };
        self.closed.push_back(Closed {
            gate: resolved.gate_id,
            at: seq,
            answered: resolved.reason != ABANDONED,
        });
        if self.closed.len() > CLOSED {
            self.closed.pop_front();
        }
        // What nobody said need not be kept for a turn that asks again.
        if resolved.reason == ANSWERED {
            let step = (opened.loop_id, opened.step);
            let answer = GateAnswer {
                seq,
                opened,
                resolved: resolved.clone(),
            };
            self.answers
                .put_in_step(resolved.gate_id, step, seq, answer);
        }
    }

    /// How a gate was closed, among the last that were.
    pub(super) fn closed(&self, gate: GateId) -> Option<Closed> {
        let mut recent = self.closed.iter().rev();
        recent.find(|closed| closed.gate == gate).copied()
    }

    /// Whether a gate of this turn waits that ends with it: not one of the session's.
    pub(super) fn of_turn(
        &self,
        loop_id: LoopId,
        turn: TurnId,
    ) -> impl Iterator<Item = &PendingGate> {
        self.gates.all().filter(move |pending| {
            pending.loop_id == loop_id
                && pending.turn == turn
                && !pending.gate.resolver.is_session()
        })
    }

    /// What closes the gates of a turn that goes on or ends without their answers.
    pub(super) fn abandon(&self, loop_id: LoopId, turn: TurnId) -> Vec<Draft> {
        let gates = self.of_turn(loop_id, turn);
        gates.map(|pending| pending.resolved(ABANDONED)).collect()
    }

    /// What closes all gates, whosever they are: for a fork, which they do not belong to.
    pub(super) fn abandon_all(&self) -> impl Iterator<Item = Draft> + '_ {
        let gates = self.gates.all();
        gates.map(|pending| pending.resolved(ABANDONED))
    }
}

/// The same for a batch that is checked: what it opens and closes itself counts.
#[derive(Default)]
pub(super) struct PendingAdmission {
    gates: HashMap<GateId, Option<LoopId>>,
    settled: Vec<ToolExecutionId>,
}

impl PendingAdmission {
    /// Whether an event fits. This is where an answer is accepted once: commits of one loop are
    /// checked one after the other, and a gate belongs to the loop in whose name it was opened.
    pub(super) fn admit(&mut self, pending: &Pending, event: &Event) -> Result<(), OrderError> {
        let loop_id = event.header.coordinates.loop_id;
        match &event.body {
            Body::GateOpened(opened) => {
                let gate = opened.gate.id;
                if self.owner(pending, gate).is_some() {
                    return Err(OrderError::GateExists(gate));
                }
                self.gates.insert(gate, Some(loop_id));
            }
            Body::GateResolved(resolved) => {
                let gate = resolved.gate_id;
                if self.owner(pending, gate) != Some(loop_id) {
                    return Err(OrderError::GateNotOpen(gate));
                }
                self.gates.insert(gate, None);
            }
            Body::ToolIntentSettled(settled) => {
                let execution = settled.tool_execution_id;
                let known = pending.effects.get(&execution);
                if known.is_none_or(|known| known.loop_id != loop_id)
                    || self.settled.contains(&execution)
                {
                    return Err(OrderError::NoIntent(execution));
                }
                self.settled.push(execution);
            }
            _ => {}
        }
        Ok(())
    }

    /// The loop of a gate that is open.
    fn owner(&self, pending: &Pending, gate: GateId) -> Option<LoopId> {
        if let Some(changed) = self.gates.get(&gate) {
            return *changed;
        }
        pending.gates.get(&gate).map(|pending| pending.loop_id)
    }
}
