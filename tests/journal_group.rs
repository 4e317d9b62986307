//! Group commit: who writes, what shares a sync, and what becomes of those that wait.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use stepwell::journal::{
    AppendError, FaultCause, Journal, JournalOptions, Lsn, NewRecord, NoCarry, NotCommitted,
    OwnedRecord, Owner, Seq, Workers,
};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

fn owned(payload: &[u8]) -> Vec<OwnedRecord> {
    vec![OwnedRecord {
        session: session(),
        payload: payload.to_vec(),
    }]
}

fn journal_with(disk: &SimVfs, options: &JournalOptions, workers: Workers) -> Journal {
    let owner = Owner::Session(session());
    let opening = Journal::create(vfs(disk), &dir(), owner, options.clone()).unwrap();
    let opening = opening.workers(workers);
    opening.begin(&[], Arc::new(NoCarry)).unwrap().0
}

fn of_segment(op: &Op) -> bool {
    op.path().to_string_lossy().contains("seg-")
}

/// The writes and syncs of segments since the trace was cleared: 'w' and 's'.
fn writes_and_syncs(disk: &SimVfs) -> String {
    let calls = disk.trace();
    let letters = calls.iter().filter(|call| of_segment(&call.op));
    letters
        .filter_map(|call| match call.op {
            Op::Write { .. } => Some('w'),
            Op::SyncData { .. } => Some('s'),
            _ => None,
        })
        .collect()
}

/// A door that calls to the disk of one kind have to pass.
#[derive(Default)]
struct Door {
    shut: Mutex<bool>,
    opened: Condvar,
    /// Somebody has come to it while it was shut.
    reached: AtomicBool,
}

impl Door {
    fn before(disk: &SimVfs, stops: impl Fn(&Op) -> bool + Send + Sync + 'static) -> Arc<Door> {
        let door = Arc::new(Door::default());
        let own = door.clone();
        disk.set_hook(move |op| {
            if stops(op) {
                own.pass();
            }
        });
        door
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap();
        self.reached.fetch_or(*shut, Ordering::SeqCst);
        while *shut {
            shut = self.opened.wait(shut).unwrap();
        }
    }

    fn shut(&self) {
        *self.shut.lock().unwrap() = true;
        self.reached.store(false, Ordering::SeqCst);
    }

    fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn wait_until_reached(&self) {
        while !self.reached.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

#[test]
fn a_lone_append_is_written_by_the_thread_that_calls() {
    let disk = disk();
    let journal = journal_with(&disk, &options(0), Workers::groups_only());
    let caller = thread::current().id();
    let foreign = Arc::new(AtomicBool::new(false));
    let seen = foreign.clone();
    disk.set_hook(move |_| {
        seen.fetch_or(thread::current().id() != caller, Ordering::SeqCst);
    });
    for number in 0..20 {
        put(&journal, payload(number, 100));
    }
    assert!(!foreign.load(Ordering::SeqCst));
}

#[test]
fn what_is_queued_shares_one_write_and_one_sync() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal_with(&disk, &options(0), workers.clone());
    disk.clear_trace();
    let tickets: Vec<_> = (0..5)
        .map(|number| journal.submit(owned(&payload(number, 100)), None))
        .collect();
    assert_eq!(journal.health().queued, 5);
    assert_eq!(writes_and_syncs(&disk), "");
    assert!(workers.run_one());
    assert_eq!(writes_and_syncs(&disk), "ws");
    for (number, ticket) in tickets.into_iter().enumerate() {
        let receipt = ticket.wait().unwrap();
        assert_eq!(receipt.records[0].seq, Seq::new(number as u64 + 1));
    }
    assert_eq!(all(&journal).len(), 5);
}

#[test]
fn threads_that_come_while_the_disk_works_share_the_next_sync() {
    let disk = disk();
    let journal = journal_with(&disk, &options(0), Workers::groups_only());
    let door = Door::before(&disk, |op| matches!(op, Op::SyncData { .. }));
    disk.clear_trace();
    door.shut();
    thread::scope(|scope| {
        let lone = scope.spawn(|| append(&journal, &[payload(0, 100)]));
        door.wait_until_reached();
        let others: Vec<_> = (1..16)
            .map(|number| {
                let journal = &journal;
                scope.spawn(move || append(journal, &[payload(number, 100)]))
            })
            .collect();
        until(|| journal.health().queued == 15);
        door.open();
        let first = lone.join().unwrap().unwrap();
        let mut lsns: Vec<_> = others
            .into_iter()
            .map(|other| other.join().unwrap().unwrap().first)
            .collect();
        lsns.sort();
        let next = (1..16).map(|behind| Lsn::new(first.first.get() + behind));
        assert_eq!(lsns, next.collect::<Vec<_>>());
    });
    // W1: the second group's write comes after the first one's sync.
    assert_eq!(writes_and_syncs(&disk), "wsws");
}

#[test]
fn many_threads_on_a_real_disk_lose_and_repeat_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let options = JournalOptions {
        max_capacity: 256 * 1024,
        ..JournalOptions::default()
    };
    let owner = Owner::Session(session());
    let real = Arc::new(stepwell::vfs::RealVfs);
    let opening = Journal::create(real.clone(), folder.path(), owner, options.clone()).unwrap();
    let journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
    let (threads, appends) = (12, 60);
    thread::scope(|scope| {
        for number in 0..threads {
            let journal = &journal;
            scope.spawn(move || {
                let mut last = Lsn::ZERO;
                for index in 0..appends {
                    let bytes = payload(number * 1000 + index, 3000);
                    let receipt = match index % 3 {
                        0 => journal.submit(owned(&bytes), None).wait(),
                        _ => append(journal, std::slice::from_ref(&bytes)),
                    };
                    let placed = receipt.unwrap().records[0];
                    assert!(placed.lsn > last, "out of order");
                    last = placed.lsn;
                    let entry = journal.read_at(&placed.position).unwrap().unwrap();
                    assert_eq!(entry.payload, bytes);
                }
            });
        }
    });
    journal.close().unwrap();
    drop(journal);
    let opening = Journal::open(real, folder.path(), owner, options).unwrap();
    let mut found = records(opening.read(Lsn::ZERO));
    let mut expected: Vec<_> = (0..threads)
        .flat_map(|number| (0..appends).map(move |index| payload(number * 1000 + index, 3000)))
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// P7, P8, W3: the group that was handed to a write is unknown, all of it; what was still queued was
/// certainly not committed; everybody is told.
#[test]
fn a_failed_sync_is_unknown_for_its_group_and_certain_for_the_queue() {
    for kind in [
        FaultKind::Eio,
        FaultKind::SyncKept(PowerLoss::DropAll),
        FaultKind::SyncReverted(PowerLoss::KeepAll),
    ] {
        let disk = disk();
        let journal = journal_with(&disk, &options(0), Workers::groups_only());
        put(&journal, payload(0, 10));
        let door = Door::before(&disk, |op| matches!(op, Op::SyncData { .. }));
        door.shut();
        disk.fail_nth(|op| matches!(op, Op::SyncData { .. }), 0, kind);
        thread::scope(|scope| {
            let lone = scope.spawn(|| append(&journal, &[payload(1, 100)]));
            door.wait_until_reached();
            let others: Vec<_> = (2..6)
                .map(|number| {
                    let journal = &journal;
                    scope.spawn(move || append(journal, &[payload(number, 100)]))
                })
                .collect();
            until(|| journal.health().queued == 4);
            let ticket = journal.submit(owned(b"ticket"), None);
            door.open();
            let Err(AppendError::Unknown(fault)) = lone.join().unwrap() else {
                panic!("{kind:?}")
            };
            assert!(matches!(fault.cause(), FaultCause::Sync(_)), "{kind:?}");
            let certain = Err(AppendError::NotCommitted(NotCommitted::Faulted(fault)));
            for other in others {
                assert_eq!(other.join().unwrap(), certain, "{kind:?}");
            }
            assert_eq!(ticket.wait(), certain, "{kind:?}");
        });
        assert_eq!(all(&journal), [payload(0, 10)]);
        assert!(journal.health().fault.is_some());
    }
}

#[test]
fn one_refused_batch_leaves_the_rest_of_its_group_alone() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal_with(&disk, &options(0), workers.clone());
    let first = journal.submit(owned(b"a"), Some(Seq::ZERO));
    let wrong = journal.submit(owned(b"b"), Some(Seq::ZERO));
    let third = journal.submit(owned(b"c"), Some(Seq::new(1)));
    disk.clear_trace();
    assert!(workers.run_one());
    // The bytes between them are not written.
    assert_eq!(writes_and_syncs(&disk), "wws");
    assert_eq!(first.wait().unwrap().records[0].seq, Seq::new(1));
    assert_eq!(
        wrong.wait(),
        Err(AppendError::NotCommitted(NotCommitted::WrongPosition {
            expected: Seq::ZERO,
            actual: Seq::new(1),
        }))
    );
    assert_eq!(third.wait().unwrap().records[0].seq, Seq::new(2));
    assert_eq!(all(&journal), [b"a".to_vec(), b"c".to_vec()]);
}

#[test]
fn a_group_that_does_not_fit_goes_on_in_the_next_segment() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal_with(&disk, &options(0), workers.clone());
    let tickets: Vec<_> = (0..7)
        .map(|number| journal.submit(owned(&payload(number, 5000)), None))
        .collect();
    assert!(workers.run_one());
    let segments: std::collections::HashSet<_> = tickets
        .into_iter()
        .map(|ticket| ticket.wait().unwrap().records[0].position.segment)
        .collect();
    assert!(segments.len() > 1);
    assert_eq!(
        all(&journal),
        (0..7).map(|n| payload(n, 5000)).collect::<Vec<_>>()
    );
}

#[test]
fn a_batch_larger_than_the_prepared_segment_gets_one_that_fits() {
    let disk = disk();
    let workers = Workers::manual();
    let small = JournalOptions {
        max_payload: 512 * 1024,
        ..options(0)
    };
    let journal = journal_with(&disk, &small, workers.clone());
    put(&journal, payload(0, 9000));
    while workers.run_one() {}
    let large = payload(1, 300 * 1024);
    let moved = journal.submit(owned(&large), None);
    put(&journal, payload(2, 10));
    assert_eq!(moved.wait().unwrap().records.len(), 1);
    let all_of_it = [payload(0, 9000), large, payload(2, 10)];
    assert_eq!(all(&journal), all_of_it);
    journal.close().unwrap();
    drop(journal);
    let opening = open(&disk, &small).unwrap();
    assert_eq!(records(opening.read(Lsn::ZERO)), all_of_it);
}

#[test]
fn the_queue_is_bounded() {
    let disk = disk();
    let bounded = JournalOptions {
        queue_records: 2,
        ..options(0)
    };
    let workers = Workers::manual();
    let journal = journal_with(&disk, &bounded, workers.clone());
    let _first = journal.submit(owned(b"a"), None);
    let _second = journal.submit(owned(b"b"), None);
    let busy = |outcome| {
        matches!(
            outcome,
            Err(AppendError::NotCommitted(NotCommitted::Busy {
                records: 2,
                ..
            }))
        )
    };
    assert!(busy(journal.submit(owned(b"c"), None).wait()));
    let record = NewRecord {
        session: session(),
        payload: b"d",
    };
    assert!(busy(journal.try_append(&[record], None)));
    // One that may wait gets its turn.
    put(&journal, b"e".to_vec());
    let kept: Vec<Vec<u8>> = vec![b"a".into(), b"b".into(), b"e".into()];
    assert_eq!(all(&journal), kept);
}

#[test]
fn a_thread_that_waits_for_room_gets_its_turn() {
    let disk = disk();
    let bounded = JournalOptions {
        queue_records: 1,
        ..options(0)
    };
    let journal = journal_with(&disk, &bounded, Workers::groups_only());
    let door = Door::before(&disk, |op| matches!(op, Op::SyncData { .. }));
    door.shut();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|number| {
                let journal = &journal;
                scope.spawn(move || append(journal, &[payload(number, 50)]))
            })
            .collect();
        door.wait_until_reached();
        until(|| journal.health().queued == 1);
        door.open();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap().records.len(), 1);
        }
    });
    assert_eq!(all(&journal).len(), 6);
}

/// A deadline ends the waiting, never the append.
#[test]
fn a_sync_that_does_not_return_stalls_who_waits_and_decides_nothing() {
    let disk = disk();
    let journal = journal_with(&disk, &options(0), Workers::groups_only());
    assert_eq!(journal.health().waiting, None);
    let door = Door::before(&disk, |op| matches!(op, Op::SyncData { .. }));
    door.shut();
    let ticket = journal.submit(owned(b"slow"), None);
    door.wait_until_reached();
    let stalled = ticket.wait_for(Duration::from_millis(2)).unwrap_err();
    assert_eq!(stalled.waited, Duration::from_millis(2));
    assert!(journal.health().waiting.is_some());
    assert_eq!(journal.fault(), None);
    assert_eq!(journal.durable(), Lsn::new(1), "only the fence");
    door.open();
    assert_eq!(stalled.ticket.wait().unwrap().first, Lsn::new(2));
    assert_eq!(journal.health().waiting, None);
}

#[test]
fn a_ticket_can_be_awaited_and_dropped() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal_with(&disk, &options(0), workers.clone());
    drop(journal.submit(owned(b"dropped"), None));
    let mut awaited = Box::pin(journal.submit(owned(b"awaited"), None));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    assert!(awaited.as_mut().poll(&mut context).is_pending());
    assert!(workers.run_one());
    assert!(woken.0.load(Ordering::SeqCst));
    let Poll::Ready(Ok(receipt)) = awaited.as_mut().poll(&mut context) else {
        panic!()
    };
    assert_eq!(receipt.first, Lsn::new(3));
    assert_eq!(all(&journal), [b"dropped".to_vec(), b"awaited".to_vec()]);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_disk_that_panics_leaves_the_outcome_unknown_and_nobody_waiting() {
    let disk = disk();
    let journal = journal_with(&disk, &options(0), Workers::groups_only());
    let door = Door::before(&disk, |op| {
        assert!(!matches!(op, Op::SyncData { .. }), "the disk of a test");
        matches!(op, Op::Write { .. })
    });
    door.shut();
    thread::scope(|scope| {
        let lone = scope.spawn(|| append(&journal, &[payload(1, 100)]));
        door.wait_until_reached();
        let other = scope.spawn(|| append(&journal, &[payload(2, 100)]));
        until(|| journal.health().queued == 1);
        door.open();
        let Err(AppendError::Unknown(fault)) = lone.join().unwrap() else {
            panic!()
        };
        assert_eq!(fault.cause(), &FaultCause::Panic);
        let certain = Err(AppendError::NotCommitted(NotCommitted::Faulted(fault)));
        assert_eq!(other.join().unwrap(), certain);
    });
}

#[test]
fn closing_writes_what_is_queued_and_refuses_what_comes_later() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal_with(&disk, &options(0), workers.clone());
    let ticket = journal.submit(owned(b"queued"), None);
    journal.close().unwrap();
    assert_eq!(ticket.wait().unwrap().first, Lsn::new(2));
    assert_eq!(
        journal.submit(owned(b"late"), None).wait(),
        Err(AppendError::NotCommitted(NotCommitted::Closed))
    );
    assert_eq!(
        records(open(&disk, &options(0)).unwrap().read(Lsn::ZERO)),
        [b"queued".to_vec()]
    );
}

#[test]
fn dropping_a_journal_writes_what_is_queued() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal_with(&disk, &options(0), workers.clone());
    let ticket = journal.submit(owned(b"queued"), None);
    drop(journal);
    assert!(workers.run_one());
    assert_eq!(ticket.wait().unwrap().first, Lsn::new(2));
    assert_eq!(
        records(open(&disk, &options(0)).unwrap().read(Lsn::ZERO)),
        [b"queued".to_vec()]
    );
}
