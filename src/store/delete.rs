//! Deletion of a session, and retention: what is old or too much goes, only when asked for.
//!
//! The tombstone is durable before a byte of the session is removed. From then on the session is
//! neither listed nor opened, whoever is cut off where: the next opening or listing that may write
//! removes what is left.

use std::path::Path;
use std::time::Duration;

use super::listed::listed;
use super::purge::{remove_tree, size_of};
use super::tombstone;
use super::{Layout, Listed, SESSIONS, SessionError, Store, StoreError, list};
use crate::identity::{SessionId, Timestamp};
use crate::journal::{DiskError, JournalView, LOCK, OpenError, Operation, Seq, take_lock};

/// What a deletion removed. It is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeletionReceipt {
    /// The session. Its id is refused from now on.
    pub session: SessionId,
    /// How many files were removed: of the journal, its quarantine, its lock and its holder.
    pub files: u64,
    /// How many bytes they had.
    pub bytes: u64,
    /// Its last sequence; not known if it could not be read, or if an earlier deletion of it was cut
    /// off.
    pub last_seq: Option<Seq>,
    /// Whether it finished a deletion that was cut off.
    pub resumed: bool,
}

/// What shall be removed. Without any limit nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionPolicy {
    /// Sessions whose last event is older than this go.
    pub older_than: Option<Duration>,
    /// So many sessions, those that were active last, stay whatever the other limits say. Without
    /// another limit all others go.
    pub keep_last: Option<usize>,
    /// Those that were active the longest ago go until the others have at most so many bytes.
    pub max_bytes: Option<u64>,
}

/// Why a session is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Its last event is too old.
    Age,
    /// Enough sessions were active after it.
    Count,
    /// The sessions that were active after it have all the bytes there may be.
    Bytes,
}

/// A session that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired {
    /// The session.
    pub session: SessionId,
    /// Its last sequence: if it has another one later, it stays.
    pub last_seq: Seq,
    /// When its last event was made.
    pub last_active: Option<Timestamp>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Why.
    pub reason: Reason,
}

/// Why retention passed over a session.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum PassedOver {
    /// It is open, here or in another process.
    Open,
    /// Its lock could not be taken, as in a store that this process may not write to: nobody knows
    /// whether it is open, and it could not be deleted.
    Lock(DiskError),
    /// It is damaged: only a person decides about it.
    Damaged,
    /// It cannot be read.
    Unreadable(OpenError),
    /// Its events do not say when they were made, so nobody knows its age.
    NoTime,
    /// It was used since the plan was made.
    Used,
    /// It is gone already.
    Gone,
    /// It could not be deleted, or not wholly.
    Failed(SessionError),
}

/// What a retention would do: nothing has been done yet.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct RetentionPlan {
    /// The sessions that are to go, the oldest first.
    pub remove: Vec<Expired>,
    /// How many stay.
    pub kept: usize,
    /// Bytes of those that stay.
    pub kept_bytes: u64,
    /// Those about which nothing is decided; they stay.
    pub passed_over: Vec<(SessionId, PassedOver)>,
}

/// What carrying out a plan did.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct RetentionReport {
    /// The sessions that were deleted.
    pub deleted: Vec<DeletionReceipt>,
    /// Those of the plan that were not.
    pub passed_over: Vec<(SessionId, PassedOver)>,
}

impl Store {
    /// Deletes a session for good: every byte in its directory, also what is damaged, of a newer
    /// format or in its quarantine. Its id is not used again: creating, opening or importing it is
    /// [`SessionError::Deleted`].
    ///
    /// A deletion that is cut off has either changed nothing, or the session is gone for good.
    ///
    /// What the index behind [`Store::list`] says of it goes behind the receipt, within seconds and at
    /// the latest when the store is closed; if another process holds that index, when that one closes it.
    ///
    /// # Errors
    /// [`SessionError::NotFound`]; [`SessionError::Deleted`] if it was deleted before;
    /// [`SessionError::Journal`] with [`OpenError::Locked`] if it is open, here or in another process;
    /// [`SessionError::Disk`] if the disk failed: call it again, or leave the rest to the next listing.
    pub fn delete_session(&self, id: SessionId) -> Result<DeletionReceipt, SessionError> {
        let deleted = self.delete_when(id, |_| true)?;
        deleted.ok_or(SessionError::NotFound(id))
    }

    /// Deletes it if its last sequence, seen under its lock, is as wanted.
    fn delete_when(
        &self,
        id: SessionId,
        wanted: impl FnOnce(Option<Seq>) -> bool,
    ) -> Result<Option<DeletionReceipt>, SessionError> {
        if self.inner.layout == Layout::Shared {
            return Err(SessionError::Layout(Layout::Shared));
        }
        let vfs = &self.inner.vfs;
        let dir = self.session_dir(id);
        if vfs
            .list(&dir)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            return Err(match self.is_deleted(id)? {
                true => SessionError::Deleted(id),
                false => SessionError::NotFound(id),
            });
        }
        let held = take_lock(vfs, &dir)?;
        let resumed = self.is_deleted(id)?;
        let mut last_seq = None;
        if !resumed {
            last_seq = match self.present(id) {
                Ok(Some(listed)) => Some(listed.last_seq),
                Ok(None) => return Err(SessionError::NotFound(id)),
                Err(error @ OpenError::TooManyHandles { .. }) => return Err(error.into()),
                // Damaged beyond reading, or of a newer format: it is there.
                Err(_) => None,
            };
            if !wanted(last_seq) {
                return Ok(None);
            }
        }
        self.make_tombstone(id)?;
        if !self.inner.catalog.remove(id) {
            super::catalog::expel(vfs, &self.inner.dir)?;
        }
        let sessions = self.inner.dir.join(SESSIONS);
        let failed = |operation, error| DiskError::new(operation, &sessions, &error);
        let handle = vfs.open_dir(&sessions);
        let handle = handle.map_err(|error| failed(Operation::Open, error))?;
        let removed = remove_tree(vfs, &dir, Some(LOCK))?;
        handle
            .sync()
            .map_err(|error| failed(Operation::SyncDirectory, error))?;
        drop(held);
        tracing::debug!(session = %id, files = removed.files, "session deleted");
        Ok(Some(DeletionReceipt {
            session: id,
            files: removed.files,
            bytes: removed.bytes,
            last_seq,
            resumed,
        }))
    }

    /// What the log of a session says, tombstone or not; `None` if there is no session.
    fn present(&self, id: SessionId) -> Result<Option<Listed>, OpenError> {
        match JournalView::open(self.inner.vfs.clone(), &self.session_dir(id)) {
            Ok(view) => Ok(listed(&self.decoder(id), &view)),
            Err(OpenError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a session under this id, readable or not.
    pub(super) fn exists(&self, id: SessionId) -> bool {
        self.present(id).map_or(true, |listed| listed.is_some())
    }

    /// Removes what a creation left that was cut off.
    pub(super) fn clear_half_created(&self, id: SessionId) -> Result<(), OpenError> {
        let dir = self.session_dir(id);
        if self.inner.vfs.list(&dir).is_err() {
            return Ok(());
        }
        let held = take_lock(&self.inner.vfs, &dir)?;
        if self.exists(id) {
            return Err(OpenError::AlreadyExists { path: dir });
        }
        remove_tree(&self.inner.vfs, &dir, Some(LOCK)).map_err(OpenError::Disk)?;
        drop(held);
        Ok(())
    }

    /// Refuses an id whose session was deleted; what is left of it is removed if this store may.
    pub(super) fn refuse_deleted(&self, id: SessionId) -> Result<(), SessionError> {
        if !self.is_deleted(id)? {
            return Ok(());
        }
        if self.inner.tidies {
            self.finish_deletion(id);
        }
        Err(SessionError::Deleted(id))
    }

    /// The same behind the lock: who deletes holds it while the tombstone is made, so a tombstone that
    /// was not seen before it was taken is seen now.
    pub(super) fn refuse_deleted_now(&self, id: SessionId) -> Result<(), SessionError> {
        match self.is_deleted(id)? {
            true => Err(SessionError::Deleted(id)),
            false => Ok(()),
        }
    }

    /// The same for who looks into the journal: there is none.
    pub(super) fn require_not_deleted(&self, id: SessionId) -> Result<(), OpenError> {
        match self.is_deleted(id).map_err(OpenError::Disk)? {
            true => Err(OpenError::NotFound {
                path: self.session_dir(id),
            }),
            false => Ok(()),
        }
    }

    /// Finishes the deletions that were cut off.
    pub(super) fn finish_deletions(&self) {
        if self.inner.layout == Layout::Shared {
            return;
        }
        let tombstones = match self.tombstones() {
            Ok(tombstones) if tombstones.is_empty() => return,
            Ok(tombstones) => tombstones,
            Err(error) => return tracing::warn!(%error, "deletions are not finished"),
        };
        let sessions = self.inner.dir.join(SESSIONS);
        for id in session_names(list(&self.inner.vfs, &sessions).unwrap_or_default()) {
            if tombstones.contains(&tombstone::name(id)) {
                self.finish_deletion(id);
            }
        }
    }

    fn finish_deletion(&self, id: SessionId) {
        match self.delete_when(id, |_| true) {
            Ok(_) => tracing::debug!(session = %id, "a deletion that was cut off is finished"),
            // Gone, or another process is at it.
            Err(SessionError::Deleted(_) | SessionError::Journal(OpenError::Locked { .. })) => {}
            Err(error) => {
                tracing::warn!(%error, session = %id, "a deletion that was cut off is not finished");
            }
        }
    }

    /// What a policy would remove, as things are now. Nothing is removed, and nothing ever is unless
    /// [`Store::prune`] is called with the plan. Sessions that are open or cannot be judged are passed
    /// over and named.
    ///
    /// Whether a session is open is found by taking its lock for a moment: who opens it at that very
    /// moment finds it locked. This is done only for those that would go.
    ///
    /// # Errors
    /// Only if the sessions cannot be listed.
    pub fn retention(&self, policy: RetentionPolicy) -> Result<RetentionPlan, StoreError> {
        if self.inner.layout == Layout::Shared {
            return Err(StoreError::Layout(Layout::Shared));
        }
        let mut plan = RetentionPlan::default();
        let mut judged = Vec::new();
        for entry in self.sessions()? {
            let pass = match entry.state {
                Err(error) => PassedOver::Unreadable(error),
                Ok(listed) if listed.damage.is_some() => PassedOver::Damaged,
                Ok(listed) => match listed.last_active {
                    Some(active) => {
                        judged.push((active, entry.id, listed.last_seq));
                        continue;
                    }
                    None => PassedOver::NoTime,
                },
            };
            plan.passed_over.push((entry.id, pass));
        }
        // Those that were active last come first.
        judged.sort_by(|one, other| other.cmp(one));
        let now = self.inner.options.factory.now();
        let mut kept_bytes = 0_u64;
        for (rank, (active, session, last_seq)) in judged.into_iter().enumerate() {
            let dir = self.session_dir(session);
            let bytes = size_of(&self.inner.vfs, &dir);
            match policy.judges(rank, age(active, now), kept_bytes.saturating_add(bytes)) {
                Some(reason) => match self.in_the_way(&dir) {
                    Some(pass) => plan.passed_over.push((session, pass)),
                    None => {
                        plan.remove.push(Expired {
                            session,
                            last_seq,
                            last_active: Some(active),
                            bytes,
                            reason,
                        });
                        continue;
                    }
                },
                None => plan.kept += 1,
            }
            kept_bytes = kept_bytes.saturating_add(bytes);
        }
        plan.kept_bytes = kept_bytes;
        plan.remove.reverse();
        Ok(plan)
    }

    /// Deletes the sessions of a plan, each as [`Store::delete_session`] does. One that was used since
    /// the plan was made, or is open now, stays and is named. It goes on behind failures.
    pub fn prune(&self, plan: &RetentionPlan) -> RetentionReport {
        let mut report = RetentionReport::default();
        for expired in &plan.remove {
            let id = expired.session;
            let pass = match self.delete_when(id, |last| last == Some(expired.last_seq)) {
                Ok(Some(receipt)) => {
                    report.deleted.push(receipt);
                    continue;
                }
                Ok(None) => PassedOver::Used,
                Err(SessionError::NotFound(_) | SessionError::Deleted(_)) => PassedOver::Gone,
                Err(SessionError::Journal(OpenError::Locked { .. })) => PassedOver::Open,
                Err(error) => PassedOver::Failed(error),
            };
            report.passed_over.push((id, pass));
        }
        report
    }

    /// Why a session cannot be deleted now: it is open, or its lock cannot be taken.
    fn in_the_way(&self, dir: &Path) -> Option<PassedOver> {
        let lock = dir.join(LOCK);
        let failed = |operation, error| {
            let error = DiskError::new(operation, &lock, &error);
            Some(PassedOver::Lock(error))
        };
        match self.inner.vfs.identity(&lock) {
            Ok(_) => {}
            // A lock that is not there is not held; asking for it would make it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return failed(Operation::Stat, error),
        }
        match self.inner.vfs.try_lock(&lock) {
            Ok(Some(_)) => None,
            Ok(None) => Some(PassedOver::Open),
            Err(error) => failed(Operation::Lock, error),
        }
    }
}

/// The sessions among names.
pub(super) fn session_names(names: Vec<String>) -> impl Iterator<Item = SessionId> {
    names.into_iter().filter_map(|name| {
        let id: SessionId = name.parse().ok()?;
        (id.to_string() == name).then_some(id)
    })
}

fn age(active: Timestamp, now: Timestamp) -> Duration {
    let secs = now.secs().saturating_sub(active.secs());
    Duration::from_secs(u64::try_from(secs).unwrap_or(0))
}

impl RetentionPolicy {
    /// Why a session goes, if it does: `rank` others were active after it, and with those of them that
    /// stay it would have `bytes`.
    fn judges(&self, rank: usize, age: Duration, bytes: u64) -> Option<Reason> {
        if self.keep_last.is_some_and(|keep| rank < keep) {
            return None;
        }
        if self.older_than.is_some_and(|limit| age > limit) {
            return Some(Reason::Age);
        }
        if self.max_bytes.is_some_and(|limit| bytes > limit) {
            return Some(Reason::Bytes);
        }
        let only_count = self.older_than.is_none() && self.max_bytes.is_none();
        (self.keep_last.is_some() && only_count).then_some(Reason::Count)
    }
}
