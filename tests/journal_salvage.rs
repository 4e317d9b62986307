//! What is left of a damaged journal, and what views keep: findings of the simulation.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use stepwell::journal::{Entry, JournalOptions, JournalView, Lsn, ReadError};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::{PowerLoss, SimVfs};
use support::*;

fn view(disk: &SimVfs) -> JournalView {
    JournalView::open(vfs(disk), &dir()).unwrap()
}

fn entries(view: &JournalView) -> Vec<Entry> {
    view.read(Lsn::ZERO).filter_map(Result::ok).collect()
}

fn small() -> JournalOptions {
    JournalOptions {
        first_capacity: 4096,
        max_capacity: 4096,
        ..options(1 << 20)
    }
}

/// Simulation, seed 1: with its first frame damaged, the view began at the second Lsn, did not find
/// it at the beginning of the file, and passed over it too.
#[test]
fn damage_to_the_first_record_hides_no_other() {
    let disk = disk();
    let journal = create(&disk, &small()).unwrap();
    let mut books = Books::default();
    for _ in 0..4 {
        assert!(books.append(&journal, 1, 100));
    }
    let whole = entries(&view(&disk));
    disk.kill();
    for frame in &whole {
        let damaged = disk.snapshot();
        let path = dir().join(frame.position.segment.to_string());
        damaged.flip_byte(&path, frame.position.offset).unwrap();
        let seen = view(&damaged);
        if frame.lsn == whole.last().unwrap().lsn {
            continue;
        }
        assert!(seen.damage().is_some());
        let rest: Vec<Entry> = whole
            .iter()
            .filter(|entry| entry.lsn != frame.lsn)
            .cloned()
            .collect();
        let shown: Vec<Lsn> = entries(&seen).iter().map(|entry| entry.lsn).collect();
        let expected: Vec<Lsn> = rest.iter().map(|entry| entry.lsn).collect();
        assert_eq!(shown, expected, "{} is damaged", frame.lsn);
        let gaps = seen.read(Lsn::ZERO).filter_map(Result::err);
        let gap = gaps.map(|error| match error {
            ReadError::Damaged { first, last, .. } => (first, last),
            other => panic!("{other}"),
        });
        assert_eq!(gap.collect::<Vec<_>>(), [(frame.lsn, frame.lsn)]);
    }
}

/// Simulation, seeds 57 and 973: without a manifest, files that count no more (of an overtaken
/// writer, or of an opening that was cut off) were read, and their records called proven.
#[test]
fn without_a_manifest_nothing_comes_up_that_was_given_up() {
    for supersede in [0, 1 << 20] {
        let options = JournalOptions {
            supersede_limit: supersede,
            ..small()
        };
        let disk = disk();
        let stale = create(&disk, &options).unwrap();
        let mut books = Books::default();
        assert!(books.append(&stale, 2, 100));
        disk.open_dir(&dir()).unwrap().sync().unwrap();
        let new = disk.new_process();
        new.break_lock(dir().join("LOCK")).unwrap();
        let journal = begin(open(&new, &options).unwrap()).unwrap();
        // In the old file, whose name is not gone for good yet; more than the new one holds.
        let mut given_up = Books {
            next: 1000,
            ..Books::default()
        };
        assert!(!given_up.append(&stale, 3, 100));
        assert!(books.append(&journal, 1, 100));
        let whole = entries(&view(&new));
        drop((stale, journal));
        new.power_loss(PowerLoss::DropAll);
        new.flip_byte(newest_manifest(&new), 100).unwrap();
        let seen = view(&new);
        assert!(seen.damage().is_some());
        assert_eq!(
            records(entries(&seen).into_iter().map(Ok)),
            books.acknowledged
        );
        assert_eq!(entries(&seen).len(), whole.len());
    }
}

/// Simulation, seed 504334: the fresh file of an opening had no room for its fence, which went to the
/// next segment, and from there into the file of the opening after it. Nothing with the epoch of the
/// fresh file held a fence of it any more, so it was taken for one that was never listed, and what an
/// overtaken writer had written in vain, further than the fresh file reaches, came up as proven.
#[test]
fn a_file_counts_whose_fence_was_copied_to_a_later_one() {
    let roomy = JournalOptions {
        first_capacity: 4096,
        max_capacity: 16384,
        ..options(0)
    };
    let tight = JournalOptions {
        max_capacity: 4096,
        ..roomy.clone()
    };
    let old = disk();
    let stale = create(&old, &roomy).unwrap();
    let mut books = Books::default();
    assert!(books.append(&stale, 1, 3800));
    // The second segment: one group that stays in it, and two that with a fence fill two blocks
    // to the last 88 bytes.
    for length in [100, 3912, 3920] {
        assert!(books.append(&stale, 1, length));
    }
    let new = old.new_process();
    new.break_lock(dir().join("LOCK")).unwrap();
    drop(begin(open(&new, &roomy).unwrap()).unwrap());
    let mut given_up = Books {
        next: 1000,
        ..Books::default()
    };
    assert!(!given_up.append(&stale, 3, 100));
    new.kill();
    // Its fence stands alone in a segment of its own, and the next opening takes it along.
    drop(begin(open(&new, &tight).unwrap()).unwrap());
    new.kill();
    let journal = begin(open(&new, &roomy).unwrap()).unwrap();
    assert!(books.append(&journal, 1, 100));
    let whole = entries(&view(&new));
    drop((stale, journal));
    new.kill();
    new.flip_byte(newest_manifest(&new), 100).unwrap();
    let seen = view(&new);
    assert!(seen.damage().is_some());
    let found = entries(&seen);
    let shown = |entries: &[Entry]| -> Vec<(Lsn, Vec<u8>)> {
        let pairs = entries
            .iter()
            .map(|entry| (entry.lsn, entry.payload.clone()));
        pairs.collect()
    };
    assert_eq!(shown(&found), shown(&whole));
    assert_eq!(records(found.into_iter().map(Ok)), books.acknowledged);
}

/// Simulation, seed 2053284: a writer was overtaken, and the newer owner served. The opening after that
/// one replaced its file, and ended before it wrote a fence of its own. So the file had no sign of its
/// own epoch, reached less far than what the overtaken writer had written in vain, and was taken for
/// one that was never listed; the record that was given up came up in the place of one that had been
/// acknowledged. The copied fence says where the overtaken writer ends.
#[test]
fn an_overtaken_writer_ends_at_the_fence_that_was_copied_by_one_who_never_served() {
    let closing = JournalOptions {
        first_capacity: 16384,
        max_capacity: 16384,
        ..options(0)
    };
    let copying = JournalOptions {
        supersede_limit: 1 << 20,
        ..closing.clone()
    };
    let old = disk();
    let stale = create(&old, &closing).unwrap();
    let mut books = Books::default();
    // Groups enough that the next owner leaves some of them in this file and goes on listing it.
    for _ in 0..3 {
        assert!(books.append(&stale, 1, 100));
    }
    let new = old.new_process();
    new.break_lock(dir().join("LOCK")).unwrap();
    let journal = begin(open(&new, &closing).unwrap()).unwrap();
    let mut given_up = Books {
        next: 1000,
        ..Books::default()
    };
    assert!(!given_up.append(&stale, 4, 100));
    assert!(books.append(&journal, 1, 100));
    drop((stale, journal));
    new.kill();
    // It copies the file of the newer owner and lists the copy; its own fence is never written.
    drop(open(&new, &copying).unwrap());
    new.kill();
    let whole = entries(&view(&new));
    let names = whole.iter().map(|entry| entry.position.segment);
    assert!(names.clone().any(|name| name.generation == 1));
    new.flip_byte(newest_manifest(&new), 100).unwrap();
    let seen = view(&new);
    assert!(seen.damage().is_some());
    let found: Vec<Entry> = seen.read(Lsn::ZERO).map(|entry| entry.unwrap()).collect();
    assert_eq!(lsns(&found), lsns(&whole));
    assert_eq!(records(found.into_iter().map(Ok)), books.acknowledged);
}

/// Simulation, seed 2170987: the newest manifest is lost, and the one before it is there again. What it
/// lists was replaced by then, and the file in its place was not read.
#[test]
fn the_file_in_the_place_of_a_listed_one_is_read_when_the_manifest_between_is_lost() {
    let options = JournalOptions {
        supersede_limit: 1 << 20,
        ..small()
    };
    let disk = disk();
    let journal = create(&disk, &options).unwrap();
    let mut books = Books::default();
    assert!(books.append(&journal, 2, 100));
    drop(journal);
    disk.kill();
    // The manifest that an opening publishes first, to end the right of those before it.
    let number =
        |path: &std::path::Path| path.to_string_lossy().rsplit('-').next().map(str::to_owned);
    let before = newest_manifest(&disk);
    let first = (1..)
        .map(|calls| {
            let cut = disk.snapshot();
            cut.crash_after(calls);
            drop(open(&cut, &options));
            cut.kill();
            cut
        })
        .find(|cut| number(&newest_manifest(cut)) > number(&before))
        .unwrap();
    let path = newest_manifest(&first);
    let bytes = first.read_file(&path).unwrap();
    // Its fence, which would tell, is not there yet.
    drop(open(&disk, &options).unwrap());
    let whole = entries(&view(&disk));
    disk.kill();
    let newest = newest_manifest(&disk);
    assert!(number(&newest) > number(&path));
    disk.remove_file(&newest).unwrap();
    let file = disk.create(&path).unwrap();
    assert_eq!(file.write_at(&bytes, 0).unwrap(), bytes.len());
    let seen = view(&disk);
    assert!(seen.damage().is_some());
    assert_eq!(lsns(&entries(&seen)), lsns(&whole));
    assert_eq!(
        records(entries(&seen).into_iter().map(Ok)),
        books.acknowledged
    );
}

fn newest_manifest(disk: &SimVfs) -> std::path::PathBuf {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let manifests = files.filter(|path| path.to_string_lossy().contains("MANIFEST"));
    manifests.max().unwrap()
}

fn lsns(entries: &[Entry]) -> Vec<Lsn> {
    entries.iter().map(|entry| entry.lsn).collect()
}

/// Simulation, seed 3449: a view was opened between a roll and the first record behind it; the next
/// opening copied the sealed segment, and the view could not read it any more.
#[test]
fn a_view_reads_on_after_the_next_opening_whenever_it_was_opened() {
    let options = small();
    let start = disk();
    let mut books = Books::default();
    let journal = create(&start, &options).unwrap();
    assert!(books.append(&journal, 1, 900));
    drop(journal);
    start.kill();
    for calls in 0.. {
        let disk = start.snapshot();
        let mut books = books.clone();
        disk.crash_after(calls);
        let mut finished = false;
        if let Ok(opening) = open(&disk, &options)
            && let Ok(journal) = begin(opening)
        {
            finished = (0..4).all(|_| books.append(&journal, 2, 700));
        }
        let looking = disk.new_process();
        let kept = view(&looking);
        let before = entries(&kept);
        disk.kill();
        let journal = begin(open(&disk, &options).unwrap()).unwrap();
        assert!(books.append(&journal, 1, 100));
        let after: Vec<Entry> = kept.read(Lsn::ZERO).map(|entry| entry.unwrap()).collect();
        assert_eq!(after, before, "opened after {calls} calls");
        if finished {
            break;
        }
    }
}
