//! Opening a session: the log is settled, folded, and what was open is closed durably, in one batch
//! with the fence.

use std::path::Path;
use std::sync::Arc;

use super::blobs::Blobs;
use super::boundary::{SessionCore, lock};
use super::carry::{CarryRecord, LiveState};
use super::committed::Committed;
use super::log::{Log, OwnJournal, ViewedJournal};
use super::options::StoreOptions;
use super::replay::Decoder;
use super::restore::{Bounds, Folded, Start, fold};
use super::session::{Mode, Session};
use super::state::{OpenTurn, SessionState};
use super::{IoThread, PendingGate, ReplayError, SessionError, UnknownEffect};
use crate::event::{
    Body, Header, InterruptReason, RestoreDone, RestoreStarted, SessionStarted, TurnInterrupted,
    encode_record,
};
use crate::identity::{Coordinates, SessionId};
use crate::journal::{
    Carried, Damage, Journal, JournalView, Lsn, NewRecord, Owner, QUARANTINE, Receipt,
    RecoveryReport, Seq, Watch,
};
use crate::sync::Mutex;
use crate::vfs::Vfs;

/// What opening a session found and did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenReport {
    /// The session.
    pub session: SessionId,
    /// The last sequence that was there before this opening wrote anything.
    pub committed: Seq,
    /// The last sequence that was proven durable; those above it were kept although nobody can know
    /// whether they were acknowledged.
    pub proven: Seq,
    /// What recovery found, and what it cut.
    pub journal: RecoveryReport,
    /// Damage to acknowledged data, in a session that was opened read-only.
    pub damage: Option<Damage>,
    /// The first record that cannot be read, of those that opening reads (the active segment and what
    /// no segment carries), in a session that was opened read-only: its state ends before it. In one that
    /// was opened for writing, the first one above the watermark whose body cannot be read from its
    /// file, which is not in `recovered` then ([`ReplayError::Body`]); the session goes on. Of
    /// damage further back who reads it is told, and [`Store::verify`](super::Store::verify) finds it.
    pub unreadable: Option<ReplayError>,
    /// The records above the watermark that opening kept.
    pub recovered: Vec<Committed>,
    /// The turns that were open: closed durably as interrupted, or still open when read-only.
    pub open_turns: Vec<OpenTurn>,
    /// The gates that wait for an answer.
    pub pending_gates: Vec<PendingGate>,
    /// The calls of tools with intents whose step is not there: nobody knows what they did
    /// ([`Session::settle_effect`]). Read-only they may still be running elsewhere.
    pub unknown_effects: Vec<UnknownEffect>,
}

impl OpenReport {
    /// Whether nothing was cut and nothing is damaged. Open turns and records above the watermark
    /// are the ordinary traces of a killed process.
    pub fn is_clean(&self) -> bool {
        self.journal.cut.is_none() && self.damage.is_none() && self.unreadable.is_none()
    }
}

/// A number of things.
fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// One line for a host's log.
impl std::fmt::Display for OpenReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "session {} restored up to {}: {}, {}",
            self.session,
            self.committed,
            count(self.open_turns.len(), "open turn"),
            count(self.pending_gates.len(), "pending gate")
        )?;
        if !self.unknown_effects.is_empty() {
            let calls = count(self.unknown_effects.len(), "tool call");
            write!(f, "; nobody knows what {calls} did")?;
        }
        if let Some(cut) = &self.journal.cut {
            write!(
                f,
                "; {} bytes at offset {} of {} were not proven acknowledged and were cut",
                cut.bytes,
                cut.offset,
                cut.path.display()
            )?;
        }
        match (&self.damage, &self.unreadable) {
            (Some(damage), _) => write!(f, "; DAMAGED: {damage}"),
            (None, Some(unreadable)) => write!(f, "; DAMAGED: {unreadable}"),
            (None, None) => Ok(()),
        }
    }
}

/// What of the store an opening needs.
pub(super) struct Place<'a> {
    pub(super) vfs: &'a Arc<dyn Vfs>,
    pub(super) path: &'a Path,
    /// The blob files of the session.
    pub(super) blobs: Blobs,
    pub(super) options: &'a StoreOptions,
    pub(super) io: &'a Arc<IoThread>,
    /// Who is told how far the opening has come.
    pub(super) watch: Watch,
}

impl Place<'_> {
    pub(super) fn decoder(&self, session: SessionId) -> Decoder {
        Decoder {
            session,
            limits: self.options.limits,
            blobs: self.blobs.clone(),
        }
    }

    /// Whether something lies in quarantine, or may.
    pub(super) fn has_quarantine(&self) -> bool {
        match self.vfs.list(&self.path.join(QUARANTINE)) {
            Ok(files) => !files.is_empty(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    /// What was folded, unless it was ended.
    pub(super) fn folded(&self, folded: Folded) -> Result<Folded, SessionError> {
        self.watch.end();
        self.watch.dismiss();
        Ok(self.watch.outcome(self.path, Ok(folded))?)
    }
}

/// The records of an opening, prepared before the fence is written.
pub(super) struct Prologue {
    events: Vec<crate::event::Event>,
    pub(super) payloads: Vec<Vec<u8>>,
}

impl Prologue {
    pub(super) fn new(
        session: SessionId,
        bodies: Vec<(Coordinates, crate::identity::AgentName, Body)>,
        options: &StoreOptions,
    ) -> Result<Prologue, super::Refusal> {
        let mut prologue = Prologue {
            events: Vec::new(),
            payloads: Vec::new(),
        };
        for (coordinates, name, body) in bodies {
            let coordinates = Coordinates {
                session,
                ..coordinates
            };
            let event = options
                .factory
                .stamp(Header::at(coordinates).named(name), body)?;
            prologue
                .payloads
                .push(encode_record(&event, None, &options.limits)?);
            prologue.events.push(event);
        }
        Ok(prologue)
    }

    /// Begins the journal with the fence and these records in one batch, and folds them.
    fn begin(
        self,
        opening: crate::journal::Opening,
        session: SessionId,
        state: SessionState,
        place: &Place<'_>,
    ) -> Result<(OwnJournal, Arc<Mutex<SessionState>>), SessionError> {
        let state = Arc::new(Mutex::new(state));
        let records: Vec<NewRecord<'_>> = self
            .payloads
            .iter()
            .map(|payload| NewRecord { session, payload })
            .collect();
        let carry = Arc::new(LiveState(state.clone()));
        let opening = opening.workers(place.options.workers.clone());
        let (journal, receipt) = opening.begin(&records, carry)?;
        self.fold(&receipt, &mut lock(&state));
        tracing::debug!(%session, path = %place.path.display(), "session opened");
        Ok((OwnJournal { journal, session }, state))
    }

    /// Folds the records, which are durable.
    pub(super) fn fold(self, receipt: &Receipt, state: &mut SessionState) {
        let lengths = self.payloads.iter().map(Vec::len);
        for ((event, length), placed) in self
            .events
            .into_iter()
            .zip(lengths)
            .zip(receipt.records.iter())
        {
            let committed = Committed::live(event, placed.seq, placed.lsn, length);
            state.apply(&committed, None, Some(placed.position));
        }
    }
}

/// Creates a session in a directory that exists. `admitted` says, once the lock is held, whether the
/// id may be used.
pub(super) fn create(
    place: &Place<'_>,
    session: SessionId,
    started: SessionStarted,
    admitted: &dyn Fn() -> Result<(), SessionError>,
) -> Result<Session, SessionError> {
    let bodies = vec![(
        Coordinates::default(),
        crate::identity::AgentName::default(),
        Body::from(started),
    )];
    let prologue = Prologue::new(session, bodies, place.options).map_err(SessionError::Prepare)?;
    let opening = Journal::create(
        place.vfs.clone(),
        place.path,
        Owner::Session(session),
        place.options.journal.clone(),
    )?;
    admitted()?;
    let state = SessionState::new(place.options);
    let (log, state) = prologue.begin(opening, session, state, place)?;
    Ok(assemble(
        place,
        place.decoder(session),
        Mode::Write,
        Box::new(log),
        state,
        Vec::new(),
    ))
}

/// Opens a session for writing. `admitted` as for [`create`].
pub(super) fn open_for_writing(
    place: &Place<'_>,
    session: SessionId,
    admitted: &dyn Fn() -> Result<(), SessionError>,
) -> Result<(Session, OpenReport), SessionError> {
    let opening = Journal::open_watched(
        place.vfs.clone(),
        place.path,
        Owner::Session(session),
        place.options.journal.clone(),
        &place.watch,
    )?;
    admitted()?;
    let journal = opening.report().clone();
    let carried = opening.newest_carry(|carried| CarryRecord::restore(carried, place.options));
    let start = Start::at(carried, place.options);
    let from = start.last.next();
    opening.replay_begins(from, &place.watch);
    let decoder = place.decoder(session);
    let Folded {
        state,
        recovered,
        lost_body,
        proven,
        unreadable,
        carry,
    } = place.folded(fold(
        &decoder,
        start,
        opening.read(from),
        &Bounds {
            watermark: journal.watermark,
            finished: opening.finished(),
            publishes: true,
        },
    ))?;
    if let Some(error) = unreadable {
        return Err(error.into());
    }
    if let Some(carry) = carry {
        opening.supply_carry(carry);
    }
    // Nothing was ever acknowledged: the creation was cut off, and there is no session.
    if state.last == Seq::ZERO {
        return Err(SessionError::NotFound(session));
    }
    let committed = state.last;
    let open_turns: Vec<OpenTurn> = state.open_turns().collect();
    let bodies = closing(&state, &open_turns);
    let prologue = Prologue::new(session, bodies, place.options).map_err(SessionError::Prepare)?;
    let pending_gates = state.pending.gates.all().cloned().collect();
    let unknown_effects = state.pending.effects.all().cloned().collect();
    let (log, state) = prologue.begin(opening, session, state, place)?;
    let is_quarantined = place.has_quarantine();
    let limits = &place.options.limits;
    decoder.blobs.sweep(&log, limits, is_quarantined);
    let report = OpenReport {
        session,
        committed,
        proven,
        journal,
        damage: None,
        unreadable: lost_body,
        recovered: recovered.clone(),
        open_turns,
        pending_gates,
        unknown_effects,
    };
    let log = Box::new(log);
    let session = assemble(place, decoder, Mode::Write, log, state, recovered);
    Ok((session, report))
}

/// The audit bracket of a restore, with the turns closed that were open at the crash.
pub(super) fn closing(
    state: &SessionState,
    open_turns: &[OpenTurn],
) -> Vec<(Coordinates, crate::identity::AgentName, Body)> {
    let of_session = |body: Body| {
        (
            Coordinates::default(),
            crate::identity::AgentName::default(),
            body,
        )
    };
    let mut bodies = vec![of_session(RestoreStarted {}.into())];
    for open in open_turns {
        let name = state
            .find(open.loop_id)
            .map(|found| found.name.clone())
            .unwrap_or_default();
        let coordinates = Coordinates::default()
            .in_loop(open.loop_id)
            .in_turn(open.turn);
        let body = TurnInterrupted {
            turn_index: open.index,
            reason: Some(InterruptReason::Restart),
        };
        bodies.push((coordinates, name, body.into()));
    }
    bodies.push(of_session(RestoreDone {}.into()));
    bodies
}

/// Opens a session for reading, also when it is damaged: its state ends where the damage begins that
/// the opening met, and [`Session::replay`] gives what is intact behind it. A log that recovery could
/// not decide about is folded from its beginning.
pub(super) fn open_for_reading(
    place: &Place<'_>,
    session: SessionId,
) -> Result<(Session, OpenReport), SessionError> {
    let view = JournalView::open_watched(place.vfs.clone(), place.path, &place.watch)?;
    let journal = view.report().clone();
    let restored = |carried: Carried<'_>| CarryRecord::restore(carried, place.options);
    let carried = match view.damage() {
        Some(_) => None,
        None => view.newest_carry(Lsn::new(u64::MAX), restored),
    };
    let start = Start::at(carried, place.options);
    let from = start.last.next();
    view.replay_begins(from, &place.watch);
    let decoder = place.decoder(session);
    let folded = place.folded(fold(
        &decoder,
        start,
        view.read(from),
        &Bounds {
            watermark: journal.watermark,
            finished: Lsn::ZERO,
            publishes: false,
        },
    ))?;
    let state = folded.state;
    if state.last == Seq::ZERO && folded.unreadable.is_none() && view.damage().is_none() {
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
    let log = Box::new(ViewedJournal { view });
    let state = Arc::new(Mutex::new(state));
    let session = assemble(place, decoder, Mode::Read, log, state, Vec::new());
    Ok((session, report))
}

pub(super) fn assemble(
    place: &Place<'_>,
    decoder: Decoder,
    mode: Mode,
    log: Box<dyn Log>,
    state: Arc<Mutex<SessionState>>,
    recovered: Vec<Committed>,
) -> Session {
    let core = SessionCore::new(
        decoder,
        mode,
        log,
        place.options,
        place.io,
        state,
        recovered,
    );
    Session {
        core: Arc::new(core),
    }
}
