//! The order of the calls to the disk where a crash alone does not show it, and rights that only
//! three processes at once can confuse (W8, W9, W12).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stepwell::journal::{AppendError, FaultCause, Lsn};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

fn is(path: &Path, what: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(what))
}

fn ops(disk: &SimVfs) -> Vec<Op> {
    disk.trace().into_iter().map(|call| call.op).collect()
}

fn take_lock(disk: &SimVfs) {
    disk.break_lock(dir().join("LOCK")).unwrap();
}

/// W12: the right of the predecessors ends before the scan. On one machine a removal that is only
/// visible would do; where others look at the disk, it has to be on it.
#[test]
fn the_end_of_older_rights_is_synced_before_the_scan() {
    let disk = disk();
    let journal = create(&disk, &options(0)).unwrap();
    put(&journal, payload(1, 100));
    drop(journal);
    disk.kill();
    disk.clear_trace();
    let _opening = open(&disk, &options(0)).unwrap();
    let ops = ops(&disk);
    let removed = |op: &Op| matches!(op, Op::RemoveFile { path } if is(path, "MANIFEST"));
    let read = |op: &Op| matches!(op, Op::Read { path, .. } if is(path, "seg-"));
    let removal = ops.iter().position(removed).unwrap();
    let after = &ops[removal..];
    let scan = after.iter().position(read).unwrap();
    let sync = after[..scan]
        .iter()
        .rposition(|op| matches!(op, Op::SyncDir { .. }));
    let last = after[..scan].iter().rposition(removed).unwrap();
    assert!(sync.is_some_and(|sync| sync > last), "{after:?}");
}

/// W8: the cut at the tail is the last thing that a clean close changes, and is synced. Without
/// that a crash may leave either length, and both are legal (row 8).
#[test]
fn the_cut_of_a_clean_close_is_synced() {
    let disk = disk();
    let journal = create(&disk, &options(0)).unwrap();
    put(&journal, payload(1, 100));
    disk.clear_trace();
    journal.close().unwrap();
    let ops = ops(&disk);
    let cut = ops
        .iter()
        .rposition(|op| matches!(op, Op::SetLen { .. }))
        .unwrap();
    let rest = &ops[cut..];
    let synced = |op: &Op| matches!(op, Op::SyncData { path } if &**path == ops[cut].path());
    assert!(rest.iter().any(synced), "{rest:?}");
    // What the cut relies on, the slots, was synced before it.
    let slots = ops
        .iter()
        .rposition(|op| matches!(op, Op::Write { .. }))
        .unwrap();
    assert!(ops[slots..cut].iter().any(synced), "{ops:?}");
}

/// W12: a number whose name was freed can be taken again for a moment, by an opening that began
/// long ago and finds out in its listing. The writer that had that number is overtaken all the same:
/// the file behind the name counts, not the name.
#[test]
fn a_manifest_of_another_under_the_own_name_is_no_right() {
    let options = options(0);
    let first = disk();
    let writer = create(&first, &options).unwrap();
    put(&writer, payload(1, 100));
    let late = first.new_process();
    let newer = first.new_process();
    let (opened, answer) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let (new, told, process) = (opened.clone(), answer.clone(), newer.clone());
    let number = |disk: &SimVfs| {
        let files = disk.files().into_iter().map(|(path, _)| path);
        files.filter(|path| is(path, "MANIFEST")).max().unwrap()
    };
    let published = Arc::new(Mutex::new(None));
    let own = published.clone();
    let links = AtomicU64::new(0);
    let settings = options.clone();
    // Of the opening that comes late only: the others act within its calls.
    let inside = Mutex::new(move |op: &Op| {
        match op {
            Op::HardLink { path, .. } if is(path, "MANIFEST") => {
                if links.fetch_add(1, Ordering::SeqCst) > 0 {
                    return;
                }
                // The writer publishes that very number, with its next segment.
                let mut number = 100;
                while !process.files().iter().any(|(name, _)| name == &**path) {
                    number += 1;
                    put(&writer, payload(number, 900));
                }
                *own.lock().unwrap() = Some(path.to_path_buf());
                // And loses it to an owner that goes on and removes it.
                take_lock(&process);
                let journal = begin(open(&process, &settings).unwrap()).unwrap();
                put(&journal, payload(2, 100));
                assert!(!process.files().iter().any(|(name, _)| name == &**path));
                *new.lock().unwrap() = Some(journal);
            }
            Op::List { .. } if links.load(Ordering::SeqCst) == 1 => {
                links.fetch_add(1, Ordering::SeqCst);
                *told.lock().unwrap() = Some(append(&writer, &[payload(3, 100)]));
            }
            _ => {}
        }
    });
    take_lock(&first);
    first.set_hook(move |op| {
        if let Ok(inside) = inside.try_lock() {
            inside(op);
        }
    });
    let opening = open(&late, &options);
    first.clear_hook();
    let own = published.lock().unwrap().clone().unwrap();
    assert!(
        own < number(&newer),
        "the number was taken again for a moment only"
    );
    let answer = answer.lock().unwrap().take().unwrap();
    let Err(AppendError::Unknown(fault)) = answer else {
        panic!("an overtaken writer was answered {answer:?}");
    };
    assert!(
        matches!(fault.cause(), FaultCause::Overtaken { .. }),
        "{fault}"
    );
    drop((opening, opened.lock().unwrap().take()));
}

/// W9: what only the page cache holds since a failed sync is copied and synced by the next opening,
/// also where a roll was under way and the segment is sealed already: a seal whose sync failed late
/// vouches for nothing.
#[test]
fn an_opening_heals_a_sealed_segment_that_only_the_page_cache_holds() {
    let options = options(0);
    let disk = disk();
    let journal = create(&disk, &options).unwrap();
    let mut books = Books::default();
    let tail = |disk: &SimVfs| {
        let files = disk.files().into_iter().map(|(path, _)| path);
        files.filter(|path| is(path, "seg-")).count()
    };
    assert!(books.append(&journal, 1, 12_000));
    // The sync of this group says Ok and loses it; the sync of the seal is told.
    disk.fail_nth(
        |op| matches!(op, Op::SyncData { path } if is(path, "seg-0000000001")),
        0,
        FaultKind::SyncLate(PowerLoss::DropAll),
    );
    assert!(books.append(&journal, 1, 2000));
    assert!(!books.append(&journal, 1, 4000), "the roll must fail");
    assert!(disk.faults_fired() > 0);
    assert_eq!(tail(&disk), 2, "the successor is listed, and unused");
    drop(journal);
    disk.kill();
    let opening = open(&disk, &options).unwrap();
    books.judge(&records(opening.read(Lsn::ZERO)));
    let journal = begin(opening).unwrap();
    assert!(books.append(&journal, 1, 100));
    disk.power_loss(PowerLoss::DropAll);
    let opening = open(&disk, &options).unwrap();
    books.judge(&records(opening.read(Lsn::ZERO)));
}
