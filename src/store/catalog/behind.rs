//! The index behind the store: a bounded queue before the thread that owns it, and the sessions that it
//! has yet to take in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::thread::run;
use super::{Entries, IndexHarm, IndexHealth, IndexOptions, Known, Logs, Opener};
use crate::identity::SessionId;
use crate::store::io::{Promise, Stalled, Ticket};

/// Jobs that wait at most; more are not taken.
const QUEUE: usize = 64;

/// The index of a store. Closing it (by dropping) waits for as long as the options allow.
pub(in crate::store) struct Catalog {
    shared: Arc<Shared>,
    start: Mutex<Option<Start>>,
    patience: Duration,
    /// There is an index already: it hears of the first commit, and need not wait for a listing.
    eager: bool,
    /// Fulfilled when the thread has closed the index.
    closed: Mutex<Option<Ticket<()>>>,
}

struct Start {
    opener: Opener,
    logs: Logs,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Catalog").field(&self.health()).finish()
    }
}

/// What the thread, the store and its sessions share. Its lock is held for moments only.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Entries that are queued and not put yet.
    pub(super) queued: AtomicUsize,
    /// Goes up with all that the thread gets done.
    pub(super) done: AtomicUsize,
    /// Whether there is a thread that wants to hear of commits.
    listens: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) health: IndexHealth,
    jobs: Option<SyncSender<Job>>,
    /// Sessions that were written to, each with its flag: whether it was again since the last look.
    dirty: BTreeMap<SessionId, Arc<AtomicBool>>,
}

pub(super) enum Job {
    /// There is a dirty session.
    Wake,
    Scan(Promise<Entries>),
    /// `whole`: a listing of everything, so nothing is missing behind it.
    Put {
        entries: Entries,
        whole: bool,
    },
    Remove(Vec<SessionId>),
}

/// By which a session says that it was written to.
pub(in crate::store) struct Mark {
    id: SessionId,
    shared: Arc<Shared>,
    flag: Arc<AtomicBool>,
}

impl Mark {
    /// Costs a load and a swap, unless nothing was committed for a while. Never waits for the index.
    pub(in crate::store) fn touch(&self) {
        if !self.shared.listens.load(Ordering::Acquire) {
            return;
        }
        if !self.flag.swap(true, Ordering::AcqRel) && !self.shared.dirty(self.id, &self.flag) {
            self.flag.store(false, Ordering::Release);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Catalog {
    /// None at all.
    pub(in crate::store) fn off() -> Catalog {
        Catalog {
            shared: Arc::default(),
            start: Mutex::new(None),
            patience: Duration::ZERO,
            eager: false,
            closed: Mutex::new(None),
        }
    }

    /// One that is opened when it is first needed: by the first listing, or by the first commit if
    /// there is an index already (`eager`).
    pub(super) fn new(opener: Opener, logs: Logs, options: IndexOptions, eager: bool) -> Catalog {
        // A panic of the index would end the process there.
        if !options.on || cfg!(panic = "abort") {
            return Catalog::off();
        }
        let mut catalog = Catalog::off();
        catalog.patience = options.patience;
        catalog.eager = eager;
        lock(&catalog.shared.state).health = IndexHealth::Absent;
        *lock(&catalog.start) = Some(Start { opener, logs });
        catalog
    }

    pub(in crate::store) fn health(&self) -> IndexHealth {
        let state = lock(&self.shared.state);
        let behind = state.dirty.len() + self.shared.queued.load(Ordering::Acquire);
        match &state.health {
            IndexHealth::Ready { .. } => IndexHealth::Ready { behind },
            IndexHealth::Rebuilding { .. } => IndexHealth::Rebuilding { behind },
            other => other.clone(),
        }
    }

    /// Starts the thread, once.
    pub(in crate::store) fn start(&self) {
        let Some(Start { opener, logs }) = lock(&self.start).take() else {
            return;
        };
        let (sender, receiver) = sync_channel(QUEUE);
        let (promise, closed) = Promise::new();
        let shared = self.shared.clone();
        {
            let mut state = lock(&shared.state);
            state.health = IndexHealth::Opening;
            state.jobs = Some(sender);
            shared.listens.store(true, Ordering::Release);
        }
        let started = std::thread::Builder::new()
            .name("stepwell-index".into())
            .spawn(move || {
                run(&shared, &receiver, opener, &logs);
                promise.fulfil(());
            });
        match started {
            Ok(_) => *lock(&self.closed) = Some(closed),
            Err(_) => self.shared.ends(IndexHealth::Broken {
                why: IndexHarm::NoThread,
            }),
        }
    }

    /// By which a session that is open for writing says that it was written to.
    pub(in crate::store) fn mark(&self, id: SessionId) -> Mark {
        if self.eager {
            self.start();
        }
        let mark = Mark {
            id,
            shared: self.shared.clone(),
            flag: Arc::default(),
        };
        mark.touch();
        mark
    }

    /// A session is gone; whether the index hears of it.
    pub(in crate::store) fn remove(&self, id: SessionId) -> bool {
        if self.eager {
            self.start();
        }
        lock(&self.shared.state).dirty.remove(&id);
        self.shared.send(Job::Remove(vec![id]))
    }

    /// What the index knows, if it says so in time.
    pub(in crate::store) fn known(&self) -> Known {
        self.start();
        let (promise, ticket) = Promise::new();
        if !self.shared.send(Job::Scan(promise)) {
            return Known::default();
        }
        match self.wait(ticket) {
            Some(entries) => Known::new(entries),
            None => Known::default(),
        }
    }

    /// What a listing of everything found out.
    pub(in crate::store) fn learn(&self, known: Known) {
        if !known.wanted {
            return;
        }
        let orphans: Vec<SessionId> = known.entries.into_keys().collect();
        if !orphans.is_empty() {
            let _ = self.shared.send(Job::Remove(orphans));
        }
        let entries = known.fresh;
        let queued = entries.len();
        self.shared.queued.fetch_add(queued, Ordering::AcqRel);
        let whole = true;
        if !self.shared.send(Job::Put { entries, whole }) {
            self.shared.queued.fetch_sub(queued, Ordering::AcqRel);
        }
    }

    /// Waits for the thread. If it got nothing done in all that time, it is left alone from now on.
    fn wait<T>(&self, ticket: Ticket<T>) -> Option<T> {
        let before = self.shared.done.load(Ordering::Acquire);
        match ticket.wait_for(self.patience) {
            Ok(done) => done.ok(),
            Err(Stalled { .. }) => {
                if self.shared.done.load(Ordering::Acquire) == before {
                    tracing::warn!("the index does not answer; listings read the logs instead");
                    self.shared.ends(IndexHealth::TooSlow);
                }
                None
            }
        }
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        // The thread does what is queued, closes the index and ends.
        lock(&self.shared.state).jobs = None;
        let closed = lock(&self.closed).take();
        let lost = matches!(self.health(), IndexHealth::TooSlow);
        if let Some(closed) = closed.filter(|_| !lost) {
            self.wait(closed);
        }
    }
}

impl Shared {
    /// Never waits; whether it was taken.
    fn send(&self, job: Job) -> bool {
        let state = lock(&self.state);
        let sent = state.jobs.as_ref().map(|jobs| jobs.try_send(job));
        matches!(sent, Some(Ok(())))
    }

    /// A session was written to; whether there is an index to tell.
    fn dirty(&self, id: SessionId, flag: &Arc<AtomicBool>) -> bool {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some(jobs) = &state.jobs else {
            return false;
        };
        state.dirty.insert(id, flag.clone());
        // A full queue has jobs in it, behind each of which the thread looks.
        !matches!(jobs.try_send(Job::Wake), Err(TrySendError::Disconnected(_)))
    }

    /// The index is used no more.
    pub(super) fn ends(&self, health: IndexHealth) {
        let mut state = lock(&self.state);
        if !matches!(state.health, IndexHealth::TooSlow) {
            state.health = health;
        }
        state.jobs = None;
        state.dirty.clear();
        self.listens.store(false, Ordering::Release);
    }

    pub(super) fn is_dirty(&self) -> bool {
        !lock(&self.state).dirty.is_empty()
    }

    /// The sessions that were not written to since the last look, or all.
    pub(super) fn due(&self, all: bool) -> Vec<SessionId> {
        let mut due = Vec::new();
        let mut state = lock(&self.state);
        state.dirty.retain(|id, flag| {
            let busy = flag.swap(false, Ordering::AcqRel) && !all;
            if !busy {
                due.push(*id);
            }
            busy
        });
        // Behind as before, until they are taken in.
        self.queued.fetch_add(due.len(), Ordering::AcqRel);
        due
    }

    pub(super) fn is_filled(&self) {
        let mut state = lock(&self.state);
        if matches!(state.health, IndexHealth::Rebuilding { .. }) {
            state.health = IndexHealth::Ready { behind: 0 };
        }
    }
}
