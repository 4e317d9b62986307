//! Following from another process, by polling.
//!
//! What is given is proven: it lies at or below a claim that stands in the segment itself (the
//! watermark of a later frame, a witness slot, the seal) or in the manifest. A claim is true from the
//! moment it is encoded, so it may be believed before it is synced. A claim speaks of the file in
//! which it stands: it is forgotten when the follower goes on in another one.

mod locate;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::FollowError;
use super::cursor::Cursor;
use crate::journal::directory::Directory;
use crate::journal::error::{DiskError, OpenError, ReadError};
use crate::journal::frame::LogId;
use crate::journal::manifest::{End, Manifest};
use crate::journal::{Entry, Lsn};
use crate::vfs::Vfs;
use locate::Claims;

/// How many polls in a row must come to the same kind of finding before damage stands: an overtaken
/// writer, a takeover or a deletion may be under way (`docs/guarantees.md` 2).
const ATTEMPTS: u32 = 6;
/// How often one look may go on in another file.
const MOVES: u32 = 4;
/// Every so many looks without progress all names are listed, whatever the one that is looked at each
/// time says.
const LISTING: u32 = 64;
/// How much [`JournalFollower::poll`] gives at once.
const MOST_RECORDS: usize = 1024;
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// Follows a journal from any process, while another one writes to it, by polling: every record from
/// an Lsn on, in order, as soon as it is proven to be durable, and never before.
///
/// The last group of a busy writer is proven by its next one, that of a quiet writer by the witness
/// slot that it writes after 20 ms. So what was acknowledged arrives late by that and by the interval
/// of the caller. A writer that was killed leaves its last group unproven: it arrives when the
/// journal is opened again and keeps it.
///
/// It survives rolls, closes, takeovers and openings again, which it notices by itself, and ends with
/// an error that says what it found when the journal is deleted, replaced or damaged. A look costs
/// the new bytes and at most a few small reads, however long the log is. It writes nothing, takes no
/// lock, needs no free space, and holds one file open.
#[derive(Debug)]
pub struct JournalFollower {
    directory: Directory,
    /// The next Lsn to give.
    next: Lsn,
    manifest: Option<Manifest>,
    log: Option<LogId>,
    at: Option<Stand>,
    end: Option<FollowError>,
    /// An error that did not end it and was not told yet.
    held: Option<FollowError>,
    /// The epoch in which the rest of the active segment was last searched for claims.
    searched: u64,
    /// How many looks in a row found what could be damage.
    suspicions: u32,
    /// How many looks in a row found nothing new.
    quiet: u32,
}

/// Where it stands: in one segment.
#[derive(Debug)]
struct Stand {
    given: Cursor,
    /// The headers that were seen, for the claims in them.
    seen: Cursor,
    /// All up to here is proven.
    proven: Lsn,
    /// Where the segment ends, when it is finished.
    end: Option<End>,
}

/// What a step came to.
enum Step {
    /// A record.
    Given(Box<Entry>),
    /// There is more to do.
    On,
    /// The same, in another file.
    Moved,
    /// There is nothing new.
    Nothing,
}

/// Why a step could not be done.
enum Stop {
    /// It stands at once.
    Error(FollowError),
    /// It could be something that is under way: it stands when it is found again and again.
    Suspicion(FollowError),
}

impl From<DiskError> for Stop {
    fn from(error: DiskError) -> Stop {
        Stop::Error(FollowError::Disk(error))
    }
}

impl JournalFollower {
    /// Follows a journal from an Lsn on. The journal must be there.
    ///
    /// # Errors
    /// [`OpenError::NotFound`], [`OpenError::Disk`]. All else is found when it is polled.
    pub fn open(vfs: Arc<dyn Vfs>, path: &Path, from: Lsn) -> Result<JournalFollower, OpenError> {
        let not_found = || OpenError::NotFound {
            path: path.to_owned(),
        };
        let directory = Directory::open_to_read(vfs, path).map_err(|error| match error.kind {
            std::io::ErrorKind::NotFound => not_found(),
            _ => OpenError::Disk(error).of_handles(),
        })?;
        let found = directory.highest_manifest().map_err(OpenError::Disk)?;
        if found.is_none() {
            return Err(not_found());
        }
        Ok(JournalFollower::new(directory, from))
    }

    pub(in crate::journal) fn new(directory: Directory, from: Lsn) -> JournalFollower {
        JournalFollower {
            directory,
            next: from.max(Lsn::new(1)),
            manifest: None,
            log: None,
            at: None,
            end: None,
            held: None,
            searched: 0,
            suspicions: 0,
            quiet: 0,
        }
    }

    /// The Lsn of the next record that it will give.
    pub fn position(&self) -> Lsn {
        self.next
    }

    /// The next record if it is proven now, else `None`.
    ///
    /// # Errors
    /// [`FollowError`]. Damage is an error only when six looks in a row found it.
    pub fn try_next(&mut self) -> Result<Option<Entry>, FollowError> {
        if let Some(held) = self.held.take() {
            return Err(held);
        }
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let mut moves = 0;
        loop {
            match self.step() {
                Ok(Step::Given(entry)) => {
                    self.suspicions = 0;
                    self.quiet = 0;
                    return Ok(Some(*entry));
                }
                Ok(Step::On) => {}
                Ok(Step::Moved) if moves < MOVES => moves += 1,
                Ok(Step::Moved) => return Ok(None),
                Ok(Step::Nothing) => {
                    self.suspicions = 0;
                    self.quiet = self.quiet.saturating_add(1);
                    return Ok(None);
                }
                Err(Stop::Error(error)) => return Err(self.stop(error)),
                Err(Stop::Suspicion(error)) => {
                    // From the listing of the manifests, the next time.
                    self.at = None;
                    self.manifest = None;
                    self.suspicions += 1;
                    return match self.suspicions < ATTEMPTS {
                        true => Ok(None),
                        false => Err(self.stop(error)),
                    };
                }
            }
        }
    }

    /// The records that are proven now and were not given yet, up to 1,024 of them and about 4 MiB;
    /// if there are as many, there may be more.
    ///
    /// # Errors
    /// As for [`JournalFollower::try_next`]; what was read before the error is given first.
    pub fn poll(&mut self) -> Result<Vec<Entry>, FollowError> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        while entries.len() < MOST_RECORDS && bytes < MOST_BYTES {
            match self.try_next() {
                Ok(Some(entry)) => {
                    bytes += entry.payload.len();
                    entries.push(entry);
                }
                Ok(None) => break,
                Err(error) if entries.is_empty() => return Err(error),
                Err(error) => {
                    self.held = Some(error);
                    break;
                }
            }
        }
        Ok(entries)
    }

    /// Blocks for each record and looks every `interval`. Ends after an error that it cannot pass.
    pub fn every(self, interval: Duration) -> Polling {
        Polling {
            follower: self,
            interval,
        }
    }

    fn stop(&mut self, error: FollowError) -> FollowError {
        if !error.passes() {
            self.end = Some(error.clone());
        }
        error
    }

    fn step(&mut self) -> Result<Step, Stop> {
        let Some(at) = &mut self.at else {
            return self.locate();
        };
        if let Some(end) = at.end
            && at.given.expected > end.last
        {
            // The range that the end names must be there, neither less nor more.
            if at.given.expected == end.last.next() && at.given.offset != end.offset {
                let damage = FollowError::Read(at.given.damage(end.last));
                return Err(Stop::Suspicion(damage));
            }
            self.at = None;
            self.manifest = None;
            return Ok(Step::Moved);
        }
        match at.given.expected <= at.proven {
            true => self.give(),
            false => self.prove(),
        }
    }

    /// The next frame, which is proven: if it is not there, something is damaged.
    fn give(&mut self) -> Result<Step, Stop> {
        let Some(at) = &mut self.at else {
            return Ok(Step::On);
        };
        let mut header = at.given.peek()?;
        if header.is_none() {
            // Read before it was written, perhaps.
            at.given.refresh();
            header = at.given.peek()?;
        }
        let damage =
            |cursor: &Cursor, last| Stop::Suspicion(FollowError::Read(cursor.damage(last)));
        let header = header.ok_or_else(|| damage(&at.given, at.proven))?;
        let mut given = Ok(None);
        if header.next_lsn() > self.next {
            let mut payload = at.given.payload(&header)?;
            if payload.is_none() {
                at.given.refresh();
                payload = at.given.payload(&header)?;
            }
            let payload = payload.ok_or_else(|| damage(&at.given, header.lsn))?;
            given = at.given.entry(&header, payload);
            if let Err(error @ ReadError::UnknownFrame { .. }) = given {
                return Err(Stop::Error(FollowError::Read(error)));
            }
            self.next = header.next_lsn();
        }
        at.given.pass(&header);
        if at.seen.offset < at.given.offset {
            at.seen.follow(&at.given);
        }
        match given {
            Ok(Some(entry)) => Ok(Step::Given(Box::new(entry))),
            Ok(None) => Ok(Step::On),
            Err(gap) => Err(Stop::Error(FollowError::Read(gap))),
        }
    }

    /// Looks for a claim that proves more than is proven.
    fn prove(&mut self) -> Result<Step, Stop> {
        let Some(at) = &mut self.at else {
            return Ok(Step::On);
        };
        let mut header = at.seen.peek()?;
        if header.is_none() {
            at.seen.refresh();
            header = at.seen.peek()?;
        }
        if let Some(header) = header {
            if header.watermark < header.lsn {
                at.proven = at.proven.max(header.watermark);
            }
            at.seen.pass(&header);
            return Ok(Step::On);
        }
        let claims = Claims::read(&at.given.file, &at.given.entry)?;
        if let Some(seal) = claims.seal {
            at.finish(End {
                offset: seal.end,
                last: seal.last,
            });
            return Ok(Step::On);
        }
        let claim = claims.slots.iter().map(|slot| slot.watermark).max();
        if let Some(claim) = claim.filter(|claim| *claim > at.proven) {
            at.proven = claim;
            return Ok(Step::On);
        }
        if self.is_outdated()? {
            return self.read_manifest();
        }
        self.search()
    }

    /// A claim further on shows that a frame is missing here. The rest of the segment is read for it
    /// once in each epoch (opening a damaged journal again changes nothing but the epoch), and, less
    /// and less often, where there is something that is no frame.
    fn search(&mut self) -> Result<Step, Stop> {
        let epoch = self.manifest.as_ref().map_or(0, |manifest| manifest.epoch);
        let Some(at) = &mut self.at else {
            return Ok(Step::Nothing);
        };
        let again = self.quiet.is_power_of_two() && at.seen.something_stands_here();
        if self.searched != epoch || again {
            let mut searcher = at.seen.clone();
            let claim = searcher.claim_beyond(epoch)?;
            self.searched = epoch;
            if let Some(claim) = claim {
                at.proven = at.proven.max(claim);
                return Ok(Step::On);
            }
        }
        Ok(Step::Nothing)
    }
}

/// A [`JournalFollower`] that blocks for each record and looks every so often.
#[derive(Debug)]
pub struct Polling {
    follower: JournalFollower,
    interval: Duration,
}

impl Polling {
    /// The follower.
    pub fn into_inner(self) -> JournalFollower {
        self.follower
    }
}

impl Iterator for Polling {
    type Item = Result<Entry, FollowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.follower.end.is_some() {
            return None;
        }
        loop {
            match self.follower.try_next().transpose() {
                Some(found) => return Some(found),
                None => std::thread::sleep(self.interval),
            }
        }
    }
}
