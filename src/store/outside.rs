//! Large bodies on their way: they are written to their files before their batch goes to the log, by
//! the caller if it may block, else by the workers. The batch keeps its place meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::Refusal;
use super::blobs::{BlobName, Blobs};
use super::boundary::{SessionCore, lock};
use super::flight::{Checked, Encoded};
use crate::contain::contained;
use crate::event::{body_in, refer_outside};
use crate::journal::{Chore, DiskError, Operation, Seq, Serve};

/// The file of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlobFile {
    pub(super) name: BlobName,
    /// Bytes of the body.
    pub(super) bytes: usize,
}

/// What is to be done to a file, outside all locks. Nothing depends on it.
pub(super) enum Tidy {
    /// Its record is durable.
    Settle(BlobName, Seq),
    /// No record names it.
    Discard(BlobName),
}

impl Tidy {
    pub(super) fn run(self, blobs: &Blobs) {
        match self {
            Tidy::Settle(name, seq) => blobs.settle(&name, seq),
            Tidy::Discard(name) => blobs.discard(&name),
        }
    }
}

/// A batch that was checked and whose large bodies are not written yet.
pub(super) struct Unwritten {
    checked: Checked,
    /// Whether it holds the session alone.
    alone: bool,
    /// Bytes of its large bodies.
    bytes: u64,
    /// The last record when its turn had come: its own come behind.
    seen: Seq,
}

impl Unwritten {
    pub(super) fn new(checked: Checked, alone: bool, bytes: u64, seen: Seq) -> Unwritten {
        Unwritten {
            checked,
            alone,
            bytes,
            seen,
        }
    }
}

impl SessionCore {
    fn is_large(&self, encoded: &Encoded) -> bool {
        encoded.event.kind().may_stand_outside()
            && body_in(&encoded.bytes).len() >= self.blob_threshold
    }

    /// Bytes of the bodies that go to files.
    pub(super) fn large_bytes(&self, records: &[Encoded]) -> u64 {
        let large = records.iter().filter(|encoded| self.is_large(encoded));
        large
            .map(|encoded| body_in(&encoded.bytes).len() as u64)
            .sum()
    }

    /// Writes the large bodies of a batch, and sends it on.
    pub(super) fn write_bodies(self: &Arc<Self>, mut unwritten: Unwritten, may_block: bool) {
        let written = self.write_files(&mut unwritten);
        self.land(unwritten, written, may_block);
    }

    /// Hands that to the workers.
    pub(super) fn write_bodies_aside(self: &Arc<Self>, unwritten: Unwritten) {
        lock(&self.unwritten).push_back(unwritten);
        self.workers.serve(Arc::new(Aside(self.clone())));
    }

    /// Writes what the workers were handed and have not begun.
    pub(super) fn write_handed_over(self: &Arc<Self>) {
        while self.write_next() {}
    }

    fn write_next(self: &Arc<Self>) -> bool {
        let next = lock(&self.unwritten).pop_front();
        let found = next.map(|unwritten| self.write_bodies(unwritten, false));
        found.is_some()
    }

    /// The files, whole and durable, before a record names them (P3).
    fn write_files(&self, unwritten: &mut Unwritten) -> Result<(), Refusal> {
        let seen = unwritten.seen;
        let records = &mut unwritten.checked.records;
        let large = records.iter_mut().filter(|encoded| self.is_large(encoded));
        let mut large: Vec<&mut Encoded> = large.collect();
        let name = |encoded: &Encoded| BlobName::new(seen, encoded.event.header.event_id);
        let files: Vec<(BlobName, &[u8])> = large
            .iter()
            .map(|encoded| (name(encoded), body_in(&encoded.bytes)))
            .collect();
        let blobs = &self.decoder.blobs;
        // A disk of the host's may panic: the place of the batch must be given back all the same.
        let written = contained(|| blobs.write(&files)).unwrap_or_else(|_| {
            let error = std::io::ErrorKind::Other.into();
            Err(DiskError::new(Operation::Write, blobs.dir(), &error))
        });
        written.map_err(Refusal::of_blob)?;
        drop(files);
        for encoded in &mut large {
            let name = name(encoded);
            let bytes = body_in(&encoded.bytes).len();
            encoded.blob = Some(BlobFile { name, bytes });
            refer_outside(&mut encoded.bytes);
        }
        Ok(())
    }

    /// Gives the place of a batch back, and sends it to the log.
    fn land(self: &Arc<Self>, unwritten: Unwritten, written: Result<(), Refusal>, may_block: bool) {
        let Unwritten {
            checked,
            alone,
            bytes,
            ..
        } = unwritten;
        let mut boundary = self.entered();
        boundary.taken.let_go(&checked.records, alone);
        // The session may have been closed or faulted meanwhile.
        let mut leads = false;
        match written.and_then(|()| self.ready(&boundary)) {
            Ok(()) => leads = self.depart(&mut boundary, checked, may_block),
            Err(refusal) => {
                boundary.large = boundary.large.saturating_sub(bytes);
                let blobs = checked.records.iter().filter_map(|encoded| encoded.blob);
                let discards = blobs.map(|blob| Tidy::Discard(blob.name));
                boundary.tidy.extend(discards);
                boundary.refusals.push((checked.promise, refusal.into()));
            }
        }
        let mut launched = self.launch(&mut boundary, may_block && !leads);
        launched.leads |= leads;
        // The bodies of others, who waited for this one, are not this caller's.
        self.leave(boundary, launched, false);
    }
}

/// One batch for the workers.
struct Aside(Arc<SessionCore>);

impl Serve for Aside {
    fn serve(&self) -> bool {
        self.0.write_next();
        false
    }

    fn chore(&self, _: Chore) -> Option<Duration> {
        None
    }
}
