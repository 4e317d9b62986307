//! The commits under idempotency keys, exact within the horizon. Those of an earlier process are read
//! from the log when the first keyed commit asks for them: without keys nothing is read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::ReplayError;
use super::boundary::SessionCore;
use super::replay::own;
use crate::event::{Key, decode_header};
use crate::journal::{Position, ReadError, Seq};

/// Records of which it is not known yet which keys they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unread {
    pub(super) from: Seq,
    pub(super) until: Seq,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    first: HashMap<Key, Position>,
    order: VecDeque<(Key, Seq)>,
    horizon: usize,
    unread: Option<Unread>,
}

impl Keys {
    pub(super) fn new(horizon: usize) -> Keys {
        Keys {
            horizon,
            ..Keys::default()
        }
    }

    /// Those of a session up to `last`, of which a carry record says from where on its writer's
    /// horizon reaches (zero: there were none). A wider horizon may reach further back.
    pub(super) fn carried(horizon: usize, from: Seq, known: usize, last: Seq) -> Keys {
        let from = match known >= horizon {
            true => from,
            false => Seq::new(1),
        };
        let unread = Unread { from, until: last };
        Keys {
            unread: (from > Seq::ZERO && horizon > 0).then_some(unread),
            ..Keys::new(horizon)
        }
    }

    /// Where the horizon begins, for a carry record: never behind the oldest key in it.
    pub(super) fn from(&self) -> Seq {
        let oldest = self.order.front().map_or(Seq::ZERO, |(_, seq)| *seq);
        self.unread.map_or(oldest, |unread| unread.from)
    }

    pub(super) fn horizon(&self) -> usize {
        self.horizon
    }

    pub(super) fn unread(&self) -> Option<Unread> {
        self.unread
    }

    /// Where the first commit under a key stands.
    pub(super) fn get(&self, key: &Key) -> Option<Position> {
        self.first.get(key).copied()
    }

    pub(super) fn remember(&mut self, key: &Key, seq: Seq, position: Position) {
        if self.first.insert(key.clone(), position).is_none() {
            self.order.push_back((key.clone(), seq));
        }
        while self.order.len() > self.horizon {
            if let Some((oldest, _)) = self.order.pop_front() {
                self.first.remove(&oldest);
            }
        }
        // The horizon is full of newer ones.
        if self.order.len() >= self.horizon {
            self.unread = None;
        }
    }

    /// Takes in what was read, which stands before all that is known.
    fn supply(&mut self, read: Keys, of: Unread) {
        if self.unread != Some(of) {
            return;
        }
        let newer = std::mem::replace(self, read);
        for (key, seq) in &newer.order {
            if let Some(position) = newer.first.get(key) {
                self.remember(key, *seq, *position);
            }
        }
    }
}

impl SessionCore {
    /// Reads the keys of earlier processes, outside all locks, and sends off what waited for them.
    pub(super) fn load_keys(self: &Arc<Self>) {
        let unread = self.state().keys.unread();
        let read = unread.map(|unread| Ok((self.read_keys(unread)?, unread)));
        let read: Result<_, ReplayError> = read.transpose();
        let mut boundary = self.entered();
        boundary.loading_keys = false;
        match read {
            Ok(Some((keys, unread))) => self.state().keys.supply(keys, unread),
            Ok(None) => {}
            Err(error) => boundary.refuse_keyed(&error),
        }
        let launched = self.launch(&mut boundary, true);
        self.leave(boundary, launched, false);
    }

    fn read_keys(&self, unread: Unread) -> Result<Keys, ReplayError> {
        let mut keys = Keys::new(self.state().keys.horizon());
        let mut next = unread.from;
        for entry in self.log.read(unread.from) {
            if next > unread.until {
                break;
            }
            let entry = match entry {
                Ok(entry) => entry,
                // Gone for good, and named.
                Err(ReadError::Gap { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            next = entry.seq.next();
            if entry.seq > unread.until {
                break;
            }
            own(self.id, &entry)?;
            let header = decode_header(&entry.payload, &self.limits);
            let header = header.map_err(|source| ReplayError::Decode {
                seq: entry.seq,
                source,
            })?;
            if let Some(key) = &header.key {
                keys.remember(key, entry.seq, entry.position);
            }
        }
        Ok(keys)
    }
}
