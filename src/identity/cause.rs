//! What caused an event, and who acted.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CommandId, Coordinates, EventId, LoopId, SessionId, StepId, ToolExecutionId, TurnId};

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
