//! The logs behind the catalog, as its thread reads them.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::made;
use crate::event::Limits;
use crate::identity::SessionId;
use crate::journal::{JournalView, Names, Owner};
use crate::store::SESSIONS;
use crate::store::blobs::Blobs;
use crate::store::delete::session_names;
use crate::store::listed::listed;
use crate::store::replay::Decoder;
use crate::store::tombstone::{self, DELETED};
use crate::vfs::Vfs;

/// Where the sessions of a store are.
pub(super) struct Logs {
    vfs: Arc<dyn Vfs>,
    store: PathBuf,
    limits: Limits,
}

impl Logs {
    pub(super) fn of(vfs: &Arc<dyn Vfs>, store: &Path, limits: Limits) -> Logs {
        Logs {
            vfs: vfs.clone(),
            store: store.to_owned(),
            limits,
        }
    }

    /// The entry of a session, read as a listing reads it; `None` if there is none to be believed later.
    pub(super) fn entry(&self, id: SessionId) -> Option<Vec<u8>> {
        let journal = self.store.join(SESSIONS).join(id.to_string());
        let names = Names::now(&self.vfs, &journal)?;
        let view = JournalView::open(self.vfs.clone(), &journal).ok()?;
        if !matches!(view.owner(), Owner::Session(found) if found == id) {
            return None;
        }
        let decoder = Decoder {
            session: id,
            limits: self.limits,
            blobs: Blobs::of(&self.vfs, &journal),
        };
        let listed = listed(&decoder, &view)?;
        made(id, names, &view, &listed)
    }

    /// Which of these are no sessions any more. A directory that cannot be listed says nothing.
    pub(super) fn gone(&self, ids: impl Iterator<Item = SessionId>) -> Vec<SessionId> {
        let names = |dir: &str| match self.vfs.list(&self.store.join(dir)) {
            Ok(entries) => Some(
                entries
                    .into_iter()
                    .map(|entry| entry.name)
                    .collect::<Vec<_>>(),
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => Some(Vec::new()),
            Err(_) => None,
        };
        let (Some(sessions), Some(deleted)) = (names(SESSIONS), names(DELETED)) else {
            return Vec::new();
        };
        let sessions: HashSet<SessionId> = session_names(sessions).collect();
        let deleted: HashSet<String> = deleted.into_iter().collect();
        let stays = |id| sessions.contains(&id) && !deleted.contains(&tombstone::name(id));
        ids.filter(|id| !stays(*id)).collect()
    }
}
