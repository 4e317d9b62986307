//! The files of the child: further names of the parent's, and its own first one.

use std::io::ErrorKind;
use std::sync::Arc;

use super::{ForkError, ForkPoint, open};
use crate::identity::SessionId;
use crate::journal::create::{MakeError, small_file};
use crate::journal::directory::{Directory, OpenFile};
use crate::journal::error::OpenError;
use crate::journal::footer::Footer;
use crate::journal::frame::{Header, payload_crc};
use crate::journal::manifest::SegmentEntry;
use crate::journal::opening::fence_payload;
use crate::journal::recovery::disk;
use crate::journal::rewrite::{Outline, Rewriter};
use crate::journal::spans::Span;
use crate::journal::tails::Tail;
use crate::journal::{FrameKind, JournalOptions, Lsn, Seq};
use crate::vfs::{Access, Vfs};

/// Bytes that are copied at once where a file cannot be linked.
const CHUNK: usize = 1024 * 1024;

impl ForkPoint {
    /// Makes the child in an empty directory, for a session of its own, with one batch of first records;
    /// `carry` is the state of the layer above at the fork point, empty if it is not known. All of it is
    /// durable when this returns; cut off, the directory holds no journal. The largest record that it
    /// takes is that of the parent.
    ///
    /// # Errors
    /// [`ForkError::Changed`]: a new owner of the parent has replaced a file since. [`ForkError::Make`].
    pub fn fork(
        &self,
        vfs: Arc<dyn Vfs>,
        path: &std::path::Path,
        session: SessionId,
        options: &JournalOptions,
        records: &[&[u8]],
        carry: Vec<u8>,
    ) -> Result<(), ForkError> {
        let child = Directory::open(vfs, path).map_err(OpenError::Disk)?;
        let names = self.spans.iter().map(|span| span.entry.name);
        // Above that of every file that it takes over, so no rule about epochs is in doubt (W6).
        let epoch = names
            .map(|name| name.epoch)
            .max()
            .unwrap_or(0)
            .saturating_add(1);
        let batch = self.first_batch(session, epoch, records)?;
        let largest = batch.iter().map(|(header, _)| header.payload_len).max();
        let outline = Outline {
            owner: session,
            epoch,
            max_payload: self.max_payload.max(largest.unwrap_or(0)),
            watermark: Lsn::new(self.lsn().get().saturating_add(batch.len() as u64)),
            bytes: batch.iter().map(|(header, _)| header.frame_len()).sum(),
        };
        let mut rewriter = Rewriter::new(&child, options, outline)?;
        let mut entries = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            self.take_over(&child, span)?;
            let written = span.entry.session;
            entries.push(SegmentEntry {
                session: match written.is_nil() {
                    true => self.session,
                    false => written,
                },
                reads_as: session,
                ..span.entry
            });
        }
        if let Some(last) = entries.last() {
            let footer = Footer {
                carry,
                ..self.footer.clone()
            };
            let made = small_file(&child, &last.name.footer(), &footer.encode(&last.place()));
            made.map_err(|error| make_error(&child, error, &last.name.footer()))?;
        }
        rewriter.begin_behind(entries, self.lsn());
        rewriter.put(&batch)?;
        Ok(rewriter.finish()?)
    }

    /// The fence of the child and its first records, in one batch.
    fn first_batch(
        &self,
        session: SessionId,
        epoch: u64,
        records: &[&[u8]],
    ) -> Result<Vec<(Header, Vec<u8>)>, ForkError> {
        let count = u16::try_from(records.len().saturating_add(1)).unwrap_or(u16::MAX);
        let mut lsn = self.lsn();
        let mut tail = self.tail;
        let mut batch = Vec::with_capacity(records.len() + 1);
        let mut push = |kind, session, (seq, previous), payload: Vec<u8>| {
            lsn = lsn.next();
            let header = Header {
                payload_crc: payload_crc(&payload),
                payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
                session,
                lsn,
                seq,
                previous,
                // Stamped when it is placed.
                watermark: Lsn::ZERO,
                epoch,
                batch_index: u16::try_from(batch.len()).unwrap_or(u16::MAX),
                batch_count: count,
                kind,
                flags: 0,
            };
            batch.push((header, payload));
            lsn
        };
        let fence = fence_payload(epoch)?;
        push(
            FrameKind::Fence,
            SessionId::nil(),
            (Seq::ZERO, Lsn::ZERO),
            fence,
        );
        for record in records {
            let seq = tail.seq.next();
            let lsn = push(FrameKind::Record, session, (seq, tail.lsn), record.to_vec());
            tail = Tail { seq, lsn };
        }
        Ok(batch)
    }

    /// Gives a segment one more name, in the child; where that is not possible, it is copied. With the
    /// footer beside it, if it has one and is taken over whole.
    fn take_over(&self, child: &Directory, span: &Span) -> Result<(), ForkError> {
        let name = span.entry.name;
        let (segment, footer) = (name.to_string(), name.footer());
        let last = self
            .spans
            .last()
            .is_some_and(|last| last.entry.name == name);
        if !self.link(child, &segment)? {
            let file = open(&self.directory, &self.pinned, &name)?;
            let copied = copy(child, &segment, &file, last.then_some(span.end));
            copied.map_err(|error| make_error(child, error, &segment))?;
        }
        if last || !self.directory.exists(&footer).map_err(disk)? {
            return Ok(());
        }
        if !self.link(child, &footer)?
            && let Some(file) = self
                .directory
                .open_file(&footer, Access::Read)
                .map_err(disk)?
        {
            let copied = copy(child, &footer, &file, None);
            copied.map_err(|error| make_error(child, error, &footer))?;
        }
        Ok(())
    }

    /// Whether a file of the parent could be linked; not where the system says that it cannot be.
    fn link(&self, child: &Directory, name: &str) -> Result<bool, ForkError> {
        match child.link_of(&self.directory, name) {
            Ok(()) => Ok(true),
            Err(error) => match error.kind {
                ErrorKind::CrossesDevices
                | ErrorKind::PermissionDenied
                | ErrorKind::TooManyLinks
                | ErrorKind::Unsupported => Ok(false),
                ErrorKind::NotFound => Err(ForkError::Changed {
                    path: self.directory.file_path(name),
                }),
                _ => Err(disk(error).into()),
            },
        }
    }
}

fn make_error(child: &Directory, error: MakeError, name: &str) -> ForkError {
    ForkError::Make(match error {
        MakeError::Sync(error) => OpenError::Sync(error),
        other => disk(other.disk(&child.file_path(name))),
    })
}

/// Copies a file up to an offset, or all of it, and syncs the copy.
fn copy(
    child: &Directory,
    name: &str,
    from: &OpenFile,
    until: Option<u64>,
) -> Result<(), MakeError> {
    let length = from.len().map_err(MakeError::Disk)?;
    let length = until.map_or(length, |until| until.min(length));
    let to = child.create_file(name).map_err(MakeError::Disk)?;
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < length {
        let left = usize::try_from(length - offset).unwrap_or(CHUNK).min(CHUNK);
        let piece = buffer.get_mut(..left).unwrap_or_default();
        let read = from.read_full(piece, offset).map_err(MakeError::Disk)?;
        let piece = piece.get(..read).unwrap_or_default();
        if piece.is_empty() {
            break;
        }
        to.write_all(piece, offset).map_err(MakeError::Disk)?;
        offset += piece.len() as u64;
    }
    to.sync().map_err(MakeError::Sync)
}
