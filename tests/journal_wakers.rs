//! Wakers are the host's code: one that panics, or calls back, harms neither the journal nor others
//! that wait.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use stepwell::journal::{
    AppendTicket, Journal, JournalOptions, Lsn, NoCarry, OwnedRecord, Owner, Workers,
};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

struct Does(Box<dyn Fn() + Send + Sync>, AtomicU64);

impl Wake for Does {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        (self.0)();
    }
}

fn does(work: impl Fn() + Send + Sync + 'static) -> Arc<Does> {
    Arc::new(Does(Box::new(work), AtomicU64::new(0)))
}

fn journal(disk: &SimVfs, workers: Workers) -> Journal {
    journal_with(disk, workers, JournalOptions::default())
}

fn journal_with(disk: &SimVfs, workers: Workers, options: JournalOptions) -> Journal {
    let owner = Owner::Session(session());
    let opening = Journal::create(vfs(disk), &dir(), owner, options).unwrap();
    let opening = opening.workers(workers);
    opening.begin(&[], Arc::new(NoCarry)).unwrap().0
}

fn owned() -> Vec<OwnedRecord> {
    vec![OwnedRecord {
        session: session(),
        payload: b"a record".to_vec(),
    }]
}

/// Runs on a thread of its own: a hang is a failure, not a test that never ends.
fn soon<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(work()));
    let outcome = receiver.recv_timeout(Duration::from_secs(10));
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn registered(mut ticket: AppendTicket, waker: &Arc<Does>) -> AppendTicket {
    let waker = Waker::from(waker.clone());
    let mut context = Context::from_waker(&waker);
    assert!(pin!(&mut ticket).poll(&mut context).is_pending());
    ticket
}

/// A follower's waker panicked in the thread that held the commit token, before its group was
/// settled: that append and all after it hung.
#[test]
fn a_panicking_waker_of_a_follower_hangs_nobody() {
    let journal = Arc::new(journal(&disk(), Workers::threads()));
    let bad = does(|| panic!("the host's waker"));
    let good = does(|| {});
    let mut followers = Vec::new();
    for waker in [&bad, &good] {
        let mut follower = journal.follow(Lsn::ZERO);
        while follower.try_next().unwrap().is_some() {}
        let waker = Waker::from(waker.clone());
        let mut context = Context::from_waker(&waker);
        assert!(follower.poll_next(&mut context).is_pending());
        followers.push(follower);
    }
    for number in 1..4 {
        let writer = journal.clone();
        soon("an append", move || put(&writer, payload(number, 10)));
        let writer = journal.clone();
        let ticket = writer.submit(owned(), None);
        let _ = soon("a ticket", move || ticket.wait()).unwrap();
    }
    assert_eq!(journal.fault(), None);
    for waker in [bad, good] {
        assert_eq!(waker.1.load(Ordering::SeqCst), 1);
    }
}

/// A ticket's waker panicked inside of the commit, which took that for a panic of the disk: the
/// journal was faulted.
#[test]
fn a_panicking_waker_of_a_ticket_faults_nothing() {
    let disk = support::disk();
    let journal = Arc::new(journal(&disk, Workers::threads()));
    let stall = disk.stall(Op::is_sync);
    let bad = does(|| panic!("the host's waker"));
    let good = does(|| {});
    let first = registered(journal.submit(owned(), None), &bad);
    let second = registered(journal.submit(owned(), None), &good);
    drop(stall);
    for ticket in [first, second] {
        let _ = soon("the ticket", move || ticket.wait()).unwrap();
    }
    let writer = journal.clone();
    soon("an append", move || put(&writer, payload(1, 10)));
    assert_eq!(journal.fault(), None);
    assert_eq!(good.1.load(Ordering::SeqCst), 1);
}

/// A waker that asked the journal for its last sequence waited for the token that its own thread
/// held. One that appends and waits must not wait for itself to serve the queue either.
#[test]
fn a_waker_may_call_back() {
    for workers in [Workers::threads(), Workers::manual()] {
        let disk = support::disk();
        let by_hand = workers.clone();
        let journal = Arc::new(journal(&disk, workers));
        let hands = thread::spawn(move || {
            for _ in 0..2000 {
                by_hand.run_one();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let log: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (asked, noted) = (journal.clone(), log.clone());
        let calls = does(move || {
            noted.lock().unwrap().push(asked.last_seq(session()).get());
            put(&asked, payload(1, 10));
            let _ = asked.submit(owned(), None).wait().unwrap();
            noted.lock().unwrap().push(asked.last_seq(session()).get());
        });
        let stall = disk.stall(Op::is_sync);
        let ticket = registered(journal.submit(owned(), None), &calls);
        let mut follower = journal.follow(Lsn::ZERO);
        while follower.try_next().unwrap().is_some() {}
        let waker = Waker::from(calls.clone());
        let mut context = Context::from_waker(&waker);
        assert!(matches!(follower.poll_next(&mut context), Poll::Pending));
        drop(stall);
        let seen = log.clone();
        soon("the wakers", move || {
            while seen.lock().unwrap().len() < 4 {
                thread::yield_now();
            }
        });
        let _ = soon("the ticket", move || ticket.wait()).unwrap();
        let writer = journal.clone();
        soon("an append", move || put(&writer, payload(2, 10)));
        assert_eq!(*log.lock().unwrap(), [1, 3, 3, 5]);
        assert_eq!(journal.fault(), None);
        drop(hands);
    }
}

/// Lets a group be written whose ticket has this waker, until the waker has done its work.
fn woken_by(disk: &SimVfs, journal: &Journal, work: impl Fn() + Send + Sync + 'static) {
    let (sender, done) = channel();
    let calls = does(move || {
        work();
        sender.send(()).unwrap();
    });
    let stall = disk.stall(Op::is_sync);
    let ticket = registered(journal.submit(owned(), None), &calls);
    drop(stall);
    done.recv_timeout(Duration::from_secs(10))
        .expect("the waker");
    let _ = soon("the ticket", move || ticket.wait()).unwrap();
}

/// A waker that waits for a ticket as the first thing it does: its own thread is the one that serves.
#[test]
fn a_waker_may_wait_for_a_ticket() {
    let disk = support::disk();
    let journal = Arc::new(journal(&disk, Workers::threads()));
    let asked = journal.clone();
    woken_by(&disk, &journal, move || {
        let _ = asked.submit(owned(), None).wait().unwrap();
    });
    assert_eq!(journal.last_seq(session()).get(), 2);
}

/// Nor may it wait for room that nobody but its own thread makes.
#[test]
fn a_waker_may_append_to_a_queue_that_is_full() {
    let disk = support::disk();
    let options = JournalOptions {
        queue_records: 4,
        ..JournalOptions::default()
    };
    let journal = Arc::new(journal_with(&disk, Workers::threads(), options));
    let asked = journal.clone();
    woken_by(&disk, &journal, move || {
        let mut context = Context::from_waker(Waker::noop());
        while pin!(asked.submit(owned(), None))
            .poll(&mut context)
            .is_pending()
        {}
        put(&asked, payload(1, 10));
    });
    // The first, those for which there was room, and the one that made some.
    assert_eq!(journal.last_seq(session()).get(), 1 + 4 + 1);
}

/// Followers are told of the end by who closes, and of a fault by who met it, both with the commit
/// token in their hands.
#[test]
fn a_waker_may_call_back_at_the_end() {
    for faults in [false, true] {
        let disk = support::disk();
        let journal = Arc::new(journal(&disk, Workers::manual()));
        put(&journal, payload(1, 10));
        let asked = journal.clone();
        let calls = does(move || {
            let _ = asked.last_seq(session());
            panic!("the host's waker");
        });
        let mut follower = journal.follow(Lsn::ZERO);
        while follower.try_next().unwrap().is_some() {}
        let waker = Waker::from(calls.clone());
        let mut context = Context::from_waker(&waker);
        assert!(follower.poll_next(&mut context).is_pending());
        let ends = journal.clone();
        if faults {
            disk.fail_nth(Op::is_sync, 0, FaultKind::SyncKept(PowerLoss::DropAll));
            soon("a park", move || ends.park()).unwrap_err();
            assert!(journal.fault().is_some());
        } else {
            soon("a close", move || ends.close()).unwrap();
        }
        assert_eq!(calls.1.load(Ordering::SeqCst), 1);
    }
}
