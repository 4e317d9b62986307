//! The catalog: an index that makes listings fast, and is never believed (P12).
//!
//! It holds one entry for each session that is whole, made by the same reading that a listing without
//! it does. A hit is checked against the log before it is shown ([`Fingerprint`](crate::journal)); a
//! miss proves nothing, and the session is read; an entry without a session is passed over. So
//! whatever the index says, loses or invents, a listing says the same as without it. The index lives
//! on one thread behind a bounded queue: it may panic, fail or hang, and nobody waits for it longer
//! than the options say, commits not at all.
//!
//! `docs/design.md` says why it is sled, `docs/format.md` section 12 what lies on disk.

mod behind;
mod entry;
mod logs;
#[cfg(feature = "index-sled")]
mod open;
#[cfg(feature = "index-sled")]
mod sled;
mod thread;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) use behind::{Catalog, Mark};

use super::StoreOptions;
use super::listed::Listed;
use super::purge::empty;
use crate::identity::SessionId;
use crate::journal::{DiskError, JournalView, Names, Operation};
use crate::vfs::Vfs;
use entry::Entry;
use logs::Logs;

/// The directory of the index in a store.
pub(super) const DIRECTORY: &str = "index";
/// Held while the index is open.
const LOCK: &str = "LOCK";

/// Entries by session, as bytes.
type Entries = Vec<(SessionId, Vec<u8>)>;

/// Something that keeps bytes under the ids of sessions. It need not be right, only quick.
trait Index: Send {
    /// All that it has.
    fn scan(&mut self) -> Result<Entries, IndexHarm>;
    /// Keeps these, in the place of what it had under their ids.
    fn put(&mut self, batch: &[(SessionId, Vec<u8>)]) -> Result<(), IndexHarm>;
    /// Forgets these; their bytes may stay until it is tidied.
    fn remove(&mut self, ids: &[SessionId]) -> Result<(), IndexHarm>;
    /// Leaves nothing on the disk of what it has forgotten.
    fn tidy(&mut self) -> Result<(), IndexHarm>;
    /// Makes it what a later opening believes.
    fn close(self: Box<Self>) -> Result<(), IndexHarm>;
}

/// An index that was opened.
struct Opened {
    index: Box<dyn Index>,
    /// It begins empty: there was none, or what was there was not believed.
    fresh: bool,
}

/// Opens the index, on its thread; `None` if another process has it.
type Opener = Box<dyn FnOnce() -> Result<Option<Opened>, IndexHarm> + Send>;

/// The options of the index behind [`Store::list`](super::Store::list).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexOptions {
    /// Whether there is one. Without it listings read every session.
    pub on: bool,
    /// For how long a listing waits for it, and closing the store; then the session logs are read
    /// instead, and an index that did nothing in that time is left alone for good. 2 seconds by
    /// default.
    pub patience: Duration,
}

impl Default for IndexOptions {
    fn default() -> Self {
        IndexOptions {
            on: true,
            patience: Duration::from_secs(2),
        }
    }
}

impl IndexOptions {
    /// No index.
    #[must_use]
    pub fn off() -> IndexOptions {
        IndexOptions {
            on: false,
            ..IndexOptions::default()
        }
    }

    /// With another patience.
    #[must_use]
    pub fn patience(self, patience: Duration) -> IndexOptions {
        IndexOptions { patience, ..self }
    }
}

/// How the index is. Whatever it says, listings are right: only their speed depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IndexHealth {
    /// There is none: by the options, the features or the build (`panic = "abort"`), on a disk that is
    /// not the system's, or in a store that was opened only to look.
    #[default]
    Off,
    /// Nobody has listed yet: the first listing begins it.
    Absent,
    /// It is being opened.
    Opening,
    /// It began empty, and no listing has filled it yet.
    Rebuilding {
        /// Sessions that it has yet to take in.
        behind: usize,
    },
    /// It is used.
    Ready {
        /// Sessions that it has yet to take in.
        behind: usize,
    },
    /// Another process, or another store of this one, has it.
    Locked,
    /// It failed, and is left alone until the store is opened again, which begins a new one.
    Broken {
        /// How.
        why: IndexHarm,
    },
    /// It did nothing for as long as the options allow, and is left alone until the store is opened
    /// again.
    TooSlow,
}

/// How an index failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexHarm {
    /// It panicked.
    #[error("the index panicked")]
    Panicked,
    /// The disk failed under it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its engine says that it failed.
    #[error("the index failed: {message}")]
    Engine {
        /// In the words of the engine.
        message: String,
    },
    /// Its thread could not be started.
    #[error("the thread of the index could not be started")]
    NoThread,
}

/// What a listing knows of sessions before it reads them, and what it finds out.
#[derive(Debug, Default)]
pub(super) struct Known {
    entries: HashMap<SessionId, Vec<u8>>,
    /// Whether somebody wants what is found out.
    wanted: bool,
    fresh: Entries,
}

impl Known {
    fn new(entries: Entries) -> Known {
        Known {
            entries: entries.into_iter().collect(),
            wanted: true,
            fresh: Vec::new(),
        }
    }

    pub(super) fn wanted(&self) -> bool {
        self.wanted
    }

    /// What is known of a session, if its log is still as it was when that was read.
    pub(super) fn believed(
        &mut self,
        id: SessionId,
        vfs: &Arc<dyn Vfs>,
        journal: &Path,
    ) -> Option<Listed> {
        let entry = Entry::decode(id, &self.entries.remove(&id)?)?;
        let holds = entry.fingerprint.holds(vfs, journal);
        holds.then_some(entry.listed)
    }

    /// A session was read, since its names were told.
    pub(super) fn read(&mut self, id: SessionId, names: Names, view: &JournalView, read: &Listed) {
        self.fresh
            .extend(made(id, names, view, read).map(|bytes| (id, bytes)));
    }
}

/// The entry of a session that was read; `None` if it is none that could be believed later.
fn made(id: SessionId, names: Names, view: &JournalView, listed: &Listed) -> Option<Vec<u8>> {
    if !listed.is_whole() {
        return None;
    }
    let fingerprint = names.of(view)?;
    let listed = listed.clone();
    Entry {
        fingerprint,
        listed,
    }
    .encode(id)
}

impl Catalog {
    /// The index of a store on the file system of the machine.
    #[cfg(feature = "index-sled")]
    pub(super) fn of(vfs: &Arc<dyn Vfs>, store: &Path, options: &StoreOptions) -> Catalog {
        let (opens, path) = (vfs.clone(), store.to_owned());
        Catalog::new(
            Box::new(move || open::open(&opens, &path)),
            Logs::of(vfs, store, options.limits),
            options.index,
            vfs.identity(&store.join(DIRECTORY)).is_ok(),
        )
    }

    /// None in this build.
    #[cfg(not(feature = "index-sled"))]
    pub(super) fn of(_: &Arc<dyn Vfs>, _: &Path, _: &StoreOptions) -> Catalog {
        Catalog::off()
    }
}

/// Empties the directory of the index, unless somebody holds it: for a deletion of which no index hears.
/// The lock's file stays, so that there is never a second one.
pub(super) fn expel(vfs: &Arc<dyn Vfs>, store: &Path) -> Result<(), DiskError> {
    let dir = store.join(DIRECTORY);
    match vfs.list(&dir) {
        // There is none, or something else has its name.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        listed => drop(listed.map_err(|error| DiskError::new(Operation::List, &dir, &error))?),
    }
    let path = dir.join(LOCK);
    let held = vfs.try_lock(&path);
    let held = held.map_err(|error| DiskError::new(Operation::Lock, &path, &error))?;
    match held {
        Some(_held) => empty(vfs, &dir, Some(&path)).map(drop),
        None => Ok(()),
    }
}
