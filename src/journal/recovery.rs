//! Opening for writing: epoch, decision, action (`recovery.md` 3).
//!
//! The order is the promise. The right of predecessors ends before the scan (W12); what is kept
//! goes to a fresh file, synced, before it is named (W9); the manifest that names it is the commit
//! point: a crash before it leaves the old image, after it the new one; and nothing is served
//! before the fence group is durable.

use std::sync::Arc;

use super::create::{self, Copy, MakeError};
use super::decision::{Decision, Recovered, decide};
use super::directory::{Directory, OpenFile, Ownership, PublishError};
use super::error::{Damage, DiskError, OpenError, Operation};
use super::evidence::{absent, gather, gather_under, read_static_header};
use super::footer::{self, Footer};
use super::frame::{Header, LogId};
use super::manifest::{End, Manifest, ManifestFound, SegmentEntry};
use super::names::{self, QUARANTINE, SegmentName};
use super::report::{Cut, Quarantine, RecoveryReport};
use super::scan::{Found, Window, scan};
use super::segment::{FRAMES, HeaderFound, StaticHeader, VERSION};
use super::spans::Span;
use super::writer::{Tail, Tails};
use super::{FrameKind, JournalOptions, Lsn, Owner, Seq};
use crate::identity::SessionId;
use crate::vfs::{Access, Lock, Vfs};

/// How often evidence of damage is gathered again before it stands: an overtaken writer may still
/// finish one group, a roll or a clean close (`recovery.md` 2).
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
    path: &std::path::Path,
    owner: Owner,
    intent: Intent,
    options: &JournalOptions,
) -> Result<Settled, OpenError> {
    let directory = Directory::open(vfs, path).map_err(|error| match error.kind {
        std::io::ErrorKind::NotFound => OpenError::NotFound {
            path: path.to_owned(),
        },
        _ => OpenError::Disk(error),
    })?;
    let lock = take_lock(&directory)?;
    for _ in 0..ATTEMPTS {
        match own(&directory, owner, intent, options)? {
            Some(ownership) => return act(directory, lock, ownership, options),
            // Somebody published meanwhile: start again at the manifests (W6).
            None => continue,
        }
    }
    Err(overtaken(&directory))
}

fn take_lock(directory: &Directory) -> Result<Box<dyn Lock>, OpenError> {
    let path = directory.file_path(names::LOCK);
    let lock = super::directory::uninterrupted(|| directory.vfs().try_lock(&path))
        .map_err(|error| disk(DiskError::new(Operation::Lock, &path, &error)))?;
    lock.ok_or(OpenError::Locked { path })
}

fn overtaken(directory: &Directory) -> OpenError {
    OpenError::Overtaken {
        path: directory.path().to_owned(),
    }
}

fn disk(error: DiskError) -> OpenError {
    if error.is_full() {
        OpenError::StorageFull(error)
    } else {
        OpenError::Disk(error)
    }
}

/// Publishes; `None` if another process was faster.
fn publish(directory: &Directory, manifest: Manifest) -> Result<Option<Ownership>, OpenError> {
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
    let manifest = match read_manifest(directory)? {
        Some((manifest, empty)) => {
            check_owner(directory, owner, &manifest)?;
            if intent == Intent::Create && !empty {
                return Err(OpenError::AlreadyExists {
                    path: directory.path().to_owned(),
                });
            }
            Manifest {
                number: manifest.number + 1,
                epoch: manifest.epoch + 1,
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

/// The highest manifest by rows 1 to 4, `None` by row 3, and whether the journal holds no record:
/// its creation was cut off then.
fn read_manifest(directory: &Directory) -> Result<Option<(Manifest, bool)>, OpenError> {
    let mut damage = Damage::ManifestLost;
    for _ in 0..ATTEMPTS {
        match decide(gather(directory).map_err(OpenError::Disk)?) {
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

fn damaged(directory: &Directory, damage: Damage) -> OpenError {
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
        let evidence = gather_under(&directory, &ownership.manifest).map_err(OpenError::Disk)?;
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
            let recovered = take_sealed(&directory, recovered)?;
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
    let entry = SegmentEntry {
        name: header.name,
        end: None,
        log: manifest.log,
        session: SessionId::nil(),
    };
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

/// The action of rows 10 and 11: what is kept goes to a fresh file.
struct Action<'a> {
    directory: Directory,
    lock: Box<dyn Lock>,
    ownership: Ownership,
    options: &'a JournalOptions,
}

impl Action<'_> {
    fn make_error(&self, error: MakeError, name: &SegmentName) -> OpenError {
        match error {
            MakeError::Sync(error) => OpenError::Sync(error),
            other => disk(other.disk(&self.directory.file_path(&name.to_string()))),
        }
    }

    fn carry_out(self, recovered: Recovered) -> Result<Settled, OpenError> {
        let old = self
            .directory
            .open_segment(&recovered.active.name, Access::Read)
            .and_then(|file| file.ok_or_else(|| absent(&self.directory, &recovered.active.name)))
            .map_err(OpenError::Disk)?;
        let mut entries: Vec<SegmentEntry> = Vec::new();
        let mut spans = Vec::new();
        let mut base = Lsn::ZERO;
        for (entry, end, _) in &recovered.finished {
            let entry = SegmentEntry {
                end: Some(*end),
                ..*entry
            };
            entries.push(entry);
            spans.push(Span {
                entry,
                base,
                end: end.offset,
                last: end.last,
            });
            base = end.last;
        }
        let used = recovered.tail().saturating_sub(FRAMES);
        let (copies, header, first_base) = if used <= self.options.supersede_limit {
            self.supersede(&recovered)
        } else {
            let (stay, copies, header) = self.close(&recovered);
            let entry = SegmentEntry {
                end: Some(stay),
                ..recovered.active
            };
            entries.push(entry);
            spans.push(Span {
                entry,
                base: recovered.base,
                end: stay.offset,
                last: stay.last,
            });
            self.write_footer(&recovered, &entry, stay)?;
            (copies, header, stay.last)
        };
        let (file, placed) =
            create::segment_of(&self.directory, &header, recovered.watermark, &old, &copies)
                .map_err(|error| self.make_error(error, &header.name))?;
        let quarantine = self.quarantine(&recovered)?;
        let entry = SegmentEntry {
            name: header.name,
            end: None,
            log: header.log,
            session: SessionId::nil(),
        };
        entries.push(entry);
        spans.push(Span {
            entry,
            base: first_base,
            end: placed.last().map_or(FRAMES, Found::end),
            last: recovered.last(),
        });
        let report = self.report(&recovered, quarantine);
        self.finish(entries, spans, file, header, &placed, report)
    }

    /// Same number, next generation, holding all of *keep* at the same offsets, stamped anew with
    /// the old watermarks.
    fn supersede(&self, recovered: &Recovered) -> (Vec<Copy>, StaticHeader, Lsn) {
        let epoch = self.ownership.manifest.epoch;
        let header = StaticHeader {
            log: recovered.manifest.log,
            name: SegmentName {
                number: recovered.active.name.number,
                generation: recovered.active.name.generation + 1,
                epoch,
            },
            capacity: recovered.header.capacity,
        };
        let copies = recovered
            .keep
            .iter()
            .map(|from| Copy {
                from: *from,
                header: Header {
                    epoch,
                    ..from.header
                },
            })
            .collect();
        (copies, header, recovered.base)
    }

    /// The manifest ends the old segment before the group that holds Lsn *W*; the new file begins
    /// with this group and goes on with all above it, their watermark being the last Lsn that stays
    /// behind.
    fn close(&self, recovered: &Recovered) -> (End, Vec<Copy>, StaticHeader) {
        let epoch = self.ownership.manifest.epoch;
        let watermark = recovered.watermark;
        let group = recovered
            .keep
            .iter()
            .find(|frame| frame.header.lsn == watermark)
            .map(|frame| frame.header.watermark);
        let limit = match group {
            Some(group) => group,
            None => watermark,
        };
        let split = recovered
            .keep
            .iter()
            .position(|frame| frame.header.lsn > limit)
            .unwrap_or(recovered.keep.len());
        let (stay, go) = recovered.keep.split_at(split);
        let end = End {
            offset: stay.last().map_or(FRAMES, Found::end),
            last: stay.last().map_or(recovered.base, |frame| frame.header.lsn),
        };
        let needed: u64 = go.iter().map(|frame| frame.header.frame_len()).sum();
        let highest = recovered
            .manifest
            .segments
            .iter()
            .map(|entry| entry.name.number)
            .max()
            .unwrap_or(0);
        let header = StaticHeader {
            log: recovered.manifest.log,
            name: SegmentName {
                number: highest + 1,
                generation: 0,
                epoch,
            },
            capacity: self
                .options
                .capacity_after(recovered.header.capacity, needed),
        };
        let copies = go
            .iter()
            .map(|from| Copy {
                from: *from,
                header: Header {
                    epoch,
                    watermark: end.last,
                    ..from.header
                },
            })
            .collect();
        (end, copies, header)
    }

    /// The footer of a segment that recovery closed is a file of its own beside it. It can be
    /// rebuilt, so a left-over of an opening that was cut off is replaced.
    fn write_footer(
        &self,
        recovered: &Recovered,
        entry: &SegmentEntry,
        end: End,
    ) -> Result<(), OpenError> {
        let stay: Vec<Found> = recovered
            .keep
            .iter()
            .filter(|frame| frame.header.lsn <= end.last)
            .copied()
            .collect();
        let footer = Footer::of(recovered.base, &stay);
        let name = entry.name.footer();
        self.directory.remove(&name).map_err(disk)?;
        create::small_file(&self.directory, &name, &footer.encode(&entry.place()))
            .map_err(|error| self.make_error(error, &entry.name))
    }

    /// Keeps the old file under a second name if anything in it was cut.
    fn quarantine(&self, recovered: &Recovered) -> Result<Option<Quarantine>, OpenError> {
        if recovered.torn.is_none() {
            return Ok(None);
        }
        let vfs = self.directory.vfs();
        let folder = self.directory.file_path(QUARANTINE);
        let created = super::directory::uninterrupted(|| vfs.create_dir(&folder));
        if let Err(error) = created {
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                return Err(disk(DiskError::new(Operation::Create, &folder, &error)));
            }
        }
        let handle = Directory::open(vfs.clone(), &folder).map_err(OpenError::Disk)?;
        let kept = handle.names().map_err(OpenError::Disk)?.len() as u64;
        let name = recovered.active.name.to_string();
        let path = folder.join(&name);
        if kept >= u64::from(self.options.quarantine_files) {
            return Ok(Some(Quarantine::Full { folder }));
        }
        match self.directory.link(&name, &format!("{QUARANTINE}/{name}")) {
            Ok(()) => {}
            // An opening that was cut off has linked it already.
            Err(error) if error.kind == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(disk(error)),
        }
        handle.sync().map_err(OpenError::Sync)?;
        Ok(Some(Quarantine::Kept { path }))
    }

    fn report(&self, recovered: &Recovered, quarantine: Option<Quarantine>) -> RecoveryReport {
        RecoveryReport {
            epoch: self.ownership.manifest.epoch,
            watermark: recovered.watermark,
            last: recovered.last(),
            cut: recovered.torn.as_ref().map(|torn| Cut {
                path: self.directory.file_path(&recovered.active.name.to_string()),
                offset: torn.offset,
                bytes: torn.end - torn.offset,
                lsns: torn.lsns,
                incomplete_batch: torn.incomplete_batch,
                quarantine: quarantine.unwrap_or(Quarantine::NotNeeded),
            }),
        }
    }

    /// Directory sync, the next manifest (the commit point), the sweep.
    fn finish(
        self,
        entries: Vec<SegmentEntry>,
        spans: Vec<Span>,
        file: OpenFile,
        header: StaticHeader,
        placed: &[Found],
        report: RecoveryReport,
    ) -> Result<Settled, OpenError> {
        self.directory.sync().map_err(OpenError::Sync)?;
        let manifest = Manifest {
            number: self.ownership.manifest.number + 1,
            segments: entries,
            ..self.ownership.manifest.clone()
        };
        let owner = (!manifest.shared).then_some(manifest.owner);
        let ownership =
            publish(&self.directory, manifest)?.ok_or_else(|| overtaken(&self.directory))?;
        ownership.remove_older(&self.directory).map_err(disk)?;
        ownership.sweep(&self.directory).map_err(disk)?;
        let base = spans.last().map_or(Lsn::ZERO, |span| span.base);
        let tails = tails(&self.directory, &spans, placed, owner)?;
        Ok(Settled {
            directory: self.directory,
            lock: self.lock,
            ownership,
            file,
            header,
            footer: Footer::of(base, placed),
            count: placed.len() as u64,
            spans,
            tails,
            report,
        })
    }
}

/// The last record of each session: from the active frames, then from the footers of the finished
/// segments, newest first. A journal of one session stops at the first that names it.
fn tails(
    directory: &Directory,
    spans: &[Span],
    active: &[Found],
    owner: Option<SessionId>,
) -> Result<Tails, OpenError> {
    let mut tails = Tails::new();
    for frame in active {
        if frame.header.kind == FrameKind::Record {
            tails.insert(
                frame.header.session,
                Tail {
                    seq: frame.header.seq,
                    lsn: frame.header.lsn,
                },
            );
        }
    }
    let finished = spans.split_last().map_or(&[][..], |(_, rest)| rest);
    for span in finished.iter().rev() {
        if owner.is_some_and(|owner| tails.contains_key(&owner)) {
            break;
        }
        let end = End {
            offset: span.end,
            last: span.last,
        };
        let footer =
            footer::load(directory, &span.entry, end, span.base).map_err(OpenError::Disk)?;
        let footer = match footer {
            Some(footer) => footer,
            None => {
                let file = directory
                    .open_segment(&span.entry.name, Access::Read)
                    .and_then(|file| file.ok_or_else(|| absent(directory, &span.entry.name)))
                    .map_err(OpenError::Disk)?;
                let frames = scan_finished(directory, &file, &span.entry, span.base, end)?;
                Footer::of(span.base, &frames)
            }
        };
        for (session, range) in footer.sessions {
            tails.entry(session).or_insert(Tail {
                seq: range.last_seq,
                lsn: range.last,
            });
        }
    }
    debug_assert!(tails.values().all(|tail| tail.seq > Seq::ZERO));
    Ok(tails)
}
