//! A loop that is being shut down: its phase, its time, and who waits for the report.

use std::future::pending;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::actor::Command;
use super::{ShutdownError, ShutdownLimits, ShutdownPhase, ShutdownReport};

/// What one who asked for a shutdown gets.
pub(super) type Shutdown = Result<ShutdownReport, ShutdownError>;

/// No turn begins any more.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) limits: ShutdownLimits,
    pub(super) phase: ShutdownPhase,
    /// When the phase began.
    since: Instant,
    pub(super) report: ShutdownReport,
    pub(super) waiting: Vec<oneshot::Sender<Shutdown>>,
}

impl Closing {
    pub(super) fn new(limits: ShutdownLimits) -> Closing {
        Closing {
            limits,
            phase: ShutdownPhase::Turn,
            since: Instant::now(),
            report: ShutdownReport::default(),
            waiting: Vec::new(),
        }
    }

    pub(super) fn enter(&mut self, phase: ShutdownPhase) {
        self.phase = phase;
        self.since = Instant::now();
    }

    /// Waits until the phase is out of time. There are limits only where there is a timer.
    pub(super) async fn overdue(limit: Option<(Instant, Duration)>) {
        match limit.and_then(|(since, limit)| since.checked_add(limit)) {
            Some(due) => tokio::time::sleep_until(due).await,
            None => pending().await,
        }
    }

    pub(super) fn limit(&self) -> Option<(Instant, Duration)> {
        let limit = self.limits.of(self.phase)?;
        Some((self.since, limit))
    }
}

/// What is left of a desk.
pub(super) struct WoundUp {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) report: ShutdownReport,
    pub(super) waiting: Vec<oneshot::Sender<Shutdown>>,
}
