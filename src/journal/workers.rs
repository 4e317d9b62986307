//! The threads behind journals: they serve the queues of those that wait for a group, and do what
//! can be done aside (preparing the next segment, witness slots).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Groups of different journals are written at the same time by at most this many threads.
const COMMITTERS: usize = 4;

/// What can be done aside, of one journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chore {
    /// One step of preparing the next segment (W4).
    Prepare,
    /// A look whether the journal is idle and wants a witness slot (W8).
    Witness,
}

/// What workers serve: a journal.
pub(crate) trait Serve: Send + Sync {
    /// Writes one group of what waits. Whether more waits.
    fn serve(&self) -> bool;
    /// Does a piece of a chore. After what time it wants to go on with it, if at all.
    fn chore(&self, chore: Chore) -> Option<Duration>;
}

/// The threads behind one or many journals, started on first use and ended with the last of them.
/// Cheap to clone; a store gives the same to all its journals.
///
/// With [`Workers::manual`] there are no threads, and time stands still: whoever holds it runs the
/// pieces one by one. Everything a journal does is deterministic then, which is what tests on the
/// simulated disk need.
#[derive(Clone)]
pub struct Workers(Arc<Handle>);

/// Ends the threads with the last user.
struct Handle(Arc<Pool>);

struct Pool {
    kind: Kind,
    state: Mutex<State>,
    /// Something waits for a committer.
    queued: Condvar,
    /// Something was written into the agenda.
    noted: Condvar,
}

/// What is done by threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    All,
    Groups,
    Nothing,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<dyn Serve>>,
    agenda: Vec<Note>,
    committers: usize,
    idle: usize,
    /// Whether the thread for chores runs.
    background: bool,
    stopped: bool,
    /// The time of manual workers: that of the last piece.
    now: Duration,
    notes: u64,
}

struct Note {
    due: Due,
    /// In what order notes that are due at once are taken.
    number: u64,
    chore: Chore,
    whose: Weak<dyn Serve>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    At(Instant),
    /// By the time of manual workers.
    Manual(Duration),
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("threads_for", &self.0.0.kind)
            .finish_non_exhaustive()
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers::threads()
    }
}

impl Workers {
    /// Threads, started on first use: up to four that write groups, and one for what is done aside.
    pub fn threads() -> Workers {
        Workers::new(Kind::All)
    }

    /// Threads that write groups; what is done aside is run by [`Workers::run_one`], or when it
    /// cannot wait any longer.
    pub fn groups_only() -> Workers {
        Workers::new(Kind::Groups)
    }

    /// No threads: all pieces are run by [`Workers::run_one`], or by those who wait for them.
    pub fn manual() -> Workers {
        Workers::new(Kind::Nothing)
    }

    fn new(kind: Kind) -> Workers {
        Workers(Arc::new(Handle(Arc::new(Pool {
            kind,
            state: Mutex::default(),
            queued: Condvar::new(),
            noted: Condvar::new(),
        }))))
    }

    /// Runs the next piece that is not done by threads, as if its time had come: a group of what is
    /// queued, else the chore that is due first. False if nothing waits.
    pub fn run_one(&self) -> bool {
        self.run_queued() || (self.0.0.kind != Kind::All && self.run_noted())
    }

    /// Whether there are no threads for groups: who waits for one has to run it.
    pub(crate) fn is_manual(&self) -> bool {
        self.0.0.kind == Kind::Nothing
    }

    /// Whether what is done aside depends on the clock.
    pub(crate) fn have_time(&self) -> bool {
        self.0.0.kind == Kind::All
    }

    /// Serves what is queued, unless there are threads for that.
    pub(crate) fn run_queued(&self) -> bool {
        self.is_manual() && self.0.0.serve_next()
    }

    fn run_noted(&self) -> bool {
        let pool = &self.0.0;
        let mut state = pool.lock();
        let Some(note) = state.take_first() else {
            return false;
        };
        if let Due::Manual(due) = note.due {
            state.now = state.now.max(due);
        }
        drop(state);
        pool.run(note);
        true
    }

    /// Has a journal's queue served.
    pub(crate) fn serve(&self, whose: Arc<dyn Serve>) {
        let pool = &self.0.0;
        let mut state = pool.lock();
        state.queue.push_back(whose);
        if self.is_manual() {
            return;
        }
        if state.idle == 0 && state.committers < COMMITTERS {
            let runs = pool.clone();
            match start("stepwell-commit", move || runs.commit_groups()) {
                Ok(()) => state.committers += 1,
                Err(error) if state.committers == 0 => {
                    tracing::error!(%error, "no thread for commits could be started; the caller does it");
                    drop(state);
                    while pool.serve_next() {}
                    return;
                }
                Err(error) => tracing::warn!(%error, "one thread less for commits"),
            }
        }
        drop(state);
        pool.queued.notify_one();
    }

    /// Notes a chore for later.
    pub(crate) fn later(&self, whose: Weak<dyn Serve>, chore: Chore, delay: Duration) {
        let pool = &self.0.0;
        pool.note(whose, chore, delay);
        let mut state = pool.lock();
        if pool.kind == Kind::All && !state.background {
            let runs = pool.clone();
            match start("stepwell-aside", move || runs.do_chores()) {
                Ok(()) => state.background = true,
                // Nothing depends on it: segments are prepared when they are needed then.
                Err(error) => tracing::warn!(%error, "no thread for work aside could be started"),
            }
        }
        drop(state);
        pool.noted.notify_one();
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    builder.spawn(run).map(drop)
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.queued.notify_all();
        self.0.noted.notify_all();
    }
}

impl State {
    fn take_first(&mut self) -> Option<Note> {
        let first = self
            .agenda
            .iter()
            .enumerate()
            .min_by_key(|(_, note)| (note.due, note.number))
            .map(|(index, _)| index)?;
        Some(self.agenda.swap_remove(first))
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_next(&self) -> bool {
        let next = self.lock().queue.pop_front();
        let Some(next) = next else {
            return false;
        };
        let again = next.serve().then_some(next);
        self.lock().queue.extend(again);
        true
    }

    fn note(&self, whose: Weak<dyn Serve>, chore: Chore, delay: Duration) {
        let mut state = self.lock();
        state.notes += 1;
        let due = match self.kind {
            Kind::All => Due::At(Instant::now() + delay),
            // How long a step of preparing took says nothing here: the order would depend on it.
            Kind::Groups | Kind::Nothing if chore == Chore::Prepare => Due::Manual(state.now),
            Kind::Groups | Kind::Nothing => Due::Manual(state.now + delay),
        };
        let number = state.notes;
        state.agenda.push(Note {
            due,
            number,
            chore,
            whose,
        });
    }

    fn run(&self, note: Note) {
        if let Some(whose) = note.whose.upgrade()
            && let Some(delay) = whose.chore(note.chore)
        {
            self.note(note.whose, note.chore, delay);
        }
    }

    /// A thread that writes groups. Journals take turns, a group each.
    fn commit_groups(&self) {
        let mut state = self.lock();
        loop {
            let Some(next) = state.queue.pop_front() else {
                if state.stopped {
                    return;
                }
                state.idle += 1;
                state = self
                    .queued
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let mut more = next.serve();
            while more && self.lock().queue.is_empty() {
                more = next.serve();
            }
            // Dropped without the lock: it can be the last of a journal, and that ends the workers.
            let again = more.then_some(next);
            state = self.lock();
            state.queue.extend(again);
        }
    }

    /// The thread for chores.
    fn do_chores(&self) {
        let mut state = self.lock();
        while !state.stopped {
            let first = state.agenda.iter().map(|note| note.due).min();
            let now = Instant::now();
            state = match first {
                None => self
                    .noted
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(Due::At(due)) if due > now => {
                    self.noted
                        .wait_timeout(state, due - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                Some(_) => {
                    let note = state.take_first();
                    drop(state);
                    if let Some(note) = note {
                        self.run(note);
                    }
                    self.lock()
                }
            };
        }
    }
}
