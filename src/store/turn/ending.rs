//! What the runner needs of a turn beyond the public twins: it ends its turns without blocking, and
//! goes on with a turn whose last step was refused.

use super::super::{CommitError, Refusal, StepDraft};
use super::{Turn, last_batch, outcome};
use crate::content::{Usage, UserMessage};
use crate::event::{Body, ErrorProjection, InterruptReason, StepDone, TurnDone, TurnFailed};
use crate::event::{EventBody, TurnFoldedInto, TurnInterrupted};
use crate::journal::Seq;

/// Whether a step ends its turn, and what the turn cost then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    No,
    Yes { usage: Option<Usage> },
}

/// Where a step stands, and the end of its turn if it was the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) step: Seq,
    pub(crate) terminal: Option<Seq>,
}

impl Turn<'_> {
    /// Commits what was decided in a step, the step, and, with its last step, the end of the turn:
    /// one batch, one sync. Unlike the public twin it leaves the turn open when it is refused.
    ///
    /// If the step was `gated`, the gates of the turn that nobody has answered by then are closed
    /// before it: a tool that asked and gave up leaves none behind.
    ///
    /// # Errors
    /// As for [`Turn::commit_step`].
    pub(crate) async fn commit_group_async(
        &mut self,
        decided: Vec<Body>,
        step: StepDraft,
        last: Last,
        gated: bool,
    ) -> Result<Group, CommitError> {
        let id = step.step;
        let message = step.assistant.clone();
        let decided = decided
            .into_iter()
            .map(|body| self.owner.draft(self.id, body).in_step(id));
        let mut drafts: Vec<_> = decided.collect();
        drafts.extend(self.step_drafts(step));
        if let Last::Yes { usage } = last {
            let done = TurnDone {
                turn_index: self.index,
                message,
                usage,
            };
            drafts.push(self.owner.draft(self.id, done));
        }
        let (session, loop_id, turn) = (&self.owner.session, self.owner.id, self.id);
        let submitted = if gated {
            let keyed = drafts.iter().any(|draft| draft.key.is_some());
            session.core.submit_with(loop_id, keyed, move |state| {
                let mut batch = state.pending.abandon(loop_id, turn);
                batch.extend(drafts);
                batch
            })
        } else {
            session.submit(drafts)
        };
        let outcomes = submitted.await??;
        self.finished |= last != Last::No;
        Ok(Group {
            step: outcome::<StepDone>(&outcomes).ok_or(Refusal::Empty)?.seq(),
            terminal: outcome::<TurnDone>(&outcomes).map(|done| done.seq()),
        })
    }

    /// Takes messages into the turn that were said while it ran; gives their places.
    ///
    /// # Errors
    /// As for [`Session::commit`](super::Session::commit).
    pub(crate) async fn fold_async(
        &mut self,
        messages: Vec<UserMessage>,
    ) -> Result<Vec<Seq>, CommitError> {
        let turn_index = self.index;
        let drafts = messages.into_iter().map(|message| {
            let folded = TurnFoldedInto {
                turn_index,
                message,
            };
            self.owner.draft(self.id, folded)
        });
        let drafts = drafts.collect();
        let outcomes = self.owner.session.submit(drafts).await??;
        Ok(outcomes.iter().map(super::Outcome::seq).collect())
    }

    /// The async twin of [`Turn::fail`]; gives the terminal's place.
    ///
    /// # Errors
    /// As for [`Turn::finish`].
    pub(crate) async fn fail_async(self, error: ErrorProjection) -> Result<Seq, CommitError> {
        let turn_index = self.index;
        self.end_async(TurnFailed { turn_index, error }).await
    }

    /// The async twin of [`Turn::interrupt`]; gives the terminal's place.
    ///
    /// # Errors
    /// As for [`Turn::finish`].
    pub(crate) async fn interrupt_async(self) -> Result<Seq, CommitError> {
        let turn_index = self.index;
        self.end_async(TurnInterrupted {
            turn_index,
            reason: Some(InterruptReason::Cancelled),
        })
        .await
    }

    async fn end_async<B: EventBody>(mut self, body: B) -> Result<Seq, CommitError> {
        let draft = self.owner.draft(self.id, body);
        // Kept before the wait: if this future is dropped, the next turn finds it, and leaves it
        // out if it has become durable meanwhile.
        self.owner.unwritten = vec![draft.clone()];
        let (core, batch) = (&self.owner.session.core, last_batch(draft));
        let outcomes = core.submit_with(self.owner.id, false, batch).await??;
        self.owner.unwritten.clear();
        self.finished = true;
        let ended = outcome::<B>(&outcomes).ok_or(Refusal::Empty)?;
        Ok(ended.seq())
    }
}

#[cfg(test)]
mod tests;
