//! Damage at rest: it is reported, harmless, or in the window, which is computed here from the
//! books and from what the format document says about where claims stand.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use stepwell::journal::{Entry, Journal, JournalView, Lsn, OpenError, ReadError};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::SimVfs;

use crate::books::matches;
use crate::rng::Rng;
use crate::site::{Site, dir, vfs};

const HEADER: u64 = 80;
const BLOCK: u64 = 4096;
const SLOTS: [u64; 2] = [4096, 8192];
const SEAL: u64 = 12288;
const CLAIM: u64 = 64;

/// Something on the medium that says "durable up to here".
#[derive(Debug)]
struct Claim {
    file: PathBuf,
    bytes: Range<u64>,
    watermark: u64,
}

#[derive(Debug, Clone)]
struct Damage {
    what: &'static str,
    file: PathBuf,
    bytes: Range<u64>,
    /// Whether it may never lose anything in silence: the window is one of single blocks of frames.
    strict: bool,
}

/// A log at rest, whole.
struct Log<'a> {
    site: &'a Site,
    entries: &'a [Entry],
    claims: Vec<Claim>,
}

fn file_of(entry: &Entry) -> PathBuf {
    dir().join(entry.position.segment.to_string())
}

/// A file may have two names: the one that the journal goes by.
fn canonical(disk: &SimVfs, files: &[(PathBuf, u64)], file: PathBuf) -> PathBuf {
    let number = |path: &PathBuf| disk.identity(path).unwrap();
    let mine = number(&file);
    let others = files.iter().map(|(path, _)| path);
    let mut names: Vec<_> = others.filter(|other| number(other) == mine).collect();
    names.retain(|path| path.starts_with(dir()));
    names.sort_by_key(|path| {
        let name = path.to_string_lossy();
        name.contains("tmp-") || name.contains("quarantine")
    });
    names.first().map_or(file.clone(), |name| (*name).clone())
}

fn frame_of(entry: &Entry) -> Range<u64> {
    let length = (HEADER + entry.payload.len() as u64).next_multiple_of(8);
    entry.position.offset..entry.position.offset + length
}

fn meets(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Whether the payload holds what looks like a frame in a place where one could be.
fn holds_images(entry: &Entry) -> bool {
    let mut words = entry.payload.chunks_exact(8);
    words.any(|word| word.starts_with(b"SWF1"))
}

/// Damages copies of a disk whose journal nobody has open, each once, and judges what is said.
pub fn rot(site: &Site, image: SimVfs, times: u64, rng: &mut Rng) {
    image.set_capacity(None);
    let base = site.on(image);
    let Some((_, entries)) = base.look() else {
        return;
    };
    base.settle_at_rest();
    let log = Log {
        claims: claims(&base, &entries),
        site: &base,
        entries: &entries,
    };
    for _ in 0..times {
        let disk = base.disk.snapshot();
        if let Some(damage) = log.damage(&disk, rng) {
            base.count("damages");
            base.say(|| format!("damage: {damage:?}"));
            log.judge(&disk, &damage);
        }
    }
}

/// The claims that the history must have left on the medium.
fn claims(site: &Site, entries: &[Entry]) -> Vec<Claim> {
    let books = site.books();
    let mut claims = Vec::new();
    let mut segments: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for entry in entries {
        let lsn = entry.lsn.get();
        let range = segments.entry(entry.position.segment).or_insert((lsn, lsn));
        range.1 = lsn;
        let item = &books.settled[lsn as usize - 1];
        // A frame that an opening copied may carry a lower watermark, down to what stays behind;
        // the slots of the copy make up for it.
        let watermark = match entry.epoch == item.epoch {
            true => item.watermark,
            false => item.watermark.min(range.0 - 1),
        };
        claims.push(Claim {
            file: file_of(entry),
            bytes: entry.position.offset..entry.position.offset + HEADER,
            watermark,
        });
    }
    let files = site.disk.files();
    let manifest = files.iter().map(|(path, _)| path);
    let manifest = manifest.filter(|path| path.starts_with(dir()));
    let manifest = manifest.filter(|path| path.to_string_lossy().contains("MANIFEST"));
    let manifest = manifest.max().cloned().unwrap_or_default();
    let mut segments: Vec<_> = segments.into_iter().collect();
    segments.sort_by_key(|(_, range)| range.0);
    for pair in segments.windows(2) {
        let ((name, range), (successor, _)) = (&pair[0], &pair[1]);
        // Behind a roll stands a seal; what an opening closed or found sealed is in its manifest.
        let (file, bytes) = match name.epoch == successor.epoch {
            true => (dir().join(name.to_string()), SEAL..SEAL + CLAIM),
            false => (manifest.clone(), 0..u64::MAX),
        };
        claims.push(Claim {
            file,
            bytes,
            watermark: range.1,
        });
    }
    if let Some((name, range)) = segments.last() {
        let mut slots = 0;
        if (range.0..=range.1).contains(&books.witnessed) {
            slots = books.witnessed;
        }
        let numbers = entries.iter().map(|entry| entry.position.segment);
        let first = numbers.filter(|other| other.epoch == name.epoch).min();
        if first == Some(*name) {
            slots = slots.max(books.openings.get(&name.epoch).copied().unwrap_or(0));
        }
        // They are written in turn: a claim is in one of them, and we do not say in which.
        claims.push(Claim {
            file: dir().join(name.to_string()),
            bytes: SLOTS[0]..SLOTS[1] + CLAIM,
            watermark: slots,
        });
    }
    claims
}

impl Log<'_> {
    /// Does one thing to the disk; `None` if there was nothing to damage.
    fn damage(&self, disk: &SimVfs, rng: &mut Rng) -> Option<Damage> {
        let mut files = disk.files();
        files.retain(|(path, length)| {
            // Neither is part of the log; forks are logs of their own.
            path.starts_with(dir())
                && *length > 0
                && !path.ends_with("LOCK")
                && !path.ends_with("HOLDER")
        });
        let (mut file, length) = files.get(rng.below(files.len() as u64) as usize)?.clone();
        let mut offset = rng.below(length);
        let images = self.entries.iter().filter(|entry| holds_images(entry));
        let images: Vec<&Entry> = images.collect();
        if rng.chance(20) && !images.is_empty() {
            let entry = rng.pick(&images);
            file = file_of(entry);
            offset = entry.position.offset + rng.below(HEADER);
        } else if rng.chance(70) && !self.entries.is_empty() {
            // Mostly at a frame, and there often at the last ones.
            let count = self.entries.len() as u64;
            let back = match rng.chance(50) {
                true => rng.below(count.min(4)),
                false => rng.below(count),
            };
            let entry = &self.entries[(count - 1 - back) as usize];
            file = file_of(entry);
            let frame = frame_of(entry);
            offset = match rng.chance(25) {
                true => frame.start + rng.below(HEADER),
                false => frame.start + rng.below(frame.end - frame.start),
            };
        } else if rng.chance(30) {
            offset = (*rng.pick(&[0, SLOTS[0], SLOTS[1], SEAL]) + rng.below(CLAIM)).min(length - 1);
        }
        let mut strict = false;
        let named = file.clone();
        file = canonical(disk, &files, file);
        let (what, bytes) = match rng.below(20) {
            0..9 => {
                disk.flip_bit(&file, offset, rng.below(8) as u8).unwrap();
                ("bit flipped", offset..offset + 1)
            }
            9..13 => {
                let start = offset / 512 * 512;
                disk.zero(&file, start..start + 512).unwrap();
                ("sector zeroed", start..start + 512)
            }
            13..17 => {
                let start = offset / BLOCK * BLOCK;
                disk.zero(&file, start..start + BLOCK).unwrap();
                ("block zeroed", start..start + BLOCK)
            }
            17..19 => {
                disk.truncate(&file, offset).unwrap();
                strict = true;
                ("truncated", offset..u64::MAX)
            }
            _ => {
                file = named;
                disk.remove(&file).unwrap();
                strict = true;
                ("removed", 0..u64::MAX)
            }
        };
        Some(Damage {
            what,
            file,
            bytes,
            strict,
        })
    }

    /// The highest claim that the damage did not touch.
    fn covered(&self, damage: &Damage) -> u64 {
        let whole = self
            .claims
            .iter()
            .filter(|claim| claim.file != damage.file || !meets(&claim.bytes, &damage.bytes));
        whole.map(|claim| claim.watermark).max().unwrap_or(0)
    }

    fn judge(&self, disk: &SimVfs, damage: &Damage) {
        let site = self.site;
        let (view, refused) = match JournalView::open(vfs(disk), &dir()) {
            Ok(view) => (Some(view), false),
            Err(OpenError::ForeignLog { .. } | OpenError::NewerFormat { .. }) => (None, true),
            Err(OpenError::NotFound { .. }) => (None, false),
            Err(error) => panic!("VIOLATION: {damage:?}: {error}"),
        };
        let found = view.as_ref().and_then(|view| view.damage());
        let read = view
            .as_ref()
            .map(|view| self.read(view.read(Lsn::ZERO), damage));
        let (got, gaps) = read.unwrap_or_default();
        let reported = refused || gaps || found.is_some();
        let lost = self
            .entries
            .iter()
            .filter(|entry| !got.contains(&entry.lsn));
        let lost: Vec<&Entry> = lost.collect();
        if reported {
            site.count("damages reported");
            self.judge_rest(view.as_ref(), &lost, damage);
        } else if let Some(first) = lost.first() {
            let covered = self.covered(damage);
            assert!(
                first.lsn.get() > covered && !damage.strict,
                "VIOLATION: {damage:?}: Lsn {} is missing in silence, covered up to {covered}",
                first.lsn
            );
            site.count("damages in the window");
            let cut = view
                .as_ref()
                .is_some_and(|view| view.report().cut.is_some());
            assert!(
                cut || damage.what.ends_with("zeroed"),
                "VIOLATION: {damage:?}: a cut that is not reported"
            );
            if !cut {
                site.count("damages in the window, without a cut");
            }
        } else {
            site.count("damages without an effect");
        }
        self.judge_writing(disk, view.as_ref(), &got, reported, damage);
    }

    /// What a reader of the damaged log gives: never a record that was not written. And whether it
    /// reported gaps. Above all that is settled, and marked as not proven, parts of what was given up
    /// may come up, but never without the report of a gap.
    fn read(&self, reader: stepwell::journal::Reader, damage: &Damage) -> (BTreeSet<Lsn>, bool) {
        let books = self.site.books();
        let mut got = BTreeSet::new();
        let mut gaps = false;
        let mut unsettled = Vec::new();
        for entry in reader {
            match entry {
                Ok(entry) => {
                    let lsn = entry.lsn;
                    let item = books.settled.get(lsn.get() as usize - 1);
                    let right = match item {
                        Some(item) => matches(&entry, item).is_ok(),
                        None => {
                            unsettled.push(entry.batch);
                            let mut dead = books.dead.iter();
                            !entry.proven && dead.any(|item| item.is_in(&entry))
                        }
                    };
                    assert!(
                        right && got.insert(lsn),
                        "VIOLATION: {damage:?}: invented Lsn {lsn}, batch {:?}, proven {}, of {}",
                        entry.batch,
                        entry.proven,
                        books.last()
                    );
                }
                Err(ReadError::Damaged { .. } | ReadError::Header { .. }) => gaps = true,
                Err(error) => panic!("VIOLATION: {damage:?}: {error}"),
            }
        }
        if !unsettled.is_empty() {
            self.site.count("damaged views that show what was given up");
            let whole = unsettled
                .iter()
                .map(|(index, _)| *index)
                .eq(0..unsettled[0].1);
            assert!(
                whole || gaps,
                "VIOLATION: {damage:?}: half a batch as if it were whole"
            );
        }
        (got, gaps)
    }

    /// Reported damage never hides the intact part (P6): only what it touched is missing.
    fn judge_rest(&self, view: Option<&JournalView>, lost: &[&Entry], damage: &Damage) {
        if view.is_none() {
            return;
        }
        for entry in lost {
            let touched = file_of(entry) == damage.file && meets(&frame_of(entry), &damage.bytes);
            assert!(
                touched,
                "VIOLATION: {damage:?}: the intact Lsn {} at {:?} is hidden, {:?}",
                entry.lsn,
                entry.position,
                view.and_then(|view| view.damage())
            );
        }
    }

    /// An opening for writing says what the view says.
    fn judge_writing(
        &self,
        disk: &SimVfs,
        view: Option<&JournalView>,
        got: &BTreeSet<Lsn>,
        reported: bool,
        damage: &Damage,
    ) {
        let (owner, options) = (self.site.owner, self.site.options.clone());
        match Journal::open(vfs(disk), &dir(), owner, options) {
            Ok(opening) => {
                let found = view.and_then(|view| view.damage());
                assert!(
                    found.is_none() && view.is_some(),
                    "VIOLATION: {damage:?}: opened for writing in spite of {found:?}"
                );
                let (kept, gaps) = self.read(opening.read(Lsn::ZERO), damage);
                assert!(
                    kept == *got && gaps == reported,
                    "VIOLATION: {damage:?}: an opening keeps {} entries, a view shows {}",
                    kept.len(),
                    got.len()
                );
            }
            Err(error) => {
                let silent = matches!(error, OpenError::NotFound { .. });
                assert!(
                    reported || (silent && view.is_none()),
                    "VIOLATION: {damage:?}: {error}, but a view is silent"
                );
            }
        }
    }
}
