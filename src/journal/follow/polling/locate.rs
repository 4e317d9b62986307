//! Finding the place in the segments of the newest manifest.

use super::super::cursor::Cursor;
use super::super::{FollowError, gone};
use super::{JournalFollower, LISTING, Stand, Step, Stop};
use crate::journal::Lsn;
use crate::journal::directory::OpenFile;
use crate::journal::error::{Damage, DiskError};
use crate::journal::evidence::read_static_header;
use crate::journal::manifest::{End, ManifestFound, SegmentEntry};
use crate::journal::names::{self, Name};
use crate::journal::recovery::{foreign, newer};
use crate::journal::segment::{CLAIM_LEN, FRAMES, HeaderFound, SEAL, SLOTS, Seal, Slot};
use crate::vfs::Access;

impl JournalFollower {
    /// Whether there is a newer manifest than the one that was read: its owner removes older ones. If
    /// it was cut off before it did, nobody writes until the next opening does it.
    pub(super) fn is_outdated(&self) -> Result<bool, Stop> {
        let Some(manifest) = &self.manifest else {
            return Ok(true);
        };
        let number = manifest.number;
        if !self.directory.exists(&names::manifest(number))? {
            return Ok(true);
        }
        if self.quiet % LISTING != LISTING - 1 {
            return Ok(false);
        }
        let names = self.directory.names()?;
        let newer = |name: &Name| matches!(name, Name::Manifest(other) if *other > number);
        Ok(names.iter().any(|(_, name)| newer(name)))
    }

    /// Reads the highest manifest, and stays where it is if that still lists the segment.
    pub(super) fn read_manifest(&mut self) -> Result<Step, Stop> {
        let path = self.directory.path().to_owned();
        let lost = |path| {
            Stop::Suspicion(FollowError::Damaged {
                path,
                damage: Damage::ManifestLost,
            })
        };
        let found = self.directory.highest_manifest();
        let manifest = match found.map_err(|error| Stop::Error(gone(&path, error)))? {
            Some((_, ManifestFound::Good(manifest))) => manifest,
            Some((_, ManifestFound::Newer(version))) => {
                let newer = newer(&self.directory, version);
                return Err(Stop::Error(FollowError::Open(newer)));
            }
            Some((_, ManifestFound::Bad)) => return Err(lost(path)),
            None => {
                let names = self.directory.names();
                let names = names.map_err(|error| Stop::Error(gone(&path, error)))?;
                let left = |name: &Name| matches!(name, Name::Segment(_) | Name::Manifest(_));
                return Err(match names.iter().any(|(_, name)| left(name)) {
                    true => lost(path),
                    false => Stop::Error(FollowError::Deleted { path }),
                });
            }
        };
        if *self.log.get_or_insert(manifest.log) != manifest.log {
            return Err(Stop::Error(FollowError::Replaced { path }));
        }
        if let Some(at) = &mut self.at {
            let name = at.given.entry.name;
            match manifest.segments.iter().find(|entry| entry.name == name) {
                // The manifest's end counts before the seal's.
                Some(listed) => listed.end.into_iter().for_each(|end| at.finish(end)),
                None => self.at = None,
            }
        }
        self.manifest = Some(manifest);
        Ok(Step::Moved)
    }

    /// Goes to the segment in which the next record stands or will stand.
    pub(super) fn locate(&mut self) -> Result<Step, Stop> {
        let Some(manifest) = &self.manifest else {
            return self.read_manifest();
        };
        let mut base = Lsn::ZERO;
        for entry in &manifest.segments {
            let opened = match entry.end {
                Some(end) if end.last < self.next => {
                    base = end.last;
                    continue;
                }
                _ => self.directory.open_segment(&entry.name, Access::Read)?,
            };
            let Some(file) = opened else {
                // Replaced since the manifest was read, or missing.
                if self.is_outdated()? {
                    return self.read_manifest();
                }
                return Err(self.damaged(Damage::SegmentMissing {
                    segment: entry.name,
                }));
            };
            let end = match entry.end {
                Some(end) => Some(end),
                None => Claims::read(&file, entry)?.seal.map(|seal| End {
                    offset: seal.end,
                    last: seal.last,
                }),
            };
            if let Some(end) = end.filter(|end| end.last < self.next) {
                base = end.last;
                continue;
            }
            self.at = Some(self.stand(*entry, file, base, end)?);
            return Ok(Step::On);
        }
        let lists_none = manifest.segments.is_empty();
        if self.is_outdated()? {
            return self.read_manifest();
        }
        match lists_none {
            true => Ok(Step::Nothing),
            false => Err(self.damaged(Damage::SuccessorLost)),
        }
    }

    fn damaged(&self, damage: Damage) -> Stop {
        Stop::Suspicion(FollowError::Damaged {
            path: self.directory.path().to_owned(),
            damage,
        })
    }

    fn stand(
        &self,
        entry: SegmentEntry,
        file: OpenFile,
        base: Lsn,
        end: Option<End>,
    ) -> Result<Stand, Stop> {
        let header = match read_static_header(&file)? {
            HeaderFound::Good(header) if header.log != entry.log => {
                let foreign = foreign(&self.directory, &entry.name);
                return Err(Stop::Error(FollowError::Open(foreign)));
            }
            HeaderFound::Good(header) if header.name == entry.name => header,
            HeaderFound::Newer(version) => {
                let newer = newer(&self.directory, version);
                return Err(Stop::Error(FollowError::Open(newer)));
            }
            _ => {
                return Err(self.damaged(Damage::Header {
                    segment: entry.name,
                }));
            }
        };
        let limit = FRAMES.saturating_add(header.capacity);
        let given = Cursor::begin(entry, file, base, limit);
        let mut stand = Stand {
            seen: given.clone(),
            given,
            proven: base,
            end: None,
        };
        if let Some(end) = end {
            stand.finish(end);
        }
        Ok(stand)
    }
}

impl Stand {
    pub(super) fn finish(&mut self, end: End) {
        self.end = Some(end);
        self.proven = end.last;
        self.given.limit = self.given.limit.min(end.offset);
    }
}

/// The claims of a segment that stand in blocks of their own.
pub(super) struct Claims {
    pub(super) slots: Vec<Slot>,
    pub(super) seal: Option<Seal>,
}

impl Claims {
    pub(super) fn read(file: &OpenFile, entry: &SegmentEntry) -> Result<Claims, DiskError> {
        let [first, _] = SLOTS;
        let mut block = vec![0; (SEAL - first) as usize + CLAIM_LEN];
        let read = file.read_full(&mut block, first)?;
        block.truncate(read);
        let place = entry.place();
        let claim = |offset: u64| {
            let from = (offset - first) as usize;
            block.get(from..from + CLAIM_LEN)
        };
        let slot =
            |offset: u64| claim(offset).and_then(|bytes| Slot::decode(bytes, &place, offset));
        Ok(Claims {
            slots: SLOTS.into_iter().filter_map(slot).collect(),
            seal: claim(SEAL).and_then(|bytes| Seal::decode(bytes, &place)),
        })
    }
}
