//! The one journal of a store, and which of its sessions are open.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Weak};

use crate::identity::SessionId;
use crate::journal::{
    Carry, CloseError, Fault, Journal, Lsn, OpenError, Owner, RecoveryReport, Watch,
};
use crate::store::boundary::lock;
use crate::store::carry::CarryRecord;
use crate::store::entrance::holds_token;
use crate::store::health::OpenSessions;
use crate::store::options::StoreOptions;
use crate::store::state::SessionState;
use crate::store::{Refusal, SessionError};
use crate::sync::Mutex;
use crate::vfs::Vfs;

/// What of the store the journal needs to be opened.
pub(in crate::store) struct Home<'a> {
    pub(in crate::store) vfs: &'a Arc<dyn Vfs>,
    pub(in crate::store) path: &'a Path,
    pub(in crate::store) options: &'a StoreOptions,
    pub(in crate::store) open: &'a Arc<OpenSessions>,
}

/// The journal of a store that was opened for writing.
#[derive(Debug, Default)]
pub(in crate::store) struct SharedJournal(Mutex<Option<Arc<Opened>>>);

impl SharedJournal {
    /// The journal, if it is open and takes appends, or did when it was looked at last.
    pub(in crate::store) fn current(&self) -> Option<Arc<Opened>> {
        lock(&self.0).clone()
    }

    /// Opens the journal, or makes it where `creates` says so.
    pub(in crate::store) fn open(
        &self,
        home: &Home<'_>,
        creates: bool,
        watch: &Watch,
    ) -> Result<Arc<Opened>, OpenError> {
        let mut current = lock(&self.0);
        if let Some(opened) = current.as_ref().filter(|opened| opened.is_usable()) {
            return Ok(opened.clone());
        }
        // Faulted: its handles stay so, and its lock is given back (P8, W10). Closed: there is none.
        if let Some(old) = current.take()
            && let Err(error) = old.journal.close()
        {
            tracing::debug!(%error, "the shared journal is opened again after a fault");
        }
        let opened = Arc::new(Opened::new(home, creates, watch)?);
        Ok(current.insert(opened).clone())
    }

    /// Closes the journal, if it is open.
    pub(in crate::store) fn close(&self) -> Result<(), CloseError> {
        match lock(&self.0).take() {
            Some(opened) => opened.journal.close(),
            None => Ok(()),
        }
    }
}

/// One opening of the journal.
#[derive(Debug)]
pub(in crate::store) struct Opened {
    pub(super) journal: Journal,
    pub(super) report: RecoveryReport,
    pub(super) book: Arc<Book>,
}

impl Opened {
    fn new(home: &Home<'_>, creates: bool, watch: &Watch) -> Result<Opened, OpenError> {
        let options = &home.options.journal;
        let opening = Journal::open_watched(
            home.vfs.clone(),
            home.path,
            Owner::Shared,
            options.clone(),
            watch,
        );
        let opening = match opening {
            Err(OpenError::NotFound { .. }) if creates => {
                Journal::create(home.vfs.clone(), home.path, Owner::Shared, options.clone())
            }
            opening => opening,
        }?;
        let report = opening.report().clone();
        let book = Arc::new(Book {
            sessions: Mutex::default(),
            served: Mutex::default(),
            open: Arc::downgrade(home.open),
        });
        let opening = opening.workers(home.options.workers.clone());
        let (journal, _fence) = opening.begin(&[], book.clone())?;
        Ok(Opened {
            journal,
            report,
            book,
        })
    }

    /// See [`Log::token`](crate::store::log::Log::token).
    pub(super) fn token(self: &Arc<Opened>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Refuses what would wait for the commit token that this thread holds.
    pub(super) fn may_wait(self: &Arc<Opened>) -> Result<(), SessionError> {
        match holds_token(self.token()) {
            true => Err(SessionError::Prepare(Refusal::Reentrant)),
            false => Ok(()),
        }
    }

    fn is_usable(&self) -> bool {
        let health = self.journal.health();
        health.fault.is_none() && !health.closed
    }

    /// The records of a session above this Lsn, up to what recovery kept, are given to it as recovered:
    /// once in the life of this opening (design, section 3).
    pub(super) fn recovered_above(&self, session: SessionId) -> Lsn {
        let report = &self.report;
        let none = report.watermark == report.last;
        match none || lock(&self.book.served).contains(&session) {
            true => Lsn::new(u64::MAX),
            false => report.watermark,
        }
    }

    /// The session is open: what was recovered of it is given.
    pub(super) fn served(&self, session: SessionId) {
        if self.report.watermark < self.report.last {
            lock(&self.book.served).insert(session);
        }
    }
}

/// Which sessions are open for writing, with their states for the footers of the journal.
#[derive(Debug)]
pub(super) struct Book {
    sessions: Mutex<HashMap<SessionId, Writing>>,
    /// The sessions that were given what recovery kept above the watermark.
    served: Mutex<HashSet<SessionId>>,
    open: Weak<OpenSessions>,
}

#[derive(Debug)]
enum Writing {
    Opening,
    Open(Arc<Mutex<SessionState>>),
    /// It was closed, and its last records are in a segment without a footer: what that will say of it.
    Closed(Vec<u8>),
}

impl Book {
    /// Claims a session for one writer (P9); `None` if it has one.
    pub(super) fn claim(self: &Arc<Book>, session: SessionId) -> Option<Claim> {
        let mut sessions = lock(&self.sessions);
        let free = match sessions.entry(session) {
            Slot::Occupied(mut slot) if matches!(slot.get(), Writing::Closed(_)) => {
                slot.insert(Writing::Opening);
                true
            }
            Slot::Occupied(_) => false,
            Slot::Vacant(slot) => {
                slot.insert(Writing::Opening);
                true
            }
        };
        free.then(|| Claim {
            book: self.clone(),
            session,
        })
    }
}

impl Carry for Book {
    /// There is no state but that of the sessions.
    fn carry(&self, _last: Lsn) -> Vec<u8> {
        Vec::new()
    }

    /// A segment is sealed on behalf of the next commit, when all before it are settled: so each state is
    /// that of the last record of its session.
    fn state_of(&self, session: SessionId) -> Vec<u8> {
        let mut sessions = lock(&self.sessions);
        let state = match sessions.get_mut(&session) {
            Some(Writing::Open(state)) => state.clone(),
            // Its footer has it now.
            Some(Writing::Closed(_)) => match sessions.remove(&session) {
                Some(Writing::Closed(bytes)) => return bytes,
                _ => return Vec::new(),
            },
            Some(Writing::Opening) | None => return Vec::new(),
        };
        drop(sessions);
        let state = lock(&state);
        CarryRecord::bytes_of(&state)
    }

    /// A fault of the journal is one of every session, also of those that commit nothing just now (P8).
    fn faulted(&self, fault: &Fault) {
        let Some(open) = self.open.upgrade() else {
            return;
        };
        for session in open.list() {
            if session.core.log.fault().as_ref() == Some(fault) {
                session.core.entered().latch(fault);
            }
        }
    }
}

/// The right to write to a session, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    book: Arc<Book>,
    session: SessionId,
}

impl Claim {
    /// The session is open, and this is what it has come to.
    pub(super) fn opened(&self, state: &Arc<Mutex<SessionState>>) {
        lock(&self.book.sessions).insert(self.session, Writing::Open(state.clone()));
    }

    /// Gives it up. Its state is kept for the footer of the segment that has its last record, if that has
    /// none yet.
    pub(super) fn give_up(self, lacks_footer: bool) {
        let state = match lock(&self.book.sessions).get(&self.session) {
            Some(Writing::Open(state)) if lacks_footer => Some(state.clone()),
            _ => None,
        };
        let bytes = state.map(|state| CarryRecord::bytes_of(&lock(&state)));
        if let Some(bytes) = bytes {
            let closed = Writing::Closed(bytes);
            lock(&self.book.sessions).insert(self.session, closed);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut sessions = lock(&self.book.sessions);
        if let Slot::Occupied(slot) = sessions.entry(self.session)
            && !matches!(slot.get(), Writing::Closed(_))
        {
            slot.remove();
        }
    }
}
