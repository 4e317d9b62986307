//! The task that owns a loop: the only one that begins its turns and commits for it.

use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::closing::Shutdown;
use super::desk::Desk;
use super::handle::{LoopSnapshot, RunError};
use super::queue::{Entry, InputId, InputOutcome};
use super::turn::{self, Agent, Running};
use super::{AgentSpec, Hub, ShutdownLimits, ShutdownReport};
use crate::event::Header;
use crate::identity::Coordinates;
use crate::store::Loop;

/// What a handle asks of the actor.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Entry),
    CancelQueued(InputId, oneshot::Sender<bool>),
    Interrupt(oneshot::Sender<bool>),
    Snapshot(oneshot::Sender<Result<LoopSnapshot, RunError>>),
    Shutdown(ShutdownLimits, oneshot::Sender<Shutdown>),
}

#[derive(Debug)]
pub(super) struct Actor {
    owned: Loop,
    agent: Agent,
    desk: Desk,
    /// What the shutdown came to, for handles that ask later.
    report: Arc<OnceLock<ShutdownReport>>,
}

impl Actor {
    pub(super) fn new(
        owned: Loop,
        spec: AgentSpec,
        hub: Hub,
        commands: mpsc::Receiver<Command>,
        report: Arc<OnceLock<ShutdownReport>>,
    ) -> Actor {
        let session = owned.session().clone();
        // What the model sees is asked for now, so that it is there when a turn begins.
        drop(session.submit_context(owned.id()));
        let coordinates = Coordinates::session(session.id()).in_loop(owned.id());
        let header = Header::at(coordinates).named(owned.name().clone());
        let limit = spec.limits.queue;
        let agent = Agent::new(spec, hub.clone());
        let desk = Desk::new(session, hub, header, commands, limit, agent.hooks.clone());
        Actor {
            owned,
            agent,
            desk,
            report,
        }
    }

    pub(super) async fn run(mut self) {
        while let Some(Entry { input, asked, .. }) = self.desk.next_entry().await {
            let running = Running {
                cancel: CancellationToken::new(),
                ending: CancellationToken::new(),
                queue: self.desk.queue.clone(),
            };
            self.desk.turn_begins(&running);
            let turn = turn::run(&mut self.owned, &self.agent, input.message, &running);
            let outcome = self.desk.serve_while(turn, &running.ending).await;
            self.desk.turn_ended(outcome.as_ref());
            match outcome {
                Some(Ok(outcome)) => asked.answer(Ok(InputOutcome::Turn(outcome))),
                // It was given up: what it came to is in the log.
                None => asked.answer(Err(RunError::Ended)),
                // It did not begin; that is recorded before it is said.
                Some(Err(refusal)) => self.desk.reject(asked, refusal),
            }
        }
        let Actor {
            owned,
            agent,
            desk,
            report,
        } = self;
        let closing = desk.wind_up().await;
        // The loop can be held again before anybody hears that this task has ended.
        drop(owned);
        let _ = report.set(closing.report.clone());
        drop(closing.commands);
        for waiting in closing.waiting {
            let _ = waiting.send(Ok(closing.report.clone()));
        }
        // What a host brought may take its time to be dropped: nobody waits for it any more.
        drop(agent);
    }
}
