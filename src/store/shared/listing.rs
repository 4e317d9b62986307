//! Reading the sessions of a shared journal without a claim: listing, and what tools look at.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::opening::open_for_reading;
use crate::identity::SessionId;
use crate::journal::{JournalView, OpenError, Seq, Watch};
use crate::store::listed::listed_shared;
use crate::store::listing::SessionEntry;
use crate::store::log::Entries;
use crate::store::open::{OpenReport, Place};
use crate::store::session::Session;
use crate::store::{JOURNAL, Layout, SessionError, Store, StoreError, tombstone};
use crate::vfs::Vfs;

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
            let listed = listed_shared(&self.decoder(id), &view);
            entries.extend(listed.map(|listed| SessionEntry {
                id,
                state: Ok(listed),
            }));
        }
        Ok(entries)
    }
}

/// Whether the one journal of the store in a directory has sessions.
pub(in crate::store) fn has_sessions(vfs: &Arc<dyn Vfs>, store: &Path) -> Result<bool, StoreError> {
    match JournalView::open(vfs.clone(), &store.join(JOURNAL)) {
        Ok(view) => Ok(!view.sessions()?.is_empty()),
        Err(OpenError::NotFound { .. }) => Ok(false),
        Err(OpenError::Disk(error)) if error.kind == ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(error.into()),
    }
}
