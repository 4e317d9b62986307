//! Where a session is made that comes into the store as a whole: by an import or a fork.
//!
//! A session exists when its directory has its name. It is made in a directory of another name, so that
//! what is cut off is never taken for a session, and gets the session's name at the end, by one rename
//! within one directory. A lock beside it tells who comes later whether its maker lives.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::purge::remove_tree;
use super::{SESSIONS, Store, create_dir, list};
use crate::identity::{MintError, SessionId};
use crate::journal::{DiskError, OpenError, Operation};
use crate::vfs::Lock;

/// Who makes a session: the beginning of its name until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    Import,
    Fork,
}

impl Maker {
    const fn prefix(self) -> &'static str {
        match self {
            Maker::Import => "import-",
            Maker::Fork => "fork-",
        }
    }
}

/// The end of the name of the lock beside one.
const LOCK: &str = ".lock";

/// Whether a name among the sessions is that of one in the making, or of its lock.
pub(super) fn is_making(name: &str) -> bool {
    let mut makers = [Maker::Import, Maker::Fork].iter();
    makers.any(|maker| name.starts_with(maker.prefix()))
}

/// Why a session was not made, or did not get its name. There is nothing of it then.
#[derive(Debug)]
pub(super) enum MakingError {
    AlreadyExists(SessionId),
    Deleted(SessionId),
    Mint(MintError),
    Journal(OpenError),
    Disk(DiskError),
}

impl From<MintError> for MakingError {
    fn from(error: MintError) -> MakingError {
        MakingError::Mint(error)
    }
}

impl From<OpenError> for MakingError {
    fn from(error: OpenError) -> MakingError {
        MakingError::Journal(error)
    }
}

impl From<DiskError> for MakingError {
    fn from(error: DiskError) -> MakingError {
        MakingError::Disk(error)
    }
}

/// The directory of a session in the making.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) dir: PathBuf,
    lock: PathBuf,
    held: Option<Box<dyn Lock>>,
}

impl Making {
    fn at(sessions: &Path, name: &str) -> Making {
        Making {
            dir: sessions.join(name),
            lock: sessions.join(format!("{name}{LOCK}")),
            held: None,
        }
    }

    /// Takes the lock first, so that nobody takes the directory for one that was left.
    pub(super) fn new(store: &Store, maker: Maker) -> Result<Making, MakingError> {
        let vfs = &store.inner.vfs;
        let sessions = store.inner.dir.join(SESSIONS);
        create_dir(vfs, &sessions)?;
        loop {
            let word = SessionId::try_new()?;
            let place = Making::at(&sessions, &format!("{}{word}", maker.prefix()));
            let failed = |error| DiskError::new(Operation::Lock, &place.lock, &error);
            let held = vfs.try_lock(&place.lock).map_err(failed)?;
            // Who sweeps may have had the file before us, and removed it.
            if held.is_none() || vfs.identity(&place.lock).is_err() {
                continue;
            }
            let place = Making { held, ..place };
            match create_dir(vfs, &place.dir) {
                Ok(()) => return Ok(place),
                Err(error) => {
                    place.leave(store);
                    return Err(error.into());
                }
            }
        }
    }

    /// Gives what was made, and is durable, the name of its session.
    pub(super) fn publish(&self, store: &Store, id: SessionId) -> Result<(), MakingError> {
        let vfs = &store.inner.vfs;
        let sessions = store.inner.dir.join(SESSIONS);
        let name = store.session_dir(id);
        store.require_free(id)?;
        store.clear_half_created(id)?;
        let handle = vfs.open_dir(&sessions);
        let handle = handle.map_err(|error| DiskError::new(Operation::Open, &sessions, &error))?;
        match vfs.rename(&self.dir, &name) {
            // Somebody has created it meanwhile.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                return Err(MakingError::AlreadyExists(id));
            }
            renamed => {
                renamed.map_err(|error| DiskError::new(Operation::Rename, &name, &error))?;
            }
        }
        if let Err(error) = handle.sync() {
            // It is taken back, so that what was not said to be there is not.
            let _ = vfs.rename(&name, &self.dir);
            return Err(DiskError::new(Operation::SyncDirectory, &sessions, &error).into());
        }
        // Deleted in between: the name is hidden, and what is under it will be removed.
        match store.is_deleted(id)? {
            true => Err(MakingError::Deleted(id)),
            false => Ok(()),
        }
    }

    /// Removes what is there, as far as that works: it is no session in any case.
    pub(super) fn leave(self, store: &Store) {
        let vfs = &store.inner.vfs;
        if let Err(error) = remove_tree(vfs, &self.dir, None) {
            tracing::debug!(%error, "what was left of a session in the making is not removed");
            return;
        }
        let _ = vfs.remove_file(&self.lock);
        drop(self.held);
    }
}

impl Store {
    /// Checks that nothing has this id, and nothing had it that was deleted.
    pub(super) fn require_free(&self, id: SessionId) -> Result<(), MakingError> {
        if self.is_deleted(id)? {
            return Err(MakingError::Deleted(id));
        }
        match self.exists(id) {
            true => Err(MakingError::AlreadyExists(id)),
            false => Ok(()),
        }
    }

    /// Removes what makers left that were killed.
    pub(super) fn sweep_making(&self) {
        let sessions = self.inner.dir.join(SESSIONS);
        for name in list(&self.inner.vfs, &sessions).unwrap_or_default() {
            if !is_making(&name) {
                continue;
            }
            let place = Making::at(&sessions, name.strip_suffix(LOCK).unwrap_or(&name));
            match self.inner.vfs.try_lock(&place.lock) {
                Ok(Some(held)) => {
                    tracing::debug!(path = %place.dir.display(), "the making of a session was cut off");
                    let place = Making {
                        held: Some(held),
                        ..place
                    };
                    place.leave(self);
                }
                // Its maker lives.
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "what a maker left is not removed"),
            }
        }
    }
}
