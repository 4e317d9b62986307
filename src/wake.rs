//! Waking a host's tasks. A waker is the host's code: it may panic, or call back into what wakes it.
//! So none is woken under a lock: who holds one opens a [`Behind`] first, and what is woken until
//! its end is woken then, each for itself.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

crate::sync::thread_local! {
    /// How many [`Behind`] of this thread are open.
    static OPEN: Cell<usize> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
    /// Whether this thread runs wakers that waited.
    static WAKING: Cell<bool> = const { Cell::new(false) };
}

/// Wakes a task: now, or behind the locks that this thread holds.
pub(crate) fn wake(waker: Waker) {
    let now = match OPEN.try_with(Cell::get) {
        Ok(0) | Err(_) => Some(waker),
        Ok(_) => {
            let mut waker = Some(waker);
            let _ = WAITING.try_with(|waiting| waiting.borrow_mut().extend(waker.take()));
            waker
        }
    };
    now.into_iter().for_each(contained);
}

fn contained(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("a waker panicked; what it stands for may never be polled again");
    }
}

/// Whether this thread runs wakers behind something that it has to go on with: what they wait for
/// they have to do themselves.
pub(crate) fn is_waking() -> bool {
    WAKING.try_with(Cell::get).unwrap_or(false)
}

/// From its beginning to its end nobody is woken; at the end of the outermost one of a thread all of
/// them are. To be declared before the lock is taken, so that it ends after it.
#[must_use = "wakers wait until it ends"]
pub(crate) struct Behind(());

impl Behind {
    pub(crate) fn locks() -> Behind {
        let _ = OPEN.try_with(|open| open.set(open.get() + 1));
        Behind(())
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let left = OPEN.try_with(|open| {
            open.set(open.get().saturating_sub(1));
            open.get()
        });
        if left != Ok(0) {
            return;
        }
        let mut waiting = WAITING.try_with(RefCell::take).unwrap_or_default();
        if waiting.is_empty() {
            return;
        }
        let before = WAKING
            .try_with(|waking| waking.replace(true))
            .unwrap_or(false);
        waiting.drain(..).for_each(contained);
        let _ = WAKING.try_with(|waking| waking.set(before));
        // Its room is for the next ones, unless what was woken made others wait.
        let _ = WAITING.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.is_empty() {
                *kept = waiting;
            }
        });
    }
}
