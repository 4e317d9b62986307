//! Kills and power losses at every call to the disk, also inside recovery, and failures of every
//! call.
//!
//! The oracle (`Books::judge`): what was acknowledged or served is there, in order; behind it a
//! prefix of the batches whose outcome was unknown, each whole; nothing else. A legal crash always
//! opens (P5), a refused append never comes back (P7).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use stepwell::journal::{Damage, JournalOptions, Lsn, OpenError, ReadError, Reader};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

/// A life of a journal: appends of one to three records over about two segments, then a close.
/// Returns whether all of it was done.
fn life(disk: &SimVfs, options: &JournalOptions, books: &mut Books, appends: u64) -> bool {
    let Ok(opening) = open(disk, options) else {
        return false;
    };
    let Some(kept) = readable(opening.read(Lsn::ZERO)) else {
        return false;
    };
    books.judge(&kept);
    let Ok(journal) = begin(opening) else {
        return false;
    };
    if let Some(kept) = readable(journal.read(Lsn::ZERO)) {
        assert_eq!(kept, books.acknowledged);
    }
    for number in 0..appends {
        if !books.append(&journal, 1 + (number % 3) as usize, 700) {
            return false;
        }
    }
    journal.close().is_ok()
}

/// The records, or `None` if the disk itself failed; damage fails the test.
fn readable(reader: Reader) -> Option<Vec<Vec<u8>>> {
    let entries: Vec<_> = reader.collect();
    if entries
        .iter()
        .any(|entry| matches!(entry, Err(ReadError::Disk(_))))
    {
        return None;
    }
    Some(records(entries.into_iter()))
}

/// A disk with a journal that holds a few records, crashed once.
fn prepared(options: &JournalOptions) -> (SimVfs, Books) {
    let disk = disk();
    drop(create(&disk, options).unwrap());
    disk.kill();
    let mut books = Books::default();
    assert!(life(&disk, options, &mut books, 4));
    disk.kill();
    (disk, books)
}

fn crashes() -> Vec<Option<PowerLoss>> {
    let mut crashes = vec![None, Some(PowerLoss::DropAll), Some(PowerLoss::KeepAll)];
    crashes.extend((0..6).map(|seed| Some(PowerLoss::Seeded(seed))));
    crashes
}

fn crash(disk: &SimVfs, crash: Option<PowerLoss>) {
    match crash {
        None => disk.kill(),
        Some(loss) => disk.power_loss(loss),
    }
}

/// Every crash point of one life, each followed by every kind of crash.
#[test]
fn a_crash_at_every_call_loses_nothing_and_invents_nothing() {
    for supersede in [0, 1 << 20] {
        let options = options(supersede);
        let (start, start_books) = prepared(&options);
        for calls in 0.. {
            let mut finished = false;
            for kind in crashes() {
                let disk = start.snapshot();
                let mut books = start_books.clone();
                disk.crash_after(calls);
                finished = life(&disk, &options, &mut books, 12);
                crash(&disk, kind);
                let opening = open(&disk, &options)
                    .unwrap_or_else(|error| panic!("call {calls}, {kind:?}: {error}"));
                books.judge(&records(opening.read(Lsn::ZERO)));
                let journal = begin(opening).unwrap();
                assert!(books.append(&journal, 2, 100));
                assert_eq!(all(&journal), books.acknowledged, "call {calls}, {kind:?}");
            }
            if finished {
                assert!(calls > 60, "the life was too short: {calls} calls");
                break;
            }
        }
    }
}

/// A crash at every call, and then at every call of the recovery from it, with power losses.
#[test]
fn a_crash_inside_recovery_gives_the_same_answer() {
    for supersede in [0, 1 << 20] {
        let options = options(supersede);
        let (start, start_books) = prepared(&options);
        for calls in (0..).step_by(3) {
            let broken = start.snapshot();
            let mut books = start_books.clone();
            broken.crash_after(calls);
            let finished = life(&broken, &options, &mut books, 12);
            broken.power_loss(PowerLoss::Seeded(calls));
            for inner in (0..).step_by(2) {
                let disk = broken.snapshot();
                let mut books = books.clone();
                disk.crash_after(inner);
                let recovered = life(&disk, &options, &mut books, 1);
                crash(&disk, (inner % 4 != 0).then_some(PowerLoss::Seeded(inner)));
                let opening = open(&disk, &options)
                    .unwrap_or_else(|error| panic!("calls {calls} and {inner}: {error}"));
                books.judge(&records(opening.read(Lsn::ZERO)));
                if recovered {
                    break;
                }
            }
            if finished {
                break;
            }
        }
    }
}

/// A half-created journal opens as none or as an empty one, at every crash point of its creation.
#[test]
fn a_crash_while_creating_leaves_nothing_that_is_in_the_way() {
    let options = options(0);
    for calls in 0.. {
        let mut finished = false;
        for kind in crashes() {
            let disk = disk();
            disk.crash_after(calls);
            finished = create(&disk, &options).is_ok();
            crash(&disk, kind);
            let created = match open(&disk, &options) {
                Ok(opening) => begin(opening),
                Err(OpenError::NotFound { .. }) => create(&disk, &options),
                Err(error) => panic!("call {calls}, {kind:?}: {error}"),
            };
            let journal = created.unwrap();
            let _ = append(&journal, &[b"x".to_vec()]).unwrap();
            assert_eq!(all(&journal), [b"x".to_vec()]);
        }
        if finished {
            break;
        }
    }
}

/// Every call of a life fails once, in every manner; then the power goes.
#[test]
fn a_failure_of_any_call_has_one_of_three_outcomes() {
    let loss = PowerLoss::Seeded(7);
    let kinds = [
        FaultKind::Eio,
        FaultKind::Enospc,
        FaultKind::Edquot,
        FaultKind::Efbig,
        FaultKind::Erofs,
        FaultKind::Eintr,
        FaultKind::ShortWrite(0),
        FaultKind::ShortWrite(3),
        FaultKind::FailedWrite(100),
        FaultKind::SyncKept(loss),
        FaultKind::SyncReverted(loss),
        FaultKind::WriteBack(loss),
        FaultKind::DirSync(loss),
    ];
    let options = options(0);
    let (start, start_books) = prepared(&options);
    for kind in kinds {
        for skip in 0.. {
            let disk = start.snapshot();
            let mut books = start_books.clone();
            disk.fail_nth(|_| true, skip, kind);
            let finished = life(&disk, &options, &mut books, 12);
            let fired = disk.faults_fired() > 0;
            disk.clear_faults();
            crash(&disk, (skip % 3 != 0).then_some(PowerLoss::Seeded(skip)));
            let opening =
                open(&disk, &options).unwrap_or_else(|error| panic!("{kind:?} at {skip}: {error}"));
            books.judge(&records(opening.read(Lsn::ZERO)));
            drop(begin(opening).unwrap());
            if !fired {
                assert!(finished);
                break;
            }
        }
    }
}

/// A failed sync faults the journal for good: later appends are refused before they are written,
/// reads go on, and the close writes nothing (P8, W10).
#[test]
fn a_failed_sync_is_never_tried_again() {
    for kind in [
        FaultKind::SyncKept(PowerLoss::DropAll),
        FaultKind::SyncReverted(PowerLoss::DropAll),
        FaultKind::Eio,
    ] {
        let options = options(0);
        let disk = disk();
        let journal = create(&disk, &options).unwrap();
        let mut books = Books::default();
        assert!(books.append(&journal, 2, 100));
        disk.fail_nth(Op::is_sync, 0, kind);
        assert!(!books.append(&journal, 2, 100));
        assert_eq!(books.unknown.len(), 1);
        disk.clear_trace();
        assert!(!books.append(&journal, 1, 100));
        assert_eq!(
            books.refused.len(),
            1,
            "not handed to a write: not committed"
        );
        assert!(journal.fault().is_some());
        assert_eq!(all(&journal), books.acknowledged, "reads go on");
        assert!(journal.witness().is_err());
        assert!(journal.close().is_err());
        let after = disk.trace();
        assert!(
            !after.iter().any(|call| call.op.changes_disk()),
            "{kind:?}: {after:?}"
        );
        disk.power_loss(PowerLoss::DropAll);
        let opening = open(&disk, &options).unwrap();
        books.judge(&records(opening.read(Lsn::ZERO)));
    }
}

/// The disk is full while the next segment is prepared: typed, before a byte of the record is
/// written, and appends work again when there is space, without opening again.
#[test]
fn a_full_disk_is_a_definite_failure_and_ends_when_there_is_space() {
    let options = options(1 << 20);
    let disk = disk();
    let journal = create(&disk, &options).unwrap();
    let mut books = Books::default();
    disk.set_capacity(Some(disk.used() + 4096));
    while books.append(&journal, 1, 900) && books.refused.is_empty() {}
    assert!(journal.fault().is_none());
    let refused = append(&journal, &[payload(99, 900)]).unwrap_err();
    assert!(refused.to_string().contains("free some space"), "{refused}");
    assert_eq!(all(&journal), books.acknowledged);
    disk.set_capacity(None);
    assert!(books.append(&journal, 3, 900));
    disk.power_loss(PowerLoss::DropAll);
    let opening = open(&disk, &options).unwrap();
    books.judge(&records(opening.read(Lsn::ZERO)));
}

/// Reading a damaged or full disk needs no space (robustness 19).
#[test]
fn a_full_disk_can_be_read() {
    let options = options(0);
    let (disk, books) = prepared(&options);
    disk.set_capacity(Some(disk.used()));
    assert!(matches!(
        open(&disk, &options),
        Err(OpenError::StorageFull(_))
    ));
    disk.kill();
    let view = stepwell::journal::JournalView::open(vfs(&disk), &dir()).unwrap();
    assert_eq!(records(view.read(Lsn::ZERO)), books.acknowledged);
}

/// A writer that lost its lock unawares acknowledges nothing any more and harms nothing (W9, W12).
#[test]
fn an_overtaken_writer_acknowledges_nothing() {
    for appends in 0..30 {
        let options = options(0);
        let old = disk();
        let stale = create(&old, &options).unwrap();
        let mut books = Books::default();
        for _ in 0..appends {
            assert!(books.append(&stale, 1, 700));
        }
        let new = old.new_process();
        new.break_lock(dir().join("LOCK")).unwrap();
        let opening = open(&new, &options).unwrap();
        books.judge(&records(opening.read(Lsn::ZERO)));
        let journal = begin(opening).unwrap();
        // The old one goes on: an append, a roll, a close.
        let mut stale_books = Books::default();
        for _ in 0..30 {
            if !stale_books.append(&stale, 2, 700) {
                break;
            }
        }
        assert!(stale_books.acknowledged.is_empty(), "after {appends}");
        assert!(stale.close().is_err());
        assert!(books.append(&journal, 2, 100));
        new.power_loss(PowerLoss::KeepAll);
        let opening = open(&new, &options).unwrap();
        books.judge(&records(opening.read(Lsn::ZERO)));
    }
}

/// Random lives: seeds decide lengths, crashes and faults.
#[test]
fn random_lives_with_crashes_and_failed_syncs() {
    for seed in 0..150u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let options = options([0, 4096, 1 << 20][random(3) as usize]);
        let disk = disk();
        drop(create(&disk, &options).unwrap());
        disk.kill();
        let mut books = Books::default();
        for _ in 0..8 {
            match random(4) {
                0 => disk.crash_after(random(120)),
                1 => disk.fail_nth(Op::is_sync, random(25), {
                    let loss = PowerLoss::Seeded(seed);
                    [FaultKind::SyncKept(loss), FaultKind::SyncReverted(loss)][random(2) as usize]
                }),
                2 => disk.fail_nth(
                    |op| matches!(op, Op::Write { .. }),
                    random(25),
                    FaultKind::FailedWrite(random(3000) as usize),
                ),
                _ => {}
            }
            let appends = random(25);
            life(&disk, &options, &mut books, appends);
            disk.clear_faults();
            let loss = random(1000);
            crash(&disk, (random(3) > 0).then_some(PowerLoss::Seeded(loss)));
            match open(&disk, &options) {
                Ok(opening) => books.judge(&records(opening.read(Lsn::ZERO))),
                Err(OpenError::Damaged { damage, .. }) => {
                    let row: Damage = damage;
                    panic!("seed {seed}: a legal crash was refused: {row}");
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            disk.kill();
        }
    }
}

/// W12 at every moment: the stale writer appends between any two calls of the new owner's opening.
/// What it acknowledges then, the new owner holds.
#[test]
fn a_stale_writer_at_every_call_of_a_takeover_acknowledges_only_what_is_kept() {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    let mut acknowledged = 0;
    for supersede in [0, 1 << 20] {
        for moment in 0.. {
            let options = options(supersede);
            let old = disk();
            let stale = create(&old, &options).unwrap();
            let mut books = Books::default();
            for _ in 0..4 {
                assert!(books.append(&stale, 1, 700));
            }
            let new = old.new_process();
            new.break_lock(dir().join("LOCK")).unwrap();
            let books = Arc::new(Mutex::new(books));
            let calls = Arc::new(AtomicU64::new(0));
            let (late, count) = (books.clone(), calls.clone());
            new.set_hook(move |_| {
                if count.fetch_add(1, Ordering::SeqCst) == moment {
                    late.lock().unwrap().append(&stale, 2, 300);
                }
            });
            let opening = open(&new, &options);
            new.clear_hook();
            let opening = opening.unwrap_or_else(|error| panic!("at call {moment}: {error}"));
            let mut books = books.lock().unwrap().clone();
            acknowledged += books.acknowledged.len() - 4;
            books.judge(&records(opening.read(Lsn::ZERO)));
            if calls.load(Ordering::SeqCst) <= moment {
                break;
            }
        }
    }
    assert!(
        acknowledged > 0,
        "at the first calls it still had its right"
    );
}

/// Finding of an attack: a crash loop without commits grew the disk by a full segment each time, when
/// the last group was larger than what is copied.
#[test]
fn a_crash_loop_does_not_grow_the_disk() {
    for supersede in [0, 1 << 20] {
        let options = JournalOptions {
            supersede_limit: supersede,
            max_payload: 4 << 20,
            ..JournalOptions::default()
        };
        let disk = disk();
        let journal = create(&disk, &options).unwrap();
        let mut books = Books::default();
        assert!(books.append(&journal, 1, 1_200_000));
        drop(journal);
        let mut sizes = Vec::new();
        for _ in 0..12 {
            disk.kill();
            let journal = begin(open(&disk, &options).unwrap()).unwrap();
            assert_eq!(all(&journal), books.acknowledged);
            drop(journal);
            sizes.push(disk.files().iter().map(|(_, length)| length).sum::<u64>());
        }
        assert_eq!(sizes[2], sizes[11], "{sizes:?}");
    }
}

/// Finding of an attack: after a fault and a reopening in the same process, the old handle reported
/// what the new one had moved to a fresh file as lost. Reads go on (P8).
#[test]
fn reads_go_on_after_a_fault_and_a_reopening() {
    for supersede in [0, 1 << 20] {
        let options = options(supersede);
        let disk = disk();
        let journal = create(&disk, &options).unwrap();
        let mut books = Books::default();
        for _ in 0..50 {
            assert!(books.append(&journal, 1, 700));
        }
        let last = journal.read(Lsn::ZERO).last().unwrap().unwrap();
        disk.fail_nth(Op::is_sync, 0, FaultKind::SyncKept(PowerLoss::KeepAll));
        assert!(!books.append(&journal, 1, 700));
        assert!(journal.close().is_err());
        let new = begin(open(&disk, &options).unwrap()).unwrap();
        let _ = append(&new, &[payload(7, 100)]).unwrap();
        assert_eq!(all(&journal), books.acknowledged);
        assert_eq!(journal.read_at(&last.position).unwrap(), Some(last));
    }
}
