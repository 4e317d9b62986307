//! What is done aside: preparing the next segment (W4, W9) and witness slots (W8).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::sync::Arc;

use stepwell::journal::{
    AppendError, Carry, FaultCause, Journal, JournalView, Lsn, NoCarry, NotCommitted, Owner,
    Workers,
};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use stepwell::vfs::{Access, Vfs};
use support::*;

fn journal(disk: &SimVfs) -> (Journal, Workers) {
    carrying(disk, Arc::new(NoCarry))
}

fn carrying(disk: &SimVfs, carry: Arc<dyn Carry>) -> (Journal, Workers) {
    let workers = Workers::manual();
    let owner = Owner::Session(session());
    let opening = Journal::create(vfs(disk), &dir(), owner, options(0)).unwrap();
    let opening = opening.workers(workers.clone());
    let journal = opening.begin(&[], carry).unwrap().0;
    (journal, workers)
}

/// The calls that changed the disk since the trace was cleared, in short.
fn changes(disk: &SimVfs) -> Vec<String> {
    let calls = disk.trace();
    let changing = calls.iter().filter(|call| call.op.changes_disk());
    changing
        .map(|call| match &call.op {
            Op::Write { offset, length, .. } => format!("write {offset}+{length}"),
            Op::SyncData { .. } => "sync".to_owned(),
            Op::Create { .. } => "create".to_owned(),
            Op::SyncDir { .. } => "sync directory".to_owned(),
            other => format!("{other:?}"),
        })
        .collect()
}

/// Fills the active segment (16 KiB) to more than its half.
fn fill_half(journal: &Journal) {
    for number in 0..2 {
        put(journal, payload(number, 5000));
    }
}

#[test]
fn the_next_segment_is_ready_before_it_is_needed() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    disk.clear_trace();
    put(&journal, payload(0, 5000));
    while workers.run_one() {}
    assert!(
        !changes(&disk).iter().any(|change| change == "create"),
        "it is prepared at half, not earlier"
    );
    put(&journal, payload(1, 5000));
    while workers.run_one() {}
    assert!(changes(&disk).iter().any(|change| change == "create"));
    disk.clear_trace();
    put(&journal, payload(2, 8000));
    // W7: footer, seal, sync; then the group and its sync. Nothing else stands before a commit.
    let rolled = changes(&disk);
    assert_eq!(rolled.len(), 5, "{rolled:?}");
    assert!(rolled[1].starts_with("write 12288+"), "{rolled:?}");
    assert_eq!(rolled[2], "sync");
    assert!(rolled[3].starts_with("write 16384+"), "{rolled:?}");
    assert_eq!(rolled[4], "sync");
    assert_eq!(all(&journal).len(), 3);
}

#[test]
fn commits_go_on_between_the_steps_of_preparing() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    fill_half(&journal);
    let mut written = 2;
    // However many steps are done before the segment is needed, the rest is done then.
    while workers.run_one() {
        put(&journal, payload(written, 2000));
        written += 1;
        if written > 60 {
            break;
        }
    }
    let expected: Vec<_> = (0..written)
        .map(|number| payload(number, if number < 2 { 5000 } else { 2000 }))
        .collect();
    assert_eq!(all(&journal), expected);
    drop(journal);
    let opening = open(&disk, &options(0)).unwrap();
    assert_eq!(records(opening.read(Lsn::ZERO)), expected);
}

/// W4: running out of space shows while the next segment is prepared, and commits go on while there
/// is room; no space is a certain answer, and ends when space returns.
#[test]
fn a_full_disk_shows_ahead_and_ends_without_reopening() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    disk.set_capacity(Some(disk.used() + 4096));
    fill_half(&journal);
    assert_eq!(journal.health().lacking, None);
    while workers.run_one() {}
    assert!(matches!(
        journal.health().lacking,
        Some(NotCommitted::StorageFull(_))
    ));
    let mut number = 2;
    let refusal = loop {
        match append(&journal, &[payload(number, 900)]) {
            Ok(_) => number += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!(number > 4, "there was room for more");
    assert!(matches!(
        refusal,
        AppendError::NotCommitted(NotCommitted::StorageFull(_))
    ));
    assert_eq!(journal.fault(), None);
    disk.set_capacity(None);
    put(&journal, payload(number, 900));
    assert_eq!(journal.health().lacking, None);
    assert_eq!(all(&journal).len() as u64, number + 1);
}

/// A footer can be rebuilt by reading, so neither the want of space for it nor a layer above that
/// panics stands between a segment and its seal.
#[test]
fn a_segment_is_sealed_without_what_can_be_rebuilt() {
    #[derive(Debug)]
    struct Panics;
    impl Carry for Panics {
        fn carry(&self, _: Lsn) -> Vec<u8> {
            panic!("it does so on purpose")
        }
    }
    for full in [None, Some(FaultKind::Enospc), Some(FaultKind::Efbig)] {
        let disk = disk();
        let (journal, workers) = carrying(&disk, Arc::new(Panics));
        fill_half(&journal);
        while workers.run_one() {}
        disk.clear_trace();
        if let Some(full) = full {
            disk.fail_nth(|op| matches!(op, Op::Write { .. }), 0, full);
        }
        put(&journal, payload(2, 8000));
        assert_eq!(disk.faults_fired(), u64::from(full.is_some()));
        assert_eq!(all(&journal).len(), 3);
        journal.close().unwrap();
        let opening = open(&disk, &options(0)).unwrap();
        assert_eq!(records(opening.read(Lsn::ZERO)).len(), 3);
    }
}

/// W6, W10: a directory sync that fails aside poisons as one on the commit path does.
#[test]
fn a_failed_directory_sync_aside_faults_the_journal() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    fill_half(&journal);
    let at_directory = |op: &Op| matches!(op, Op::SyncDir { .. });
    disk.fail_nth(at_directory, 0, FaultKind::DirSync(PowerLoss::DropAll));
    while workers.run_one() {}
    let fault = journal.fault().unwrap();
    assert!(matches!(fault.cause(), FaultCause::Directory(_)));
    assert_eq!(
        append(&journal, &[payload(2, 10)]),
        Err(AppendError::NotCommitted(NotCommitted::Faulted(fault)))
    );
    // Nothing is written behind the fault (W10).
    disk.clear_trace();
    while workers.run_one() {}
    assert!(journal.close().is_err());
    drop(journal);
    assert_eq!(changes(&disk), Vec::<String>::new());
    assert_eq!(
        records(open(&disk, &options(0)).unwrap().read(Lsn::ZERO)).len(),
        2
    );
}

/// W12: an owner that took over ends the right of the one before, also in the middle of what that
/// one does aside.
#[test]
fn an_overtaken_journal_prepares_and_acknowledges_nothing_more() {
    for steps in 0..8 {
        let disk = disk();
        let (journal, workers) = journal(&disk);
        fill_half(&journal);
        for _ in 0..steps {
            workers.run_one();
        }
        let new_process = disk.new_process();
        new_process.break_lock(dir().join("LOCK")).unwrap();
        let opening = open(&new_process, &options(0)).unwrap();
        let new = begin(opening).unwrap();
        put(&new, payload(9, 100));
        while workers.run_one() {}
        for number in 2..12 {
            assert!(
                append(&journal, &[payload(number, 3000)]).is_err(),
                "{steps}"
            );
        }
        let fault = journal.fault().unwrap();
        assert!(
            matches!(fault.cause(), FaultCause::Overtaken { .. }),
            "{steps}: {fault}"
        );
        let mut expected: Vec<_> = (0..2).map(|number| payload(number, 5000)).collect();
        expected.push(payload(9, 100));
        assert_eq!(all(&new), expected, "{steps}");
        drop((new, journal));
        let opening = open(&new_process, &options(0)).unwrap();
        assert_eq!(records(opening.read(Lsn::ZERO)), expected, "{steps}");
    }
}

/// W8: after a moment without a group its slot is written, later it is synced, and then nothing.
#[test]
fn an_idle_journal_writes_one_slot_and_then_nothing() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    put(&journal, payload(0, 10));
    while workers.run_one() {}
    put(&journal, payload(1, 10));
    put(&journal, payload(2, 10));
    disk.clear_trace();
    // The first look sees that there was a group since, the second that there was none.
    let proven = |disk: &SimVfs| {
        let view = JournalView::open(vfs(disk), &dir()).unwrap();
        view.report().watermark
    };
    assert_eq!(proven(&disk), Lsn::new(3));
    while changes(&disk).is_empty() {
        assert!(workers.run_one());
    }
    let slot = changes(&disk);
    assert_eq!(slot.len(), 1, "{slot:?}");
    assert!(slot[0].ends_with("+64"), "{slot:?}");
    assert_eq!(
        proven(&disk),
        Lsn::new(4),
        "followers see the last record now"
    );
    assert!(workers.run_one());
    assert_eq!(changes(&disk).last().unwrap(), "sync");
    assert!(!workers.run_one());
    assert_eq!(changes(&disk).len(), 2);
    // The next slot goes to the other place.
    put(&journal, payload(3, 10));
    while workers.run_one() {}
    let slots: Vec<_> = changes(&disk)
        .into_iter()
        .filter(|change| change.ends_with("+64"))
        .collect();
    assert_eq!(slots.len(), 2);
    assert_ne!(slots[0], slots[1]);
}

#[test]
fn a_group_between_a_slot_and_its_sync_gets_a_slot_of_its_own() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    put(&journal, payload(0, 10));
    disk.clear_trace();
    while !changes(&disk).iter().any(|change| change.ends_with("+64")) {
        assert!(workers.run_one());
    }
    put(&journal, payload(1, 10));
    while workers.run_one() {}
    let view = JournalView::open(vfs(&disk), &dir()).unwrap();
    assert_eq!(view.report().watermark, Lsn::new(3));
    assert_eq!(changes(&disk).last().unwrap(), "sync");
}

/// A session that is closed keeps no more of the disk than it needs: what was sealed is cut to its
/// end, and the empty successor to its header.
#[test]
fn a_clean_close_leaves_no_unused_space() {
    let disk = disk();
    let (journal, workers) = journal(&disk);
    fill_half(&journal);
    while workers.run_one() {}
    let before = disk.used();
    journal.close().unwrap();
    drop(journal);
    // The fence and two records with their headers, footer and seal; and the successor's four blocks.
    let frames = 2 * 5080 + 112;
    assert!(disk.used() < before, "{before}");
    let small = |name: &str| name.starts_with("MANIFEST") || name == "LOCK" || name == "HOLDER";
    let segments: u64 = disk
        .list(&dir())
        .unwrap()
        .into_iter()
        .filter(|entry| !small(&entry.name))
        .map(|entry| {
            disk.open(&dir().join(entry.name), Access::Read)
                .unwrap()
                .len()
                .unwrap()
        })
        .sum();
    assert!(
        segments < 2 * 16 * 1024 + frames + 4096 + 1024,
        "{segments}"
    );
}
