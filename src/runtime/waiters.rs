//! Who waits for the answer of which gate. The hub of a session tells them of what is committed, so
//! that whatever resolves a gate reaches the one who waits for it, once.
//!
//! It tells under the commit boundary's lock: a waker of a host stands behind a relay
//! ([`relayed`](crate::wake::relayed)), so that it runs behind that lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::event::GateResolved;
use crate::identity::GateId;
use crate::store::Committed;

type Wanted = HashMap<GateId, oneshot::Sender<GateResolved>>;

#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Wanted>);

/// The place of one who waits; given up when it is dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    waiters: Arc<Waiters>,
    gate: GateId,
    resolved: oneshot::Receiver<GateResolved>,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a gate that is not open yet: the blocker stands before the question is seen.
    pub(super) fn install(self: &Arc<Self>, gate: GateId) -> Waiting {
        let (sender, resolved) = oneshot::channel();
        self.lock().insert(gate, sender);
        Waiting {
            waiters: self.clone(),
            gate,
            resolved,
        }
    }

    /// These events are durable.
    pub(super) fn committed(&self, batch: &[Committed]) {
        let resolved = batch
            .iter()
            .filter_map(|committed| committed.event().body_as::<GateResolved>());
        for resolved in resolved {
            let waiting = self.lock().remove(&resolved.gate_id);
            if let Some(waiting) = waiting {
                let _ = waiting.send(resolved.clone());
            }
        }
    }

    /// Nothing will be committed any more.
    pub(super) fn end(&self) {
        let waiting = std::mem::take(&mut *self.lock());
        drop(waiting);
    }
}

#[cfg(test)]
impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

impl Waiting {
    /// How the gate was resolved; `None`: it never will be in this process.
    pub(super) async fn resolved(&mut self) -> Option<GateResolved> {
        (&mut self.resolved).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let given_up = self.waiters.lock().remove(&self.gate);
        drop(given_up);
    }
}
