//! Listing and verifying sessions. Nothing here takes a lock or writes a byte (but that deletions which
//! were cut off are finished), and one damaged or
//! unreadable session never hides the others (robustness 27, 51).

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::carry::CarryRecord;
use super::catalog::Known;
use super::committed::Committed;
use super::delete::session_names;
use super::listed::{Listed, SessionStatus, listed};
use super::making::is_making;
use super::replay::{Decoder, Order};
use super::state::SessionState;
use super::tombstone;
use super::{Layout, ReplayError, SESSIONS, Store, StoreError, list};
use crate::event::Kind;
use crate::identity::SessionId;
use crate::journal::{
    Damage, FrameKind, Gap, JournalView, Lsn, Names, OpenError, Owner, Progress, ReadError,
    RecoveryReport, Seq, Watch,
};

/// A session as a listing shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionEntry {
    /// Its id.
    pub id: SessionId,
    /// What its log says, or why it cannot be read. A listing never fails for one session.
    pub state: Result<Listed, OpenError>,
}

impl SessionEntry {
    /// What it is doing; [`SessionStatus::Damaged`] if its log is damaged or cannot be read.
    pub fn status(&self) -> SessionStatus {
        match &self.state {
            Ok(listed) if listed.is_whole() => listed.status,
            _ => SessionStatus::Damaged,
        }
    }
}

/// What reading everything of a session found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The session.
    pub session: SessionId,
    /// The events that can be read.
    pub events: u64,
    /// The committed steps among them.
    pub steps: u64,
    /// The last sequence that can be read.
    pub last_seq: Seq,
    /// What an opening would find: the proven bound, and what it would cut.
    pub journal: RecoveryReport,
    /// Damage that the decision found.
    pub damage: Option<Damage>,
    /// Records that were deleted or given up by a repair. They are gone and named, so they are no
    /// damage; the session opens read-only.
    pub gaps: Vec<Gap>,
    /// What cannot be read, one by one.
    pub unreadable: Vec<ReplayError>,
    /// The files of torn tails that earlier openings cut; they stay until somebody removes them.
    pub quarantined: Vec<PathBuf>,
}

impl VerifyReport {
    /// Whether all that was acknowledged can be read. A torn tail is no damage: nothing in it is
    /// proven to have been acknowledged.
    pub fn is_intact(&self) -> bool {
        self.damage.is_none() && self.unreadable.is_empty()
    }
}

impl Store {
    /// The sessions of the store, by id. Reads the head and the tail of each log, and more where no
    /// carry record says what lies before the tail; [`Store::list`] is faster and gives pages. Deletions that
    /// were cut off are finished first, unless the store was opened only to look
    /// ([`Store::open_existing`]).
    ///
    /// # Errors
    /// Only if the sessions' directory cannot be listed.
    pub fn sessions(&self) -> Result<Vec<SessionEntry>, StoreError> {
        self.gather(&mut Known::default())
    }

    /// The same; what is known of a session is believed if it holds.
    pub(super) fn gather(&self, known: &mut Known) -> Result<Vec<SessionEntry>, StoreError> {
        if self.inner.tidies {
            self.finish_deletions();
        }
        if self.inner.layout == Layout::Shared {
            return self.shared_sessions();
        }
        let names = list(&self.inner.vfs, &self.inner.dir.join(SESSIONS))?;
        if self.inner.tidies && names.iter().any(|name| is_making(name)) {
            self.sweep_making();
        }
        // Listed behind the sessions: one that is deleted meanwhile is not shown half gone.
        let tombstones = self.tombstones()?;
        let mut entries = Vec::new();
        for id in session_names(names) {
            if !tombstones.is_empty() && tombstones.contains(&tombstone::name(id)) {
                continue;
            }
            let dir = self.session_dir(id);
            if let Some(listed) = known.believed(id, &self.inner.vfs, &dir) {
                entries.push(SessionEntry {
                    id,
                    state: Ok(listed),
                });
                continue;
            }
            let names = known.wanted().then(|| Names::now(&self.inner.vfs, &dir));
            let state = match self.own_view(id) {
                // Created halfway, and never acknowledged: there is no session.
                Err(OpenError::NotFound { .. }) => continue,
                Err(error) => Err(error),
                Ok(view) => match listed(&self.decoder(id), &view) {
                    Some(listed) => {
                        if let Some(names) = names.flatten() {
                            known.read(id, names, &view, &listed);
                        }
                        Ok(listed)
                    }
                    None => continue,
                },
            };
            // What another process deletes at this moment may look damaged.
            let whole = matches!(&state, Ok(listed) if listed.damage.is_none());
            if !whole && self.is_deleted(id)? {
                continue;
            }
            entries.push(SessionEntry { id, state });
        }
        Ok(entries)
    }

    /// The journal of a session, which may be another's that was renamed or moved.
    fn own_view(&self, id: SessionId) -> Result<JournalView, OpenError> {
        let view = self.journal_view(id)?;
        match view.owner() {
            Owner::Session(found) if found != id => Err(OpenError::WrongOwner {
                path: self.session_dir(id),
                expected: id,
                found,
            }),
            _ => Ok(view),
        }
    }

    /// Reads the records of a session.
    pub(super) fn decoder(&self, id: SessionId) -> Decoder {
        Decoder {
            session: id,
            limits: self.inner.options.limits,
            blobs: self.blobs(id),
        }
    }

    /// Reads everything of a session, and says what is wrong with it.
    ///
    /// # Errors
    /// As for [`JournalView::open`]; damage is in the report.
    pub fn verify(&self, id: SessionId) -> Result<VerifyReport, OpenError> {
        self.verify_watched(id, &Watch::default())
    }

    /// The same, and tells how far it has come, at most about every 256 KiB; a `Break` ends it.
    ///
    /// # Errors
    /// As for [`Store::verify`], and [`OpenError::Aborted`].
    pub fn verify_with_progress(
        &self,
        id: SessionId,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<VerifyReport, OpenError> {
        self.verify_watched(id, &Watch::new(progress))
    }

    fn verify_watched(&self, id: SessionId, watch: &Watch) -> Result<VerifyReport, OpenError> {
        self.require_not_deleted(id)?;
        let path = self.session_dir(id);
        let view = match self.inner.layout {
            Layout::Shared => self.shared_view(watch)?,
            Layout::PerSession => JournalView::open_watched(self.inner.vfs.clone(), &path, watch)?,
        };
        // There, unlike in a directory of its own, a session that does not exist looks like an empty one.
        if self.inner.layout == Layout::Shared && view.session(id).is_absent() {
            return Err(OpenError::NotFound { path });
        }
        let verified = self.verify_view(id, &view, watch);
        watch.end();
        watch.outcome(&path, verified)
    }

    fn verify_view(
        &self,
        id: SessionId,
        view: &JournalView,
        watch: &Watch,
    ) -> Result<VerifyReport, OpenError> {
        let mut report = VerifyReport {
            session: id,
            events: 0,
            steps: 0,
            last_seq: Seq::ZERO,
            journal: view.report().clone(),
            damage: view.damage().cloned(),
            gaps: Vec::new(),
            unreadable: Vec::new(),
            quarantined: view.quarantined().map_err(OpenError::Disk)?,
        };
        let decoder = self.decoder(id);
        let mut order = Order::from(Seq::new(1));
        let carries = match self.inner.layout {
            Layout::Shared => view.session(id).states(),
            Layout::PerSession => view.carries(),
        };
        let mut fold = Carried::new(carries.map_err(OpenError::Disk)?);
        view.replay_begins(Lsn::ZERO, watch);
        let mut last_record = Lsn::ZERO;
        for entry in self.entries_of(id, view) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error @ ReadError::Header { .. }) => {
                    report.unreadable.push(error.into());
                    continue;
                }
                Err(ReadError::Gap { first, last, kind }) => {
                    order.damage();
                    fold.stop();
                    report.gaps.push(Gap::new(first, last, kind));
                    continue;
                }
                Err(error) => {
                    order.damage();
                    fold.stop();
                    report.unreadable.push(error.into());
                    continue;
                }
            };
            report.unreadable.extend(fold.disagrees_before(entry.lsn));
            if entry.kind != FrameKind::Record {
                continue;
            }
            if let Err(gap) = order.take(entry.seq) {
                report.unreadable.push(gap);
            }
            for gap in report.gaps.iter_mut().rev() {
                if gap.first < last_record {
                    break;
                }
                gap.followed_by(report.last_seq, entry.seq);
            }
            last_record = entry.lsn;
            report.last_seq = entry.seq;
            match decoder.decode(&entry) {
                Ok(Some((committed, _))) => {
                    fold.take(&committed);
                    report.events += 1;
                    report.steps += u64::from(committed.event().kind() == Kind::StepDone);
                }
                Ok(None) => {
                    fold.pass(entry.seq);
                    report.events += 1;
                }
                Err(error) => {
                    fold.stop();
                    report.unreadable.push(error);
                }
            }
        }
        Ok(report)
    }
}

/// Holds the carry records of a log against the fold of its events, as far as all can be read.
struct Carried {
    carries: std::vec::IntoIter<(Lsn, Vec<u8>)>,
    next: Option<(Lsn, Vec<u8>)>,
    state: SessionState,
}

impl Carried {
    fn new(carries: Vec<(Lsn, Vec<u8>)>) -> Carried {
        let mut carries = carries.into_iter();
        Carried {
            next: carries.next(),
            carries,
            state: SessionState::default(),
        }
    }

    fn take(&mut self, committed: &Committed) {
        self.state.apply(committed, None, None);
    }

    fn pass(&mut self, seq: Seq) {
        self.state.last = seq;
    }

    fn stop(&mut self) {
        self.next = None;
    }

    /// The carry record of what lies before an entry, if it says something else than the events.
    fn disagrees_before(&mut self, lsn: Lsn) -> Option<ReplayError> {
        let (last, bytes) = self.next.take_if(|(last, _)| *last < lsn)?;
        self.next = self.carries.next();
        let agrees = CarryRecord::of(&self.state).agrees(&bytes);
        (agrees == Some(false)).then_some(ReplayError::Carry { lsn: last })
    }
}
