//! The tools that a host brings.

use std::future::Future;
use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use crate::content::RawJson;
use crate::identity::{Coordinates, ToolExecutionId};

/// What a model is told about a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The name by which the model calls it; unique among the tools of an agent.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of its input; opaque to the runner, which only asks for an object.
    pub input_schema: RawJson,
}

impl ToolSpec {
    /// A tool whose input may be any object.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            input_schema: RawJson::empty_object(),
        }
    }

    /// With the schema of its input.
    #[must_use]
    pub fn input_schema(self, input_schema: RawJson) -> ToolSpec {
        ToolSpec {
            input_schema,
            ..self
        }
    }
}

/// A running tool.
pub type ToolFuture<'a> = Pin<Box<dyn Future<Output = ToolOutput> + Send + 'a>>;

/// A tool. Calls of one step run at once, each in a task of its own, so a panic is that call's error
/// result. A tool that blocks must use a thread of its own (`tokio::task::spawn_blocking`).
pub trait Tool: Send + Sync {
    /// What the model is told. Asked once, when the agent is put together.
    fn spec(&self) -> ToolSpec;

    /// Runs a call. It is dropped at its next await when the turn is interrupted.
    fn run(&self, input: ToolInput) -> ToolFuture<'_>;

    /// What a call is about to do, in one line, for those who watch.
    fn summary(&self, _input: &RawJson) -> String {
        String::new()
    }
}

/// What a tool is called with. Input that is no JSON object never comes this far: such a call gets an
/// error result instead.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolInput {
    /// The model's input, an object, byte for byte.
    pub json: RawJson,
    /// The model's id of the call; unique within its step only.
    pub call_id: String,
    /// The execution; unique everywhere.
    pub execution: ToolExecutionId,
    /// The session, loop, turn and step.
    pub coordinates: Coordinates,
    /// Cancelled when the result is no longer wanted; for work that goes on beside the future.
    pub cancel: CancellationToken,
}

impl ToolInput {
    /// An input and nothing else, for testing a tool by itself.
    pub fn new(json: RawJson) -> ToolInput {
        ToolInput {
            json,
            call_id: String::new(),
            execution: ToolExecutionId::nil(),
            coordinates: Coordinates::default(),
            cancel: CancellationToken::new(),
        }
    }
}

impl ToolInput {
    /// The input as a value of the tool's own type.
    ///
    /// # Errors
    /// As serde finds it; `?` in a tool that gives a `Result` makes it the model's error result.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.json.get())
    }
}

/// What a call gave. It is shaped to [`TurnLimits::result_bytes`](super::TurnLimits) and stored with
/// its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// What the model reads.
    pub text: String,
    /// Whether the call failed. The turn goes on either way.
    pub is_error: bool,
}

impl ToolOutput {
    /// A result.
    pub fn text(text: impl Into<String>) -> ToolOutput {
        let text = text.into();
        let is_error = false;
        ToolOutput { text, is_error }
    }

    /// A failure that the model is told about.
    pub fn error(text: impl Into<String>) -> ToolOutput {
        let text = text.into();
        let is_error = true;
        ToolOutput { text, is_error }
    }
}

impl<T: Into<String>, E: std::fmt::Display> std::convert::From<Result<T, E>> for ToolOutput {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(text) => ToolOutput::text(text),
            Err(error) => ToolOutput::error(error.to_string()),
        }
    }
}
