//! The blob files of a session: bodies that are too large for the log stand in files of their own
//! (`docs/format.md` 13), one for each record that refers to it.
//!
//! A file is whole and durable, with its name, before the record that names it is handed to the
//! journal (P3). Until that record is durable it has a name of its own, so that what a crash left
//! over is found without a look at the others; then it is renamed, which nothing depends on. A file
//! is open only while it is read or written.

mod copy;
mod link;
mod sweep;

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use copy::CopyBodiesError;

use super::{BodyProblem, ReplayError, create_dir};
use crate::event::{Outside, RecordHeader};
use crate::identity::{EventId, SessionId};
use crate::journal::{DiskError, Operation, Seq, read_full, uninterrupted, write_all};
use crate::vfs::{Access, Dir, File, Vfs};

/// The directory in that of the session; in the shared layout in that of the store, with one in it for
/// each session.
pub(super) const DIRECTORY: &str = "blobs";
const NEW: &str = ".new";
/// Digits of the sequence in a name.
const DIGITS: usize = 20;

/// The name of a blob file. Written and read by the same form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlobName {
    /// The record that refers to it; of a new one the last record before it was made, so that the
    /// one that refers to it, if there is one, comes behind.
    seq: Seq,
    event: EventId,
    is_new: bool,
}

impl BlobName {
    /// Of a body whose record is durable.
    pub(super) fn of(seq: Seq, event: EventId) -> BlobName {
        BlobName {
            seq,
            event,
            is_new: false,
        }
    }

    /// Of a body whose record will come behind `seen`.
    pub(super) fn new(seen: Seq, event: EventId) -> BlobName {
        BlobName {
            seq: seen,
            event,
            is_new: true,
        }
    }

    fn parse(name: &str) -> Option<BlobName> {
        let (stem, is_new) = match name.strip_suffix(NEW) {
            Some(stem) => (stem, true),
            None => (name, false),
        };
        let (seq, event) = stem.split_at_checked(DIGITS)?;
        let parsed = BlobName {
            seq: Seq::new(seq.parse().ok()?),
            event: event.strip_prefix('-')?.parse().ok()?,
            is_new,
        };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_new { NEW } else { "" };
        let seq = self.seq.get();
        write!(f, "{seq:0width$}-{}{end}", self.event, width = DIGITS)
    }
}

/// The blob files of one session. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Blobs {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    /// Whether the name of the directory is known to be durable.
    is_made: Arc<AtomicBool>,
}

impl Blobs {
    /// Of the session in this directory.
    pub(super) fn of(vfs: &Arc<dyn Vfs>, session: &Path) -> Blobs {
        Blobs {
            vfs: vfs.clone(),
            dir: session.join(DIRECTORY),
            is_made: Arc::default(),
        }
    }

    /// Of a session whose journal all sessions of the store in this directory share.
    pub(super) fn shared(vfs: &Arc<dyn Vfs>, store: &Path, session: SessionId) -> Blobs {
        Blobs {
            vfs: vfs.clone(),
            dir: store.join(DIRECTORY).join(session.to_string()),
            is_made: Arc::default(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// The files, by name; what is none of ours is passed over.
    fn names(&self) -> Result<Vec<BlobName>, DiskError> {
        let entries = match uninterrupted(|| self.vfs.list(&self.dir)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(|error| DiskError::new(Operation::List, &self.dir, &error))?,
        };
        let files = entries.iter().filter(|entry| !entry.is_dir);
        Ok(files
            .filter_map(|entry| BlobName::parse(&entry.name))
            .collect())
    }

    /// The files that a log may name which ends at this record: those of the records up to there, and
    /// those that were made before it and whose record is not known. One that is renamed meanwhile is
    /// found by listing again.
    fn up_to(&self, last: Seq) -> Result<Vec<BlobName>, DiskError> {
        let counts = |name: &BlobName| match name.is_new {
            true => name.seq < last,
            false => name.seq <= last,
        };
        Ok(self.names()?.into_iter().filter(counts).collect())
    }

    /// The directory, opened before a name is made in it, so that a failed sync of that name is
    /// noticed here (W6).
    fn open_dir(&self) -> Result<Arc<dyn Dir>, DiskError> {
        if !self.is_made.load(Ordering::Acquire) {
            create_dir(&self.vfs, &self.dir)?;
            self.is_made.store(true, Ordering::Release);
        }
        uninterrupted(|| self.vfs.open_dir(&self.dir))
            .map_err(|error| DiskError::new(Operation::Open, &self.dir, &error))
    }

    /// Writes files, and makes them durable with their names: all of them, or none is left.
    pub(super) fn write(&self, files: &[(BlobName, &[u8])]) -> Result<(), DiskError> {
        let dir = self.open_dir()?;
        let mut made = Vec::new();
        let written = files.iter().try_for_each(|(name, body)| {
            let path = self.path(name);
            let file = self.create(&path)?;
            made.push(*name);
            fill(&*file, &path, body)
        });
        let written = written.and_then(|()| self.sync(&*dir));
        if written.is_err() {
            for name in &made {
                self.discard(name);
            }
        }
        written
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>, DiskError> {
        uninterrupted(|| self.vfs.create(path))
            .map_err(|error| DiskError::new(Operation::Create, path, &error))
    }

    fn sync(&self, dir: &dyn Dir) -> Result<(), DiskError> {
        dir.sync()
            .map_err(|error| DiskError::new(Operation::SyncDirectory, &self.dir, &error))
    }

    /// Gives a file the name of its record, which is durable. Nothing depends on it: who reads the
    /// record tries both names.
    pub(super) fn settle(&self, name: &BlobName, seq: Seq) {
        let from = self.path(name);
        let to = self.path(&BlobName::of(seq, name.event));
        if let Err(error) = uninterrupted(|| self.vfs.rename(&from, &to)) {
            tracing::debug!(%error, path = %from.display(), "a blob file keeps its first name");
        }
    }

    fn is_there(&self, name: &BlobName) -> bool {
        // What cannot be asked may be there.
        let found = uninterrupted(|| self.vfs.identity(&self.path(name)));
        !found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    /// Removes a file that no record will name. One that stays is swept by a later opening.
    pub(super) fn discard(&self, name: &BlobName) {
        let path = self.path(name);
        if let Err(error) = uninterrupted(|| self.vfs.remove_file(&path)) {
            tracing::debug!(%error, path = %path.display(), "a blob file without a record stays");
        }
    }

    /// The body of a record, of the length that the record says, and the file. The digest is not
    /// checked here.
    ///
    /// # Errors
    /// [`ReplayError::Body`].
    pub(super) fn read(
        &self,
        seq: Seq,
        record: &RecordHeader<'_>,
        outside: &Outside,
    ) -> Result<(Vec<u8>, PathBuf), ReplayError> {
        let lost = |path: PathBuf, problem| ReplayError::Body { seq, path, problem };
        let name = BlobName::of(seq, record.event_id);
        let last = self.path(&name);
        for _ in 0..2 {
            for path in [Some(last.clone()), self.new_name(&name)] {
                let Some(path) = path else { continue };
                match uninterrupted(|| self.vfs.open(&path, Access::Read)) {
                    // Renamed just now, or not yet.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => {
                        let error = DiskError::new(Operation::Open, &path, &error);
                        return Err(lost(path, BodyProblem::Disk(error)));
                    }
                    Ok(file) => {
                        return match contents(&*file, &path, outside.length) {
                            Ok(body) => Ok((body, path)),
                            Err(problem) => Err(lost(path, problem)),
                        };
                    }
                }
            }
        }
        Err(lost(last, BodyProblem::Missing))
    }

    /// The name that the file of a record has if it was not renamed.
    fn new_name(&self, name: &BlobName) -> Option<PathBuf> {
        // What cannot be listed shows as missing.
        let names = self.names().unwrap_or_default();
        let mut new = names.iter().filter(|found| found.is_new);
        let found = new.find(|found| found.event == name.event && found.seq < name.seq)?;
        Some(self.path(found))
    }
}

fn fill(file: &dyn File, path: &Path, body: &[u8]) -> Result<(), DiskError> {
    write_all(file, path, body, 0)?;
    // Never run again: when it fails, the file is given up (P8).
    file.sync_data()
        .map_err(|error| DiskError::new(Operation::Sync, path, &error))
}

/// All of a file that must have so many bytes. Memory is taken for what is there (P14).
fn contents(file: &dyn File, path: &Path, expected: u64) -> Result<Vec<u8>, BodyProblem> {
    let found = uninterrupted(|| file.len())
        .map_err(|error| BodyProblem::Disk(DiskError::new(Operation::Length, path, &error)))?;
    let wrong = |found| BodyProblem::Length { found, expected };
    if found != expected {
        return Err(wrong(found));
    }
    let length = usize::try_from(expected).map_err(|_| wrong(found))?;
    let mut body = vec![0; length];
    match read_full(file, path, &mut body, 0).map_err(BodyProblem::Disk)? {
        read if read == length => Ok(body),
        read => Err(wrong(read as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::sim::SimVfs;

    #[test]
    fn names_are_read_as_they_are_written() {
        let event = EventId::from_bytes([7; 16]);
        for name in [
            BlobName::of(Seq::new(12), event),
            BlobName::new(Seq::ZERO, event),
        ] {
            assert_eq!(BlobName::parse(&name.to_string()), Some(name));
        }
        let text = BlobName::of(Seq::new(12), event).to_string();
        assert_eq!(
            text,
            "00000000000000000012-07070707-0707-0707-0707-070707070707"
        );
        for strange in [
            text.to_uppercase().replace("07", "0A"),
            text.replacen("00", "0", 1),
            text.replacen('0', "+", 1),
            format!("{text}.tmp"),
            format!("{text}.new.new"),
            String::new(),
            "ä".repeat(20),
        ] {
            assert_eq!(BlobName::parse(&strange), None, "{strange}");
        }
    }

    #[test]
    fn a_fork_gets_the_files_that_its_records_may_name() {
        let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::new());
        let blobs = Blobs::of(&vfs, Path::new("/session"));
        assert_eq!(blobs.up_to(Seq::new(9)).unwrap(), []);
        let event = |byte| EventId::from_bytes([byte; 16]);
        let names = [
            BlobName::of(Seq::new(4), event(1)),
            BlobName::of(Seq::new(5), event(2)),
            BlobName::of(Seq::new(6), event(3)),
            BlobName::new(Seq::new(4), event(4)),
            BlobName::new(Seq::new(5), event(5)),
        ];
        for name in names {
            blobs.write(&[(name, b"{}")]).unwrap();
        }
        let mut found = blobs.up_to(Seq::new(5)).unwrap();
        found.sort_by_key(BlobName::to_string);
        assert_eq!(found, [names[0], names[3], names[1]]);
    }
}
