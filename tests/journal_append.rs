//! Appending, reading, rolling, closing and opening again, without faults.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::sync::Arc;

use stepwell::identity::SessionId;
use stepwell::journal::{
    AppendError, FrameKind, Journal, JournalView, Lsn, NewRecord, NoCarry, NotCommitted, OpenError,
    Owner, Seq, Workers,
};
use stepwell::vfs::sim::PowerLoss;
use support::*;

#[test]
fn what_was_appended_is_read_in_order_across_segments_and_openings() {
    for supersede in [0, 4096, 1 << 20] {
        let (disk, options) = (disk(), options(supersede));
        let mut journal = create(&disk, &options).unwrap();
        let mut books = Books::default();
        for round in 0..5 {
            for number in 0..40 {
                assert!(books.append(&journal, 1 + number % 3, 300));
            }
            assert_eq!(all(&journal), books.acknowledged, "round {round}");
            match round % 3 {
                0 => journal.close().unwrap(),
                1 => disk.kill(),
                _ => disk.power_loss(PowerLoss::DropAll),
            }
            let opening = open(&disk, &options).unwrap();
            assert_eq!(opening.report().cut, None);
            assert_eq!(records(opening.read(Lsn::ZERO)), books.acknowledged);
            journal = begin(opening).unwrap();
            assert_eq!(all(&journal), books.acknowledged);
        }
    }
}

#[test]
fn sequences_have_no_gaps_and_each_record_names_the_one_before_it() {
    let (disk, options) = (disk(), options(2048));
    let mut journal = create(&disk, &options).unwrap();
    let mut books = Books::default();
    for _ in 0..3 {
        for _ in 0..20 {
            books.append(&journal, 2, 500);
        }
        disk.kill();
        journal = begin(open(&disk, &options).unwrap()).unwrap();
    }
    let (mut lsn, mut seq, mut previous) = (Lsn::ZERO, Seq::ZERO, Lsn::ZERO);
    for entry in journal.read(Lsn::ZERO) {
        let entry = entry.unwrap();
        assert_eq!(entry.lsn, lsn.next());
        lsn = entry.lsn;
        if entry.kind == FrameKind::Record {
            assert_eq!(entry.seq, seq.next());
            assert_eq!(entry.previous, previous);
            seq = entry.seq;
            previous = entry.lsn;
            assert_eq!(journal.read_at(&entry.position).unwrap(), Some(entry));
        }
    }
    assert_eq!(seq.get(), books.acknowledged.len() as u64);
    assert_eq!(journal.last_seq(session()), seq);
    let from = Lsn::new(lsn.get() - 5);
    assert_eq!(journal.read(from).count(), 6);
}

#[test]
fn an_append_at_a_position_that_has_passed_writes_nothing() {
    let disk = disk();
    let journal = create(&disk, &options(0)).unwrap();
    let record = |payload| NewRecord {
        session: session(),
        payload,
    };
    let receipt = journal.append(&[record(b"a")], Some(Seq::ZERO)).unwrap();
    assert_eq!(receipt.records[0].seq, Seq::new(1));
    assert_eq!(
        journal.append(&[record(b"b")], Some(Seq::ZERO)),
        Err(AppendError::NotCommitted(NotCommitted::WrongPosition {
            expected: Seq::ZERO,
            actual: Seq::new(1),
        }))
    );
    assert_eq!(all(&journal), [b"a".to_vec()]);
}

#[test]
fn what_is_too_large_is_refused_and_the_journal_goes_on() {
    let disk = disk();
    let options = options(0);
    let journal = create(&disk, &options).unwrap();
    let large = vec![1; options.max_payload as usize + 1];
    assert!(matches!(
        append(&journal, &[large]),
        Err(AppendError::NotCommitted(
            NotCommitted::RecordTooLarge { .. }
        ))
    ));
    assert_eq!(
        append(&journal, &[]),
        Err(AppendError::NotCommitted(NotCommitted::Empty))
    );
    // A record larger than a segment gets a segment that fits it.
    let fits = vec![2; options.max_payload as usize];
    let _ = append(&journal, std::slice::from_ref(&fits)).unwrap();
    let _ = append(&journal, &[b"after".to_vec()]).unwrap();
    disk.power_loss(PowerLoss::DropAll);
    let journal = begin(open(&disk, &options).unwrap()).unwrap();
    assert_eq!(all(&journal), [fits, b"after".to_vec()]);
}

#[test]
fn one_writer_at_a_time_and_readers_at_any_time() {
    let disk = disk();
    let options = options(0);
    let journal = create(&disk, &options).unwrap();
    let mut books = Books::default();
    books.append(&journal, 2, 100);
    let other = disk.new_process();
    assert!(matches!(
        open(&other, &options),
        Err(OpenError::Locked { .. })
    ));
    other.clear_trace();
    let view = JournalView::open(vfs(&other), &dir()).unwrap();
    assert_eq!(records(view.read(Lsn::ZERO)), books.acknowledged);
    assert!(!other.trace().iter().any(|call| call.op.changes_disk()));
    // The last group is present but not proven: nothing later vouches for it yet.
    let proven: Vec<bool> = view
        .read(Lsn::ZERO)
        .map(|entry| entry.unwrap().proven)
        .collect();
    assert_eq!(proven, [true, false, false]);
    journal.close().unwrap();
    assert!(open(&other, &options).is_ok());
}

#[test]
fn another_sessions_journal_is_refused() {
    let disk = disk();
    create(&disk, &options(0)).unwrap();
    disk.kill();
    let other = SessionId::from_bytes([1; 16]);
    let refused = Journal::open(vfs(&disk), &dir(), Owner::Session(other), options(0));
    assert!(matches!(refused, Err(OpenError::WrongOwner { .. })));
}

#[test]
fn creating_twice_and_opening_nothing_are_told_apart() {
    let disk = disk();
    assert!(matches!(
        open(&disk, &options(0)),
        Err(OpenError::NotFound { .. })
    ));
    let journal = create(&disk, &options(0)).unwrap();
    let _ = append(&journal, &[b"x".to_vec()]).unwrap();
    disk.kill();
    assert!(matches!(
        create(&disk, &options(0)),
        Err(OpenError::AlreadyExists { .. })
    ));
    let mut missing = options(0);
    missing.first_capacity = 1000;
    assert!(matches!(
        open(&disk, &missing),
        Err(OpenError::Capacity { capacity: 1000 })
    ));
}

#[test]
fn the_first_records_share_one_sync_with_the_fence() {
    let disk = disk();
    let options = options(1 << 20);
    create(&disk, &options).unwrap();
    disk.kill();
    let opening = open(&disk, &options).unwrap();
    let record = NewRecord {
        session: session(),
        payload: b"with the fence",
    };
    disk.clear_trace();
    let opening = opening.workers(Workers::manual());
    let (journal, receipt) = opening.begin(&[record, record], Arc::new(NoCarry)).unwrap();
    assert_eq!(receipt.records.len(), 2);
    assert_eq!(
        disk.trace().iter().filter(|call| call.op.is_sync()).count(),
        1
    );
    let batches: Vec<_> = journal
        .read(receipt.first)
        .map(|entry| entry.unwrap().batch)
        .collect();
    assert_eq!(batches, [(0, 3), (1, 3), (2, 3)]);
}

/// Robustness 14: one sync per acknowledged append, not more and not fewer.
#[test]
fn a_lone_append_is_one_write_and_one_sync() {
    let disk = disk();
    let journal = create(&disk, &options(0)).unwrap();
    disk.clear_trace();
    for number in 0..10 {
        let _ = append(&journal, &[payload(number, 200)]).unwrap();
    }
    let trace = disk.trace();
    let syncs = trace.iter().filter(|call| call.op.is_sync()).count();
    let changes = trace.iter().filter(|call| call.op.changes_disk()).count();
    assert_eq!((syncs, changes - syncs), (10, 10), "{trace:?}");
}

#[test]
fn opening_a_thousand_times_grows_a_journal_by_less_than_a_kilobyte_each() {
    let disk = disk();
    let options = options(4096);
    let journal = create(&disk, &options).unwrap();
    let _ = append(&journal, &[b"x".to_vec()]).unwrap();
    disk.kill();
    let before: u64 = disk.files().iter().map(|(_, length)| length).sum();
    for _ in 0..300 {
        begin(open(&disk, &options).unwrap()).unwrap();
        disk.kill();
    }
    let after: u64 = disk.files().iter().map(|(_, length)| length).sum();
    assert!(
        after - before < 300 * 1024,
        "{} bytes each",
        (after - before) / 300
    );
}

/// A reader that was opened before a takeover goes on reading what it saw: the new owner's fresh
/// file is not damage.
#[test]
fn a_view_survives_the_next_opening_for_writing() {
    for supersede in [0, 1 << 20] {
        let (disk, options) = (disk(), options(supersede));
        let journal = create(&disk, &options).unwrap();
        let mut books = Books::default();
        for _ in 0..40 {
            books.append(&journal, 1, 600);
        }
        drop(journal);
        disk.kill();
        let other = disk.new_process();
        let view = JournalView::open(vfs(&other), &dir()).unwrap();
        let journal = begin(open(&disk, &options).unwrap()).unwrap();
        assert!(books.clone().append(&journal, 1, 600));
        assert_eq!(records(view.read(Lsn::ZERO)), books.acknowledged);
    }
}
