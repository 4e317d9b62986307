//! The handle of a running loop, and what its turns come to.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::actor::{Actor, Command};
use super::hub::Work;
use super::{AgentSpec, Filter, From, Hub, Subscription};
use crate::content::{AssistantMessage, Message, Usage, UserMessage};
use crate::event::ErrorProjection;
use crate::identity::{AgentName, LoopId, TurnId};
use crate::journal::{Fault, Seq};
use crate::store::{CommitError, Loop, Session};

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
    /// As many turns wait as may.
    #[error("{limit} turns wait already; try again when one has ended")]
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
    /// The turns that wait.
    pub queued: usize,
}

/// The handle of a running loop. Cheap to clone.
///
/// When the last clone is dropped, a turn that still runs is interrupted (nobody can be waiting for
/// it), those that wait are dropped unbegun, and the loop can be held again.
#[derive(Debug, Clone)]
pub struct LoopHandle {
    loop_id: LoopId,
    name: AgentName,
    hub: Hub,
    commands: mpsc::Sender<Command>,
}

/// A turn that is asked for.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) message: UserMessage,
    pub(super) asked: Asked,
}

/// Who waits for a turn.
#[derive(Debug)]
pub(super) struct Asked {
    answer: oneshot::Sender<Result<TurnOutcome, RunError>>,
    work: Work,
}

impl Asked {
    /// Answers. The work ends first: whoever has the answer sees an idle session.
    pub(super) fn answer(self, answer: Result<TurnOutcome, RunError>) {
        drop(self.work);
        // Whoever asked may be gone; the turn is committed all the same.
        let _ = self.answer.send(answer);
    }
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
        let (sender, receiver) = mpsc::channel(COMMANDS);
        let hub = owned.session().hub();
        let handle = LoopHandle {
            loop_id: owned.id(),
            name: owned.name().clone(),
            hub: hub.clone(),
            commands: sender,
        };
        runtime.spawn(Actor::new(owned, agent, hub, receiver).run());
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

    /// Runs a turn and waits for its end. While another one runs it waits its turn, first come,
    /// first served. Once the loop's task has taken it, dropping the future changes nothing: the
    /// turn runs on, and [`LoopHandle::interrupt`] ends it.
    ///
    /// # Errors
    /// [`RunError`]: the turn did not begin. A turn that began gives an outcome.
    pub async fn run_turn(&self, message: impl Into<UserMessage>) -> Result<TurnOutcome, RunError> {
        let (answer, outcome) = oneshot::channel();
        let input = Input {
            message: message.into(),
            asked: Asked {
                answer,
                work: self.hub.work(self.loop_id),
            },
        };
        self.send(Command::Run(input)).await?;
        outcome.await.map_err(|_| RunError::Ended)?
    }

    /// Interrupts the turn that runs, and gives whether there is one. A step whose append has begun
    /// is still committed; the turn's terminal follows it. Turns that wait are not touched.
    ///
    /// # Errors
    /// [`RunError::Ended`].
    pub async fn interrupt(&self) -> Result<bool, RunError> {
        let (answer, running) = oneshot::channel();
        self.send(Command::Interrupt(answer)).await?;
        running.await.map_err(|_| RunError::Ended)
    }

    /// Watches the session of the loop; see [`Hub::subscribe`].
    pub fn subscribe(&self, from: From, filter: Filter) -> Subscription {
        self.hub.subscribe(from, filter)
    }

    /// What the loop has come to.
    ///
    /// # Errors
    /// [`RunError::Ended`].
    pub async fn snapshot(&self) -> Result<LoopSnapshot, RunError> {
        let (answer, snapshot) = oneshot::channel();
        self.send(Command::Snapshot(answer)).await?;
        snapshot.await.map_err(|_| RunError::Ended)
    }

    /// Ends the loop's task: a turn that runs is interrupted and its terminal written, those that
    /// wait are refused. When it returns the loop can be held again. The session stays open.
    pub async fn shutdown(&self) {
        let (answer, done) = oneshot::channel();
        if self.send(Command::Shutdown(answer)).await.is_ok() {
            // An error says that it has ended, too.
            let _ = done.await;
        }
        self.commands.closed().await;
    }

    async fn send(&self, command: Command) -> Result<(), RunError> {
        let sent = self.commands.send(command).await;
        sent.map_err(|_| RunError::Ended)
    }
}
