//! One session of a shared journal, as a log of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::journal::{Claim, Opened};
use crate::identity::SessionId;
use crate::journal::{
    AppendError, CloseError, Damage, Entry, Fault, ForkError, ForkPoint, Health, JournalView,
    NotCommitted, OwnedRecord, Position, ReadError, Seq, SessionLog, Sink, WhenFull,
};
use crate::store::boundary::lock;
use crate::store::log::{Entries, Log};
use crate::sync::Mutex;

/// A session that is open for writing.
#[derive(Debug)]
pub(super) struct SharedSession {
    opened: Arc<Opened>,
    session: SessionId,
    claim: Mutex<Option<Claim>>,
    closed: AtomicBool,
}

impl SharedSession {
    pub(super) fn new(opened: Arc<Opened>, session: SessionId, claim: Claim) -> SharedSession {
        SharedSession {
            opened,
            session,
            claim: Mutex::new(Some(claim)),
            closed: AtomicBool::new(false),
        }
    }

    fn log(&self) -> SessionLog {
        self.opened.journal.session(self.session)
    }

    /// May be called by who holds the commit token, when the last handle is dropped there.
    fn give_up(&self) {
        let claim = lock(&self.claim).take();
        if let Some(claim) = claim {
            claim.give_up(self.opened.journal.lacks_footer(self.session));
        }
    }
}

impl Log for SharedSession {
    fn submit(
        &self,
        payloads: Vec<Vec<u8>>,
        expected: Seq,
        sink: Arc<dyn Sink>,
        full: WhenFull,
        offer: bool,
    ) -> Result<bool, NotCommitted> {
        if self.closed.load(Ordering::Acquire) {
            return Err(NotCommitted::Closed);
        }
        let session = self.session;
        let records = payloads
            .into_iter()
            .map(|payload| OwnedRecord { session, payload });
        let journal = &self.opened.journal;
        journal.enqueue(records, Some(expected), sink, full, offer)
    }

    fn lead(&self) {
        self.opened.journal.lead();
    }

    fn read(&self, from: Seq) -> Entries {
        Box::new(self.log().read(from))
    }

    fn segment_before(&self, before: Seq) -> Result<Option<Entries>, ReadError> {
        let reader = self.log().segment_before(before)?;
        Ok(reader.map(|reader| Box::new(reader) as Entries))
    }

    fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        self.opened.journal.read_at(position)
    }

    fn fault(&self) -> Option<Fault> {
        self.opened.journal.fault()
    }

    fn witness(&self) -> Result<(), AppendError> {
        self.opened.journal.witness()
    }

    /// It has no files of its own.
    fn park(&self) -> Result<(), AppendError> {
        Ok(())
    }

    fn health(&self) -> Option<Health> {
        let mut health = self.opened.journal.health();
        health.closed |= self.closed.load(Ordering::Acquire);
        Some(health)
    }

    fn damage(&self) -> Option<Damage> {
        None
    }

    fn token(&self) -> Option<usize> {
        Some(self.opened.token())
    }

    /// Refused: a fork has further names of whole files, which here are those of other sessions too.
    fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        self.opened.journal.fork_point(at)
    }

    /// Leaves the journal open for the others. What the session has under way is settled first.
    fn close(&self) -> Result<(), CloseError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let journal = &self.opened.journal;
        journal.settle_queued();
        self.give_up();
        journal.forget(self.session);
        match journal.fault() {
            Some(fault) => Err(CloseError::Faulted(fault)),
            None => Ok(()),
        }
    }
}

impl Drop for SharedSession {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A session that is open for reading only.
#[derive(Debug)]
pub(super) struct ViewedSession {
    pub(super) view: JournalView,
    pub(super) log: SessionLog,
}

impl Log for ViewedSession {
    fn submit(
        &self,
        _payloads: Vec<Vec<u8>>,
        _expected: Seq,
        _sink: Arc<dyn Sink>,
        _full: WhenFull,
        _offer: bool,
    ) -> Result<bool, NotCommitted> {
        Err(NotCommitted::Closed)
    }

    fn lead(&self) {}

    fn read(&self, from: Seq) -> Entries {
        Box::new(self.log.read(from))
    }

    fn segment_before(&self, before: Seq) -> Result<Option<Entries>, ReadError> {
        let reader = self.log.segment_before(before)?;
        Ok(reader.map(|reader| Box::new(reader) as Entries))
    }

    fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        self.view.read_at(position)
    }

    fn fault(&self) -> Option<Fault> {
        None
    }

    fn witness(&self) -> Result<(), AppendError> {
        Err(NotCommitted::Closed.into())
    }

    fn park(&self) -> Result<(), AppendError> {
        Err(NotCommitted::Closed.into())
    }

    fn health(&self) -> Option<Health> {
        None
    }

    fn damage(&self) -> Option<Damage> {
        self.view.damage().cloned()
    }

    fn fork_point(&self, at: Option<Seq>) -> Result<ForkPoint, ForkError> {
        self.view.fork_point(at)
    }

    fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }
}
