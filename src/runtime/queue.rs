//! The inputs that wait for their turn. Whatever is taken out is resolved exactly once.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use super::actor::Command;
use super::handle::{RunError, TurnOutcome};
use super::hub::Work;
use crate::content::UserMessage;
use crate::event::CancelReason;
use crate::identity::TurnId;
use crate::journal::Seq;
use crate::sync::{Mutex, MutexGuard};
use crate::wake::Relay;

/// What is said to a loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    pub(super) message: UserMessage,
    pub(super) folds: bool,
    pub(super) machine: bool,
}

impl Input {
    /// From a person. It may join the turn that runs.
    pub fn new(message: impl Into<UserMessage>) -> Input {
        Input {
            message: message.into(),
            folds: true,
            machine: false,
        }
    }

    /// It begins a turn of its own. What waits behind it does not join the running turn either: the
    /// order stays.
    #[must_use]
    pub fn no_fold(self) -> Input {
        Input {
            folds: false,
            ..self
        }
    }

    /// It comes from a program. If it still waits when a turn is interrupted, it is cancelled, where
    /// a person's input stays.
    #[must_use]
    pub fn machine(self) -> Input {
        Input {
            machine: true,
            ..self
        }
    }
}

impl std::convert::From<UserMessage> for Input {
    fn from(message: UserMessage) -> Self {
        Input::new(message)
    }
}

impl std::convert::From<&str> for Input {
    fn from(text: &str) -> Self {
        Input::new(text)
    }
}

impl std::convert::From<String> for Input {
    fn from(text: String) -> Self {
        Input::new(text)
    }
}

/// Names an input while it waits; unique within the process, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InputId(u64);

impl InputId {
    pub(super) fn next() -> InputId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        InputId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for InputId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input {}", self.0)
    }
}

/// What became of an input.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum InputOutcome {
    /// It began a turn, and the turn has ended.
    Turn(TurnOutcome),
    /// It joined a running turn, durably (TurnFoldedInto); the model sees it with its next request.
    Folded {
        /// The turn.
        turn: TurnId,
        /// Its record.
        seq: Seq,
    },
    /// It was taken out of the queue and never reached the model.
    Cancelled {
        /// Why.
        reason: CancelReason,
        /// Its InputCancelled; `None` if that could not be made durable.
        recorded: Option<Seq>,
    },
}

pub(super) type Resolution = Result<InputOutcome, RunError>;

/// An input that was handed to a loop; awaited, it gives what became of it, once. Dropping it changes
/// nothing. Like a handle it keeps the loop's task alive.
///
/// # Errors
/// [`RunError`]: no turn began with it.
#[derive(Debug)]
#[must_use = "await it to learn what became of the input"]
pub struct Submitted {
    pub(super) id: InputId,
    pub(super) outcome: oneshot::Receiver<Resolution>,
    pub(super) relay: Relay,
    pub(super) _keeps: mpsc::Sender<Command>,
}

impl Submitted {
    /// By which it can be taken back while it waits
    /// ([`LoopHandle::cancel_queued`](super::LoopHandle::cancel_queued)).
    pub fn id(&self) -> InputId {
        self.id
    }
}

impl Future for Submitted {
    type Output = Resolution;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = self.relay.to(context.waker());
        let mut context = Context::from_waker(&waker);
        let outcome = Pin::new(&mut self.outcome).poll(&mut context);
        outcome.map(|outcome| outcome.unwrap_or(Err(RunError::Ended)))
    }
}

/// An input and who waits for it. Whoever takes it out of the queue answers it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: InputId,
    pub(super) input: Input,
    pub(super) asked: Asked,
}

/// Who waits for an input.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) answer: oneshot::Sender<Resolution>,
    pub(super) work: Work,
}

impl Asked {
    /// Answers. The work ends first: whoever has the last answer sees an idle session.
    pub(super) fn answer(self, resolution: Resolution) {
        drop(self.work);
        // Whoever asked may be gone; what happened has happened all the same.
        let _ = self.answer.send(resolution);
    }
}

/// The queue of a loop, shared by its desk and the turn that runs, which are one task.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    lists: Arc<Mutex<Lists>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Lists {
    waiting: VecDeque<Entry>,
    /// Taken by the running turn, their TurnFoldedInto not yet durable.
    draining: Vec<Entry>,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Queue {
        Queue {
            lists: Arc::default(),
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        let lists = self.lock();
        lists.waiting.len() + lists.draining.len()
    }

    /// Takes an entry in, or gives it back, with the limit, when as many wait as may.
    pub(super) fn push(&self, entry: Entry, waits: bool) -> Option<(Entry, usize)> {
        let mut lists = self.lock();
        let limit = self.limit;
        if waits && lists.waiting.len() + lists.draining.len() >= limit {
            return Some((entry, limit));
        }
        lists.waiting.push_back(entry);
        None
    }

    pub(super) fn pop(&self) -> Option<Entry> {
        self.lock().waiting.pop_front()
    }

    /// Takes one out that still waits.
    pub(super) fn take(&self, id: InputId) -> Option<Entry> {
        let mut lists = self.lock();
        let at = lists.waiting.iter().position(|entry| entry.id == id)?;
        lists.waiting.remove(at)
    }

    /// Takes out those that wait and are meant.
    pub(super) fn take_all(&self, meant: impl Fn(&Input) -> bool) -> Vec<Entry> {
        let mut lists = self.lock();
        let waiting = std::mem::take(&mut lists.waiting);
        let (taken, stays): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|entry| meant(&entry.input));
        lists.waiting = stays.into();
        taken
    }

    /// Sets the leading run of entries that fold aside; gives their messages.
    pub(super) fn drain(&self) -> Vec<UserMessage> {
        let mut lists = self.lock();
        while lists.waiting.front().is_some_and(|entry| entry.input.folds) {
            let entry = lists.waiting.pop_front();
            lists.draining.extend(entry);
        }
        let drained = lists.draining.iter();
        drained.map(|entry| entry.input.message.clone()).collect()
    }

    /// What was set aside has joined a turn.
    pub(super) fn folded(&self, turn: TurnId, seqs: &[Seq]) {
        let drained = std::mem::take(&mut self.lock().draining);
        for (entry, seq) in drained.into_iter().zip(seqs) {
            entry
                .asked
                .answer(Ok(InputOutcome::Folded { turn, seq: *seq }));
        }
    }

    /// What was set aside, of which nobody here will know whether it has joined.
    pub(super) fn take_draining(&self) -> Vec<Entry> {
        std::mem::take(&mut self.lock().draining)
    }

    /// What was set aside and has not joined waits again, in front.
    pub(super) fn put_back(&self) {
        let mut lists = self.lock();
        let drained = std::mem::take(&mut lists.draining);
        for entry in drained.into_iter().rev() {
            lists.waiting.push_front(entry);
        }
    }
}

/// Entries that are being cancelled. Whatever becomes of the record, they are answered.
pub(super) struct Cancelling {
    pub(super) entries: Vec<Entry>,
    pub(super) reason: CancelReason,
}

impl Cancelling {
    /// Where their InputCancelled stand, in their order, as far as they are durable.
    pub(super) fn recorded(mut self, seqs: &[Option<Seq>]) {
        let entries = std::mem::take(&mut self.entries);
        for (at, entry) in entries.into_iter().enumerate() {
            self.answer(entry, seqs.get(at).copied().flatten());
        }
    }

    fn answer(&self, entry: Entry, recorded: Option<Seq>) {
        let reason = self.reason;
        let cancelled = InputOutcome::Cancelled { reason, recorded };
        entry.asked.answer(Ok(cancelled));
    }
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.entries) {
            self.answer(entry, None);
        }
    }
}
