//! Calls that were cut off: what they were about to do is known, what they did is not.

use super::committed::{Committed, Outcome};
use super::{CommitError, Draft, Mode, OrderError, Refusal, Session};
use crate::event::ToolIntentSettled;
use crate::identity::{LoopId, StepId, ToolExecutionId, TurnId};
use crate::journal::Seq;

/// Bytes of a note.
const NOTE: usize = 4096;

/// A call of a tool with intents whose step was never committed: it may have run, wholly or in part,
/// or not at all. Nothing runs it again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownEffect {
    /// The record of its intent.
    pub seq: Seq,
    /// The loop.
    pub loop_id: LoopId,
    /// The turn.
    pub turn: TurnId,
    /// The step.
    pub step: StepId,
    /// The execution.
    pub execution: ToolExecutionId,
    /// The model's id of the call.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// The beginning of its input.
    pub input_preview: String,
}

/// Why an effect was not settled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// There is no such call, its step is committed, it was settled before, or it still runs.
    #[error("the effect of the execution {0} is not unknown")]
    NotUnknown(ToolExecutionId),
    /// The caller's note is too long.
    #[error("a note has at most {max} bytes, this one has {got}")]
    TooLong {
        /// Bytes of the note.
        got: usize,
        /// Bytes that it may have.
        max: usize,
    },
    /// It could not be made durable.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl Session {
    /// The calls of which nobody knows what they did, by record. Those of a turn that is open are not
    /// among them (unless the session is open for reading only, where nobody can tell).
    pub fn unknown_effects(&self) -> Vec<UnknownEffect> {
        let state = self.core.state();
        let runs = |effect: &UnknownEffect| {
            let open = state.find(effect.loop_id).and_then(|found| found.open);
            self.core.mode == Mode::Write && open.is_some_and(|open| open.turn == effect.turn)
        };
        let effects = state.pending.effects.all();
        effects.filter(|effect| !runs(effect)).cloned().collect()
    }

    /// Says that somebody has looked into what a call did, with what was found, at most 4 KiB.
    /// Durable; the call is listed no more. Blocks: async hosts use [`Session::settle_effect_async`], or
    /// `LoopHandle::settle_effect`.
    ///
    /// # Errors
    /// [`SettleError`].
    pub fn settle_effect(
        &self,
        execution: ToolExecutionId,
        note: impl Into<String>,
    ) -> Result<Committed<ToolIntentSettled>, SettleError> {
        let draft = self.settling(execution, note.into())?;
        settled(execution, self.commit(vec![draft]))
    }

    /// The async twin of [`Session::settle_effect`]. If it is dropped while it waits, the effect is
    /// settled all the same.
    ///
    /// # Errors
    /// As for [`Session::settle_effect`].
    pub async fn settle_effect_async(
        &self,
        execution: ToolExecutionId,
        note: impl Into<String>,
    ) -> Result<Committed<ToolIntentSettled>, SettleError> {
        let draft = self.settling(execution, note.into())?;
        let outcome = self.submit(vec![draft]).await;
        settled(
            execution,
            outcome.map_err(CommitError::from).and_then(|done| done),
        )
    }

    /// What a settling would commit. Whether the effect is still unknown then, the boundary decides.
    fn settling(&self, execution: ToolExecutionId, note: String) -> Result<Draft, SettleError> {
        if note.len() > NOTE {
            let got = note.len();
            return Err(SettleError::TooLong { got, max: NOTE });
        }
        let mut unknown = self.unknown_effects().into_iter();
        let found = unknown.find(|effect| effect.execution == execution);
        let effect = found.ok_or(SettleError::NotUnknown(execution))?;
        let draft = Draft::new(ToolIntentSettled {
            tool_execution_id: execution,
            note,
        });
        Ok(draft
            .in_loop(effect.loop_id)
            .in_turn(effect.turn)
            .in_step(effect.step))
    }
}

fn settled(
    execution: ToolExecutionId,
    outcome: Result<Vec<Outcome>, CommitError>,
) -> Result<Committed<ToolIntentSettled>, SettleError> {
    match outcome {
        Ok(outcomes) => {
            let first = outcomes.first();
            let settled = first.and_then(|outcome| outcome.committed().typed());
            settled.ok_or_else(|| CommitError::from(Refusal::Empty).into())
        }
        Err(CommitError::NotCommitted(Refusal::Order(OrderError::NoIntent(_)))) => {
            Err(SettleError::NotUnknown(execution))
        }
        Err(error) => Err(error.into()),
    }
}
