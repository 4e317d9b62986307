//! The tool calls of one step: prepared and decided in call order, their intents durable, then run at
//! once, with results in call order.

use std::sync::Arc;

use tokio::task::JoinSet;
use tracing::Instrument;

use super::append::{append, last_seq};
use super::asking::{AskError, CallGates, StepGates};
use super::hooks::{HookResult, Operation};
use super::step::CommitCandidate;
use super::tool::PreparedCall;
use super::turn::{StepContext, Stop};
use super::unwanted::{Unwanted, cancel};
use super::{Decision, Policy, ToolCall, ToolCallContext, ToolOutput, ToolSpec, shape, timer};
use crate::contain::{Held, Panicked, contained};
use crate::content::{AssistantMessage, RawJson, RawToolCall, ToolResultMessage};
use crate::event::{
    Body, Effect, ErrorKind, Kind, PermissionDecided, StepDone, ToolCallCompleted, ToolCallStarted,
    ToolIntent, check_pairing,
};
use crate::identity::{GateId, ToolExecutionId};
use crate::store::{CommitError, Draft, GatedCall};

/// The calls of an answer, as the model wrote them, beside the message that stores them.
pub(super) struct ToolBatch {
    message: AssistantMessage,
    calls: Vec<RawToolCall>,
}

/// A call that was looked at: it will run, or it has its error result already.
struct Prepared {
    execution: ToolExecutionId,
    call_id: String,
    summary: String,
    hook: Operation,
    run: Result<Ready, ToolOutput>,
}

/// A call that can run.
struct Ready {
    spec: ToolSpec,
    input: RawJson,
    call: PreparedCall,
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
        // A question outlives no batch that was discarded.
        let cancel = context.cancel.child_token();
        let discarded = cancel.clone().drop_guard();
        let (hub, name) = (context.session.hub(), context.name.clone());
        let gates = Arc::new(StepGates::new(
            hub,
            context.agent.hooks.clone(),
            name,
            context.at,
            cancel,
        ));
        let mut prepared = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            prepared.push(Prepared::new(call, context)?);
        }
        let mut decided = Vec::new();
        if let Some(policy) = context.agent.policy.as_ref().and_then(Held::get) {
            for call in &mut prepared {
                call.authorise(&**policy, context, &gates, &mut decided)
                    .await?;
            }
        }
        let intents = intents(&prepared, &gates);
        announce_effects(intents, context).await?;
        // All have started before any runs.
        for (call, prepared) in self.calls.iter().zip(&prepared) {
            context.emit(ToolCallStarted {
                tool_execution_id: prepared.execution,
                tool_name: call.name.clone(),
                summary: prepared.summary.clone(),
            });
        }
        let outputs = run_all(prepared, context, &gates).await?;
        discarded.disarm();
        let (used, gated) = gates.close();
        decided.extend(used);
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
            gated,
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

impl Prepared {
    /// Looks at one call: its tool, its input.
    fn new(call: &RawToolCall, context: &StepContext<'_>) -> Result<Prepared, Stop> {
        let execution =
            ToolExecutionId::try_new().map_err(|error| Stop::failed(ErrorKind::Unknown, error))?;
        let guarded = context.agent.hooks.tool_call(context.at, execution, call);
        let (hook, run) = match guarded {
            Ok(hook) => (hook, Ready::new(call, context)),
            Err(denial) => (Operation::default(), Err(denial.to_string())),
        };
        let summary = match &run {
            Ok(ready) => shape::preview(&ready.call.summary),
            Err(_) => String::new(),
        };
        Ok(Prepared {
            execution,
            call_id: call.id.clone(),
            summary,
            hook,
            run: run.map_err(ToolOutput::error),
        })
    }

    /// Whether it may run. The policy is asked about calls that could.
    async fn authorise(
        &mut self,
        policy: &dyn Policy,
        context: &StepContext<'_>,
        gates: &StepGates,
        decided: &mut Vec<Body>,
    ) -> Result<(), Stop> {
        let Ok(ready) = &self.run else {
            return Ok(());
        };
        context.go_on()?;
        let gated = self.gated(ready);
        let call = ToolCall {
            tool: ready.spec.name.clone(),
            input: ready.input.clone(),
            effects: ready.spec.effects,
            execution: self.execution,
            coordinates: context.at,
        };
        let decision = contained(|| policy.decide(&call)).map_err(Stop::panicked)?;
        let refused = match decision {
            Decision::Allow => None,
            Decision::Deny { reason } => {
                decided.push(denial(&call, &reason));
                Some(reason)
            }
            Decision::Ask(question) => {
                let resolution = gates.ask(&gated, &question).await.map_err(stop)?;
                let effect = contained(|| policy.answered(&call, &resolution));
                let effect = effect.map_err(Stop::panicked)?;
                gates.note(&gated, &resolution, effect);
                match effect {
                    Effect::Approve => None,
                    Effect::Deny => Some(resolution.refusal()),
                }
            }
        };
        if let Some(reason) = refused {
            self.run = Err(ToolOutput::error(format!("the call was denied: {reason}")));
            self.summary.clear();
        }
        Ok(())
    }

    /// The call as gates know it.
    fn gated(&self, ready: &Ready) -> GatedCall {
        GatedCall {
            tool: ready.spec.name.clone(),
            call_id: self.call_id.clone(),
            execution: self.execution,
            input: ready.input.clone(),
        }
    }
}

impl Ready {
    /// Its tool and its input, as far as both are there; or what the model is told.
    fn new(call: &RawToolCall, context: &StepContext<'_>) -> Result<Ready, String> {
        let name = &call.name;
        let tool = context.agent.tools.get(name).and_then(Held::get);
        let tool = tool.ok_or_else(|| format!("there is no tool {name:?}"))?;
        let input = object(call)?;
        let call = match contained(|| tool.prepare(&input)) {
            Ok(prepared) => prepared.map_err(|error| error.to_string())?,
            Err(Panicked(detail)) => {
                return Err(format!("the tool panicked before it ran: {detail}"));
            }
        };
        Ok(Ready {
            spec: tool.spec().clone(),
            input,
            call,
        })
    }
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

fn denial(call: &ToolCall, reason: &str) -> Body {
    let subject = std::collections::BTreeMap::from([("tool", call.tool.as_str())]);
    Body::PermissionDecided(PermissionDecided {
        tool_execution_id: call.execution,
        gate_id: GateId::nil(),
        effect: Effect::Deny,
        reason: reason.to_owned(),
        subject: RawJson::from_serialize(&subject).ok(),
        audit: None,
    })
}

/// What a question without an answer means for the turn.
fn stop(error: AskError) -> Stop {
    match error {
        AskError::Abandoned => Stop::Cancelled,
        AskError::Faulted(fault) => Stop::Faulted(fault),
        AskError::NotAsked(error) => Stop::of_commit(error),
        error @ AskError::NoTimer(_) => Stop::failed(ErrorKind::Unknown, error),
        error => Stop::failed(ErrorKind::NotCommitted, error),
    }
}

/// What tools that opted in are about to do.
fn intents(prepared: &[Prepared], gates: &StepGates) -> Vec<Draft> {
    let ready = prepared.iter().filter_map(|call| {
        let ready = call.run.as_ref().ok()?;
        ready.spec.intent.then_some((call, ready))
    });
    let intents = ready.map(|(call, ready)| {
        gates.draft(ToolIntent {
            tool_execution_id: call.execution,
            call_id: call.call_id.clone(),
            tool_name: ready.spec.name.clone(),
            input_preview: shape::preview(ready.input.get()),
            input_bytes: ready.input.get().len() as u64,
        })
    });
    intents.collect()
}

/// Makes intents durable, all in one batch, before any call of the step runs.
async fn announce_effects(intents: Vec<Draft>, context: &StepContext<'_>) -> Result<(), Stop> {
    if intents.is_empty() {
        return Ok(());
    }
    context.go_on()?;
    let kinds = vec![Kind::ToolIntent; intents.len()];
    let commit = async {
        let written = context.session.submit(intents).await;
        written.map_err(CommitError::from).and_then(|done| done)
    };
    append(&context.agent.hooks, context.at, &kinds, commit, last_seq)
        .await
        .map_err(Stop::of_commit)?;
    context.go_on()
}

/// Runs what can run, at most so many at once, and gives the outputs in call order.
async fn run_all(
    mut prepared: Vec<Prepared>,
    context: &StepContext<'_>,
    gates: &Arc<StepGates>,
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
    let mut unwanted = Vec::new();
    for (at, call) in prepared.into_iter().enumerate() {
        let Prepared {
            execution, call_id, ..
        } = call;
        match call.run {
            Ok(ready) => {
                let gated = GatedCall {
                    tool: ready.spec.name,
                    call_id,
                    execution,
                    input: ready.input,
                };
                let (guard, cancel) = Unwanted::new();
                unwanted.push(guard);
                let call = ToolCallContext {
                    tool: gated.tool.clone(),
                    input: gated.input.clone(),
                    call_id: gated.call_id.clone(),
                    execution,
                    coordinates: context.at,
                    cancel,
                    gates: Some(CallGates::new(gates.clone(), gated)),
                };
                waiting.push((at, ready.call, call));
            }
            Err(output) => complete(at, output),
        }
    }
    let mut waiting = waiting.into_iter();
    // Dropping the set ends what still runs in it; before that, what tools do beside their futures is
    // told, also by those that have ended.
    let mut running = JoinSet::new();
    let unwanted = unwanted;
    loop {
        while running.len() < limits.parallel.max(1) {
            let Some((at, prepared, call)) = waiting.next() else {
                break;
            };
            let timeout = limits.tool_timeout;
            let span =
                tracing::info_span!("tool", execution = %call.execution, call = call.call_id);
            let run = run(prepared, call, timeout);
            running.spawn(async move { (at, run.await) }.instrument(span));
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
    unwanted.into_iter().for_each(Unwanted::disarm);
    let lost = || Stop::failed(ErrorKind::Unknown, "a tool call has no result");
    outputs
        .into_iter()
        .map(|output| output.ok_or_else(lost))
        .collect()
}

/// One call, within its time.
async fn run(
    prepared: PreparedCall,
    call: ToolCallContext,
    timeout: Option<std::time::Duration>,
) -> ToolOutput {
    let Some(start) = prepared.run.into_inner() else {
        return ToolOutput::error("the tool is gone");
    };
    let token = Held::new(call.cancel.clone());
    let running = start(call);
    let Some(timeout) = timeout else {
        return running.await;
    };
    if let Err(error) = timer::is_here() {
        return ToolOutput::error(error.to_string());
    }
    match tokio::time::timeout(timeout, running).await {
        Ok(output) => output,
        Err(_) => {
            cancel(token.get());
            ToolOutput::error(format!("the tool took longer than {timeout:?}"))
        }
    }
}
