//! Loops and turns for hosts that have a loop of their own: blocking, and async twins.

#[cfg(feature = "runtime")]
mod ending;
mod rewind;

#[cfg(feature = "runtime")]
pub(crate) use ending::{Group, Last};

use super::committed::{Committed, Outcome};
use super::draft::{Draft, StepDraft};
use super::session::Session;
use super::state::SessionState;
use super::{CommitError, OrderError, Refusal, ReplayError};
use crate::content::RawJson;
use crate::content::{AssistantMessage, Message, UserMessage};
use crate::event::{
    Body, ErrorProjection, EventBody, InterruptReason, LoopStarted, StepDone, TurnDone, TurnFailed,
    TurnInterrupted, TurnStarted,
};
use crate::identity::{AgentName, Cause, LoopId, TurnId};
use crate::journal::Seq;
use std::sync::Arc;

/// A loop to be created.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoopSpec {
    name: AgentName,
    started: LoopStarted,
    cause: Cause,
}

impl LoopSpec {
    /// A loop with this name, by which it is found again.
    pub fn new(name: impl Into<AgentName>) -> LoopSpec {
        LoopSpec {
            name: name.into(),
            ..LoopSpec::default()
        }
    }

    /// What the host wants to know again about the loop; opaque.
    #[must_use]
    pub fn spec(mut self, spec: RawJson) -> LoopSpec {
        self.started.spec = Some(spec);
        self
    }

    /// The loop that spawned it.
    #[must_use]
    pub fn cause(self, cause: Cause) -> LoopSpec {
        LoopSpec { cause, ..self }
    }
}

/// A loop of a session: owns the order of its turns, so there is one handle at a time.
#[derive(Debug)]
pub struct Loop {
    session: Session,
    id: LoopId,
    name: AgentName,
    /// Terminals of turns that ended without becoming durable: they go with the next batch.
    unwritten: Vec<Draft>,
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.session.core.release(self.id);
    }
}

/// A turn that is open.
///
/// Dropping it unfinished does no I/O: the next turn of its loop closes it, in its own batch, as
/// interrupted.
#[derive(Debug)]
#[must_use = "a turn that is dropped counts as interrupted"]
pub struct Turn<'loop_> {
    owner: &'loop_ mut Loop,
    id: TurnId,
    index: u64,
    started: Seq,
    finished: bool,
}

impl Session {
    /// Creates a loop; its LoopStarted is durable. Names need not be unique: to go on with a loop
    /// after a restart, use [`Session::loop_by_name`] or [`Session::hold`].
    ///
    /// # Errors
    /// As for [`Session::commit`].
    pub fn create_loop(&self, spec: LoopSpec) -> Result<Loop, CommitError> {
        let id = LoopId::try_new().map_err(Refusal::from)?;
        self.commit(vec![spec.draft(id)])?;
        Ok(self.hold(id).map_err(Refusal::from)?)
    }

    /// The async twin of [`Session::create_loop`].
    ///
    /// # Errors
    /// As for [`Session::commit`].
    pub async fn create_loop_async(&self, spec: LoopSpec) -> Result<Loop, CommitError> {
        let id = LoopId::try_new().map_err(Refusal::from)?;
        self.submit(vec![spec.draft(id)]).await??;
        Ok(self.hold(id).map_err(Refusal::from)?)
    }

    /// Resumes the first loop of this name; `None` if there is none.
    ///
    /// # Errors
    /// [`OrderError::LoopHeld`]: another handle has it.
    pub fn loop_by_name(&self, name: &str) -> Result<Option<Loop>, OrderError> {
        let found = self
            .loops()
            .into_iter()
            .find(|(_, known)| known.as_str() == name);
        found.map(|(id, _)| self.hold(id)).transpose()
    }

    /// Resumes a loop.
    ///
    /// # Errors
    /// [`OrderError::UnknownLoop`], [`OrderError::LoopHeld`].
    pub fn hold(&self, id: LoopId) -> Result<Loop, OrderError> {
        let name = self.require_loop(id)?;
        if !self.core.claim(id) {
            return Err(OrderError::LoopHeld(id));
        }
        Ok(Loop {
            session: self.clone(),
            id,
            name,
            unwritten: Vec::new(),
        })
    }
}

impl LoopSpec {
    fn draft(self, id: LoopId) -> Draft {
        Draft::new(self.started)
            .in_loop(id)
            .agent(self.name)
            .cause(self.cause)
    }
}

/// The typed outcome of one event of a batch.
fn outcome<B: EventBody>(outcomes: &[Outcome]) -> Option<Outcome<B>> {
    outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Committed(committed) => committed.typed().map(Outcome::Committed),
        Outcome::Duplicate(first) => first.typed().map(Outcome::Duplicate),
    })
}

/// The batch that ends a turn: its gates that nobody has answered by then, and its terminal.
fn last_batch(terminal: Draft) -> impl FnOnce(&SessionState) -> Vec<Draft> + Send + 'static {
    move |state| {
        let mut batch = state.pending.abandon(terminal.loop_id, terminal.turn);
        batch.push(terminal);
        batch
    }
}

impl Loop {
    /// Its id.
    pub fn id(&self) -> LoopId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &AgentName {
        &self.name
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its committed messages, read from the log; blocks.
    ///
    /// # Errors
    /// As for [`Session::history`].
    pub fn history(&self) -> Result<Vec<Arc<Message>>, ReplayError> {
        self.session.loop_history(self.id)
    }

    /// What its model sees: the history, or what the last compaction left of it. Blocks while it is
    /// read from the log ([`Session::loop_context`]).
    ///
    /// # Errors
    /// As for [`Session::history`].
    pub fn context(&self) -> Result<Vec<Arc<Message>>, ReplayError> {
        self.session.loop_context(self.id)
    }

    /// Begins a turn with what the user said; its TurnStarted is durable.
    ///
    /// # Errors
    /// As for [`Session::commit`].
    pub fn begin_turn(&mut self, message: UserMessage) -> Result<Turn<'_>, CommitError> {
        let (id, batch) = self.first_batch(message)?;
        let outcomes = self.session.core.commit_with(self.id, batch)?;
        self.begun(id, &outcomes)
    }

    /// The async twin of [`Loop::begin_turn`]. If it is dropped while it waits, the turn begins all
    /// the same and counts as dropped.
    ///
    /// # Errors
    /// As for [`Session::commit`].
    pub async fn begin_turn_async(
        &mut self,
        message: UserMessage,
    ) -> Result<Turn<'_>, CommitError> {
        let (id, batch) = self.first_batch(message)?;
        let outcomes = self
            .session
            .core
            .submit_with(self.id, false, batch)
            .await??;
        self.begun(id, &outcomes)
    }

    /// The batch that begins a turn: the terminal of a turn that is still open, and the beginning.
    /// What is open is looked up when the batch is made, behind all that was submitted before: a
    /// future that was dropped may have a commit under way.
    fn first_batch(
        &self,
        message: UserMessage,
    ) -> Result<
        (
            TurnId,
            impl FnOnce(&SessionState) -> Vec<Draft> + Send + 'static,
        ),
        Refusal,
    > {
        let id = TurnId::try_new()?;
        let begin = self.draft(
            id,
            TurnStarted {
                turn_index: 0,
                message,
            },
        );
        Ok((id, self.closing_and(begin)))
    }

    /// A batch that closes what is open of the loop, if anything is, and goes on with a draft.
    fn closing_and(
        &self,
        next: Draft,
    ) -> impl FnOnce(&SessionState) -> Vec<Draft> + Send + 'static {
        let interrupt = self.draft(TurnId::nil(), TurnInterrupted::default());
        let unwritten = self.unwritten.clone();
        move |state: &SessionState| {
            let open = state.find(next.loop_id).and_then(|found| found.open);
            let gates = open.map(|open| state.pending.abandon(next.loop_id, open.turn));
            let closing = open.map(|open| {
                let written = unwritten.into_iter().find(|draft| draft.turn == open.turn);
                written.unwrap_or_else(|| Draft {
                    turn: open.turn,
                    body: Body::from(TurnInterrupted {
                        turn_index: open.index,
                        reason: Some(InterruptReason::Dropped),
                    }),
                    ..interrupt
                })
            });
            let gates = gates.into_iter().flatten();
            gates.chain(closing).chain([next]).collect()
        }
    }

    fn begun(&mut self, id: TurnId, outcomes: &[Outcome]) -> Result<Turn<'_>, CommitError> {
        self.unwritten.clear();
        let started = outcome::<TurnStarted>(outcomes).ok_or(Refusal::Empty)?;
        Ok(Turn {
            index: started.committed().body.turn_index,
            started: started.seq(),
            owner: self,
            id,
            finished: false,
        })
    }

    fn draft(&self, turn: TurnId, body: impl Into<Body>) -> Draft {
        Draft::new(body)
            .in_loop(self.id)
            .in_turn(turn)
            .agent(self.name.clone())
    }
}

impl Turn<'_> {
    /// Its id.
    pub fn id(&self) -> TurnId {
        self.id
    }

    /// Its number within its loop, from 1.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The record with which it began.
    pub fn started(&self) -> Seq {
        self.started
    }

    /// The committed messages of the loop, this turn's included, read from the log; blocks.
    ///
    /// # Errors
    /// As for [`Session::history`].
    pub fn history(&self) -> Result<Vec<Arc<Message>>, ReplayError> {
        self.owner.history()
    }

    /// Commits a step: durable, then in the history, then published, then returned (P1, P2, P3).
    ///
    /// # Errors
    /// [`CommitError::NotCommitted`]: nothing happened, the turn stays open and the step may be
    /// offered again. [`CommitError::Unknown`]: the session is faulted; reopening decides.
    pub fn commit_step(&mut self, step: StepDraft) -> Result<Outcome<StepDone>, CommitError> {
        let outcomes = self.owner.session.commit(self.step_drafts(step))?;
        Ok(outcome(&outcomes).ok_or(Refusal::Empty)?)
    }

    /// The async twin of [`Turn::commit_step`]: if it is dropped while it waits, the step is
    /// committed whole or not at all, and the turn goes on.
    ///
    /// # Errors
    /// As for [`Turn::commit_step`].
    pub async fn commit_step_async(
        &mut self,
        step: StepDraft,
    ) -> Result<Outcome<StepDone>, CommitError> {
        let outcomes = self.owner.session.submit(self.step_drafts(step)).await??;
        Ok(outcome(&outcomes).ok_or(Refusal::Empty)?)
    }

    /// Commits the last step and the end of the turn in one batch with one sync.
    ///
    /// # Errors
    /// As for [`Turn::commit_step`]; the turn is not ended then, and its loop closes it later.
    pub fn commit_last_step(mut self, step: StepDraft) -> Result<Outcome<StepDone>, CommitError> {
        let drafts = self.last_drafts(step);
        let outcomes = self.owner.session.commit(drafts)?;
        self.finished = true;
        Ok(outcome(&outcomes).ok_or(Refusal::Empty)?)
    }

    /// The async twin of [`Turn::commit_last_step`].
    ///
    /// # Errors
    /// As for [`Turn::commit_step`].
    pub async fn commit_last_step_async(
        mut self,
        step: StepDraft,
    ) -> Result<Outcome<StepDone>, CommitError> {
        let drafts = self.last_drafts(step);
        let outcomes = self.owner.session.submit(drafts).await??;
        self.finished = true;
        Ok(outcome(&outcomes).ok_or(Refusal::Empty)?)
    }

    /// Ends the turn well, after steps that were committed one by one. The record repeats the last
    /// answer of the turn; it is empty if no step was committed. As with every end of a turn, its
    /// gates that wait for an answer are closed as abandoned in the same batch.
    ///
    /// # Errors
    /// As for [`Session::commit`]. The turn has ended for this process all the same; its terminal
    /// becomes durable with the next turn of the loop.
    pub fn finish(self) -> Result<Committed<TurnDone>, CommitError> {
        let message = self.last_answer().unwrap_or_default();
        let turn_index = self.index;
        self.end(TurnDone {
            turn_index,
            message,
            usage: None,
        })
    }

    /// The last assistant message that was committed in this turn.
    fn last_answer(&self) -> Option<AssistantMessage> {
        let state = self.owner.session.core.state();
        let own = state.find(self.owner.id)?;
        let step = own.last_step.as_ref();
        match &step
            .filter(|step| step.header.coordinates.turn == self.id)?
            .body
        {
            Body::StepDone(step) => step.assistant().cloned(),
            _ => None,
        }
    }

    /// Ends the turn as failed.
    ///
    /// # Errors
    /// As for [`Turn::finish`].
    pub fn fail(self, error: ErrorProjection) -> Result<Committed<TurnFailed>, CommitError> {
        let turn_index = self.index;
        self.end(TurnFailed { turn_index, error })
    }

    /// Ends the turn as interrupted.
    ///
    /// # Errors
    /// As for [`Turn::finish`].
    pub fn interrupt(self) -> Result<Committed<TurnInterrupted>, CommitError> {
        let turn_index = self.index;
        self.end(TurnInterrupted {
            turn_index,
            reason: Some(InterruptReason::Cancelled),
        })
    }

    fn end<B: EventBody>(mut self, body: B) -> Result<Committed<B>, CommitError> {
        let draft = self.owner.draft(self.id, body);
        let batch = last_batch(draft.clone());
        match self.owner.session.core.commit_with(self.owner.id, batch) {
            Ok(outcomes) => {
                self.finished = true;
                match outcome(&outcomes) {
                    Some(outcome) => Ok(outcome.committed().clone()),
                    None => Err(Refusal::Empty.into()),
                }
            }
            Err(error) => {
                self.owner.unwritten = vec![draft];
                Err(error)
            }
        }
    }

    fn step_drafts(&self, step: StepDraft) -> Vec<Draft> {
        step.into_drafts(self.owner.id, self.id, self.owner.name.clone())
    }

    fn last_drafts(&self, step: StepDraft) -> Vec<Draft> {
        let message = step.assistant.clone();
        let mut drafts = self.step_drafts(step);
        let done = TurnDone {
            turn_index: self.index,
            usage: message.usage,
            message,
        };
        drafts.push(self.owner.draft(self.id, done));
        drafts
    }
}
