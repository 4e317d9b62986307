//! The side of the actor that takes commands, also while a turn runs, and that resolves what leaves
//! the queue.
//!
//! | what happened | what waits |
//! |---|---|
//! | turn done, or not begun | stays; the next begins |
//! | turn failed, or its terminal is not durable | all cancelled (`Failed`) |
//! | turn interrupted | what machines sent is cancelled (`Interrupted`), the rest stays |
//! | shutdown, last handle gone | all cancelled (`Interrupted`) |
//! | fault | all refused with the fault: nothing can be recorded |

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::actor::Command;
use super::append::{append, last_seq};
use super::closing::{Closing, WoundUp};
use super::handle::{LoopSnapshot, RunError};
use super::hooks::Hooks;
use super::queue::{Asked, Cancelling, Entry, InputId, Queue};
use super::turn::Running;
use super::{Hub, Live, ShutdownLimits, ShutdownPhase, TurnEnd, TurnOutcome, timer};
use crate::event::{Body, CancelReason, Header, InputCancelled, InputQueued, Kind};
use crate::event::{RejectReason, TurnRejected};
use crate::identity::Coordinates;
use crate::journal::{Fault, Seq};
use crate::metrics::Measure;
use crate::store::{Draft, Session};

#[derive(Debug)]
pub(super) struct Desk {
    session: Session,
    hub: Hub,
    header: Header,
    hooks: Arc<Hooks>,
    commands: mpsc::Receiver<Command>,
    pub(super) queue: Queue,
    /// Cancels the turn that runs.
    running: Option<CancellationToken>,
    closing: Option<Closing>,
    /// Records about inputs that are on their way to the log.
    records: JoinSet<()>,
}

impl Desk {
    pub(super) fn new(
        session: Session,
        hub: Hub,
        header: Header,
        commands: mpsc::Receiver<Command>,
        limit: usize,
        hooks: Arc<Hooks>,
    ) -> Desk {
        Desk {
            session,
            hub,
            header,
            hooks,
            commands,
            queue: Queue::new(limit),
            running: None,
            closing: None,
            records: JoinSet::new(),
        }
    }

    /// The next input to run; `None` when there will be none.
    pub(super) async fn next_entry(&mut self) -> Option<Entry> {
        loop {
            if let Some(fault) = self.hub.fault() {
                self.refuse_all(&fault);
            }
            if self.closing.is_some() {
                return None;
            }
            if let Some(entry) = self.queue.pop() {
                self.measure();
                return Some(entry);
            }
            match self.commands.recv().await {
                Some(command) => self.take(command),
                None => self.close(ShutdownLimits::default()),
            }
        }
    }

    pub(super) fn turn_begins(&mut self, running: &Running) {
        self.running = Some(running.cancel.clone());
    }

    /// Takes commands until the turn has ended; `None` if a shutdown gave it up.
    pub(super) async fn serve_while<T>(
        &mut self,
        turn: impl Future<Output = T>,
        ending: &CancellationToken,
    ) -> Option<T> {
        let mut turn = pin!(turn);
        let mut watched = true;
        let mut ends = false;
        loop {
            let limit = self.closing.as_ref().and_then(Closing::limit);
            tokio::select! {
                biased;
                command = self.commands.recv(), if watched => match command {
                    Some(command) => self.take(command),
                    // The last handle is gone.
                    None => {
                        watched = false;
                        self.close(ShutdownLimits::default());
                    }
                },
                outcome = &mut turn => return Some(outcome),
                () = ending.cancelled(), if !ends => ends = true,
                () = Closing::overdue(limit) => {
                    if let Some(closing) = &mut self.closing {
                        closing.report.overdue.push(closing.phase);
                    }
                    return None;
                }
            }
            // Its terminal has a time of its own.
            if let Some(closing) = &mut self.closing
                && ends
                && closing.phase == ShutdownPhase::Turn
            {
                closing.enter(ShutdownPhase::Terminal);
            }
        }
    }

    fn take(&mut self, command: Command) {
        while self.records.try_join_next().is_some() {}
        match command {
            Command::Submit(entry) => self.admit(entry),
            Command::CancelQueued(id, answer) => self.cancel_queued(id, answer),
            Command::Interrupt(answer) => {
                if let Some(running) = &self.running {
                    running.cancel();
                }
                let _ = answer.send(self.running.is_some());
            }
            Command::Snapshot(answer) => {
                self.snapshot(answer);
            }
            Command::Shutdown(limits, answer) => {
                // Limits of a second one do not count.
                if self.closing.is_none()
                    && limits.are_set()
                    && let Err(error) = timer::is_here()
                {
                    let _ = answer.send(Err(error.into()));
                    return;
                }
                self.close(limits);
                if let Some(closing) = &mut self.closing {
                    closing.waiting.push(answer);
                }
            }
        }
    }

    fn admit(&mut self, entry: Entry) {
        if let Some(fault) = self.hub.fault() {
            return entry.asked.answer(Err(RunError::Faulted(fault)));
        }
        if self.closing.is_some() {
            return self.reject(entry.asked, RunError::Ended);
        }
        let waits = self.running.is_some() || self.queue.len() > 0;
        match self.queue.push(entry, waits) {
            Some((entry, limit)) => self.reject(entry.asked, RunError::QueueFull { limit }),
            None if waits => {
                self.measure();
                self.emit_queued();
            }
            None => {}
        }
    }

    fn emit_queued(&self) {
        self.hub
            .emit(Live::new(self.header.clone(), InputQueued {}));
    }

    fn measure(&self) {
        self.session.meter().record(|| Measure::Queue {
            loop_id: self.header.coordinates.loop_id,
            depth: self.queue.len(),
        });
    }

    /// The turn is over: what waits is dealt with before anybody hears of it.
    pub(super) fn turn_ended(&mut self, outcome: Option<&Result<TurnOutcome, RunError>>) {
        self.running = None;
        match outcome {
            Some(_) => self.queue.put_back(),
            // Their append may have begun: the log decides about them, as about their turn.
            None => {
                for entry in self.queue.take_draining() {
                    entry.asked.answer(Err(RunError::Ended));
                }
            }
        }
        let (all, machines) = (|_: &_| true, |input: &super::Input| input.machine);
        match outcome {
            Some(Err(RunError::Faulted(fault))) => self.refuse_all(fault),
            Some(Ok(outcome)) => match &outcome.end {
                TurnEnd::Faulted(fault) => self.refuse_all(fault),
                TurnEnd::Failed { .. } => self.cancel(all, CancelReason::Failed, outcome.index),
                _ if outcome.terminal.is_none() => {
                    self.cancel(all, CancelReason::Failed, outcome.index);
                }
                TurnEnd::Interrupted => {
                    self.cancel(machines, CancelReason::Interrupted, outcome.index);
                }
                TurnEnd::Done { .. } => {}
            },
            Some(Err(_)) | None => {}
        }
        if self.closing.is_some() {
            self.return_all();
        }
    }

    fn refuse_all(&mut self, fault: &Fault) {
        for entry in self.queue.take_all(|_| true) {
            entry.asked.answer(Err(RunError::Faulted(fault.clone())));
        }
    }

    /// Cancels those that wait and are meant, durably.
    fn cancel(&mut self, meant: impl Fn(&super::Input) -> bool, reason: CancelReason, index: u64) {
        let entries = self.queue.take_all(meant);
        if !entries.is_empty() {
            self.measure();
            self.record_cancelled(Cancelling { entries, reason }, index, || {});
        }
    }

    fn cancel_queued(&mut self, id: InputId, answer: oneshot::Sender<bool>) {
        let Some(entry) = self.queue.take(id) else {
            let _ = answer.send(false);
            return;
        };
        self.measure();
        let cancelling = Cancelling {
            entries: vec![entry],
            reason: CancelReason::Retracted,
        };
        self.record_cancelled(cancelling, 0, || {
            let _ = answer.send(true);
        });
    }

    fn record_cancelled(
        &mut self,
        cancelling: Cancelling,
        turn_index: u64,
        then: impl FnOnce() + Send + 'static,
    ) {
        let drafts = cancelling.entries.iter().map(|entry| {
            self.draft(InputCancelled {
                turn_index,
                reason: cancelling.reason,
                message: Some(entry.input.message.clone()),
            })
        });
        let drafts: Vec<Draft> = drafts.collect();
        let commit = self.commit(drafts, Kind::InputCancelled);
        self.records.spawn(async move {
            let seqs = commit.await;
            cancelling.recorded(&seqs);
            then();
        });
    }

    /// Refuses an input. That is recorded first: who is refused because too much waits goes at the
    /// pace of the disk.
    pub(super) fn reject(&mut self, asked: Asked, refusal: RunError) {
        let reason = match &refusal {
            RunError::Faulted(_) => return asked.answer(Err(refusal)),
            RunError::QueueFull { .. } => RejectReason::QueueFull,
            RunError::Ended => RejectReason::ShuttingDown,
            _ => RejectReason::Internal,
        };
        let rejected = self.draft(TurnRejected { reason });
        let commit = self.commit(vec![rejected], Kind::TurnRejected);
        self.records.spawn(async move {
            commit.await;
            asked.answer(Err(refusal));
        });
    }

    fn draft(&self, body: impl Into<Body>) -> Draft {
        Draft::new(body)
            .in_loop(self.header.coordinates.loop_id)
            .agent(self.header.agent_name.clone())
    }

    /// Submits records about inputs now; awaited, gives where they stand. One that cannot be
    /// committed (it may be too large) takes no other with it.
    fn commit(
        &self,
        drafts: Vec<Draft>,
        kind: Kind,
    ) -> impl Future<Output = Vec<Option<Seq>>> + Send + 'static {
        let (session, hooks) = (self.session.clone(), self.hooks.clone());
        let at = self.header.coordinates;
        let ticket = session.submit(drafts.clone());
        async move {
            let kinds = vec![kind; drafts.len()];
            let all = append(&hooks, at, &kinds, async move { ticket.await? }, last_seq).await;
            match all {
                Ok(outcomes) => outcomes.iter().map(|outcome| Some(outcome.seq())).collect(),
                Err(error) if drafts.len() > 1 && error.is_definite() => {
                    one_by_one(&session, &hooks, at, drafts, kind).await
                }
                Err(error) => {
                    tracing::warn!(%error, "what became of an input was not recorded");
                    Vec::new()
                }
            }
        }
    }

    /// No turn begins any more; the first that asks for it says how long it may take.
    fn close(&mut self, limits: ShutdownLimits) {
        if self.closing.is_some() {
            return;
        }
        let mut closing = Closing::new(limits);
        if let Some(running) = &self.running {
            running.cancel();
            closing.report.interrupted = true;
        }
        self.closing = Some(closing);
        self.return_all();
    }

    fn return_all(&mut self) {
        if let Some(fault) = self.hub.fault() {
            return self.refuse_all(&fault);
        }
        let before = self.queue.len();
        self.cancel(|_| true, CancelReason::Interrupted, 0);
        let returned = before - self.queue.len();
        if let Some(closing) = &mut self.closing {
            closing.report.returned += returned;
        }
    }

    /// The end: what is still asked is answered, and what is still written is waited for.
    pub(super) async fn wind_up(mut self) -> WoundUp {
        self.close(ShutdownLimits::default());
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.take(command);
        }
        if let Some(closing) = &mut self.closing {
            closing.enter(ShutdownPhase::Queue);
        }
        let limit = self.closing.as_ref().and_then(Closing::limit);
        let records = &mut self.records;
        let written = async { while records.join_next().await.is_some() {} };
        let overdue = tokio::select! {
            biased;
            () = written => false,
            () = Closing::overdue(limit) => true,
        };
        // Dropped records answer those that wait for them.
        self.records.abort_all();
        while self.records.join_next().await.is_some() {}
        let closing = self
            .closing
            .unwrap_or_else(|| Closing::new(ShutdownLimits::default()));
        let mut report = closing.report;
        if overdue {
            report.overdue.push(ShutdownPhase::Queue);
        }
        WoundUp {
            commands: self.commands,
            report,
            waiting: closing.waiting,
        }
    }

    /// The messages are read from the log, aside.
    fn snapshot(&mut self, answer: oneshot::Sender<Result<LoopSnapshot, RunError>>) {
        let loop_id = self.header.coordinates.loop_id;
        let mut snapshot = LoopSnapshot {
            history: Vec::new(),
            context: Vec::new(),
            turns: self.session.turn_count(loop_id),
            running: self.running.is_some(),
            queued: self.queue.len(),
        };
        let read = self.session.run(move |session| {
            snapshot.history = session.loop_history(loop_id)?;
            snapshot.context = session.loop_context(loop_id)?;
            Ok(snapshot)
        });
        self.records.spawn(async move {
            let read = read.await.map_err(|_| RunError::Ended);
            let _ = answer.send(read.and_then(|read| read.map_err(RunError::Unreadable)));
        });
    }
}

async fn one_by_one(
    session: &Session,
    hooks: &Arc<Hooks>,
    at: Coordinates,
    drafts: Vec<Draft>,
    kind: Kind,
) -> Vec<Option<Seq>> {
    let mut seqs = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let ticket = session.submit(vec![draft]);
        let commit = async move { ticket.await? };
        let recorded = append(hooks, at, &[kind], commit, last_seq).await;
        seqs.push(recorded.ok().map(|outcomes| last_seq(&outcomes)));
    }
    seqs
}
