//! What can be wrong with an event, its bytes or its limits.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use super::{Kind, LimitExceeded};
use crate::content::{ContentError, JsonError};

/// A field of an event that a rule speaks about. The set is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// The kind of the event.
    Type,
    /// Who may see it.
    Visibility,
    /// Its id.
    EventId,
    /// Its session.
    SessionId,
    /// Its loop.
    LoopId,
    /// Its turn.
    TurnId,
    /// Its step.
    StepId,
    /// Its tool execution.
    ToolExecutionId,
    /// The messages of a step.
    Messages,
    /// The message of a turn.
    Message,
    /// The name of a host's event.
    Name,
    /// The parent of a fork.
    Parent,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type => "Type",
            Self::Visibility => "Visibility",
            Self::EventId => "EventID",
            Self::SessionId => "SessionID",
            Self::LoopId => "LoopID",
            Self::TurnId => "TurnID",
            Self::StepId => "StepID",
            Self::ToolExecutionId => "ToolExecutionID",
            Self::Messages => "Messages",
            Self::Message => "Message",
            Self::Name => "Name",
            Self::Parent => "Parent",
        })
    }
}

/// The rule that a field breaks. The set is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// It must be set.
    MustBeSet,
    /// It must be absent.
    MustBeZero,
    /// It names no kind of event that this version knows.
    UnknownType,
    /// Its value is not allowed.
    Invalid,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MustBeSet => "must-be-set",
            Self::MustBeZero => "must-be-zero",
            Self::UnknownType => "unknown-type",
            Self::Invalid => "invalid",
        })
    }
}

/// The first rule that an event breaks. Its maker is at fault; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("invalid event {event}: the field {field} breaks the rule {rule}")]
pub struct InvalidEvent {
    /// The kind's name.
    pub event: Cow<'static, str>,
    /// The field.
    pub field: Field,
    /// The rule.
    pub rule: Rule,
}

impl InvalidEvent {
    pub(super) fn new(kind: Kind, field: Field, rule: Rule) -> Self {
        Self {
            event: Cow::Borrowed(kind.name()),
            field,
            rule,
        }
    }
}

/// How the calls and results of a step fail to pair. The host is at fault: a history with such a step
/// would be refused by every provider from then on, so it is refused before it is written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PairingError {
    /// The group does not begin with an assistant message, or holds others than tool results after it.
    #[error("a step is one assistant message followed by tool results: message {index} is neither")]
    Shape {
        /// Index of the message.
        index: usize,
    },
    /// A tool call has no id.
    #[error("tool call {index} of the step has an empty id: give each call an id")]
    EmptyId {
        /// Index among the step's calls.
        index: usize,
    },
    /// Two tool calls of the step share an id.
    #[error("the tool call id {id:?} repeats within the step: ids must be unique in a step")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// A tool call has no result.
    #[error("the tool call {id:?} has no result: commit the step when all its results are there")]
    MissingResult {
        /// The call's id.
        id: String,
    },
    /// A result answers no call of the step, or answers one again.
    #[error(
        "the result for {id:?} answers no open call of the step: give exactly one result per call"
    )]
    UnexpectedResult {
        /// The id that the result names.
        id: String,
    },
    /// A result is not at the place of its call.
    #[error(
        "result {index} answers {got:?} where {want:?} belongs: results follow the order of calls"
    )]
    OutOfOrder {
        /// Index among the step's results.
        index: usize,
        /// The id that belongs there.
        want: String,
        /// The id found.
        got: String,
    },
}

/// Why an event was not encoded. No bytes were given out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The event breaks a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// Live events are not persisted. The caller is at fault: publish it, do not append it.
    #[error("{kind} is a live event and is never persisted: publish it instead")]
    EphemeralNotPersistable {
        /// The kind.
        kind: Kind,
    },
    /// The event is larger than a limit that reading enforces too.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// The encoded event would be refused on reading (P10): keys that repeat in labels or in what a
    /// host put into a field that is no opaque JSON, for example.
    #[error("the event could not be read back: {0}")]
    NotAcceptable(JsonError),
    /// The serialiser failed, which no value of these types makes it do. Please report it.
    #[error("{kind} has no encoded form: this is a defect of this library")]
    Unencodable {
        /// The kind.
        kind: Kind,
    },
}

/// Why bytes were not decoded. Nothing is skipped or filled in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes exceed a limit.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// The bytes are not acceptable JSON (grammar, UTF-8, repeated keys, depth).
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The JSON is no object.
    #[error("an event is a JSON object")]
    NotAnObject,
    /// A newer version wrote the event: read it with that version or a later one.
    #[error(
        "the event has schema version {version}, this version reads up to 1: use a newer version"
    )]
    UnsupportedSchema {
        /// The version found.
        version: u64,
    },
    /// The event's `type` is missing, unknown, or that of a live event.
    #[error("unknown event type {name:?}: another version may have written it")]
    UnknownEventType {
        /// The type, empty when it was missing.
        name: String,
    },
    /// A record has a kind that this version does not know and must not skip.
    #[error("unknown record kind {code}: a newer version wrote it, use that one")]
    UnknownKind {
        /// The kind's code.
        code: u16,
    },
    /// A record begins with a version that this one does not know.
    #[error("unknown record version {version}: a newer version wrote it, use that one")]
    UnknownRecordVersion {
        /// The version found.
        version: u8,
    },
    /// A record's header is cut short, malformed, or not in its one canonical form.
    #[error("the record's header is malformed")]
    Header,
    /// A body that stands outside of its record is not the one that the record refers to.
    #[error("the body has another length or another digest than the record says")]
    WrongBody,
    /// A field has the wrong type or is missing.
    #[error("{kind} does not have its form: {detail}")]
    Body {
        /// The kind's name.
        kind: &'static str,
        /// What the parser says, for people.
        detail: String,
    },
    /// A message or a block is of no known kind.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The event breaks a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
}
