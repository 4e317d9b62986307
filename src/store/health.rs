//! How the sessions of a store are, at a glance.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::boundary::SessionCore;
use super::session::Session;
use super::{IndexHealth, Layout, Mode, Store};
use crate::identity::SessionId;
use crate::journal::{Fault, NotCommitted, ReadError};
use crate::sync::Mutex;

/// How the sessions are that this store has open for writing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StoreHealth {
    /// How many are open.
    pub open: usize,
    /// Those that take no commits any more, and why: [`Store::reopen`] brings them back.
    pub faulted: Vec<(SessionId, Fault)>,
    /// Those whose next segment could not be prepared: the disk is getting full, or handles are
    /// running out. They go on until the active segment is full.
    pub lacking: Vec<(SessionId, NotCommitted)>,
    /// The one for which the disk has owed an answer the longest, and for how long.
    pub waiting: Option<(SessionId, Duration)>,
    /// Those whose log was found damaged by a reader, and where. They go on; the damage is reported
    /// to each that reads it.
    pub damaged: Vec<(SessionId, ReadError)>,
    /// How many batches wait for a group, in all.
    pub queued: usize,
    /// How the index is that makes listings fast.
    pub index: IndexHealth,
}

/// The sessions that are open for writing.
#[derive(Debug, Default)]
pub(super) struct OpenSessions(Mutex<Vec<Weak<SessionCore>>>);

impl OpenSessions {
    /// Takes a session in. Those that are gone are forgotten before the list would grow.
    pub(super) fn add(&self, session: &Session) {
        if session.mode() == Mode::Write {
            let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if open.len() == open.capacity() {
                open.retain(|core| core.strong_count() > 0);
            }
            open.push(Arc::downgrade(&session.core));
        }
    }

    /// One that is open for writing here, and not closed.
    pub(super) fn find(&self, id: SessionId) -> Option<Session> {
        let mut open = self.list().into_iter();
        let closed = |session: &Session| session.health().is_none_or(|health| health.closed);
        open.find(|session| session.id() == id && !closed(session))
    }

    pub(super) fn list(&self) -> Vec<Session> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = open.iter().filter_map(Weak::upgrade);
        cores.map(|core| Session { core }).collect()
    }
}

impl Store {
    /// How the sessions are that this store and its clones have open for writing. Never waits for the
    /// disk, so it can be asked while commits do not return.
    pub fn health(&self) -> StoreHealth {
        let mut all = StoreHealth {
            index: self.inner.catalog.health(),
            ..StoreHealth::default()
        };
        for session in self.inner.open.list() {
            let (id, Some(health)) = (session.id(), session.health()) else {
                continue;
            };
            if health.closed {
                continue;
            }
            all.open += 1;
            // In a journal that all share, what waits is the same for each.
            all.queued = match self.inner.layout {
                Layout::PerSession => all.queued + health.queued,
                Layout::Shared => health.queued,
            };
            all.faulted.extend(health.fault.map(|fault| (id, fault)));
            all.lacking
                .extend(health.lacking.map(|reason| (id, reason)));
            all.damaged.extend(health.damage.map(|error| (id, error)));
            let longest = all.waiting.map_or(Duration::ZERO, |(_, longest)| longest);
            if let Some(waiting) = health.waiting.filter(|waiting| *waiting >= longest) {
                all.waiting = Some((id, waiting));
            }
        }
        all
    }
}
