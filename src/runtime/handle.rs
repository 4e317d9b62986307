//! The handle of a running loop, and what its turns come to.

use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use super::actor::{Actor, Command};
use super::closing::Shutdown;
use super::hooks::Denial;
use super::queue::{Asked, Entry, Input, InputId, InputOutcome, Submitted};
use super::{
    AgentSpec, Filter, Hub, NoTimer, ShutdownError, ShutdownLimits, ShutdownReport, StartAt,
    Subscription, timer,
};
use crate::content::{AssistantMessage, Message, Usage, UserMessage};
use crate::event::{CancelReason, ErrorProjection};
use crate::identity::{AgentName, LoopId, TurnId};
use crate::journal::{Fault, Seq};
use crate::store::{CommitError, Loop, ReplayError, Session};
use crate::wake::{Relay, relayed};

/// Commands that may wait for the actor. It takes them at once, also while a turn runs.
const COMMANDS: usize = 64;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TurnEnd {
    /// Well, with the model's last message.
    Done {
        /// The message.
        message: AssistantMessage,
    },
    /// It failed. The step in flight was discarded, earlier ones stay.
    Failed {
        /// Why.
        error: ErrorProjection,
    },
    /// It was interrupted. The step in flight was discarded, unless its append had begun.
    Interrupted,
    /// The session is faulted: whether the step in flight and the end of the turn are on disk is for
    /// reopening to decide ([`Store::reopen`](crate::store::Store::reopen)).
    Faulted(Fault),
}

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TurnOutcome {
    /// The turn.
    pub turn: TurnId,
    /// Its number within its loop, from 1.
    pub index: u64,
    /// The steps that were committed and acknowledged, by their sequence.
    pub steps: Vec<Seq>,
    /// What the model calls of the turn cost, as far as the model told.
    pub usage: Option<Usage>,
    /// How it ended.
    pub end: TurnEnd,
    /// Where its terminal stands (for [`TurnEnd::Done`]: that of the last step, with which it went).
    /// `None` when it could not be made durable: it is written with the loop's next batch, or by the
    /// next opening.
    pub terminal: Option<Seq>,
}

impl TurnOutcome {
    /// Whether it ended well.
    pub fn is_done(&self) -> bool {
        matches!(self.end, TurnEnd::Done { .. })
    }

    /// The text of the model's last message, if the turn ended well.
    pub fn text(&self) -> Option<String> {
        match &self.end {
            TurnEnd::Done { message } => Some(message.to_text()),
            _ => None,
        }
    }
}

/// Why a turn did not begin.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// As many inputs wait as may. A TurnRejected is recorded before this is given, so that who sends
    /// too much goes at the pace of the disk.
    #[error("{limit} inputs wait already; try again when a turn has ended")]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// The loop was shut down; or its runtime ended, and then the turn may have begun: the next
    /// opening of the session closes it.
    #[error("the loop has ended; spawn it again")]
    Ended,
    /// The session is faulted.
    #[error("the session is faulted: {0}")]
    Faulted(Fault),
    /// Its beginning could not be committed; the loop goes on.
    #[error("the turn could not begin: {0}")]
    NotStarted(CommitError),
    /// What it has come to cannot be read from the log.
    #[error("the history of the loop cannot be read: {0}")]
    Unreadable(ReplayError),
    /// A guard refused it; recorded as TurnRejected.
    #[error("the turn was not allowed: {0}")]
    Denied(Denial),
    /// It was cancelled while it waited; recorded as InputCancelled. Only for
    /// [`LoopHandle::run_turn`]: for other inputs this is an outcome.
    #[error("the input was cancelled while it waited ({0:?})")]
    Cancelled(CancelReason),
}

/// Why a loop could not be spawned. The loop is given up; hold it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The caller is not in a tokio runtime.
    #[error("a loop is spawned from within a tokio runtime")]
    NoRuntime,
    /// The loop belongs to another session.
    #[error("the loop belongs to another session")]
    ForeignLoop,
    /// The agent's calls have a time limit ([`TurnLimits::tool_timeout`](super::TurnLimits)), and the
    /// runtime has no timer.
    #[error(transparent)]
    NoTimer(#[from] NoTimer),
}

/// What a loop has come to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LoopSnapshot {
    /// Its committed messages.
    pub history: Vec<Arc<Message>>,
    /// What its model sees.
    pub context: Vec<Arc<Message>>,
    /// The turns it has begun.
    pub turns: u64,
    /// Whether a turn runs.
    pub running: bool,
    /// The inputs that wait.
    pub queued: usize,
}

/// The handle of a running loop. Cheap to clone.
///
/// When the last clone is dropped, and nobody holds a [`Submitted`] either, a turn that still runs is
/// interrupted (nobody can be waiting for it), inputs that wait are cancelled, and the loop can be
/// held again.
#[derive(Debug, Clone)]
pub struct LoopHandle {
    loop_id: LoopId,
    name: AgentName,
    hub: Hub,
    commands: mpsc::Sender<Command>,
    report: Arc<OnceLock<ShutdownReport>>,
}

impl Session {
    /// Runs a loop: spawns the task that owns it from now on.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn spawn_loop(&self, owned: Loop, agent: AgentSpec) -> Result<LoopHandle, SpawnError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| SpawnError::NoRuntime)?;
        if owned.session().id() != self.id() {
            return Err(SpawnError::ForeignLoop);
        }
        if agent.limits.tool_timeout.is_some() {
            timer::is_here()?;
        }
        let (sender, receiver) = mpsc::channel(COMMANDS);
        let hub = owned.session().hub();
        let handle = LoopHandle {
            loop_id: owned.id(),
            name: owned.name().clone(),
            hub: hub.clone(),
            commands: sender,
            report: Arc::default(),
        };
        let session = tracing::info_span!(parent: None, "session", session = %self.id());
        let span = tracing::info_span!(
            parent: &session,
            "loop",
            loop_id = %handle.loop_id,
            name = handle.name.as_str()
        );
        let actor = Actor::new(owned, agent, hub, receiver, handle.report.clone());
        runtime.spawn(actor.run().instrument(span));
        Ok(handle)
    }
}

impl LoopHandle {
    /// The loop.
    pub fn loop_id(&self) -> LoopId {
        self.loop_id
    }

    /// Its name.
    pub fn name(&self) -> &AgentName {
        &self.name
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        self.hub.session()
    }

    /// The hub of its session.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Runs a turn of its own and waits for its end. While another one runs it waits its turn, first
    /// come, first served; it never joins another turn. Once the loop's task has taken it, dropping
    /// the future changes nothing: the turn runs on, and [`LoopHandle::interrupt`] ends it.
    ///
    /// # Errors
    /// [`RunError`]: the turn did not begin. A turn that began gives an outcome.
    pub async fn run_turn(&self, message: impl Into<UserMessage>) -> Result<TurnOutcome, RunError> {
        match self.submit(Input::new(message).no_fold()).await?.await? {
            InputOutcome::Turn(outcome) => Ok(outcome),
            InputOutcome::Cancelled { reason, .. } => Err(RunError::Cancelled(reason)),
            // It does not fold.
            InputOutcome::Folded { .. } => Err(RunError::Ended),
        }
    }

    /// Hands an input to the loop: it begins a turn, or waits behind the one that runs. If it waits,
    /// may fold ([`Input::no_fold`]) and only such are before it, it joins the running turn when that
    /// goes on after tool calls, and the model sees it with its next request. A last answer is never
    /// held up by it.
    ///
    /// # Errors
    /// [`RunError::Ended`]. Whether the queue had room is told by the [`Submitted`].
    pub async fn submit(&self, input: impl Into<Input>) -> Result<Submitted, RunError> {
        let (answer, outcome) = oneshot::channel();
        let id = InputId::next();
        let entry = Entry {
            id,
            input: input.into(),
            asked: Asked {
                answer,
                work: self.hub.work(self.loop_id),
            },
        };
        self.send(Command::Submit(entry)).await?;
        Ok(Submitted {
            id,
            outcome,
            relay: Relay::default(),
            _keeps: self.commands.clone(),
        })
    }

    /// Takes an input back that still waits, and gives whether it did: then its InputCancelled is
    /// recorded (as far as the disk lets) and it never reaches the model. One that has begun, folded
    /// or is about to is not touched.
    ///
    /// # Errors
    /// [`RunError::Ended`].
    pub async fn cancel_queued(&self, id: InputId) -> Result<bool, RunError> {
        let (answer, cancelled) = oneshot::channel();
        self.send(Command::CancelQueued(id, answer)).await?;
        relayed(cancelled).await.map_err(|_| RunError::Ended)
    }

    /// Interrupts the turn that runs, and gives whether there is one. A step whose append has begun
    /// is still committed; the turn's terminal follows it. What persons said and still waits stays and
    /// begins its turn then; what machines sent ([`Input::machine`]) is cancelled.
    ///
    /// # Errors
    /// [`RunError::Ended`].
    pub async fn interrupt(&self) -> Result<bool, RunError> {
        let (answer, running) = oneshot::channel();
        self.send(Command::Interrupt(answer)).await?;
        relayed(running).await.map_err(|_| RunError::Ended)
    }

    /// Watches the session of the loop; see [`Hub::subscribe`].
    pub fn subscribe(&self, from: StartAt, filter: Filter) -> Subscription {
        self.hub.subscribe(from, filter)
    }

    /// What the loop has come to.
    ///
    /// # Errors
    /// [`RunError::Ended`], [`RunError::Unreadable`].
    pub async fn snapshot(&self) -> Result<LoopSnapshot, RunError> {
        let (answer, snapshot) = oneshot::channel();
        self.send(Command::Snapshot(answer)).await?;
        relayed(snapshot).await.unwrap_or(Err(RunError::Ended))
    }

    /// Ends the loop's task, however long it takes; see [`LoopHandle::shutdown_within`].
    ///
    /// # Errors
    /// [`ShutdownError::TaskLost`].
    pub async fn shutdown(&self) -> Result<ShutdownReport, ShutdownError> {
        self.shutdown_within(ShutdownLimits::default()).await
    }

    /// Ends the loop's task: a turn that runs is interrupted and its terminal written, inputs that
    /// wait are cancelled, new ones refused. When it returns the loop can be held again; the session
    /// stays open. Each phase has its own time. A second call waits for the first, whose limits
    /// count, and gets the same report.
    ///
    /// A model or tool that blocks the thread it runs on keeps this waiting, too: what is not
    /// polled cannot be given up.
    ///
    /// # Errors
    /// [`ShutdownError`].
    pub async fn shutdown_within(
        &self,
        limits: ShutdownLimits,
    ) -> Result<ShutdownReport, ShutdownError> {
        let report = self.ask_shutdown(limits).await;
        self.shut_down(report).await
    }

    /// Asks for it; the report comes later. `None` if the task has ended.
    pub(super) async fn ask_shutdown(
        &self,
        limits: ShutdownLimits,
    ) -> Option<oneshot::Receiver<Shutdown>> {
        let (answer, report) = oneshot::channel();
        let sent = self.send(Command::Shutdown(limits, answer)).await;
        sent.is_ok().then_some(report)
    }

    pub(super) async fn shut_down(&self, asked: Option<oneshot::Receiver<Shutdown>>) -> Shutdown {
        let report = match asked {
            Some(report) => relayed(report).await.ok(),
            None => None,
        };
        if let Some(Err(error)) = report {
            return Err(error);
        }
        relayed(self.commands.closed()).await;
        // It tells so before it ends, whoever asked for it.
        let report = self.report.get().cloned();
        report.ok_or(ShutdownError::TaskLost)
    }

    async fn send(&self, command: Command) -> Result<(), RunError> {
        let sent = relayed(self.commands.send(command)).await;
        sent.map_err(|_| RunError::Ended)
    }
}
