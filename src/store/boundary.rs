//! The commit boundary of a session: the one place where events become durable.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use super::catalog::Mark;
use super::committed::{Committed, Outcome};
use super::draft::Draft;
use super::flight::{Encoded, InFlight, Request, Submitted};
use super::io::{IoThread, Promise, Ticket};
use super::log::Log;
use super::options::StoreOptions;
use super::outside::{Tidy, Unwritten};
use super::replay::Decoder;
use super::session::Mode;
use super::state::{Admission, SessionState};
use super::taken::Taken;
use super::{CommitError, Refusal, ReplayError, SessionCloseError};
use crate::contain::{contained, dropped};
use crate::event::{
    Body, Factory, Header, Key, Limits, check_pairing, decode_header, encode_record,
};
use crate::identity::{Coordinates, LoopId, SessionId, StepId};
use crate::journal::{AppendError, Fault, Lsn, NotCommitted, ReadError, Seq, Workers};
use crate::metrics::{Measure, Meter};
use crate::sync::{Mutex, MutexGuard};

/// What is told of a session's commits, in their order: the hub is one.
///
/// It is called between the durable append and the answer to the caller, so it must not block; a
/// ticket, or another thread that commits, is not to be waited for. Reading is fine. What commits,
/// witnesses, parks or closes the same session is refused ([`Refusal::Reentrant`]), and an observer
/// that joins is told of what comes behind this. One that panics is told nothing more.
pub trait Observer: Send + Sync {
    /// These events are durable now.
    fn committed(&self, batch: &[Committed]);
    /// The session is faulted; nothing will be committed any more.
    fn faulted(&self, fault: &Fault);
    /// The session was closed; nothing will be committed any more.
    fn closed(&self) {}
}

/// What a commit comes to.
pub(super) type CommitResult = Result<Vec<Outcome>, CommitError>;

/// A session, behind its handles.
pub(super) struct SessionCore {
    pub(super) id: SessionId,
    pub(super) mode: Mode,
    pub(super) log: Box<dyn Log>,
    pub(super) limits: Limits,
    pub(super) decoder: Decoder,
    /// Bodies of at least so many bytes stand in files.
    pub(super) blob_threshold: usize,
    /// Bytes of such bodies that may be under way before those that cannot wait are refused.
    pub(super) queue_bytes: u64,
    pub(super) factory: Factory,
    pub(super) io: Arc<IoThread>,
    pub(super) workers: Workers,
    pub(super) meter: Meter,
    /// Whose commits wait for the same token have the same number.
    pub(super) token: usize,
    /// Orders the commits. Held for moments only, never while the disk works.
    pub(super) boundary: Mutex<Boundary>,
    /// Batches whose large bodies the workers write.
    pub(super) unwritten: Mutex<VecDeque<Unwritten>>,
    /// The first fault, to be read without waiting for a commit.
    pub(super) latched: Arc<OnceLock<Fault>>,
    /// Held for moments only.
    state: Arc<Mutex<SessionState>>,
    claimed: Mutex<HashSet<LoopId>>,
    /// By which the catalog learns of commits.
    pub(super) mark: OnceLock<Mark>,
    /// What the floor above keeps for the life of the session: its hub.
    #[cfg(feature = "runtime")]
    pub(super) companion: super::companion::Companion,
}

/// The order of commits, and who is told of them.
#[derive(Default)]
pub(super) struct Boundary {
    session: SessionId,
    meter: Meter,
    pub(super) fault: Option<Fault>,
    pub(super) latched: Arc<OnceLock<Fault>>,
    pub(super) closed: bool,
    pub(super) observers: Vec<Weak<dyn Observer>>,
    /// What opening kept above the watermark: given to the first hub once (design, section 3).
    pub(super) recovered: Vec<Committed>,
    /// Commits whose turn has not come.
    pub(super) waiting: VecDeque<Request>,
    /// Commits that are on their way to the disk, in the order of the log.
    pub(super) flight: VecDeque<InFlight>,
    /// Their loops and keys, and those of commits whose large bodies are being written.
    pub(super) taken: Taken,
    /// Bytes of large bodies that are under way.
    pub(super) large: u64,
    /// What is to be done to blob files when the boundary is left.
    pub(super) tidy: Vec<Tidy>,
    /// Who is told behind that: nothing is left of a commit that was refused.
    pub(super) refusals: Vec<(Promise<CommitResult>, CommitError)>,
    /// Why the first of them that failed did, if one did.
    pub(super) refused: Option<NotCommitted>,
    /// Whether a commit waits for the keys of earlier processes, and whether they are being read.
    pub(super) wants_keys: bool,
    pub(super) loading_keys: bool,
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

impl SessionCore {
    pub(super) fn new(
        decoder: Decoder,
        mode: Mode,
        log: Box<dyn Log>,
        options: &StoreOptions,
        io: &Arc<IoThread>,
        state: Arc<Mutex<SessionState>>,
        recovered: Vec<Committed>,
    ) -> SessionCore {
        let latched = Arc::<OnceLock<Fault>>::default();
        // An address that is no other session's.
        let token = log.token().unwrap_or(Arc::as_ptr(&state).addr());
        let id = decoder.session;
        let meter = options.journal.meter.clone();
        SessionCore {
            token,
            id,
            mode,
            log,
            limits: decoder.limits,
            decoder,
            blob_threshold: options.blob_threshold,
            queue_bytes: options.journal.queue_bytes,
            factory: options.factory.clone(),
            io: io.clone(),
            workers: options.workers.clone(),
            meter: meter.clone(),
            latched: latched.clone(),
            boundary: Mutex::new(Boundary {
                session: id,
                meter,
                recovered,
                latched,
                ..Boundary::default()
            }),
            unwritten: Mutex::default(),
            state,
            claimed: Mutex::new(HashSet::new()),
            mark: OnceLock::new(),
            #[cfg(feature = "runtime")]
            companion: super::companion::Companion::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        lock(&self.state)
    }

    /// The commit boundary (design, section 3): stamp, preflight, durable append, history,
    /// publication, answer. Nothing behind the append happens unless it said that the batch is
    /// durable (P2), and the batch is atomic (P3). With `behind` only if the session stands there.
    pub(super) fn commit(
        self: &Arc<Self>,
        behind: Option<Seq>,
        drafts: Vec<Draft>,
    ) -> CommitResult {
        let events = drafts.len();
        let _span = tracing::debug_span!("commit", session = %self.id, events).entered();
        let batch = Submitted::new(behind, self.encode(drafts)?);
        self.wait(self.request(batch, true))
    }

    /// The same for a batch of a loop, without keys, that depends on where the session stands: it is
    /// made when its turn has come, behind all commits of the loop that were submitted before it.
    pub(super) fn commit_with(
        self: &Arc<Self>,
        loop_id: LoopId,
        draft: impl FnOnce(&SessionState) -> Vec<Draft> + Send + 'static,
    ) -> CommitResult {
        let batch = Submitted::Made(loop_id, false, Box::new(draft));
        self.wait(self.request(batch, true))
    }

    /// A commit that does not block: it runs to its end whatever becomes of the ticket.
    pub(super) fn submit(
        self: &Arc<Self>,
        behind: Option<Seq>,
        drafts: Vec<Draft>,
    ) -> Ticket<CommitResult> {
        match self.encode(drafts) {
            Ok(batch) => self.request(Submitted::new(behind, batch), false),
            Err(refusal) => Ticket::ready(Err(refusal.into())),
        }
    }

    /// The same for a batch of a loop that depends on where the session stands, and whether it has
    /// idempotency keys.
    pub(super) fn submit_with(
        self: &Arc<Self>,
        loop_id: LoopId,
        keyed: bool,
        draft: impl FnOnce(&SessionState) -> Vec<Draft> + Send + 'static,
    ) -> Ticket<CommitResult> {
        self.request(Submitted::Made(loop_id, keyed, Box::new(draft)), false)
    }

    fn wait(&self, ticket: Ticket<CommitResult>) -> CommitResult {
        // Without threads, who waits runs what is queued.
        while !ticket.is_ready() && self.workers.run_queued() {}
        ticket.wait()?
    }

    pub(super) fn ready(&self, boundary: &Boundary) -> Result<(), Refusal> {
        if self.mode == Mode::Read {
            return Err(Refusal::ReadOnly);
        }
        if let Some(fault) = &boundary.fault {
            return Err(Refusal::Faulted(fault.clone()));
        }
        match boundary.closed {
            true => Err(Refusal::Journal(NotCommitted::Closed)),
            false => Ok(()),
        }
    }

    /// Steps 1 and 2 as far as they do not depend on where the session stands, in the caller's
    /// thread: coordinates, event id, creation time; validation, encoding, and the reader's
    /// acceptance (P10).
    fn encode(&self, drafts: Vec<Draft>) -> Result<Vec<Encoded>, Refusal> {
        self.ready(&*self.enter()?)?;
        self.stamp(drafts)
    }

    pub(super) fn stamp(&self, drafts: Vec<Draft>) -> Result<Vec<Encoded>, Refusal> {
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
                let event = self.factory.stamp(header, draft.body)?;
                if let Body::StepDone(step) = &event.body {
                    check_pairing(step)?;
                }
                // The number of a turn is known only when its turn has come.
                let bytes = match event.body {
                    Body::TurnStarted(_) => Vec::new(),
                    _ => encode_record(&event, draft.key.as_ref(), &self.limits)?,
                };
                Ok(Encoded {
                    event,
                    key: draft.key,
                    bytes,
                    blob: None,
                })
            })
            .collect()
    }

    /// Step 2 when the turn of a batch has come: repeats are found, and the rest must fit where the
    /// session stands. Gives, for each event, the first commit if it is a repeat.
    pub(super) fn preflight(
        &self,
        state: &SessionState,
        batch: Vec<Encoded>,
    ) -> Result<(Vec<Option<Committed>>, Vec<Encoded>), Refusal> {
        let mut admission = Admission::new(state);
        let mut known = Vec::with_capacity(batch.len());
        let mut prepared = Vec::with_capacity(batch.len());
        let mut repeated = StepId::nil();
        for mut encoded in batch {
            // What a host bound to a step is part of it: a repeated step repeats it too (P3).
            let at = encoded.event.header.coordinates;
            if !at.step.is_nil() && at.step == repeated {
                continue;
            }
            let key = encoded.key.as_ref();
            if let Body::TurnStarted(started) = &mut encoded.event.body {
                started.turn_index = admission.next_turn_index(at.loop_id);
                encoded.bytes = encode_record(&encoded.event, key, &self.limits)?;
            }
            if let Some(key) = key
                && prepared
                    .iter()
                    .any(|before: &Encoded| before.key.as_ref() == Some(key))
            {
                return Err(Refusal::KeyTwice { key: key.clone() });
            }
            if let Some(first) = self.first_commit(state, key, &encoded.bytes)? {
                known.push(Some(first));
                repeated = at.step;
                continue;
            }
            admission.admit(&encoded.event)?;
            known.push(None);
            prepared.push(encoded);
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
        let Some((key, position)) = key.and_then(|key| Some((key, state.keys.get(key)?))) else {
            return Ok(None);
        };
        let unreadable = |error: ReadError| Refusal::FirstUnreadable(error.into());
        let entry = self.log.read_at(&position).map_err(unreadable)?;
        // What a key remembers stands there: nothing is not "never committed".
        let Some(entry) = entry else {
            return Err(unreadable(ReadError::Damaged {
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
        let header = |bytes| decode_header(bytes, &self.limits).ok();
        let same = header(&entry.payload)
            .zip(header(bytes))
            .is_some_and(|(old, new)| old.same_content(&new));
        if !same {
            return Err(reused());
        }
        match self.decoder.decode(&entry) {
            Ok(Some((first, _))) => Ok(Some(first)),
            Err(error @ ReplayError::Body { .. }) => Err(Refusal::FirstUnreadable(error)),
            _ => Err(reused()),
        }
    }

    /// Writes the witness slots of the log.
    pub(super) fn witness(&self) -> Result<(), Refusal> {
        self.aside(|log| log.witness())
    }

    /// Closes the files of the log until it is used again.
    pub(super) fn park(&self) -> Result<(), Refusal> {
        self.aside(|log| log.park())
    }

    /// Something that the log does apart from commits.
    fn aside(&self, does: impl FnOnce(&dyn Log) -> Result<(), AppendError>) -> Result<(), Refusal> {
        self.may_wait()?;
        self.ready(&*self.enter()?)?;
        let witnessed = does(&*self.log);
        if let Some(fault) = self.log.fault() {
            self.entered().latch(&fault);
        }
        witnessed.map_err(|error| match error {
            AppendError::Unknown(fault)
            | AppendError::NotCommitted(NotCommitted::Faulted(fault)) => Refusal::Faulted(fault),
            AppendError::NotCommitted(reason) => Refusal::Journal(reason),
        })
    }

    /// Closes for all handles: what is under way is finished, what waits is refused.
    pub(super) fn close(&self) -> Result<(), SessionCloseError> {
        self.may_wait()?;
        let waiting = {
            let mut boundary = self.enter()?;
            boundary.closed = true;
            std::mem::take(&mut boundary.waiting)
        };
        for request in waiting {
            request.refuse(Refusal::Journal(NotCommitted::Closed));
        }
        let closed = self.log.close();
        self.touch();
        self.entered().close();
        Ok(closed?)
    }

    /// The log has grown, or was closed.
    pub(super) fn touch(&self) {
        if let Some(mark) = self.mark.get() {
            mark.touch();
        }
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
    /// Whether the keys of earlier processes are to be read now, by who asks.
    pub(super) fn begins_to_load(&mut self) -> bool {
        let begins = std::mem::take(&mut self.wants_keys) && !self.loading_keys;
        self.loading_keys |= begins;
        begins
    }

    /// Step 5: those who are there are told, in the order of the commits.
    pub(super) fn publish(&mut self, committed: &[Committed]) {
        self.observers
            .retain(|observer| tell(observer, |observer| observer.committed(committed)));
    }

    /// The first fault is kept (P8).
    pub(super) fn latch(&mut self, fault: &Fault) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault.clone());
        let session = self.session;
        self.meter.record(|| Measure::Fault { session });
        // For those that ask while a commit runs: an observer, or another thread.
        let _ = self.latched.set(fault.clone());
        for observer in self.observers.drain(..) {
            tell(&observer, |observer| observer.faulted(fault));
        }
    }

    /// The commits with keys that wait cannot be checked for repeats.
    pub(super) fn refuse_keyed(&mut self, error: &ReplayError) {
        self.wants_keys = false;
        let waiting = std::mem::take(&mut self.waiting);
        let (keyed, others): (VecDeque<_>, _) = waiting.into_iter().partition(Request::is_keyed);
        self.waiting = others;
        for request in keyed {
            request.refuse(Refusal::KeysUnreadable(error.clone()));
        }
    }

    /// Those who are there are told that nothing will come any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for observer in self.observers.drain(..) {
            tell(&observer, |observer| observer.closed());
        }
    }

    /// Tells an observer of all that comes, or that nothing will.
    pub(super) fn join(&mut self, observer: Weak<dyn Observer>) {
        if let Some(fault) = &self.fault {
            tell(&observer, |observer| observer.faulted(fault));
        } else if self.closed {
            tell(&observer, |observer| observer.closed());
        } else {
            self.observers.push(observer);
        }
    }
}

/// Tells an observer, if it is there; one that panics is told nothing more, and harms nobody else.
fn tell(observer: &Weak<dyn Observer>, what: impl FnOnce(&dyn Observer)) -> bool {
    let Some(observer) = observer.upgrade() else {
        return false;
    };
    let told = contained(|| what(&*observer)).is_ok();
    if !told {
        tracing::error!("an observer of a session panicked; it is told nothing more");
    }
    // Its host may have given it up meanwhile.
    dropped(observer);
    told
}
