//! Bodies of turn, step and input events.

use serde::{Deserialize, Serialize, Serializer};

use crate::content::{AssistantMessage, Message, RawJson, ToolResultMessage, Usage, UserMessage};
use crate::identity::UnknownNumber;

/// A turn begins; its message is the turn's first committed message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnStarted {
    /// The turn's number within its loop, from 1.
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub turn_index: u64,
    /// What the user said.
    pub message: UserMessage,
}

/// A queued message joined a running turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnFoldedInto {
    /// The turn's number within its loop, from 1.
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub turn_index: u64,
    /// What the user said.
    pub message: UserMessage,
}

/// A turn ended well. Its message is already committed by its last step: a fold ignores it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnDone {
    /// The turn's number within its loop, from 1.
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub turn_index: u64,
    /// A copy of the last assistant message.
    pub message: AssistantMessage,
    /// What the whole turn cost; recorded, never judged.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "all_counters"
    )]
    pub usage: Option<Usage>,
}

/// In TurnDone all five counters are written, also those that are zero.
fn all_counters<S: Serializer>(usage: &Option<Usage>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct All {
        input_tokens: u64,
        output_tokens: u64,
        cache_read_tokens: u64,
        cache_creation_tokens: u64,
        reasoning_tokens: u64,
    }
    let usage = usage.unwrap_or_default();
    All {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_tokens: usage.cache_read_tokens,
        cache_creation_tokens: usage.cache_creation_tokens,
        reasoning_tokens: usage.reasoning_tokens,
    }
    .serialize(serializer)
}

/// A turn failed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnFailed {
    /// The turn's number within its loop, from 1.
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub turn_index: u64,
    /// Why.
    #[serde(rename = "err")]
    pub error: ErrorProjection,
}

/// A turn was interrupted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnInterrupted {
    /// The turn's number within its loop, from 1.
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub turn_index: u64,
    /// By what, where it is known (imported events do not say).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<InterruptReason>,
}

/// What interrupted a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InterruptReason {
    /// The turn was open when its process ended; the next one closed it.
    Restart,
    /// Somebody cancelled it.
    Cancelled,
    /// The host dropped its turn unfinished.
    Dropped,
}

/// A turn was not accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRejected {
    /// Why.
    pub reason: RejectReason,
}

/// Why a turn was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[non_exhaustive]
pub enum RejectReason {
    /// The queue is full (1).
    QueueFull,
    /// The loop is shutting down (2).
    ShuttingDown,
    /// Something inside failed (3).
    Internal,
}

impl From<RejectReason> for u8 {
    fn from(reason: RejectReason) -> Self {
        match reason {
            RejectReason::QueueFull => 1,
            RejectReason::ShuttingDown => 2,
            RejectReason::Internal => 3,
        }
    }
}

impl TryFrom<u8> for RejectReason {
    type Error = UnknownNumber;

    fn try_from(got: u8) -> Result<Self, UnknownNumber> {
        match got {
            1 => Ok(Self::QueueFull),
            2 => Ok(Self::ShuttingDown),
            3 => Ok(Self::Internal),
            _ => Err(UnknownNumber {
                what: "reason of a rejected turn",
                got,
            }),
        }
    }
}

/// A message waits for its turn (live).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InputQueued {}

/// A waiting message was cancelled.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct InputCancelled {
    /// The number of the turn that it waited for, 0 when none.
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub turn_index: u64,
    /// Why.
    #[serde(skip_serializing_if = "CancelReason::is_retracted")]
    pub reason: CancelReason,
    /// What the user had said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<UserMessage>,
}

/// Why a waiting message was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[non_exhaustive]
pub enum CancelReason {
    /// Its sender took it back (0, left out of JSON).
    #[default]
    Retracted,
    /// Its turn was interrupted (1).
    Interrupted,
    /// Its turn failed (2).
    Failed,
}

impl CancelReason {
    fn is_retracted(&self) -> bool {
        *self == Self::Retracted
    }
}

impl From<CancelReason> for u8 {
    fn from(reason: CancelReason) -> Self {
        match reason {
            CancelReason::Retracted => 0,
            CancelReason::Interrupted => 1,
            CancelReason::Failed => 2,
        }
    }
}

impl TryFrom<u8> for CancelReason {
    type Error = UnknownNumber;

    fn try_from(got: u8) -> Result<Self, UnknownNumber> {
        match got {
            0 => Ok(Self::Retracted),
            1 => Ok(Self::Interrupted),
            2 => Ok(Self::Failed),
            _ => Err(UnknownNumber {
                what: "reason of a cancelled input",
                got,
            }),
        }
    }
}

/// A fragment of the model's answer (live, never serialised).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenDelta {
    /// The turn's number within its loop, from 1.
    pub turn_index: u64,
    /// The fragment.
    pub chunk: Chunk,
}

/// A fragment of the model's answer. The index names the block of the answer that it belongs to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Chunk {
    /// Text.
    Text {
        /// The block of the answer, from 0.
        index: u32,
        /// The fragment.
        text: String,
    },
    /// A refusal.
    Refusal {
        /// The block of the answer, from 0.
        index: u32,
        /// The fragment.
        text: String,
    },
    /// Reasoning, and what its provider needs to take it back.
    Thinking {
        /// The block of the answer, from 0.
        index: u32,
        /// The fragment of the words.
        text: String,
        /// A fragment of the signature.
        signature: String,
        /// The dialect of the signature, when this fragment tells it.
        signature_format: String,
        /// Opaque state, when this fragment brings it.
        provider_state: Option<RawJson>,
        /// The dialect of the state, when this fragment tells it.
        provider_state_format: String,
    },
    /// A tool call begins.
    ToolUse {
        /// The block of the answer, from 0.
        index: u32,
        /// The model's id of the call.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// A fragment of a tool call's input. A fragment may end inside a character, hence bytes.
    ToolInput {
        /// The block of the answer, from 0.
        index: u32,
        /// The fragment.
        fragment: Vec<u8>,
    },
}

/// A step is committed: one assistant message and the results of its tool calls, in call order.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct StepDone {
    /// The assistant message, then one tool-result message per call.
    pub messages: Vec<Message>,
}

impl StepDone {
    /// The group of a step.
    #[must_use]
    pub fn new(assistant: AssistantMessage, results: Vec<ToolResultMessage>) -> Self {
        let results = results.into_iter().map(Message::ToolResult);
        Self {
            messages: std::iter::once(Message::Assistant(assistant))
                .chain(results)
                .collect(),
        }
    }

    /// The assistant message, if the group has the right shape.
    #[must_use]
    pub fn assistant(&self) -> Option<&AssistantMessage> {
        match self.messages.first() {
            Some(Message::Assistant(message)) => Some(message),
            _ => None,
        }
    }

    /// The tool results in order.
    pub fn results(&self) -> impl Iterator<Item = &ToolResultMessage> {
        self.messages
            .iter()
            .skip(1)
            .filter_map(|message| match message {
                Message::ToolResult(result) => Some(result),
                _ => None,
            })
    }
}

/// A loop's history was replaced: it is now `summary`, then what the records from `keep_from` on
/// contributed to it. The kept part is named, not copied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ContextCompacted {
    /// The summary of what was dropped.
    pub summary: UserMessage,
    /// The first session sequence whose messages stay (0: none stay).
    #[serde(skip_serializing_if = "crate::content::is_zero")]
    pub keep_from: u64,
    /// Why, in the host's words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A live error as it is recorded. Text alone never makes an error model-facing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "ErrorFields", from = "ErrorFields")]
pub struct ErrorProjection {
    /// Its kind, from a stable vocabulary.
    pub kind: ErrorKind,
    /// Its text, for people.
    pub message: String,
    /// What the model may be told, only when the error opted in.
    pub model_facing: Option<String>,
}

impl ErrorProjection {
    /// An error that the model is not told about.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            model_facing: None,
        }
    }
}

/// The kinds of error that are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model's answer held nothing.
    EmptyResponse,
    /// The turn needed more tool calls or rounds than allowed.
    ToolLimit,
    /// The turn's code panicked.
    TurnPanic,
    /// The step could not be made durable, for a reason that is not a cancellation.
    NotCommitted,
    /// Everything else, also errors of the provider.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct ErrorFields {
    #[serde(default)]
    kind: ErrorKind,
    #[serde(default)]
    message: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    model_facing: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    model_facing_detail: String,
}

impl From<ErrorProjection> for ErrorFields {
    fn from(error: ErrorProjection) -> Self {
        Self {
            kind: error.kind,
            message: error.message,
            model_facing: error.model_facing.is_some(),
            model_facing_detail: error.model_facing.unwrap_or_default(),
        }
    }
}

impl From<ErrorFields> for ErrorProjection {
    fn from(fields: ErrorFields) -> Self {
        Self {
            kind: fields.kind,
            message: fields.message,
            model_facing: fields.model_facing.then_some(fields.model_facing_detail),
        }
    }
}
