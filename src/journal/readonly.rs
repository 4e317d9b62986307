//! Opening for reading: the same decision without the action. It writes nothing, needs no free
//! space and no lock, and opens damaged journals as far as their bytes go (P6, P9).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::carried::{self, Carried};
use super::decision::{Decision, ManifestEvidence, Recovered, decide};
use super::directory::{Directory, OpenFile, uninterrupted};
use super::error::{Damage, DiskError, OpenError, Operation};
use super::evidence::{Depth, gather};
use super::footer::{self, Footer};
use super::manifest::End;
use super::names::{QUARANTINE, SegmentName};
use super::parts::{self, Heads};
use super::progress::{Progress, Watch};
use super::reader::{Position, Reader, read_at};
use super::recovery::{foreign, newer};
use super::report::{Cut, Quarantine, RecoveryReport};
use super::salvage::salvage;
use super::session_log::SessionLog;
use super::spans::{Span, Spans};
use super::{Entry, FrameKind, JournalFollower, Lsn, Owner, ReadError, Seq};
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
    /// The segments whose end no manifest names. A new owner replaces them by fresh files and removes
    /// their names; what was in them when the view was opened stays readable here.
    pinned: Vec<(SegmentName, OpenFile)>,
    /// In a journal that many share: what the active segment holds of each.
    active: Option<Arc<Footer>>,
    heads: Heads,
}

/// Rows of footers that a view keeps, to list the sessions of a journal that many share.
const ROWS: usize = 1 << 18;

impl JournalView {
    /// Opens for reading.
    ///
    /// # Errors
    /// [`OpenError::NotFound`], [`OpenError::Disk`], [`OpenError::NewerFormat`],
    /// [`OpenError::ForeignLog`]. Damage is not an error here: see [`JournalView::damage`].
    pub fn open(vfs: Arc<dyn Vfs>, path: &Path) -> Result<JournalView, OpenError> {
        JournalView::open_watched(vfs, path, &Watch::default())
    }

    /// The same, and tells how far it has come, at most about every 256 KiB; a `Break` ends it.
    ///
    /// # Errors
    /// As for [`JournalView::open`], and [`OpenError::Aborted`].
    pub fn open_with_progress(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<JournalView, OpenError> {
        let watch = Watch::new(progress);
        let opened = JournalView::open_watched(vfs, path, &watch);
        watch.dismiss();
        opened
    }

    pub(crate) fn open_watched(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        watch: &Watch,
    ) -> Result<JournalView, OpenError> {
        let opened = JournalView::decided(vfs, path, watch);
        watch.outcome(path, opened)
    }

    /// The records are read next, from this Lsn on: `watch` counts them.
    pub(crate) fn replay_begins(&self, from: Lsn, watch: &Watch) {
        watch.begin_replay(&self.spans, from);
    }

    /// The files of its segments that it holds open.
    pub(crate) fn pinned(&self) -> &[(SegmentName, OpenFile)] {
        &self.pinned
    }

    /// Its directory, and the segments that it reads.
    pub(crate) fn parts(&self) -> (&Directory, &[Span]) {
        (&self.directory, &self.spans)
    }

    fn decided(vfs: Arc<dyn Vfs>, path: &Path, watch: &Watch) -> Result<JournalView, OpenError> {
        let directory = Directory::open_to_read(vfs, path).map_err(|error| match error.kind {
            std::io::ErrorKind::NotFound => OpenError::NotFound {
                path: path.to_owned(),
            },
            _ => OpenError::Disk(error).of_handles(),
        })?;
        let directory = directory.watched(watch.clone());
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
                    pinned: Vec::new(),
                    active: None,
                    heads: Heads::new(ROWS),
                }),
                Decision::Recovered(recovered) => {
                    let pinned = Self::pin(&directory, &recovered).map_err(OpenError::Disk)?;
                    if pinned.is_none() && attempt < ATTEMPTS {
                        // Replaced since it was read: there is a newer manifest.
                        continue;
                    }
                    let mut view = Self::whole(directory, owner, &recovered);
                    view.pinned = pinned.unwrap_or_default();
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
                        pinned: Vec::new(),
                        active: None,
                        heads: Heads::new(ROWS),
                    })
                }
            };
        }
    }

    /// Opens the segments whose end no manifest names; `None` if one is gone.
    fn pin(
        directory: &Directory,
        recovered: &Recovered,
    ) -> Result<Option<Vec<(SegmentName, OpenFile)>>, DiskError> {
        let sealed = recovered.finished.iter().filter(|(_, _, by_seal)| *by_seal);
        let names = sealed.map(|(entry, _, _)| entry.name);
        let mut pinned = Vec::new();
        for name in names.chain([recovered.active.name]) {
            match directory.open_segment(&name, Access::Read)? {
                Some(file) => pinned.push((name, file)),
                None => return Ok(None),
            }
        }
        Ok(Some(pinned))
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
            pinned: Vec::new(),
            active: recovered
                .manifest
                .shared
                .then(|| Arc::new(Footer::of(recovered.base, &recovered.keep, true))),
            heads: Heads::new(ROWS),
        }
    }

    /// Of a journal that is open for writing here.
    pub(crate) fn live(
        directory: &Directory,
        spans: &Spans,
        owner: SessionId,
        epoch: u64,
    ) -> JournalView {
        let (spans, pinned, footer) = spans.all();
        let mut report = RecoveryReport::fresh(epoch);
        report.last = spans.last().map_or(Lsn::ZERO, |span| span.last);
        report.watermark = report.last;
        JournalView {
            directory: directory.clone(),
            spans,
            report,
            damage: None,
            owner,
            pinned,
            active: footer.map(Arc::new),
            heads: Heads::new(ROWS),
        }
    }

    /// What there is of one session, in a journal that many share.
    pub(crate) fn session(&self, session: SessionId) -> SessionLog {
        let (directory, spans) = (self.directory.clone(), self.spans.clone());
        SessionLog::of(directory, spans, session, self.active.as_deref())
            .pinned(self.pinned.clone())
            .proven(self.report.watermark)
            .heads(self.heads.clone())
    }

    /// The sessions that have records here, in a journal that many share. Of a segment that is damaged
    /// and has no footer, those that its intact records name.
    pub(crate) fn sessions(&self) -> Result<BTreeSet<SessionId>, DiskError> {
        let mut sessions = BTreeSet::new();
        for span in &self.spans {
            let held = self.active.as_ref();
            if let Some(footer) = held.filter(|footer| footer.base == span.base) {
                sessions.extend(footer.sessions.keys());
                continue;
            }
            let end = End {
                offset: span.end,
                last: span.last,
            };
            let segment = (&span.entry, end, span.base);
            let known = parts::load_sessions(&self.directory, &self.heads, segment)?;
            if let Some(known) = known {
                sessions.extend(known);
                continue;
            }
            let (directory, proven) = (self.directory.clone(), self.report.watermark);
            let mut reader =
                Reader::new(directory, vec![*span], Lsn::ZERO, proven).pinned(self.pinned.clone());
            while let Some(entry) = reader.read_next() {
                match entry {
                    Ok(entry) if entry.kind == FrameKind::Record => {
                        sessions.insert(entry.session);
                    }
                    Err(ReadError::Disk(error)) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(sessions)
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
        .pinned(self.pinned.clone())
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

    /// The bytes of its segments, up to the last frame that counts in each.
    pub(crate) fn bytes(&self) -> u64 {
        let ends = self.spans.iter().map(|span| span.end);
        ends.fold(0, u64::saturating_add)
    }

    /// The newest carry record of the segments before an Lsn that is accepted, with the last Lsn that
    /// it speaks of.
    pub(crate) fn newest_carry<T>(
        &self,
        before: Lsn,
        accept: impl Fn(Carried<'_>) -> Option<T>,
    ) -> Option<(Lsn, T)> {
        carried::newest(&self.directory, &self.spans, before, accept)
    }

    /// The records of the last segment that holds one with a Seq below `before`, for a journal of one
    /// session: reading backwards. Those from `before` on may be among them.
    pub(crate) fn segment_before(&self, before: Seq) -> Result<Option<Reader>, ReadError> {
        let of = |span: &Span| {
            let (directory, proven) = (self.directory.clone(), self.report.watermark);
            Reader::new(directory, vec![*span], Lsn::ZERO, proven).pinned(self.pinned.clone())
        };
        let found = carried::segment_before(&self.spans, before, |span| of(span).first_seq())?;
        Ok(found.map(|span| of(&span)))
    }

    /// Reads the record at a position; `None` if none stands there.
    ///
    /// # Errors
    /// As for [`Reader`].
    pub fn read_at(&self, position: &Position) -> Result<Option<Entry>, ReadError> {
        read_at(
            &self.directory,
            &self.spans,
            &self.pinned,
            position,
            self.report.watermark,
        )
    }
}
