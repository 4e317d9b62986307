//! Whether the log of a journal is still as it was when it was read, by a few small reads: what an
//! index needs before it is believed.
//!
//! It rests on the writer's rules, not on clocks. Each opening publishes a manifest under a new name
//! and begins a fresh file (W6, W9), so whatever an opening did changes the names. Within one opening
//! the next frame stands behind the last one (W1), or in the successor once the seal is written (W7).
//! So as long as the names are the same, the active segment has no seal, and behind its end there are
//! zeros, no frame was added. What stands before the end is compared too, with the file's identity,
//! length and time of change, which shows files that were put in the place of others.
//!
//! It does not show damage at rest to older records, whose time of change stays the same: reading
//! finds that, and verifying.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::JournalView;
use super::directory::{read_full, uninterrupted};
use super::frame::crc;
use super::names::{self, Name, SegmentName};
use super::segment::{CLAIM_LEN, SEAL};
use crate::vfs::{Access, FileId, Vfs};

/// Bytes before the end of the log that are compared.
const BEFORE: usize = 64;
/// Bytes behind it that must be zeros: the header of a frame is longer, and begins with its magic.
const BEHIND: usize = 16;

/// The names of a journal's files, before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names {
    /// The highest manifest.
    manifest: u64,
    count: usize,
    crc: u32,
}

/// What the log was like when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    names: Names,
    segment: String,
    end: u64,
    device: u64,
    inode: u64,
    length: u64,
    /// Since the epoch, in nanoseconds, where the system knows it.
    modified: Option<u64>,
    before: u32,
}

impl Names {
    /// The names as they are; `None` if they cannot be told.
    pub(crate) fn now(vfs: &Arc<dyn Vfs>, journal: &Path) -> Option<Names> {
        let entries = uninterrupted(|| vfs.list(journal)).ok()?;
        let mut all = String::new();
        let mut names = Names {
            manifest: 0,
            count: 0,
            crc: 0,
        };
        for entry in entries.iter().filter(|entry| !entry.is_dir) {
            match names::parse(&entry.name) {
                Name::Manifest(number) => names.manifest = names.manifest.max(number),
                Name::Segment(_) | Name::Footer(_) => {}
                Name::Temporary { .. } | Name::Other => continue,
            }
            names.count += 1;
            all.push_str(&entry.name);
            all.push('/');
        }
        names.crc = crc(all.as_bytes());
        Some(names)
    }

    /// The fingerprint of a view that was opened, and read, since the names were told. `None` if it
    /// would prove nothing: the log is damaged, torn, not proven to its end, or was written meanwhile.
    pub(crate) fn of(self, view: &JournalView) -> Option<Fingerprint> {
        let report = view.report();
        let proven = report.watermark == report.last && report.cut.is_none();
        if view.damage().is_some() || !proven {
            return None;
        }
        let (directory, spans) = view.parts();
        let active = spans.last()?;
        let taken = look(
            directory.vfs(),
            directory.path(),
            &active.entry.name,
            active.end,
        )?;
        (taken.names == self).then_some(taken)
    }
}

impl Fingerprint {
    /// Whether the log of the journal in this directory is still as it was.
    pub(crate) fn holds(&self, vfs: &Arc<dyn Vfs>, journal: &Path) -> bool {
        let Name::Segment(segment) = names::parse(&self.segment) else {
            return false;
        };
        look(vfs, journal, &segment, self.end).as_ref() == Some(self)
    }
}

fn look(
    vfs: &Arc<dyn Vfs>,
    journal: &Path,
    segment: &SegmentName,
    end: u64,
) -> Option<Fingerprint> {
    let name = segment.to_string();
    let path = journal.join(&name);
    let file = uninterrupted(|| vfs.open(&path, Access::Read)).ok()?;
    let FileId { device, inode } = uninterrupted(|| file.identity()).ok()?;
    let length = uninterrupted(|| file.len()).ok()?;
    let modified = uninterrupted(|| file.modified()).ok()?;
    let mut seal = [0; CLAIM_LEN];
    read_full(&*file, &path, &mut seal, SEAL).ok()?;
    let mut around = [0; BEFORE + BEHIND];
    read_full(&*file, &path, &mut around, end.checked_sub(BEFORE as u64)?).ok()?;
    let (before, behind) = around.split_at_checked(BEFORE)?;
    let written = seal.iter().chain(behind).any(|byte| *byte != 0);
    if written {
        return None;
    }
    // Last: a manifest that was published before this moment is seen.
    let names = Names::now(vfs, journal)?;
    Some(Fingerprint {
        names,
        segment: name,
        end,
        device,
        inode,
        length,
        modified,
        before: crc(before),
    })
}
