//! The journal that is measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepwell::identity::SessionId;
use stepwell::journal::{Journal, JournalOptions, NewRecord, NoCarry, Opening, OwnedRecord, Owner};
use stepwell::vfs::{RealVfs, Vfs};

use super::BenchError;
use super::counting::{CountingVfs, Counts};
use super::folder::Folder;
use super::measure::{Run, drive, drive_tasks, payload};

/// Records of the journals that are read and opened, and how many of them go into one batch.
pub(super) const RECORD: usize = 4096;
pub(super) const BATCH: usize = 256;
/// A journal that holds more than this is given up for a fresh one between two rounds.
pub(super) const ENOUGH: u64 = 1 << 30;
/// Each segment is four times as large as the one before: behind so many bytes they have their full
/// size.
const GROWN: u64 = 8 << 20;

/// A journal on the disk, with one session.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) journal: Arc<Journal>,
    session: SessionId,
    vfs: CountingVfs,
    path: PathBuf,
}

/// Finishes an opening: the journal takes appends from here on.
pub(super) fn begin(opening: Opening) -> Result<Journal, BenchError> {
    let (journal, receipt) = opening.begin(&[], Arc::new(NoCarry))?;
    drop(receipt);
    Ok(journal)
}

/// Opens the session's journal for writing, as a host does.
pub(super) fn open(path: &Path, session: SessionId) -> Result<Journal, BenchError> {
    let (owner, options) = (Owner::Session(session), JournalOptions::default());
    begin(Journal::open(Arc::new(RealVfs), path, owner, options)?)
}

/// Creates a journal with the default options in a new folder.
pub(super) fn create(
    vfs: Arc<dyn Vfs>,
    path: &Path,
    session: SessionId,
) -> Result<Journal, BenchError> {
    std::fs::create_dir(path).map_err(BenchError::disk(path))?;
    let (owner, options) = (Owner::Session(session), JournalOptions::default());
    begin(Journal::create(vfs, path, owner, options)?)
}

/// Fills a journal with at least so many bytes of records, in batches of so many records. Gives
/// their number.
pub(super) fn fill(
    journal: &Journal,
    session: SessionId,
    bytes: u64,
    batch: usize,
) -> Result<u64, BenchError> {
    let payloads: Vec<Vec<u8>> = (0..batch)
        .map(|seed| payload(RECORD, seed as u64))
        .collect();
    let records: Vec<NewRecord<'_>> = payloads
        .iter()
        .map(|payload| NewRecord { session, payload })
        .collect();
    let mut left = bytes.div_ceil(RECORD as u64);
    let written = left;
    while left > 0 {
        let count = records.len().min(usize::try_from(left).unwrap_or(batch));
        let batch = records.get(..count).unwrap_or(&records);
        drop(journal.append(batch, None)?);
        left -= batch.len() as u64;
    }
    Ok(written)
}

impl Subject {
    /// A journal whose segments have grown to their full size: a round is short, and measures how it
    /// goes on, not how it begins.
    pub(super) fn make(folder: &Folder, number: usize) -> Result<Subject, BenchError> {
        let path = folder.join(&format!("journal-{number}"));
        let (vfs, session) = (CountingVfs::default(), SessionId::new());
        let journal = create(Arc::new(vfs.clone()), &path, session)?;
        fill(&journal, session, GROWN, BATCH)?;
        Ok(Subject {
            journal: Arc::new(journal),
            session,
            vfs,
            path,
        })
    }

    /// Whether it has become so large that a fresh one should take its place.
    pub(super) fn is_large(&self) -> bool {
        self.vfs.counts().bytes > ENOUGH
    }

    /// Gives it up, and its space back.
    pub(super) fn remove(self) -> Result<(), BenchError> {
        drop(self.journal);
        std::fs::remove_dir_all(&self.path).map_err(BenchError::disk(&self.path))
    }

    /// Threads that append one record after the other, each with a sync behind it that it may share.
    pub(super) fn threads(
        &self,
        writers: usize,
        size: usize,
        duration: Duration,
    ) -> Result<(Run, Counts), BenchError> {
        let works = (0..writers).map(|number| {
            let payload = payload(size, number as u64 + 1);
            move || {
                let record = NewRecord {
                    session: self.session,
                    payload: &payload,
                };
                drop(self.journal.append(&[record], None)?);
                Ok(())
            }
        });
        let before = self.vfs.counts();
        let run = drive(works.collect(), duration)?;
        Ok((run, self.vfs.counts().since(before)))
    }

    /// The same with tasks of an async runtime.
    pub(super) fn tasks(
        &self,
        writers: usize,
        size: usize,
        duration: Duration,
    ) -> Result<(Run, Counts), BenchError> {
        let work = |number: usize| {
            let payload = payload(size, number as u64 + 1);
            let (journal, session) = (self.journal.clone(), self.session);
            move || {
                let payload = payload.clone();
                let ticket = journal.submit(vec![OwnedRecord { session, payload }], None);
                async move {
                    drop(ticket.await?);
                    Ok(())
                }
            }
        };
        let before = self.vfs.counts();
        let run = drive_tasks(writers, duration, work)?;
        Ok((run, self.vfs.counts().since(before)))
    }
}
