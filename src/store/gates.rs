//! Gates: questions that stand between a tool call and its execution, and their answers.
//!
//! A gate is answered at the commit boundary, so that it is answered once: whichever answer comes
//! first there is durable, and every other gets an error that says so. Whoever waits for the answer
//! hears of it behind the commit, as every observer does.

use serde::{Deserialize, Serialize};

use super::committed::{Committed, Outcome};
use super::pending::ANSWERED;
use super::{CommitError, Draft, OrderError, Refusal, Session};
use crate::content::RawJson;
use crate::event::{AnswerSource, Audit, Gate, GateResolved};
use crate::identity::{AgentName, GateId, LoopId, StepId, ToolExecutionId, TurnId};
use crate::journal::Seq;

/// `Gate::kind` of a question whether a call may run.
pub const PERMISSION: &str = "permission";
/// `Gate::kind` of a question that a tool asks.
pub const USER_INPUT: &str = "user_input";

/// Bytes of the text of an answer.
const TEXT: usize = 64 * 1024;
/// Bytes of it that stand in the audit.
const AUDIT: usize = 80;

/// A gate that waits for its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingGate {
    /// The record that opened it.
    pub seq: Seq,
    /// The loop; nil for a gate of the session.
    pub loop_id: LoopId,
    /// The turn.
    pub turn: TurnId,
    /// The step.
    pub step: StepId,
    /// The gate.
    pub gate: Gate,
}

/// The call that a gate of the runner holds up: its payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedCall {
    /// The tool's name.
    pub tool: String,
    /// The model's id of the call.
    pub call_id: String,
    /// The execution.
    pub execution: ToolExecutionId,
    /// The input, byte for byte.
    pub input: RawJson,
}

impl PendingGate {
    /// The call that it holds up, if the runner opened it.
    pub fn call(&self) -> Option<GatedCall> {
        let payload = self.gate.payload.as_ref()?;
        serde_json::from_str(payload.get()).ok()
    }

    /// The actions that its prompt offers.
    pub fn offered(&self) -> impl Iterator<Item = &str> {
        let prompt = self.gate.prompt.as_ref();
        let controls = prompt.map(|prompt| prompt.controls.as_slice());
        let controls = controls.unwrap_or_default().iter();
        controls.map(|control| control.action.as_str())
    }

    /// What closes it.
    pub(super) fn resolved(&self, reason: &str) -> Draft {
        let body = GateResolved {
            gate_id: self.gate.id,
            resolver: self.gate.resolver.clone(),
            reason: reason.to_owned(),
            ..GateResolved::default()
        };
        Draft::new(body)
            .in_loop(self.loop_id)
            .in_turn(self.turn)
            .in_step(self.step)
    }

    /// Whether an answer is one of those that it offers.
    fn check(&self, answer: &Answer) -> Result<(), AnswerError> {
        let gate = self.gate.id;
        let text = answer.text.as_deref().unwrap_or_default();
        if text.len() > TEXT {
            let got = text.len();
            return Err(AnswerError::TooLong { got, max: TEXT });
        }
        let is_free = self.gate.kind == USER_INPUT && self.offered().next().is_none();
        let fits = match is_free {
            true => answer.action.is_empty() && answer.text.is_some(),
            false => self.offered().any(|action| action == answer.action),
        };
        // The question's own policy is not bound to what people are offered.
        if fits || answer.reason != ANSWERED {
            return Ok(());
        }
        Err(AnswerError::NotOffered {
            gate,
            action: answer.action.clone(),
            offered: self.offered().map(str::to_owned).collect(),
        })
    }
}

/// What may be answered, for people.
fn choice(offered: &[String]) -> String {
    match offered.is_empty() {
        true => "it takes free text".to_owned(),
        false => format!("choose one of {}", offered.join(", ")),
    }
}

/// An answer to a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    action: String,
    text: Option<String>,
    reason: &'static str,
    source: AnswerSource,
}

impl Answer {
    fn of_user(action: String, text: Option<String>) -> Answer {
        Answer {
            action,
            text,
            reason: ANSWERED,
            source: AnswerSource {
                kind: "user".to_owned(),
                reason: String::new(),
            },
        }
    }

    /// One of the offered actions, exactly as offered.
    pub fn choose(action: impl Into<String>) -> Answer {
        Answer::of_user(action.into(), None)
    }

    /// Free text, for a gate that offers no choice; at most 64 KiB.
    pub fn text(text: impl Into<String>) -> Answer {
        Answer::of_user(String::new(), Some(text.into()))
    }

    /// With something to say beside the choice; at most 64 KiB.
    #[must_use]
    pub fn comment(self, text: impl Into<String>) -> Answer {
        Answer {
            text: Some(text.into()),
            ..self
        }
    }

    /// The answer of the gate's own policy, which nobody but the runner can give. An empty action
    /// says that there is none.
    #[cfg(feature = "runtime")]
    pub(crate) fn of_policy(action: String, reason: &str) -> Answer {
        Answer {
            action,
            text: None,
            reason: "policy_response",
            source: AnswerSource {
                kind: "policy".to_owned(),
                reason: reason.to_owned(),
            },
        }
    }

    fn draft(self, pending: &PendingGate, agent: AgentName) -> Draft {
        let text = |key: &str, text: &str| {
            RawJson::from_serialize(&std::collections::BTreeMap::from([(key, text)])).ok()
        };
        let preview = self.text.as_deref().map(|full| head(full, AUDIT));
        let body = GateResolved {
            gate_id: pending.gate.id,
            resolver: pending.gate.resolver.clone(),
            reason: self.reason.to_owned(),
            action: self.action,
            source: Some(self.source),
            audit: Some(Audit {
                kind: pending.gate.kind.clone(),
                data: preview.and_then(|preview| text("preview", preview)),
            }),
            answer: self.text.as_deref().and_then(|full| text("text", full)),
        };
        Draft {
            body: body.into(),
            ..pending.resolved("").agent(agent)
        }
    }
}

/// The longest beginning of at most `max` bytes that ends between characters.
pub(crate) fn head(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}

/// The text that an answer carries beside its action.
pub(crate) fn text_of(resolved: &GateResolved) -> Option<String> {
    #[derive(Deserialize)]
    struct Text {
        text: String,
    }
    let answer = resolved.answer.as_ref()?;
    let parsed = serde_json::from_str::<Text>(answer.get()).ok()?;
    Some(parsed.text)
}

/// A person's answer that no turn has used: its turn ended before the step that asked was committed.
/// The runner uses it, once, when a turn of the same loop asks the same again.
#[derive(Debug, Clone, PartialEq)]
pub struct GateAnswer {
    /// The record of the answer.
    pub seq: Seq,
    /// The gate as it was opened.
    pub opened: PendingGate,
    /// The answer.
    pub resolved: GateResolved,
}

impl GateAnswer {
    /// What was said beside the action, or instead of one.
    pub fn text(&self) -> Option<String> {
        text_of(&self.resolved)
    }
}

/// Why a gate was not answered. It was not changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The session has no such gate, or it was closed 256 gates ago.
    #[error("there is no gate {0} that waits for an answer")]
    UnknownGate(GateId),
    /// Another answer came first; this one counts for nothing.
    #[error("the gate {gate} was answered already, by the record {at}")]
    AlreadyAnswered {
        /// The gate.
        gate: GateId,
        /// The record of the answer.
        at: Seq,
    },
    /// Its turn has gone on or ended without an answer.
    #[error("the gate {gate} was given up by its turn, in the record {at}")]
    Abandoned {
        /// The gate.
        gate: GateId,
        /// The record that closed it.
        at: Seq,
    },
    /// The caller's answer is none of those that the gate offers.
    #[error("the gate {gate} does not offer {action:?}; {}", choice(offered))]
    NotOffered {
        /// The gate.
        gate: GateId,
        /// What was answered.
        action: String,
        /// What may be.
        offered: Vec<String>,
    },
    /// The caller's text is too long.
    #[error("the text of an answer has at most {max} bytes, this one has {got}")]
    TooLong {
        /// Bytes of the text.
        got: usize,
        /// Bytes that it may have.
        max: usize,
    },
    /// It could not be made durable. Not committed: the gate waits as before. Unknown: the session is
    /// faulted, and reopening decides.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl Session {
    /// The gates that wait for an answer, in the order in which they were opened.
    pub fn pending_gates(&self) -> Vec<PendingGate> {
        self.core.state().pending.gates.all().cloned().collect()
    }

    /// Answers that persons gave and no turn has used, in their order.
    pub fn gate_answers(&self) -> Vec<GateAnswer> {
        self.core.state().pending.answers.all().cloned().collect()
    }

    /// Answers a gate. It **blocks** until the answer is durable, so it is for hosts without the runner
    /// and for threads of their own; in async code use [`Session::answer_gate_async`], which
    /// `LoopHandle::answer_gate` is. Who waits for the answer is told behind that.
    /// Of answers that race exactly one is taken. It works as well after a restart, when the turn
    /// that asked is gone: the answer is kept for the turn that asks the same again
    /// ([`Session::gate_answers`]).
    ///
    /// # Errors
    /// [`AnswerError`]. A commit that was refused leaves the gate open.
    pub fn answer_gate(
        &self,
        gate: GateId,
        answer: Answer,
    ) -> Result<Committed<GateResolved>, AnswerError> {
        let draft = self.answering(gate, answer)?;
        self.answered(gate, self.commit(vec![draft]))
    }

    /// The async twin of [`Session::answer_gate`]. If it is dropped while it waits, the answer is
    /// taken all the same.
    ///
    /// # Errors
    /// As for [`Session::answer_gate`].
    pub async fn answer_gate_async(
        &self,
        gate: GateId,
        answer: Answer,
    ) -> Result<Committed<GateResolved>, AnswerError> {
        let draft = self.answering(gate, answer)?;
        let outcome = self.submit(vec![draft]).await;
        self.answered(
            gate,
            outcome.map_err(CommitError::from).and_then(|done| done),
        )
    }

    /// What an answer would commit. Whether the gate is still open then, the boundary decides.
    fn answering(&self, gate: GateId, answer: Answer) -> Result<Draft, AnswerError> {
        let state = self.core.state();
        let Some(pending) = state.pending.gates.get(&gate) else {
            drop(state);
            return Err(self.closed(gate));
        };
        pending.check(&answer)?;
        let agent = state.find(pending.loop_id).map(|found| found.name.clone());
        Ok(answer.draft(pending, agent.unwrap_or_default()))
    }

    fn answered(
        &self,
        gate: GateId,
        outcome: Result<Vec<Outcome>, CommitError>,
    ) -> Result<Committed<GateResolved>, AnswerError> {
        match outcome {
            Ok(outcomes) => {
                let first = outcomes.first();
                let resolved = first.and_then(|outcome| outcome.committed().typed());
                resolved.ok_or_else(|| CommitError::from(Refusal::Empty).into())
            }
            Err(CommitError::NotCommitted(Refusal::Order(OrderError::GateNotOpen(_)))) => {
                Err(self.closed(gate))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn closed(&self, gate: GateId) -> AnswerError {
        match self.core.state().pending.closed(gate) {
            Some(closed) if closed.answered => AnswerError::AlreadyAnswered {
                gate,
                at: closed.at,
            },
            Some(closed) => AnswerError::Abandoned {
                gate,
                at: closed.at,
            },
            None => AnswerError::UnknownGate(gate),
        }
    }
}
