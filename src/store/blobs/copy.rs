//! Copying the bodies of a journal that was copied: each is read, checked and written anew.

use std::path::{Path, PathBuf};

use super::{BlobName, Blobs, fill};
use crate::event::{Limits, Outside, RecordHeader, StoredBody, decode_header};
use crate::journal::{DiskError, Entry, FrameKind, JournalView, Lsn, OpenError, Seq};
use crate::store::{BodyProblem, ReplayError};

/// Why bodies were not copied.
#[derive(Debug)]
pub(in crate::store) enum CopyBodiesError {
    /// The copy of the journal cannot be opened.
    Journal(OpenError),
    /// One cannot be read.
    Source(ReplayError),
    /// One cannot be written.
    Target(DiskError),
}

/// The reference of a record whose body stands outside, if it is one.
fn outside_of<'a>(payload: &'a [u8], limits: &Limits) -> Option<(RecordHeader<'a>, Outside)> {
    let record = decode_header(payload, limits).ok()?;
    match record.body {
        StoredBody::Outside(outside) => Some((record, outside)),
        StoredBody::Inside(_) => None,
    }
}

impl Blobs {
    /// The file of a record's body if that is not whole; `None` where it is, and for all records whose
    /// body stands in the log.
    pub(in crate::store) fn lacking(
        &self,
        entry: &Entry<&[u8]>,
        limits: &Limits,
    ) -> Option<PathBuf> {
        if entry.kind != FrameKind::Record {
            return None;
        }
        let (record, outside) = outside_of(entry.payload, limits)?;
        match self.checked(entry.seq, &record, &outside) {
            Err(ReplayError::Body { path, .. }) => Some(path),
            _ => None,
        }
    }

    fn checked(
        &self,
        seq: Seq,
        record: &RecordHeader<'_>,
        outside: &Outside,
    ) -> Result<Vec<u8>, ReplayError> {
        let (body, path) = self.read(seq, record, outside)?;
        match outside.describes(&body) {
            true => Ok(body),
            false => Err(ReplayError::Body {
                seq,
                path,
                problem: BodyProblem::Digest,
            }),
        }
    }

    /// Copies the bodies of a session whose journal was copied into this directory, durable.
    pub(in crate::store) fn copy_for(
        &self,
        journal: &Path,
        limits: &Limits,
    ) -> Result<(), CopyBodiesError> {
        let view = JournalView::open(self.vfs.clone(), journal);
        let view = view.map_err(CopyBodiesError::Journal)?;
        let to = Blobs::of(&self.vfs, journal);
        let mut dir = None;
        // What was copied is whole but for the gaps that it names.
        let entries = view.read(Lsn::ZERO).flatten();
        for entry in entries.filter(|entry| entry.kind == FrameKind::Record) {
            let Some((record, outside)) = outside_of(&entry.payload, limits) else {
                continue;
            };
            let body = self.checked(entry.seq, &record, &outside);
            let body = body.map_err(CopyBodiesError::Source)?;
            if dir.is_none() {
                dir = Some(to.open_dir().map_err(CopyBodiesError::Target)?);
            }
            let path = to.path(&BlobName::of(entry.seq, record.event_id));
            let file = to.create(&path);
            file.and_then(|file| fill(&*file, &path, &body))
                .map_err(CopyBodiesError::Target)?;
        }
        match dir {
            Some(dir) => to.sync(&*dir).map_err(CopyBodiesError::Target),
            None => Ok(()),
        }
    }
}
