//! Commits on their way: which of those that wait go to the log together, and what follows when the
//! log has answered.
//!
//! Commits fly together as far as they do not depend on each other: one of each loop, so that each
//! is checked against where its loop stands. Their batches stand one behind the other in the
//! journal's queue and share a sync. They are settled by the thread that wrote them, in the order of
//! the log: history, publication, answer (P2).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::boundary::{Boundary, CommitResult, SessionCore};
use super::committed::{Committed, Outcome};
use super::draft::Draft;
use super::entrance::Entered;
use super::io::{Promise, Serve, Ticket};
use super::outside::{BlobFile, Unwritten};
use super::state::SessionState;
use super::taken::Taken;
use super::{OrderError, Refusal};
use crate::event::{Event, Key, Outside};
use crate::identity::LoopId;
use crate::journal::{NotCommitted, Seq, Sink, WhenFull};
use crate::metrics::Measure;

/// An event with its bytes.
pub(super) struct Encoded {
    pub(super) event: Event,
    pub(super) key: Option<Key>,
    /// Empty until the turn of the batch has come if they depend on that.
    pub(super) bytes: Vec<u8>,
    /// The file of its body, if the bytes only refer to it.
    pub(super) blob: Option<BlobFile>,
}

impl Encoded {
    /// Bytes of the record with its body.
    fn length(&self) -> usize {
        match &self.blob {
            None => self.bytes.len(),
            Some(blob) => self.bytes.len().saturating_sub(Outside::BYTES) + blob.bytes,
        }
    }
}

/// Makes a batch of where the session stands.
type Make = Box<dyn FnOnce(&SessionState) -> Vec<Draft> + Send>;

/// A batch as it was submitted.
pub(super) enum Submitted {
    Encoded(Vec<Encoded>),
    /// One that goes only right behind this record, unless all of it is known already.
    Behind(Seq, Vec<Encoded>),
    /// One of a loop that is made when its turn has come; whether it has keys.
    Made(LoopId, bool, Make),
}

impl Submitted {
    pub(super) fn new(behind: Option<Seq>, batch: Vec<Encoded>) -> Submitted {
        match behind {
            Some(behind) => Submitted::Behind(behind, batch),
            None => Submitted::Encoded(batch),
        }
    }
}

/// A commit that waits for its turn.
pub(super) struct Request {
    batch: Submitted,
    /// What happens when too much waits for the disk already.
    full: WhenFull,
    promise: Promise<CommitResult>,
}

/// A batch that was checked: it goes to the log now, or when its large bodies are written.
pub(super) struct Checked {
    known: Vec<Option<Committed>>,
    pub(super) records: Vec<Encoded>,
    full: WhenFull,
    pub(super) promise: Promise<CommitResult>,
}

/// A commit that is on its way to the disk.
pub(super) struct InFlight {
    pub(super) known: Vec<Option<Committed>>,
    pub(super) events: Vec<Flying>,
    pub(super) promise: Promise<CommitResult>,
}

/// One event of it, with its key, the bytes of its record and the file of its body.
pub(super) struct Flying {
    pub(super) event: Event,
    pub(super) key: Option<Key>,
    pub(super) length: usize,
    pub(super) blob: Option<BlobFile>,
}

impl InFlight {
    /// The files of its bodies.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &BlobFile> {
        self.events.iter().filter_map(|flying| flying.blob.as_ref())
    }
}

/// What sending off came to: what is left to be done outside the boundary.
#[derive(Default)]
pub(super) struct Launched {
    /// Whether the caller has to write what is queued.
    pub(super) leads: bool,
    /// Batches whose large bodies are to be written first.
    pub(super) unwritten: Vec<Unwritten>,
}

impl Request {
    pub(super) fn is_keyed(&self) -> bool {
        match &self.batch {
            Submitted::Made(_, keyed, _) => *keyed,
            Submitted::Encoded(batch) | Submitted::Behind(_, batch) => {
                batch.iter().any(|encoded| encoded.key.is_some())
            }
        }
    }

    pub(super) fn refuse(self, refusal: Refusal) {
        self.promise.fulfil(Err(refusal.into()));
    }
}

impl SessionCore {
    /// Takes a commit in. If nothing is under way that it depends on it goes to the log at once; a
    /// caller that may block writes it itself if nobody else is writing.
    pub(super) fn request(
        self: &Arc<Self>,
        batch: Submitted,
        may_block: bool,
    ) -> Ticket<CommitResult> {
        let (promise, ticket) = Promise::new();
        let server: Weak<dyn Serve> = Arc::<SessionCore>::downgrade(self);
        let ticket = ticket.served_by(server);
        let full = match may_block {
            true => WhenFull::Exceed,
            false => WhenFull::Refuse,
        };
        let request = Request {
            batch,
            full,
            promise,
        };
        let waits = match may_block {
            true => self.may_wait(),
            false => Ok(()),
        };
        let mut boundary = match waits.and_then(|()| self.enter()) {
            Ok(boundary) => boundary,
            Err(reentrant) => {
                request.refuse(reentrant.into());
                return ticket;
            }
        };
        if let Err(refusal) = self.ready(&boundary) {
            drop(boundary);
            request.refuse(refusal);
            return ticket;
        }
        boundary.waiting.push_back(request);
        let launched = self.launch(&mut boundary, may_block);
        self.leave(boundary, launched, may_block);
        ticket
    }

    /// Leaves the boundary and does what is left to be done outside of it: here, if the caller may
    /// block, else aside.
    pub(super) fn leave(
        self: &Arc<Self>,
        mut boundary: Entered<'_>,
        launched: Launched,
        may_block: bool,
    ) {
        let loads = boundary.begins_to_load();
        let tidy = std::mem::take(&mut boundary.tidy);
        let refusals = std::mem::take(&mut boundary.refusals);
        drop(boundary);
        for tidy in tidy {
            tidy.run(&self.decoder.blobs);
        }
        for (promise, error) in refusals {
            promise.fulfil(Err(error));
        }
        if launched.leads {
            self.log.lead();
        }
        for unwritten in launched.unwritten {
            match may_block {
                true => self.write_bodies(unwritten, true),
                false => self.write_bodies_aside(unwritten),
            }
        }
        match loads {
            true if may_block => self.load_keys(),
            true => self.load_keys_aside(),
            false => {}
        }
    }

    fn load_keys_aside(self: &Arc<Self>) {
        let core = self.clone();
        // What becomes of it is told to the commits that wait.
        drop(self.io.submit(move || core.load_keys()));
    }

    /// Sends off what has to wait for nothing. Only a caller that may block can `offer` to write it.
    pub(super) fn launch(self: &Arc<Self>, boundary: &mut Boundary, offer: bool) -> Launched {
        let mut launched = Launched::default();
        let mut stays = VecDeque::new();
        let mut before = Taken::default();
        while let Some(request) = boundary.waiting.pop_front() {
            // Whether it is a repeat is known only when the keys of earlier processes are.
            let unknown = request.is_keyed() && self.state().keys.unread().is_some();
            boundary.wants_keys |= unknown;
            // What was submitted first goes first, also among those that wait.
            if unknown
                || boundary.taken.conflicts(&request.batch)
                || before.conflicts(&request.batch)
            {
                before.take_waiting(&request.batch);
                stays.push_back(request);
                continue;
            }
            let Request {
                batch,
                full,
                promise,
            } = request;
            let alone = matches!(batch, Submitted::Behind(..));
            let prepared = self.ready(boundary).and_then(|()| self.prepare(batch));
            let (known, records) = match prepared {
                Ok(prepared) => prepared,
                Err(refusal) => {
                    self.refuse(promise, refusal);
                    continue;
                }
            };
            if records.is_empty() {
                let known = known.into_iter().flatten();
                promise.fulfil(Ok(known.map(Outcome::Duplicate).collect()));
                continue;
            }
            let checked = Checked {
                known,
                records,
                full,
                promise,
            };
            match self.large_bytes(&checked.records) {
                0 => launched.leads |= self.depart(boundary, checked, offer && !launched.leads),
                bytes => launched
                    .unwritten
                    .extend(self.hold(boundary, checked, alone, bytes)),
            }
        }
        boundary.waiting = stays;
        launched
    }

    pub(super) fn refuse(&self, promise: Promise<CommitResult>, refusal: Refusal) {
        self.meter.record(|| Measure::Refused { session: self.id });
        promise.fulfil(Err(refusal.into()));
    }

    /// Holds the place of a batch until its large bodies are written: nothing that depends on it is
    /// sent off before it. Bodies under way are bounded in bytes, as the queue of the log is.
    fn hold(
        &self,
        boundary: &mut Boundary,
        checked: Checked,
        alone: bool,
        bytes: u64,
    ) -> Option<Unwritten> {
        let under_way = boundary.large;
        let is_full = under_way > 0 && under_way.saturating_add(bytes) > self.queue_bytes;
        if is_full && checked.full == WhenFull::Refuse {
            let busy = NotCommitted::Busy {
                records: boundary.flight.iter().flat_map(InFlight::blobs).count(),
                bytes: under_way,
            };
            self.refuse(checked.promise, Refusal::Journal(busy));
            return None;
        }
        boundary.large = under_way.saturating_add(bytes);
        boundary.taken.hold(&checked.records, alone);
        let seen = self.state().last;
        Some(Unwritten::new(checked, alone, bytes, seen))
    }

    /// Sends a batch to the log. Whether the caller has to write it.
    pub(super) fn depart(
        self: &Arc<Self>,
        boundary: &mut Boundary,
        checked: Checked,
        offer: bool,
    ) -> bool {
        let mut payloads = Vec::with_capacity(checked.records.len());
        let mut events = Vec::with_capacity(checked.records.len());
        for encoded in checked.records {
            events.push(Flying {
                length: encoded.length(),
                event: encoded.event,
                key: encoded.key,
                blob: encoded.blob,
            });
            payloads.push(encoded.bytes);
        }
        let flown = InFlight {
            known: checked.known,
            events,
            promise: checked.promise,
        };
        let sink: Arc<dyn Sink> = self.clone();
        let expected = self.expected(boundary);
        match self
            .log
            .submit(payloads, expected, sink, checked.full, offer)
        {
            Ok(leads) => {
                for flying in &flown.events {
                    boundary.taken.take(&flying.event, flying.key.as_ref());
                }
                boundary.flight.push_back(flown);
                leads
            }
            Err(reason) => {
                boundary.bodies_end(&flown);
                boundary.blobs_fall(&flown);
                let error = self.not_committed(boundary, reason);
                boundary.refusals.push((flown.promise, error));
                false
            }
        }
    }

    /// The last sequence of the session when all that is under way has landed.
    fn expected(&self, boundary: &Boundary) -> Seq {
        let flying: usize = boundary
            .flight
            .iter()
            .map(|flying| flying.events.len())
            .sum();
        Seq::new(self.state().last.get() + flying as u64)
    }

    fn prepare(&self, batch: Submitted) -> Result<(Vec<Option<Committed>>, Vec<Encoded>), Refusal> {
        let state = self.state();
        let (behind, batch) = match batch {
            Submitted::Encoded(batch) => (None, batch),
            Submitted::Behind(behind, batch) => (Some(behind), batch),
            Submitted::Made(_, _, make) => (None, self.stamp(make(&state))?),
        };
        let prepared = self.preflight(&state, batch);
        let Some(expected) = behind.filter(|behind| *behind != state.last) else {
            return prepared;
        };
        match &prepared {
            // A repeat is told what became of it the first time, wherever the session stands now.
            Ok((_, fresh)) if fresh.is_empty() => prepared,
            Err(Refusal::KeyReused { .. }) => prepared,
            // What else is wrong with it may be so only because of what came in between.
            _ => {
                let actual = state.last;
                Err(OrderError::Moved { expected, actual }.into())
            }
        }
    }
}

impl Serve for SessionCore {
    fn serve(self: Arc<Self>) {
        self.write_handed_over();
        self.log.lead();
    }
}
