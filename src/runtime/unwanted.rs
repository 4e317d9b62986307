//! Telling what a host does beside its futures that nobody wants its result any more.

use tokio_util::sync::CancellationToken;

use crate::contain::{Held, contained};

/// Cancels a token when it is dropped, unless it was disarmed.
///
/// The token is a host's: it is no child of one of ours, since what waits for it may panic when it is
/// woken, and that would leave the parent's lock poisoned.
pub(super) struct Unwanted {
    token: Held<CancellationToken>,
    armed: bool,
}

impl Unwanted {
    /// A guard, and the token that it cancels.
    pub(super) fn new() -> (Unwanted, CancellationToken) {
        let token = CancellationToken::new();
        let guard = Unwanted {
            token: Held::new(token.clone()),
            armed: true,
        };
        (guard, token)
    }

    /// It was wanted.
    pub(super) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        if self.armed {
            cancel(self.token.get());
        }
    }
}

/// Cancels a token of a host, whose wakers may panic.
pub(super) fn cancel(token: Option<&CancellationToken>) {
    let cancelled = contained(|| token.map(CancellationToken::cancel));
    if cancelled.is_err() {
        tracing::error!("what waited for a cancellation panicked when it was woken");
    }
}
