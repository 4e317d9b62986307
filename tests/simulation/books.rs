//! The test's own books: the truth that every answer of the library is held against.
//!
//! They are kept from what the callers were told, never from what recovery computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwell::identity::SessionId;
use stepwell::journal::{Entry, FrameKind, Receipt};

/// A frame that was handed to a journal.
#[derive(Debug, Clone)]
pub struct Item {
    pub what: What,
    /// Where it has to stand if it is kept.
    pub lsn: u64,
    /// The true watermark of its group: the last Lsn that was durable when it was handed over.
    pub watermark: u64,
    /// The opening that wrote it.
    pub epoch: u64,
}

#[derive(Debug, Clone)]
pub enum What {
    /// The fence of an epoch.
    Fence(u64),
    Record {
        session: SessionId,
        seq: u64,
        payload: Arc<[u8]>,
    },
}

/// What one caller wants atomic.
#[derive(Debug, Clone)]
pub struct Batch {
    pub id: u64,
    pub items: Vec<Item>,
}

#[derive(Debug, Clone, Default)]
pub struct Books {
    /// Acknowledged or served, in order. It never changes, it only grows.
    pub settled: Vec<Item>,
    /// In flight or without an outcome, in the order in which they were handed over.
    pub unknown: Vec<Batch>,
    /// Frames of unknown batches that were not kept, or that overtaken processes handed over. Never
    /// seen again, except marked as not proven in what is left of a damaged log.
    pub dead: Vec<Item>,
    /// The epoch of the last opening that served: who has a lower one is overtaken.
    pub rank: u64,
    /// The highest claim "durable up to here" that must be on the medium. What an opening keeps of
    /// unknown batches adds none: they may have come after it looked for claims.
    pub floor: u64,
    /// By epoch: the floor when it was opened, which the slots of its fresh file must carry.
    pub openings: BTreeMap<u64, u64>,
    /// The last Lsn when slots were written and synced last.
    pub witnessed: u64,
    next_id: u64,
}

/// What came of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged,
    Unknown,
    NotCommitted,
}

impl Books {
    /// The last Lsn that was acknowledged or served: the true watermark.
    pub fn last(&self) -> u64 {
        self.settled.last().map_or(0, |item| item.lsn)
    }

    pub fn last_seq(&self, session: SessionId) -> u64 {
        let pending = self
            .unknown
            .iter()
            .rev()
            .flat_map(|batch| batch.items.iter().rev());
        pending
            .chain(self.settled.iter().rev())
            .find_map(|item| match &item.what {
                What::Record {
                    session: owner,
                    seq,
                    ..
                } if *owner == session => Some(*seq),
                _ => None,
            })
            .unwrap_or(0)
    }

    /// Enters a batch that is about to be handed to the journal of the opening `epoch`. A process
    /// that is overtaken gets no place: nothing of it may ever be seen.
    pub fn hand_over(
        &mut self,
        epoch: u64,
        fence: bool,
        records: &[(SessionId, Arc<[u8]>)],
    ) -> Batch {
        self.next_id += 1;
        let mut lsn = self.last();
        for batch in &self.unknown {
            lsn += batch.items.len() as u64;
        }
        let mut seqs: BTreeMap<SessionId, u64> = BTreeMap::new();
        let watermark = self.last();
        let mut items = Vec::new();
        let mut enter = |what| {
            lsn += 1;
            items.push(Item {
                what,
                lsn,
                watermark,
                epoch,
            });
        };
        if fence {
            enter(What::Fence(epoch));
        }
        for (session, payload) in records {
            let seq = seqs
                .entry(*session)
                .or_insert_with(|| self.last_seq(*session));
            *seq += 1;
            enter(What::Record {
                session: *session,
                seq: *seq,
                payload: payload.clone(),
            });
        }
        let batch = Batch {
            id: self.next_id,
            items,
        };
        if epoch >= self.rank {
            self.unknown.push(batch.clone());
        } else {
            self.dead.extend(batch.items.clone());
        }
        batch
    }

    /// Enters what came of a batch.
    pub fn outcome(&mut self, epoch: u64, batch: &Batch, outcome: Outcome) -> Result<(), String> {
        let place = self.unknown.iter().position(|open| open.id == batch.id);
        let settled = batch.items.first().is_some_and(|item| {
            let found = self.settled.get(item.lsn as usize - 1);
            found.is_some_and(|other| other.epoch == epoch && same(&other.what, &item.what))
        });
        match outcome {
            Outcome::Unknown => {}
            Outcome::NotCommitted => {
                if let Some(place) = place {
                    self.unknown.remove(place);
                } else if settled {
                    return Err(format!("batch {} was kept and is refused now", batch.id));
                }
            }
            Outcome::Acknowledged => {
                if epoch < self.rank {
                    return Err(format!(
                        "epoch {epoch} acknowledged although epoch {} serves",
                        self.rank
                    ));
                }
                match place {
                    Some(0) => {
                        let batch = self.unknown.remove(0);
                        self.floor = self.floor.max(batch.items[0].watermark);
                        self.settled.extend(batch.items);
                    }
                    _ if settled => {}
                    _ => return Err(format!("batch {} was acknowledged out of turn", batch.id)),
                }
            }
        }
        Ok(())
    }

    /// Whether the receipt names the places that the batch must have.
    pub fn check_receipt(&self, batch: &Batch, receipt: &Receipt) -> Result<(), String> {
        let first = batch.items.first().map_or(0, |item| item.lsn);
        if receipt.first.get() != first {
            return Err(format!(
                "the receipt begins at {}, not at {first}",
                receipt.first
            ));
        }
        let records = batch.items.iter().filter_map(|item| match item.what {
            What::Record { seq, .. } => Some((item.lsn, seq)),
            What::Fence(_) => None,
        });
        let placed = receipt.records.iter();
        let placed: Vec<_> = placed.map(|at| (at.lsn.get(), at.seq.get())).collect();
        let expected: Vec<_> = records.collect();
        if placed != expected {
            return Err(format!("the receipt names {placed:?}, not {expected:?}"));
        }
        Ok(())
    }

    /// The oracle: all that is settled, in order; then a prefix of the unknown batches, each whole;
    /// nothing else. Gives how many of those are there.
    pub fn judge(&self, entries: &[Entry]) -> Result<usize, String> {
        let mut entries = entries.iter();
        for item in &self.settled {
            match entries.next() {
                Some(entry) => matches(entry, item)?,
                None => {
                    return Err(format!(
                        "lost: Lsn {} of {} acknowledged or served ones",
                        item.lsn,
                        self.last()
                    ));
                }
            }
        }
        let mut kept = 0;
        let mut next = entries.next();
        for batch in &self.unknown {
            let Some(_) = next else { break };
            for item in &batch.items {
                match next {
                    Some(entry) => matches(entry, item)
                        .map_err(|error| format!("of unknown batch {}: {error}", batch.id))?,
                    None => return Err(format!("half of unknown batch {} is kept", batch.id)),
                }
                next = entries.next();
            }
            kept += 1;
        }
        match next {
            Some(entry) => Err(format!(
                "Lsn {} ({:?}) was never handed over, or is dead",
                entry.lsn, entry.kind
            )),
            None => Ok(kept),
        }
    }

    /// An opening, or a look at a medium at rest, has decided: what it kept is settled, the rest of
    /// what was unknown is dead.
    pub fn decide(&mut self, entries: &[Entry]) -> Result<usize, String> {
        let kept = self.judge(entries)?;
        for (number, batch) in std::mem::take(&mut self.unknown).into_iter().enumerate() {
            match number < kept {
                true => self.settled.extend(batch.items),
                false => self.dead.extend(batch.items),
            }
        }
        Ok(kept)
    }

    /// Slots that say "durable up to here" are on the medium.
    pub fn witness(&mut self, lsn: u64) {
        self.floor = self.floor.max(lsn);
        self.witnessed = self.witnessed.max(lsn);
    }

    /// The true watermark against the one that the library computed: it never says more than what
    /// was acknowledged or served, and never less than the claims that must be there.
    pub fn judge_watermark(&self, watermark: u64) -> Result<(), String> {
        if watermark > self.last() {
            return Err(format!(
                "the watermark {watermark} is above the true one, {}",
                self.last()
            ));
        }
        if watermark < self.floor {
            return Err(format!(
                "the watermark {watermark} is below the claims that must be there, {}",
                self.floor
            ));
        }
        Ok(())
    }
}

pub fn same(one: &What, other: &What) -> bool {
    match (one, other) {
        (What::Fence(one), What::Fence(other)) => one == other,
        (What::Record { payload: one, .. }, What::Record { payload: other, .. }) => one == other,
        _ => false,
    }
}

/// Whether an entry is the item, in its place.
pub fn matches(entry: &Entry, item: &Item) -> Result<(), String> {
    let right = entry.lsn.get() == item.lsn
        && match &item.what {
            What::Fence(epoch) => {
                entry.kind == FrameKind::Fence
                    && entry.payload.get(..8) == Some(&epoch.to_le_bytes()[..])
            }
            What::Record {
                session,
                seq,
                payload,
            } => {
                entry.kind == FrameKind::Record
                    && entry.session == *session
                    && entry.seq.get() == *seq
                    && entry.payload[..] == payload[..]
            }
        };
    if right {
        return Ok(());
    }
    Err(format!(
        "at Lsn {} stands another record than the one with Lsn {}: {:?} of {} bytes, Seq {}, instead of {}",
        entry.lsn,
        item.lsn,
        entry.kind,
        entry.payload.len(),
        entry.seq,
        match &item.what {
            What::Fence(epoch) => format!("the fence of epoch {epoch}"),
            What::Record { seq, payload, .. } =>
                format!("a record of {} bytes, Seq {seq}", payload.len()),
        }
    ))
}
