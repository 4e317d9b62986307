//! Backup: the sessions of a store go to a new one, each up to what is proven, while others write.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blobs::CopyBodiesError;
use super::catalog::Catalog;
use super::delete::session_names;
use super::options::Layout;
use super::purge::remove_tree;
use super::tombstone::{self, DELETED};
use super::{SESSIONS, Store, StoreError, StoreOptions, create_dir, root};
use crate::identity::SessionId;
use crate::journal::{
    CopyError, DiskError, Entry, Extent, LOCK, OpenError, Operation, ReadError, Repair,
    RepairReport, Seq, Watch,
};
use crate::vfs::Vfs;

/// The sessions of a backup that is not complete. A directory that holds this is no store.
pub(super) const UNFINISHED: &str = "backup-unfinished";

/// What a backup holds, and what it does not. It is durable.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct BackupReport {
    /// The sessions in it, by id.
    pub sessions: Vec<BackedUp>,
    /// Those that are not in it, and why.
    pub left_out: Vec<(SessionId, LeftOut)>,
    /// Tombstones of deleted sessions: their ids are refused in the backup too.
    pub tombstones: usize,
}

impl BackupReport {
    /// Whether every session of the store is in it, as far as it is proven.
    pub fn is_complete(&self) -> bool {
        let lost = |why: &LeftOut| !matches!(why, LeftOut::Deleted | LeftOut::NothingProven { .. });
        !self.left_out.iter().any(|(_, why)| lost(why))
    }
}

/// A session in a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackedUp {
    /// The session.
    pub session: SessionId,
    /// Its records.
    pub records: u64,
    /// The last sequence.
    pub last_seq: Seq,
    /// The records behind it that are there, but not proven to have been acknowledged: they are not
    /// in the backup. If the session is not open, opening it for writing once settles them.
    pub unproven: u64,
    /// Whether it has gaps from an earlier repair; they are in the backup too.
    pub gaps: bool,
}

/// Why a session is not in a backup.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LeftOut {
    /// Acknowledged records cannot be read: [`Store::repair`] copies what is intact.
    Damaged(Box<RepairReport>),
    /// A newer version wrote it.
    NewerFormat {
        /// Its version.
        version: u32,
    },
    /// Its journal cannot be opened.
    Unreadable(OpenError),
    /// It could not be read to its end.
    Read(ReadError),
    /// It changed at each try while it was copied.
    Changing,
    /// Nothing of it is proven yet; this many records are there.
    NothingProven {
        /// The records.
        unproven: u64,
    },
    /// It was deleted meanwhile.
    Deleted,
}

/// Why there is no backup. The target holds no store.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The target holds something already.
    #[error("{} is not empty; choose a new or empty directory", path.display())]
    TargetNotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// The target lies within the store.
    #[error("{} lies within the store; choose a directory elsewhere", path.display())]
    TargetInside {
        /// The target.
        path: PathBuf,
    },
    /// The sessions could not be listed, or the target not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A journal could not be written.
    #[error(transparent)]
    Journal(OpenError),
    /// A journal does not read back as it was written.
    #[error("what was written of session {0} does not read back; use another disk")]
    Check(SessionId),
}

impl From<DiskError> for BackupError {
    fn from(error: DiskError) -> BackupError {
        BackupError::Store(error.into())
    }
}

/// How often a session is tried that changes while it is copied: a new owner replaces its files.
const ATTEMPTS: usize = 5;

impl Store {
    /// Copies the sessions into a new store, while this one is in use, also by other processes: each
    /// session up to what is proven to have been acknowledged when its turn comes, with the same
    /// sequences, in whole batches. Nothing is locked, and nothing of this store is written.
    ///
    /// Restoring is copying the directory back; [`Store::verify`] proves it. Sessions that are damaged
    /// or of a newer format are named in the report and left out. Symbolic links are not followed.
    /// When this returns the backup is durable.
    ///
    /// # Errors
    /// [`BackupError`]. Cut off at any moment, the target holds a whole backup or is no store:
    /// opening it is [`StoreError::UnfinishedBackup`].
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<BackupReport, BackupError> {
        if self.inner.layout == Layout::Shared {
            return Err(StoreError::Layout(Layout::Shared).into());
        }
        let vfs = &self.inner.vfs;
        let to = to.as_ref();
        if to.starts_with(&self.inner.dir) {
            return Err(BackupError::TargetInside {
                path: to.to_owned(),
            });
        }
        let there = match vfs.list(to) {
            Ok(entries) if !entries.is_empty() => {
                return Err(BackupError::TargetNotEmpty {
                    path: to.to_owned(),
                });
            }
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(DiskError::new(Operation::List, to, &error).into()),
        };
        let target = Target { vfs, to };
        target.fill(self).inspect_err(|_| target.take_back(there))
    }
}

/// The store in the making.
struct Target<'a> {
    vfs: &'a Arc<dyn Vfs>,
    to: &'a Path,
}

impl Target<'_> {
    fn workshop(&self) -> PathBuf {
        self.to.join(UNFINISHED)
    }

    /// Fills the sessions' directory under another name, renames it when all is in it, and writes the
    /// file that makes a store of the target last.
    fn fill(&self, store: &Store) -> Result<BackupReport, BackupError> {
        let workshop = self.workshop();
        create_dir(self.vfs, &workshop)?;
        let mut report = BackupReport::default();
        let sessions = store.inner.dir.join(SESSIONS);
        let entries = self.vfs.list(&sessions);
        let entries =
            entries.map_err(|error| DiskError::new(Operation::List, &sessions, &error))?;
        // Symbolic links count as files.
        let names = entries.into_iter().filter(|entry| entry.is_dir);
        for id in session_names(names.map(|entry| entry.name).collect()) {
            match self.session(store, id)? {
                Ok(Some(copied)) => report.sessions.push(copied),
                Ok(None) => {}
                Err(why) => report.left_out.push((id, why)),
            }
        }
        // Behind the sessions: one that was deleted since it was copied is deleted here too.
        let tombstones = store.tombstones()?;
        let copy = Store::with(
            self.vfs.clone(),
            self.to,
            StoreOptions::default(),
            false,
            Layout::PerSession,
            Catalog::off(),
        );
        for name in &tombstones {
            copy.make_tombstone_of(name)?;
        }
        report.tombstones = tombstones.len();
        let (deleted, kept) = std::mem::take(&mut report.sessions)
            .into_iter()
            .partition(|copied| tombstones.contains(&tombstone::name(copied.session)));
        report.sessions = kept;
        let deleted: Vec<BackedUp> = deleted;
        for copied in deleted {
            remove_tree(
                self.vfs,
                &workshop.join(copied.session.to_string()),
                Some(LOCK),
            )?;
            report.left_out.push((copied.session, LeftOut::Deleted));
        }
        self.publish()?;
        Ok(report)
    }

    /// `None`: no session, its creation was cut off.
    fn session(
        &self,
        store: &Store,
        id: SessionId,
    ) -> Result<Result<Option<BackedUp>, LeftOut>, BackupError> {
        let mut why = LeftOut::Changing;
        for _ in 0..ATTEMPTS {
            if store.is_deleted(id)? {
                return Ok(Err(LeftOut::Deleted));
            }
            match self.attempt(store, id)? {
                Err(LeftOut::NewerFormat { version }) => {
                    return Ok(Err(LeftOut::NewerFormat { version }));
                }
                // What a takeover changes while it is read may look like damage.
                Err(found) => why = found,
                done => return Ok(done),
            }
        }
        Ok(Err(why))
    }

    fn attempt(
        &self,
        store: &Store,
        id: SessionId,
    ) -> Result<Result<Option<BackedUp>, LeftOut>, BackupError> {
        let options = &store.inner.options.journal;
        let from = store.session_dir(id);
        let watch = Watch::default();
        let decoder = store.decoder(id);
        let lacks = |entry: &Entry<&[u8]>| decoder.blobs.lacking(entry, &decoder.limits);
        let vfs = self.vfs.clone();
        let planned = Repair::plan(vfs, &from, id, options, Extent::Proven, &lacks, &watch);
        let repair = match planned {
            Ok(repair) => repair,
            Err(CopyError::Open(OpenError::NotFound { .. })) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(left_out(error))),
        };
        let found = repair.report();
        if found.damage.is_some() || !found.is_whole() {
            return Ok(Err(LeftOut::Damaged(Box::new(found.clone()))));
        }
        if found.records == 0 {
            let unproven = found.unproven;
            return Ok(match unproven {
                0 => Ok(None),
                _ => Err(LeftOut::NothingProven { unproven }),
            });
        }
        let dir = self.workshop().join(id.to_string());
        create_dir(self.vfs, &dir)?;
        let copied = repair.copy(self.vfs.clone(), &dir, options);
        let checked = copied.and_then(|()| repair.reads_back(self.vfs.clone(), &dir));
        let bodies = || decoder.blobs.copy_for(&dir, &decoder.limits);
        match checked {
            Ok(true) => match bodies() {
                Err(CopyBodiesError::Journal(error)) => Err(BackupError::Journal(error)),
                Err(CopyBodiesError::Target(error)) => Err(error.into()),
                // It was whole a moment ago.
                Err(CopyBodiesError::Source(error)) => {
                    tracing::debug!(%error, session = %id, "a session changed in a backup");
                    remove_tree(self.vfs, &dir, Some(LOCK))?;
                    Ok(Err(LeftOut::Changing))
                }
                Ok(()) => Ok(Ok(Some(BackedUp {
                    session: id,
                    records: found.records,
                    last_seq: found.last_seq,
                    unproven: found.unproven,
                    gaps: !found.gaps.is_empty(),
                }))),
            },
            Ok(false) => Err(BackupError::Check(id)),
            // The source gave something else than before.
            Err(error @ (CopyError::Changed(_) | CopyError::Read(_))) => {
                remove_tree(self.vfs, &dir, Some(LOCK))?;
                Ok(Err(left_out(error)))
            }
            Err(CopyError::Open(error)) => Err(BackupError::Journal(error)),
        }
    }

    fn publish(&self) -> Result<(), BackupError> {
        let handle = self.vfs.open_dir(self.to);
        let handle = handle.map_err(|error| DiskError::new(Operation::Open, self.to, &error))?;
        let sessions = self.to.join(SESSIONS);
        self.vfs
            .rename(&self.workshop(), &sessions)
            .map_err(|error| DiskError::new(Operation::Rename, &sessions, &error))?;
        handle
            .sync()
            .map_err(|error| DiskError::new(Operation::SyncDirectory, self.to, &error))?;
        root::write(self.vfs, self.to, Layout::PerSession)?;
        Ok(())
    }

    /// Removes what was made, as far as that works; nothing takes it for a store in any case.
    fn take_back(&self, there: bool) {
        for entry in self.vfs.list(self.to).unwrap_or_default() {
            if entry.name.starts_with("STORE") {
                let _ = self.vfs.remove_file(&self.to.join(entry.name));
            }
        }
        for made in [UNFINISHED, SESSIONS, DELETED] {
            let _ = remove_tree(self.vfs, &self.to.join(made), None);
        }
        if !there {
            let _ = self.vfs.remove_dir(self.to);
        }
    }
}

fn left_out(error: CopyError) -> LeftOut {
    match error {
        CopyError::Open(OpenError::NewerFormat { version, .. }) => LeftOut::NewerFormat { version },
        CopyError::Open(error) => LeftOut::Unreadable(error),
        CopyError::Read(error) => LeftOut::Read(error),
        CopyError::Changed(_) => LeftOut::Changing,
    }
}
