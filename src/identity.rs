//! Who and where: ids, coordinates, cause, agency, visibility, time.
//!
//! An id is 16 bytes. The all-zero id means *absent* and never appears in JSON: a field that is
//! absent is left out. Ids are written as lower-case hyphenated text and read in either case.

mod cause;
mod timestamp;

pub use cause::{Agency, Cause, UnknownNumber};
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
