//! Commits on their way: which of those that wait go to the log together, and what follows when the
//! log has answered.
//!
//! A flight takes what waits, as far as it does not depend on each other: one commit of each loop.
//! Its batches stand one behind the other in the journal's queue and share a sync. They are settled
//! by the thread that wrote them, in the order of the log: history, publication, answer (P2).

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard};

use super::boundary::{Boundary, CommitResult, SessionCore, lock};
use super::committed::{Committed, Outcome};
use super::draft::Draft;
use super::io::{Promise, Ticket};
use super::state::SessionState;
use super::{CommitError, Refusal};
use crate::event::{Event, Key};
use crate::identity::LoopId;
use crate::journal::{AppendError, NotCommitted, Placed, Receipt, Seq, Sink};

/// An event with its bytes.
pub(super) struct Encoded {
    pub(super) event: Event,
    pub(super) key: Option<Key>,
    /// Empty until the turn of the batch has come if they depend on that.
    pub(super) bytes: Vec<u8>,
}

/// Makes a batch of where the session stands.
type Make = Box<dyn FnOnce(&SessionState) -> Vec<Draft> + Send>;

/// A batch as it was submitted.
pub(super) enum Submitted {
    Encoded(Vec<Encoded>),
    /// One of a loop that is made when its turn has come.
    Made(LoopId, Make),
}

/// A commit that waits for its turn.
pub(super) struct Request {
    batch: Submitted,
    promise: Promise<CommitResult>,
}

/// A commit that is on its way to the disk.
pub(super) struct InFlight {
    known: Vec<Option<Committed>>,
    events: Vec<(Event, Option<Key>, usize)>,
    promise: Promise<CommitResult>,
}

impl Request {
    pub(super) fn refuse(self, refusal: Refusal) {
        self.promise.fulfil(Err(refusal.into()));
    }
}

/// What a flight has taken already.
#[derive(Default)]
struct Taken {
    loops: HashSet<LoopId>,
    keys: HashSet<Key>,
}

impl Taken {
    /// Whether a commit has to wait for one of the flight. One of the session itself goes alone.
    fn conflicts(&self, batch: &Submitted) -> bool {
        let alone = |loop_id: &LoopId| loop_id.is_nil() || self.loops.contains(loop_id);
        if self.loops.contains(&LoopId::nil()) {
            return true;
        }
        match batch {
            Submitted::Made(loop_id, _) => alone(loop_id),
            Submitted::Encoded(events) => events.iter().any(|encoded| {
                let keyed = encoded.key.as_ref();
                alone(&encoded.event.header.coordinates.loop_id)
                    || keyed.is_some_and(|key| self.keys.contains(key))
            }),
        }
    }

    fn take(&mut self, batch: &[Encoded]) {
        for encoded in batch {
            self.loops.insert(encoded.event.header.coordinates.loop_id);
            self.keys.extend(encoded.key.clone());
        }
    }
}

impl SessionCore {
    /// Takes a commit in. If nothing is under way it goes to the log at once; a caller that may block
    /// writes it itself if nobody else is writing.
    pub(super) fn request(
        self: &Arc<Self>,
        batch: Submitted,
        may_block: bool,
    ) -> Ticket<CommitResult> {
        let (promise, ticket) = Promise::new();
        let request = Request { batch, promise };
        let mut boundary = lock(&self.boundary);
        if let Err(refusal) = self.ready(&boundary) {
            drop(boundary);
            request.refuse(refusal);
            return ticket;
        }
        boundary.waiting.push_back(request);
        let leads = boundary.flight.is_empty() && self.launch(&mut boundary, may_block);
        drop(boundary);
        if leads {
            self.log.lead();
        }
        ticket
    }

    /// Sends what waits to the log. Whether the caller has to write it.
    fn launch(self: &Arc<Self>, boundary: &mut Boundary, offer: bool) -> bool {
        let mut taken = Taken::default();
        let mut leads = false;
        let mut expected = self.state().last;
        boundary.refused = None;
        while let Some(request) = boundary.waiting.pop_front() {
            if taken.conflicts(&request.batch) && !boundary.flight.is_empty() {
                boundary.waiting.push_front(request);
                break;
            }
            let Request { batch, promise } = request;
            let prepared = self
                .ready(boundary)
                .and_then(|()| self.prepare(batch, &mut taken));
            let (known, prepared) = match prepared {
                Ok(prepared) => prepared,
                Err(refusal) => {
                    promise.fulfil(Err(refusal.into()));
                    continue;
                }
            };
            if prepared.is_empty() {
                let known = known.into_iter().flatten();
                promise.fulfil(Ok(known.map(Outcome::Duplicate).collect()));
                continue;
            }
            let count = prepared.len() as u64;
            let mut payloads = Vec::with_capacity(prepared.len());
            let mut events = Vec::with_capacity(prepared.len());
            for encoded in prepared {
                events.push((encoded.event, encoded.key, encoded.bytes.len()));
                payloads.push(encoded.bytes);
            }
            let sink: Arc<dyn Sink> = self.clone();
            match self.log.submit(payloads, expected, sink, offer && !leads) {
                Ok(lead) => {
                    leads |= lead;
                    expected = Seq::new(expected.get() + count);
                    boundary.flight.push_back(InFlight {
                        known,
                        events,
                        promise,
                    });
                }
                Err(reason) => {
                    promise.fulfil(Err(self.not_committed(boundary, reason)));
                }
            }
        }
        leads
    }

    fn prepare(
        &self,
        batch: Submitted,
        taken: &mut Taken,
    ) -> Result<(Vec<Option<Committed>>, Vec<Encoded>), Refusal> {
        let state = self.state();
        let batch = match batch {
            Submitted::Encoded(batch) => batch,
            Submitted::Made(_, make) => self.stamp(make(&state))?,
        };
        let (known, prepared) = self.preflight(&state, batch)?;
        taken.take(&prepared);
        Ok((known, prepared))
    }

    /// Step 3 failed: nothing is published and history is unchanged.
    fn not_committed(&self, boundary: &mut Boundary, reason: NotCommitted) -> CommitError {
        // A journal can fault at a moment when this batch was certainly not written.
        if let Some(fault) = self.log.fault() {
            boundary.latch(&fault);
        }
        match reason {
            NotCommitted::Faulted(fault) => Refusal::Faulted(fault).into(),
            // It stood behind one of the same flight that was not committed: for the same reason.
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
            .map(|((event, key, length), placed)| {
                let committed = Committed::live(event, placed.seq, placed.lsn, length);
                state.apply(&committed, key.as_ref(), Some(placed.position));
                committed
            })
            .collect();
        drop(state);
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
                (flown.promise, Err(self.not_committed(boundary, reason)))
            }
            Err(AppendError::Unknown(fault)) => {
                boundary.latch(&fault);
                let events = flown
                    .events
                    .into_iter()
                    .map(|(event, _, _)| event)
                    .collect();
                (flown.promise, Err(CommitError::Unknown { fault, events }))
            }
        }
    }
}

type Flown = (Promise<CommitResult>, CommitResult);

impl Sink for SessionCore {
    fn settled(self: Arc<Self>, outcome: Result<Receipt, AppendError>) {
        let mut boundary: MutexGuard<'_, Boundary> = lock(&self.boundary);
        let Some(flown) = boundary.flight.pop_front() else {
            return;
        };
        let (promise, result) = self.settle(&mut boundary, flown, outcome);
        if boundary.flight.is_empty() {
            self.launch(&mut boundary, false);
        }
        drop(boundary);
        promise.fulfil(result);
    }
}
