//! The decision: what a journal's bytes mean, as a pure function of the evidence (`docs/guarantees.md` 2).
//!
//! | # | evidence | decision |
//! |---|---|---|
//! | 1 | read error | error, change nothing |
//! | 2 | newer format, foreign log id | refuse, change nothing |
//! | 3 | no manifest and no frame anywhere; or the manifest lists no segment | new, or half created |
//! | 4 | no manifest but frames; damaged manifest; a segment newer than the highest manifest | damaged |
//! | 5 | a listed segment is absent; or all listed are finished | missing |
//! | 6 | a finished segment is not whole, when it is read | damaged |
//! | 7 | bad static header of the active segment, or a segment behind it was used | damaged |
//! | 8 | the active segment is shorter than its capacity, without a clean slot that explains it | truncated |
//! | 9 | an acknowledged record cannot be read | damaged |
//! | 10 | only zeros behind what is kept | end |
//! | 11 | anything else | torn |
//!
//! Row 1 is the error of the function that gathers the evidence, row 6 is found when a finished
//! segment is read. The first row that applies decides.

use super::Lsn;
use super::error::Damage;
use super::frame::HEADER;
use super::manifest::{End, Manifest, SegmentEntry};
use super::names::SegmentName;
use super::scan::{Found, Scan, may_hold};
use super::segment::{FRAMES, HeaderFound, Seal, Slot, StaticHeader};

/// All that the decision looks at.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) manifest: ManifestEvidence,
    /// A segment file whose name bears an epoch above that of the manifest, or, unlisted, the same
    /// epoch together with a fence of it.
    pub(crate) newer_segment: Option<SegmentName>,
    /// The listed segments, in order.
    pub(crate) segments: Vec<SegmentEvidence>,
    /// The lowest listed segment that is neither sealed nor closed.
    pub(crate) active: Option<ActiveEvidence>,
}

/// What stands under the highest manifest's name.
#[derive(Debug, Clone)]
pub(crate) enum ManifestEvidence {
    /// There is none; whether a frame was found anywhere.
    Absent {
        frames: bool,
    },
    Bad,
    Newer(u32),
    Good(Manifest),
}

/// A listed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentEvidence {
    pub(crate) entry: SegmentEntry,
    pub(crate) present: bool,
    /// Its end: the manifest's counts before the seal's.
    pub(crate) end: Option<End>,
    /// Whether that end stands only in the seal.
    pub(crate) by_seal: bool,
    /// Whether the first block for frames holds anything but zeros.
    pub(crate) used: bool,
}

/// The active segment, *a*.
#[derive(Debug, Clone)]
pub(crate) struct ActiveEvidence {
    /// Its place in the list.
    pub(crate) index: usize,
    pub(crate) header: HeaderFound,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// Last Lsn before it.
    pub(crate) base: Lsn,
    pub(crate) slots: Vec<Slot>,
    pub(crate) seal: Option<Seal>,
    /// The frames of the first pass, whose watermarks count.
    pub(crate) first: Scan,
    /// The headers from *p* of the first pass on.
    pub(crate) beyond: Vec<Found>,
    /// The frames of the second pass: *keep* and *n* come from here.
    pub(crate) second: Scan,
    /// Offset behind the last byte that is not zero.
    pub(crate) last_nonzero: u64,
}

/// What the bytes mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Row 2.
    NewerFormat(u32),
    /// Row 2.
    ForeignLog(SegmentName),
    /// Row 3: there is no manifest, and nothing is lost.
    New,
    /// Row 3: a manifest that lists nothing.
    HalfCreated(Manifest),
    /// Rows 4, 5, 7, 8, 9.
    Damaged(Damage),
    /// Rows 10 and 11.
    Recovered(Box<Recovered>),
}

/// Rows 10 and 11: what is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) manifest: Manifest,
    /// The segments before the active one, with their ends.
    pub(crate) finished: Vec<(SegmentEntry, End, bool)>,
    pub(crate) active: SegmentEntry,
    pub(crate) header: StaticHeader,
    /// Last Lsn before the active segment.
    pub(crate) base: Lsn,
    /// *W*: everything up to here is proven durable.
    pub(crate) watermark: Lsn,
    /// *keep*: never less than all valid frames without an incomplete batch at their end.
    pub(crate) keep: Vec<Found>,
    /// What stands behind *keep*: row 11 if there is anything.
    pub(crate) torn: Option<Torn>,
    /// Whether the active segment is untouched: only zeros behind its static header, and no slot.
    pub(crate) untouched: bool,
}

/// Row 11: the bytes that are not kept, all of them not proven acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Torn {
    /// Where they begin.
    pub(crate) offset: u64,
    /// Where the last one that is not zero stands.
    pub(crate) end: u64,
    /// The Lsns that can still be read among them.
    pub(crate) lsns: Option<(Lsn, Lsn)>,
    /// Whether they begin with whole frames of an incomplete batch.
    pub(crate) incomplete_batch: bool,
}

impl Recovered {
    pub(crate) fn last(&self) -> Lsn {
        self.keep.last().map_or(self.base, |frame| {
            Lsn::new(frame.header.next_lsn().get() - 1)
        })
    }

    /// The offset behind *keep*.
    pub(crate) fn tail(&self) -> u64 {
        self.keep.last().map_or(FRAMES, Found::end)
    }
}

/// Decides. The first row that applies counts.
pub(crate) fn decide(evidence: Evidence) -> Decision {
    let manifest = match evidence.manifest {
        ManifestEvidence::Newer(version) => return Decision::NewerFormat(version),
        ManifestEvidence::Bad | ManifestEvidence::Absent { frames: true } => {
            return Decision::Damaged(Damage::ManifestLost);
        }
        ManifestEvidence::Absent { frames: false } => return Decision::New,
        ManifestEvidence::Good(manifest) => manifest,
    };
    if let Some(active) = &evidence.active {
        match active.header {
            HeaderFound::Newer(version) => return Decision::NewerFormat(version),
            HeaderFound::Good(header) => {
                let entry = manifest.segments.get(active.index);
                if let Some(entry) = entry.filter(|entry| entry.log != header.log) {
                    return Decision::ForeignLog(entry.name);
                }
            }
            HeaderFound::Bad => {}
        }
    }
    if let Some(segment) = evidence.newer_segment {
        return Decision::Damaged(Damage::ManifestOutdated { segment });
    }
    if manifest.segments.is_empty() {
        return Decision::HalfCreated(manifest);
    }
    if let Some(missing) = evidence.segments.iter().find(|segment| !segment.present) {
        return Decision::Damaged(Damage::SegmentMissing {
            segment: missing.entry.name,
        });
    }
    match evidence.active {
        None => Decision::Damaged(Damage::SuccessorLost),
        Some(active) => match decide_active(manifest, &evidence.segments, active) {
            Ok(recovered) => Decision::Recovered(Box::new(recovered)),
            Err(damage) => Decision::Damaged(damage),
        },
    }
}

/// Rows 7 to 11.
fn decide_active(
    manifest: Manifest,
    segments: &[SegmentEvidence],
    active: ActiveEvidence,
) -> Result<Recovered, Damage> {
    let Some(entry) = manifest.segments.get(active.index).copied() else {
        return Err(Damage::SuccessorLost);
    };
    let segment = entry.name;
    let HeaderFound::Good(header) = active.header else {
        return Err(Damage::Header { segment });
    };
    if header.name != segment {
        return Err(Damage::Header { segment });
    }
    let behind = segments.get(active.index + 1..).unwrap_or_default();
    if let Some(used) = behind.iter().find(|segment| segment.used) {
        return Err(Damage::SuccessorUsed {
            segment: used.entry.name,
        });
    }
    let expected = FRAMES.saturating_add(header.capacity);
    let clean_tail = active
        .slots
        .iter()
        .filter(|slot| slot.clean)
        .map(|slot| slot.tail)
        .max();
    if active.length < expected && clean_tail.is_none_or(|tail| tail > active.length) {
        return Err(Damage::Truncated {
            segment,
            length: active.length,
            expected,
        });
    }
    let watermark = watermark(&active, &segment, manifest.epoch);
    let Scan {
        frames: mut keep,
        position,
        expected: next,
    } = active.second;
    let acknowledged = |offset, first: Lsn| Damage::Acknowledged {
        segment,
        offset,
        first,
        last: watermark,
        missing: without_header(first, watermark, &active.beyond),
    };
    if next <= watermark {
        return Err(acknowledged(position, next));
    }
    let incomplete = incomplete_batch(&keep);
    let cut = keep.split_off(keep.len() - incomplete);
    if let Some(first) = cut.first().filter(|frame| frame.header.lsn <= watermark) {
        return Err(acknowledged(first.offset, first.header.lsn));
    }
    let tail = keep.last().map_or(FRAMES, Found::end);
    let torn = (active.last_nonzero > tail).then(|| {
        let known = || {
            cut.iter()
                .chain(&active.beyond)
                .map(|frame| frame.header.lsn)
        };
        Torn {
            offset: tail,
            end: active.last_nonzero,
            lsns: known().min().zip(known().max()),
            incomplete_batch: incomplete > 0,
        }
    });
    let untouched = active.last_nonzero <= FRAMES && active.slots.is_empty() && keep.is_empty();
    Ok(Recovered {
        finished: segments
            .iter()
            .take(active.index)
            .filter_map(|segment| Some((segment.entry, segment.end?, segment.by_seal)))
            .collect(),
        manifest,
        active: entry,
        header,
        base: active.base,
        watermark,
        keep,
        torn,
        untouched,
    })
}

/// *W*: the highest Lsn that anything readable claims to have been durable.
fn watermark(active: &ActiveEvidence, segment: &SegmentName, epoch: u64) -> Lsn {
    let before = active
        .first
        .frames
        .iter()
        .map(|frame| frame.header.watermark);
    let start = active.first.position;
    let least = active.first.expected;
    let beyond = active
        .beyond
        .iter()
        .filter(|frame| {
            let header = &frame.header;
            let most = least
                .get()
                .saturating_add(frame.offset.saturating_sub(start) / HEADER);
            frame.offset >= start
                && header.epoch <= epoch
                && may_hold(segment, header)
                && header.lsn >= least
                && header.lsn.get() <= most
                && header.watermark < header.lsn
        })
        .map(|frame| frame.header.watermark);
    let slots = active.slots.iter().map(|slot| slot.watermark);
    let seal = active.seal.iter().map(|seal| seal.last);
    before
        .chain(beyond)
        .chain(slots)
        .chain(seal)
        .fold(active.base, Lsn::max)
}

/// How many frames at the end belong to a batch that is not whole.
fn incomplete_batch(frames: &[Found]) -> usize {
    match frames.last() {
        Some(last) if !last.header.ends_batch() => {
            (usize::from(last.header.batch_index) + 1).min(frames.len())
        }
        _ => 0,
    }
}

/// The Lsns from `first` to `last` for which no header was found, as ranges.
fn without_header(first: Lsn, last: Lsn, found: &[Found]) -> Vec<(Lsn, Lsn)> {
    let mut known: Vec<u64> = found.iter().map(|frame| frame.header.lsn.get()).collect();
    known.sort_unstable();
    known.dedup();
    let mut ranges = Vec::new();
    let mut next = first.get();
    for lsn in known {
        if lsn < next {
            continue;
        }
        if lsn > last.get() {
            break;
        }
        if lsn > next {
            ranges.push((Lsn::new(next), Lsn::new(lsn - 1)));
        }
        next = lsn.saturating_add(1);
    }
    if next <= last.get() {
        ranges.push((Lsn::new(next), last));
    }
    ranges
}
