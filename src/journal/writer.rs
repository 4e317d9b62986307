//! The writer: who holds it holds the commit token. One group is in flight at a time (W1): frames
//! are stamped, written at their offset, synced, and only then do they count.

use std::sync::Arc;

use super::directory::{Directory, OpenFile, Ownership};
use super::error::{AppendError, Fault, FaultCause, NotCommitted};
use super::footer::Footer;
use super::frame::{self, Header, Place};
use super::manifest::SegmentEntry;
use super::names::SegmentName;
use super::recovery::Settled;
use super::scan::Found;
use super::segment::{FRAMES, StaticHeader};
use super::spans::Spans;
use super::tails::{Tail, Tails};
use super::{Carry, FrameKind, JournalOptions, Lsn, NewRecord, Receipt, Seq};
use crate::identity::SessionId;
use crate::vfs::Lock;

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

/// Largest batch in bytes: it lies in one segment (W2).
const MAX_BATCH: u64 = 1024 * 1024 * 1024;

/// Bytes of the frames of a batch.
fn bytes_of(batch: &[Unstamped<'_>]) -> u64 {
    batch
        .iter()
        .map(|frame| frame::frame_len(frame.payload.len() as u64))
        .fold(0, u64::saturating_add)
}

#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) directory: Directory,
    pub(super) ownership: Ownership,
    pub(super) lock: Option<Box<dyn Lock>>,
    pub(super) options: JournalOptions,
    pub(super) carry: Arc<dyn Carry>,
    pub(super) place: Place,
    pub(super) name: SegmentName,
    pub(super) capacity: u64,
    pub(super) file: OpenFile,
    /// Where the next frame goes.
    pub(super) position: u64,
    /// The last durable Lsn: the watermark of the next group.
    pub(super) last: Lsn,
    /// Frames in the active segment.
    pub(super) count: u64,
    pub(super) footer: Footer,
    pub(super) tails: Tails,
    pub(super) spans: Spans,
    /// The successor, listed in the manifest and zeroed (W4, W7).
    pub(super) successor: Option<(SegmentEntry, StaticHeader, OpenFile)>,
    pub(super) fault: Option<Fault>,
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
        let needed = bytes_of(batch);
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
        let bytes = bytes_of(batch);
        if bytes > MAX_BATCH {
            return Err(NotCommitted::BatchTooLong {
                bytes,
                limit: MAX_BATCH,
            });
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
}
