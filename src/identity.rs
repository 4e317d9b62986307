//! Who and where: ids, coordinates, cause, agency, visibility, time.
//!
//! An id is 16 bytes. The all-zero id means *absent* and never appears in JSON: a field that is
//! absent is left out. Ids are written as lower-case hyphenated text and read in either case.

mod timestamp;

pub use timestamp::{Timestamp, TimestampError};

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;
use uuid::Uuid;

/// Text that is not an id. The caller's input is at fault: pass the 36 characters `8-4-4-4-12`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseIdError {
    /// The text does not have 36 bytes (braces, `urn:` and the form without hyphens are refused).
    #[error("an id has 36 characters, this text has {got}: write it as 8-4-4-4-12 hex digits")]
    Length {
        /// Bytes of the text.
        got: usize,
    },
    /// A byte is neither a hex digit nor a hyphen at its fixed place.
    #[error(
        "an id has hex digits in groups of 8-4-4-4-12: the byte at offset {offset} does not fit"
    )]
    Character {
        /// Offset of the byte in the text.
        offset: usize,
    },
}

/// The operating system gave no random bytes, so no id was minted. Nothing was changed; try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the system's random source failed, no id was minted: try again")]
pub struct MintError;

/// 16 random bytes with the bits of a version 4 UUID.
pub(crate) fn random_v4() -> Result<[u8; 16], MintError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|_| MintError)?;
    Ok(uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .into_bytes())
}

/// Strict parse: hyphens at their fixed offsets, hex digits in either case, nothing else.
fn parse_id(text: &str) -> Result<Uuid, ParseIdError> {
    if text.len() != 36 {
        return Err(ParseIdError::Length { got: text.len() });
    }
    for (offset, byte) in text.bytes().enumerate() {
        let fits = match offset {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        if !fits {
            return Err(ParseIdError::Character { offset });
        }
    }
    Uuid::try_parse(text).map_err(|_| ParseIdError::Character { offset: 0 })
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// 16 bytes; all zero means absent.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(Uuid);

        impl $name {
            /// The absent id (all zero).
            #[must_use]
            pub const fn nil() -> Self {
                Self(Uuid::nil())
            }

            /// Whether this is the absent id.
            #[must_use]
            pub const fn is_nil(&self) -> bool {
                self.0.is_nil()
            }

            /// A fresh random id (version 4).
            ///
            /// # Panics
            /// When the operating system has no random bytes; [`Self::try_new`] returns that.
            #[must_use]
            #[allow(clippy::new_without_default, reason = "the default is the absent id")]
            pub fn new() -> Self {
                Self(Uuid::new_v4())
            }

            /// A fresh random id (version 4).
            ///
            /// # Errors
            /// [`MintError`] when the operating system has no random bytes.
            pub fn try_new() -> Result<Self, MintError> {
                random_v4().map(Self::from_bytes)
            }

            /// The id with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// The bytes of the id.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// A copy of the bytes of the id.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.into_bytes()
            }
        }

        impl From<[u8; 16]> for $name {
            fn from(bytes: [u8; 16]) -> Self {
                Self::from_bytes(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self.0.as_hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.as_hyphenated())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_id(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut buffer = Uuid::encode_buffer();
                serializer.serialize_str(self.0.as_hyphenated().encode_lower(&mut buffer))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an id as hyphenated hex text")
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    )+};
}

ids! {
    /// A session: what a host opens, and what an order of events belongs to.
    SessionId;
    /// A loop of a session; history belongs to a loop.
    LoopId;
    /// A turn of a loop: from a user's message to exactly one terminal event.
    TurnId;
    /// A step of a turn: one assistant message with the results of its tool calls.
    StepId;
    /// An event: its identity and idempotency key, minted when it is made.
    EventId;
    /// A command that a host or a user sent.
    CommandId;
    /// One execution of a tool.
    ToolExecutionId;
    /// A gate: a question that stands between a tool call and its execution.
    GateId;
}

/// Where something happened: session, loop, turn and step, each absent when nil.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Coordinates {
    /// The session.
    #[serde(
        rename = "session_id",
        default,
        skip_serializing_if = "SessionId::is_nil"
    )]
    pub session: SessionId,
    /// The loop.
    #[serde(default, skip_serializing_if = "LoopId::is_nil")]
    pub loop_id: LoopId,
    /// The turn.
    #[serde(rename = "turn_id", default, skip_serializing_if = "TurnId::is_nil")]
    pub turn: TurnId,
    /// The step.
    #[serde(rename = "step_id", default, skip_serializing_if = "StepId::is_nil")]
    pub step: StepId,
}

impl Coordinates {
    /// Coordinates of a session.
    #[must_use]
    pub fn session(session: SessionId) -> Self {
        Self {
            session,
            ..Self::default()
        }
    }

    /// These coordinates inside a loop.
    #[must_use]
    pub fn in_loop(self, loop_id: LoopId) -> Self {
        Self { loop_id, ..self }
    }

    /// These coordinates inside a turn.
    #[must_use]
    pub fn in_turn(self, turn: TurnId) -> Self {
        Self { turn, ..self }
    }

    /// These coordinates inside a step.
    #[must_use]
    pub fn in_step(self, step: StepId) -> Self {
        Self { step, ..self }
    }

    /// Whether all four are absent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Who acted. The default is the machine: a missing value must never read as "a human did it".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Agency {
    /// The machine (0, left out of JSON).
    #[default]
    Machine,
    /// A user (1).
    User,
}

impl Agency {
    /// Whether the machine acted.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        *self == Self::Machine
    }
}

impl From<Agency> for u8 {
    fn from(agency: Agency) -> Self {
        match agency {
            Agency::Machine => 0,
            Agency::User => 1,
        }
    }
}

/// A number that stands for no value of the named enum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{got} is no {what}: it was written by another version or is damaged")]
pub struct UnknownNumber {
    /// The enum's name.
    pub what: &'static str,
    /// The number found.
    pub got: u8,
}

impl TryFrom<u8> for Agency {
    type Error = UnknownNumber;

    fn try_from(got: u8) -> Result<Self, UnknownNumber> {
        match got {
            0 => Ok(Self::Machine),
            1 => Ok(Self::User),
            _ => Err(UnknownNumber {
                what: "agency",
                got,
            }),
        }
    }
}

/// The direct cause of an event: where it came from, and by which command, event or tool execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "CauseFields", from = "CauseFields")]
pub struct Cause {
    /// Coordinates of the cause.
    pub coordinates: Coordinates,
    /// The command, nil when none.
    pub command: CommandId,
    /// The event, nil when none.
    pub event: EventId,
    /// The tool execution, nil when none.
    pub tool_execution: ToolExecutionId,
    /// Who acted.
    pub agency: Agency,
}

impl Cause {
    /// The cause of an event that answers a command.
    #[must_use]
    pub fn command(command: CommandId, agency: Agency) -> Self {
        Self {
            command,
            agency,
            ..Self::default()
        }
    }

    /// Whether there is no cause.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// [`Cause`] as JSON has it: the coordinates stand beside the other keys.
#[derive(Serialize, Deserialize)]
struct CauseFields {
    #[serde(default, skip_serializing_if = "SessionId::is_nil")]
    session_id: SessionId,
    #[serde(default, skip_serializing_if = "LoopId::is_nil")]
    loop_id: LoopId,
    #[serde(default, skip_serializing_if = "TurnId::is_nil")]
    turn_id: TurnId,
    #[serde(default, skip_serializing_if = "StepId::is_nil")]
    step_id: StepId,
    #[serde(default, skip_serializing_if = "CommandId::is_nil")]
    command_id: CommandId,
    #[serde(default, skip_serializing_if = "EventId::is_nil")]
    event_id: EventId,
    #[serde(default, skip_serializing_if = "ToolExecutionId::is_nil")]
    tool_execution_id: ToolExecutionId,
    #[serde(default, skip_serializing_if = "Agency::is_machine")]
    agency: Agency,
}

impl From<Cause> for CauseFields {
    fn from(cause: Cause) -> Self {
        Self {
            session_id: cause.coordinates.session,
            loop_id: cause.coordinates.loop_id,
            turn_id: cause.coordinates.turn,
            step_id: cause.coordinates.step,
            command_id: cause.command,
            event_id: cause.event,
            tool_execution_id: cause.tool_execution,
            agency: cause.agency,
        }
    }
}

impl From<CauseFields> for Cause {
    fn from(fields: CauseFields) -> Self {
        Self {
            coordinates: Coordinates {
                session: fields.session_id,
                loop_id: fields.loop_id,
                turn: fields.turn_id,
                step: fields.step_id,
            },
            command: fields.command_id,
            event: fields.event_id,
            tool_execution: fields.tool_execution_id,
            agency: fields.agency,
        }
    }
}

/// Who may see an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Visibility {
    /// Everybody (0, left out of JSON).
    #[default]
    Public,
    /// Only the machinery (1).
    Internal,
}

/// The immutable name of a loop for attribution; empty means unnamed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentName(String);

impl AgentName {
    /// A name; the empty text means unnamed.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the loop is unnamed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for AgentName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for AgentName {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
