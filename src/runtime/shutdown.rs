//! How a loop is shut down, and what became of it.

use std::time::Duration;

use super::{LoopHandle, NoTimer};

/// How long the phases of a shutdown may take, each for itself, so that one that does not end cannot
/// keep the others from running. Unlimited by default; limits need a runtime with a timer
/// ([`ShutdownError::NoTimer`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShutdownLimits {
    /// For [`ShutdownPhase::Turn`].
    pub turn: Option<Duration>,
    /// For [`ShutdownPhase::Terminal`].
    pub terminal: Option<Duration>,
    /// For [`ShutdownPhase::Queue`].
    pub queue: Option<Duration>,
}

impl ShutdownLimits {
    /// The same limit for each phase.
    pub fn each(limit: Duration) -> ShutdownLimits {
        ShutdownLimits {
            turn: Some(limit),
            terminal: Some(limit),
            queue: Some(limit),
        }
    }

    pub(super) fn are_set(&self) -> bool {
        *self != ShutdownLimits::default()
    }

    pub(super) fn of(&self, phase: ShutdownPhase) -> Option<Duration> {
        match phase {
            ShutdownPhase::Turn => self.turn,
            ShutdownPhase::Terminal => self.terminal,
            ShutdownPhase::Queue => self.queue,
        }
    }
}

/// The phases of a shutdown, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownPhase {
    /// The running turn is interrupted and stops; an append that has begun is waited for.
    Turn,
    /// Its terminal becomes durable.
    Terminal,
    /// The InputCancelled of those that waited, and other records about inputs, become durable.
    Queue,
}

/// What a shutdown came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Whether a turn ran.
    pub interrupted: bool,
    /// How many inputs waited and were returned.
    pub returned: usize,
    /// The phases that ran out of time. A turn that did is closed by the loop's next turn or by the
    /// next opening; an append that had begun still runs to its end.
    pub overdue: Vec<ShutdownPhase>,
}

impl ShutdownReport {
    /// Whether all phases came to their end.
    pub fn is_complete(&self) -> bool {
        self.overdue.is_empty()
    }
}

/// Why a shutdown has no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Limits were asked for, and the loop's runtime has no timer. Nothing was done, the loop goes on:
    /// shut it down without limits.
    #[error(transparent)]
    NoTimer(#[from] NoTimer),
    /// The loop's task is gone and did not wind up: its runtime was shut down, or it was torn down by a
    /// panic. A turn that ran is closed by the loop's next turn or by the next opening; what waited is
    /// answered, and not recorded.
    #[error("the loop's task ended without a shutdown; what became of its turn is in the log")]
    TaskLost,
}

/// Shuts several loops down at once, those of one session for example; the reports are in the order
/// of the handles.
pub async fn shutdown_all<'a>(
    handles: impl IntoIterator<Item = &'a LoopHandle>,
    limits: ShutdownLimits,
) -> Vec<Result<ShutdownReport, ShutdownError>> {
    let mut asked = Vec::new();
    for handle in handles {
        asked.push((handle, handle.ask_shutdown(limits).await));
    }
    let mut reports = Vec::with_capacity(asked.len());
    for (handle, report) in asked {
        reports.push(handle.shut_down(report).await);
    }
    reports
}
