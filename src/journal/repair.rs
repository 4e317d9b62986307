//! Repair and backup: what is intact of a journal goes to a new one, under a new log id, with the same Lsns and
//! Seqs; what cannot be read is named by `Lost` frames (`docs/guarantees.md` 6). The old journal is
//! only read.
//!
//! Two passes: the first one reads everything and says what would be lost, before a byte is written;
//! the second one copies. A fence that cannot be read is no loss when the Seqs on both sides of it
//! show that no record stood there: it is written anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::Directory;
use super::error::{Damage, DiskError, OpenError, ReadError};
use super::evidence::{read_claim, read_seal, read_slot, read_static_header};
use super::frame::{self, HEADER, Header, payload_crc};
use super::lenient::{Lenient, UnreadableBlock};
use super::manifest::{ManifestFound, SegmentEntry};
use super::progress::Watch;
use super::reader::Entry;
use super::report::Cut;
use super::rewrite::{Outline, Rewriter, blank_fence};
use super::segment::{FRAMES, HeaderFound, SEAL, SLOTS};
use super::{FENCE_LEN, FrameKind, JournalOptions, JournalView, Lsn, Owner, Seq};
use crate::identity::SessionId;
use crate::vfs::{Access, Vfs};

/// Records that are gone: a range of a journal that reads as a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The first Lsn.
    pub first: Lsn,
    /// The last Lsn.
    pub last: Lsn,
    /// Deleted on purpose, or lost.
    pub kind: FrameKind,
    /// The session's sequences that are missing where the gap is; not known if no record follows.
    pub seqs: Option<(Seq, Seq)>,
}

impl Gap {
    pub(crate) fn new(first: Lsn, last: Lsn, kind: FrameKind) -> Gap {
        Gap {
            first,
            last,
            kind,
            seqs: None,
        }
    }

    /// The records on both sides of it tell which sequences are missing.
    pub(crate) fn followed_by(&mut self, before: Seq, next: Seq) {
        let missing = next > before.next();
        self.seqs = missing.then(|| (before.next(), Seq::new(next.get() - 1)));
    }
}

/// What a repair found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// The session.
    pub session: SessionId,
    /// The records that are intact, and kept.
    pub records: u64,
    /// Those of them that are not proven to have been acknowledged: nobody can know.
    pub unproven: u64,
    /// The last sequence that is kept.
    pub last_seq: Seq,
    /// What cannot be read and is given up.
    pub lost: Vec<Gap>,
    /// What was gone before; it stays named.
    pub gaps: Vec<Gap>,
    /// How many fences were written anew; they hold nothing of the session.
    pub fences: u64,
    /// Whether records may have stood behind the last one that is known: the end of the log itself
    /// is missing, so nobody can say how many. The last gap in `lost` goes one Lsn beyond what is
    /// known then, so that the copy keeps saying it.
    pub end_missing: bool,
    /// The damage that the decision found.
    pub damage: Option<Damage>,
    /// What the disk would not give.
    pub unreadable: Vec<UnreadableBlock>,
    /// A torn tail: not copied, since nothing proves that it was acknowledged.
    pub torn: Option<Cut>,
    /// The records that are intact and whose bodies, which stand in files of their own, are not: they
    /// are among those that are lost. With the file.
    pub bodies: Vec<(Seq, PathBuf)>,
}

impl RepairReport {
    /// Whether all that was acknowledged is kept.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && !self.end_missing
    }
}

/// How much of a journal is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All that is intact.
    Intact,
    /// What is proven to have been acknowledged; the others are counted.
    Proven,
}

/// Says of a record which file that belongs to it is not whole, if one is not: without it the record is
/// not copied.
pub(crate) type Lacks<'a> = &'a dyn Fn(&Entry<&[u8]>) -> Option<PathBuf>;

/// Why a journal was not copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    Open(OpenError),
    Read(ReadError),
    /// The second pass found something else than the first.
    Changed(Lsn),
}

impl From<OpenError> for CopyError {
    fn from(error: OpenError) -> CopyError {
        CopyError::Open(error)
    }
}

/// What stands in the place of Lsns that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instead {
    Fences,
    Gap(FrameKind),
}

/// The first pass over a journal.
pub(crate) struct Repair {
    view: JournalView,
    lenient: Lenient,
    watch: Watch,
    report: RepairReport,
    /// By first Lsn: the last one, and what is written instead.
    instead: BTreeMap<Lsn, (Lsn, Instead)>,
    /// The frames of batches of which a part is missing, with a batch place of their own.
    broken: BTreeMap<Lsn, (u16, u16)>,
    /// The records that are given up for a file that belongs to them.
    given_up: BTreeSet<Lsn>,
    epoch: u64,
    bytes: u64,
    last: Lsn,
    max_payload: u32,
    /// Above this nothing is copied.
    until: Option<Lsn>,
}

impl Repair {
    /// Reads everything; writes nothing.
    pub(crate) fn plan(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        session: SessionId,
        options: &JournalOptions,
        extent: Extent,
        lacks: Lacks<'_>,
        watch: &Watch,
    ) -> Result<Repair, CopyError> {
        let lenient = Lenient::new(vfs);
        let view = JournalView::open_watched(Arc::new(lenient.clone()), path, watch)?;
        match view.owner() {
            Owner::Session(found) if found != session => {
                return Err(CopyError::Open(OpenError::WrongOwner {
                    path: path.to_owned(),
                    expected: session,
                    found,
                }));
            }
            _ => {}
        }
        let (directory, _) = view.parts();
        let max_payload = match directory.highest_manifest().map_err(OpenError::Disk)? {
            Some((_, ManifestFound::Good(manifest))) => manifest.max_payload,
            _ => options.max_payload,
        };
        let report = RepairReport {
            session,
            records: 0,
            unproven: 0,
            last_seq: Seq::ZERO,
            lost: Vec::new(),
            gaps: Vec::new(),
            fences: 0,
            end_missing: end_missing(&view).map_err(OpenError::Disk)?,
            damage: view.damage().cloned(),
            unreadable: Vec::new(),
            torn: view.report().cut.clone(),
            bodies: Vec::new(),
        };
        let mut repair = Repair {
            until: (extent == Extent::Proven).then_some(view.report().watermark),
            epoch: view.report().epoch.max(1),
            view,
            lenient,
            watch: watch.clone(),
            report,
            instead: BTreeMap::new(),
            broken: BTreeMap::new(),
            given_up: BTreeSet::new(),
            bytes: 0,
            last: Lsn::ZERO,
            max_payload,
        };
        let read = repair.first_pass(lacks);
        watch.outcome(path, Ok(()))?;
        read.map_err(CopyError::Read)?;
        repair.report.unreadable = repair.lenient.unreadable();
        Ok(repair)
    }

    pub(crate) fn report(&self) -> &RepairReport {
        &self.report
    }

    fn first_pass(&mut self, lacks: Lacks<'_>) -> Result<(), ReadError> {
        let mut claimed = self.view.report().watermark;
        if self.until.is_none() {
            claimed = claimed.max(self.view.report().last);
        }
        if let Some(Damage::Acknowledged { last, .. }) = self.view.damage() {
            claimed = claimed.max(*last);
        }
        self.view.replay_begins(Lsn::ZERO, &self.watch);
        let view = self.view.clone();
        let mut reader = view.read(Lsn::ZERO);
        let mut gaps = Gaps::default();
        let mut batch: Vec<(Lsn, (u16, u16))> = Vec::new();
        while let Some(read) = reader.read_next() {
            let entry = match read {
                Ok(entry) => entry,
                Err(ReadError::Gap { first, .. }) if self.is_above(first) => continue,
                Err(ReadError::Gap { first, last, kind }) => {
                    self.gap_before(first, &mut gaps, &mut batch);
                    if first > self.last {
                        gaps.open.push((first, last, kind));
                        self.last = last;
                        self.end_batch(&mut batch);
                    }
                    continue;
                }
                Err(ReadError::Damaged { last, .. }) => {
                    claimed = claimed.max(last);
                    continue;
                }
                Err(ReadError::Header { .. }) => continue,
                Err(error) => return Err(error),
            };
            if entry.lsn <= self.last {
                continue;
            }
            if self.is_above(entry.lsn) {
                self.report.unproven += u64::from(entry.kind == FrameKind::Record);
                continue;
            }
            if let Some(path) = lacks(&entry) {
                claimed = claimed.max(entry.lsn);
                self.given_up.insert(entry.lsn);
                self.report.bodies.push((entry.seq, path));
                continue;
            }
            self.gap_before(entry.lsn, &mut gaps, &mut batch);
            self.last = entry.lsn;
            self.epoch = self.epoch.max(entry.epoch);
            self.bytes += frame::frame_len(entry.payload.len() as u64);
            let length = u32::try_from(entry.payload.len()).unwrap_or(u32::MAX);
            self.max_payload = self.max_payload.max(length);
            if entry.batch.0 == 0 {
                self.end_batch(&mut batch);
            }
            batch.push((entry.lsn, entry.batch));
            if entry.kind == FrameKind::Record {
                self.report.records += 1;
                self.report.unproven += u64::from(!entry.proven);
                self.close_gaps(&mut gaps, Some(entry.seq));
                self.report.last_seq = entry.seq;
            }
        }
        if self.report.end_missing {
            // Nobody knows how far the log went. That it went on is said by a gap that goes one Lsn
            // beyond what is known: so the end of the copy is no end that anybody writes behind.
            claimed = claimed.max(self.last).next();
        }
        self.gap_before(claimed.next(), &mut gaps, &mut batch);
        self.end_batch(&mut batch);
        self.close_gaps(&mut gaps, None);
        Ok(())
    }

    fn is_above(&self, lsn: Lsn) -> bool {
        self.until.is_some_and(|until| lsn > until)
    }

    /// Notes what is missing between the last frame and this Lsn.
    fn gap_before(&mut self, lsn: Lsn, gaps: &mut Gaps, batch: &mut Vec<(Lsn, (u16, u16))>) {
        if lsn > self.last.next() {
            let last = Lsn::new(lsn.get() - 1);
            gaps.open
                .push((self.last.next(), last, FrameKind::Unknown(0)));
            self.last = last;
            self.end_batch(batch);
        }
    }

    /// The frames since the last end of a batch: if they are not one whole batch, they become one.
    fn end_batch(&mut self, batch: &mut Vec<(Lsn, (u16, u16))>) {
        let count = batch.len();
        let whole = batch.iter().enumerate().all(|(index, (_, place))| {
            usize::from(place.0) == index && usize::from(place.1) == count
        });
        for (index, (lsn, _)) in batch.drain(..).enumerate() {
            if !whole {
                let number = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
                self.broken.insert(lsn, (number(index), number(count)));
            }
        }
    }

    /// The next record tells what the gaps before it hid.
    fn close_gaps(&mut self, gaps: &mut Gaps, next: Option<Seq>) {
        let after = self.report.last_seq;
        let nothing = next == Some(after.next());
        for (first, last, kind) in gaps.open.drain(..) {
            let known = matches!(kind, FrameKind::Lost | FrameKind::Erased);
            let count = last.get() - first.get() + 1;
            // Openings are rare: a long range without a record is no row of fences.
            if nothing && !known && count <= MAX_FENCES {
                self.report.fences += count;
                self.bytes += count * frame::frame_len(u64::from(FENCE_LEN));
                self.instead.insert(first, (last, Instead::Fences));
                continue;
            }
            self.bytes += HEADER;
            let kind = if known { kind } else { FrameKind::Lost };
            self.instead.insert(first, (last, Instead::Gap(kind)));
            let mut gap = Gap::new(first, last, kind);
            if let Some(next) = next {
                gap.followed_by(after, next);
            }
            match known {
                true => self.report.gaps.push(gap),
                false => self.report.lost.push(gap),
            }
        }
    }

    /// Writes the new journal into an empty directory, durable.
    pub(crate) fn copy(
        &self,
        vfs: Arc<dyn Vfs>,
        path: &Path,
        options: &JournalOptions,
    ) -> Result<(), CopyError> {
        let directory = Directory::open(vfs, path).map_err(OpenError::Disk)?;
        let outline = Outline {
            owner: self.report.session,
            epoch: self.epoch,
            max_payload: self.max_payload,
            watermark: self.view.report().watermark,
            bytes: self.bytes,
        };
        let mut copy = Copying {
            repair: self,
            rewriter: Rewriter::new(&directory, options, outline)?,
            batch: Vec::new(),
            last: Lsn::ZERO,
            epoch: 0,
            records: 0,
        };
        self.view.replay_begins(Lsn::ZERO, &self.watch);
        let copied = copy.all();
        self.watch.end();
        let (source, _) = self.view.parts();
        self.watch.outcome(source.path(), Ok(()))?;
        copied?;
        Ok(copy.rewriter.finish()?)
    }
}

impl Repair {
    /// Whether the new journal gives what was written.
    pub(crate) fn reads_back(&self, vfs: Arc<dyn Vfs>, path: &Path) -> Result<bool, CopyError> {
        let view = JournalView::open(vfs, path)?;
        let mut found = (0, 0);
        let mut reader = view.read(Lsn::ZERO);
        while let Some(read) = reader.read_next() {
            match read {
                Ok(entry) => found.0 += u64::from(entry.kind == FrameKind::Record),
                Err(ReadError::Gap { .. }) => found.1 += 1,
                Err(error) => return Err(CopyError::Read(error)),
            }
        }
        let gaps = self.report.lost.len() + self.report.gaps.len();
        Ok(view.damage().is_none()
            && view.report().last == self.last
            && found == (self.report.records, gaps))
    }
}

/// Most fences that are written anew in one place.
const MAX_FENCES: u64 = 64;

/// The gaps since the last record.
#[derive(Default)]
struct Gaps {
    open: Vec<(Lsn, Lsn, FrameKind)>,
}

/// The second pass.
struct Copying<'a> {
    repair: &'a Repair,
    rewriter: Rewriter<'a>,
    batch: Vec<(Header, Vec<u8>)>,
    last: Lsn,
    epoch: u64,
    records: u64,
}

impl Copying<'_> {
    fn all(&mut self) -> Result<(), CopyError> {
        let mut reader = self.repair.view.read(Lsn::ZERO);
        while let Some(read) = reader.read_next() {
            match read {
                Ok(entry) if self.repair.is_above(entry.lsn) => {}
                Ok(entry) if self.repair.given_up.contains(&entry.lsn) => {}
                Ok(entry) if entry.lsn > self.last => {
                    self.gaps_before(entry.lsn)?;
                    self.record(&entry)?;
                }
                Err(error @ (ReadError::Disk(_) | ReadError::UnknownFrame { .. })) => {
                    return Err(CopyError::Read(error));
                }
                _ => {}
            }
        }
        self.gaps_before(self.repair.last.next())?;
        self.flush()?;
        match self.records == self.repair.report.records {
            true => Ok(()),
            false => Err(CopyError::Changed(self.last)),
        }
    }

    fn gaps_before(&mut self, lsn: Lsn) -> Result<(), CopyError> {
        while self.last.next() < lsn {
            let first = self.last.next();
            let Some((last, instead)) = self.repair.instead.get(&first).copied() else {
                return Err(CopyError::Changed(first));
            };
            self.flush()?;
            match instead {
                Instead::Gap(kind) => {
                    let count = Seq::new(last.get() - first.get() + 1);
                    self.push(first, kind, count, &[]);
                    self.flush()?;
                }
                Instead::Fences => {
                    for number in first.get()..=last.get() {
                        let fence = blank_fence(self.epoch);
                        self.push(Lsn::new(number), FrameKind::Fence, Seq::ZERO, &fence);
                        self.flush()?;
                    }
                }
            }
            self.last = last;
        }
        Ok(())
    }

    fn record(&mut self, entry: &Entry<&[u8]>) -> Result<(), CopyError> {
        self.epoch = self.epoch.max(entry.epoch);
        let broken = self.repair.broken.get(&entry.lsn);
        let place = broken.copied().unwrap_or(entry.batch);
        if place.0 == 0 {
            self.flush()?;
        }
        self.push(entry.lsn, entry.kind, entry.seq, entry.payload);
        if let Some((header, _)) = self.batch.last_mut() {
            header.session = entry.session;
            header.previous = entry.previous;
            (header.batch_index, header.batch_count) = place;
        }
        self.records += u64::from(entry.kind == FrameKind::Record);
        self.last = entry.lsn;
        Ok(())
    }

    fn push(&mut self, lsn: Lsn, kind: FrameKind, seq: Seq, payload: &[u8]) {
        let header = Header {
            payload_crc: payload_crc(payload),
            payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            session: SessionId::nil(),
            lsn,
            seq,
            previous: Lsn::ZERO,
            watermark: Lsn::ZERO,
            epoch: self.epoch,
            batch_index: 0,
            batch_count: 1,
            kind,
            flags: 0,
        };
        self.batch.push((header, payload.to_vec()));
    }

    fn flush(&mut self) -> Result<(), CopyError> {
        self.rewriter.put(&self.batch)?;
        self.batch.clear();
        Ok(())
    }
}

/// Whether the end of a damaged log may be missing: a listed segment without a named end is not
/// whole, and may have held records that nothing else speaks of; or the last segment is finished, so
/// that there was another one.
fn end_missing(view: &JournalView) -> Result<bool, DiskError> {
    if view.damage().is_none() {
        return Ok(false);
    }
    let (directory, spans) = view.parts();
    let Some(last) = spans.last() else {
        return Ok(true);
    };
    let mut entries = match directory.highest_manifest()? {
        Some((_, ManifestFound::Good(manifest))) => manifest.segments,
        _ => Vec::new(),
    };
    // Without a manifest that counts, only the last of those that speak of themselves tells.
    if entries.iter().all(|entry| entry.name != last.entry.name) {
        entries.push(last.entry);
    }
    let mut state = Ending::Finished;
    for entry in &entries {
        state = match (state, ending(directory, entry)?) {
            // A successor is used only after the seal before it was synced (W7).
            (Ending::Open, Ending::Lost) => Ending::Open,
            (_, Ending::Lost) => return Ok(true),
            (_, found) => found,
        };
    }
    Ok(state == Ending::Finished)
}

/// What the end of a listed segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The manifest or a seal names it.
    Finished,
    /// The segment is as long as it was made, and was never sealed.
    Open,
    /// The same, but what stands in the place of the seal cannot be read.
    Unsure,
    /// Nobody knows it: the segment is absent, or shorter than it was made, or its header is gone.
    Lost,
}

fn ending(directory: &Directory, entry: &SegmentEntry) -> Result<Ending, DiskError> {
    if entry.end.is_some() {
        return Ok(Ending::Finished);
    }
    let Some(file) = directory.open_segment(&entry.name, Access::Read)? else {
        return Ok(Ending::Lost);
    };
    let place = entry.place();
    if read_seal(&file, &place)?.is_some() {
        return Ok(Ending::Finished);
    }
    let HeaderFound::Good(header) = read_static_header(&file)? else {
        return Ok(Ending::Lost);
    };
    let length = file.len()?;
    let mut whole = length >= FRAMES.saturating_add(header.capacity);
    // At a clean close the file is cut to its tail.
    for offset in SLOTS {
        let slot = read_slot(&file, &place, offset)?;
        whole |= slot.is_some_and(|slot| slot.clean && slot.tail <= length);
    }
    let blank = read_claim(&file, SEAL)?.iter().all(|byte| *byte == 0);
    Ok(match (whole, blank) {
        (false, _) => Ending::Lost,
        (true, true) => Ending::Open,
        (true, false) => Ending::Unsure,
    })
}
