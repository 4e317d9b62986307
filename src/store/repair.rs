//! Repairing a session: all of it that is intact goes to a new store.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blobs::CopyBodiesError;
use super::options::Layout;
use super::purge::remove_tree;
use super::replay::Decoder;
use super::{ReplayError, SESSIONS, Store, StoreError, create_dir, root};
use crate::identity::SessionId;
use crate::journal::{
    CopyError, DiskError, Entry, Extent, JournalOptions, Lsn, OpenError, Operation, Progress,
    ReadError, Repair, RepairReport, Watch,
};
use crate::vfs::Vfs;

/// Why a session was not repaired. The session itself is never changed; the target holds no store.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// There is no such session.
    #[error("there is no session {0}")]
    NotFound(SessionId),
    /// The target holds something already.
    #[error("{} is not empty; choose a new or empty directory", path.display())]
    TargetNotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// Acknowledged records would be lost, and the caller did not accept that. Nothing was written.
    #[error("acknowledged records cannot be read; accept the loss to go on without them")]
    WouldLose(Box<RepairReport>),
    /// No record is intact.
    #[error("no record of session {0} is intact: there is nothing to keep")]
    NothingIntact(SessionId),
    /// The journal could not be opened, or the new one not be written.
    #[error(transparent)]
    Journal(OpenError),
    /// The journal could not be read.
    #[error(transparent)]
    Read(ReadError),
    /// The body of a record was whole, and cannot be read any more.
    #[error("{0}; try again")]
    Body(ReplayError),
    /// The journal changed while it was read.
    #[error("the journal changed behind {0} while it was read; try again")]
    Changed(Lsn),
    /// The new store could not be made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new journal does not read back as it was written.
    #[error("what was written does not read back; use another disk")]
    Check,
}

impl From<DiskError> for RepairError {
    fn from(error: DiskError) -> RepairError {
        RepairError::Store(error.into())
    }
}

impl From<CopyError> for RepairError {
    fn from(error: CopyError) -> RepairError {
        match error {
            CopyError::Open(error) => RepairError::Journal(error),
            CopyError::Read(error) => RepairError::Read(error),
            CopyError::Changed(lsn) => RepairError::Changed(lsn),
        }
    }
}

impl Store {
    /// Copies all intact records of a session, damaged or not, to a new store that holds this one
    /// session, with the same sequences. The session itself is only read, without its lock; blocks
    /// that the disk does not give count as damage. Records that are not proven are kept, as not
    /// proven; a torn tail is not copied.
    ///
    /// What cannot be read is named by gaps: reading the new session gives an error for each, and
    /// opens read-only if there are any. Without `accept_loss` nothing is written in that case. When
    /// this returns a report, the new store is durable.
    ///
    /// # Errors
    /// [`RepairError`]; the target is then as it was, or, after a crash, holds no store.
    pub fn repair(
        &self,
        id: SessionId,
        to: impl AsRef<Path>,
        accept_loss: bool,
    ) -> Result<RepairReport, RepairError> {
        self.repair_watched(id, to.as_ref(), accept_loss, &Watch::default())
    }

    /// The same, and tells how far it has come: the session is read twice. A `Break` ends it.
    ///
    /// # Errors
    /// As for [`Store::repair`], and [`OpenError::Aborted`].
    pub fn repair_with_progress(
        &self,
        id: SessionId,
        to: impl AsRef<Path>,
        accept_loss: bool,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<RepairReport, RepairError> {
        self.repair_watched(id, to.as_ref(), accept_loss, &Watch::new(progress))
    }

    fn repair_watched(
        &self,
        id: SessionId,
        to: &Path,
        accept_loss: bool,
        watch: &Watch,
    ) -> Result<RepairReport, RepairError> {
        if self.inner.layout == Layout::Shared {
            return Err(StoreError::Layout(Layout::Shared).into());
        }
        let vfs = &self.inner.vfs;
        let there = match vfs.list(to) {
            Ok(entries) if !entries.is_empty() => {
                return Err(RepairError::TargetNotEmpty {
                    path: to.to_owned(),
                });
            }
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(DiskError::new(Operation::List, to, &error).into()),
        };
        let options = &self.inner.options.journal;
        if self.is_deleted(id)? {
            return Err(RepairError::NotFound(id));
        }
        let from = self.session_dir(id);
        let decoder = self.decoder(id);
        let lacks = |entry: &Entry<&[u8]>| decoder.blobs.lacking(entry, &decoder.limits);
        let vfs_of = vfs.clone();
        let repair = match Repair::plan(vfs_of, &from, id, options, Extent::Intact, &lacks, watch) {
            Err(CopyError::Open(OpenError::NotFound { .. })) => {
                return Err(RepairError::NotFound(id));
            }
            planned => planned?,
        };
        let report = repair.report().clone();
        if report.records == 0 {
            return Err(RepairError::NothingIntact(id));
        }
        if !report.is_whole() && !accept_loss {
            return Err(RepairError::WouldLose(Box::new(report)));
        }
        let target = Target { vfs, to, id };
        match target.make(&repair, &decoder, options) {
            Ok(()) => Ok(report),
            Err(error) => {
                target.take_back(there);
                Err(error)
            }
        }
    }
}

/// The store in the making.
struct Target<'a> {
    vfs: &'a Arc<dyn Vfs>,
    to: &'a Path,
    id: SessionId,
}

impl Target<'_> {
    /// Where the journal is made: under this name the directory is not taken for a store, so one
    /// that is cut off halfway is never used.
    fn workshop(&self) -> PathBuf {
        self.to.join(format!("repair-{}", self.id))
    }

    /// Makes the journal, checks it, moves it to its name, and writes the file that makes a store of
    /// the directory last.
    fn make(
        &self,
        repair: &Repair,
        decoder: &Decoder,
        options: &JournalOptions,
    ) -> Result<(), RepairError> {
        let workshop = self.workshop();
        create_dir(self.vfs, &workshop)?;
        repair.copy(self.vfs.clone(), &workshop, options)?;
        if !repair.reads_back(self.vfs.clone(), &workshop)? {
            return Err(RepairError::Check);
        }
        let copied = decoder.blobs.copy_for(&workshop, &decoder.limits);
        copied.map_err(|error| match error {
            CopyBodiesError::Journal(error) => RepairError::Journal(error),
            CopyBodiesError::Source(error) => RepairError::Body(error),
            CopyBodiesError::Target(error) => error.into(),
        })?;
        let sessions = self.to.join(SESSIONS);
        create_dir(self.vfs, &sessions)?;
        let mut handles = Vec::new();
        for dir in [&sessions, self.to] {
            let opened = self.vfs.open_dir(dir);
            handles.push((
                dir,
                opened.map_err(|error| DiskError::new(Operation::Open, dir, &error))?,
            ));
        }
        let name = sessions.join(self.id.to_string());
        self.vfs
            .rename(&workshop, &name)
            .map_err(|error| DiskError::new(Operation::Rename, &name, &error))?;
        for (dir, handle) in handles {
            handle
                .sync()
                .map_err(|error| DiskError::new(Operation::SyncDirectory, dir, &error))?;
        }
        root::write(self.vfs, self.to, Layout::PerSession)?;
        Ok(())
    }

    /// Removes what was made, as far as that works; nothing takes it for a store in any case.
    fn take_back(&self, there: bool) {
        let sessions = self.to.join(SESSIONS);
        for dir in [self.workshop(), sessions.join(self.id.to_string())] {
            let _ = remove_tree(self.vfs, &dir, None);
        }
        let _ = self.vfs.remove_dir(&sessions);
        if !there {
            for entry in self.vfs.list(self.to).unwrap_or_default() {
                if !entry.is_dir {
                    let _ = self.vfs.remove_file(&self.to.join(entry.name));
                }
            }
            let _ = self.vfs.remove_dir(self.to);
        }
    }
}
