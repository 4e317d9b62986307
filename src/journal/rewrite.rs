//! Writing a journal anew from frames that were read elsewhere: the target of a repair, and what a fork
//! has of its own.
//!
//! All segments but the last are finished, with their end in the manifest, as if recovery had closed
//! them; the last one is active, its slots carrying the watermark. Everything is synced before the
//! manifest names it, so a rewriting that is cut off leaves a directory without a journal.

use super::bytes::{put_u32, put_u64};
use super::create::{MakeError, small_file};
use super::directory::{Directory, OpenFile, Ownership, PublishError};
use super::error::{DiskError, OpenError};
use super::footer::Footer;
use super::frame::{self, Header, LogId, Place};
use super::manifest::{End, Manifest, SegmentEntry};
use super::names::SegmentName;
use super::recovery::{disk, random_word};
use super::scan::Found;
use super::segment::{BLOCK, FRAMES, MAX_CAPACITY, SLOTS, Slot, StaticHeader};
use super::{FENCE_LEN, JournalOptions, Lsn};
use crate::identity::SessionId;

/// Bytes that are written to the disk at once.
const CHUNK: usize = 1024 * 1024;

/// What is known of the new journal before its first frame.
pub(crate) struct Outline {
    pub(crate) owner: SessionId,
    /// The highest epoch of its frames.
    pub(crate) epoch: u64,
    pub(crate) max_payload: u32,
    /// Up to here everything is proven durable; what lies above stays unproven.
    pub(crate) watermark: Lsn,
    /// Bytes of all its frames.
    pub(crate) bytes: u64,
}

/// Writes the frames of a new journal in order.
pub(crate) struct Rewriter<'a> {
    directory: &'a Directory,
    options: &'a JournalOptions,
    outline: Outline,
    log: LogId,
    /// Bytes of frames that are still to come.
    left: u64,
    entries: Vec<SegmentEntry>,
    current: Option<Segment>,
    last: Lsn,
}

struct Segment {
    file: OpenFile,
    header: StaticHeader,
    buffer: Vec<u8>,
    /// Bytes that are in the file already.
    written: u64,
    footer: Footer,
}

impl Segment {
    fn tail(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn limit(&self) -> u64 {
        FRAMES + self.header.capacity
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        self.file.write_all(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl<'a> Rewriter<'a> {
    pub(crate) fn new(
        directory: &'a Directory,
        options: &'a JournalOptions,
        outline: Outline,
    ) -> Result<Rewriter<'a>, OpenError> {
        let mut log = [0; 16];
        getrandom::fill(&mut log).map_err(|_| OpenError::NoRandomness)?;
        Ok(Rewriter {
            directory,
            options,
            log: LogId(log),
            left: outline.bytes,
            outline,
            entries: Vec::new(),
            current: None,
            last: Lsn::ZERO,
        })
    }

    /// Behind segments that are finished already, the last of which ends at an Lsn.
    pub(crate) fn begin_behind(&mut self, entries: Vec<SegmentEntry>, last: Lsn) {
        self.entries = entries;
        self.last = last;
    }

    /// Writes one batch, with the epochs and batch places that its headers have.
    pub(crate) fn put(&mut self, batch: &[(Header, Vec<u8>)]) -> Result<(), OpenError> {
        let Some((first, _)) = batch.first() else {
            return Ok(());
        };
        let bytes: u64 = batch.iter().map(|(header, _)| header.frame_len()).sum();
        let proven = first.lsn <= self.outline.watermark;
        // What is not proven must lie in the active segment, all of it.
        let needed = if proven { bytes } else { self.left.max(bytes) };
        if let Some(current) = &self.current
            && current.tail() + needed > current.limit()
            && (proven
                || current.tail() + bytes > current.limit()
                || self.last <= self.outline.watermark)
        {
            self.finish_segment()?;
        }
        if self.current.is_none() {
            self.begin_segment(needed)?;
        }
        self.left = self.left.saturating_sub(bytes);
        let watermark = match proven {
            true => Lsn::new(first.lsn.get() - 1),
            false => self.outline.watermark,
        };
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let place = Place {
            log: self.log,
            segment: current.header.name.number,
        };
        for (header, payload) in batch {
            let header = Header {
                watermark,
                ..*header
            };
            let offset = current.tail();
            frame::encode(&mut current.buffer, &place, offset, &header, payload);
            current.footer.add(&Found { offset, header });
            self.last = Lsn::new(header.next_lsn().get() - 1);
            if current.buffer.len() >= CHUNK {
                current.flush().map_err(disk)?;
            }
        }
        Ok(())
    }

    fn begin_segment(&mut self, needed: u64) -> Result<(), OpenError> {
        let wanted = self
            .left
            .clamp(self.options.first_capacity, self.options.max_capacity);
        let numbers = self.entries.iter().map(|entry| entry.name.number);
        let name = SegmentName {
            number: numbers.max().unwrap_or(0).saturating_add(1),
            generation: 0,
            epoch: self.outline.epoch,
        };
        let header = StaticHeader {
            log: self.log,
            name,
            capacity: wanted.max(needed).next_multiple_of(BLOCK).min(MAX_CAPACITY),
        };
        let mut buffer = header.encode();
        buffer.resize(FRAMES as usize, 0);
        self.current = Some(Segment {
            file: self
                .directory
                .create_file(&name.to_string())
                .map_err(disk)?,
            header,
            buffer,
            written: 0,
            footer: Footer::new(self.last),
        });
        Ok(())
    }

    fn entry(header: &StaticHeader, end: Option<End>) -> SegmentEntry {
        SegmentEntry::own(header.name, header.log, end)
    }

    /// Ends a segment at its last frame; its footer is a file beside it.
    fn finish_segment(&mut self) -> Result<(), OpenError> {
        let Some(mut segment) = self.current.take() else {
            return Ok(());
        };
        segment.flush().map_err(disk)?;
        segment.file.sync().map_err(OpenError::Sync)?;
        let end = End {
            offset: segment.written,
            last: self.last,
        };
        let entry = Self::entry(&segment.header, Some(end));
        let footer = segment.footer.encode(&entry.place());
        small_file(self.directory, &entry.name.footer(), &footer).map_err(|error| match error {
            MakeError::Sync(error) => OpenError::Sync(error),
            other => disk(other.disk(&self.directory.file_path(&entry.name.footer()))),
        })?;
        self.entries.push(entry);
        Ok(())
    }

    /// Finishes the active segment and publishes the journal, durable.
    pub(crate) fn finish(mut self) -> Result<(), OpenError> {
        if self.current.is_none() {
            self.begin_segment(0)?;
        }
        if let Some(mut segment) = self.current.take() {
            let tail = segment.tail();
            segment.flush().map_err(disk)?;
            let zeros = vec![0; CHUNK];
            while segment.written < segment.limit() {
                let left = usize::try_from(segment.limit() - segment.written).unwrap_or(CHUNK);
                let zeros = zeros.get(..left.min(CHUNK)).unwrap_or(&zeros);
                segment
                    .file
                    .write_all(zeros, segment.written)
                    .map_err(disk)?;
                segment.written += zeros.len() as u64;
            }
            let place = Place {
                log: self.log,
                segment: segment.header.name.number,
            };
            for offset in SLOTS {
                let slot = Slot {
                    watermark: self.outline.watermark.min(self.last),
                    tail,
                    epoch: self.outline.epoch,
                    clean: false,
                };
                let bytes = slot.encode(&place, offset);
                segment.file.write_all(&bytes, offset).map_err(disk)?;
            }
            segment.file.sync().map_err(OpenError::Sync)?;
            self.entries.push(Self::entry(&segment.header, None));
        }
        let manifest = Manifest {
            log: self.log,
            owner: self.outline.owner,
            shared: false,
            number: 1,
            epoch: self.outline.epoch,
            max_payload: self.outline.max_payload,
            segments: self.entries,
        };
        match Ownership::publish(self.directory, manifest, random_word()?) {
            Ok(_) => Ok(()),
            Err(PublishError::Overtaken) => Err(OpenError::AlreadyExists {
                path: self.directory.path().to_owned(),
            }),
            Err(PublishError::Sync(error)) => Err(OpenError::Sync(error)),
            Err(PublishError::Disk(error)) => Err(disk(error)),
        }
    }
}

/// The payload of a fence that stands for one that cannot be read: it says nothing but its epoch.
pub(crate) fn blank_fence(epoch: u64) -> Vec<u8> {
    let mut payload = Vec::with_capacity(FENCE_LEN as usize);
    put_u64(&mut payload, epoch);
    put_u32(&mut payload, 0);
    put_u32(&mut payload, 0);
    payload.resize(FENCE_LEN as usize, 0);
    payload
}
