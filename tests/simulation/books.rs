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
    /// Its batch.
    pub id: u64,
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
    /// The last Lsn when a slot was written and synced last.
    pub witnessed: u64,
    /// Whether a batch may be refused although a later one is written: the disk is full, or a fault
    /// is planned. Only then those kept need not be a prefix of what is in flight.
    pub gaps: bool,
    /// Whether the owner is being closed.
    pub closing: bool,
    next_id: u64,
}

/// What came of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged,
    Unknown,
    NotCommitted,
}

/// What a frame says, wherever it stands.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    epoch: u64,
    record: Option<(SessionId, Arc<[u8]>)>,
}

impl Item {
    fn said(&self) -> Said {
        Said {
            epoch: self.epoch,
            record: match &self.what {
                What::Fence(_) => None,
                What::Record {
                    session, payload, ..
                } => Some((*session, payload.clone())),
            },
        }
    }

    /// Whether an entry is this item, wherever it stands: a process that is overtaken goes on from
    /// what it knows, which the books do not.
    pub fn is_in(&self, entry: &Entry) -> bool {
        let mut placed = self.clone();
        placed.lsn = entry.lsn.get();
        if let What::Record { seq, .. } = &mut placed.what {
            *seq = entry.seq.get();
        }
        matches(entry, &placed).is_ok()
    }
}

impl Books {
    /// The last Lsn that was acknowledged or served: the true watermark.
    pub fn last(&self) -> u64 {
        self.settled.last().map_or(0, |item| item.lsn)
    }

    /// The last Lsn with all that is in flight.
    pub fn flying(&self) -> u64 {
        let frames = self.unknown.iter().map(|batch| batch.items.len());
        self.last() + frames.sum::<usize>() as u64
    }

    /// The last Seq of a session, with all that is in flight.
    pub fn last_seq(&self, session: SessionId) -> u64 {
        let flying = self.unknown.iter().rev();
        let flying = flying.flat_map(|batch| batch.items.iter().rev());
        last_seq(flying, session).unwrap_or_else(|| self.settled_seq(session))
    }

    fn settled_seq(&self, session: SessionId) -> u64 {
        last_seq(self.settled.iter().rev(), session).unwrap_or(0)
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
        let id = self.next_id;
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
                id,
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
        let batch = Batch { id, items };
        if epoch >= self.rank {
            self.unknown.push(batch.clone());
        } else {
            self.dead.extend(batch.items.clone());
        }
        batch
    }

    /// Enters what came of a batch.
    pub fn outcome(
        &mut self,
        epoch: u64,
        batch: &Batch,
        outcome: Outcome,
        receipt: Option<&Receipt>,
        queued: bool,
    ) -> Result<(), String> {
        let place = self.unknown.iter().position(|open| open.id == batch.id);
        let settled = self.settled.iter().rev().any(|item| item.id == batch.id);
        match outcome {
            Outcome::Unknown => {}
            Outcome::NotCommitted => {
                if settled && !self.another_was_kept(batch.id) {
                    return Err(format!("batch {} was kept and is refused now", batch.id));
                }
                if let Some(place) = place {
                    self.unknown.remove(place);
                    let rest = self.renumbered(self.unknown.iter());
                    self.unknown = rest;
                }
            }
            Outcome::Acknowledged => {
                // What was queued may have been acknowledged before the takeover, in the same call.
                if epoch < self.rank && !(queued && settled) {
                    return Err(format!(
                        "epoch {epoch} acknowledged although epoch {} serves",
                        self.rank
                    ));
                }
                match place {
                    Some(0) => {
                        let batch = self.unknown.remove(0);
                        if let Some(receipt) = receipt {
                            check_receipt(&batch, receipt)?;
                        }
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

    /// Whether what was taken for a kept batch was another one that says the same, which nobody can tell
    /// from it before they are answered; then it is that one from now on.
    fn another_was_kept(&mut self, id: u64) -> bool {
        let of = |items: &[Item], id: u64| -> Vec<Said> {
            let own = items.iter().filter(|item| item.id == id);
            own.map(Item::said).collect()
        };
        let kept = of(&self.settled, id);
        let alike = |other: &&Item| other.id != id && of(&self.dead, other.id) == kept;
        let Some(other) = self.dead.iter().find(alike).map(|item| item.id) else {
            return false;
        };
        for (items, from, to) in [(&mut self.settled, id, other), (&mut self.dead, other, id)] {
            for item in items.iter_mut().filter(|item| item.id == from) {
                item.id = to;
            }
        }
        true
    }

    /// Batches with the places that they have if they are the ones that are written next.
    fn renumbered<'a>(&self, batches: impl Iterator<Item = &'a Batch>) -> Vec<Batch> {
        let mut lsn = self.last();
        let mut seqs: BTreeMap<SessionId, u64> = BTreeMap::new();
        let mut renumbered = Vec::new();
        for batch in batches {
            let mut batch = batch.clone();
            for item in &mut batch.items {
                lsn += 1;
                item.lsn = lsn;
                if let What::Record { session, seq, .. } = &mut item.what {
                    let last = seqs
                        .entry(*session)
                        .or_insert_with(|| self.settled_seq(*session));
                    *last += 1;
                    *seq = *last;
                }
            }
            renumbered.push(batch);
        }
        renumbered
    }

    /// The oracle: all that is settled, in order; then a prefix of the unknown batches, each whole;
    /// nothing else. Gives those of them that are there, with their places.
    pub fn judge(&self, entries: &[Entry]) -> Result<Vec<Batch>, String> {
        for (place, item) in self.settled.iter().enumerate() {
            match entries.get(place) {
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
        let rest = &entries[self.settled.len()..];
        let mut prefix = Vec::new();
        let mut length = 0;
        for batch in &self.unknown {
            if length >= rest.len() {
                break;
            }
            length += batch.items.len();
            prefix.push(batch);
        }
        let strict = self.are(&prefix, rest);
        if strict.is_err() && self.gaps {
            let mut kept = Vec::new();
            if self.are_some(&self.unknown, &mut kept, rest) {
                return self.are(&kept, rest);
            }
        }
        strict
    }

    /// Whether the entries are `kept` and some of the batches behind them, in order; `kept` is these
    /// then. What does not fit is left out at once, so few choices are tried.
    fn are_some<'a>(
        &'a self,
        batches: &'a [Batch],
        kept: &mut Vec<&'a Batch>,
        entries: &[Entry],
    ) -> bool {
        let length: usize = kept.iter().map(|batch| batch.items.len()).sum();
        let Some(begun) = entries.get(..length) else {
            return false;
        };
        if self.are(kept, begun).is_err() {
            return false;
        }
        let Some((next, rest)) = batches.split_first() else {
            return length == entries.len();
        };
        kept.push(next);
        if self.are_some(rest, kept, entries) {
            return true;
        }
        kept.pop();
        self.are_some(rest, kept, entries)
    }

    /// Whether the entries are exactly these batches, written one after the other.
    fn are(&self, batches: &[&Batch], entries: &[Entry]) -> Result<Vec<Batch>, String> {
        let batches = self.renumbered(batches.iter().copied());
        let mut items = batches.iter().flat_map(|batch| &batch.items);
        for entry in entries {
            let Some(item) = items.next() else {
                return Err(format!(
                    "Lsn {} ({:?}) was never handed over, or is dead",
                    entry.lsn, entry.kind
                ));
            };
            matches(entry, item)
                .map_err(|error| format!("of unknown batch {}: {error}", item.id))?;
        }
        match items.next() {
            Some(item) => Err(format!("half of unknown batch {} is kept", item.id)),
            None => Ok(batches),
        }
    }

    /// An opening, or a look at a medium at rest, has decided: what it kept is settled, the rest of
    /// what was unknown is dead. Gives how many batches were kept.
    pub fn decide(&mut self, entries: &[Entry]) -> Result<usize, String> {
        let kept = self.judge(entries)?;
        for batch in std::mem::take(&mut self.unknown) {
            if !kept.iter().any(|other| other.id == batch.id) {
                self.dead.extend(batch.items);
            }
        }
        let count = kept.len();
        for batch in kept {
            self.settled.extend(batch.items);
        }
        Ok(count)
    }

    /// Slots that say "durable up to here" are on the medium.
    pub fn witness(&mut self, lsn: u64) {
        self.floor = self.floor.max(lsn);
        self.witnessed = self.witnessed.max(lsn);
    }

    /// The highest true watermark that there can be within a call: of several batches in flight all
    /// but the last may be durable already, and a close vouches for all of them.
    pub fn ceiling(&self) -> u64 {
        let flying = match self.closing {
            true => &self.unknown[..],
            false => self.unknown.split_last().map_or(&[][..], |(_, rest)| rest),
        };
        let frames: usize = flying.iter().map(|batch| batch.items.len()).sum();
        self.last() + frames as u64
    }

    /// The true watermark against the one that the library computed: it never says more than what
    /// was acknowledged or served, and never less than the claims that must be there.
    pub fn judge_watermark(&self, watermark: u64) -> Result<(), String> {
        if watermark > self.ceiling() {
            return Err(format!(
                "the watermark {watermark} is above the true one, {}",
                self.ceiling()
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

/// Whether the receipt names the places that the batch must have.
fn check_receipt(batch: &Batch, receipt: &Receipt) -> Result<(), String> {
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

fn last_seq<'a>(mut newest: impl Iterator<Item = &'a Item>, session: SessionId) -> Option<u64> {
    newest.find_map(|item| match &item.what {
        What::Record {
            session: owner,
            seq,
            ..
        } if *owner == session => Some(*seq),
        _ => None,
    })
}
