//! What stands between a model's call and its execution: the policy that a host brings.
//!
//! A gate is a question of the policy, or of a running tool, that waits for a person. It is durable
//! before anybody sees it, its answer is durable before the runner acts on it, and it survives a
//! restart (`docs/runtime.md`, Gates). Answering is the store's
//! ([`Session::answer_gate`](crate::store::Session::answer_gate)).

use std::sync::Arc;

use super::{Effects, LoopHandle, Question};
use crate::content::RawJson;
use crate::event::{Effect, GateResolved, ToolIntentSettled};
use crate::identity::{Coordinates, GateId, ToolExecutionId};
use crate::store::{
    Answer, AnswerError, Committed, PendingGate, SettleError, UnknownEffect, text_of,
};

/// The action that lets a call run.
pub const APPROVE: &str = "Approve";
/// The action that lets a call run, and says that calls like it need not be asked about again: the
/// policy keeps that in mind, see [`Policy::answered`].
pub const APPROVE_ALWAYS: &str = "Approve always for this workspace";
/// The action that refuses a call.
pub const DENY: &str = "Deny";

/// A call that a policy decides about.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCall {
    /// The tool's name.
    pub tool: String,
    /// The input, a JSON object.
    pub input: RawJson,
    /// Whether the tool changes anything outside.
    pub effects: Effects,
    /// The execution.
    pub execution: ToolExecutionId,
    /// The session, loop, turn and step.
    pub coordinates: Coordinates,
}

impl ToolCall {
    /// A call and nothing else, for testing a policy by itself.
    pub fn new(tool: impl Into<String>, input: RawJson) -> ToolCall {
        ToolCall {
            tool: tool.into(),
            input,
            effects: Effects::default(),
            execution: ToolExecutionId::nil(),
            coordinates: Coordinates::default(),
        }
    }
}

/// What a policy decides.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Decision {
    /// The call runs.
    Allow,
    /// The call does not run; the model and the record are told why.
    Deny {
        /// Why.
        reason: String,
    },
    /// A person is asked.
    Ask(Question),
}

impl Decision {
    /// A denial.
    pub fn deny(reason: impl Into<String>) -> Decision {
        let reason = reason.into();
        Decision::Deny { reason }
    }

    /// Asks whether the call may run; see [`Question::permission`].
    pub fn ask(text: impl Into<String>) -> Decision {
        Decision::Ask(Question::permission(text))
    }
}

/// How a gate was resolved, durably.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resolution {
    /// The gate.
    pub gate: GateId,
    /// The action that was chosen; empty for free text, and when nobody chose.
    pub action: String,
    /// What was said beside it, or instead of one.
    pub text: Option<String>,
    /// Whether a person answered; otherwise the question's own policy did, or the gate was closed.
    pub by_person: bool,
    /// Whether the answer was given in an earlier turn that did not come to use it.
    pub recorded: bool,
}

impl Resolution {
    pub(super) fn of(resolved: &GateResolved, recorded: bool) -> Resolution {
        let source = resolved.source.as_ref();
        Resolution {
            gate: resolved.gate_id,
            action: resolved.action.clone(),
            text: text_of(resolved),
            by_person: source.is_some_and(|source| source.kind == "user"),
            recorded,
        }
    }

    /// Why a call was refused, for the model.
    pub(super) fn refusal(&self) -> String {
        match (&self.text, self.by_person) {
            (Some(text), _) => format!("the user said: {text}"),
            (None, true) => "the user refused it".to_owned(),
            (None, false) => "nobody allowed it in time".to_owned(),
        }
    }
}

/// Decides about calls, one after the other in call order, before any of them runs: what it learned
/// from the answer about one call it can use for the next. Must not block. A panic fails the turn: no
/// call of the step runs.
///
/// A denial becomes durable as PermissionDecided in the batch of its step.
pub trait Policy: Send + Sync {
    /// Decides about one call.
    fn decide(&self, call: &ToolCall) -> Decision;

    /// What the answer to its question means. This is the place to keep a rule that the answer
    /// contains. By default [`APPROVE`] and [`APPROVE_ALWAYS`] let the call run, and all else refuses
    /// it.
    fn answered(&self, _call: &ToolCall, resolution: &Resolution) -> Effect {
        match resolution.action.as_str() {
            APPROVE | APPROVE_ALWAYS => Effect::Approve,
            _ => Effect::Deny,
        }
    }
}

impl<F: Fn(&ToolCall) -> Decision + Send + Sync> Policy for F {
    fn decide(&self, call: &ToolCall) -> Decision {
        self(call)
    }
}

impl Policy for Arc<dyn Policy> {
    fn decide(&self, call: &ToolCall) -> Decision {
        (**self).decide(call)
    }

    fn answered(&self, call: &ToolCall, resolution: &Resolution) -> Effect {
        (**self).answered(call, resolution)
    }
}

impl LoopHandle {
    /// The gates of this loop that wait for an answer, also those of turns before a restart.
    pub fn pending_gates(&self) -> Vec<PendingGate> {
        let mut gates = self.session().pending_gates();
        gates.retain(|pending| pending.loop_id == self.loop_id());
        gates
    }

    /// Answers a gate, **async**: awaited, the answer is durable. The same as
    /// [`Session::answer_gate_async`](crate::store::Session::answer_gate_async), where all is said;
    /// [`Session::answer_gate`](crate::store::Session::answer_gate) blocks its thread.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub async fn answer_gate(
        &self,
        gate: GateId,
        answer: Answer,
    ) -> Result<Committed<GateResolved>, AnswerError> {
        self.session().answer_gate_async(gate, answer).await
    }

    /// The calls of this loop of which nobody knows what they did; see
    /// [`Session::unknown_effects`](crate::store::Session::unknown_effects).
    pub fn unknown_effects(&self) -> Vec<UnknownEffect> {
        let mut effects = self.session().unknown_effects();
        effects.retain(|effect| effect.loop_id == self.loop_id());
        effects
    }

    /// Says that somebody has looked into what a call did, **async**. The same as
    /// [`Session::settle_effect_async`](crate::store::Session::settle_effect_async);
    /// [`Session::settle_effect`](crate::store::Session::settle_effect) blocks its thread.
    ///
    /// # Errors
    /// [`SettleError`].
    pub async fn settle_effect(
        &self,
        execution: ToolExecutionId,
        note: impl Into<String>,
    ) -> Result<Committed<ToolIntentSettled>, SettleError> {
        self.session().settle_effect_async(execution, note).await
    }
}
