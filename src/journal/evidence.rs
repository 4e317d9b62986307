//! Gathering the evidence for the decision, in the order of `docs/guarantees.md` 2: manifest, seals,
//! slots, frames up to *p*, search from *p* on, then once more the frames that nothing vouched for. A
//! writer that has been overtaken may still finish a group, a roll or a close meanwhile; this order
//! keeps what is read consistent.

use std::collections::HashSet;

use super::Lsn;
use super::bytes::take_u64;
use super::decision::{ActiveEvidence, Evidence, ManifestEvidence, SegmentEvidence};
use super::directory::{Directory, OpenFile};
use super::error::{DiskError, Operation};
use super::footer;
use super::frame::{HEADER, LogId, Place};
use super::manifest::{End, Manifest, ManifestFound, SegmentEntry};
use super::names::{Name, SegmentName};
use super::progress::Phase;
use super::scan::{At, Window, last_nonzero, look, scan, scan_again, search_headers};
use super::segment::{
    BLOCK, CLAIM_LEN, FRAMES, HeaderFound, MAX_CAPACITY, SEAL, SLOTS, Seal, Slot, StaticHeader,
};
use super::{FENCE_LEN, FrameKind};
use crate::vfs::Access;

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What rows 1 to 4 need: of the active segment only its header.
    Names,
    /// Everything.
    Frames,
}

/// Reads the highest manifest and gathers all that hangs on it.
pub(crate) fn gather(directory: &Directory, depth: Depth) -> Result<Evidence, DiskError> {
    match directory.highest_manifest()? {
        Some((_, ManifestFound::Good(manifest))) => gather_under(directory, &manifest, depth),
        Some((_, ManifestFound::Newer(version))) => {
            Ok(Evidence::of_manifest(ManifestEvidence::Newer(version)))
        }
        Some((_, ManifestFound::Bad)) => Ok(Evidence::of_manifest(ManifestEvidence::Bad)),
        None => Ok(Evidence::of_manifest(ManifestEvidence::Absent {
            frames: any_frame(directory)?,
        })),
    }
}

/// Gathers the evidence under a given manifest: an opener's own.
pub(crate) fn gather_under(
    directory: &Directory,
    manifest: &Manifest,
    depth: Depth,
) -> Result<Evidence, DiskError> {
    let mut evidence = Evidence::of_manifest(ManifestEvidence::Good(manifest.clone()));
    evidence.newer_segment = newer_segment(directory, manifest)?;
    let mut base = Lsn::ZERO;
    let mut active = None;
    for (index, entry) in manifest.segments.iter().enumerate() {
        let mut segment = SegmentEvidence {
            entry: *entry,
            present: directory.exists(&entry.name.to_string())?,
            end: entry.end,
            by_seal: false,
            used: false,
        };
        if active.is_none() && segment.end.is_none() {
            let file = directory.open_segment(&entry.name, Access::Read)?;
            segment.present = file.is_some();
            let seal = file.map(|file| read_seal(&file, &entry.place()));
            segment.end = seal.transpose()?.flatten().map(|seal| End {
                offset: seal.end,
                last: seal.last,
            });
            segment.by_seal = segment.end.is_some();
        }
        if active.is_none() {
            match segment.end {
                Some(end) => base = end.last,
                None => active = Some((index, *entry, base)),
            }
        }
        evidence.segments.push(segment);
    }
    if let Some((index, entry, base)) = active {
        if let Some(file) = directory.open_segment(&entry.name, Access::Read)? {
            evidence.active = Some(gather_active(&file, &entry, index, base, depth)?);
        }
        // Read after the active segment: a roll that is under way would look like row 7 otherwise.
        for segment in evidence.segments.iter_mut().skip(index + 1) {
            if let Some(file) = directory.open_segment(&segment.entry.name, Access::Read)? {
                segment.used = first_block_used(&file)?;
            }
        }
    }
    Ok(evidence)
}

impl Evidence {
    fn of_manifest(manifest: ManifestEvidence) -> Evidence {
        Evidence {
            manifest,
            newer_segment: None,
            segments: Vec::new(),
            active: None,
        }
    }
}

fn gather_active(
    file: &OpenFile,
    entry: &SegmentEntry,
    index: usize,
    base: Lsn,
    depth: Depth,
) -> Result<ActiveEvidence, DiskError> {
    let place = entry.place();
    let length = file.len()?;
    let header = read_static_header(file)?;
    // Frames end at the capacity; behind it there is nothing of ours while the segment is active.
    let limit = match (depth, header) {
        (Depth::Names, _) => 0,
        (_, HeaderFound::Good(header)) => length.min(FRAMES.saturating_add(header.capacity)),
        _ => length,
    };
    if limit > 0 {
        file.watch.begin(Phase::Recovery, limit);
    }
    let slots = read_slots(file, &place)?;
    let seal = read_seal(file, &place)?;
    let mut window = Window::new(file.clone());
    let first = scan(&mut window, &place, FRAMES, base, limit)?;
    let beyond = search_headers(&mut window, &place, first.position, limit)?;
    window.forget();
    let second = scan_again(&mut window, &place, FRAMES, base, &first, limit)?;
    // A footer may reach beyond the capacity; nothing of ours stands further on.
    let beyond_capacity = limit.saturating_add(u64::from(footer::MAX_LEN));
    let until = match depth {
        Depth::Names => 0,
        Depth::Frames => length.min(beyond_capacity),
    };
    let last_nonzero = last_nonzero(&mut window, second.position, until)?;
    Ok(ActiveEvidence {
        index,
        header,
        length,
        base,
        slots,
        seal,
        first,
        beyond,
        second,
        last_nonzero,
    })
}

pub(crate) fn read_static_header(file: &OpenFile) -> Result<HeaderFound, DiskError> {
    let mut block = vec![0; BLOCK as usize];
    let read = file.read_full(&mut block, 0)?;
    Ok(StaticHeader::decode(block.get(..read).unwrap_or_default()))
}

pub(crate) fn read_claim(file: &OpenFile, offset: u64) -> Result<[u8; CLAIM_LEN], DiskError> {
    let mut claim = [0; CLAIM_LEN];
    file.read_full(&mut claim, offset)?;
    Ok(claim)
}

pub(crate) fn read_seal(file: &OpenFile, place: &Place) -> Result<Option<Seal>, DiskError> {
    Ok(Seal::decode(&read_claim(file, SEAL)?, place))
}

pub(crate) fn read_slot(
    file: &OpenFile,
    place: &Place,
    offset: u64,
) -> Result<Option<Slot>, DiskError> {
    Ok(Slot::decode(&read_claim(file, offset)?, place, offset))
}

/// The slots that are valid.
pub(crate) fn read_slots(file: &OpenFile, place: &Place) -> Result<Vec<Slot>, DiskError> {
    let mut slots = Vec::new();
    for offset in SLOTS {
        slots.extend(read_slot(file, place, offset)?);
    }
    Ok(slots)
}

fn first_block_used(file: &OpenFile) -> Result<bool, DiskError> {
    let mut block = vec![0; BLOCK as usize];
    file.read_full(&mut block, FRAMES)?;
    Ok(block.iter().any(|byte| *byte != 0))
}

/// Row 4: a segment file with an epoch above the manifest's, or an unlisted one of the same epoch
/// that holds a fence of it, shows that a newer manifest is lost. Names suffice; only unlisted
/// files of the same epoch are read.
fn newer_segment(
    directory: &Directory,
    manifest: &Manifest,
) -> Result<Option<SegmentName>, DiskError> {
    let listed: HashSet<SegmentName> = manifest.segments.iter().map(|entry| entry.name).collect();
    for (_, name) in directory.names()? {
        let Name::Segment(segment) = name else {
            continue;
        };
        if segment.epoch > manifest.epoch {
            return Ok(Some(segment));
        }
        let listed = listed.contains(&segment);
        if segment.epoch == manifest.epoch
            && !listed
            && holds_fence(directory, &segment, manifest.log)?
        {
            return Ok(Some(segment));
        }
    }
    Ok(None)
}

/// Whether a file holds the fence of the epoch that its name bears. Copied frames are stamped with
/// that epoch too, older fences among them: the epoch in the fence's own payload tells.
pub(crate) fn holds_fence(
    directory: &Directory,
    segment: &SegmentName,
    log: LogId,
) -> Result<bool, DiskError> {
    let Some(file) = directory.open_segment(segment, Access::Read)? else {
        return Ok(false);
    };
    let place = Place {
        log,
        segment: segment.number,
    };
    let limit = file.len()?.min(FRAMES.saturating_add(MAX_CAPACITY));
    let mut window = Window::new(file);
    for found in search_headers(&mut window, &place, FRAMES, limit)? {
        let fence = found.header.kind == FrameKind::Fence
            && found.header.epoch == segment.epoch
            && found.header.payload_len == FENCE_LEN;
        if !fence {
            continue;
        }
        if let At::Frame(_) = look(&mut window, &place, found.offset, limit)? {
            let payload = window.get(found.offset + HEADER, 8)?;
            if take_u64(payload, &mut 0) == Some(segment.epoch) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether any segment file holds a frame, found without a manifest: each file's own static header
/// names its log.
fn any_frame(directory: &Directory) -> Result<bool, DiskError> {
    for (_, name) in directory.names()? {
        let Name::Segment(segment) = name else {
            continue;
        };
        let Some(file) = directory.open_segment(&segment, Access::Read)? else {
            continue;
        };
        let header = read_static_header(&file)?;
        let limit = file.len()?.min(FRAMES.saturating_add(MAX_CAPACITY));
        let mut window = Window::new(file.clone());
        let frames = match header {
            HeaderFound::Good(header) => {
                let place = Place {
                    log: header.log,
                    segment: segment.number,
                };
                match look(&mut window, &place, FRAMES, limit)? {
                    At::Nothing => !search_headers(&mut window, &place, FRAMES, limit)?.is_empty(),
                    _ => true,
                }
            }
            // Without its header a file's frames cannot be checked; anything in it may be one.
            HeaderFound::Newer(_) => true,
            HeaderFound::Bad => last_nonzero(&mut window, FRAMES, limit)? > FRAMES,
        };
        if frames {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The error of a listed file that cannot be opened any more.
pub(crate) fn absent(directory: &Directory, name: &SegmentName) -> DiskError {
    DiskError::new(
        Operation::Open,
        &directory.file_path(&name.to_string()),
        &std::io::ErrorKind::NotFound.into(),
    )
}
