//! Waiting for a group: a slot that is filled with the outcome once, and the ticket on it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::commit::Core;
use super::error::{AppendError, NotCommitted};
use super::record::Receipt;

/// What an append comes to.
pub(crate) type Outcome = Result<Receipt, AppendError>;

/// Is told the outcome of a batch, before anybody else is and in the order of the log, by the thread
/// that holds the commit token: it must be quick, and must not append or wait.
pub(crate) trait Sink: Send + Sync {
    fn settled(self: Arc<Self>, outcome: Outcome);
}

/// Who waits for a batch.
pub(crate) enum Settle {
    /// One that looks into a slot: a ticket, or a blocked thread, which is woken with its group.
    Slot(Arc<Slot>),
    /// One that is told.
    Sink(Arc<dyn Sink>),
}

/// Where an outcome is left for one that waits. Used again when it was taken.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Debug)]
enum State {
    Waiting(Waiter),
    Done(Outcome),
}

#[derive(Debug)]
enum Waiter {
    None,
    Thread(Thread),
    Task(Waker),
}

impl Default for State {
    fn default() -> Self {
        State::Waiting(Waiter::None)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the outcome and wakes who waits.
    pub(crate) fn fulfil(&self, outcome: Outcome) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(outcome));
        match before {
            State::Waiting(Waiter::Thread(thread)) => thread.unpark(),
            State::Waiting(Waiter::Task(waker)) => crate::wake::wake(waker),
            State::Waiting(Waiter::None) | State::Done(_) => {}
        }
    }

    /// Takes the outcome, or leaves word who waits.
    fn take_or(&self, waiter: impl FnOnce() -> Waiter) -> Option<Outcome> {
        let mut state = self.lock();
        match std::mem::take(&mut *state) {
            State::Done(outcome) => Some(outcome),
            State::Waiting(_) => {
                *state = State::Waiting(waiter());
                None
            }
        }
    }

    /// The outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.take_or(|| Waiter::None)
    }

    /// Blocks until the outcome is there, or until a deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<Outcome> {
        loop {
            let outcome = self.take_or(|| Waiter::Thread(std::thread::current()));
            if outcome.is_some() {
                return outcome;
            }
            match deadline {
                None => std::thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return self.take();
                    }
                    std::thread::park_timeout(left);
                }
            }
        }
    }

    fn poll(&self, context: &Context<'_>) -> Option<Outcome> {
        self.take_or(|| Waiter::Task(context.waker().clone()))
    }
}

/// The disk has not answered in the time that the caller wanted to wait. The append goes on, and its
/// outcome is not decided yet: the ticket can be waited for again.
#[derive(Debug, thiserror::Error)]
#[error("the disk has not answered for {waited:?}; the append goes on")]
pub struct Stalled {
    /// For how long it was waited.
    pub waited: Duration,
    /// Still good.
    pub ticket: AppendTicket,
}

/// The outcome of an append that was submitted. It can be awaited or waited for; dropping it changes
/// nothing: the append runs to its end.
#[derive(Debug)]
#[must_use = "a ticket tells whether what was submitted is durable"]
pub struct AppendTicket {
    /// Empty when the outcome was taken.
    slot: Option<Arc<Slot>>,
    core: Weak<Core>,
}

impl AppendTicket {
    pub(crate) fn new(slot: Arc<Slot>, core: Weak<Core>) -> AppendTicket {
        AppendTicket {
            slot: Some(slot),
            core,
        }
    }

    /// Blocks until the outcome is there. Not for async code: await the ticket there.
    ///
    /// # Errors
    /// As for [`Journal::append`](super::Journal::append).
    pub fn wait(mut self) -> Result<Receipt, AppendError> {
        self.until(None).unwrap_or(Err(NotCommitted::Closed.into()))
    }

    /// The same, but gives up waiting (never the append) after a time.
    ///
    /// # Errors
    /// [`Stalled`] when the time is over, with the ticket.
    pub fn wait_for(mut self, limit: Duration) -> Result<Result<Receipt, AppendError>, Stalled> {
        // A limit beyond what the clock can count is none.
        match self.until(Instant::now().checked_add(limit)) {
            Some(outcome) => Ok(outcome),
            None => Err(Stalled {
                waited: limit,
                ticket: self,
            }),
        }
    }

    fn until(&mut self, deadline: Option<Instant>) -> Option<Outcome> {
        let slot = self.slot.as_ref()?;
        let core = self.core.upgrade();
        let outcome = match core {
            // Who serves may be this very thread, waking others.
            Some(core) if crate::wake::is_waking() => {
                core.lead();
                slot.wait(deadline)
            }
            Some(core) if core.runs_by_hand() => loop {
                let outcome = slot.take();
                if outcome.is_some() || !core.run_by_hand() {
                    break outcome;
                }
            },
            _ => slot.wait(deadline),
        };
        self.taken(outcome)
    }

    /// A slot whose outcome was taken can be used again.
    fn taken(&mut self, outcome: Option<Outcome>) -> Option<Outcome> {
        if outcome.is_some()
            && let Some(slot) = self.slot.take()
            && let Some(core) = self.core.upgrade()
        {
            core.give_back(slot);
        }
        outcome
    }
}

impl Future for AppendTicket {
    type Output = Result<Receipt, AppendError>;

    /// # Panics
    /// Never; polled again after it was ready, it says that the journal is closed.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot.as_ref() else {
            return Poll::Ready(Err(NotCommitted::Closed.into()));
        };
        let outcome = slot.poll(context);
        match self.taken(outcome) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}
