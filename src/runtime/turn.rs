//! One turn: steps until the model calls no tool, then exactly one terminal.
//!
//! Rollback is by step: what stops a turn discards the step in flight, earlier ones stay.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::append::append;
use super::contained::Contained;
use super::hooks::{HookResult, Hooks};
use super::queue::Queue;
use super::step::{CommittedStep, Next, Streaming};
use super::tool::AnyTool;
use super::{
    AgentSpec, Hub, Live, LiveBody, Model, Policy, RunError, ToolSpec, TurnEnd, TurnLimits,
    TurnOutcome,
};
use crate::contain::{Held, Panicked};
use crate::content::{AssistantMessage, Usage, UserMessage};
use crate::event::{ErrorKind, ErrorProjection, Header, Kind};
use crate::identity::{AgentName, Coordinates, StepId};
use crate::journal::{Fault, Seq};
use crate::store::{CommitError, Loop, Refusal, Session, Turn};

/// What a loop's turns are run with.
pub(super) struct Agent {
    pub(super) model: Held<Arc<dyn Model>>,
    pub(super) tools: HashMap<String, Held<Arc<dyn AnyTool>>>,
    pub(super) specs: Arc<[ToolSpec]>,
    pub(super) policy: Option<Held<Arc<dyn Policy>>>,
    pub(super) limits: TurnLimits,
    pub(super) hooks: Arc<Hooks>,
    hub: Hub,
}

/// What a running turn shares with the desk.
pub(super) struct Running {
    /// Asks it to stop.
    pub(super) cancel: CancellationToken,
    /// Says that it has stopped and that only its terminal is missing.
    pub(super) ending: CancellationToken,
    pub(super) queue: Queue,
}

impl Agent {
    pub(super) fn new(spec: AgentSpec, hub: Hub) -> Agent {
        Agent {
            model: spec.model,
            tools: spec.tools,
            specs: spec.specs.into(),
            policy: spec.policy,
            limits: spec.limits,
            hooks: Arc::new(spec.hooks),
            hub,
        }
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("tools", &self.specs)
            .finish_non_exhaustive()
    }
}

/// What ends a turn before its model is done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stop {
    Cancelled,
    Failed(ErrorProjection),
    Faulted(Fault),
}

impl Stop {
    pub(super) fn failed(kind: ErrorKind, why: impl std::fmt::Display) -> Stop {
        Stop::Failed(ErrorProjection::new(kind, why.to_string()))
    }

    /// Something of the host's panicked.
    pub(super) fn panicked(Panicked(detail): Panicked) -> Stop {
        Stop::failed(ErrorKind::TurnPanic, format!("panic: {detail}"))
    }

    pub(super) fn result(&self) -> HookResult {
        match self {
            Stop::Cancelled => HookResult::Cancelled,
            Stop::Failed(error) => failed(&error.message),
            Stop::Faulted(fault) => failed(fault),
        }
    }

    /// Why a step has no receipt (P7). The cause was not a cancellation: none is honoured once the
    /// append has been submitted.
    pub(super) fn of_commit(error: CommitError) -> Stop {
        match error {
            CommitError::Unknown { fault, .. }
            | CommitError::NotCommitted(Refusal::Faulted(fault)) => Stop::Faulted(fault),
            CommitError::NotCommitted(refusal) => Stop::failed(ErrorKind::NotCommitted, refusal),
            CommitError::Gone(gone) => Stop::failed(ErrorKind::Unknown, gone),
        }
    }
}

/// What a step of a turn needs to know.
pub(super) struct StepContext<'a> {
    pub(super) agent: &'a Agent,
    pub(super) session: &'a Session,
    pub(super) name: &'a AgentName,
    /// With its step.
    pub(super) at: Coordinates,
    pub(super) turn_index: u64,
    pub(super) step_index: u32,
    pub(super) cancel: &'a CancellationToken,
    queue: &'a Queue,
}

impl StepContext<'_> {
    pub(super) fn emit(&self, body: impl LiveBody) {
        let header = Header::at(self.at).named(self.name.clone());
        self.agent.hub.emit(Live::new(header, body));
    }

    /// Cancellation is honoured at this point.
    pub(super) fn go_on(&self) -> Result<(), Stop> {
        if self.cancel.is_cancelled() {
            return Err(Stop::Cancelled);
        }
        Ok(())
    }
}

/// What a turn has come to so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    steps: Vec<Seq>,
    usage: Option<Usage>,
    batches: u32,
    calls: usize,
}

impl Progress {
    fn spend(&mut self, usage: Option<Usage>) -> Result<(), Stop> {
        let Some(usage) = usage else {
            return Ok(());
        };
        let sum = self.usage.unwrap_or_default().checked_add(usage);
        self.usage =
            Some(sum.ok_or_else(|| {
                Stop::failed(ErrorKind::Unknown, "the usage of the turn overflows")
            })?);
        Ok(())
    }

    /// Counts a batch before it runs.
    pub(super) fn admit(&mut self, calls: usize, limits: &TurnLimits) -> Result<(), Stop> {
        self.batches = self.batches.saturating_add(1);
        self.calls = self.calls.saturating_add(calls);
        if self.batches <= limits.iterations && self.calls <= limits.calls as usize {
            return Ok(());
        }
        let why = format!(
            "the turn would need {} steps with tools (limit {}) and {} calls (limit {})",
            self.batches, limits.iterations, self.calls, limits.calls
        );
        Err(Stop::failed(ErrorKind::ToolLimit, why))
    }
}

/// The last step is committed, and the turn's end with it.
struct Done {
    message: AssistantMessage,
    terminal: Option<Seq>,
}

/// Runs a turn to its end. Its hook begins before the turn does and ends behind its terminal.
pub(super) async fn run(
    owned: &mut Loop,
    agent: &Agent,
    message: UserMessage,
    running: &Running,
) -> Result<TurnOutcome, RunError> {
    let at = Coordinates::session(owned.session().id()).in_loop(owned.id());
    let hook = agent.hooks.turn(at, &message).map_err(RunError::Denied)?;
    let span = tracing::info_span!(
        "turn",
        turn = tracing::field::Empty,
        index = tracing::field::Empty
    );
    let outcome = run_allowed(owned, agent, message, running, &span)
        .instrument(span.clone())
        .await;
    hook.finish_with(|| match &outcome {
        Ok(outcome) => match &outcome.end {
            TurnEnd::Done { .. } => HookResult::Done,
            TurnEnd::Interrupted => HookResult::Cancelled,
            TurnEnd::Failed { error } => failed(&error.message),
            TurnEnd::Faulted(fault) => failed(fault),
        },
        Err(error) => failed(error),
    });
    outcome
}

fn failed(why: impl std::fmt::Display) -> HookResult {
    let error = why.to_string();
    HookResult::Failed { error }
}

async fn run_allowed(
    owned: &mut Loop,
    agent: &Agent,
    message: UserMessage,
    running: &Running,
    span: &tracing::Span,
) -> Result<TurnOutcome, RunError> {
    let session = owned.session().clone();
    let name = owned.name().clone();
    let at = Coordinates::session(session.id()).in_loop(owned.id());
    let begin = owned.begin_turn_async(message);
    let begun = append(&agent.hooks, at, &[Kind::TurnStarted], begin, Turn::started);
    let mut turn = begun
        .await
        .map_err(|error| match Stop::of_commit(error.clone()) {
            Stop::Faulted(fault) => RunError::Faulted(fault),
            _ => RunError::NotStarted(error),
        })?;
    let (id, index) = (turn.id(), turn.index());
    span.record("turn", tracing::field::display(id));
    span.record("index", index);
    let context = StepContext {
        agent,
        session: &session,
        name: &name,
        at: at.in_turn(id),
        turn_index: index,
        step_index: 0,
        cancel: &running.cancel,
        queue: &running.queue,
    };
    let at = context.at;
    let mut progress = Progress::default();
    // What a host brings is contained where it is called. Should a panic come from anywhere else, the
    // turn is in our hands, so that it can be ended.
    let driven = Contained::new(drive(&mut turn, context, &mut progress)).await;
    running.ending.cancel();
    let (end, terminal) = match driven {
        Ok(Ok(done)) => {
            let message = done.message;
            (TurnEnd::Done { message }, done.terminal)
        }
        Ok(Err(stop)) => finish(turn, &agent.hooks, at, stop).await,
        Err(panicked) => finish(turn, &agent.hooks, at, Stop::panicked(panicked)).await,
    };
    Ok(TurnOutcome {
        turn: id,
        index,
        steps: progress.steps,
        usage: progress.usage,
        end,
        terminal,
    })
}

/// Steps until one calls no tool.
async fn drive(
    turn: &mut Turn<'_>,
    mut context: StepContext<'_>,
    progress: &mut Progress,
) -> Result<Done, Stop> {
    let at = context.at;
    loop {
        context.go_on()?;
        let step = StepId::try_new().map_err(|error| Stop::failed(ErrorKind::Unknown, error))?;
        context.at = at.in_step(step);
        let hook = context.agent.hooks.step(context.at, context.step_index);
        let span = tracing::info_span!("step", step = %step, index = context.step_index);
        let committed = one_step(turn, &context, progress).instrument(span).await;
        hook.finish_with(|| match &committed {
            Ok(_) => HookResult::Done,
            Err(stop) => stop.result(),
        });
        let committed = committed?;
        if let Some(message) = committed.last {
            let terminal = committed.group.terminal;
            return Ok(Done { message, terminal });
        }
        context.at = at;
        fold(turn, &context).await?;
        context.step_index = context.step_index.saturating_add(1);
    }
}

async fn one_step(
    turn: &mut Turn<'_>,
    context: &StepContext<'_>,
    progress: &mut Progress,
) -> Result<CommittedStep, Stop> {
    let materialized = Streaming::begin(context).await?.materialize().await?;
    progress.spend(materialized.usage())?;
    let candidate = match materialized.next() {
        Next::Commit(candidate) => candidate,
        Next::Tools(batch) => {
            progress.admit(batch.calls(), &context.agent.limits)?;
            batch.run(context).await?
        }
    };
    let committed = candidate.commit(turn, context, progress.usage).await?;
    progress.steps.push(committed.group.step);
    Ok(committed)
}

/// Takes what waits and may into the turn, durably, before the model is asked again. If that fails
/// it waits again, and the end of the turn decides about it.
async fn fold(turn: &mut Turn<'_>, context: &StepContext<'_>) -> Result<(), Stop> {
    context.go_on()?;
    let messages = context.queue.drain();
    if messages.is_empty() {
        return Ok(());
    }
    let kinds = vec![Kind::TurnFoldedInto; messages.len()];
    let id = turn.id();
    let folded = append(
        &context.agent.hooks,
        context.at,
        &kinds,
        turn.fold_async(messages),
        |seqs| seqs.last().copied().unwrap_or_default(),
    );
    let seqs = folded.await.map_err(Stop::of_commit)?;
    context.queue.folded(id, &seqs);
    Ok(())
}

/// Ends a turn that was stopped. If its terminal cannot be made durable it ends in memory, and the
/// terminal goes with the loop's next batch.
async fn finish(
    turn: Turn<'_>,
    hooks: &Arc<Hooks>,
    at: Coordinates,
    stop: Stop,
) -> (TurnEnd, Option<Seq>) {
    let (end, written) = match stop {
        // No outcome can be written behind an unknown one: reopening decides.
        Stop::Faulted(fault) => return (TurnEnd::Faulted(fault), None),
        Stop::Cancelled => {
            let kinds = [Kind::TurnInterrupted];
            let written = append(hooks, at, &kinds, turn.interrupt_async(), |seq| *seq);
            (TurnEnd::Interrupted, written.await)
        }
        Stop::Failed(error) => {
            let kinds = [Kind::TurnFailed];
            let written = append(hooks, at, &kinds, turn.fail_async(error.clone()), |seq| {
                *seq
            });
            let written = written.await;
            (TurnEnd::Failed { error }, written)
        }
    };
    match written {
        Ok(terminal) => (end, Some(terminal)),
        Err(error) => match Stop::of_commit(error) {
            Stop::Faulted(fault) => (TurnEnd::Faulted(fault), None),
            stop => {
                tracing::warn!(?stop, "the end of a turn is not durable yet");
                (end, None)
            }
        },
    }
}
