//! The writer: who holds it holds the commit token. One group is in flight at a time (W1): frames
//! are stamped, written at their offset, synced, and only then do they count.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::directory::{Directory, OpenFile};
use super::error::{AppendError, Fault, FaultCause, NotCommitted};
use super::fault::FaultCell;
use super::frame::{self, HEADER, Header, LogId, Place};
use super::group::{Batch, Blank, Group};
use super::names::SegmentName;
use super::park::Parked;
use super::parts::Heads;
use super::prepare::Preparer;
use super::record::{Placed, PlacedRecords, Receipt};
use super::recovery::Settled;
use super::scan::Found;
use super::segment::{FRAMES, StaticHeader};
use super::session_log::SessionLog;
use super::spans::Spans;
use super::tails::{Tail, Tails};
use super::ticket::{Outcome, Settle};
use super::{Carry, FrameKind, JournalOptions, Lsn, Position, Seq};
use crate::identity::SessionId;
use crate::metrics::Measure;
use crate::vfs::Lock;

/// Since when the disk has owed an answer to the holder of the commit token, for whom all wait who
/// append.
#[derive(Debug)]
pub(crate) struct Pulse {
    base: Instant,
    /// Microseconds from the base, 0 if it owes none.
    since: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Pulse {
        Pulse {
            base: Instant::now(),
            since: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_micros()).map_or(u64::MAX, |micros| micros.max(1))
    }

    /// The holder of the commit token asks the disk for something, until the value is dropped. One
    /// within another is part of it.
    pub(super) fn owe(self: &Arc<Pulse>) -> Owed {
        let now = self.now();
        let first = self
            .since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        Owed(first.is_ok().then(|| self.clone()))
    }

    /// For how long the holder of the commit token has been waiting for the disk.
    pub(crate) fn waiting(&self) -> Option<Duration> {
        match self.since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_micros(self.now().saturating_sub(since))),
        }
    }
}

/// See [`Pulse::owe`].
#[must_use = "the disk owes nothing any more when it is dropped"]
pub(super) struct Owed(Option<Arc<Pulse>>);

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(pulse) = &self.0 {
            pulse.since.store(0, Ordering::Relaxed);
        }
    }
}

/// One write call's bytes.
#[derive(Debug)]
enum Piece {
    /// From the buffer of the group.
    Buffered(Range<usize>),
    /// The large payload of this blank.
    Moved(usize),
}

#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) directory: Directory,
    pub(super) lock: Option<Box<dyn Lock>>,
    pub(super) options: JournalOptions,
    pub(super) carry: Arc<dyn Carry>,
    pub(super) preparer: Arc<Preparer>,
    pub(super) fault: FaultCell,
    pub(super) pulse: Arc<Pulse>,
    pub(super) log: LogId,
    pub(super) epoch: u64,
    pub(super) place: Place,
    pub(super) name: SegmentName,
    pub(super) capacity: u64,
    pub(super) file: OpenFile,
    /// Whether the files are closed until the next use.
    pub(super) parked: Option<Parked>,
    /// Why the group in hand is refused: the files could not be opened again.
    pub(super) away: Option<NotCommitted>,
    /// The last Lsn for which a slot of the active segment was written and synced.
    pub(super) vouched: Lsn,
    /// Where the next frame goes.
    pub(super) position: u64,
    /// The last durable Lsn: the watermark of the next group.
    pub(super) last: Lsn,
    /// Frames in the active segment.
    pub(super) count: u64,
    /// Whether many sessions share the journal: then `tails` has those that were asked for.
    pub(super) shared: bool,
    owner: SessionId,
    pub(super) tails: Tails,
    pub(super) spans: Spans,
    /// Whether the next segment was asked for.
    pub(super) asked: bool,
    /// Since when the active segment is filled, and whether the one before it was full soon.
    pub(super) begun: Instant,
    pub(super) hurried: bool,
    /// Which slot the next claim goes to: never over the last one.
    pub(super) slot: usize,
    /// Buffers that the next group takes.
    pub(super) spare: Group,
    /// Of the part in flight: last records by session, frames, write calls, and refusals by batch.
    staged: Tails,
    found: Vec<Found>,
    pieces: Vec<Piece>,
    verdicts: Vec<Option<NotCommitted>>,
}

impl Writer {
    pub(crate) fn new(
        settled: Settled,
        spans: Spans,
        options: JournalOptions,
        carry: Arc<dyn Carry>,
    ) -> Writer {
        let active = settled.spans.last();
        let fault = FaultCell::default();
        let manifest = &settled.ownership.manifest;
        let (shared, owner) = (manifest.shared, manifest.owner);
        Writer {
            log: manifest.log,
            epoch: manifest.epoch,
            place: Place {
                log: settled.header.log,
                segment: settled.header.name.number,
            },
            name: settled.header.name,
            capacity: settled.header.capacity,
            position: active.map_or(FRAMES, |span| span.end),
            last: active.map_or(Lsn::ZERO, |span| span.last),
            count: settled.count,
            shared,
            owner,
            tails: settled.tails,
            file: settled.file,
            parked: None,
            away: None,
            vouched: Lsn::ZERO,
            preparer: Arc::new(Preparer::new(
                settled.directory.clone(),
                settled.ownership,
                fault.clone(),
                spans.clone(),
            )),
            directory: settled.directory,
            lock: Some(settled.lock),
            pulse: Arc::new(Pulse::new()),
            fault,
            spans,
            options,
            carry,
            asked: false,
            begun: Instant::now(),
            hurried: false,
            slot: 0,
            spare: Group::default(),
            staged: Tails::new(),
            found: Vec::new(),
            pieces: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    pub(crate) fn tail(&self, session: SessionId) -> Tail {
        self.tails.get(&session).copied().unwrap_or_default()
    }

    /// The last record of a session, if that is known here.
    pub(crate) fn known(&self, session: SessionId) -> Option<Tail> {
        match self.shared {
            true => self.tails.get(&session).copied(),
            false => Some(self.tail(session)),
        }
    }

    /// Takes in where a session stands, unless that is known already.
    pub(crate) fn learnt(&mut self, session: SessionId, tail: Tail) -> Tail {
        *self.tails.entry(session).or_insert(tail)
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        if self.shared {
            self.tails.remove(&session);
        }
    }

    /// Whose journal it is, and the epoch.
    pub(crate) fn outline(&self) -> (SessionId, u64) {
        (self.owner, self.epoch)
    }

    pub(crate) fn poison(&mut self, cause: FaultCause) -> Fault {
        self.fault.poison(self.directory.path(), cause)
    }

    /// Writes a group: as much of it as fits into one segment with one sync, then the rest. Batches
    /// are settled in their order.
    pub(crate) fn commit(&mut self, group: &mut Group, settled: &mut dyn FnMut(Settle, Outcome)) {
        let mut at = At::default();
        let owed = self.pulse.owe();
        self.away = self.come_back().err();
        drop(owed);
        while at.batch < group.batches.len() {
            let first = at.batch;
            // Also a roll: the next segment, and the seal of this one.
            let owed = self.pulse.owe();
            self.stamp_part(group, &mut at);
            let fault = match self.found.is_empty() {
                true => None,
                false => self
                    .write_and_sync(group)
                    .err()
                    .map(|cause| self.poison(cause)),
            };
            if fault.is_none() {
                self.count_part();
            }
            drop(owed);
            self.settle_part(group, first, fault.as_ref(), settled);
        }
    }

    /// Stamps batches from `at` on, as far as they fit into the active segment. What is refused gets
    /// no Lsn (W2).
    fn stamp_part(&mut self, group: &mut Group, at: &mut At) {
        self.found.clear();
        self.pieces.clear();
        self.staged.clear();
        self.verdicts.clear();
        let mut end = self.position;
        while let Some(batch) = group.batches.get(at.batch) {
            let blanks = at.blank..at.blank + batch.frames;
            let frames = group.blanks.get(blanks.clone()).unwrap_or_default();
            let mut verdict = self.admit(batch, frames);
            if verdict.is_ok() && end + batch.length > FRAMES + self.capacity {
                if !self.found.is_empty() {
                    return;
                }
                verdict = self.make_room(batch.length);
                end = self.position;
            }
            if verdict.is_ok() {
                self.stamp(&mut group.bytes, &group.blanks, blanks, at.byte, &mut end);
            }
            self.verdicts.push(verdict.err());
            at.batch += 1;
            at.blank += batch.frames;
            at.byte += batch.buffered;
        }
    }

    /// Rolls until a batch fits (W2). Usually once: a segment that was prepared before the batch was
    /// known may be too small for it.
    fn make_room(&mut self, length: u64) -> Result<(), NotCommitted> {
        while self.position + length > FRAMES + self.capacity {
            self.roll(length)?;
        }
        Ok(())
    }

    fn admit(&mut self, batch: &Batch, frames: &[Blank]) -> Result<(), NotCommitted> {
        if let Some(fault) = self.fault.get() {
            return Err(NotCommitted::Faulted(fault.clone()));
        }
        if self.lock.is_none() {
            return Err(NotCommitted::Closed);
        }
        if let Some(reason) = &self.away {
            return Err(reason.clone());
        }
        if self.shared {
            for frame in frames {
                self.learn(frame.session)?;
            }
        }
        let Some((first, expected)) = frames.first().zip(batch.expected) else {
            return Ok(());
        };
        let actual = match self.staged.get(&first.session) {
            Some(tail) => tail.seq,
            None => self.tail(first.session).seq,
        };
        match expected == actual {
            true => Ok(()),
            false => Err(NotCommitted::WrongPosition { expected, actual }),
        }
    }

    /// Makes sure that the last record of a session is known. Who opens the session has looked it up
    /// aside; here it is the rare case, and the group waits for it.
    fn learn(&mut self, session: SessionId) -> Result<(), NotCommitted> {
        if self.tails.contains_key(&session) || session.is_nil() {
            return Ok(());
        }
        let tail = match self.spans.tail(session) {
            Some(tail) => tail,
            None => SessionLog::live(self.directory.clone(), &self.spans, Heads::new(0), session)
                .tail()
                .map_err(NotCommitted::TailUnreadable)?,
        };
        self.tails.insert(session, tail);
        Ok(())
    }

    /// Stamps the headers of one batch: Lsn, Seq, previous Lsn, watermark, offset, epoch, header
    /// checksum (W5).
    fn stamp(
        &mut self,
        bytes: &mut [u8],
        all: &[Blank],
        blanks: Range<usize>,
        mut byte: usize,
        end: &mut u64,
    ) {
        let count = blanks.len();
        for (index, number) in blanks.enumerate() {
            let Some(blank) = all.get(number) else { return };
            let before = self
                .found
                .last()
                .map_or(self.last, |found| found.header.lsn);
            let lsn = before.next();
            let mut seq = Seq::ZERO;
            let mut previous = Lsn::ZERO;
            if blank.kind == FrameKind::Record {
                let tails = &self.tails;
                let tail = self
                    .staged
                    .entry(blank.session)
                    .or_insert_with(|| tails.get(&blank.session).copied().unwrap_or_default());
                seq = tail.seq.next();
                previous = tail.lsn;
                *tail = Tail { seq, lsn };
            }
            let header = Header {
                payload_crc: blank.payload_crc,
                payload_len: blank.payload_len,
                session: blank.session,
                lsn,
                seq,
                previous,
                watermark: self.last,
                epoch: self.epoch,
                batch_index: index as u16,
                batch_count: count as u16,
                kind: blank.kind,
                flags: 0,
            };
            let stamped = frame::encode_header(&self.place, *end, &header);
            if let Some(field) = bytes.get_mut(byte..byte + stamped.len()) {
                field.copy_from_slice(&stamped);
            }
            let buffered = match blank.moved {
                Some(_) => header.frame_len() - u64::from(blank.payload_len),
                None => header.frame_len(),
            } as usize;
            match blank.moved {
                None => self.piece(byte..byte + buffered),
                Some(_) => {
                    let head = byte + HEADER as usize;
                    self.piece(byte..head);
                    self.pieces.push(Piece::Moved(number));
                    self.piece(head..byte + buffered);
                }
            }
            byte += buffered;
            self.found.push(Found {
                offset: *end,
                header,
            });
            *end += header.frame_len();
        }
    }

    /// Adds a range of the buffer to what is written, as part of the last write call if it goes on
    /// where that ends.
    fn piece(&mut self, range: Range<usize>) {
        match self.pieces.last_mut() {
            Some(Piece::Buffered(last)) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.pieces.push(Piece::Buffered(range)),
        }
    }

    /// The write, the sync, and the proof that this process still owns the journal (W12). From the
    /// first write call on, every failure leaves the outcome unknown (W3).
    fn write_and_sync(&self, group: &Group) -> Result<(), FaultCause> {
        // Without anybody who counts, no clock is read.
        let clock = self.options.meter.is_on().then(Instant::now);
        let mut offset = self.position;
        for piece in &self.pieces {
            let bytes = match piece {
                Piece::Buffered(range) => group.bytes.get(range.clone()),
                Piece::Moved(blank) => group
                    .blanks
                    .get(*blank)
                    .and_then(|blank| blank.moved.as_deref()),
            };
            let bytes = bytes.unwrap_or_default();
            self.file
                .write_all(bytes, offset)
                .map_err(FaultCause::Write)?;
            offset += bytes.len() as u64;
        }
        let written = clock.map(|begun| begun.elapsed());
        self.file.sync().map_err(FaultCause::Sync)?;
        if let Some((begun, write)) = clock.zip(written) {
            self.options.meter.record(|| Measure::Group {
                batches: self
                    .verdicts
                    .iter()
                    .filter(|verdict| verdict.is_none())
                    .count(),
                records: self.found.len(),
                bytes: offset - self.position,
                write,
                sync: begun.elapsed().saturating_sub(write),
            });
        }
        match self.preparer.right.still_holds(&self.directory) {
            Ok(true) => Ok(()),
            Ok(false) => Err(FaultCause::Overtaken {
                path: self.directory.path().to_owned(),
            }),
            Err(error) => Err(FaultCause::Ownership(error)),
        }
    }

    /// What was synced counts from now on.
    fn count_part(&mut self) {
        let Some(last) = self.found.last().copied() else {
            return;
        };
        for (session, tail) in self.staged.drain() {
            self.tails.insert(session, tail);
        }
        self.last = last.header.lsn;
        self.count += self.found.len() as u64;
        self.position = last.end();
        self.spans.advance(self.position, self.last, &self.found);
    }

    fn settle_part(
        &mut self,
        group: &mut Group,
        first: usize,
        fault: Option<&Fault>,
        settled: &mut dyn FnMut(Settle, Outcome),
    ) {
        let segment = self.name;
        let mut found = self.found.as_slice();
        let batches = group.batches.get_mut(first..).unwrap_or_default();
        for (batch, verdict) in batches.iter_mut().zip(self.verdicts.drain(..)) {
            let outcome = match (verdict, fault) {
                (Some(reason), _) => Err(AppendError::NotCommitted(reason)),
                (None, fault) => {
                    let (own, rest) = found.split_at_checked(batch.frames).unwrap_or((found, &[]));
                    found = rest;
                    match fault {
                        Some(fault) => Err(AppendError::Unknown(fault.clone())),
                        None => Ok(receipt(segment, own)),
                    }
                }
            };
            if let Some(settle) = batch.settle.take() {
                settled(settle, outcome);
            }
        }
    }

    /// The next segment, when it is time to prepare it and it was not asked for yet: when the active
    /// one is half full (W9), or earlier when they fill fast, where time counts.
    pub(super) fn wants_successor(&mut self, timed: bool) -> Option<StaticHeader> {
        let hurried = timed && self.hurried;
        let due = !self.asked && (hurried || self.position - FRAMES > self.capacity / 2);
        self.asked |= due;
        due.then(|| self.successor(0))
    }

    /// The header of the segment after the active one.
    pub(super) fn successor(&self, needed: u64) -> StaticHeader {
        StaticHeader {
            log: self.log,
            name: SegmentName {
                number: self.name.number.saturating_add(1),
                generation: 0,
                epoch: self.epoch,
            },
            capacity: self.options.capacity_after(self.capacity, needed),
        }
    }
}

/// Where in a group the next batch is.
#[derive(Debug, Default)]
struct At {
    batch: usize,
    blank: usize,
    byte: usize,
}

fn receipt(segment: SegmentName, frames: &[Found]) -> Receipt {
    let records = frames
        .iter()
        .filter(|frame| frame.header.kind == FrameKind::Record)
        .map(|frame| Placed {
            lsn: frame.header.lsn,
            seq: frame.header.seq,
            position: Position {
                segment,
                offset: frame.offset,
            },
        });
    Receipt {
        first: frames.first().map_or(Lsn::ZERO, |frame| frame.header.lsn),
        records: PlacedRecords::of(records),
    }
}
