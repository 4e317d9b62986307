//! A handle to a session: committing, reading, observing.

use std::sync::Arc;

use super::boundary::{Observer, SessionCore};
use super::committed::{Committed, Outcome};
use super::draft::Draft;
use super::io::Ticket;
use super::replay::Replay;
use super::state::{ForkedFrom, OpenTurn};
use super::{CommitError, OrderError, Refusal, ReplayError, SessionCloseError};
use crate::content::Message;
use crate::identity::{AgentName, LoopId, SessionId};
use crate::journal::{Fault, Health, Seq};

/// How a session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For committing; one writer at a time (P9).
    Write,
    /// For reading; always works for formats that this version knows, and writes nothing.
    Read,
}

/// A handle to an open session. Cheap to clone; all clones are the same session.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) core: Arc<SessionCore>,
}

impl Session {
    /// Its id.
    pub fn id(&self) -> SessionId {
        self.core.id
    }

    /// How it was opened.
    pub fn mode(&self) -> Mode {
        self.core.mode
    }

    /// Its last durable sequence; zero before the first.
    pub fn last_seq(&self) -> Seq {
        self.core.state().last
    }

    /// The title, if it has one.
    pub fn title(&self) -> Option<String> {
        self.core.state().metadata.title.clone()
    }

    /// The session that it was forked from, if it was, and the last record that they have in common.
    pub fn forked_from(&self) -> Option<ForkedFrom> {
        self.core.state().forked
    }

    /// The number of its committed steps.
    pub fn steps(&self) -> u64 {
        self.core.state().steps
    }

    /// Commits a batch of events, atomically, and returns when it is durable and published. Most
    /// hosts use [`Turn`](super::Turn) instead.
    ///
    /// # Errors
    /// [`CommitError::NotCommitted`]: nothing was written, the session goes on.
    /// [`CommitError::Unknown`]: the session is faulted; reopening decides (P7).
    pub fn commit(&self, drafts: Vec<Draft>) -> Result<Vec<Outcome>, CommitError> {
        self.core.commit(None, drafts)
    }

    /// The same, but only if `expected` is the last record of the session when its turn has come: for
    /// hosts that decided by what they have seen. A batch whose keys are all known is answered with its
    /// first commits ([`Outcome::Duplicate`]) wherever the session stands.
    ///
    /// # Errors
    /// As for [`Session::commit`]; [`OrderError::Moved`](super::OrderError::Moved) in a refusal.
    pub fn commit_behind(
        &self,
        expected: Seq,
        drafts: Vec<Draft>,
    ) -> Result<Vec<Outcome>, CommitError> {
        self.core.commit(Some(expected), drafts)
    }

    /// The same for async callers, as [`Session::submit`].
    pub fn submit_behind(
        &self,
        expected: Seq,
        drafts: Vec<Draft>,
    ) -> Ticket<Result<Vec<Outcome>, CommitError>> {
        self.core.submit(Some(expected), drafts)
    }

    /// The same for async callers: it never blocks, and the commit runs to its end, also when the
    /// ticket is dropped. One that must not wait for longer than a deadline waits for the ticket with
    /// [`Ticket::wait_for`]: that ends the waiting, never the commit.
    pub fn submit(&self, drafts: Vec<Draft>) -> Ticket<Result<Vec<Outcome>, CommitError>> {
        self.core.submit(None, drafts)
    }

    /// Runs something that reads from the disk on the store's I/O thread, for async callers. There
    /// is one such thread per store, so the job must not wait for a ticket.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Ticket<T> {
        let session = self.clone();
        self.core.io.submit(move || job(&session))
    }

    /// What the model of a loop sees: its history, or what the last compaction left of it. It is read
    /// from the log the first time, and blocks then; commits extend it while it is in memory
    /// ([`StoreOptions::context_bytes`](super::StoreOptions::context_bytes)).
    ///
    /// # Errors
    /// As for [`Session::history`], for the records that it reads.
    pub fn loop_context(&self, loop_id: LoopId) -> Result<Vec<Arc<Message>>, ReplayError> {
        self.core.context(loop_id)
    }

    /// The async twin of [`Session::loop_context`]: what is not in memory is read on the store's I/O
    /// thread.
    pub fn submit_context(
        &self,
        loop_id: LoopId,
    ) -> Ticket<Result<Vec<Arc<Message>>, ReplayError>> {
        let loaded = self.core.state().known_context(loop_id);
        match loaded {
            Some(messages) => Ticket::ready(Ok(messages)),
            None => self.run(move |session| session.loop_context(loop_id)),
        }
    }

    /// Its loops, in the order of their creation.
    pub fn loops(&self) -> Vec<(LoopId, AgentName)> {
        let state = self.core.state();
        state
            .loops
            .iter()
            .map(|state| (state.id, state.name.clone()))
            .collect()
    }

    /// The turns that have begun and not ended.
    pub fn open_turns(&self) -> Vec<OpenTurn> {
        self.core.state().open_turns().collect()
    }

    /// How many turns a loop has begun.
    pub fn turn_count(&self, loop_id: LoopId) -> u64 {
        self.core
            .state()
            .find(loop_id)
            .map_or(0, |state| state.turns)
    }

    /// The committed events from a sequence on, up to what is durable now, read from the log.
    pub fn replay(&self, from: Seq) -> Replay {
        Replay::new(&self.core, from)
    }

    /// Why nothing can be committed any more, if so.
    pub fn fault(&self) -> Option<Fault> {
        self.core.latched.get().cloned()
    }

    /// Tells an observer of all commits from now on; it is told nothing more when it is dropped.
    /// Gives the last sequence that was committed before, and, once in the life of this handle, the
    /// records that opening kept above the watermark: nobody can know whether they were published. (From
    /// within an observer: none, and from the next commit on.)
    pub fn observe(&self, observer: &Arc<dyn Observer>) -> (Seq, Vec<Committed>) {
        let observer = Arc::downgrade(observer);
        if self.core.join_from_within(observer.clone()) {
            return (self.core.state().last, Vec::new());
        }
        let mut boundary = self.core.entered();
        boundary.join(observer);
        let recovered = std::mem::take(&mut boundary.recovered);
        (self.core.state().last, recovered)
    }

    /// Checks that the loop exists.
    pub(super) fn require_loop(&self, loop_id: LoopId) -> Result<AgentName, OrderError> {
        let state = self.core.state();
        let found = state
            .find(loop_id)
            .ok_or(OrderError::UnknownLoop(loop_id))?;
        Ok(found.name.clone())
    }

    /// Vouches for the last commit outside its own block, as a later commit or a clean close would:
    /// for hosts that know that they go idle (`docs/guarantees.md` 4).
    ///
    /// # Errors
    /// As for [`Session::commit`]: a failed write or sync faults the session.
    pub fn witness(&self) -> Result<(), Refusal> {
        self.core.witness()
    }

    /// Closes the files of a session that will be idle for a while, until it is used again: it holds
    /// one file handle then, its lock, and stays the only writer. So a process can keep thousands of
    /// sessions open. What was committed last is vouched for first, as by [`Session::witness`].
    /// Commits open the files again by themselves.
    ///
    /// # Errors
    /// As for [`Session::witness`].
    pub fn park(&self) -> Result<(), Refusal> {
        self.core.park()
    }

    /// How its log is; `None` if it is open for reading only. Never waits for the disk, so it can be
    /// asked while a commit does not return.
    pub fn health(&self) -> Option<Health> {
        self.core.log.health()
    }

    /// Closes the session for all its handles: later commits are refused. Dropping the last handle
    /// gives the lock back too, but the next opening has more to do.
    ///
    /// # Errors
    /// What was acknowledged is as safe as before; the next opening recovers.
    pub fn close(&self) -> Result<(), SessionCloseError> {
        self.core.close()
    }
}
