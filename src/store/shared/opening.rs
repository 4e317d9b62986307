//! Creating and opening a session of a shared journal: as in a journal of its own, but that its records
//! are found by its chain, and that its first batch goes where those of the others go.

use std::sync::Arc;

use super::journal::{Claim, Opened};
use super::session::{SharedSession, ViewedSession};
use crate::event::SessionStarted;
use crate::identity::{AgentName, Coordinates, SessionId};
use crate::journal::{
    Carried, JournalView, LOCK, Lsn, NewRecord, OpenError, ReadError, Seq, SessionLog,
};
use crate::store::carry::CarryRecord;
use crate::store::committed::Committed;
use crate::store::open::{OpenReport, Place, Prologue, assemble, closing};
use crate::store::options::StoreOptions;
use crate::store::replay::Decoder;
use crate::store::restore::{Bounds, Folded, Start, fold};
use crate::store::session::{Mode, Session};
use crate::store::state::{OpenTurn, SessionState};
use crate::store::{ReplayError, SessionError};
use crate::sync::Mutex;

impl Opened {
    /// Creates a session: its SessionStarted is its first batch, so it is there whole or not at all.
    /// `admitted` says, once the session is claimed, whether the id may be used.
    pub(in crate::store) fn create(
        self: &Arc<Opened>,
        place: &Place<'_>,
        session: SessionId,
        started: SessionStarted,
        admitted: &dyn Fn() -> Result<(), SessionError>,
    ) -> Result<Session, SessionError> {
        self.may_wait()?;
        let taken = SessionError::AlreadyExists(session);
        let claim = self.book.claim(session).ok_or(taken.clone())?;
        admitted()?;
        if self.journal.learn(session).map_err(unreadable)? != Seq::ZERO {
            return Err(taken);
        }
        let beginning = (Coordinates::default(), AgentName::default(), started.into());
        let prologue = Prologue::new(session, vec![beginning], place.options);
        let prologue = prologue.map_err(SessionError::Prepare)?;
        let state = SessionState::new(place.options);
        let state = self.begin(prologue, session, state)?;
        // Nothing of it was recovered, whenever it is opened again.
        self.served(session);
        Ok(self.assemble(place, session, claim, state, Vec::new()))
    }

    /// Opens a session for writing. `admitted` as for [`Opened::create`].
    pub(in crate::store) fn open_for_writing(
        self: &Arc<Opened>,
        place: &Place<'_>,
        session: SessionId,
        admitted: &dyn Fn() -> Result<(), SessionError>,
    ) -> Result<(Session, OpenReport), SessionError> {
        self.may_wait()?;
        let claim = self.book.claim(session).ok_or_else(|| OpenError::Locked {
            path: place.path.join(LOCK),
            holder: Some(place.vfs.holder()),
        })?;
        admitted()?;
        if self.journal.learn(session).map_err(unreadable)? == Seq::ZERO {
            return Err(SessionError::NotFound(session));
        }
        let watermark = self.recovered_above(session);
        let log = self.journal.session(session);
        let decoder = place.decoder(session);
        let restored = restore(&log, &decoder, watermark, true, place.options);
        let folded = place.folded(restored)?;
        if let Some(error) = folded.unreadable {
            return Err(error.into());
        }
        let (state, recovered) = (folded.state, folded.recovered);
        let committed = state.last;
        let open_turns: Vec<OpenTurn> = state.open_turns().collect();
        let bodies = closing(&state, &open_turns);
        let prologue = Prologue::new(session, bodies, place.options);
        let prologue = prologue.map_err(SessionError::Prepare)?;
        let report = OpenReport {
            session,
            committed,
            proven: folded.proven,
            journal: self.report.clone(),
            damage: None,
            unreadable: folded.lost_body,
            recovered: recovered.clone(),
            open_turns,
            pending_gates: state.pending.gates.all().cloned().collect(),
            unknown_effects: state.pending.effects.all().cloned().collect(),
        };
        let state = self.begin(prologue, session, state)?;
        self.served(session);
        let session = self.assemble(place, session, claim, state, recovered);
        // The claim keeps out who would write a file meanwhile, as the lock of a journal of its own does.
        let limits = &place.options.limits;
        let is_quarantined = place.has_quarantine();
        decoder
            .blobs
            .sweep(&*session.core.log, limits, is_quarantined);
        Ok((session, report))
    }

    /// Appends the first batch of a session's opening, where the session stands, and folds it.
    fn begin(
        &self,
        prologue: Prologue,
        session: SessionId,
        mut state: SessionState,
    ) -> Result<Arc<Mutex<SessionState>>, SessionError> {
        let records: Vec<NewRecord<'_>> = prologue
            .payloads
            .iter()
            .map(|payload| NewRecord { session, payload })
            .collect();
        let receipt = self.journal.append(&records, Some(state.last));
        let receipt = receipt.map_err(|error| OpenError::Fence(error).of_handles())?;
        prologue.fold(&receipt, &mut state);
        Ok(Arc::new(Mutex::new(state)))
    }

    fn assemble(
        self: &Arc<Opened>,
        place: &Place<'_>,
        session: SessionId,
        claim: Claim,
        state: Arc<Mutex<SessionState>>,
        recovered: Vec<Committed>,
    ) -> Session {
        claim.opened(&state);
        let log = Box::new(SharedSession::new(self.clone(), session, claim));
        assemble(
            place,
            place.decoder(session),
            Mode::Write,
            log,
            state,
            recovered,
        )
    }
}

/// Opens a session for reading, also when the journal is damaged.
pub(in crate::store) fn open_for_reading(
    place: &Place<'_>,
    view: JournalView,
    session: SessionId,
) -> Result<(Session, OpenReport), SessionError> {
    let journal = view.report().clone();
    let log = view.session(session);
    let decoder = place.decoder(session);
    let restored = restore(&log, &decoder, journal.watermark, false, place.options);
    let folded = place.folded(restored)?;
    let state = folded.state;
    if state.last == Seq::ZERO && folded.unreadable.is_none() {
        return Err(SessionError::NotFound(session));
    }
    let report = OpenReport {
        session,
        committed: state.last,
        proven: folded.proven,
        journal,
        damage: view.damage().cloned(),
        unreadable: folded.unreadable,
        recovered: Vec::new(),
        open_turns: state.open_turns().collect(),
        pending_gates: state.pending.gates.all().cloned().collect(),
        unknown_effects: state.pending.effects.all().cloned().collect(),
    };
    let log = Box::new(ViewedSession { view, log });
    let state = Arc::new(Mutex::new(state));
    let session = assemble(place, decoder, Mode::Read, log, state, Vec::new());
    Ok((session, report))
}

/// Folds a session: from the newest footer that says its state, over its records behind that.
fn restore(
    log: &SessionLog,
    decoder: &Decoder,
    watermark: Lsn,
    publishes: bool,
    options: &StoreOptions,
) -> Folded {
    let carried = log.newest_state(|bytes, seq| {
        let carried = Carried {
            last: Lsn::new(u64::MAX),
            seq: Some(seq),
            bytes,
        };
        CarryRecord::restore(carried, options)
    });
    let carried = carried.map(|(seq, state)| (Lsn::new(seq.get()), state));
    let start = Start::at(carried, options);
    let entries = log.read(start.state.last.next());
    let bounds = Bounds {
        watermark,
        finished: Lsn::ZERO,
        publishes,
    };
    fold(decoder, start, entries, &bounds)
}

fn unreadable(error: ReadError) -> SessionError {
    SessionError::History(ReplayError::Journal(error))
}
