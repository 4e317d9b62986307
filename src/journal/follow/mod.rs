//! Following: a reader that goes on from replay to live, in order, without a gap or a duplicate.
//!
//! [`Follower`] follows a journal that is open for writing in this process: it gives what is durable
//! and is woken by the commits. [`JournalFollower`] follows from anywhere, by polling: it gives what
//! is proven to be durable. Neither writes a byte or takes a lock.

mod bell;
mod cursor;
mod polling;

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub(crate) use bell::Bell;
use cursor::Cursor;
pub use polling::{JournalFollower, Polling};

use super::directory::Directory;
use super::error::{Damage, DiskError, Fault, OpenError, Operation, ReadError};
use super::rot::RotCell;
use super::spans::{Span, Spans};
use super::{Entry, Lsn};
use crate::vfs::Access;

/// Why a follower gives nothing now. All but [`FollowError::Disk`] and the gaps in
/// [`FollowError::Read`] are its end: it says the same from then on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The journal was closed; all of it was given.
    #[error("the journal was closed")]
    Closed,
    /// The journal is faulted; everything that it acknowledged was given. Open it again.
    #[error("the journal is faulted: {0}")]
    Faulted(Fault),
    /// A record cannot be read. Behind damage it does not go on: nothing is skipped in silence. Read
    /// what is intact with [`Journal::read`](super::Journal::read). After a
    /// [gap](ReadError::Gap) that was made on purpose it goes on.
    #[error(transparent)]
    Read(ReadError),
    /// The journal is damaged; read what is intact with [`JournalView`](super::JournalView).
    #[error("{} is damaged: {damage}", path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// The journal was deleted.
    #[error("the journal at {} was deleted", path.display())]
    Deleted {
        /// The directory.
        path: PathBuf,
    },
    /// Another journal stands where this one was.
    #[error("another journal stands at {} now; follow it from its beginning", path.display())]
    Replaced {
        /// The directory.
        path: PathBuf,
    },
    /// The journal cannot be read by this version.
    #[error(transparent)]
    Open(OpenError),
    /// The disk failed. Nothing was decided from it: the follower can be asked again.
    #[error(transparent)]
    Disk(DiskError),
}

impl FollowError {
    /// Whether the follower can go on after it.
    fn passes(&self) -> bool {
        matches!(
            self,
            FollowError::Disk(_) | FollowError::Read(ReadError::Gap { .. } | ReadError::Disk(_))
        )
    }
}

/// Follows a journal that is open for writing in this process: every durable record from an Lsn on,
/// first those that are there, then each as it is acknowledged. It never passes what is durable.
///
/// It ends with [`FollowError::Closed`], or with [`FollowError::Faulted`] after the last record that
/// was acknowledged. It does not keep the journal open. It reads from the disk in the thread that
/// asks it, also when it is polled: what was written a moment ago comes from the page cache.
#[derive(Debug)]
pub struct Follower {
    directory: Directory,
    spans: Spans,
    bell: Arc<Bell>,
    id: u64,
    /// The next Lsn to give.
    next: Lsn,
    /// All up to here is known to be durable.
    known: Lsn,
    at: Option<(Cursor, Span)>,
    end: Option<FollowError>,
    rot: RotCell,
}

impl Follower {
    pub(super) fn new(directory: Directory, spans: Spans, bell: Arc<Bell>, from: Lsn) -> Follower {
        Follower {
            directory,
            spans,
            id: bell.join(),
            bell,
            next: from.max(Lsn::new(1)),
            known: Lsn::ZERO,
            at: None,
            end: None,
            rot: RotCell::default(),
        }
    }

    /// Damage is noted there.
    pub(super) fn noting(mut self, rot: RotCell) -> Follower {
        self.rot = rot;
        self
    }

    /// The Lsn of the next record that it will give.
    pub fn position(&self) -> Lsn {
        self.next
    }

    /// The next record if it is durable now; `None` if the journal has no more yet. Does not wait.
    ///
    /// # Errors
    /// [`FollowError`] says how it ended, or what cannot be read.
    pub fn try_next(&mut self) -> Result<Option<Entry>, FollowError> {
        loop {
            if let Some(end) = &self.end {
                return Err(end.clone());
            }
            if self.next > self.known {
                // In this order: what counts before the end was told is seen behind it.
                let end = self.bell.ended();
                self.known = self.spans.last();
                if self.next > self.known {
                    self.end = end;
                    match self.end {
                        Some(_) => continue,
                        None => return Ok(None),
                    }
                }
            }
            let read = self.read();
            match read.inspect_err(|error| self.rot.note(error)) {
                Ok(None) => {}
                Ok(entry) => return Ok(entry),
                Err(error) => {
                    let error = FollowError::Read(error);
                    if !error.passes() {
                        self.end = Some(error.clone());
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Waits for the next record; `None` when the time is over.
    ///
    /// # Errors
    /// As for [`Follower::try_next`].
    pub fn next_timeout(&mut self, limit: Duration) -> Result<Option<Entry>, FollowError> {
        // A limit beyond what the clock can count is none.
        self.wait_until(Instant::now().checked_add(limit))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<Entry>, FollowError> {
        loop {
            if let Some(entry) = self.try_next()? {
                return Ok(Some(entry));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            self.bell.wait(deadline, || self.spans.last() >= self.next);
        }
    }

    /// The next record, for async callers; pending until there is one. The task that polled last is
    /// woken.
    ///
    /// # Errors
    /// As for [`Follower::try_next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Entry, FollowError>> {
        loop {
            if let Some(entry) = self.try_next()? {
                return Poll::Ready(Ok(entry));
            }
            let news = || self.spans.last() >= self.next;
            if self.bell.register(self.id, context.waker(), news) {
                return Poll::Pending;
            }
        }
    }

    /// The next record, awaited. Needs no runtime of a certain kind. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// As for [`Follower::try_next`].
    pub async fn recv(&mut self) -> Result<Entry, FollowError> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// One frame of those that are known to be durable; `None` if it was passed over.
    fn read(&mut self) -> Result<Option<Entry>, ReadError> {
        let at = match self.at.take() {
            Some((cursor, span)) if self.next <= span.last => Some((cursor, span)),
            other => self.go_on(other.map(|(cursor, _)| cursor))?,
        };
        // Lsns have no gaps, so what is durable stands in a segment.
        let Some((mut cursor, span)) = at else {
            return Ok(None);
        };
        let found = self.read_at(&mut cursor, &span);
        self.at = Some((cursor, span));
        found
    }

    fn read_at(&mut self, cursor: &mut Cursor, span: &Span) -> Result<Option<Entry>, ReadError> {
        let header = cursor.peek().map_err(ReadError::Disk)?;
        let header = header.ok_or_else(|| cursor.damage(span.last))?;
        if header.next_lsn() <= self.next {
            cursor.pass(&header);
            return Ok(None);
        }
        let payload = cursor.payload(&header).map_err(ReadError::Disk)?;
        let payload = payload.ok_or_else(|| cursor.damage(header.lsn))?;
        let entry = cursor.entry(&header, payload);
        if !matches!(entry, Err(ReadError::UnknownFrame { .. })) {
            cursor.pass(&header);
            self.next = header.next_lsn();
        }
        entry
    }

    /// To where the next record stands: further on in the same segment, or in another.
    fn go_on(&self, cursor: Option<Cursor>) -> Result<Option<(Cursor, Span)>, ReadError> {
        let Some((span, pinned)) = self.spans.covering(self.next) else {
            return Ok(None);
        };
        let name = span.entry.name;
        if let Some(mut cursor) = cursor.filter(|cursor| cursor.entry.name == name) {
            cursor.limit = span.end;
            return Ok(Some((cursor, span)));
        }
        let file = match pinned {
            Some(file) => file,
            None => self
                .directory
                .open_segment(&name, Access::Read)
                .map_err(ReadError::Disk)?
                .ok_or_else(|| ReadError::Damaged {
                    path: self.directory.file_path(&name.to_string()),
                    offset: 0,
                    first: span.base.next(),
                    last: span.last,
                })?,
        };
        let cursor = Cursor::begin(span.entry, file, span.base, span.end);
        Ok(Some((cursor, span)))
    }
}

/// Blocks for each record. Ends after an error that the follower cannot pass, and, without one, when
/// the journal is closed.
impl Iterator for Follower {
    type Item = Result<Entry, FollowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.end.is_some() {
            return None;
        }
        match self.wait_until(None) {
            Err(FollowError::Closed) => None,
            other => other.transpose(),
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.bell.leave(self.id);
    }
}

/// The error of a directory that is gone, told from one that fails.
fn gone(path: &std::path::Path, error: DiskError) -> FollowError {
    match (error.kind, error.operation) {
        (std::io::ErrorKind::NotFound, Operation::List | Operation::Open) => FollowError::Deleted {
            path: path.to_owned(),
        },
        _ => FollowError::Disk(error),
    }
}
