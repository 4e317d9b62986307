//! Bodies of tool, permission and gate events.

use serde::{Deserialize, Serialize};

use crate::content::{RawJson, present};
use crate::identity::{GateId, ToolExecutionId};

/// A tool call begins (live).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolCallStarted {
    /// The execution.
    pub tool_execution_id: ToolExecutionId,
    /// The tool's name.
    pub tool_name: String,
    /// What it is about to do, in one line.
    pub summary: String,
}

/// A tool call has ended (live).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolCallCompleted {
    /// The execution.
    pub tool_execution_id: ToolExecutionId,
    /// Whether it failed.
    pub is_error: bool,
    /// The beginning of its result.
    pub result_preview: String,
}

/// A tool call needs a permission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PermissionRequested {
    /// The execution.
    #[serde(default, skip_serializing_if = "ToolExecutionId::is_nil")]
    pub tool_execution_id: ToolExecutionId,
    /// What is asked for, as the tool's policy describes it.
    #[serde(default = "RawJson::empty_object")]
    pub request: RawJson,
}

/// A permission was decided without asking, or by the answer of an earlier gate that no turn had
/// used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PermissionDecided {
    /// The execution.
    #[serde(default, skip_serializing_if = "ToolExecutionId::is_nil")]
    pub tool_execution_id: ToolExecutionId,
    /// The gate whose answer decided it: the answer is used up then. Nil when nobody was asked.
    #[serde(default, skip_serializing_if = "GateId::is_nil")]
    pub gate_id: GateId,
    /// What was decided.
    pub effect: Effect,
    /// By which rule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// About what, redacted.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub subject: Option<RawJson>,
    /// For the record, redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
}

/// What was decided about a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Allowed.
    Approve,
    /// Refused.
    Deny,
}

/// A tool asks the user.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UserInputRequested {
    /// The execution.
    #[serde(skip_serializing_if = "ToolExecutionId::is_nil")]
    pub tool_execution_id: ToolExecutionId,
    /// The question.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub question: String,
    /// Answers to choose from; empty for a free answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
}

/// Who resolves a gate. Only the exact text `session` frees the gate's coordinates; anything else,
/// also the empty text, binds it to a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resolver(String);

impl Resolver {
    /// The session.
    #[must_use]
    pub fn session() -> Self {
        Self("session".to_owned())
    }

    /// The loop.
    #[must_use]
    pub fn for_loop() -> Self {
        Self("loop".to_owned())
    }

    /// A resolver by its text.
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the session resolves the gate.
    #[must_use]
    pub fn is_session(&self) -> bool {
        self.0 == "session"
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A gate waits for an answer. It carries all that a host needs to list and answer it after a restart.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GateOpened {
    /// The gate.
    #[serde(skip_serializing_if = "Gate::is_empty")]
    pub gate: Gate,
}

/// A question that stands between a tool call and its execution.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gate {
    /// Its id.
    #[serde(skip_serializing_if = "GateId::is_nil")]
    pub id: GateId,
    /// What kind of question it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Who resolves it.
    #[serde(skip_serializing_if = "Resolver::is_empty")]
    pub resolver: Resolver,
    /// What it holds up.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub blocks: String,
    /// What its answer causes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// How much depends on it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub criticality: String,
    /// What it is about.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub subject: Option<RawJson>,
    /// What people are shown, and the answers they may choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// What happens when nobody answers.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub response_policy: Option<RawJson>,
    /// Whether it can be answered after a restart.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restorable: bool,
    /// What the resolver needs to go on after a restart; opaque, kept byte for byte.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub payload: Option<RawJson>,
}

impl Gate {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What people are shown at a gate.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prompt {
    /// The title.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// The answers they may choose.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub controls: Vec<Control>,
    /// The fields of a form, as imported or as the host wants them.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub fields: Option<RawJson>,
}

/// An answer that people may choose at a gate.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    /// What the answer is, for the machine.
    pub action: String,
    /// What the answer is, for people.
    pub label: String,
}

/// A gate was answered or closed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GateResolved {
    /// The gate.
    #[serde(skip_serializing_if = "GateId::is_nil")]
    pub gate_id: GateId,
    /// Who resolved it.
    #[serde(skip_serializing_if = "Resolver::is_empty")]
    pub resolver: Resolver,
    /// Why it is closed: `answered`, `policy_response`, `abandoned`, `owner_closed`,
    /// `restore_unavailable`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The answer chosen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// Where the answer came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<AnswerSource>,
    /// For the record, redacted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// What the answer carries beyond the choice; opaque, kept byte for byte.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub answer: Option<RawJson>,
}

/// Where a gate's answer came from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerSource {
    /// `user`, `policy`, `model` and others.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Why it answered, such as `timeout`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A redacted note for the record.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Audit {
    /// What the note is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The note; opaque, kept byte for byte.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub data: Option<RawJson>,
}
