//! What can still be read of a damaged journal (P6): the listed segments that are there, or, without
//! a manifest, the segments that the files themselves speak of.
//!
//! Without a manifest nothing says which files count. Three rules of the writer do (W6, W9): numbers
//! go up with epochs, so a file with a lower epoch than one before it was left behind by somebody
//! who was overtaken; of two files that hold the same Lsn the one of the newer epoch counts; and of
//! the generations of one number the newest. That holds of files that were listed, and a file is listed
//! before the fence of its epoch is written; one without a sign of that reaches less far without a break
//! than the one before it was never finished.
//!
//! Before that, a fence says where the epochs before its own end: it follows the last Lsn that was kept
//! of them. From its Lsn on a frame with a lower epoch was given up, whichever file the fence stands in
//! and whether or not its epoch served: it is written when the list without that frame is published.

use std::collections::{BTreeMap, HashSet};

use super::bytes::take_u64;
use super::decision::{Evidence, ManifestEvidence};
use super::directory::{Directory, OpenFile};
use super::error::DiskError;
use super::evidence::{read_seal, read_slots, read_static_header};
use super::frame::{HEADER, LogId, Place};
use super::manifest::SegmentEntry;
use super::names::{Name, SegmentName};
use super::scan::{At, Found, Window, look, may_hold, scan, search_headers};
use super::segment::{FRAMES, HeaderFound, MAX_CAPACITY};
use super::spans::Span;
use super::{FENCE_LEN, FrameKind, Lsn};
use crate::identity::SessionId;
use crate::vfs::Access;

/// Gives the spans that can be read, and the highest watermark that anything readable claims.
pub(crate) fn salvage(
    directory: &Directory,
    evidence: &Evidence,
) -> Result<(Vec<Span>, Lsn), DiskError> {
    // All of them finished: what was listed behind them is lost with a newer manifest.
    let outdated = evidence.newer_segment.is_some()
        || evidence
            .segments
            .iter()
            .all(|segment| segment.end.is_some());
    match &evidence.manifest {
        ManifestEvidence::Good(manifest) if !outdated => listed(directory, &manifest.segments),
        _ => by_headers(directory),
    }
}

fn listed(directory: &Directory, entries: &[SegmentEntry]) -> Result<(Vec<Span>, Lsn), DiskError> {
    let mut spans: Vec<Span> = Vec::new();
    let mut watermark = Lsn::ZERO;
    let mut base = Lsn::ZERO;
    // Whether the Lsn before the next segment is only a guess.
    let mut guess = false;
    for entry in entries {
        let file = directory.open_segment(&entry.name, Access::Read)?;
        let mut end = entry.end.map(|end| (end.offset, end.last));
        if let Some(file) = file.as_ref().filter(|_| end.is_none()) {
            let seal = read_seal(file, &entry.place())?;
            end = seal.map(|seal| (seal.end, seal.last));
        }
        let span = match (end, file) {
            // An absent segment with a known end leaves a range that the reader reports.
            (Some((end, last)), _) => Span {
                entry: *entry,
                base,
                end,
                last,
            },
            (None, Some(file)) => {
                let content = Content::read(&file, entry, base, guess)?;
                watermark = watermark.max(content.claim);
                content.span(content.last)
            }
            (None, None) => match superseding(directory, &entry.name)? {
                // The manifest that names what took its place is lost.
                Some(content) => {
                    watermark = watermark.max(content.claim);
                    content.span(content.last)
                }
                None => {
                    guess = true;
                    continue;
                }
            },
        };
        if end.is_some() {
            watermark = watermark.max(span.last);
        }
        base = span.last;
        guess = end.is_none();
        spans.push(span);
    }
    Ok((spans, watermark))
}

/// The newest whole file that was made to take the place of another one.
fn superseding(directory: &Directory, absent: &SegmentName) -> Result<Option<Content>, DiskError> {
    let mut newest = None;
    // The listing is sorted: the generations of a number come in their order.
    for (_, name) in directory.names()? {
        match name {
            Name::Segment(name)
                if name.number == absent.number && name.generation > absent.generation =>
            {
                newest = unlisted(directory, name)?
                    .map(|(content, _)| content)
                    .filter(|content| content.finished)
                    .or(newest);
            }
            _ => {}
        }
    }
    Ok(newest)
}

/// A file that no manifest speaks of, if it says itself what it is and holds anything.
fn unlisted(
    directory: &Directory,
    name: SegmentName,
) -> Result<Option<(Content, OpenFile)>, DiskError> {
    let Some(file) = directory.open_segment(&name, Access::Read)? else {
        return Ok(None);
    };
    let HeaderFound::Good(header) = read_static_header(&file)? else {
        return Ok(None);
    };
    let entry = SegmentEntry::own(name, header.log, None);
    let content = Content::read(&file, &entry, Lsn::ZERO, true)?;
    Ok((!content.frames.is_empty()).then_some((content, file)))
}

fn by_headers(directory: &Directory) -> Result<(Vec<Span>, Lsn), DiskError> {
    let mut found: Vec<Content> = Vec::new();
    let mut served: HashSet<u64> = HashSet::new();
    let mut taken_over: Vec<Fence> = Vec::new();
    for (_, name) in directory.names()? {
        let Name::Segment(name) = name else { continue };
        let Some((content, file)) = unlisted(directory, name)? else {
            continue;
        };
        // A seal is written by one who serves.
        if content.seal.is_some() {
            served.insert(name.epoch);
        }
        taken_over.extend(fences(&file, &content)?);
        found.push(content);
    }
    served.extend(taken_over.iter().map(|fence| fence.epoch));
    for content in &mut found {
        content.end_at(&taken_over);
    }
    found.retain(|content| !content.frames.is_empty());
    let mut newest: BTreeMap<u64, Content> = BTreeMap::new();
    for mut content in found {
        content.served = served.contains(&content.entry.name.epoch);
        let number = content.entry.name.number;
        // The listing is sorted: the generations of a number come in their order.
        match newest.get(&number) {
            Some(older) if !content.replaces(older) => {}
            _ => {
                newest.insert(number, content);
            }
        }
    }
    let mut counting: Vec<Content> = Vec::new();
    for content in newest.into_values() {
        let before = counting.last();
        let left_behind =
            before.is_some_and(|before| content.entry.name.epoch < before.entry.name.epoch);
        let unfinished =
            before.is_some_and(|before| content.base < before.whole && !content.replaces(before));
        if left_behind || unfinished {
            continue;
        }
        // What it holds too is older there, and may have been given up.
        while let Some(before) = counting.last_mut()
            && before.last > content.base
        {
            before.cut(content.base);
            if before.last > before.base {
                break;
            }
            counting.pop();
        }
        // A file that a fork linked goes on for the session that wrote it; what it claims there says
        // nothing of this one.
        if let Some(before) = counting.last_mut()
            && before.entry.log != content.entry.log
        {
            before.claim = before.claim.min(content.base);
        }
        counting.push(content);
    }
    read_as_owner(&mut counting);
    let claims = counting.iter().map(|content| content.claim);
    let watermark = claims.max().unwrap_or(Lsn::ZERO);
    let spans = counting.iter().map(|content| content.span(content.last));
    Ok((spans.collect(), watermark))
}

/// Files of another log are those that a fork linked, if they lie before the own ones, which are the
/// newest, without a gap: their frames are read as the session whose own ones are. Else they stay what
/// they say that they are.
fn read_as_owner(counting: &mut [Content]) {
    let newest = counting
        .iter()
        .max_by_key(|content| content.entry.name.epoch);
    let Some(log) = newest.map(|content| content.entry.log) else {
        return;
    };
    let own = |content: &Content| content.entry.log == log;
    let linked = counting.iter().position(own).unwrap_or(0);
    let Some((linked, owned)) = counting.split_at_mut_checked(linked) else {
        return;
    };
    let follows = match (linked.last(), owned.first()) {
        (Some(before), Some(first)) => before.last == first.base,
        _ => false,
    };
    let Some(owner) = owned.iter().find_map(Content::session).filter(|_| follows) else {
        return;
    };
    for content in linked {
        if let Some(session) = content.session() {
            content.entry.session = session;
            content.entry.reads_as = owner;
        }
    }
}

/// The headers of one segment file.
struct Content {
    entry: SegmentEntry,
    base: Lsn,
    /// The last Lsn that is shown.
    last: Lsn,
    /// The last Lsn up to which whole batches follow each other without a break; only for guesses.
    whole: Lsn,
    /// Whether its epoch is known to have served, so that the file was listed; only for guesses.
    served: bool,
    /// Whether it was made to take over from another one, and is whole; only for guesses.
    finished: bool,
    /// The highest watermark that its headers, its slots and its seal claim.
    claim: Lsn,
    frames: Vec<Found>,
    /// The end and the last Lsn by its seal.
    seal: Option<(u64, Lsn)>,
}

impl Content {
    fn read(
        file: &OpenFile,
        entry: &SegmentEntry,
        base: Lsn,
        guess: bool,
    ) -> Result<Content, DiskError> {
        let place = entry.place();
        let seal = read_seal(file, &place)?.map(|seal| (seal.end, seal.last));
        let limit = file.len()?.min(FRAMES.saturating_add(MAX_CAPACITY));
        let mut window = Window::new(file.clone());
        let mut frames: Vec<Found> = Vec::new();
        let slots = read_slots(file, &place)?;
        let tail = slots.iter().map(|slot| slot.tail).max();
        let slots = slots.iter().map(|slot| slot.watermark);
        let mut claim = slots.fold(Lsn::ZERO, Lsn::max);
        let mut last = base;
        // Payloads are checked when they are read: a header says that the record was there.
        for found in search_headers(&mut window, &place, FRAMES, limit)? {
            if !may_hold(&entry.name, &found.header) {
                continue;
            }
            claim = claim.max(found.header.watermark);
            if found.header.lsn > last && found.end() <= limit {
                last = Lsn::new(found.header.next_lsn().get() - 1);
                frames.push(found);
            }
        }
        let mut content = Content {
            entry: *entry,
            base,
            last,
            whole: Lsn::ZERO,
            served: false,
            finished: false,
            claim,
            frames,
            seal,
        };
        // What stood before it is lost: the first frame says where the segment begins. One that does
        // not stand at the beginning has lost at least one before it.
        if guess && let Some(first) = content.frames.first() {
            let missing = if first.offset == FRAMES { 1 } else { 2 };
            let before = first.header.lsn.get().saturating_sub(missing);
            content.base = Lsn::new(before).max(base);
            let (whole, end) = whole(&mut window, &place, &content.frames, limit)?;
            content.whole = whole;
            content.finished = tail.is_some_and(|tail| end >= tail);
        }
        match seal {
            Some((_, last)) => {
                content.claim = content.claim.max(last);
                content.last = content.last.max(last);
            }
            // The rest of a batch is missed by the reader: half of one is never shown as if it were
            // whole (P3).
            None => content.last = content.frames.last().map_or(base, end_of_batch).max(base),
        }
        Ok(content)
    }

    /// Whose its first record is.
    fn session(&self) -> Option<SessionId> {
        let mut headers = self.frames.iter().map(|frame| &frame.header);
        let record = headers.find(|header| header.kind == FrameKind::Record);
        record.map(|header| header.session)
    }

    /// Shows nothing above an Lsn.
    fn cut(&mut self, last: Lsn) {
        self.frames.retain(|frame| frame.header.lsn <= last);
        let next = self.frames.last().map(|frame| frame.header.next_lsn());
        self.last = next.map_or(self.base, |next| Lsn::new(next.get() - 1));
        self.seal = None;
    }

    /// Shows nothing of its epochs from where a newer one took over.
    fn end_at(&mut self, fences: &[Fence]) {
        let log = self.entry.log;
        let ends: Vec<&Fence> = fences.iter().filter(|fence| fence.log == log).collect();
        let given_up = |frame: &Found| {
            let header = &frame.header;
            let mut ends = ends.iter();
            ends.any(|fence| header.epoch < fence.epoch && header.lsn >= fence.lsn)
        };
        let Some(first) = self.frames.iter().find(|frame| given_up(frame)) else {
            return;
        };
        let before = Lsn::new(first.header.lsn.get().saturating_sub(1));
        self.frames.retain(|frame| !given_up(frame));
        self.whole = self.whole.min(before);
        self.seal = self.seal.filter(|(_, last)| *last <= before);
        let last = self.frames.last().map_or(self.base, end_of_batch);
        self.last = match self.frames.last() {
            Some(frame) if frame.header.lsn > before => last,
            _ => last.min(before),
        };
    }

    /// Whether it takes the place of an older file that holds the same Lsns.
    fn replaces(&self, older: &Content) -> bool {
        self.served || self.whole >= older.whole
    }

    fn span(&self, last: Lsn) -> Span {
        let frames = self.frames.last().map_or(FRAMES, Found::end);
        Span {
            entry: self.entry,
            base: self.base,
            end: self.seal.map_or(frames, |(end, _)| end.max(frames)),
            last,
        }
    }
}

/// Where an epoch took over from those before it.
struct Fence {
    log: LogId,
    epoch: u64,
    lsn: Lsn,
}

/// The fences in a file, with their epochs by their own payloads: a fence that did not fit beside what
/// was kept stands in the next segment, and later openings copy it and stamp it anew.
fn fences(file: &OpenFile, content: &Content) -> Result<Vec<Fence>, DiskError> {
    let place = content.entry.place();
    let mut window = Window::for_one(file.clone());
    let mut found = Vec::new();
    let fences = content.frames.iter().filter(|frame| {
        frame.header.kind == FrameKind::Fence && frame.header.payload_len == FENCE_LEN
    });
    for fence in fences {
        if let At::Frame(header) = look(&mut window, &place, fence.offset, fence.end())? {
            let payload = window.get(fence.offset + HEADER, 8)?;
            found.extend(take_u64(payload, &mut 0).map(|epoch| Fence {
                log: place.log,
                epoch,
                lsn: header.lsn,
            }));
        }
    }
    Ok(found)
}

/// The last Lsn of whole batches, payloads included, that follow each other from the first frame on,
/// and where the frames end that do.
fn whole(
    window: &mut Window,
    place: &Place,
    frames: &[Found],
    limit: u64,
) -> Result<(Lsn, u64), DiskError> {
    let Some(first) = frames.first().filter(|first| first.offset == FRAMES) else {
        return Ok((Lsn::ZERO, FRAMES));
    };
    let base = Lsn::new(first.header.lsn.get().saturating_sub(1));
    let found = scan(window, place, FRAMES, base, limit)?;
    let last = found.frames.iter().rfind(|frame| frame.header.ends_batch());
    let last = last.map_or(base, |frame| Lsn::new(frame.header.next_lsn().get() - 1));
    Ok((last, found.position))
}

/// The Lsn of the last frame of the batch that a frame belongs to.
fn end_of_batch(frame: &Found) -> Lsn {
    let header = &frame.header;
    let behind = header.batch_count.saturating_sub(header.batch_index).max(1);
    let last = header.next_lsn().get() - 1;
    Lsn::new(last.saturating_add(u64::from(behind) - 1))
}
