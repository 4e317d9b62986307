//! The task that owns a loop: the only one that commits for it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::handle::{Input, LoopSnapshot, RunError};
use super::turn::{self, Agent};
use super::{AgentSpec, Hub, Live};
use crate::event::{Header, InputQueued};
use crate::identity::Coordinates;
use crate::store::{Loop, Session};

/// What a handle asks of the actor.
#[derive(Debug)]
pub(super) enum Command {
    Run(Input),
    Interrupt(oneshot::Sender<bool>),
    Snapshot(oneshot::Sender<LoopSnapshot>),
    Shutdown(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Actor {
    owned: Loop,
    agent: Agent,
    desk: Desk,
}

/// The side of the actor that takes commands, also while a turn runs.
#[derive(Debug)]
struct Desk {
    session: Session,
    hub: Hub,
    header: Header,
    commands: mpsc::Receiver<Command>,
    queue: VecDeque<Input>,
    limit: usize,
    /// Cancels the turn that runs.
    running: Option<CancellationToken>,
    /// No turn begins any more.
    closing: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Actor {
    pub(super) fn new(
        owned: Loop,
        spec: AgentSpec,
        hub: Hub,
        commands: mpsc::Receiver<Command>,
    ) -> Actor {
        let session = owned.session().clone();
        let coordinates = Coordinates::session(session.id()).in_loop(owned.id());
        let header = Header::at(coordinates).named(owned.name().clone());
        let desk = Desk {
            limit: spec.limits.queue,
            session,
            hub: hub.clone(),
            header,
            commands,
            queue: VecDeque::new(),
            running: None,
            closing: false,
            waiting: Vec::new(),
        };
        Actor {
            owned,
            agent: Agent::new(spec, hub),
            desk,
        }
    }

    pub(super) async fn run(mut self) {
        while let Some(input) = self.desk.next_input().await {
            let cancel = CancellationToken::new();
            self.desk.running = Some(cancel.clone());
            let Input { message, asked } = input;
            let turn = turn::run(&mut self.owned, &self.agent, message, cancel);
            let outcome = self.desk.serve_while(turn).await;
            self.desk.running = None;
            asked.answer(outcome);
        }
        let Desk {
            mut commands,
            waiting,
            ..
        } = self.desk;
        // The loop can be held again before anybody hears that this task has ended.
        drop(self.owned);
        commands.close();
        for waiting in waiting {
            let _ = waiting.send(());
        }
    }
}

impl Desk {
    /// The next turn to run; `None` when there will be none.
    async fn next_input(&mut self) -> Option<Input> {
        loop {
            if let Some(input) = self.queue.pop_front() {
                match self.refusal() {
                    Some(refusal) => input.asked.answer(Err(refusal)),
                    None => return Some(input),
                }
                continue;
            }
            if self.closing {
                return None;
            }
            match self.commands.recv().await {
                Some(command) => self.take(command),
                None => return None,
            }
        }
    }

    /// Takes commands until the turn has ended.
    async fn serve_while<T>(&mut self, turn: impl Future<Output = T>) -> T {
        let mut turn = pin!(turn);
        let mut watched = true;
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv(), if watched => match command {
                    Some(command) => self.take(command),
                    // The last handle is gone.
                    None => {
                        watched = false;
                        self.close();
                    }
                },
                outcome = &mut turn => return outcome,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Run(input) => self.admit(input),
            Command::Interrupt(answer) => {
                if let Some(running) = &self.running {
                    running.cancel();
                }
                let _ = answer.send(self.running.is_some());
            }
            Command::Snapshot(answer) => {
                let _ = answer.send(self.snapshot());
            }
            Command::Shutdown(answer) => {
                self.waiting.push(answer);
                self.close();
            }
        }
    }

    fn admit(&mut self, input: Input) {
        let waits = self.running.is_some() || !self.queue.is_empty();
        if let Some(refusal) = self.refusal() {
            input.asked.answer(Err(refusal));
        } else if waits && self.queue.len() >= self.limit {
            let limit = self.limit;
            input.asked.answer(Err(RunError::QueueFull { limit }));
        } else {
            self.queue.push_back(input);
            if waits {
                self.hub
                    .emit(Live::new(self.header.clone(), InputQueued {}));
            }
        }
    }

    /// Why no turn can begin, if so.
    fn refusal(&self) -> Option<RunError> {
        if self.closing {
            return Some(RunError::Ended);
        }
        self.hub.fault().map(RunError::Faulted)
    }

    fn close(&mut self) {
        self.closing = true;
        if let Some(running) = &self.running {
            running.cancel();
        }
        for input in self.queue.drain(..) {
            input.asked.answer(Err(RunError::Ended));
        }
    }

    fn snapshot(&self) -> LoopSnapshot {
        let loop_id = self.header.coordinates.loop_id;
        LoopSnapshot {
            history: self.session.loop_history(loop_id),
            context: self.session.loop_context(loop_id),
            turns: self.session.turn_count(loop_id),
            running: self.running.is_some(),
            queued: self.queue.len(),
        }
    }
}
