//! What a host offers for committing, before it is stamped.

use crate::content::{AssistantMessage, ToolResultMessage};
use crate::event::{Body, HostEvent, Key, StepDone};
use crate::identity::{AgentName, Cause, LoopId, StepId, TurnId};

/// An event before its stamp: the commit boundary adds session, event id and time.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub(super) loop_id: LoopId,
    pub(super) turn: TurnId,
    pub(super) step: StepId,
    pub(super) agent_name: AgentName,
    pub(super) cause: Cause,
    pub(super) key: Option<Key>,
    pub(super) body: Body,
}

impl Draft {
    /// An event of the session.
    pub fn new(body: impl Into<Body>) -> Draft {
        Draft {
            loop_id: LoopId::nil(),
            turn: TurnId::nil(),
            step: StepId::nil(),
            agent_name: AgentName::default(),
            cause: Cause::default(),
            key: None,
            body: body.into(),
        }
    }

    /// In a loop.
    #[must_use]
    pub fn in_loop(self, loop_id: LoopId) -> Draft {
        Draft { loop_id, ..self }
    }

    /// In a turn of its loop.
    #[must_use]
    pub fn in_turn(self, turn: TurnId) -> Draft {
        Draft { turn, ..self }
    }

    /// In a step of its turn.
    #[must_use]
    pub fn in_step(self, step: StepId) -> Draft {
        Draft { step, ..self }
    }

    /// With the name of its agent.
    #[must_use]
    pub fn agent(self, agent_name: AgentName) -> Draft {
        Draft { agent_name, ..self }
    }

    /// With what caused it.
    #[must_use]
    pub fn cause(self, cause: Cause) -> Draft {
        Draft { cause, ..self }
    }

    /// With the host's idempotency key: a repeat with the same body gives the first commit, with
    /// another body an error.
    #[must_use]
    pub fn key(self, key: Key) -> Draft {
        Draft {
            key: Some(key),
            ..self
        }
    }

    /// What it says.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

/// A step to be committed: one assistant message and the results of its tool calls.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDraft {
    pub(super) assistant: AssistantMessage,
    pub(super) results: Vec<ToolResultMessage>,
    pub(super) key: Option<Key>,
    pub(super) cause: Cause,
    pub(super) host_events: Vec<HostEvent>,
    pub(super) step: StepId,
}

impl StepDraft {
    /// A step without tool calls, or one whose results follow.
    pub fn new(assistant: AssistantMessage) -> StepDraft {
        StepDraft {
            assistant,
            results: Vec::new(),
            key: None,
            cause: Cause::default(),
            host_events: Vec::new(),
            step: StepId::nil(),
        }
    }

    /// Adds the results of the tool calls, in call order: one for each call, not more (P3).
    #[must_use]
    pub fn results(mut self, results: impl IntoIterator<Item = ToolResultMessage>) -> StepDraft {
        self.results.extend(results);
        self
    }

    /// The host's idempotency key for the step. It stands for the whole step, with the events that
    /// are bound to it; what is compared with the first commit is the step's messages.
    #[must_use]
    pub fn key(self, key: Key) -> StepDraft {
        StepDraft {
            key: Some(key),
            ..self
        }
    }

    /// What caused the step.
    #[must_use]
    pub fn cause(self, cause: Cause) -> StepDraft {
        StepDraft { cause, ..self }
    }

    /// Binds an event of the host to the step: durable in the same atomic batch (P3).
    #[must_use]
    pub fn host_event(mut self, event: HostEvent) -> StepDraft {
        self.host_events.push(event);
        self
    }

    /// The step's id, when live events bore it already; a fresh one otherwise.
    #[must_use]
    pub fn id(self, step: StepId) -> StepDraft {
        StepDraft { step, ..self }
    }

    /// The drafts of the step in a turn: the StepDone first, then the host's events.
    pub fn into_drafts(self, loop_id: LoopId, turn: TurnId, agent: AgentName) -> Vec<Draft> {
        let step = if self.step.is_nil() {
            StepId::new()
        } else {
            self.step
        };
        let bind = |body: Body| {
            Draft::new(body)
                .in_loop(loop_id)
                .in_turn(turn)
                .in_step(step)
                .agent(agent.clone())
                .cause(self.cause)
        };
        let mut done = bind(StepDone::new(self.assistant, self.results).into());
        done.key = self.key;
        std::iter::once(done)
            .chain(self.host_events.into_iter().map(|event| bind(event.into())))
            .collect()
    }
}
