//! Reading the sessions of a shared journal without a claim: listing, and what tools look at.

use super::opening::open_for_reading;
use crate::identity::SessionId;
use crate::journal::{JournalView, OpenError, Seq, Watch};
use crate::store::carry::CarryRecord;
use crate::store::listing::{Listed, SessionEntry};
use crate::store::log::Entries;
use crate::store::open::{OpenReport, Place};
use crate::store::session::Session;
use crate::store::{Layout, SessionError, Store, StoreError, tombstone};

impl Store {
    /// The journal as it is: that of this process if it is open here, or else what is on disk.
    pub(in crate::store) fn shared_view(&self, watch: &Watch) -> Result<JournalView, OpenError> {
        match self.inner.shared.current() {
            Some(opened) => Ok(opened.journal.view()),
            None => JournalView::open_watched(self.inner.vfs.clone(), &self.journal_dir(), watch),
        }
    }

    pub(in crate::store) fn open_shared_for_reading(
        &self,
        place: &Place<'_>,
        id: SessionId,
    ) -> Result<(Session, OpenReport), SessionError> {
        open_for_reading(place, self.shared_view(&place.watch)?, id)
    }

    /// The records of one session in a view of its journal.
    pub(in crate::store) fn entries_of(&self, id: SessionId, view: &JournalView) -> Entries {
        match self.inner.layout {
            Layout::Shared => Box::new(view.session(id).read(Seq::new(1))),
            Layout::PerSession => Box::new(view.read(crate::journal::Lsn::ZERO)),
        }
    }

    pub(in crate::store) fn shared_sessions(&self) -> Result<Vec<SessionEntry>, StoreError> {
        let view = self.shared_view(&Watch::default())?;
        let ids = view.sessions()?;
        let tombstones = self.tombstones()?;
        let mut entries = Vec::new();
        for id in ids {
            if !tombstones.is_empty() && tombstones.contains(&tombstone::name(id)) {
                continue;
            }
            let listed = self.listed_shared(id, &view);
            entries.extend(listed.map(|listed| SessionEntry {
                id,
                state: Ok(listed),
            }));
        }
        Ok(entries)
    }

    /// As for a journal of its own: the head, the tail, and what was changed before that by the newest
    /// state in a footer.
    pub(in crate::store) fn listed_shared(
        &self,
        id: SessionId,
        view: &JournalView,
    ) -> Option<Listed> {
        let limits = &self.inner.options.limits;
        let mut listed = Listed::empty(view);
        let log = view.session(id);
        for entry in log.read(Seq::new(1)).take(4) {
            if listed.take(id, entry, limits) {
                break;
            }
        }
        let tail = log.last_part();
        let said = log.newest_state(|bytes, seq| {
            let said = CarryRecord::metadata(bytes)?;
            (seq < tail).then_some(said)
        });
        let mut from = Seq::new(1);
        if let Some((seq, metadata)) = said {
            from = seq.next();
            listed.metadata = metadata.unwrap_or(listed.metadata);
        }
        for entry in log.read(from) {
            listed.take(id, entry, limits);
        }
        let harmed = listed.unreadable.is_some();
        (listed.last_seq > Seq::ZERO || harmed).then_some(listed)
    }
}
