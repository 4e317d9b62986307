//! Waking those who follow a journal in its own process.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

use super::FollowError;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Rung by the holder of the commit token when a group counts, and ended by it when nothing can
/// count any more.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// Whether somebody waits for the next ring.
    armed: AtomicBool,
    ids: AtomicU64,
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    end: Option<FollowError>,
    /// Tasks that wait, by follower.
    wakers: Vec<(u64, Waker)>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new follower.
    pub(super) fn join(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// A group counts. Costs one load when nobody waits.
    ///
    /// That load needs no order of its own: a follower arms the bell before it looks at the spans,
    /// and who rings has moved them on before. Both take the lock of the spans, so a follower that
    /// saw the old end is seen armed.
    pub(crate) fn ring(&self) {
        if self.armed.load(Ordering::Relaxed) {
            self.wake(|_| {});
        }
    }

    /// Nothing will count any more, and why. The first end is kept. Only for who holds the commit
    /// token, or when nobody can: a group that is under way may still count.
    pub(crate) fn end(&self, end: FollowError) {
        self.wake(|state| {
            state.end.get_or_insert(end);
        });
    }

    fn wake(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        self.armed.store(false, Ordering::Relaxed);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.rung.notify_all();
        for (_, waker) in wakers {
            crate::wake::wake(waker);
        }
    }

    /// Why nothing will count any more, if so.
    pub(super) fn ended(&self) -> Option<FollowError> {
        self.lock().end.clone()
    }

    /// Blocks until there is news, an end, or the deadline.
    pub(super) fn wait(&self, deadline: Option<Instant>, news: impl Fn() -> bool) {
        let mut state = self.lock();
        loop {
            self.armed.store(true, Ordering::Relaxed);
            if state.end.is_some() || news() {
                return;
            }
            state = match deadline {
                None => self
                    .rung
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return;
                    }
                    self.rung
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// Has a task woken by the next ring. False if there is no need to wait.
    pub(super) fn register(&self, id: u64, waker: &Waker, news: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        self.armed.store(true, Ordering::Relaxed);
        if state.end.is_some() || news() {
            return false;
        }
        state.wakers.retain(|(other, _)| *other != id);
        state.wakers.push((id, waker.clone()));
        true
    }

    /// A follower is gone.
    pub(super) fn leave(&self, id: u64) {
        self.lock().wakers.retain(|(other, _)| *other != id);
    }
}
