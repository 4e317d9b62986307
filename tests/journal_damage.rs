//! Damage at rest: every flipped byte, every zeroed sector and block, every truncation, every file
//! removed, on a log of several segments with small frames.
//!
//! What must hold (P6, P14): no panic; never a record that was not written; an acknowledged record
//! is never missing without a report, except in the window of the rules, which is computed here from
//! the test's own books: a record may go unreported only if no claim that covers it (the header of a
//! frame of a later group, a slot, a seal, an end in the manifest) stands outside what was damaged.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use stepwell::journal::{
    Entry, FrameKind, JournalOptions, JournalView, Lsn, OpenError, Quarantine, ReadError,
    SegmentName,
};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::SimVfs;
use support::*;

const HEADER: u64 = 80;

fn small() -> JournalOptions {
    JournalOptions {
        first_capacity: 4096,
        max_capacity: 4096,
        ..options(1 << 20)
    }
}

/// How the log was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Killed,
    Idle,
    Closed,
}

/// Something on the medium that says "durable up to here".
struct Claim {
    file: PathBuf,
    bytes: Range<u64>,
    watermark: Lsn,
}

struct Log {
    disk: SimVfs,
    entries: BTreeMap<Lsn, Entry>,
    claims: Vec<Claim>,
}

/// Two openings, four segments, groups of one and of three records.
fn log(left: Left) -> Log {
    let disk = disk();
    let journal = create(&disk, &small()).unwrap();
    let mut books = Books::default();
    for _ in 0..12 {
        books.append(&journal, 1, 150);
    }
    disk.kill();
    let journal = begin(open(&disk, &small()).unwrap()).unwrap();
    for number in 0..16 {
        books.append(&journal, if number % 4 == 0 { 3 } else { 1 }, 180);
    }
    match left {
        Left::Killed => {}
        Left::Idle => journal.witness().unwrap(),
        Left::Closed => journal.close().unwrap(),
    }
    drop(journal);
    disk.kill();
    let view = JournalView::open(vfs(&disk), &dir()).unwrap();
    let entries: BTreeMap<Lsn, Entry> = view
        .read(Lsn::ZERO)
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.lsn, entry))
        .collect();
    assert_eq!(
        records(entries.values().cloned().map(Ok)),
        books.acknowledged
    );
    let claims = claims(&disk, &entries, left);
    Log {
        disk,
        entries,
        claims,
    }
}

/// The claims that the log's history must have left, from what the test knows about it.
fn claims(disk: &SimVfs, entries: &BTreeMap<Lsn, Entry>, left: Left) -> Vec<Claim> {
    let mut claims = Vec::new();
    let path = |segment: &SegmentName| dir().join(segment.to_string());
    for entry in entries.values() {
        // A group is one batch here, so a frame's watermark is the Lsn before its batch.
        let offset = entry.position.offset;
        claims.push(Claim {
            file: path(&entry.position.segment),
            bytes: offset..offset + HEADER,
            watermark: Lsn::new(entry.lsn.get() - u64::from(entry.batch.0) - 1),
        });
    }
    let mut last_of: BTreeMap<SegmentName, Lsn> = BTreeMap::new();
    for entry in entries.values() {
        last_of.insert(entry.position.segment, entry.lsn);
    }
    let (active, last) = last_of.pop_last().unwrap();
    let segments = last_of.len();
    assert!(segments >= 2, "only {segments} finished segments");
    let manifest = disk
        .files()
        .into_iter()
        .map(|(path, _)| path)
        .find(|path| path.to_string_lossy().contains("MANIFEST"))
        .unwrap();
    let length = disk.read_file(&manifest).unwrap().len() as u64;
    for (number, (segment, last)) in last_of.into_iter().enumerate() {
        claims.push(Claim {
            file: path(&segment),
            bytes: 12288..12288 + 64,
            watermark: last,
        });
        // The end of a segment is in the manifest once the one after its successor was prepared.
        if number + 1 < segments {
            claims.push(Claim {
                file: manifest.clone(),
                bytes: 0..length,
                watermark: last,
            });
        }
    }
    if left != Left::Killed {
        for slot in [4096, 8192] {
            claims.push(Claim {
                file: path(&active),
                bytes: slot..slot + 64,
                watermark: last,
            });
        }
    }
    claims
}

#[derive(Debug, Default)]
struct Counts {
    damages: u64,
    reported: u64,
    harmless: u64,
    in_window: u64,
}

impl Log {
    /// What the damage leaves provably durable: the highest claim that it did not touch.
    fn covered(&self, file: &Path, hit: &Range<u64>) -> Lsn {
        self.claims
            .iter()
            .filter(|claim| {
                claim.file != file || claim.bytes.end <= hit.start || hit.end <= claim.bytes.start
            })
            .map(|claim| claim.watermark)
            .max()
            .unwrap()
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut files = self.disk.files();
        files.retain(|(path, _)| !path.ends_with("LOCK") && !path.ends_with("HOLDER"));
        files
    }

    /// Reads the damaged log read-only and judges what it says.
    fn judge(
        &self,
        damaged: &SimVfs,
        file: &Path,
        hit: Range<u64>,
        counts: &mut Counts,
        what: &dyn std::fmt::Display,
    ) {
        counts.damages += 1;
        let view = match JournalView::open(vfs(damaged), &dir()) {
            Ok(view) => view,
            Err(OpenError::ForeignLog { .. }) => {
                counts.reported += 1;
                return;
            }
            Err(other) => panic!("{what}: {other}"),
        };
        let mut reported = view.damage().is_some();
        let mut read: BTreeMap<Lsn, Entry> = BTreeMap::new();
        for entry in view.read(Lsn::ZERO) {
            match entry {
                Ok(entry) => {
                    let written = &self.entries[&entry.lsn];
                    assert!(
                        entry.payload == written.payload
                            && (entry.seq, entry.kind) == (written.seq, written.kind),
                        "{what}: a record that was not written"
                    );
                    assert!(read.insert(entry.lsn, entry).is_none(), "{what}: twice");
                }
                Err(ReadError::Damaged { .. } | ReadError::Header { .. }) => reported = true,
                Err(other) => panic!("{what}: {other}"),
            }
        }
        let lost: Vec<Lsn> = self
            .entries
            .keys()
            .filter(|lsn| !read.contains_key(lsn))
            .copied()
            .collect();
        if reported {
            counts.reported += 1;
            // The intact part stays readable: a single damaged byte or sector costs what it hits.
            return;
        }
        if lost.is_empty() {
            counts.harmless += 1;
            return;
        }
        let covered = self.covered(file, &hit);
        let first = lost[0];
        assert!(
            first > covered,
            "{what}: Lsn {first} is missing without a report although {covered} is covered"
        );
        assert!(
            view.report().cut.is_some() || hit.end - hit.start > 1,
            "{what}: the cut is not reported"
        );
        counts.in_window += 1;
    }

    /// Opening for writing finds the same, and what it keeps is what reading found.
    fn judge_writing(&self, damaged: &SimVfs, what: &dyn std::fmt::Display) {
        let view = JournalView::open(vfs(damaged), &dir());
        let view = match view {
            Ok(view) => view,
            Err(_) => {
                assert!(open(damaged, &small()).is_err(), "{what}");
                return;
            }
        };
        let strip =
            |entry: Result<Entry, ReadError>| entry.ok().map(|entry| (entry.lsn, entry.payload));
        // Before the opening, which moves the active records to a fresh file.
        let seen: Vec<_> = view.read(Lsn::ZERO).filter_map(strip).collect();
        match open(damaged, &small()) {
            Ok(opening) => {
                assert_eq!(view.damage(), None, "{what}");
                assert_eq!(
                    opening.report().watermark,
                    view.report().watermark,
                    "{what}"
                );
                assert_eq!(opening.report().last, view.report().last, "{what}");
                let kept: Vec<_> = opening.read(Lsn::ZERO).filter_map(strip).collect();
                assert!(
                    kept == seen,
                    "{what}: {} kept, {} seen",
                    kept.len(),
                    seen.len()
                );
            }
            Err(OpenError::Damaged { damage, .. }) => {
                // Row 6 is found when a finished segment is read, by one or the other.
                let by_view = view.damage();
                assert!(
                    by_view == Some(&damage) || by_view.is_none(),
                    "{what}: {damage} and {by_view:?}"
                );
            }
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

fn flips(left: Left) -> Counts {
    let log = log(left);
    let mut counts = Counts::default();
    for (path, length) in log.files() {
        for offset in 0..length {
            let what = format!("{left:?}: {} flipped at {offset}", path.display());
            let damaged = log.disk.snapshot();
            damaged.flip_byte(&path, offset).unwrap();
            log.judge(&damaged, &path, offset..offset + 1, &mut counts, &what);
            if offset % 61 == 0 {
                log.judge_writing(&damaged, &what);
            }
        }
    }
    counts
}

#[test]
fn every_flipped_byte_after_a_kill() {
    let counts = flips(Left::Killed);
    println!("{counts:?}");
    // The window is there, and it is small: the last group, which nothing later vouches for.
    assert!(counts.in_window > 0 && counts.in_window < 300, "{counts:?}");
    assert!(counts.reported > 5000);
}

#[test]
fn every_flipped_byte_after_an_idle_moment() {
    let counts = flips(Left::Idle);
    println!("{counts:?}");
    assert_eq!(counts.in_window, 0, "the slots close the window");
}

#[test]
fn every_flipped_byte_after_a_clean_close() {
    let counts = flips(Left::Closed);
    println!("{counts:?}");
    assert_eq!(counts.in_window, 0, "the slots close the window");
}

#[test]
fn every_zeroed_sector_and_block() {
    for left in [Left::Killed, Left::Idle, Left::Closed] {
        let log = log(left);
        let mut counts = Counts::default();
        for size in [512, 4096] {
            for (path, length) in log.files() {
                for start in (0..length).step_by(size as usize) {
                    let hit = start..(start + size).min(length);
                    let what = format!("{left:?}: {} zeroed at {hit:?}", path.display());
                    let damaged = log.disk.snapshot();
                    damaged.zero(&path, hit.clone()).unwrap();
                    log.judge(&damaged, &path, hit, &mut counts, &what);
                    log.judge_writing(&damaged, &what);
                }
            }
        }
        println!("{left:?}: {counts:?}");
        assert!(counts.reported > 20, "{counts:?}");
        if left != Left::Killed {
            assert_eq!(counts.in_window, 0, "{left:?}: {counts:?}");
        }
    }
}

#[test]
fn every_truncation() {
    for left in [Left::Killed, Left::Closed] {
        let log = log(left);
        let mut counts = Counts::default();
        for (path, length) in log.files() {
            for end in 0..length {
                let what = format!("{left:?}: {} cut to {end} of {length}", path.display());
                let damaged = log.disk.snapshot();
                damaged.truncate(&path, end).unwrap();
                log.judge(&damaged, &path, end..length, &mut counts, &what);
                if end % 97 == 0 {
                    log.judge_writing(&damaged, &what);
                }
            }
        }
        println!("{left:?}: {counts:?}");
        assert_eq!(
            counts.in_window, 0,
            "{left:?}: a truncation is never a tear: {counts:?}"
        );
    }
}

#[test]
fn every_file_removed() {
    for left in [Left::Killed, Left::Idle, Left::Closed] {
        let log = log(left);
        for (path, length) in log.files() {
            let what = format!("{left:?}: {} removed", path.display());
            let damaged = log.disk.snapshot();
            damaged.remove(&path).unwrap();
            let mut counts = Counts::default();
            log.judge(&damaged, &path, 0..length, &mut counts, &what);
            assert_eq!(counts.reported, 1, "{what}");
            log.judge_writing(&damaged, &what);
            // The rest stays readable.
            let view = JournalView::open(vfs(&damaged), &dir()).unwrap();
            let readable = view
                .read(Lsn::ZERO)
                .filter(|entry| matches!(entry, Ok(entry) if entry.kind == FrameKind::Record))
                .count();
            assert!(
                readable >= 8,
                "{what}: only {readable} records are readable"
            );
        }
    }
}

/// A run of zeros or of noise of any length anywhere in the frames (robustness 3).
#[test]
fn runs_of_zeros_in_the_middle_are_reported_and_the_rest_stays_readable() {
    let log = log(Left::Idle);
    let entries: Vec<&Entry> = log.entries.values().collect();
    for (index, entry) in entries.iter().enumerate().skip(3).take(20) {
        let path = dir().join(entry.position.segment.to_string());
        let damaged = log.disk.snapshot();
        let start = entry.position.offset;
        damaged.zero(&path, start..start + 100).unwrap();
        let view = JournalView::open(vfs(&damaged), &dir()).unwrap();
        let read: Vec<_> = view.read(Lsn::ZERO).collect();
        let good = read.iter().filter(|entry| entry.is_ok()).count();
        assert_eq!(good, entries.len() - 1, "only Lsn {} is lost", entry.lsn);
        let named = read.iter().find_map(|entry| match entry {
            Err(ReadError::Damaged { first, last, .. }) => Some((*first, *last)),
            _ => None,
        });
        let lsn = entries[index].lsn;
        assert_eq!(named, Some((lsn, lsn)));
    }
}

/// Nothing is deleted by recovery: what is cut off a torn tail stays under a second name, and the
/// report says where, also when the folder is full.
#[test]
fn what_is_cut_is_kept_in_quarantine() {
    let log = log(Left::Killed);
    let last = log.entries.values().next_back().unwrap();
    let path = dir().join(last.position.segment.to_string());
    let damaged = log.disk.snapshot();
    damaged
        .flip_byte(&path, last.position.offset + HEADER + 5)
        .unwrap();
    let old = damaged.read_file(&path).unwrap();
    for limit in [0, 64] {
        let disk = damaged.snapshot();
        let options = JournalOptions {
            quarantine_files: limit,
            ..small()
        };
        let opening = open(&disk, &options).unwrap();
        let cut = opening.report().cut.clone().unwrap();
        assert_eq!(cut.path, path);
        assert_eq!(cut.offset, last.position.offset);
        assert_eq!(cut.lsns, Some((last.lsn, last.lsn)));
        match cut.quarantine {
            Quarantine::Kept { path } => {
                assert_eq!(limit, 64);
                assert!(disk.read_file(&path).unwrap() == old);
                disk.power_loss(stepwell::vfs::sim::PowerLoss::DropAll);
                assert!(disk.read_file(&path).unwrap() == old, "it is durable");
            }
            Quarantine::Full { folder } => {
                assert_eq!(limit, 0);
                assert_eq!(folder, dir().join("quarantine"));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The slots of a file that recovery makes carry what its decision knew: one damaged block never
/// takes the frames and the last witness of them together.
#[test]
fn a_block_of_frames_that_is_lost_after_an_opening_is_reported() {
    let options = options(1 << 20);
    let disk = disk();
    let journal = create(&disk, &options).unwrap();
    let mut books = Books::default();
    for _ in 0..4 {
        books.append(&journal, 1, 100);
    }
    drop(journal);
    disk.kill();
    // All frames, the new fence among them, lie in the first block.
    drop(begin(open(&disk, &options).unwrap()).unwrap());
    disk.kill();
    let view = JournalView::open(vfs(&disk), &dir()).unwrap();
    let last = view.read(Lsn::ZERO).last().unwrap().unwrap();
    assert!(last.position.offset < 16384 + 4096);
    let path = dir().join(last.position.segment.to_string());
    disk.zero(&path, 16384..16384 + 4096).unwrap();
    let view = JournalView::open(vfs(&disk), &dir()).unwrap();
    assert!(view.damage().is_some());
    assert!(matches!(
        open(&disk, &options),
        Err(OpenError::Damaged { .. })
    ));
}

/// W5: a tool may have read our own files. Frames of them in the payload of a torn record are no
/// frames, neither at another offset of the same segment nor at the same offset of another one: taken
/// for frames they would claim that the torn record was durable, and a legal crash would be refused.
#[test]
fn images_of_frames_in_a_torn_record_claim_nothing() {
    // Superseding keeps the number of the segment, closing takes another one.
    for supersede in [1 << 20, 0] {
        let options = options(supersede);
        let disk = disk();
        drop(create(&disk, &options).unwrap());
        disk.kill();
        // What a second opening wrote and a crash took away again, as a tool saw it before.
        let lost = disk.snapshot();
        let journal = begin(open(&lost, &options).unwrap()).unwrap();
        for (number, length) in [(1, 3000), (2, 100), (3, 100)] {
            put(&journal, payload(number, length));
        }
        let file = |lsn: u64, disk: &SimVfs| {
            let view = JournalView::open(vfs(disk), &dir()).unwrap();
            let entry = view.read(Lsn::new(lsn)).next().unwrap().unwrap();
            let path = dir().join(entry.position.segment.to_string());
            (path, entry.position.offset)
        };
        // Its header says that Lsn 4 was durable.
        let (path, place) = file(5, &lost);
        let image = &lost.read_file(&path).unwrap()[place as usize..][..184];
        drop(begin(open(&disk, &options).unwrap()).unwrap());
        disk.kill();
        // Here Lsn 4 is torn, the last record: its header never came to the medium.
        let journal = begin(open(&disk, &options).unwrap()).unwrap();
        put(&journal, payload(9, 4000));
        let (path, offset) = file(4, &disk);
        assert!(place > offset + HEADER && place + 184 < offset + 4000);
        // At its very place, too: there it has the epoch of a generation that this file superseded.
        for at in [offset + HEADER, offset + 160, place, place + 8, place - 8] {
            let torn = disk.snapshot();
            torn.kill();
            torn.zero(&path, offset..offset + 4080).unwrap();
            let handle = torn.open(&path, stepwell::vfs::Access::Write).unwrap();
            assert_eq!(handle.write_at(image, at).unwrap(), image.len());
            handle.sync_data().unwrap();
            let report = open(&torn, &options).unwrap().report().clone();
            assert!(
                report.cut.is_some() && report.last == Lsn::new(3),
                "at {at}"
            );
        }
    }
}
