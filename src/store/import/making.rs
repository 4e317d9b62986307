//! Where a session is made that is imported.

use std::path::{Path, PathBuf};

use super::ImportError;
use crate::identity::SessionId;
use crate::journal::{DiskError, Operation};
use crate::store::purge::remove_tree;
use crate::store::{SESSIONS, Store, create_dir};
use crate::vfs::Lock;

/// The beginning of the names of imports in the making, among the sessions.
pub(crate) const MAKING: &str = "import-";
/// The end of the name of the lock beside one.
pub(super) const LOCK: &str = ".lock";

/// The directory of a session in the making.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) dir: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) held: Option<Box<dyn Lock>>,
}

impl Making {
    pub(super) fn at(sessions: &Path, word: &str) -> Making {
        Making {
            dir: sessions.join(format!("{MAKING}{word}")),
            lock: sessions.join(format!("{MAKING}{word}{LOCK}")),
            held: None,
        }
    }

    /// Takes the lock first, so that nobody takes the directory for one that was left.
    pub(super) fn new(store: &Store) -> Result<Making, ImportError> {
        let vfs = &store.inner.vfs;
        let sessions = store.inner.dir.join(SESSIONS);
        create_dir(vfs, &sessions)?;
        loop {
            let word = SessionId::try_new()?.to_string();
            let place = Making::at(&sessions, &word);
            let failed = |error| DiskError::new(Operation::Lock, &place.lock, &error);
            let held = vfs.try_lock(&place.lock).map_err(failed)?;
            // Who sweeps may have had the file before us, and removed it.
            if held.is_none() || vfs.identity(&place.lock).is_err() {
                continue;
            }
            create_dir(vfs, &place.dir)?;
            return Ok(Making { held, ..place });
        }
    }

    /// Removes what is there, as far as that works: it is no session in any case.
    pub(super) fn leave(self, store: &Store) {
        let vfs = &store.inner.vfs;
        if let Err(error) = remove_tree(vfs, &self.dir, None) {
            tracing::debug!(%error, "what an import left is not removed");
            return;
        }
        let _ = vfs.remove_file(&self.lock);
        drop(self.held);
    }
}
