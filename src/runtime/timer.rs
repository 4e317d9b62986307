//! Whether time can be limited: a tokio runtime need not have a timer.

use std::time::Duration;

use crate::contain::contained;

/// A time limit was asked for where there is no timer. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no timer for a time limit: build the tokio runtime with `enable_time`, or ask for no limit"
)]
pub struct NoTimer;

/// Whether this task can wait for a time. Asked before the first thing that is done under a limit:
/// tokio has no answer but a panic.
pub(super) fn is_here() -> Result<(), NoTimer> {
    contained(|| drop(tokio::time::sleep(Duration::ZERO))).map_err(|_| NoTimer)
}
