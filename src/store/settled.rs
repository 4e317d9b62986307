//! What follows when the log has answered: history, publication, answer, in the order of the log (P2).

use std::sync::Arc;

use super::boundary::{Boundary, CommitResult, SessionCore};
use super::committed::{Committed, Outcome};
use super::flight::InFlight;
use super::io::Promise;
use super::outside::Tidy;
use super::{CommitError, Refusal};
use crate::journal::{AppendError, NotCommitted, Placed, Receipt, Sink};
use crate::metrics::Measure;

impl SessionCore {
    /// Step 3 failed: nothing is published and history is unchanged.
    pub(super) fn not_committed(
        &self,
        boundary: &mut Boundary,
        reason: NotCommitted,
    ) -> CommitError {
        self.meter.record(|| Measure::Refused { session: self.id });
        // A journal can fault at a moment when this batch was certainly not written.
        if let Some(fault) = self.log.fault() {
            boundary.latch(&fault);
        }
        match reason {
            NotCommitted::Faulted(fault) => Refusal::Faulted(fault).into(),
            // It stood behind one that was not committed: for the same reason.
            NotCommitted::WrongPosition { .. } if boundary.refused.is_some() => {
                Refusal::Journal(boundary.refused.clone().unwrap_or(reason)).into()
            }
            reason => {
                boundary.refused.get_or_insert_with(|| reason.clone());
                Refusal::Journal(reason).into()
            }
        }
    }

    /// Steps 4 and 5: committed history grows by the same fold that a restore uses, and those who
    /// are there are told.
    fn extend_history(&self, boundary: &mut Boundary, flown: InFlight, placed: &[Placed]) -> Flown {
        let mut state = self.state();
        let committed: Vec<Committed> = flown
            .events
            .into_iter()
            .zip(placed)
            .map(|(flying, placed)| {
                let (seq, key) = (placed.seq, flying.key);
                if let Some(blob) = flying.blob {
                    boundary.tidy.push(Tidy::Settle(blob.name, seq));
                }
                let committed = Committed::live(flying.event, seq, placed.lsn, flying.length);
                state.apply(&committed, key.as_ref(), Some(placed.position));
                committed
            })
            .collect();
        drop(state);
        self.touch();
        self.meter.record(|| Measure::Commit {
            session: self.id,
            records: committed.len(),
            bytes: committed.iter().map(Committed::encoded_len).sum(),
        });
        boundary.publish(&committed);
        let mut fresh = committed.into_iter().map(Outcome::Committed);
        let outcomes = flown.known.into_iter().filter_map(|known| match known {
            Some(first) => Some(Outcome::Duplicate(first)),
            None => fresh.next(),
        });
        (flown.promise, Ok(outcomes.collect()))
    }

    fn settle(
        &self,
        boundary: &mut Boundary,
        flown: InFlight,
        outcome: Result<Receipt, AppendError>,
    ) -> Flown {
        match outcome {
            Ok(receipt) => self.extend_history(boundary, flown, &receipt.records),
            Err(AppendError::NotCommitted(reason)) => {
                boundary.blobs_fall(&flown);
                (flown.promise, Err(self.not_committed(boundary, reason)))
            }
            // Its records may be on disk, and name their files.
            Err(AppendError::Unknown(fault)) => {
                boundary.latch(&fault);
                let events = flown.events.into_iter().map(|flying| flying.event);
                let events = events.collect();
                (flown.promise, Err(CommitError::Unknown { fault, events }))
            }
        }
    }
}

impl Boundary {
    /// Its large bodies are not under way any more.
    pub(super) fn bodies_end(&mut self, flown: &InFlight) {
        let bytes: u64 = flown.blobs().map(|blob| blob.bytes as u64).sum();
        self.large = self.large.saturating_sub(bytes);
    }

    /// Nothing names the files of this commit.
    pub(super) fn blobs_fall(&mut self, flown: &InFlight) {
        let names = flown.blobs().map(|blob| Tidy::Discard(blob.name));
        self.tidy.extend(names);
    }
}

type Flown = (Promise<CommitResult>, CommitResult);

impl Sink for SessionCore {
    fn settled(self: Arc<Self>, outcome: Result<Receipt, AppendError>) {
        let mut boundary = self.entered();
        let Some(flown) = boundary.flight.pop_front() else {
            return;
        };
        for flying in &flown.events {
            let key = flying.key.as_ref();
            boundary.taken.give_back(&flying.event, key);
        }
        boundary.bodies_end(&flown);
        let (promise, result) = self.settle(&mut boundary, flown, outcome);
        if boundary.flight.is_empty() {
            boundary.refused = None;
        }
        let launched = self.launch(&mut boundary, false);
        self.leave(boundary, launched, false);
        promise.fulfil(result);
    }
}
