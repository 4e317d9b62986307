//! Bodies of intent events: what tools with effects are about to do.

use serde::{Deserialize, Serialize};

use crate::identity::ToolExecutionId;

/// A call of a tool that opted in is about to run. It is durable before the call runs; the StepDone
/// of its step settles it. If none comes, nobody knows what the call has done.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolIntent {
    /// The execution.
    #[serde(skip_serializing_if = "ToolExecutionId::is_nil")]
    pub tool_execution_id: ToolExecutionId,
    /// The model's id of the call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub call_id: String,
    /// The tool's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// The beginning of its input, cut between characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub input_preview: String,
    /// The bytes of its input.
    pub input_bytes: u64,
}

/// Somebody has looked into what a call did whose step never came.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolIntentSettled {
    /// The execution.
    #[serde(skip_serializing_if = "ToolExecutionId::is_nil")]
    pub tool_execution_id: ToolExecutionId,
    /// What was found, in the words of who looked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}
