//! Opening for writing: lock, epoch, decision, action (`docs/guarantees.md` 2 and 3).
//!
//! The order is the promise. The right of predecessors ends before the scan (W12); what is kept
//! goes to a fresh file, synced, before it is named (W9); the manifest that names it is the commit
//! point: a crash before it leaves the old image, after it the new one; and nothing is served
//! before the fence group is durable.

use std::path::Path;
use std::sync::Arc;

use super::action::Action;
use super::create;
use super::decision::{Decision, Recovered, decide};
use super::directory::{Directory, OpenFile, Ownership, PublishError};
use super::error::{Damage, DiskError, OpenError, Operation};
use super::evidence::{Depth, absent, gather, gather_under, read_static_header};
use super::footer::Footer;
use super::frame::LogId;
use super::holder;
use super::manifest::{End, Manifest, ManifestFound, SegmentEntry};
use super::names::{self, SegmentName};
use super::progress::Watch;
use super::report::RecoveryReport;
use super::scan::{Found, Window, scan};
use super::segment::{FRAMES, HeaderFound, StaticHeader, VERSION};
use super::spans::Span;
use super::tails::Tails;
use super::{FrameKind, JournalOptions, Lsn, Owner};
use crate::vfs::{Access, Lock, Vfs};

/// How often evidence of damage is gathered again before it stands: an overtaken writer may still
/// finish one group, a roll or a clean close (`docs/guarantees.md` 2).
const ATTEMPTS: usize = 6;

/// A journal whose old contents are settled and whose fence is not written yet.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) directory: Directory,
    pub(crate) lock: Box<dyn Lock>,
    pub(crate) ownership: Ownership,
    pub(crate) spans: Vec<Span>,
    /// The file that takes the next group.
    pub(crate) file: OpenFile,
    pub(crate) header: StaticHeader,
    /// The frames in it.
    pub(crate) footer: Footer,
    pub(crate) count: u64,
    pub(crate) tails: Tails,
    pub(crate) report: RecoveryReport,
}

/// What is expected of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// A new journal; an error if there is one.
    Create,
    /// An existing one; an error if there is none.
    Open,
}

pub(crate) fn settle(
    vfs: Arc<dyn Vfs>,
    path: &Path,
    owner: Owner,
    intent: Intent,
    options: &JournalOptions,
    watch: &Watch,
) -> Result<Settled, OpenError> {
    let settled = settle_watched(vfs, path, owner, intent, options, watch);
    watch.bind(false);
    watch.outcome(path, settled)
}

fn settle_watched(
    vfs: Arc<dyn Vfs>,
    path: &Path,
    owner: Owner,
    intent: Intent,
    options: &JournalOptions,
    watch: &Watch,
) -> Result<Settled, OpenError> {
    let directory = Directory::open(vfs, path).map_err(|error| match error.kind {
        std::io::ErrorKind::NotFound => OpenError::NotFound {
            path: path.to_owned(),
        },
        _ => OpenError::Disk(error),
    })?;
    let directory = directory.watched(watch.clone());
    let lock = lock(&directory)?;
    for _ in 0..ATTEMPTS {
        match own(&directory, owner, intent, options)? {
            Some(ownership) => return act(directory, lock, ownership, options),
            // Somebody published meanwhile: start again at the manifests (W6).
            None => continue,
        }
    }
    Err(overtaken(&directory))
}

/// Takes the lock of a journal, whatever its files say.
pub(crate) fn take_lock(vfs: &Arc<dyn Vfs>, path: &Path) -> Result<Box<dyn Lock>, OpenError> {
    let directory = Directory::open_to_read(vfs.clone(), path).map_err(disk)?;
    lock(&directory).map_err(OpenError::of_handles)
}

fn lock(directory: &Directory) -> Result<Box<dyn Lock>, OpenError> {
    let path = directory.file_path(names::LOCK);
    let lock = super::directory::uninterrupted(|| directory.vfs().try_lock(&path))
        .map_err(|error| disk(DiskError::new(Operation::Lock, &path, &error)))?;
    let lock = lock.ok_or_else(|| holder::locked(directory))?;
    holder::announce(directory);
    Ok(lock)
}

pub(super) fn overtaken(directory: &Directory) -> OpenError {
    OpenError::Overtaken {
        path: directory.path().to_owned(),
    }
}

pub(super) fn disk(error: DiskError) -> OpenError {
    if error.is_full() {
        OpenError::StorageFull(error)
    } else {
        OpenError::Disk(error)
    }
}

/// Publishes; `None` if another process was faster.
pub(super) fn publish(
    directory: &Directory,
    manifest: Manifest,
) -> Result<Option<Ownership>, OpenError> {
    match Ownership::publish(directory, manifest, random_word()?) {
        Ok(ownership) => Ok(Some(ownership)),
        Err(PublishError::Overtaken) => Ok(None),
        Err(PublishError::Sync(error)) => Err(OpenError::Sync(error)),
        Err(PublishError::Disk(error)) => Err(disk(error)),
    }
}

pub(crate) fn random_word() -> Result<u64, OpenError> {
    let mut word = [0; 8];
    getrandom::fill(&mut word).map_err(|_| OpenError::NoRandomness)?;
    Ok(u64::from_le_bytes(word))
}

/// Rows 1 to 4 on the manifest, then the epoch of this opening, and the end of the right of its
/// predecessors (W12). `None`: overtaken, start again.
fn own(
    directory: &Directory,
    owner: Owner,
    intent: Intent,
    options: &JournalOptions,
) -> Result<Option<Ownership>, OpenError> {
    let manifest = match read_manifest(directory, intent)? {
        Some((manifest, empty)) => {
            check_owner(directory, owner, &manifest)?;
            if intent == Intent::Create && !empty {
                return Err(OpenError::AlreadyExists {
                    path: directory.path().to_owned(),
                });
            }
            Manifest {
                number: manifest.number.saturating_add(1),
                epoch: manifest.epoch.saturating_add(1),
                ..manifest
            }
        }
        None if intent == Intent::Open => {
            return Err(OpenError::NotFound {
                path: directory.path().to_owned(),
            });
        }
        None => {
            let mut log = [0; 16];
            getrandom::fill(&mut log).map_err(|_| OpenError::NoRandomness)?;
            Manifest {
                log: LogId(log),
                owner: owner.session(),
                shared: owner == Owner::Shared,
                number: 1,
                epoch: 1,
                max_payload: options.max_payload,
                segments: Vec::new(),
            }
        }
    };
    let Some(ownership) = publish(directory, manifest)? else {
        return Ok(None);
    };
    ownership.remove_older(directory).map_err(disk)?;
    directory.sync().map_err(OpenError::Sync)?;
    Ok(Some(ownership))
}

fn check_owner(directory: &Directory, owner: Owner, manifest: &Manifest) -> Result<(), OpenError> {
    let expected = owner.session();
    if manifest.owner == expected && manifest.shared == (owner == Owner::Shared) {
        return Ok(());
    }
    Err(OpenError::WrongOwner {
        path: directory.path().to_owned(),
        expected,
        found: manifest.owner,
    })
}

/// The highest manifest by rows 1 to 4, `None` by row 3, and, for who wants to create a journal,
/// whether this one holds no record: its creation was cut off then.
fn read_manifest(
    directory: &Directory,
    intent: Intent,
) -> Result<Option<(Manifest, bool)>, OpenError> {
    let depth = match intent {
        Intent::Create => Depth::Frames,
        Intent::Open => Depth::Names,
    };
    let mut damage = Damage::ManifestLost;
    for _ in 0..ATTEMPTS {
        match decide(gather(directory, depth).map_err(OpenError::Disk)?) {
            Decision::New => return Ok(None),
            Decision::Damaged(found @ (Damage::ManifestLost | Damage::ManifestOutdated { .. })) => {
                damage = found;
            }
            Decision::NewerFormat(version) => return Err(newer(directory, version)),
            Decision::ForeignLog(segment) => return Err(foreign(directory, &segment)),
            Decision::HalfCreated(manifest) => return Ok(Some((manifest, true))),
            Decision::Recovered(recovered) => {
                let empty = recovered.finished.is_empty()
                    && recovered
                        .keep
                        .iter()
                        .all(|frame| frame.header.kind == FrameKind::Fence);
                return Ok(Some((recovered.manifest, empty)));
            }
            // The manifest itself is good; the rest is decided under the own epoch.
            Decision::Damaged(_) => {
                if let Some((_, ManifestFound::Good(manifest))) =
                    directory.highest_manifest().map_err(OpenError::Disk)?
                {
                    return Ok(Some((manifest, false)));
                }
            }
        }
    }
    Err(damaged(directory, damage))
}

pub(crate) fn newer(directory: &Directory, version: u32) -> OpenError {
    OpenError::NewerFormat {
        path: directory.path().to_owned(),
        version,
        known: VERSION,
    }
}

pub(crate) fn foreign(directory: &Directory, segment: &SegmentName) -> OpenError {
    OpenError::ForeignLog {
        path: directory.file_path(&segment.to_string()),
    }
}

pub(super) fn damaged(directory: &Directory, damage: Damage) -> OpenError {
    OpenError::Damaged {
        path: directory.path().to_owned(),
        damage,
    }
}

/// Decides under the own epoch manifest, and acts.
fn act(
    directory: Directory,
    lock: Box<dyn Lock>,
    ownership: Ownership,
    options: &JournalOptions,
) -> Result<Settled, OpenError> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let evidence = gather_under(&directory, &ownership.manifest, Depth::Frames)
            .map_err(OpenError::Disk)?;
        match decide(evidence) {
            Decision::Damaged(damage) => last = Some(Decision::Damaged(damage)),
            other => {
                last = Some(other);
                break;
            }
        }
    }
    // Without its right it read what a newer owner is changing: overtaken, not damaged (W12).
    if !ownership.still_holds(&directory).map_err(OpenError::Disk)? {
        return Err(overtaken(&directory));
    }
    let epoch = ownership.manifest.epoch;
    match last {
        Some(Decision::Recovered(recovered)) => {
            let recovered = take_sealed(&directory, *recovered)?;
            directory.watch().bind(true);
            Action {
                directory,
                lock,
                ownership,
                options,
            }
            .carry_out(recovered)
        }
        Some(Decision::HalfCreated(manifest)) => first_segment(
            Action {
                directory,
                lock,
                ownership,
                options,
            },
            &manifest,
        ),
        Some(Decision::Damaged(damage)) => Err(damaged(&directory, damage)),
        Some(Decision::NewerFormat(version)) => Err(newer(&directory, version)),
        Some(Decision::ForeignLog(segment)) => Err(foreign(&directory, &segment)),
        Some(Decision::New) | None => {
            debug_assert!(false, "epoch {epoch} was decided without its manifest");
            Err(overtaken(&directory))
        }
    }
}

/// Row 3: the first segment of a journal, under the epoch of this opening.
fn first_segment(action: Action<'_>, manifest: &Manifest) -> Result<Settled, OpenError> {
    let header = StaticHeader {
        log: manifest.log,
        name: SegmentName {
            number: 1,
            generation: 0,
            epoch: action.ownership.manifest.epoch,
        },
        capacity: action.options.first_capacity,
    };
    let file = create::empty_segment(&action.directory, &header)
        .map_err(|error| action.make_error(error, &header.name))?;
    let entry = SegmentEntry::own(header.name, manifest.log, None);
    let report = RecoveryReport::fresh(action.ownership.manifest.epoch);
    action.finish(
        vec![entry],
        vec![Span::empty(entry, Lsn::ZERO)],
        file,
        header,
        &[],
        report,
    )
}

/// If the active segment is untouched and the one before it is sealed without its end being in the
/// manifest, the action takes that one for the active segment: its frames up to the seal.
fn take_sealed(directory: &Directory, recovered: Recovered) -> Result<Recovered, OpenError> {
    let Some((entry, end, true)) = recovered.finished.last().copied() else {
        return Ok(recovered);
    };
    if !recovered.untouched {
        return Ok(recovered);
    }
    let mut finished = recovered.finished;
    finished.pop();
    let base = finished.last().map_or(Lsn::ZERO, |(_, end, _)| end.last);
    let file = directory
        .open_segment(&entry.name, Access::Read)
        .and_then(|file| file.ok_or_else(|| absent(directory, &entry.name)))
        .map_err(OpenError::Disk)?;
    let header = match read_static_header(&file).map_err(OpenError::Disk)? {
        HeaderFound::Good(header) if header.name == entry.name => header,
        _ => {
            return Err(damaged(
                directory,
                Damage::Header {
                    segment: entry.name,
                },
            ));
        }
    };
    let found = scan_finished(directory, &file, &entry, base, end)?;
    Ok(Recovered {
        finished,
        active: entry,
        header,
        base,
        watermark: end.last,
        keep: found,
        torn: None,
        untouched: false,
        manifest: recovered.manifest,
    })
}

/// The frames of a finished segment, which must be whole (row 6).
pub(crate) fn scan_finished(
    directory: &Directory,
    file: &OpenFile,
    entry: &SegmentEntry,
    base: Lsn,
    end: End,
) -> Result<Vec<Found>, OpenError> {
    let mut window = Window::new(file.clone());
    let found =
        scan(&mut window, &entry.place(), FRAMES, base, end.offset).map_err(OpenError::Disk)?;
    if found.position != end.offset || found.expected != end.last.next() {
        return Err(damaged(
            directory,
            Damage::Sealed {
                segment: entry.name,
                offset: found.position,
                lsn: found.expected,
            },
        ));
    }
    Ok(found.frames)
}
