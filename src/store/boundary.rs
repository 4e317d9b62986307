//! The commit boundary of a session: the one place where events become durable.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::committed::{Committed, Outcome};
use super::draft::Draft;
use super::io::{IoThread, Ticket};
use super::log::Log;
use super::session::Mode;
use super::state::{Admission, SessionState};
use super::{CommitError, Refusal};
use crate::event::{
    Body, Event, Factory, Header, Key, Limits, check_pairing, decode_header, encode_record,
};
use crate::identity::{Coordinates, LoopId, SessionId, StepId};
use crate::journal::{AppendError, Fault, Lsn, NotCommitted, Placed, ReadError};

/// What is told of a session's commits, in their order: the hub is one.
///
/// It is called between the durable append and the answer to the caller, so it must not block, and
/// must not commit, observe or close: those wait for the commit that is calling. One that panics is
/// told nothing more.
pub trait Observer: Send + Sync {
    /// These events are durable now.
    fn committed(&self, batch: &[Committed]);
    /// The session is faulted; nothing will be committed any more.
    fn faulted(&self, fault: &Fault);
    /// The session was closed; nothing will be committed any more.
    fn closed(&self) {}
}

/// A session, behind its handles.
pub(super) struct SessionCore {
    pub(super) id: SessionId,
    pub(super) mode: Mode,
    pub(super) log: Box<dyn Log>,
    pub(super) limits: Limits,
    pub(super) factory: Factory,
    pub(super) io: Arc<IoThread>,
    /// Held for a whole commit: it orders them.
    pub(super) boundary: Mutex<Boundary>,
    /// The first fault, to be read without waiting for a commit.
    pub(super) latched: Arc<OnceLock<Fault>>,
    /// Held for moments only.
    state: Arc<Mutex<SessionState>>,
    claimed: Mutex<HashSet<LoopId>>,
    /// What the floor above keeps for the life of the session: its hub.
    #[cfg(feature = "runtime")]
    pub(super) companion: super::companion::Companion,
}

/// The order of commits, and who is told of them.
#[derive(Default)]
pub(super) struct Boundary {
    pub(super) fault: Option<Fault>,
    pub(super) latched: Arc<OnceLock<Fault>>,
    pub(super) closed: bool,
    pub(super) observers: Vec<Weak<dyn Observer>>,
    /// What opening kept above the watermark: given to the first hub once (design, section 3).
    pub(super) recovered: Vec<Committed>,
}

impl std::fmt::Debug for SessionCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event that passed the preflight, with its bytes.
struct Prepared {
    event: Event,
    key: Option<Key>,
    bytes: Vec<u8>,
}

impl SessionCore {
    #[allow(clippy::too_many_arguments, reason = "called once, from opening")]
    pub(super) fn new(
        id: SessionId,
        mode: Mode,
        log: Box<dyn Log>,
        limits: Limits,
        factory: Factory,
        io: Arc<IoThread>,
        state: Arc<Mutex<SessionState>>,
        recovered: Vec<Committed>,
    ) -> SessionCore {
        let latched = Arc::<OnceLock<Fault>>::default();
        SessionCore {
            id,
            mode,
            log,
            limits,
            factory,
            io,
            latched: latched.clone(),
            boundary: Mutex::new(Boundary {
                recovered,
                latched,
                ..Boundary::default()
            }),
            state,
            claimed: Mutex::new(HashSet::new()),
            #[cfg(feature = "runtime")]
            companion: super::companion::Companion::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        lock(&self.state)
    }

    /// The commit boundary (design, section 3): stamp, preflight, durable append, history,
    /// publication, answer. Nothing behind the append happens unless it said that the batch is
    /// durable (P2), and the batch is atomic (P3).
    pub(super) fn commit(&self, drafts: Vec<Draft>) -> Result<Vec<Outcome>, CommitError> {
        self.commit_with(|_| drafts)
    }

    /// The same for a batch that depends on where the session stands: it is made when its turn has
    /// come, behind all commits that were submitted before it.
    pub(super) fn commit_with(
        &self,
        draft: impl FnOnce(&SessionState) -> Vec<Draft>,
    ) -> Result<Vec<Outcome>, CommitError> {
        let mut boundary = lock(&self.boundary);
        self.ready(&boundary)?;
        let drafts = draft(&self.state());
        let stamped = self.stamp(drafts)?;
        let (known, prepared) = self.preflight(stamped)?;
        if prepared.is_empty() {
            return Ok(known
                .into_iter()
                .flatten()
                .map(Outcome::Duplicate)
                .collect());
        }
        let expected = self.state().last;
        let payloads: Vec<&[u8]> = prepared
            .iter()
            .map(|prepared| prepared.bytes.as_slice())
            .collect();
        let placed = match self.log.append(&payloads, expected) {
            Ok(placed) => placed,
            Err(error) => return Err(self.failed(&mut boundary, error, prepared)),
        };
        let committed = self.extend_history(prepared, &placed);
        boundary.publish(&committed);
        let mut fresh = committed.into_iter().map(Outcome::Committed);
        Ok(known
            .into_iter()
            .filter_map(|known| match known {
                Some(first) => Some(Outcome::Duplicate(first)),
                None => fresh.next(),
            })
            .collect())
    }

    fn ready(&self, boundary: &Boundary) -> Result<(), Refusal> {
        if self.mode == Mode::Read {
            return Err(Refusal::ReadOnly);
        }
        match &boundary.fault {
            Some(fault) => Err(Refusal::Faulted(fault.clone())),
            None => Ok(()),
        }
    }

    /// Step 1: coordinates, event id, creation time.
    fn stamp(&self, drafts: Vec<Draft>) -> Result<Vec<(Event, Option<Key>)>, Refusal> {
        if drafts.is_empty() {
            return Err(Refusal::Empty);
        }
        let session = Coordinates::session(self.id);
        drafts
            .into_iter()
            .map(|draft| {
                let coordinates = Coordinates {
                    loop_id: draft.loop_id,
                    turn: draft.turn,
                    step: draft.step,
                    ..session
                };
                let header = Header::at(coordinates)
                    .named(draft.agent_name)
                    .caused_by(draft.cause);
                Ok((self.factory.stamp(header, draft.body)?, draft.key))
            })
            .collect()
    }

    /// Step 2: repeats are found, the rest is validated, encoded, run through the reader's
    /// acceptance (P10), and must fit where the session stands. Gives, for each event, the first
    /// commit if it is a repeat.
    fn preflight(
        &self,
        stamped: Vec<(Event, Option<Key>)>,
    ) -> Result<(Vec<Option<Committed>>, Vec<Prepared>), Refusal> {
        let state = self.state();
        let mut admission = Admission::new(&state);
        let mut known = Vec::with_capacity(stamped.len());
        let mut prepared = Vec::with_capacity(stamped.len());
        let mut repeated = StepId::nil();
        for (mut event, key) in stamped {
            // What a host bound to a step is part of it: a repeated step repeats it too (P3).
            let step = event.header.coordinates.step;
            if !step.is_nil() && step == repeated {
                continue;
            }
            if let Body::TurnStarted(started) = &mut event.body {
                started.turn_index = admission.next_turn_index(event.header.coordinates.loop_id);
            }
            if let Body::StepDone(step) = &event.body {
                check_pairing(step)?;
            }
            let bytes = encode_record(&event, key.as_ref(), &self.limits)?;
            if let Some(key) = &key
                && prepared
                    .iter()
                    .any(|before: &Prepared| before.key.as_ref() == Some(key))
            {
                return Err(Refusal::KeyTwice { key: key.clone() });
            }
            if let Some(first) = self.first_commit(&state, key.as_ref(), &bytes)? {
                known.push(Some(first));
                repeated = step;
                continue;
            }
            admission.admit(&event)?;
            known.push(None);
            prepared.push(Prepared { event, key, bytes });
        }
        Ok((known, prepared))
    }

    /// The first commit under a key, if there is one. Equality is over the body without stamps.
    fn first_commit(
        &self,
        state: &SessionState,
        key: Option<&Key>,
        bytes: &[u8],
    ) -> Result<Option<Committed>, Refusal> {
        let Some((key, position)) = key.and_then(|key| Some((key, state.keyed(key)?))) else {
            return Ok(None);
        };
        let entry = self
            .log
            .read_at(&position)
            .map_err(Refusal::FirstUnreadable)?;
        // What a key remembers stands there: nothing is not "never committed".
        let Some(entry) = entry else {
            return Err(Refusal::FirstUnreadable(ReadError::Damaged {
                path: PathBuf::from(position.segment.to_string()),
                offset: position.offset,
                first: Lsn::ZERO,
                last: Lsn::ZERO,
            }));
        };
        let reused = || Refusal::KeyReused {
            key: key.clone(),
            first: entry.seq,
        };
        let first = super::replay::decode(self.id, &entry, &self.limits).map_err(|_| reused())?;
        let header = |bytes| decode_header(bytes, &self.limits).ok();
        let same = header(&entry.payload)
            .zip(header(bytes))
            .is_some_and(|(old, new)| old.same_content(&new));
        match first {
            Some((first, _)) if same => Ok(Some(first)),
            _ => Err(reused()),
        }
    }

    /// Step 3 failed: whether for certain or not, nothing is published and history is unchanged.
    fn failed(
        &self,
        boundary: &mut Boundary,
        error: AppendError,
        prepared: Vec<Prepared>,
    ) -> CommitError {
        // A journal can fault at a moment when this batch was certainly not written.
        if let Some(fault) = self.log.fault() {
            boundary.latch(&fault);
        }
        match error {
            AppendError::Unknown(fault) => CommitError::Unknown {
                fault,
                events: prepared
                    .into_iter()
                    .map(|prepared| prepared.event)
                    .collect(),
            },
            AppendError::NotCommitted(NotCommitted::Faulted(fault)) => {
                Refusal::Faulted(fault).into()
            }
            AppendError::NotCommitted(reason) => Refusal::Journal(reason).into(),
        }
    }

    /// Step 4: committed history grows by the same fold that a restore uses.
    fn extend_history(&self, prepared: Vec<Prepared>, placed: &[Placed]) -> Vec<Committed> {
        let mut state = self.state();
        prepared
            .into_iter()
            .zip(placed)
            .map(|(prepared, placed)| {
                let length = prepared.bytes.len();
                let committed = Committed::live(prepared.event, placed.seq, placed.lsn, length);
                state.apply(&committed, prepared.key.as_ref(), Some(placed.position));
                committed
            })
            .collect()
    }

    /// Writes the witness slots of the log.
    pub(super) fn witness(&self, boundary: &mut Boundary) -> Result<(), Refusal> {
        self.ready(boundary)?;
        let witnessed = self.log.witness();
        if let Some(fault) = self.log.fault() {
            boundary.latch(&fault);
        }
        witnessed.map_err(|error| match error {
            AppendError::Unknown(fault)
            | AppendError::NotCommitted(NotCommitted::Faulted(fault)) => Refusal::Faulted(fault),
            AppendError::NotCommitted(reason) => Refusal::Journal(reason),
        })
    }

    /// Runs a commit on the store's I/O thread: it runs to its end whatever becomes of the ticket.
    pub(super) fn submit(
        self: &Arc<Self>,
        drafts: Vec<Draft>,
    ) -> Ticket<Result<Vec<Outcome>, CommitError>> {
        self.submit_with(move |_| drafts)
    }

    /// The same for a batch that depends on where the session stands.
    pub(super) fn submit_with(
        self: &Arc<Self>,
        draft: impl FnOnce(&SessionState) -> Vec<Draft> + Send + 'static,
    ) -> Ticket<Result<Vec<Outcome>, CommitError>> {
        let core = self.clone();
        self.io.submit(move || core.commit_with(draft))
    }

    /// Claims a loop for one handle; `None` if another has it.
    pub(super) fn claim(&self, loop_id: LoopId) -> bool {
        lock(&self.claimed).insert(loop_id)
    }

    pub(super) fn release(&self, loop_id: LoopId) {
        lock(&self.claimed).remove(&loop_id);
    }
}

impl Boundary {
    /// Step 5: those who are there are told, in the order of the commits.
    fn publish(&mut self, committed: &[Committed]) {
        self.observers.retain(|observer| match observer.upgrade() {
            Some(observer) => told(|| observer.committed(committed)),
            None => false,
        });
    }

    /// The first fault is kept (P8).
    fn latch(&mut self, fault: &Fault) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault.clone());
        // For those that ask while a commit runs: an observer, or another thread.
        let _ = self.latched.set(fault.clone());
        for observer in self.observers.drain(..) {
            if let Some(observer) = observer.upgrade() {
                told(|| observer.faulted(fault));
            }
        }
    }

    /// Those who are there are told that nothing will come any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for observer in self.observers.drain(..) {
            if let Some(observer) = observer.upgrade() {
                told(|| observer.closed());
            }
        }
    }
}

/// Tells an observer; one that panics is told nothing more, and harms nobody else.
pub(super) fn told(tell: impl FnOnce()) -> bool {
    let told = catch_unwind(AssertUnwindSafe(tell)).is_ok();
    if !told {
        tracing::error!("an observer of a session panicked; it is told nothing more");
    }
    told
}
