//! The writer: who holds it holds the commit token. One group is in flight at a time (W1): frames
//! are stamped, written at their offset, synced, and only then do they count.

use std::collections::HashMap;
use std::sync::Arc;

use super::create::{self, MakeError};
use super::directory::{Directory, OpenFile, Ownership, PublishError};
use super::error::{AppendError, CloseError, Fault, FaultCause, NotCommitted};
use super::footer::Footer;
use super::frame::{self, Header, Place};
use super::manifest::{End, Manifest, SegmentEntry};
use super::names::SegmentName;
use super::recovery::Settled;
use super::scan::Found;
use super::segment::{BLOCK, FRAMES, SEAL, SLOTS, Seal, Slot, StaticHeader};
use super::spans::{Span, Spans};
use super::{Carry, FrameKind, JournalOptions, Lsn, NewRecord, Receipt, Seq};
use crate::identity::SessionId;
use crate::vfs::Lock;

/// The last record of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tail {
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
}

pub(crate) type Tails = HashMap<SessionId, Tail>;

/// A frame of a group before it is stamped. The payload checksum is computed by the caller,
/// outside the token (W1).
pub(crate) struct Unstamped<'a> {
    pub(crate) kind: FrameKind,
    pub(crate) session: SessionId,
    pub(crate) payload: &'a [u8],
    pub(crate) payload_crc: u32,
}

impl<'a> Unstamped<'a> {
    pub(crate) fn record(record: &NewRecord<'a>) -> Unstamped<'a> {
        Unstamped {
            kind: FrameKind::Record,
            session: record.session,
            payload: record.payload,
            payload_crc: frame::payload_crc(record.payload),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    directory: Directory,
    ownership: Ownership,
    lock: Option<Box<dyn Lock>>,
    options: JournalOptions,
    carry: Arc<dyn Carry>,
    place: Place,
    name: SegmentName,
    capacity: u64,
    file: OpenFile,
    /// Where the next frame goes.
    position: u64,
    /// The last durable Lsn: the watermark of the next group.
    last: Lsn,
    /// Frames in the active segment.
    count: u64,
    footer: Footer,
    tails: Tails,
    spans: Spans,
    /// The successor, listed in the manifest and zeroed (W4, W7).
    successor: Option<(SegmentEntry, StaticHeader, OpenFile)>,
    fault: Option<Fault>,
}

impl Writer {
    pub(crate) fn new(
        settled: Settled,
        spans: Spans,
        options: JournalOptions,
        carry: Arc<dyn Carry>,
    ) -> Writer {
        let active = settled.spans.last();
        Writer {
            place: Place {
                log: settled.header.log,
                segment: settled.header.name.number,
            },
            name: settled.header.name,
            capacity: settled.header.capacity,
            position: active.map_or(FRAMES, |span| span.end),
            last: active.map_or(Lsn::ZERO, |span| span.last),
            count: settled.count,
            footer: settled.footer,
            tails: settled.tails,
            file: settled.file,
            directory: settled.directory,
            ownership: settled.ownership,
            lock: Some(settled.lock),
            spans,
            options,
            carry,
            successor: None,
            fault: None,
        }
    }

    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    pub(crate) fn tail(&self, session: SessionId) -> Tail {
        self.tails.get(&session).copied().unwrap_or_default()
    }

    pub(crate) fn max_payload(&self) -> u32 {
        self.ownership.manifest.max_payload
    }

    /// Poisons (P8, W10): the first cause is kept, and nothing is written any more.
    pub(crate) fn poison(&mut self, cause: FaultCause) -> Fault {
        let fault = self.fault.get_or_insert_with(|| Fault::new(cause)).clone();
        tracing::error!(journal = %self.directory.path().display(), %fault, "journal faulted");
        fault
    }

    /// Appends one batch as one group: all of it or nothing (W2).
    pub(crate) fn append(
        &mut self,
        batch: &[Unstamped<'_>],
        expected: Option<Seq>,
    ) -> Result<Receipt, AppendError> {
        self.check(batch, expected)?;
        let needed: u64 = batch
            .iter()
            .map(|frame| frame::frame_len(frame.payload.len() as u64))
            .sum();
        if self.position + needed > FRAMES + self.capacity {
            self.roll(needed)?;
        }
        let (bytes, placed) = self.stamp(batch);
        self.write_group(&bytes)
            .map_err(|cause| AppendError::Unknown(self.poison(cause)))?;
        Ok(self.acknowledge(bytes.len() as u64, &placed))
    }

    /// What is refused before it gets an Lsn (W2).
    fn check(&self, batch: &[Unstamped<'_>], expected: Option<Seq>) -> Result<(), NotCommitted> {
        if let Some(fault) = &self.fault {
            return Err(NotCommitted::Faulted(fault.clone()));
        }
        if self.lock.is_none() {
            return Err(NotCommitted::Closed);
        }
        let Some(first) = batch.first() else {
            return Err(NotCommitted::Empty);
        };
        let limit = usize::from(u16::MAX);
        if batch.len() > limit {
            return Err(NotCommitted::BatchTooLarge {
                count: batch.len(),
                limit,
            });
        }
        let limit = u64::from(self.max_payload());
        let too_large = batch
            .iter()
            .map(|frame| frame.payload.len() as u64)
            .find(|length| *length > limit);
        if let Some(length) = too_large {
            return Err(NotCommitted::RecordTooLarge { length, limit });
        }
        let actual = self.tail(first.session).seq;
        match expected {
            Some(expected) if expected != actual => {
                Err(NotCommitted::WrongPosition { expected, actual })
            }
            _ => Ok(()),
        }
    }

    /// Stamps the headers: Lsn, Seq, previous Lsn, watermark, offset, epoch, header checksum.
    fn stamp(&self, batch: &[Unstamped<'_>]) -> (Vec<u8>, Vec<Found>) {
        let mut bytes = Vec::new();
        let mut placed = Vec::with_capacity(batch.len());
        let mut lsn = self.last;
        let mut tails = Tails::new();
        for (index, unstamped) in batch.iter().enumerate() {
            lsn = lsn.next();
            let mut seq = Seq::ZERO;
            let mut previous = Lsn::ZERO;
            if unstamped.kind == FrameKind::Record {
                let tail = tails
                    .entry(unstamped.session)
                    .or_insert_with(|| self.tail(unstamped.session));
                seq = tail.seq.next();
                previous = tail.lsn;
                *tail = Tail { seq, lsn };
            }
            let header = Header {
                payload_crc: unstamped.payload_crc,
                payload_len: unstamped.payload.len() as u32,
                session: unstamped.session,
                lsn,
                seq,
                previous,
                watermark: self.last,
                epoch: self.ownership.manifest.epoch,
                batch_index: index as u16,
                batch_count: batch.len() as u16,
                kind: unstamped.kind,
                flags: 0,
            };
            let offset = self.position + bytes.len() as u64;
            frame::encode(&mut bytes, &self.place, offset, &header, unstamped.payload);
            placed.push(Found { offset, header });
        }
        (bytes, placed)
    }

    /// One write, one sync, and the proof that this process still owns the journal (W12). From the
    /// first write call on, every failure leaves the outcome unknown (W3).
    fn write_group(&self, bytes: &[u8]) -> Result<(), FaultCause> {
        self.file
            .write_all(bytes, self.position)
            .map_err(FaultCause::Write)?;
        self.file.sync().map_err(FaultCause::Sync)?;
        match self.ownership.still_holds(&self.directory) {
            Ok(true) => Ok(()),
            Ok(false) => Err(FaultCause::Overtaken {
                path: self.directory.path().to_owned(),
            }),
            Err(error) => Err(FaultCause::Ownership(error)),
        }
    }

    fn acknowledge(&mut self, length: u64, placed: &[Found]) -> Receipt {
        let first = self.last.next();
        let mut records = Vec::with_capacity(placed.len());
        for frame in placed {
            let header = &frame.header;
            self.footer.add(frame);
            self.last = header.lsn;
            if header.kind == FrameKind::Record {
                self.tails.insert(
                    header.session,
                    Tail {
                        seq: header.seq,
                        lsn: header.lsn,
                    },
                );
                records.push(super::Placed {
                    lsn: header.lsn,
                    seq: header.seq,
                    position: super::Position {
                        segment: self.name,
                        offset: frame.offset,
                    },
                });
            }
        }
        self.count += placed.len() as u64;
        self.position += length;
        self.spans.advance(self.position, self.last);
        Receipt { first, records }
    }

    /// Makes the next segment the active one (W7): successor listed, seal written and synced, first
    /// frame into it.
    fn roll(&mut self, needed: u64) -> Result<(), NotCommitted> {
        let (entry, header, file) = match self.successor.take() {
            Some(successor) => successor,
            None => self.prepare(needed)?,
        };
        self.seal(&entry, &header)
            .map_err(|cause| NotCommitted::Faulted(self.poison(cause)))?;
        let sealed_end = self.position;
        self.file = file;
        self.name = header.name;
        self.place = entry.place();
        self.capacity = header.capacity;
        self.position = FRAMES;
        self.count = 0;
        self.footer = Footer::new(self.last);
        // Its end stands in the seal now; the next manifest names it too.
        if let Some(sealed) = self
            .ownership
            .manifest
            .segments
            .iter_mut()
            .rev()
            .find(|sealed| sealed.name != entry.name && sealed.end.is_none())
        {
            sealed.end = Some(End {
                offset: sealed_end,
                last: self.last,
            });
        }
        self.spans.push(Span::empty(entry, self.last));
        Ok(())
    }

    /// Makes the next segment as a file of its own, zeroed and synced, and lists it (W4, W6). A full
    /// disk shows here, before a byte of a record is written.
    fn prepare(
        &mut self,
        needed: u64,
    ) -> Result<(SegmentEntry, StaticHeader, OpenFile), NotCommitted> {
        let header = StaticHeader {
            log: self.ownership.manifest.log,
            name: SegmentName {
                number: self.name.number + 1,
                generation: 0,
                epoch: self.ownership.manifest.epoch,
            },
            capacity: self.options.capacity_after(self.capacity, needed),
        };
        let definite = |error: super::DiskError| {
            if error.is_full() {
                NotCommitted::StorageFull(error)
            } else {
                NotCommitted::Prepare(error)
            }
        };
        let path = self.directory.file_path(&header.name.to_string());
        let file = match create::empty_segment(&self.directory, &header) {
            Ok(file) => file,
            Err(MakeError::Sync(error)) => {
                return Err(NotCommitted::Faulted(self.poison(FaultCause::Sync(error))));
            }
            Err(other) => return Err(definite(other.disk(&path))),
        };
        if let Err(error) = self.directory.sync() {
            let cause = FaultCause::Directory(error);
            return Err(NotCommitted::Faulted(self.poison(cause)));
        }
        let entry = SegmentEntry {
            name: header.name,
            end: None,
            log: header.log,
            session: SessionId::nil(),
        };
        let mut manifest = Manifest {
            number: self.ownership.manifest.number + 1,
            ..self.ownership.manifest.clone()
        };
        manifest.segments.push(entry);
        let random = super::recovery::random_word().unwrap_or(self.ownership.manifest.number);
        match Ownership::publish(&self.directory, manifest, random) {
            Ok(ownership) => self.ownership = ownership,
            Err(PublishError::Disk(error)) => {
                // Not listed, so it is nothing; made again under the same name by the next try.
                let _ = self.directory.remove(&header.name.to_string());
                return Err(definite(error));
            }
            Err(PublishError::Sync(error)) => {
                let cause = FaultCause::Directory(error);
                return Err(NotCommitted::Faulted(self.poison(cause)));
            }
            Err(PublishError::Overtaken) => {
                let cause = FaultCause::Overtaken {
                    path: self.directory.path().to_owned(),
                };
                return Err(NotCommitted::Faulted(self.poison(cause)));
            }
        }
        if let Err(error) = self.ownership.remove_older(&self.directory) {
            tracing::warn!(%error, "an older manifest could not be removed; the next opening does it");
        }
        Ok((entry, header, file))
    }

    /// Footer and seal of the active segment, synced. The footer can be rebuilt, so on a full disk
    /// the segment is sealed without one.
    fn seal(
        &mut self,
        _successor: &SegmentEntry,
        _header: &StaticHeader,
    ) -> Result<(), FaultCause> {
        self.footer.carry = self.carry.carry(self.last);
        let bytes = self.footer.encode(&self.place);
        let offset = self.position.next_multiple_of(BLOCK);
        let footer = match self.file.write_all(&bytes, offset) {
            Ok(()) => Some((offset, bytes.len() as u32)),
            Err(error) if error.is_full() => None,
            Err(error) => return Err(FaultCause::Write(error)),
        };
        let seal = Seal {
            end: self.position,
            last: self.last,
            count: self.count,
            footer,
            epoch: self.ownership.manifest.epoch,
        };
        self.file
            .write_all(&seal.encode(&self.place), SEAL)
            .map_err(FaultCause::Write)?;
        self.file.sync().map_err(FaultCause::Sync)?;
        // The trim needs no order and no sync: behind the footer there are only zeros.
        let end = footer.map_or(self.position, |(offset, length)| offset + u64::from(length));
        if end < FRAMES + self.capacity {
            if let Err(error) = self.file.set_len(end) {
                tracing::debug!(%error, "a sealed segment could not be trimmed");
            }
        }
        Ok(())
    }

    /// A clean close: both slots, sync, file cut to its tail, sync (W8). After a fault nothing is
    /// written (W10).
    pub(crate) fn close(&mut self) -> Result<(), CloseError> {
        if let Some(fault) = &self.fault {
            let fault = fault.clone();
            self.lock = None;
            return Err(CloseError::Faulted(fault));
        }
        if self.lock.is_none() {
            return Ok(());
        }
        let outcome = self.close_cleanly();
        self.lock = None;
        outcome
    }

    fn close_cleanly(&mut self) -> Result<(), CloseError> {
        // An active segment above the limit is rolled, so that the next opening has little to copy
        // (W9). Without space for that it is left as it is: the next opening closes it.
        if self.position - FRAMES > self.options.supersede_limit {
            match self.roll(0) {
                Err(NotCommitted::Faulted(fault)) => return Err(CloseError::Faulted(fault)),
                Err(reason) => tracing::debug!(%reason, "closing without a roll"),
                Ok(()) => {}
            }
        }
        let written = self.write_slots(true).and_then(|()| {
            self.file.set_len(self.position)?;
            self.file.sync()
        });
        written.map_err(|error| {
            self.poison(FaultCause::Sync(error.clone()));
            CloseError::Disk(error)
        })
    }

    /// Both slots, synced.
    fn write_slots(&self, clean: bool) -> Result<(), super::DiskError> {
        let slot = Slot {
            watermark: self.last,
            tail: self.position,
            epoch: self.ownership.manifest.epoch,
            clean,
        };
        for offset in SLOTS {
            self.file
                .write_all(&slot.encode(&self.place, offset), offset)?;
        }
        self.file.sync()
    }

    /// Writes the witness slots of an idle journal, so that the last group is vouched for outside
    /// its block (W8).
    pub(crate) fn witness(&mut self) -> Result<(), AppendError> {
        if let Some(fault) = &self.fault {
            return Err(NotCommitted::Faulted(fault.clone()).into());
        }
        if self.lock.is_none() {
            return Err(NotCommitted::Closed.into());
        }
        self.write_slots(false)
            .map_err(|error| AppendError::Unknown(self.poison(FaultCause::Sync(error))))
    }
}
