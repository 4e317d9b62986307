//! The tools that a host brings.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::asking::CallGates;
use super::contained::Contained;
use super::shape;
use super::{AskError, Question};
use crate::contain::{Held, Panicked, contained};
use crate::content::RawJson;
use crate::identity::{Coordinates, ToolExecutionId};
use crate::wake::relayed;

/// Bytes of what a tool says about input that it does not take.
const DIAGNOSTIC: usize = 1024;

/// Whether a tool changes anything outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Effects {
    /// It only looks; running it twice, or not at all, changes nothing.
    ReadOnly,
    /// It may change something. What is not said to be read-only counts as this.
    #[default]
    SideEffects,
}

/// What a model is told about a tool, and what the runner needs to know of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolSpec {
    /// The name by which the model calls it; unique among the tools of an agent.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of its input; opaque to the runner, which only asks for an object.
    pub input_schema: RawJson,
    /// Whether it changes anything outside. Policies see it; the runner itself does not treat tools
    /// differently for it.
    pub effects: Effects,
    /// Whether its calls are made durable as intents before they run.
    pub intent: bool,
}

impl ToolSpec {
    /// A tool whose input may be any object, with side effects, without intents.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            input_schema: RawJson::empty_object(),
            effects: Effects::default(),
            intent: false,
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

    /// It only looks.
    #[must_use]
    pub fn read_only(self) -> ToolSpec {
        ToolSpec {
            effects: Effects::ReadOnly,
            ..self
        }
    }

    /// Its calls become durable before they run, all of a step with one sync, so that after a crash
    /// it is known which of them may have done something
    /// ([`Session::unknown_effects`](crate::store::Session::unknown_effects)). Without this a call
    /// costs not a byte and not a sync beyond its step.
    #[must_use]
    pub fn intent(self) -> ToolSpec {
        ToolSpec {
            intent: true,
            ..self
        }
    }
}

/// Input that a tool does not take. The model reads it as the result of its call, up to 1 KiB.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(String);

impl ToolError {
    /// Says what is wrong, to the model.
    pub fn new(why: impl Into<String>) -> ToolError {
        ToolError(why.into())
    }
}

impl From<serde_json::Error> for ToolError {
    fn from(error: serde_json::Error) -> Self {
        let why = "the input is not what this tool takes";
        ToolError(format!("{why} ({error}); call it again with other input"))
    }
}

/// A tool.
///
/// All calls of a step are prepared, in call order, before any of them is authorised, and authorised
/// before any runs. Calls run at once, each in a task of its own. Whatever goes wrong with one (also
/// a panic) is its error result, and the turn goes on. A tool that blocks must use a thread of its
/// own (`tokio::task::spawn_blocking`).
pub trait Tool: Send + Sync + 'static {
    /// The input as the tool understands it.
    type Request: Send + 'static;

    /// What the model is told. Asked once, when the agent is put together.
    fn spec(&self) -> ToolSpec;

    /// Reads and checks the model's input: always a JSON object, byte for byte as the model wrote it
    /// (what is stored with the step is a value of its own). Must not block and do nothing yet.
    ///
    /// # Errors
    /// [`ToolError`]: the call does not run, and nobody is asked about it.
    fn prepare(&self, input: &RawJson) -> Result<Self::Request, ToolError>;

    /// Runs a call. It is dropped at its next await when the turn is interrupted.
    fn run(
        &self,
        request: Self::Request,
        call: ToolCallContext,
    ) -> impl Future<Output = ToolOutput> + Send;

    /// What a call is about to do, in one line, for those who watch.
    fn summary(&self, _request: &Self::Request) -> String {
        String::new()
    }
}

/// A tool made of a closure. Its request is any type that serde can read; [`RawJson`] takes the input
/// as it is.
///
/// ```
/// use stepwell::runtime::{FnTool, ToolCallContext, ToolSpec};
///
/// #[derive(serde::Deserialize)]
/// struct Add { a: i64, b: i64 }
///
/// let spec = ToolSpec::new("add", "Adds two numbers").read_only();
/// let add = FnTool::new(spec, |add: Add, _call: ToolCallContext| async move {
///     add.a.checked_add(add.b).map(|sum| sum.to_string()).ok_or("the sum is too large")
/// });
/// # let _ = add;
/// ```
pub struct FnTool<T, F> {
    spec: ToolSpec,
    run: F,
    request: PhantomData<fn(T)>,
}

impl<T, F, R> FnTool<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, ToolCallContext) -> R + Send + Sync + 'static,
    R: Future<Output: Into<ToolOutput>> + Send + 'static,
{
    /// A tool that runs the closure. It gives text, or a `Result` of text, or a [`ToolOutput`].
    pub fn new(spec: ToolSpec, run: F) -> FnTool<T, F> {
        FnTool {
            spec,
            run,
            request: PhantomData,
        }
    }
}

impl<T, F, R> Tool for FnTool<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, ToolCallContext) -> R + Send + Sync + 'static,
    R: Future<Output: Into<ToolOutput>> + Send + 'static,
{
    type Request = T;

    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn prepare(&self, input: &RawJson) -> Result<T, ToolError> {
        Ok(serde_json::from_str(input.get())?)
    }

    async fn run(&self, request: T, call: ToolCallContext) -> ToolOutput {
        match contained(|| Contained::new((self.run)(request, call))) {
            Ok(running) => running.await.map_or_else(ToolOutput::panicked, Into::into),
            Err(panicked) => ToolOutput::panicked(panicked),
        }
    }
}

impl<T, F> std::fmt::Debug for FnTool<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FnTool").field(&self.spec).finish()
    }
}

/// The call that a tool runs for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCallContext {
    /// The tool's name.
    pub tool: String,
    /// The model's input, an object, byte for byte.
    pub input: RawJson,
    /// The model's id of the call; unique within its step only.
    pub call_id: String,
    /// The execution; unique everywhere.
    pub execution: ToolExecutionId,
    /// The session, loop, turn and step.
    pub coordinates: Coordinates,
    /// Cancelled when the result is no longer wanted; for work that goes on beside the future.
    pub cancel: CancellationToken,
    pub(super) gates: Option<CallGates>,
}

impl ToolCallContext {
    /// A call of nobody, for testing a tool by itself.
    pub fn new(tool: impl Into<String>, input: RawJson) -> ToolCallContext {
        ToolCallContext {
            tool: tool.into(),
            input,
            call_id: String::new(),
            execution: ToolExecutionId::nil(),
            coordinates: Coordinates::default(),
            cancel: CancellationToken::new(),
            gates: None,
        }
    }

    /// Asks the user, and waits for the answer: its text, or the action that was chosen. The question
    /// is durable and listed before this waits, and so is the answer before it is given. The time of
    /// waiting counts for [`TurnLimits::tool_timeout`](super::TurnLimits).
    ///
    /// When the turn ended after the answer and before its step was committed, a call of the same
    /// tool with the same input that asks the same in a later turn of the loop gets that answer.
    ///
    /// # Errors
    /// [`AskError`]; `?` in a tool that gives a `Result` makes it the model's error result.
    pub async fn ask(&self, question: Question) -> Result<String, AskError> {
        match &self.gates {
            // A tool may await it by a waker of its own.
            Some(gates) => relayed(gates.ask(question)).await,
            None => Err(AskError::NobodyToAsk),
        }
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

impl ToolOutput {
    pub(super) fn panicked(Panicked(detail): Panicked) -> ToolOutput {
        ToolOutput::error(format!("the tool panicked: {detail}"))
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        ToolOutput::text(text)
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        ToolOutput::text(text)
    }
}

impl<T: Into<String>, E: std::fmt::Display> From<Result<T, E>> for ToolOutput {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(text) => ToolOutput::text(text),
            Err(error) => {
                let error = Held::new(error);
                ToolOutput::error(error.get().map(E::to_string).unwrap_or_default())
            }
        }
    }
}

type ToolFuture = Pin<Box<dyn Future<Output = ToolOutput> + Send>>;

/// A call that a tool has looked at. What it holds of the host's is contained: also when it runs, which
/// panics never, and wherever it is dropped.
pub(super) struct PreparedCall {
    pub(super) summary: String,
    pub(super) run: Held<Box<dyn FnOnce(ToolCallContext) -> ToolFuture + Send>>,
}

/// A tool without the type of its requests, as an agent keeps it.
pub(super) trait AnyTool: Send + Sync {
    fn spec(&self) -> &ToolSpec;
    fn prepare(&self, input: &RawJson) -> Result<PreparedCall, ToolError>;
}

struct Kept<T> {
    spec: ToolSpec,
    tool: Arc<T>,
}

pub(super) fn keep<T: Tool>(tool: Arc<T>) -> Arc<dyn AnyTool> {
    Arc::new(Kept {
        spec: tool.spec(),
        tool,
    })
}

impl<T: Tool> AnyTool for Kept<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare(&self, input: &RawJson) -> Result<PreparedCall, ToolError> {
        let prepared = self.tool.prepare(input);
        let request = prepared
            .map_err(|ToolError(why)| ToolError(shape::head(&why, DIAGNOSTIC).to_owned()))?;
        let request = Held::new(request);
        let summary = request.get().map(|request| self.tool.summary(request));
        let tool = Held::new(self.tool.clone());
        let run = move |call| -> ToolFuture {
            Box::pin(async move {
                let begun = contained(|| {
                    let (tool, request) = (tool.get()?, request.into_inner()?);
                    Some(Contained::new(tool.run(request, call)))
                });
                match begun {
                    Ok(Some(running)) => running.await.unwrap_or_else(ToolOutput::panicked),
                    Ok(None) => ToolOutput::error("the tool is gone"),
                    Err(panicked) => ToolOutput::panicked(panicked),
                }
            })
        };
        Ok(PreparedCall {
            summary: summary.unwrap_or_default(),
            run: Held::new(Box::new(run)),
        })
    }
}
