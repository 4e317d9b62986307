//! The store: sessions over journals.
//!
//! [`Store`] opens a directory, [`Session`] is one agent session in it, [`Loop`] and [`Turn`] commit
//! steps for hosts that have a loop of their own. The commit boundary is in `boundary`, the fold that
//! makes state of events in `state`, opening after a crash in `open`.

mod backup;
mod blobs;
mod boundary;
mod carry;
#[cfg_attr(
    not(feature = "index-sled"),
    allow(dead_code, reason = "without an index nothing starts its thread")
)]
mod catalog;
mod committed;
#[cfg(feature = "runtime")]
mod companion;
mod context;
mod delete;
mod draft;
mod effects;
mod entrance;
mod error;
mod export;
mod flight;
mod fork;
mod gates;
mod health;
mod history;
mod import;
mod io;
mod keys;
mod listed;
mod listing;
mod log;
mod making;
mod marks;
mod metadata;
mod open;
mod options;
mod outside;
mod pages;
mod pending;
mod purge;
mod repair;
mod replay;
mod restore;
mod root;
mod session;
mod settled;
mod shared;
mod state;
mod taken;
mod tombstone;
mod turn;

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use backup::{BackedUp, BackupError, BackupReport, LeftOut};
pub use boundary::Observer;
pub use catalog::{IndexHarm, IndexHealth, IndexOptions};
pub use committed::{Committed, Outcome};
pub use delete::{
    DeletionReceipt, Expired, PassedOver, Reason, RetentionPlan, RetentionPolicy, RetentionReport,
};
pub use draft::{Draft, StepDraft};
pub use effects::{SettleError, UnknownEffect};
pub use error::{
    BodyProblem, CommitError, OrderError, Refusal, ReplayError, SessionCloseError, SessionError,
    StoreError,
};
pub use export::{ExportError, ExportReport};
pub use fork::{ForkError, ForkSpec};
pub use gates::{Answer, AnswerError, GateAnswer, GatedCall, PERMISSION, PendingGate, USER_INPUT};
#[cfg(feature = "runtime")]
pub(crate) use gates::{head, text_of};
pub use health::StoreHealth;
pub use history::{History, HistoryItem, HistoryPage};
pub use import::{ImportError, ImportId, ImportReport};
pub use io::{IoThreadGone, Stalled, Ticket};
pub use listed::{Listed, SessionStatus};
pub use listing::{SessionEntry, VerifyReport};
pub use metadata::{Metadata, SessionChange};
pub use open::OpenReport;
pub use options::{Layout, StoreOptions};
pub use pages::{Cursor, CursorError, Filter, Listing, Page};
pub use repair::RepairError;
pub use replay::Replay;
pub use session::{Mode, Session};
pub use state::{ForkedFrom, OpenTurn};
#[cfg(feature = "runtime")]
pub(crate) use turn::{Group, Last};
pub use turn::{Loop, LoopSpec, Turn};

use crate::event::SessionStarted;
use crate::identity::SessionId;
use crate::journal::{DiskError, JournalView, OpenError, Operation, Progress, Watch};
use crate::vfs::sim::SimVfs;
use crate::vfs::{RealVfs, Vfs};
use blobs::Blobs;
use catalog::Catalog;
use health::OpenSessions;
use io::IoThread;
use open::Place;
use shared::{Home, Opened, SharedJournal};
use tombstone::DELETED;

const SESSIONS: &str = "sessions";
/// The directory of the one journal in the shared layout.
const JOURNAL: &str = "journal";

/// The folder that a store of a layout has.
fn folder(layout: Layout) -> &'static str {
    match layout {
        Layout::PerSession => SESSIONS,
        Layout::Shared => JOURNAL,
    }
}

/// A session to be created.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionSpec {
    id: Option<SessionId>,
    started: SessionStarted,
}

impl SessionSpec {
    /// A session with a fresh id.
    pub fn new() -> SessionSpec {
        SessionSpec::default()
    }

    /// With an id of the host's choice.
    #[must_use]
    pub fn id(self, id: SessionId) -> SessionSpec {
        SessionSpec {
            id: Some(id),
            ..self
        }
    }

    /// With a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> SessionSpec {
        self.started.title = Some(title.into());
        self
    }

    /// With labels and configuration.
    #[must_use]
    pub fn started(self, started: SessionStarted) -> SessionSpec {
        SessionSpec { started, ..self }
    }
}

/// A store of sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    options: StoreOptions,
    io: Arc<IoThread>,
    open: Arc<OpenSessions>,
    layout: Layout,
    /// The one journal, in the shared layout, as far as this store may write.
    shared: SharedJournal,
    /// Whether it may finish by itself what others left half done.
    tidies: bool,
    /// What makes listings fast.
    catalog: Catalog,
}

impl Store {
    /// Opens the store in a directory, which is created if it is absent. In a directory that has
    /// sessions but lost its STORE file, that file is written anew.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`] if the directory holds something else; the others as they say.
    pub fn open(dir: impl AsRef<Path>) -> Result<Store, StoreError> {
        Store::open_with(dir, StoreOptions::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn open_with(dir: impl AsRef<Path>, options: StoreOptions) -> Result<Store, StoreError> {
        let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
        let catalog = Catalog::of(&vfs, dir.as_ref(), &options);
        Store::begin(vfs, dir.as_ref(), options, catalog)
    }

    /// Opens a store that must exist; nothing is written. For tools that only look.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::StoreFileMissing`], and as for [`Store::open`].
    pub fn open_existing(dir: impl AsRef<Path>) -> Result<Store, StoreError> {
        Store::on_existing(Arc::new(RealVfs), dir, StoreOptions::default())
    }

    /// The same on a given file system, with options.
    ///
    /// # Errors
    /// As for [`Store::open_existing`].
    pub fn on_existing(
        vfs: Arc<dyn Vfs>,
        dir: impl AsRef<Path>,
        options: StoreOptions,
    ) -> Result<Store, StoreError> {
        let dir = dir.as_ref();
        match root::read(&vfs, dir)? {
            Some(layout) => {
                let catalog = Catalog::off();
                Ok(Store::with(vfs, dir, options, false, layout, catalog))
            }
            None => Err(match unfinished(&vfs, dir) {
                Some(unfinished) => unfinished,
                None if has_sessions(&vfs, dir)? => StoreError::StoreFileMissing {
                    path: dir.join(root::NAME),
                },
                None => StoreError::NotFound {
                    path: dir.to_owned(),
                },
            }),
        }
    }

    /// A store in memory, for a host's tests: the real code over the simulated disk.
    ///
    /// # Errors
    /// As for [`Store::open`]; there is no reason for one.
    pub fn in_memory() -> Result<Store, StoreError> {
        let disk = SimVfs::new();
        disk.set_tracing(false);
        Store::on(Arc::new(disk), "/store", StoreOptions::default())
    }

    /// Opens a store on a given file system. It has no index: that is for the file system of the machine
    /// only.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn on(
        vfs: Arc<dyn Vfs>,
        dir: impl AsRef<Path>,
        options: StoreOptions,
    ) -> Result<Store, StoreError> {
        Store::begin(vfs, dir.as_ref(), options, Catalog::off())
    }

    fn begin(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: StoreOptions,
        catalog: Catalog,
    ) -> Result<Store, StoreError> {
        let found = root::read(&vfs, dir)?;
        let layout = match found {
            Some(layout) => layout,
            None => Store::prepare(&vfs, dir, options.layout)?,
        };
        let catalog = match layout {
            Layout::PerSession => catalog,
            // What an index says of a session is checked against files that are the session's alone.
            Layout::Shared => Catalog::off(),
        };
        let store = Store::with(vfs, dir, options, true, layout, catalog);
        if layout == Layout::Shared {
            store.shared_journal(found.is_none(), &Watch::default())?;
        }
        if found.is_none() {
            root::write(&store.inner.vfs, dir, layout)?;
        }
        store.finish_deletions();
        Ok(store)
    }

    /// Makes what a new store has, but for the file that makes a store of the directory. Gives the layout:
    /// that of what is there, where a creation was cut off or the file was lost.
    fn prepare(vfs: &Arc<dyn Vfs>, dir: &Path, wanted: Layout) -> Result<Layout, StoreError> {
        create_dir(vfs, dir)?;
        if let Some(unfinished) = unfinished(vfs, dir) {
            return Err(unfinished);
        }
        // A creation that was cut off leaves one of the folders or a temp file: it goes on. Where there are
        // sessions the file was lost. It says nothing that they do not: the folders tell the layout, and
        // each journal has its own format version.
        let lost = has_sessions(vfs, dir)?;
        let names = list(vfs, dir)?;
        let foreign = names.iter().any(|name| {
            let with_sessions =
                lost && [catalog::DIRECTORY, blobs::DIRECTORY].contains(&name.as_str());
            let ours = with_sessions || [SESSIONS, JOURNAL, DELETED].contains(&name.as_str());
            !ours && !name.starts_with(root::NAME)
        });
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        let layout = match (has(SESSIONS), has(JOURNAL)) {
            (true, false) => Some(Layout::PerSession),
            (false, true) => Some(Layout::Shared),
            (false, false) => Some(wanted),
            (true, true) => None,
        };
        let Some(layout) = layout.filter(|_| !foreign) else {
            return Err(StoreError::NotAStore {
                path: dir.to_owned(),
            });
        };
        if lost {
            tracing::warn!(path = %dir.display(), "the STORE file is missing; it is written anew");
        }
        create_dir(vfs, &dir.join(folder(layout)))?;
        Ok(layout)
    }

    fn with(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: StoreOptions,
        tidies: bool,
        layout: Layout,
        catalog: Catalog,
    ) -> Store {
        Store {
            inner: Arc::new(Inner {
                vfs,
                dir: dir.to_owned(),
                options,
                io: Arc::new(IoThread::default()),
                open: Arc::default(),
                layout,
                shared: SharedJournal::default(),
                tidies,
                catalog,
            }),
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// How it lays out its sessions.
    pub fn layout(&self) -> Layout {
        self.inner.layout
    }

    /// The directory of a session's journal; in the shared layout that of the one journal.
    pub fn session_dir(&self, id: SessionId) -> PathBuf {
        match self.inner.layout {
            Layout::PerSession => self.inner.dir.join(SESSIONS).join(id.to_string()),
            Layout::Shared => self.journal_dir(),
        }
    }

    /// The blob files of a session: in the directory of its journal, or, where that is the one of all
    /// sessions, in a directory of its own beside it.
    fn blobs(&self, id: SessionId) -> Blobs {
        match self.inner.layout {
            Layout::PerSession => Blobs::of(&self.inner.vfs, &self.session_dir(id)),
            Layout::Shared => Blobs::shared(&self.inner.vfs, &self.inner.dir, id),
        }
    }

    fn journal_dir(&self) -> PathBuf {
        self.inner.dir.join(JOURNAL)
    }

    /// The one journal of the shared layout, opened again if it was faulted.
    fn shared_journal(&self, creates: bool, watch: &Watch) -> Result<Arc<Opened>, OpenError> {
        let home = Home {
            vfs: &self.inner.vfs,
            path: &self.journal_dir(),
            options: &self.inner.options,
            open: &self.inner.open,
        };
        self.inner.shared.open(&home, creates, watch)
    }

    fn place<'a>(&'a self, id: SessionId, path: &'a Path, watch: Watch) -> Place<'a> {
        Place {
            vfs: &self.inner.vfs,
            path,
            blobs: self.blobs(id),
            options: &self.inner.options,
            io: &self.inner.io,
            watch,
        }
    }

    /// Creates a session; its SessionStarted is durable. A creation that is cut off leaves no
    /// session.
    ///
    /// # Errors
    /// [`SessionError::AlreadyExists`] if the id is taken, [`SessionError::Deleted`] if it was; the others as they say.
    pub fn create_session(&self, spec: SessionSpec) -> Result<Session, SessionError> {
        let id = match spec.id {
            Some(id) => id,
            None => SessionId::try_new().map_err(|error| SessionError::Prepare(error.into()))?,
        };
        self.refuse_deleted(id)?;
        let path = self.session_dir(id);
        let place = self.place(id, &path, Watch::default());
        if self.inner.layout == Layout::Shared {
            let opened = self.shared_journal(false, &place.watch)?;
            let admitted = || self.refuse_deleted_now(id);
            let created = opened.create(&place, id, spec.started, &admitted);
            return created.inspect(|session| self.inner.open.add(session));
        }
        // A directory that is there is a session, or half of one by somebody who was cut off: the
        // journal knows.
        create_dir(&self.inner.vfs, &path)
            .map_err(|error| lacking(&error).unwrap_or(SessionError::Disk(error)))?;
        match open::create(&place, id, spec.started, &|| self.refuse_deleted_now(id)) {
            // Locked: somebody has it open, or is creating it at this moment.
            Err(SessionError::Journal(
                OpenError::AlreadyExists { .. } | OpenError::Locked { .. },
            )) => Err(SessionError::AlreadyExists(id)),
            created => created.inspect(|session| self.took(session)),
        }
    }

    /// Opens a session.
    ///
    /// For writing, what an earlier process left is settled first: the log decides what is kept, a
    /// turn that was open is closed durably as interrupted, and the report says all of it (P5).
    ///
    /// # Errors
    /// [`SessionError::NotFound`], [`SessionError::Deleted`]; [`SessionError::Journal`] with [`OpenError::Locked`] if another
    /// process writes to it, or with [`OpenError::Damaged`] if acknowledged data is damaged: it can
    /// be opened with [`Mode::Read`] then.
    pub fn open_session(
        &self,
        id: SessionId,
        mode: Mode,
    ) -> Result<(Session, OpenReport), SessionError> {
        self.open_watched(id, mode, Watch::default())
    }

    /// The same, and tells how far it has come: first what recovery reads of the active segment, then
    /// the records that are folded; at most about every 256 KiB. A `Break` ends it at a moment when
    /// nothing is half done.
    ///
    /// # Errors
    /// As for [`Store::open_session`], and [`OpenError::Aborted`].
    pub fn open_session_with_progress(
        &self,
        id: SessionId,
        mode: Mode,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<(Session, OpenReport), SessionError> {
        self.open_watched(id, mode, Watch::new(progress))
    }

    fn open_watched(
        &self,
        id: SessionId,
        mode: Mode,
        watch: Watch,
    ) -> Result<(Session, OpenReport), SessionError> {
        self.refuse_deleted(id)?;
        let path = self.session_dir(id);
        let place = self.place(id, &path, watch);
        if self.inner.layout == Layout::Shared {
            let opened = match mode {
                Mode::Write => {
                    let admitted = || self.refuse_deleted_now(id);
                    let opened = self.shared_journal(false, &place.watch)?;
                    opened.open_for_writing(&place, id, &admitted)
                }
                Mode::Read => self.open_shared_for_reading(&place, id),
            };
            return opened.inspect(|(session, _)| self.inner.open.add(session));
        }
        let opened = match mode {
            Mode::Write => open::open_for_writing(&place, id, &|| self.refuse_deleted_now(id)),
            Mode::Read => open::open_for_reading(&place, id),
        };
        match opened {
            Err(SessionError::Journal(OpenError::NotFound { .. })) => {
                Err(SessionError::NotFound(id))
            }
            other => other.inspect(|(session, _)| self.took(session)),
        }
    }

    /// A session was opened.
    fn took(&self, session: &Session) {
        self.inner.open.add(session);
        if session.mode() == Mode::Write {
            let mark = self.inner.catalog.mark(session.id());
            let _ = session.core.mark.set(mark);
        }
    }

    /// Brings a faulted session back: closes it for all its handles, and opens it again. What the
    /// fault left unknown is settled by the log.
    ///
    /// # Errors
    /// As for [`Store::open_session`].
    pub fn reopen(&self, session: &Session) -> Result<(Session, OpenReport), SessionError> {
        if let Err(error) = session.close() {
            // A faulted journal is not closed cleanly (W10), which is why it is opened again.
            tracing::debug!(%error, session = %session.id(), "reopening after a fault");
        }
        self.open_session(session.id(), session.mode())
    }

    /// Closes every session that this store has open for writing, for all its handles, and in the shared
    /// layout the journal, so that another process can open the store. What opens a session afterwards
    /// opens the journal again. Dropping the store and all sessions gives the lock back too, but the next
    /// opening has more to do.
    ///
    /// # Errors
    /// The first that a session or the journal gave; the others are closed all the same, and what was
    /// acknowledged is as safe as before.
    pub fn close(&self) -> Result<(), SessionCloseError> {
        let sessions = self.inner.open.list();
        let mut outcome = Ok(());
        for session in sessions {
            outcome = outcome.and(session.close());
        }
        outcome.and(self.inner.shared.close().map_err(Into::into))
    }

    /// The journal of a session, read without a lock: what tools look at. In the shared layout it has the
    /// records of all sessions.
    ///
    /// # Errors
    /// As for [`JournalView::open`].
    pub fn journal_view(&self, id: SessionId) -> Result<JournalView, OpenError> {
        self.require_not_deleted(id)?;
        if self.inner.layout == Layout::Shared {
            return self.shared_view(&Watch::default());
        }
        JournalView::open(self.inner.vfs.clone(), &self.session_dir(id))
    }
}

/// The error of a directory that holds a backup which was cut off.
fn unfinished(vfs: &Arc<dyn Vfs>, dir: &Path) -> Option<StoreError> {
    let found = vfs.identity(&dir.join(backup::UNFINISHED)).is_ok();
    found.then(|| StoreError::UnfinishedBackup {
        path: dir.to_owned(),
    })
}

/// Whether a directory has sessions: as far as names tell, or in the one journal of all.
fn has_sessions(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<bool, StoreError> {
    let sessions = dir.join(SESSIONS);
    match vfs.list(&sessions) {
        Ok(entries) => {
            let names = entries.into_iter().map(|entry| entry.name).collect();
            Ok(delete::session_names(names).next().is_some())
        }
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => shared::has_sessions(vfs, dir),
            _ => Err(DiskError::new(Operation::List, &sessions, &error).into()),
        },
    }
}

/// The error that tells the want of handles.
fn lacking(error: &DiskError) -> Option<SessionError> {
    let lacking = OpenError::Disk(error.clone()).of_handles();
    matches!(lacking, OpenError::TooManyHandles { .. }).then_some(SessionError::Journal(lacking))
}

/// Makes a directory, with its missing parents, and makes each name durable in its parent: a name
/// that was made is synced through a handle that was opened before (W6).
fn create_dir(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<(), DiskError> {
    let Some(parent) = dir.parent() else {
        return Ok(());
    };
    let parent = match parent == Path::new("") {
        true => Path::new("."),
        false => parent,
    };
    let handle = match vfs.open_dir(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create_dir(vfs, parent)?;
            vfs.open_dir(parent)
        }
        // A parent that we may pass through but not read: nothing of ours is made in it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && vfs.list(dir).is_ok() => {
            return Ok(());
        }
        opened => opened,
    };
    let handle = handle.map_err(|error| DiskError::new(Operation::Open, parent, &error))?;
    match vfs.create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(DiskError::new(Operation::Create, dir, &error));
        }
        // Also when it was there: who made it may have been cut off before it was durable.
        _ => {}
    }
    handle.sync().map_err(|error| {
        // A later sync that succeeds would prove nothing about this name (W6): it is taken back if
        // nothing is in it, so that the next try makes a new one.
        let _ = vfs.remove_dir(dir);
        DiskError::new(Operation::SyncDirectory, parent, &error)
    })
}

fn list(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Vec<String>, DiskError> {
    let entries = vfs
        .list(dir)
        .map_err(|error| DiskError::new(Operation::List, dir, &error))?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}
