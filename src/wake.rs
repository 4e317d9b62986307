//! Waking a host's tasks. A waker is the host's code: it may panic, or call back into what wakes it.
//! So none is woken under a lock: who holds one opens a [`Behind`] first, and what is woken until
//! its end is woken then, each for itself. What wakes by itself (a channel of tokio) is given a
//! [`Relay`] that stands in front of the host's waker.

use std::cell::{Cell, RefCell};
use std::task::Waker;

#[cfg(feature = "runtime")]
pub(crate) use relay::{Relay, relayed};

use crate::contain::{contained, dropped};

/// What waits for the end of the locks.
enum Later {
    Wake(Waker),
    #[cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "of relays only"))]
    Drop(Waker),
}

crate::sync::thread_local! {
    /// How many [`Behind`] of this thread are open.
    static OPEN: Cell<usize> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Later>> = const { RefCell::new(Vec::new()) };
    /// Whether this thread runs wakers that waited.
    static WAKING: Cell<bool> = const { Cell::new(false) };
}

/// Wakes a task: now, or behind the locks that this thread holds.
pub(crate) fn wake(waker: Waker) {
    later(Later::Wake(waker));
}

fn later(later: Later) {
    let now = match OPEN.try_with(Cell::get) {
        Ok(0) | Err(_) => Some(later),
        Ok(_) => {
            let mut later = Some(later);
            let _ = WAITING.try_with(|waiting| waiting.borrow_mut().extend(later.take()));
            later
        }
    };
    now.into_iter().for_each(Later::run);
}

impl Later {
    fn run(self) {
        match self {
            Later::Wake(waker) => {
                if contained(|| waker.wake_by_ref()).is_err() {
                    tracing::error!(
                        "a waker panicked; what it stands for may never be polled again"
                    );
                }
                dropped(waker);
            }
            Later::Drop(waker) => dropped(waker),
        }
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
        waiting.drain(..).for_each(Later::run);
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

#[cfg(feature = "runtime")]
mod relay {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    use super::{Later, OPEN, contained, later};

    /// What is given to those who wake by themselves, in place of the waker of a host's task.
    #[derive(Debug, Default)]
    pub(crate) struct Relay(Option<Arc<Front>>);

    impl Relay {
        /// A waker that wakes this one, behind the locks of who wakes.
        pub(crate) fn to(&mut self, waker: &Waker) -> Waker {
            match &self.0 {
                Some(front) if front.leads_to(waker) => front.clone().into(),
                _ => {
                    let front = Arc::new(Front(Some(waker.clone())));
                    self.0 = Some(front.clone());
                    front.into()
                }
            }
        }
    }

    #[derive(Debug)]
    struct Front(Option<Waker>);

    impl Front {
        fn leads_to(&self, waker: &Waker) -> bool {
            self.0.as_ref().is_some_and(|own| own.will_wake(waker))
        }
    }

    impl Wake for Front {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            if OPEN.try_with(std::cell::Cell::get).unwrap_or(0) > 0 {
                return super::wake(self.clone().into());
            }
            let woken = contained(|| self.0.as_ref().map(Waker::wake_by_ref));
            if woken.is_err() {
                tracing::error!("a waker panicked; what it stands for may never be polled again");
            }
        }
    }

    /// Dropping a task may drop all that it holds.
    impl Drop for Front {
        fn drop(&mut self) {
            if let Some(waker) = self.0.take() {
                later(Later::Drop(waker));
            }
        }
    }

    /// Awaits something that wakes by itself.
    pub(crate) async fn relayed<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let mut relay = Relay::default();
        poll_fn(move |context| {
            let waker = relay.to(context.waker());
            future.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }
}
