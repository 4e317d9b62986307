//! Opening for reading: the same decision without the action. It writes nothing, needs no free
//! space and no lock, and opens damaged journals as far as their bytes go (P6, P9).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::decision::{Decision, Evidence, ManifestEvidence, Recovered, decide};
use super::directory::{Directory, OpenFile, uninterrupted};
use super::error::{Damage, DiskError, OpenError, Operation};
use super::evidence::{Depth, gather, read_seal, read_static_header};
use super::footer;
use super::manifest::{End, SegmentEntry};
use super::names::{Name, QUARANTINE, SegmentName};
use super::reader::{Position, Reader, read_at};
use super::recovery::{foreign, newer};
use super::report::{Cut, Quarantine, RecoveryReport};
use super::scan::{Window, search_headers};
use super::segment::{FRAMES, HeaderFound, MAX_CAPACITY};
use super::spans::Span;
use super::{Entry, JournalFollower, Lsn, Owner, ReadError};
use crate::identity::SessionId;
use crate::vfs::{Access, Vfs};

const ATTEMPTS: usize = 6;

/// A journal that is open for reading, as it was when it was opened.
#[derive(Debug, Clone)]
pub struct JournalView {
    directory: Directory,
    spans: Vec<Span>,
    report: RecoveryReport,
    damage: Option<Damage>,
    owner: SessionId,
    /// The active segment. A new owner replaces it by a fresh file and removes its name; what was
    /// in it when the view was opened stays readable here.
    active: Option<OpenFile>,
}

impl JournalView {
    /// Opens for reading.
    ///
    /// # Errors
    /// [`OpenError::NotFound`], [`OpenError::Disk`], [`OpenError::NewerFormat`],
    /// [`OpenError::ForeignLog`]. Damage is not an error here: see [`JournalView::damage`].
    pub fn open(vfs: Arc<dyn Vfs>, path: &Path) -> Result<JournalView, OpenError> {
        let directory = Directory::open_to_read(vfs, path).map_err(|error| match error.kind {
            std::io::ErrorKind::NotFound => OpenError::NotFound {
                path: path.to_owned(),
            },
            _ => OpenError::Disk(error).of_handles(),
        })?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let evidence = gather(&directory, Depth::Frames)
                .map_err(|error| OpenError::Disk(error).of_handles())?;
            let manifest = match &evidence.manifest {
                ManifestEvidence::Good(manifest) => Some(manifest.clone()),
                _ => None,
            };
            let owner = manifest
                .as_ref()
                .map_or(SessionId::nil(), |found| found.owner);
            let kept = evidence.clone();
            return match decide(evidence) {
                Decision::New => Err(OpenError::NotFound {
                    path: path.to_owned(),
                }),
                Decision::NewerFormat(version) => Err(newer(&directory, version)),
                Decision::ForeignLog(segment) => Err(foreign(&directory, &segment)),
                Decision::HalfCreated(manifest) => Ok(JournalView {
                    directory,
                    spans: Vec::new(),
                    report: RecoveryReport::fresh(manifest.epoch),
                    damage: None,
                    owner,
                    active: None,
                }),
                Decision::Recovered(recovered) => {
                    let active = directory
                        .open_segment(&recovered.active.name, Access::Read)
                        .map_err(OpenError::Disk)?;
                    if active.is_none() && attempt < ATTEMPTS {
                        // Replaced since it was read: there is a newer manifest.
                        continue;
                    }
                    let mut view = Self::whole(directory, owner, &recovered);
                    view.active = active;
                    Ok(view)
                }
                Decision::Damaged(_) if attempt < ATTEMPTS => continue,
                Decision::Damaged(damage) => {
                    let (spans, watermark) = salvage(&directory, &kept).map_err(OpenError::Disk)?;
                    let last = spans.last().map_or(Lsn::ZERO, |span| span.last);
                    let mut report = RecoveryReport::fresh(manifest.map_or(0, |found| found.epoch));
                    report.watermark = watermark;
                    report.last = last;
                    Ok(JournalView {
                        directory,
                        spans,
                        report,
                        damage: Some(damage),
                        owner,
                        active: None,
                    })
                }
            };
        }
    }

    fn whole(directory: Directory, owner: SessionId, recovered: &Recovered) -> JournalView {
        let mut spans = Vec::new();
        let mut base = Lsn::ZERO;
        for (entry, end, _) in &recovered.finished {
            spans.push(Span {
                entry: *entry,
                base,
                end: end.offset,
                last: end.last,
            });
            base = end.last;
        }
        spans.push(Span {
            entry: recovered.active,
            base,
            end: recovered.tail(),
            last: recovered.last(),
        });
        let mut report = RecoveryReport::fresh(recovered.manifest.epoch);
        report.watermark = recovered.watermark;
        report.last = recovered.last();
        report.cut = recovered.torn.as_ref().map(|torn| Cut {
            path: directory.file_path(&recovered.active.name.to_string()),
            offset: torn.offset,
            bytes: torn.end - torn.offset,
            lsns: torn.lsns,
            incomplete_batch: torn.incomplete_batch,
            quarantine: Quarantine::NotNeeded,
        });
        JournalView {
            directory,
            spans,
            report,
            damage: None,
            owner,
            active: None,
        }
    }

    /// Whose journal it is, by its manifest; nil if that cannot be read or many share it.
    pub fn owner(&self) -> Owner {
        if self.owner.is_nil() {
            Owner::Shared
        } else {
            Owner::Session(self.owner)
        }
    }

    /// What an opening for writing would find: `watermark` is the proven bound, `last` the present
    /// one, `cut` what would be cut.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Damage to acknowledged data, if there is any: opening for writing is refused then.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Reads from an Lsn on. Entries above the proven bound are marked.
    pub fn read(&self, from: Lsn) -> Reader {
        Reader::new(
            self.directory.clone(),
            self.spans.clone(),
            from,
            self.report.watermark,
        )
        .pinned(self.pinned())
    }

    /// Follows from an Lsn on, while another process writes: what becomes proven, by polling.
    pub fn follow(&self, from: Lsn) -> JournalFollower {
        JournalFollower::new(self.directory.clone(), from)
    }

    /// The first Lsn of the last segment that holds records: reading from here reads the tail only.
    pub fn tail(&self) -> Lsn {
        let used = self.spans.iter().rev().find(|span| span.last > span.base);
        used.map_or(Lsn::ZERO, |span| span.base.next())
    }

    fn pinned(&self) -> Vec<(SegmentName, OpenFile)> {
        let name = self.spans.last().map(|span| span.entry.name);
        name.zip(self.active.clone()).into_iter().collect()
    }

    /// The files in the quarantine folder: what earlier openings cut off torn tails.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn quarantined(&self) -> Result<Vec<PathBuf>, DiskError> {
        let folder = self.directory.file_path(QUARANTINE);
        let listed = uninterrupted(|| self.directory.vfs().list(&folder));
        match listed {
            Ok(entries) => Ok(entries
                .into_iter()
                .map(|entry| folder.join(entry.name))
                .collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(DiskError::new(Operation::List, &folder, &error)),
        }
    }

    /// The carry records of the finished segments that have one, each with the last Lsn that it
    /// speaks of.
    ///
    /// # Errors
    /// If the disk fails; a damaged footer is passed over, since it can be rebuilt.
    pub fn carries(&self) -> Result<Vec<(Lsn, Vec<u8>)>, DiskError> {
        let mut carries = Vec::new();
        for span in &self.spans {
            let end = End {
                offset: span.end,
                last: span.last,
            };
            if let Some(footer) = footer::load(&self.directory, &span.entry, end, span.base)?
                && !footer.carry.is_empty()
            {
                carries.push((footer.last, footer.carry));
            }
        }
        Ok(carries)
    }

    /// Reads the record at a position; `None` if none stands there.
    ///
    /// # Errors
    /// As for [`Reader`].
    pub fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        read_at(
            &self.directory,
            &self.spans,
            &self.pinned(),
            position,
            self.report.watermark,
        )
    }
}

/// What can still be read of a damaged journal: the listed segments that are there, or, without a
/// manifest, the newest generation of each number by the files' own headers. Gives the spans and
/// the highest watermark that anything readable claims.
fn salvage(directory: &Directory, evidence: &Evidence) -> Result<(Vec<Span>, Lsn), DiskError> {
    let entries: Vec<SegmentEntry> = match &evidence.manifest {
        ManifestEvidence::Good(manifest) if evidence.newer_segment.is_none() => {
            manifest.segments.clone()
        }
        _ => by_headers(directory)?,
    };
    let mut spans: Vec<Span> = Vec::new();
    let mut watermark = Lsn::ZERO;
    let mut base = Lsn::ZERO;
    for entry in entries {
        let file = directory.open_segment(&entry.name, Access::Read)?;
        let Some(file) = file else {
            // An absent segment with a known end leaves a range that the reader reports.
            if let Some(end) = entry.end {
                spans.push(Span {
                    entry,
                    base,
                    end: end.offset,
                    last: end.last,
                });
                watermark = watermark.max(end.last);
                base = end.last;
            }
            continue;
        };
        let (span, claim) = salvage_segment(&file, &entry, base)?;
        watermark = watermark.max(claim);
        base = span.last;
        spans.push(span);
    }
    Ok((spans, watermark))
}

fn salvage_segment(
    file: &OpenFile,
    entry: &SegmentEntry,
    base: Lsn,
) -> Result<(Span, Lsn), DiskError> {
    let place = entry.place();
    if let Some(end) = entry.end {
        let span = Span {
            entry: *entry,
            base,
            end: end.offset,
            last: end.last,
        };
        return Ok((span, end.last));
    }
    if let Some(seal) = read_seal(file, &place)? {
        let span = Span {
            entry: *entry,
            base,
            end: seal.end,
            last: seal.last,
        };
        return Ok((span, seal.last));
    }
    let limit = file.len()?.min(FRAMES.saturating_add(MAX_CAPACITY));
    let mut window = Window::new(file.clone());
    let mut span = Span::empty(*entry, base);
    let mut claim = base;
    let mut first = None;
    for found in search_headers(&mut window, &place, FRAMES, limit)? {
        // Payloads are checked when they are read: a header says that the record was there.
        let header = found.header;
        claim = claim.max(header.watermark);
        if header.lsn > span.last {
            first.get_or_insert(header.lsn);
            span.end = found.end().min(limit);
            span.last = Lsn::new(header.next_lsn().get() - 1);
        }
    }
    // With the segments before it lost, the first frame says where the segment begins.
    if base == Lsn::ZERO {
        span.base = first.map_or(base, |first| Lsn::new(first.get() - 1));
    }
    // What is missing between the last readable frame and the claims is reported by the damage.
    Ok((span, claim))
}

fn by_headers(directory: &Directory) -> Result<Vec<SegmentEntry>, DiskError> {
    let mut newest: std::collections::BTreeMap<u64, SegmentEntry> = Default::default();
    for (_, name) in directory.names()? {
        let Name::Segment(name) = name else { continue };
        let Some(file) = directory.open_segment(&name, Access::Read)? else {
            continue;
        };
        let HeaderFound::Good(header) = read_static_header(&file)? else {
            continue;
        };
        let rank = |name: &SegmentName| (name.generation, name.epoch);
        let entry = SegmentEntry {
            name,
            end: None,
            log: header.log,
            session: SessionId::nil(),
        };
        newest
            .entry(name.number)
            .and_modify(|old| {
                if rank(&name) > rank(&old.name) {
                    *old = entry;
                }
            })
            .or_insert(entry);
    }
    Ok(newest.into_values().collect())
}
