//! What a journal's health says while the disk does not answer to the holder of the commit token.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stepwell::journal::{Journal, JournalOptions, NewRecord, NoCarry, Owner, Workers};
use stepwell::vfs::sim::{Op, SimVfs};
use support::*;

fn journal(disk: &SimVfs, workers: &Workers) -> Journal {
    let options = JournalOptions {
        first_capacity: 4096,
        max_capacity: 4096,
        ..JournalOptions::default()
    };
    let owner = Owner::Session(session());
    let opening = Journal::create(vfs(disk), &dir(), owner, options).unwrap();
    let opening = opening.workers(workers.clone());
    opening.begin(&[], Arc::new(NoCarry)).unwrap().0
}

/// Stops the call of the given number that the work asks of the disk; the health has to say so.
/// False if there is no such call.
fn is_seen(
    prepare: impl Fn(&Journal, &Workers),
    work: impl Fn(&Journal) + Send + Sync + Copy,
    number: u64,
) -> bool {
    let disk = support::disk();
    let workers = Workers::groups_only();
    let journal = journal(&disk, &workers);
    prepare(&journal, &workers);
    assert_eq!(journal.health().waiting, None);
    let seen = AtomicU64::new(0);
    let stall = disk.stall(move |_: &Op| {
        // Asked again when anything changes: once held up, a call stays so.
        seen.fetch_add(1, Ordering::Relaxed) >= number
    });
    thread::scope(|scope| {
        // Ends with this closure, also when it fails: the work goes on then.
        let stall = stall;
        let worker = scope.spawn(|| work(&journal));
        while stall.waiting() == 0 && !worker.is_finished() {
            thread::yield_now();
        }
        let held = stall.wait_for(1, Duration::ZERO);
        if held {
            thread::sleep(Duration::from_millis(2));
            let waiting = journal.health().waiting;
            assert!(waiting.is_some(), "call {number} is not seen");
        }
        drop(stall);
        worker.join().unwrap();
        assert_eq!(journal.health().waiting, None);
        held
    })
}

fn every_call(
    prepare: impl Fn(&Journal, &Workers) + Copy,
    work: impl Fn(&Journal) + Send + Sync + Copy,
) -> u64 {
    (0..)
        .find(|number| !is_seen(prepare, work, *number))
        .unwrap()
}

fn add(journal: &Journal, length: usize) {
    let payload = vec![7; length];
    let record = NewRecord {
        session: session(),
        payload: &payload,
    };
    let _ = journal.append(&[record], None).unwrap();
}

/// A host saw that nobody waited for the disk, while an append hung in the sync of a seal: only the
/// write of the group itself was counted, not what had to come before it.
#[test]
fn a_disk_that_hangs_at_any_call_of_a_roll_is_seen() {
    let calls = every_call(
        |journal, _| add(journal, 3000),
        |journal| add(journal, 3000),
    );
    assert!(calls > 10, "{calls}");
}

/// The same with a successor that was prepared aside.
#[test]
fn a_disk_that_hangs_at_a_seal_is_seen() {
    let prepare = |journal: &Journal, workers: &Workers| {
        add(journal, 3000);
        for _ in 0..6 {
            workers.run_one();
        }
    };
    let calls = every_call(prepare, |journal| add(journal, 3000));
    assert!(calls > 4, "{calls}");
}

/// Parking, coming back, closing: the witness that hung there was not counted either.
#[test]
fn a_disk_that_hangs_at_a_park_or_behind_it_is_seen() {
    let park = |journal: &Journal| journal.park().unwrap();
    assert!(every_call(|journal, _| add(journal, 10), park) > 2);
    let parked = |journal: &Journal, _: &Workers| {
        add(journal, 10);
        journal.park().unwrap();
    };
    assert!(every_call(parked, |journal| add(journal, 10)) > 5);
    assert!(every_call(parked, |journal| journal.close().unwrap()) > 5);
    let witness = |journal: &Journal| journal.witness().unwrap();
    assert!(every_call(|journal, _| add(journal, 10), witness) > 1);
}
