//! Whether the log of a journal is still as it was when it was read, by a few small reads: what an
//! index needs before it is believed.
//!
//! It rests on the writer's rules, not on clocks. Each opening publishes a manifest under a new name
//! and begins a fresh file (W6, W9), so whatever an opening did changes the names. Within one opening
//! the next frame stands behind the last one (W1), or in the successor once the seal is written (W7).
//! So as long as the names are the same, the active segment has no seal, and behind its end there are
//! zeros, no frame was added. The manifest and what stands before the end are compared too, and of the
//! files that hold the tail identity, length and time of change: that shows files that were put in the
//! place of others, or written to by others.
//!
//! It does not show damage at rest, which changes no time, to records that were intact when they were
//! read, nor any to segments before the last one that holds records: reading finds that, and verifying.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::JournalView;
use super::directory::{read_full, uninterrupted};
use super::frame::crc;
use super::names::{self, Name, SegmentName};
use super::segment::{CLAIM_LEN, SEAL};
use crate::vfs::{Access, File, FileId, Vfs};

/// Bytes before the end of the log that are compared.
const BEFORE: usize = 64;
/// Bytes behind it that must be zeros: the header of a frame is longer, and begins with its magic.
const BEHIND: usize = 16;

/// So much of the manifest is compared, in bytes: all of it in any journal below 800 segments.
const MANIFEST: u64 = 64 * 1024;

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
    /// Checksum of the manifest.
    manifest: u32,
    active: State,
    end: u64,
    /// Checksum of what stands before the end.
    before: u32,
    /// The last segment that holds records, if that is another: after a clean close.
    tail: Option<State>,
}

/// A file as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    name: String,
    device: u64,
    inode: u64,
    length: u64,
    /// Since the epoch, in nanoseconds, where the system knows it.
    modified: Option<u64>,
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
        let used = spans.iter().rev().find(|span| span.last > span.base);
        let tail = used.filter(|used| used.entry.name != active.entry.name);
        let taken = look(
            directory.vfs(),
            directory.path(),
            &active.entry.name,
            active.end,
            tail.map(|tail| tail.entry.name),
        )?;
        (taken.names == self).then_some(taken)
    }
}

impl Fingerprint {
    /// Whether the log of the journal in this directory is still as it was.
    pub(crate) fn holds(&self, vfs: &Arc<dyn Vfs>, journal: &Path) -> bool {
        let segment = |name: &str| match names::parse(name) {
            Name::Segment(segment) => Some(segment),
            _ => None,
        };
        let Some(active) = segment(&self.active.name) else {
            return false;
        };
        let tail = self.tail.as_ref().and_then(|tail| segment(&tail.name));
        look(vfs, journal, &active, self.end, tail).as_ref() == Some(self)
    }
}

fn open(vfs: &Arc<dyn Vfs>, journal: &Path, name: String) -> Option<(Arc<dyn File>, State)> {
    let path = journal.join(&name);
    let file = uninterrupted(|| vfs.open(&path, Access::Read)).ok()?;
    let FileId { device, inode } = uninterrupted(|| file.identity()).ok()?;
    let length = uninterrupted(|| file.len()).ok()?;
    let modified = uninterrupted(|| file.modified()).ok()?;
    let state = State {
        name,
        device,
        inode,
        length,
        modified,
    };
    Some((file, state))
}

fn look(
    vfs: &Arc<dyn Vfs>,
    journal: &Path,
    active: &SegmentName,
    end: u64,
    tail: Option<SegmentName>,
) -> Option<Fingerprint> {
    let (file, active) = open(vfs, journal, active.to_string())?;
    let mut seal = [0; CLAIM_LEN];
    read_full(&*file, journal, &mut seal, SEAL).ok()?;
    let mut around = [0; BEFORE + BEHIND];
    read_full(
        &*file,
        journal,
        &mut around,
        end.checked_sub(BEFORE as u64)?,
    )
    .ok()?;
    let (before, behind) = around.split_at_checked(BEFORE)?;
    let written = seal.iter().chain(behind).any(|byte| *byte != 0);
    if written {
        return None;
    }
    let tail = match tail {
        Some(tail) => Some(open(vfs, journal, tail.to_string())?.1),
        None => None,
    };
    // Last: a manifest that was published before this moment is seen.
    let names = Names::now(vfs, journal)?;
    let path = journal.join(names::manifest(names.manifest));
    let file = uninterrupted(|| vfs.open(&path, Access::Read)).ok()?;
    let length = uninterrupted(|| file.len()).ok()?.min(MANIFEST);
    let mut manifest = vec![0; usize::try_from(length).ok()?];
    read_full(&*file, journal, &mut manifest, 0).ok()?;
    Some(Fingerprint {
        names,
        manifest: crc(&manifest),
        active,
        end,
        before: crc(before),
        tail,
    })
}
