//! The action of rows 10 and 11 (`docs/guarantees.md` 3): what is kept goes to a fresh file, which is synced
//! before the next manifest names it. The old file is never written to (W9).

use super::create::{self, Copy, MakeError};
use super::decision::Recovered;
use super::directory::{Directory, OpenFile, Ownership, uninterrupted};
use super::error::{DiskError, OpenError, Operation};
use super::evidence::absent;
use super::footer::Footer;
use super::frame::Header;
use super::manifest::{End, Manifest, SegmentEntry};
use super::names::{QUARANTINE, SegmentName};
use super::recovery::{Settled, disk, overtaken, publish};
use super::report::{Cut, Quarantine, RecoveryReport};
use super::scan::Found;
use super::segment::{BLOCK, FRAMES, StaticHeader};
use super::spans::Span;
use super::tails;
use super::{JournalOptions, Lsn};
use crate::vfs::{Access, Lock};

/// A fresh file and what belongs to it.
struct Fresh {
    entries: Vec<SegmentEntry>,
    spans: Vec<Span>,
    file: OpenFile,
    header: StaticHeader,
    placed: Vec<Found>,
    quarantine: Option<Quarantine>,
}

/// What an action works with.
pub(super) struct Action<'a> {
    pub(super) directory: Directory,
    pub(super) lock: Box<dyn Lock>,
    pub(super) ownership: Ownership,
    pub(super) options: &'a JournalOptions,
}

impl Action<'_> {
    pub(super) fn make_error(&self, error: MakeError, name: &SegmentName) -> OpenError {
        match error {
            MakeError::Sync(error) => OpenError::Sync(error),
            other => disk(other.disk(&self.directory.file_path(&name.to_string()))),
        }
    }

    /// Supersedes or closes the active segment. What fails after another process took over is its
    /// doing: overtaken, not a failure of the disk (W12).
    pub(super) fn carry_out(self, recovered: Recovered) -> Result<Settled, OpenError> {
        match self.fresh_file(&recovered) {
            Ok(fresh) => {
                let report = self.report(&recovered, fresh.quarantine);
                self.finish(
                    fresh.entries,
                    fresh.spans,
                    fresh.file,
                    fresh.header,
                    &fresh.placed,
                    report,
                )
            }
            Err(error) => match self.ownership.still_holds(&self.directory) {
                Ok(false) => Err(overtaken(&self.directory)),
                _ => Err(error),
            },
        }
    }

    /// The file that holds what is kept, synced, and what the next manifest lists.
    fn fresh_file(&self, recovered: &Recovered) -> Result<Fresh, OpenError> {
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
            self.supersede(recovered)
        } else {
            let (stay, copies, header) = self.close(recovered);
            // Of which nothing stays behind is not listed: the new file holds all of it.
            if stay.offset > FRAMES {
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
                self.write_footer(recovered, &entry, stay)?;
            }
            (copies, header, stay.last)
        };
        let (file, placed) =
            create::segment_of(&self.directory, &header, recovered.watermark, &old, &copies)
                .map_err(|error| self.make_error(error, &header.name))?;
        let quarantine = self.quarantine(recovered)?;
        let entry = SegmentEntry::own(header.name, header.log, None);
        entries.push(entry);
        spans.push(Span {
            entry,
            base: first_base,
            end: placed.last().map_or(FRAMES, Found::end),
            last: recovered.last(),
        });
        Ok(Fresh {
            entries,
            spans,
            file,
            header,
            placed,
            quarantine,
        })
    }

    /// Same number, next generation, holding all of *keep* at the same offsets, stamped anew with
    /// the old watermarks.
    fn supersede(&self, recovered: &Recovered) -> (Vec<Copy>, StaticHeader, Lsn) {
        let epoch = self.ownership.manifest.epoch;
        let header = StaticHeader {
            log: recovered.manifest.log,
            name: SegmentName {
                number: recovered.active.name.number,
                generation: recovered.active.name.generation.saturating_add(1),
                epoch,
            },
            capacity: self.fresh_capacity(recovered, recovered.tail() - FRAMES),
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

    /// The capacity of a fresh file: twice what it takes over, so that an opening writes few
    /// zeros, and no more than the old one had; segments grow from there (W4).
    fn fresh_capacity(&self, recovered: &Recovered, needed: u64) -> u64 {
        let roomy = needed.saturating_mul(2).next_multiple_of(BLOCK);
        roomy
            .min(recovered.header.capacity)
            .min(self.options.max_capacity)
            .max(self.options.first_capacity)
            .max(needed.next_multiple_of(BLOCK))
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
                number: highest.saturating_add(1),
                generation: 0,
                epoch,
            },
            capacity: self.fresh_capacity(recovered, needed),
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
    /// rebuilt, so a left-over of an opening that was cut off is replaced, and nothing waits for a
    /// sync of it.
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
        let footer = Footer::of(recovered.base, &stay, recovered.manifest.shared);
        let name = entry.name.footer();
        self.directory.remove(&name).map_err(disk)?;
        let file = self.directory.create_file(&name).map_err(disk)?;
        file.write_all(&footer.encode(&entry.place()), 0)
            .map_err(disk)
    }

    /// Keeps the old file under a second name if anything in it was cut.
    fn quarantine(&self, recovered: &Recovered) -> Result<Option<Quarantine>, OpenError> {
        if recovered.torn.is_none() {
            return Ok(None);
        }
        let vfs = self.directory.vfs();
        let folder = self.directory.file_path(QUARANTINE);
        let created = uninterrupted(|| vfs.create_dir(&folder));
        if let Err(error) = created
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(disk(DiskError::new(Operation::Create, &folder, &error)));
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

    /// The next manifest, whose publication syncs the directory first and is the commit point; then
    /// the sweep.
    pub(super) fn finish(
        self,
        entries: Vec<SegmentEntry>,
        spans: Vec<Span>,
        file: OpenFile,
        header: StaticHeader,
        placed: &[Found],
        report: RecoveryReport,
    ) -> Result<Settled, OpenError> {
        let manifest = Manifest {
            number: self.ownership.manifest.number.saturating_add(1),
            segments: entries,
            ..self.ownership.manifest.clone()
        };
        let shared = manifest.shared;
        let owner = (!shared).then_some(manifest.owner);
        let ownership =
            publish(&self.directory, manifest)?.ok_or_else(|| overtaken(&self.directory))?;
        ownership.remove_older(&self.directory).map_err(disk)?;
        ownership.sweep(&self.directory).map_err(disk)?;
        let base = spans.last().map_or(Lsn::ZERO, |span| span.base);
        let tails = tails::load(&self.directory, &spans, placed, owner)?;
        Ok(Settled {
            directory: self.directory,
            lock: self.lock,
            ownership,
            file,
            header,
            footer: Footer::of(base, placed, shared),
            count: placed.len() as u64,
            spans,
            tails,
            report,
        })
    }
}
