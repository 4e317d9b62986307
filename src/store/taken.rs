//! Which commits have to wait for which: those of one loop, those under one key, and those of the session
//! itself, one after the other.

use std::collections::HashSet;

use super::flight::{Encoded, Submitted};
use crate::event::{Event, Key};
use crate::identity::LoopId;

/// The loops and keys of commits that others may have to wait for.
#[derive(Default)]
pub(super) struct Taken {
    loops: HashSet<LoopId>,
    keys: HashSet<Key>,
}

impl Taken {
    /// Whether a commit has to wait. One of the session itself waits for all, and all for it; one that
    /// names its place waits for all, so that the place is known.
    pub(super) fn conflicts(&self, batch: &Submitted) -> bool {
        let session = LoopId::nil();
        if self.loops.is_empty() {
            return false;
        }
        let waits = |loop_id: &LoopId| *loop_id == session || self.loops.contains(loop_id);
        self.loops.contains(&session)
            || match batch {
                Submitted::Made(loop_id, ..) => waits(loop_id),
                Submitted::Behind(..) => true,
                Submitted::Encoded(batch) => batch.iter().any(|encoded| {
                    let key = encoded.key.as_ref();
                    waits(&encoded.event.header.coordinates.loop_id)
                        || key.is_some_and(|key| self.keys.contains(key))
                }),
            }
    }

    pub(super) fn take(&mut self, event: &Event, key: Option<&Key>) {
        self.loops.insert(event.header.coordinates.loop_id);
        self.keys.extend(key.cloned());
    }

    pub(super) fn take_waiting(&mut self, batch: &Submitted) {
        match batch {
            Submitted::Made(loop_id, ..) => {
                self.loops.insert(*loop_id);
            }
            Submitted::Encoded(batch) => {
                for encoded in batch {
                    self.take(&encoded.event, encoded.key.as_ref());
                }
            }
            Submitted::Behind(..) => {
                self.loops.insert(LoopId::nil());
            }
        }
    }

    /// One that names its place holds the session alone until it is on its way.
    pub(super) fn hold(&mut self, records: &[Encoded], alone: bool) {
        for encoded in records {
            self.take(&encoded.event, encoded.key.as_ref());
        }
        if alone {
            self.loops.insert(LoopId::nil());
        }
    }

    pub(super) fn let_go(&mut self, records: &[Encoded], alone: bool) {
        for encoded in records {
            self.give_back(&encoded.event, encoded.key.as_ref());
        }
        if alone {
            self.loops.remove(&LoopId::nil());
        }
    }

    pub(super) fn give_back(&mut self, event: &Event, key: Option<&Key>) {
        self.loops.remove(&event.header.coordinates.loop_id);
        if let Some(key) = key {
            self.keys.remove(key);
        }
    }
}
