//! The tool calls of one step: decided in call order, run at once, results in call order.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::contain::{Contained, Panicked};
use super::hooks::{HookResult, Operation};
use super::step::CommitCandidate;
use super::turn::{StepContext, Stop};
use super::{Decision, Tool, ToolCall, ToolInput, ToolOutput, shape};
use crate::content::{AssistantMessage, RawJson, RawToolCall, ToolResultMessage};
use crate::event::{
    Body, Effect, ErrorKind, PermissionDecided, StepDone, ToolCallCompleted, ToolCallStarted,
    check_pairing,
};
use crate::identity::ToolExecutionId;

/// The calls of an answer, as the model wrote them, beside the message that stores them.
pub(super) struct ToolBatch {
    message: AssistantMessage,
    calls: Vec<RawToolCall>,
}

/// A call that was looked at: it will run, or it has its error result already.
struct Prepared {
    execution: ToolExecutionId,
    hook: Operation,
    run: Result<(Arc<dyn Tool>, ToolInput), ToolOutput>,
}

impl ToolBatch {
    pub(super) fn new(message: AssistantMessage, calls: Vec<RawToolCall>) -> ToolBatch {
        ToolBatch { message, calls }
    }

    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Runs the calls. Whatever goes wrong with one of them is its error result, and the turn goes
    /// on; a cancellation discards all.
    pub(super) async fn run(self, context: &StepContext<'_>) -> Result<CommitCandidate, Stop> {
        self.check_ids()?;
        let cancel = context.cancel.child_token();
        // What tools do beside their futures is told when the batch is discarded.
        let unwanted = cancel.clone().drop_guard();
        let mut decided = Vec::new();
        let mut prepared = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            prepared.push(prepare(call, context, &cancel, &mut decided)?);
        }
        // All have started before any runs.
        for (call, prepared) in self.calls.iter().zip(&prepared) {
            context.emit(ToolCallStarted {
                tool_execution_id: prepared.execution,
                tool_name: call.name.clone(),
                summary: prepared.summary(),
            });
        }
        let outputs = run_all(prepared, context).await?;
        unwanted.disarm();
        let results = self.calls.iter().zip(outputs).map(|(call, output)| {
            let result = match output.is_error {
                true => ToolResultMessage::error,
                false => ToolResultMessage::text,
            };
            result(call.id.as_str(), output.text)
        });
        Ok(CommitCandidate {
            results: results.collect(),
            message: self.message,
            decided,
            last: false,
        })
    }

    /// A step that could never be committed must not run its tools: results are told apart by id.
    fn check_ids(&self) -> Result<(), Stop> {
        let results = self.calls.iter();
        let results = results.map(|call| ToolResultMessage::text(call.id.as_str(), ""));
        let step = StepDone::new(self.message.clone(), results.collect());
        check_pairing(&step).map_err(|error| Stop::failed(ErrorKind::NotCommitted, error))
    }
}

/// Looks at one call: its tool, its input, its permission.
fn prepare(
    call: &RawToolCall,
    context: &StepContext<'_>,
    cancel: &CancellationToken,
    decided: &mut Vec<Body>,
) -> Result<Prepared, Stop> {
    let execution =
        ToolExecutionId::try_new().map_err(|error| Stop::failed(ErrorKind::Unknown, error))?;
    let hook = context.agent.hooks.tool_call(context.at, execution, call);
    let (hook, run) = match hook {
        Ok(hook) => (hook, admit(call, execution, context, decided)),
        Err(denial) => (
            Operation::default(),
            Err(ToolOutput::error(denial.to_string())),
        ),
    };
    let run = run.map(|(tool, json)| {
        let input = ToolInput {
            json,
            call_id: call.id.clone(),
            execution,
            coordinates: context.at,
            cancel: cancel.child_token(),
        };
        (tool, input)
    });
    Ok(Prepared {
        execution,
        hook,
        run,
    })
}

fn admit(
    call: &RawToolCall,
    execution: ToolExecutionId,
    context: &StepContext<'_>,
    decided: &mut Vec<Body>,
) -> Result<(Arc<dyn Tool>, RawJson), ToolOutput> {
    let name = &call.name;
    let Some(tool) = context.agent.tools.get(name) else {
        return Err(ToolOutput::error(format!("there is no tool {name:?}")));
    };
    let json = object(call).map_err(ToolOutput::error)?;
    if let Some(policy) = &context.agent.policy {
        let decision = policy.decide(&ToolCall {
            tool: name.clone(),
            input: json.clone(),
            execution,
            coordinates: context.at,
        });
        let refused = match decision {
            Decision::Allow => None,
            Decision::Deny { reason } => Some(reason),
            Decision::Ask { question } => Some(format!("nobody can be asked: {question}")),
        };
        if let Some(reason) = refused {
            let output = ToolOutput::error(format!("the call was denied: {reason}"));
            decided.push(denial(name, execution, reason));
            return Err(output);
        }
    }
    Ok((tool.clone(), json))
}

/// The raw view of a call's input decides: what the model wrote runs, or nothing does.
fn object(call: &RawToolCall) -> Result<RawJson, String> {
    match call.executable_input() {
        Some(json) if json.is_object() => Ok(json),
        Some(_) => Err("the input is not a JSON object; call the tool again with one".to_owned()),
        None => match RawJson::parse(&call.input) {
            Ok(_) => Err("the call has no id or no name".to_owned()),
            Err(error) => Err(format!(
                "the input is not valid JSON ({error}); call the tool again with a JSON object"
            )),
        },
    }
}

fn denial(tool: &str, execution: ToolExecutionId, reason: String) -> Body {
    let subject = RawJson::from_serialize(&std::collections::BTreeMap::from([("tool", tool)]));
    Body::PermissionDecided(PermissionDecided {
        tool_execution_id: execution,
        effect: Effect::Deny,
        reason,
        subject: subject.ok(),
        audit: None,
    })
}

impl Prepared {
    fn summary(&self) -> String {
        match &self.run {
            Ok((tool, input)) => shape::preview(&tool.summary(&input.json)),
            Err(_) => String::new(),
        }
    }
}

/// Runs what can run, at most so many at once, and gives the outputs in call order.
async fn run_all(
    mut prepared: Vec<Prepared>,
    context: &StepContext<'_>,
) -> Result<Vec<ToolOutput>, Stop> {
    let limits = &context.agent.limits;
    let mut outputs: Vec<Option<ToolOutput>> = prepared.iter().map(|_| None).collect();
    let executions: Vec<_> = prepared.iter().map(|call| call.execution).collect();
    let hooks = prepared.iter_mut();
    let mut hooks: Vec<_> = hooks.map(|call| std::mem::take(&mut call.hook)).collect();
    let mut complete = |at: usize, output: ToolOutput| {
        let output = ToolOutput {
            text: shape::result(output.text, limits.result_bytes),
            ..output
        };
        context.emit(ToolCallCompleted {
            tool_execution_id: executions.get(at).copied().unwrap_or_default(),
            is_error: output.is_error,
            result_preview: shape::preview(&output.text),
        });
        if let Some(hook) = hooks.get_mut(at) {
            std::mem::take(hook).finish_with(|| match output.is_error {
                true => HookResult::Failed {
                    error: shape::preview(&output.text),
                },
                false => HookResult::Done,
            });
        }
        if let Some(slot) = outputs.get_mut(at) {
            *slot = Some(output);
        }
    };
    let mut waiting = Vec::new();
    for (at, call) in prepared.into_iter().enumerate() {
        match call.run {
            Ok(run) => waiting.push((at, run)),
            Err(output) => complete(at, output),
        }
    }
    let mut waiting = waiting.into_iter();
    // Dropping the set ends what still runs in it.
    let mut running = JoinSet::new();
    loop {
        while running.len() < limits.parallel.max(1) {
            let Some((at, (tool, input))) = waiting.next() else {
                break;
            };
            let timeout = limits.tool_timeout;
            let span =
                tracing::info_span!("tool", execution = %input.execution, call = input.call_id);
            let call = call(tool, input, timeout);
            running.spawn(async move { (at, call.await) }.instrument(span));
        }
        let joined = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(Stop::Cancelled),
            joined = running.join_next() => joined,
        };
        match joined {
            Some(Ok((at, output))) => complete(at, output),
            // Panics are contained inside: the runtime is going down.
            Some(Err(error)) => return Err(Stop::failed(ErrorKind::Unknown, error)),
            None => break,
        }
    }
    let lost = || Stop::failed(ErrorKind::Unknown, "a tool call has no result");
    outputs
        .into_iter()
        .map(|output| output.ok_or_else(lost))
        .collect()
}

/// One call, with its panic and its time contained.
async fn call(
    tool: Arc<dyn Tool>,
    input: ToolInput,
    timeout: Option<std::time::Duration>,
) -> ToolOutput {
    let contained = Contained::new(async move {
        let Some(timeout) = timeout else {
            return tool.run(input).await;
        };
        let cancel = input.cancel.clone();
        match tokio::time::timeout(timeout, tool.run(input)).await {
            Ok(output) => output,
            Err(_) => {
                cancel.cancel();
                ToolOutput::error(format!("the tool took longer than {timeout:?}"))
            }
        }
    });
    match contained.await {
        Ok(output) => output,
        Err(Panicked(detail)) => ToolOutput::error(format!("the tool panicked: {detail}")),
    }
}
