//! A commit of the runner, as hooks and spans see it.

use std::future::Future;
use std::sync::Arc;

use tracing::Instrument;

use super::hooks::{HookResult, Hooks, Operation};
use crate::event::Kind;
use crate::identity::Coordinates;
use crate::journal::Seq;
use crate::store::{CommitError, Outcome};

/// Awaits a commit. The hook sees its kinds and its last sequence, and can change neither.
pub(super) async fn append<T>(
    hooks: &Arc<Hooks>,
    at: Coordinates,
    kinds: &[Kind],
    commit: impl Future<Output = Result<T, CommitError>>,
    last: impl FnOnce(&T) -> Seq,
) -> Result<T, CommitError> {
    let operation = hooks.append(at, kinds);
    let first = kinds.first().map_or("", |kind| kind.name());
    let span = tracing::debug_span!("commit", first, events = kinds.len());
    let committed = commit.instrument(span).await;
    answered(operation, &committed, last);
    committed
}

/// The commit has its outcome.
pub(super) fn answered<T>(
    operation: Operation,
    committed: &Result<T, CommitError>,
    last: impl FnOnce(&T) -> Seq,
) {
    operation.finish_with(|| match committed {
        Ok(committed) => HookResult::Appended {
            last: last(committed),
        },
        Err(error) => HookResult::Failed {
            error: error.to_string(),
        },
    });
}

/// The last sequence of a batch.
#[allow(clippy::ptr_arg, reason = "the type of what it is called with")]
pub(super) fn last_seq(outcomes: &Vec<Outcome>) -> Seq {
    outcomes.last().map_or(Seq::ZERO, Outcome::seq)
}
