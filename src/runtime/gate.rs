//! What stands between a model's call and its execution.
//!
//! This version has the policy only. Gates, which wait for an answer and survive a restart, come
//! with their own issue; their events exist already (GateOpened, GateResolved).

use std::sync::Arc;

use crate::content::RawJson;
use crate::identity::{Coordinates, ToolExecutionId};

/// A call that a policy decides about.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCall {
    /// The tool's name.
    pub tool: String,
    /// The input, a JSON object.
    pub input: RawJson,
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
            execution: ToolExecutionId::nil(),
            coordinates: Coordinates::default(),
        }
    }
}

/// What a policy decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// The call runs.
    Allow,
    /// The call does not run; the model and the record are told why.
    Deny {
        /// Why.
        reason: String,
    },
    /// A person would have to be asked. This version cannot wait for one and so does not run the
    /// call: it is denied, and recorded as denied for that reason.
    Ask {
        /// What would be asked.
        question: String,
    },
}

impl Decision {
    /// A denial.
    pub fn deny(reason: impl Into<String>) -> Decision {
        let reason = reason.into();
        Decision::Deny { reason }
    }
}

/// Decides about calls, one after the other in call order, before any of them runs. Must not block.
/// A panic fails the turn: no call of the step runs.
///
/// A denial becomes durable as PermissionDecided in the batch of its step.
pub trait Policy: Send + Sync {
    /// Decides about one call.
    fn decide(&self, call: &ToolCall) -> Decision;
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
}
