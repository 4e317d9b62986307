//! Rewinding a loop: it goes on from an earlier record. Nothing is removed.

use super::super::{CommitError, Committed, Outcome, Refusal};
use super::{Loop, outcome};
use crate::event::Rewound;
use crate::identity::TurnId;
use crate::journal::Seq;

impl Loop {
    /// Takes the loop back to a record, inclusive (zero: to before it said anything): its history and its
    /// context are again what they were when that record was the last. One event, durable when this
    /// returns; a turn that is still open is closed in the same batch. Other loops are not touched.
    ///
    /// What it leaves stays in the log, and addressable: by
    /// [`history_at`](super::super::Session::history_at), [`step`](super::super::Session::step),
    /// [`replay`](super::super::Session::replay) and
    /// [`HistoryPage::with_rewound`](super::super::HistoryPage::with_rewound). Keys of steps that it
    /// leaves stay known: to say the same again, use a new one. Turns are numbered on.
    ///
    /// # Errors
    /// As for [`Session::commit`](super::super::Session::commit);
    /// [`OrderError::Ahead`](super::super::OrderError::Ahead) in a refusal.
    pub fn rewind(
        &mut self,
        to: Seq,
        reason: impl Into<String>,
    ) -> Result<Committed<Rewound>, CommitError> {
        let batch = self.closing_and(self.rewound(to, reason));
        let outcomes = self.session.core.commit_with(self.id, batch)?;
        self.went_back(&outcomes)
    }

    /// The async twin of [`Loop::rewind`]. If it is dropped while it waits, the loop is rewound all the
    /// same, or not, as if it had been waited for.
    ///
    /// # Errors
    /// As for [`Loop::rewind`].
    pub async fn rewind_async(
        &mut self,
        to: Seq,
        reason: impl Into<String>,
    ) -> Result<Committed<Rewound>, CommitError> {
        let batch = self.closing_and(self.rewound(to, reason));
        let submitted = self.session.core.submit_with(self.id, false, batch);
        let outcomes = submitted.await??;
        self.went_back(&outcomes)
    }

    fn rewound(&self, to: Seq, reason: impl Into<String>) -> super::Draft {
        let rewound = Rewound {
            to: to.get(),
            reason: reason.into(),
        };
        self.draft(TurnId::nil(), rewound)
    }

    fn went_back(&mut self, outcomes: &[Outcome]) -> Result<Committed<Rewound>, CommitError> {
        self.unwritten.clear();
        let rewound = outcome::<Rewound>(outcomes).ok_or(Refusal::Empty)?;
        Ok(rewound.committed().clone())
    }
}
