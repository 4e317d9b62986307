//! Preparing the next segment aside (W4, W9), and the right to acknowledge that comes with each
//! manifest (W6, W12).
//!
//! The next segment is a file of its own, so that making it never dirties the file that commits
//! sync. It is made step by step by a worker; a commit that needs it earlier does the steps that are
//! left itself. The manifest that lists it is published without the commit token: groups go on
//! under the manifest before it, which is removed only after the new one counts.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::create::{Filling, MakeError, remove_unnamed};
use super::directory::{Directory, OpenFile, Ownership, PublishError};
use super::error::{DiskError, Fault, FaultCause, NotCommitted};
use super::fault::FaultCell;
use super::manifest::{End, Manifest, SegmentEntry};
use super::names::SegmentName;
use super::segment::StaticHeader;
use super::spans::Spans;
use crate::sync::{Mutex, MutexGuard};
use crate::vfs::Access;

/// The next segment: listed in the manifest and zeroed.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) entry: SegmentEntry,
    pub(crate) header: StaticHeader,
    pub(crate) file: OpenFile,
}

/// The right of this process to acknowledge: the last manifest that it published (W12).
#[derive(Debug)]
pub(crate) struct Right(Mutex<Arc<Ownership>>);

impl Right {
    pub(crate) fn new(ownership: Ownership) -> Right {
        Right(Mutex::new(Arc::new(ownership)))
    }

    fn current(&self) -> Arc<Ownership> {
        lock(&self.0).clone()
    }

    /// The last manifest that this process published.
    pub(crate) fn manifest(&self) -> Manifest {
        self.current().manifest.clone()
    }

    /// Closes the manifest: until [`Right::come_back`] nothing is acknowledged.
    pub(crate) fn park(&self) {
        let mut current = lock(&self.0);
        *current = Arc::new(current.parked());
    }

    /// Opens the manifest again. Whether the right is still there.
    pub(crate) fn come_back(&self, directory: &Directory) -> Result<bool, DiskError> {
        let back = self.current().back(directory)?;
        let holds = back.is_some();
        if let Some(ownership) = back {
            *lock(&self.0) = Arc::new(ownership);
        }
        Ok(holds)
    }

    /// Whether the name of the own manifest still leads to that very file. While a newer manifest of
    /// our own takes its place, either will do: an owner that takes over removes both before it
    /// scans.
    pub(crate) fn still_holds(&self, directory: &Directory) -> Result<bool, DiskError> {
        let mut looked_at = self.current();
        while !looked_at.still_holds(directory)? {
            let now = self.current();
            if Arc::ptr_eq(&now, &looked_at) {
                return Ok(false);
            }
            looked_at = now;
        }
        Ok(true)
    }
}

#[derive(Debug)]
enum Stage {
    Idle,
    Wanted(StaticHeader),
    Filling(Filling),
    Made(StaticHeader, OpenFile),
    Ready(Successor),
    /// The same, with its file closed.
    Parked(Successor),
}

#[derive(Debug)]
struct Work {
    stage: Stage,
    /// Ends of sealed segments that no manifest names yet.
    ends: Vec<(SegmentName, End)>,
    /// Sealed files that still have zeros behind their end.
    trims: Vec<(OpenFile, u64)>,
    /// The share of the active segment that was used when the next one was asked for.
    asked_at: f64,
    stopped: bool,
}

/// Makes segments ready before they are needed.
#[derive(Debug)]
pub(crate) struct Preparer {
    directory: Directory,
    fault: FaultCell,
    spans: Spans,
    pub(crate) right: Right,
    work: Mutex<Work>,
    /// Why the last try failed. Apart from the work, so that it can be read while the disk works.
    lacking: Mutex<Option<NotCommitted>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Preparer {
    pub(crate) fn new(
        directory: Directory,
        ownership: Ownership,
        fault: FaultCell,
        spans: Spans,
    ) -> Preparer {
        Preparer {
            directory,
            fault,
            spans,
            right: Right::new(ownership),
            work: Mutex::new(Work {
                stage: Stage::Idle,
                ends: Vec::new(),
                trims: Vec::new(),
                asked_at: 0.0,
                stopped: false,
            }),
            lacking: Mutex::new(None),
        }
    }

    /// Asks for the next segment ahead of its need. Whether there is something to do aside.
    pub(crate) fn want(&self, header: StaticHeader, used: f64) -> bool {
        let mut work = lock(&self.work);
        if matches!(work.stage, Stage::Idle) && !work.stopped {
            work.asked_at = used;
            work.stage = Stage::Wanted(header);
            return true;
        }
        false
    }

    /// The next segment now: what is left to do for it is done here. One that was asked for with
    /// less capacity than is needed is made anew unless it is listed already.
    pub(crate) fn take(&self, header: StaticHeader) -> Result<Successor, NotCommitted> {
        let mut work = lock(&self.work);
        loop {
            match std::mem::replace(&mut work.stage, Stage::Idle) {
                Stage::Ready(successor) => return Ok(successor),
                Stage::Parked(successor) => {
                    let opened = self.open_again(&successor);
                    work.stage = Stage::Parked(successor);
                    let file = opened?;
                    if let Stage::Parked(successor) =
                        std::mem::replace(&mut work.stage, Stage::Idle)
                    {
                        return Ok(Successor { file, ..successor });
                    }
                }
                Stage::Idle => work.stage = Stage::Wanted(header),
                Stage::Wanted(wanted) if wanted.capacity < header.capacity => {
                    work.stage = Stage::Wanted(header);
                }
                Stage::Filling(filling) if filling.header.capacity < header.capacity => {
                    filling.abandon(&self.directory);
                    work.stage = Stage::Wanted(header);
                }
                Stage::Made(made, _) if made.capacity < header.capacity => {
                    remove_unnamed(&self.directory, &made.name);
                    work.stage = Stage::Wanted(header);
                }
                stage => {
                    work.stage = stage;
                    self.step(&mut work, u64::MAX, false)?;
                }
            }
        }
    }

    /// Opens a successor that was parked. It is listed in a manifest of ours, so it is there.
    fn open_again(&self, successor: &Successor) -> Result<OpenFile, NotCommitted> {
        let name = successor.entry.name;
        let file = self.directory.open_segment(&name, Access::Write);
        file.map_err(definite)?
            .ok_or_else(|| NotCommitted::Prepare(super::evidence::absent(&self.directory, &name)))
    }

    /// Closes all files. A successor that is not listed yet is given up, and made anew when it is
    /// wanted again.
    pub(crate) fn park(&self) {
        let mut work = lock(&self.work);
        match std::mem::replace(&mut work.stage, Stage::Idle) {
            Stage::Filling(filling) => filling.abandon(&self.directory),
            Stage::Made(header, _) => remove_unnamed(&self.directory, &header.name),
            Stage::Ready(mut successor) => {
                successor.file.close();
                work.stage = Stage::Parked(successor);
            }
            parked @ Stage::Parked(_) => work.stage = parked,
            Stage::Idle | Stage::Wanted(_) => {}
        }
        self.trim(&mut work);
        self.right.park();
        self.directory.rest();
    }

    /// Cuts what lies behind the ends of sealed segments. Nothing that changes evidence follows a
    /// fault (W10). A trim needs no order and no sync: behind the end there are only zeros.
    fn trim(&self, work: &mut Work) {
        for (file, length) in work.trims.drain(..) {
            if self.fault.get().is_none()
                && let Err(error) = file.set_len(length)
            {
                tracing::debug!(%error, "a sealed segment could not be trimmed");
            }
        }
    }

    /// A segment was sealed: the next manifest names its end, and what lies behind it can go.
    pub(crate) fn sealed(&self, name: SegmentName, end: End, file: OpenFile, trim: Option<u64>) {
        let mut work = lock(&self.work);
        work.ends.push((name, end));
        work.trims.extend(trim.map(|length| (file, length)));
    }

    /// Whether a segment is listed and not used yet.
    pub(crate) fn has_successor(&self) -> bool {
        matches!(lock(&self.work).stage, Stage::Ready(_) | Stage::Parked(_))
    }

    /// Why the last try to prepare a segment failed, if it did.
    pub(crate) fn lacking(&self) -> Option<NotCommitted> {
        lock(&self.lacking).clone()
    }

    /// Nothing is done aside any more; waits for what is being done.
    pub(crate) fn stop(&self) {
        let mut work = lock(&self.work);
        work.stopped = true;
        self.trim(&mut work);
        if self.fault.get().is_none() {
            match std::mem::replace(&mut work.stage, Stage::Idle) {
                Stage::Filling(filling) => filling.abandon(&self.directory),
                Stage::Made(header, _) => remove_unnamed(&self.directory, &header.name),
                other => work.stage = other,
            }
        }
        self.directory.rest();
    }

    /// One step aside, at a pace that stays ahead of the commits: `used` is the share of the active
    /// segment that is used. After what time the next step is due, if there is one.
    pub(crate) fn aside(&self, used: f64) -> Option<Duration> {
        let mut work = lock(&self.work);
        if work.stopped {
            return None;
        }
        if !work.trims.is_empty() {
            self.trim(&mut work);
            return Some(Duration::ZERO);
        }
        if matches!(work.stage, Stage::Idle | Stage::Ready(_) | Stage::Parked(_)) {
            return None;
        }
        let begun = Instant::now();
        let piece = match work.pace(used) {
            Pace::Leisure => PIECE,
            Pace::Hurry => HURRIED,
        };
        match self.step(&mut work, piece, true) {
            Ok(()) => Some(match work.pace(used) {
                Pace::Leisure => begun.elapsed() * LEISURE,
                Pace::Hurry => Duration::ZERO,
            }),
            Err(reason) => {
                tracing::warn!(journal = %self.directory.path().display(), %reason, "the next segment could not be prepared ahead; it is tried again when it is needed");
                None
            }
        }
    }

    /// One step towards a segment that is ready.
    fn step(&self, work: &mut Work, piece: u64, paced: bool) -> Result<(), NotCommitted> {
        if let Some(fault) = self.fault.get() {
            return Err(NotCommitted::Faulted(fault.clone()));
        }
        let stage = std::mem::replace(&mut work.stage, Stage::Idle);
        let next = self.advance(work, stage, piece, paced);
        if next.is_err() && self.fault.get().is_none() {
            // What was made was removed again: no name waits for being durable.
            self.directory.rest();
        }
        *lock(&self.lacking) = next.as_ref().err().cloned();
        work.stage = next?;
        Ok(())
    }

    fn advance(
        &self,
        work: &mut Work,
        stage: Stage,
        piece: u64,
        paced: bool,
    ) -> Result<Stage, NotCommitted> {
        match stage {
            Stage::Idle | Stage::Ready(_) | Stage::Parked(_) => Ok(stage),
            Stage::Wanted(header) => Filling::begin(&self.directory, header)
                .map(Stage::Filling)
                .map_err(|error| self.not_made(error, &header.name)),
            Stage::Filling(mut filling) => {
                let name = filling.header.name;
                let more = filling
                    .fill(&self.directory, piece)
                    .map_err(|error| self.not_made(error, &name))?;
                // Piece by piece, so that no large write-back stands before a commit.
                if paced || !more {
                    filling
                        .sync()
                        .map_err(|error| self.not_made(error, &name))?;
                }
                Ok(match more {
                    true => Stage::Filling(filling),
                    false => Stage::Made(filling.header, filling.into_file()),
                })
            }
            Stage::Made(header, file) => self.publish(work, header, file).map(Stage::Ready),
        }
    }

    /// The manifest that lists it, and that names the ends of what was sealed since the last one.
    fn publish(
        &self,
        work: &mut Work,
        header: StaticHeader,
        file: OpenFile,
    ) -> Result<Successor, NotCommitted> {
        // The files of those that the manifest ends are not held longer than it takes.
        self.trim(work);
        let before = self.right.current();
        let entry = SegmentEntry::own(header.name, header.log, None);
        let mut manifest = Manifest {
            number: before.manifest.number.saturating_add(1),
            ..before.manifest.clone()
        };
        for (name, end) in &work.ends {
            for listed in &mut manifest.segments {
                if listed.name == *name {
                    listed.end = Some(*end);
                }
            }
        }
        manifest.segments.push(entry);
        let random = super::recovery::random_word().unwrap_or(manifest.number);
        match Ownership::publish(&self.directory, manifest, random) {
            Ok(ownership) => {
                let ownership = Arc::new(ownership);
                *lock(&self.right.0) = ownership.clone();
                // A new owner keeps what a manifest ends, so these need not be held any more.
                let ends = std::mem::take(&mut work.ends);
                self.spans
                    .unpin(|name| ends.iter().any(|(ended, _)| ended == name));
                if let Err(error) = ownership.remove_older(&self.directory) {
                    tracing::warn!(%error, "an older manifest could not be removed; the next opening does it");
                }
                self.directory.rest();
                Ok(Successor {
                    entry,
                    header,
                    file,
                })
            }
            Err(PublishError::Disk(error)) => {
                // Not listed, so it is nothing; made again under the same name by the next try.
                remove_unnamed(&self.directory, &header.name);
                Err(definite(error))
            }
            Err(PublishError::Sync(error)) => Err(self.faulted(FaultCause::Directory(error))),
            Err(PublishError::Overtaken) => {
                let path = self.directory.path().to_owned();
                Err(self.faulted(FaultCause::Overtaken { path }))
            }
        }
    }

    fn not_made(&self, error: MakeError, name: &SegmentName) -> NotCommitted {
        match error {
            MakeError::Sync(error) => self.faulted(FaultCause::Sync(error)),
            other => definite(other.disk(&self.directory.file_path(&name.to_string()))),
        }
    }

    fn faulted(&self, cause: FaultCause) -> NotCommitted {
        NotCommitted::Faulted(self.poison(cause))
    }

    fn poison(&self, cause: FaultCause) -> Fault {
        self.fault.poison(self.directory.path(), cause)
    }
}

/// Bytes of zeros that are written and synced at once aside.
const PIECE: u64 = 256 * 1024;
/// The same when the commits are ahead: fewer syncs, each of which the commits wait behind.
const HURRIED: u64 = 2 * 1024 * 1024;
/// How many times as long as a piece took the next one waits, when there is time: most of it is
/// left to the commits.
const LEISURE: u32 = 3;

enum Pace {
    Leisure,
    Hurry,
}

impl Work {
    /// Whether preparing is ahead of the commits: it has to be done when the active segment is full.
    fn pace(&self, used: f64) -> Pace {
        let made = match &self.stage {
            Stage::Filling(filling) => filling.share(),
            _ => 0.0,
        };
        let gone = (used - self.asked_at) / (READY_AT - self.asked_at).max(0.01);
        match made > gone {
            true => Pace::Leisure,
            false => Pace::Hurry,
        }
    }
}

/// The share of the active segment at which the next one shall be ready.
const READY_AT: f64 = 0.8;

pub(super) fn definite(error: DiskError) -> NotCommitted {
    match error {
        full if full.is_full() => NotCommitted::StorageFull(full),
        lacking if lacking.is_out_of_handles() => NotCommitted::TooManyHandles {
            limit: crate::vfs::handle_limit(),
        },
        other => NotCommitted::Prepare(other),
    }
}
