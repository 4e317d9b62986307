//! Calls that do not return: a disk that is slow, or gone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Op, Shared, SimVfs};

type Filter = Box<dyn Fn(&Op) -> bool + Send + Sync>;

/// The calls that are held up on one disk.
#[derive(Default)]
pub(super) struct Stalls {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    next: u64,
    held: Vec<Held>,
}

struct Held {
    id: u64,
    filter: Filter,
    waiting: usize,
}

impl Stalls {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as the call is held up and its process lives.
    pub(super) fn pass(&self, op: &Op, lives: impl Fn() -> bool) {
        let mut table = self.table();
        let mut behind = None;
        loop {
            let held = table.held.iter_mut().find(|held| (held.filter)(op));
            let id = held.map(|held| held.id);
            if behind != id {
                table.count(behind, |waiting| waiting.saturating_sub(1));
                table.count(id, |waiting| waiting + 1);
                behind = id;
                self.changed.notify_all();
            }
            if id.is_none() {
                return;
            }
            // IMPORTANT: the disk is asked with the table held: whoever ends a process wakes us
            // through the table afterwards, so no end is missed.
            if !lives() {
                table.count(behind, |waiting| waiting.saturating_sub(1));
                return;
            }
            table = self
                .changed
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the calls of ended processes notice it.
    pub(super) fn wake(&self) {
        drop(self.table());
        self.changed.notify_all();
    }
}

impl Table {
    fn count(&mut self, id: Option<u64>, change: impl Fn(usize) -> usize) {
        if let Some(held) = self.held.iter_mut().find(|held| Some(held.id) == id) {
            held.waiting = change(held.waiting);
        }
    }
}

/// Holds up calls, until it is dropped. Comes from [`SimVfs::stall`].
#[must_use = "dropping it lets the calls go on"]
pub struct Stall {
    shared: Arc<Shared>,
    id: u64,
}

impl SimVfs {
    /// Holds up all calls that `filter` picks, by whatever process, before anything of them
    /// happens: a slow sync, or, if the value is kept, one that never returns. A call whose process
    /// is killed or loses its power meanwhile gives [`Crashed`](super::Crashed). `filter` must not
    /// use this disk.
    pub fn stall(&self, filter: impl Fn(&Op) -> bool + Send + Sync + 'static) -> Stall {
        let mut table = self.shared.stalls.table();
        table.next += 1;
        let id = table.next;
        table.held.push(Held {
            id,
            filter: Box::new(filter),
            waiting: 0,
        });
        Stall {
            shared: self.shared.clone(),
            id,
        }
    }
}

impl Stall {
    /// The number of calls that it holds up now.
    pub fn waiting(&self) -> usize {
        let table = self.shared.stalls.table();
        let mine = table.held.iter().find(|held| held.id == self.id);
        mine.map_or(0, |held| held.waiting)
    }

    /// Waits until it holds up at least so many calls, at most for `limit`; whether it does.
    pub fn wait_for(&self, calls: usize, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let table = self.shared.stalls.table();
            let mine = table.held.iter().find(|held| held.id == self.id);
            if mine.is_some_and(|held| held.waiting >= calls) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.shared.stalls.changed.wait_timeout(table, left);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.shared
            .stalls
            .table()
            .held
            .retain(|held| held.id != self.id);
        self.shared.stalls.changed.notify_all();
    }
}

impl std::fmt::Debug for Stall {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Stall")
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
