//! The I/O thread of a store: runs for async callers what reads from the disk, so that they never
//! block a thread of their runtime; and tickets, for what was submitted to it or to the log.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::contain::{contained, dropped};
use crate::sync::{Condvar, Mutex, MutexGuard};

type Job = Box<dyn FnOnce() + Send>;

/// One thread, started on first use, that runs jobs in the order in which they were submitted. It
/// ends when the store and all its sessions are gone.
#[derive(Debug, Default)]
pub(crate) struct IoThread {
    jobs: Mutex<Option<Sender<Job>>>,
}

/// The job was not run to its end: its thread could not be started, or the job panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the I/O thread of the store is gone; open the store again")]
pub struct IoThreadGone;

impl IoThread {
    /// Runs a job on the thread.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Ticket<T> {
        let (promise, ticket) = Promise::new();
        let job: Job = Box::new(move || {
            // A panic in a host's disk must not take the thread down with the jobs behind it; the
            // promise, dropped unfulfilled, tells the waiter.
            match contained(job) {
                Ok(value) => promise.fulfil(value),
                Err(_) => drop(promise),
            }
        });
        // A model checker sees its own threads only.
        if cfg!(shuttle) {
            job();
        } else if let Some(sender) = self.sender() {
            // If the thread is gone the job is dropped, and its promise with it.
            let _ = sender.send(job);
        }
        ticket
    }

    fn sender(&self) -> Option<Sender<Job>> {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = channel::<Job>();
            let started = std::thread::Builder::new()
                .name("stepwell-io".into())
                .spawn(move || {
                    // What nobody waits for any more is dropped here, and may panic then.
                    receiver.into_iter().for_each(|job| drop(contained(job)));
                });
            match started {
                Ok(_) => *jobs = Some(sender),
                Err(error) => tracing::error!(%error, "the I/O thread could not be started"),
            }
        }
        jobs.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

#[derive(Debug)]
enum State<T> {
    Waiting(Option<Waker>),
    Done(T),
    /// Taken, or never to come.
    Gone,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot {
            state: Mutex::new(State::Waiting(None)),
            ready: Condvar::new(),
        }
    }
}

impl<T> Slot<T> {
    fn settle(&self, settled: State<T>) {
        let mut state = lock(&self.state);
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = settled;
            drop(state);
            self.ready.notify_all();
            if let Some(waker) = waker {
                crate::wake::wake(waker);
            }
        }
    }
}

/// The side of the thread: dropped unfulfilled, it tells the waiter that nothing will come.
pub(super) struct Promise<T>(Arc<Slot<T>>);

impl<T> Promise<T> {
    /// A promise, and the ticket on it.
    pub(super) fn new() -> (Promise<T>, Ticket<T>) {
        let slot = Arc::new(Slot::default());
        let ticket = Ticket {
            slot: slot.clone(),
            server: None,
        };
        (Promise(slot), ticket)
    }

    pub(super) fn fulfil(self, value: T) {
        self.0.settle(State::Done(value));
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.settle(State::Gone);
    }
}

/// There was no answer in the time that the caller wanted to wait. What was submitted goes on, and
/// its outcome is not decided yet: the ticket can be waited for again, or awaited.
#[derive(Debug, thiserror::Error)]
#[error("there was no answer for {waited:?}; what was submitted goes on")]
pub struct Stalled<T> {
    /// For how long it was waited.
    pub waited: Duration,
    /// Still good.
    pub ticket: Ticket<T>,
}

/// The outcome of something that was submitted. It can be awaited or waited for; dropping it changes
/// nothing else.
#[must_use = "a ticket tells whether what was submitted is durable"]
pub struct Ticket<T> {
    slot: Arc<Slot<T>>,
    /// What can be done for the outcome by who has to wait for it.
    server: Option<Weak<dyn Serve>>,
}

impl<T: std::fmt::Debug> std::fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ticket").field(&self.slot).finish()
    }
}

/// Brings outcomes about.
pub(super) trait Serve: Send + Sync {
    /// Writes what is queued, and hands on the rest.
    fn serve(self: Arc<Self>);
}

impl<T> Ticket<T> {
    /// One whose outcome is known.
    pub(super) fn ready(value: T) -> Ticket<T> {
        let (promise, ticket) = Promise::new();
        promise.fulfil(value);
        ticket
    }

    /// The same, of something that can be served.
    pub(super) fn served_by(self, server: Weak<dyn Serve>) -> Ticket<T> {
        Ticket {
            server: Some(server),
            ..self
        }
    }

    /// Whether the outcome is there.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(&*lock(&self.slot.state), State::Waiting(_))
    }

    /// Blocks until the outcome is there. Not for async code: await the ticket there.
    ///
    /// # Errors
    /// [`IoThreadGone`]: the outcome is unknown.
    pub fn wait(self) -> Result<T, IoThreadGone> {
        self.until(None).unwrap_or(Err(IoThreadGone))
    }

    /// The same, but gives up waiting after a time: never what was submitted, which goes on. No
    /// outcome is invented while the disk owes an answer.
    ///
    /// # Errors
    /// [`Stalled`] when the time is over, with the ticket.
    pub fn wait_for(self, limit: Duration) -> Result<Result<T, IoThreadGone>, Stalled<T>> {
        // A limit beyond what the clock can count is none.
        match self.until(Instant::now().checked_add(limit)) {
            Some(outcome) => Ok(outcome),
            None => Err(Stalled {
                waited: limit,
                ticket: self,
            }),
        }
    }

    fn until(&self, deadline: Option<Instant>) -> Option<Result<T, IoThreadGone>> {
        // A waker that waits does so in a thread that may be the one which serves.
        if crate::wake::is_waking()
            && let Some(server) = self.server.as_ref().and_then(Weak::upgrade)
        {
            server.serve();
        }
        let mut state = lock(&self.slot.state);
        loop {
            match std::mem::replace(&mut *state, State::Gone) {
                State::Done(value) => return Some(Ok(value)),
                State::Gone => return Some(Err(IoThreadGone)),
                waiting @ State::Waiting(_) => *state = waiting,
            }
            let ready = &self.slot.ready;
            state = match deadline {
                None => ready.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = ready.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, IoThreadGone>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Wakers are the host's: they are cloned and dropped without the lock.
        let waker = context.waker().clone();
        let mut state = lock(&self.slot.state);
        let before = match std::mem::replace(&mut *state, State::Gone) {
            State::Done(value) => return Poll::Ready(Ok(value)),
            State::Gone => return Poll::Ready(Err(IoThreadGone)),
            State::Waiting(before) => before,
        };
        *state = State::Waiting(Some(waker));
        drop(state);
        dropped(before);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_order_and_tickets_give_their_outcomes() {
        let io = IoThread::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..20)
            .map(|number| {
                let seen = seen.clone();
                io.submit(move || {
                    lock(&seen).push(number);
                    number * 2
                })
            })
            .collect();
        for (number, ticket) in tickets.into_iter().enumerate() {
            assert_eq!(ticket.wait(), Ok(number * 2));
        }
        assert_eq!(*lock(&seen), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_panicking_job_is_reported_and_the_thread_goes_on() {
        let io = IoThread::default();
        let bad: Ticket<()> = io.submit(|| panic!("the host's disk"));
        let good = io.submit(|| 7);
        assert_eq!(bad.wait(), Err(IoThreadGone));
        assert_eq!(good.wait(), Ok(7));
    }

    #[test]
    fn a_dropped_ticket_does_not_stop_its_job() {
        let io = IoThread::default();
        let (sender, receiver) = channel();
        drop(io.submit(move || sender.send(1).unwrap()));
        assert_eq!(receiver.recv(), Ok(1));
    }
}
