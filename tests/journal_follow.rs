//! Following a journal in its own process: from replay to live, in order, without a gap or a
//! duplicate, never past what is durable, to a typed end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use stepwell::journal::{
    Entry, FaultCause, FollowError, Follower, FrameKind, Journal, JournalOptions, Lsn, NoCarry,
    Owner, ReadError, Workers,
};
use stepwell::vfs::sim::{FaultKind, PowerLoss, SimVfs};
use support::*;

/// All that a follower gives now, with the error that it stopped at.
fn drain(follower: &mut Follower) -> (Vec<Entry>, Option<FollowError>) {
    let mut entries = Vec::new();
    loop {
        match follower.try_next() {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => return (entries, None),
            Err(error) => return (entries, Some(error)),
        }
    }
}

/// The payloads, after a check that the Lsns follow each other from `next` on.
fn in_order(entries: &[Entry], next: &mut u64) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for entry in entries {
        assert_eq!(entry.lsn.get(), *next, "a gap or a duplicate");
        assert!(entry.proven);
        *next += 1;
        if entry.kind == FrameKind::Record {
            payloads.push(entry.payload.clone());
        }
    }
    payloads
}

fn journal(disk: &SimVfs, options: &JournalOptions, workers: &Workers) -> Journal {
    let owner = Owner::Session(session());
    let opening = Journal::create(vfs(disk), &dir(), owner, options.clone()).unwrap();
    let opening = opening.workers(workers.clone());
    opening.begin(&[], Arc::new(NoCarry)).unwrap().0
}

#[test]
fn replay_and_then_live_over_rolls_from_any_lsn() {
    let options = options(1 << 20);
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal(&disk, &options, &workers);
    let mut books = Books::default();
    for number in 0..60 {
        assert!(books.append(&journal, 1 + number % 3, 900));
    }
    let last = journal.durable().get();
    let whole: Vec<Entry> = journal.read(Lsn::ZERO).map(Result::unwrap).collect();
    for from in (0..=last + 3).step_by(7) {
        let mut follower = journal.follow(Lsn::new(from));
        let (entries, end) = drain(&mut follower);
        assert_eq!(end, None);
        let first = usize::try_from(from.max(1) - 1).unwrap().min(whole.len());
        assert_eq!(entries, whole[first..], "from {from}");
    }
    let mut follower = journal.follow(Lsn::ZERO);
    let mut late = journal.follow(Lsn::new(last + 2));
    let mut next = 1;
    let mut seen = Vec::new();
    for number in 0..80 {
        assert!(books.append(&journal, 1 + number % 2, 1200));
        if number % 3 == 0 {
            workers.run_one();
        }
        let (entries, end) = drain(&mut follower);
        assert_eq!(end, None);
        seen.extend(in_order(&entries, &mut next));
        assert_eq!(
            seen, books.acknowledged,
            "all that is acknowledged, at once"
        );
        assert_eq!(drain(&mut follower), (Vec::new(), None));
    }
    let (entries, _) = drain(&mut late);
    assert_eq!(entries[0].lsn.get(), last + 2);
    assert_eq!(entries.len() as u64, journal.durable().get() - last - 1);
    journal.close().unwrap();
    assert_eq!(
        drain(&mut follower),
        (Vec::new(), Some(FollowError::Closed))
    );
    assert_eq!(follower.next(), None);
}

thread_local! {
    /// Whether the hook runs: what it asks the disk comes to it again.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a look at each call to the disk of others.
fn watch(disk: &SimVfs, look: impl FnMut() + Send + 'static) {
    let look = Mutex::new(look);
    disk.set_hook(move |_| {
        if !WATCHING.replace(true) {
            look.lock().unwrap()();
            WATCHING.set(false);
        }
    });
}

/// At every call of the writer to the disk: what the follower has given is in what every power loss
/// at that moment leaves.
#[test]
fn it_never_passes_what_is_durable() {
    let options = options(1 << 20);
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal(&disk, &options, &workers);
    let mut books = Books::default();
    let given = Arc::new(Mutex::new((journal.follow(Lsn::ZERO), Vec::new(), 1)));
    let looks = Arc::new(AtomicU64::new(0));
    let (watched, count, seen) = (disk.clone(), looks.clone(), given.clone());
    watch(&disk, move || {
        let (follower, payloads, next) = &mut *seen.lock().unwrap();
        let (entries, end) = drain(follower);
        assert_eq!(end, None);
        payloads.extend(in_order(&entries, next));
        let look = count.fetch_add(1, Ordering::SeqCst);
        for loss in [PowerLoss::DropAll, PowerLoss::Seeded(look)] {
            let after = watched.snapshot();
            after.power_loss(loss);
            let kept = records(open(&after, &super_options()).unwrap().read(Lsn::ZERO));
            assert!(kept.starts_with(payloads), "given and then lost");
        }
    });
    for number in 0..40 {
        assert!(books.append(&journal, 1 + number % 3, 800));
        workers.run_one();
    }
    disk.clear_hook();
    assert!(looks.load(Ordering::SeqCst) > 100);
    let (follower, payloads, next) = &mut *given.lock().unwrap();
    payloads.extend(in_order(&drain(follower).0, next));
    assert_eq!(*payloads, books.acknowledged);
}

fn super_options() -> JournalOptions {
    options(1 << 20)
}

/// A sync or a write fails, at any place: everything acknowledged, then the fault, nothing behind it.
#[test]
fn a_fault_is_its_end_after_the_last_acknowledged_record() {
    let kinds = [
        FaultKind::SyncKept(PowerLoss::KeepAll),
        FaultKind::FailedWrite(50),
        FaultKind::DirSync(PowerLoss::KeepAll),
    ];
    for kind in kinds {
        let mut faults = 0;
        for skip in 0..25 {
            let disk = disk();
            let workers = Workers::manual();
            let journal = journal(&disk, &options(1 << 20), &workers);
            let mut follower = journal.follow(Lsn::ZERO);
            let mut books = Books::default();
            disk.fail_nth(|_| true, skip, kind);
            while books.acknowledged.len() < 40 && books.append(&journal, 2, 900) {
                workers.run_one();
            }
            // A fault of work aside is told too.
            let mut next = 1;
            let (entries, end) = drain(&mut follower);
            assert_eq!(in_order(&entries, &mut next), books.acknowledged);
            assert_eq!(end, journal.fault().map(FollowError::Faulted), "{kind:?}");
            faults += usize::from(end.is_some());
            assert_eq!(drain(&mut follower), (Vec::new(), end));
        }
        assert!(faults > 0, "{kind:?} never hit");
    }
}

/// Another process takes over; this one learns it at its next append, which is not given.
#[test]
fn a_takeover_is_its_end() {
    for roll in [false, true] {
        let disk = disk();
        let workers = Workers::manual();
        let journal = journal(&disk, &options(1 << 20), &workers);
        let mut books = Books::default();
        while books.acknowledged.len() < if roll { 40 } else { 5 } {
            assert!(books.append(&journal, 1, 900));
        }
        let mut follower = journal.follow(Lsn::ZERO);
        let mut half = journal.follow(Lsn::ZERO);
        for _ in 0..3 {
            assert!(half.try_next().unwrap().is_some());
        }
        let new = disk.new_process();
        new.break_lock(dir().join("LOCK")).unwrap();
        let opening = open(&new, &options(1 << 20)).unwrap();
        let owner = begin(opening).unwrap();
        let _ = append(&owner, &[payload(7_000, 10)]).unwrap();
        assert!(!books.append(&journal, 1, 100));
        for (follower, skipped) in [(&mut follower, 0), (&mut half, 3)] {
            let mut next = 1 + skipped as u64;
            let (entries, end) = drain(follower);
            // The fence is the first.
            let expected = &books.acknowledged[usize::max(skipped, 1) - 1..];
            assert_eq!(in_order(&entries, &mut next), expected);
            assert!(
                matches!(&end, Some(FollowError::Faulted(fault))
                    if matches!(fault.cause(), FaultCause::Overtaken { .. })),
                "{end:?}"
            );
        }
    }
}

/// Damage at rest in what it has still to read: one error that names it, and nothing behind it.
#[test]
fn damage_is_its_end_and_nothing_is_skipped() {
    let disk = disk();
    let journal = journal(&disk, &options(1 << 20), &Workers::manual());
    let mut books = Books::default();
    for _ in 0..6 {
        assert!(books.append(&journal, 1, 500));
    }
    let entries: Vec<Entry> = journal.read(Lsn::ZERO).map(Result::unwrap).collect();
    for (victim, header) in [(3, true), (3, false), (6, true)] {
        let hurt = entries[victim].position;
        let file = dir().join(hurt.segment.to_string());
        let offset = hurt.offset + if header { 20 } else { 100 };
        disk.flip_byte(&file, offset).unwrap();
        let mut follower = journal.follow(Lsn::ZERO);
        let (given, end) = drain(&mut follower);
        assert_eq!(given, entries[..victim]);
        let Some(FollowError::Read(ReadError::Damaged { first, path, .. })) = &end else {
            panic!("{end:?}");
        };
        assert_eq!((*first, path), (entries[victim].lsn, &file));
        assert_eq!(drain(&mut follower), (Vec::new(), end));
        disk.flip_byte(&file, offset).unwrap();
    }
}

/// A read that fails once ends nothing.
#[test]
fn a_failed_read_can_be_tried_again() {
    let disk = disk();
    let journal = journal(&disk, &options(1 << 20), &Workers::manual());
    let mut books = Books::default();
    for _ in 0..3 {
        assert!(books.append(&journal, 1, 500));
    }
    let mut follower = journal.follow(Lsn::ZERO);
    disk.fail_nth(|_| true, 0, FaultKind::Eio);
    let (before, error) = drain(&mut follower);
    assert!(matches!(error, Some(FollowError::Read(ReadError::Disk(_)))));
    let (after, error) = drain(&mut follower);
    assert_eq!((before.len() + after.len(), error), (4, None));
}

/// Threads that append, threads that follow, on the machine's own disk: all are woken, and see the
/// same.
#[test]
fn followers_are_woken_by_commits() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 50;
    let folder = tempfile::tempdir().unwrap();
    let real: Arc<dyn stepwell::vfs::Vfs> = Arc::new(stepwell::vfs::RealVfs);
    let owner = Owner::Session(session());
    let opening = Journal::create(real, folder.path(), owner, options(1 << 20)).unwrap();
    let journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
    let journal = &journal;
    std::thread::scope(|scope| {
        let mut followers = Vec::new();
        for number in 0..3 {
            let mut follower = journal.follow(Lsn::ZERO);
            followers.push(scope.spawn(move || {
                let mut entries = Vec::new();
                match number {
                    // Blocking, until the journal is closed.
                    0 => entries.extend(follower.by_ref().map(Result::unwrap)),
                    1 => loop {
                        match follower.next_timeout(Duration::from_secs(30)) {
                            Ok(entry) => entries.push(entry.expect("it was not woken")),
                            Err(end) => break assert_eq!(end, FollowError::Closed),
                        }
                    },
                    _ => loop {
                        match block_on(follower.recv()) {
                            Ok(entry) => entries.push(entry),
                            Err(end) => break assert_eq!(end, FollowError::Closed),
                        }
                    },
                }
                entries
            }));
        }
        std::thread::scope(|writers| {
            for writer in 0..WRITERS {
                writers.spawn(move || {
                    for number in 0..EACH {
                        let _ = append(journal, &[payload(writer * EACH + number, 300)]).unwrap();
                    }
                });
            }
        });
        // Nothing is to come: a wait has its limit.
        let mut idle = journal.follow(journal.durable().next());
        let begun = Instant::now();
        assert_eq!(idle.next_timeout(Duration::from_millis(30)), Ok(None));
        assert!(begun.elapsed() >= Duration::from_millis(30));
        journal.close().unwrap();
        let whole: Vec<Entry> = journal.read(Lsn::ZERO).map(Result::unwrap).collect();
        assert_eq!(whole.len() as u64, WRITERS * EACH + 1);
        for follower in followers {
            assert_eq!(follower.join().unwrap(), whole);
        }
    });
}

/// Each record wakes who waits for it: the next one is appended only when it has arrived.
#[test]
fn each_commit_wakes_by_itself() {
    for awaits in [false, true] {
        let disk = disk();
        let journal = journal(&disk, &options(1 << 20), &Workers::threads());
        let mut follower = journal.follow(journal.durable().next());
        std::thread::scope(|scope| {
            let (sender, arrived) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for _ in 0..50 {
                    let entry = match awaits {
                        true => block_on(follower.recv()).unwrap(),
                        false => follower.by_ref().next().unwrap().unwrap(),
                    };
                    sender.send(entry.payload).unwrap();
                }
            });
            for number in 0..50 {
                let bytes = payload(number, 50);
                let _ = append(&journal, std::slice::from_ref(&bytes)).unwrap();
                let seen = arrived.recv_timeout(Duration::from_secs(10));
                if seen.is_err() {
                    // Lets the follower end, so that the test does.
                    journal.close().unwrap();
                }
                assert_eq!(seen.expect("it was not woken"), bytes);
            }
        });
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(30));
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it was not woken"
        );
    }
}

/// A fault wakes too, and so does the end of a journal that nobody closes.
#[test]
fn the_end_wakes() {
    for fault in [true, false] {
        let disk = disk();
        let journal = journal(&disk, &options(1 << 20), &Workers::manual());
        let mut follower = journal.follow(Lsn::new(2));
        let end = std::thread::scope(|scope| {
            let waits = scope.spawn(|| follower.next_timeout(Duration::from_secs(30)));
            std::thread::sleep(Duration::from_millis(20));
            if fault {
                disk.fail_nth(|op| op.is_sync(), 0, FaultKind::Eio);
                assert!(append(&journal, &[payload(1, 10)]).is_err());
            }
            let fault = journal.fault();
            drop(journal);
            (waits.join().unwrap(), fault)
        });
        let expected = end.1.map_or(FollowError::Closed, FollowError::Faulted);
        assert_eq!(end.0, Err(expected));
    }
}
