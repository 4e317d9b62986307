//! A parked journal: it holds its lock alone, goes on as if nothing had been, and is as safe.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::sync::{Arc, Mutex};

use stepwell::journal::{
    AppendError, FaultCause, Journal, JournalFollower, Lsn, NoCarry, NotCommitted, OpenError,
    Owner, Workers,
};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

fn journal(disk: &SimVfs, workers: &Workers) -> Result<Journal, OpenError> {
    let owner = Owner::Session(session());
    let opening = match Journal::open(vfs(disk), &dir(), owner, options(1 << 20)) {
        Err(OpenError::NotFound { .. }) => {
            Journal::create(vfs(disk), &dir(), owner, options(1 << 20))
        }
        opened => opened,
    }?;
    let opening = opening.workers(workers.clone());
    Ok(opening.begin(&[], Arc::new(NoCarry))?.0)
}

/// Appends, parks and chores in turn. Whether all of it was done.
fn life(disk: &SimVfs, books: &mut Books, appends: u64) -> bool {
    let workers = Workers::manual();
    let Ok(journal) = journal(disk, &workers) else {
        return false;
    };
    for number in 0..appends {
        if !books.append(&journal, 1 + (number % 3) as usize, 700) {
            return false;
        }
        if number % 3 == 1 {
            workers.run_one();
        }
        if number % 2 == 0 && journal.park().is_err() {
            return false;
        }
    }
    journal.close().is_ok()
}

/// A crash at every call, each followed by every kind of crash.
#[test]
fn a_crash_at_every_call_loses_nothing() {
    for calls in 0..400 {
        let mut finished = false;
        for seed in 0..4 {
            let disk = disk();
            let mut books = Books::default();
            disk.crash_after(calls);
            finished = life(&disk, &mut books, 16);
            match seed {
                0 => disk.kill(),
                1 => disk.power_loss(PowerLoss::DropAll),
                seed => disk.power_loss(PowerLoss::Seeded(calls * 7 + seed)),
            }
            match open(&disk, &options(0)) {
                Ok(opening) => books.judge(&records(opening.read(Lsn::ZERO))),
                Err(OpenError::NotFound { .. }) => assert!(books.acknowledged.is_empty()),
                Err(error) => panic!("call {calls}, {seed}: {error}"),
            }
        }
        if finished {
            assert!(calls > 50, "{calls} calls");
            return;
        }
    }
    panic!("a life never comes to its end");
}

/// Parking again and again: every record is there, in order, and readable while it is parked.
#[test]
fn it_goes_on_as_if_nothing_had_been() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal(&disk, &workers).unwrap();
    let mut follower = journal.follow(Lsn::new(2));
    let mut books = Books::default();
    for number in 0..120 {
        assert!(books.append(&journal, 1, 900));
        if number % 5 == 0 {
            workers.run_one();
        }
        if number % 4 == 0 {
            // The next segment is ready, perhaps.
            while workers.run_one() {}
        }
        if number % 3 == 0 {
            journal.park().unwrap();
            journal.park().unwrap();
            assert_eq!(all(&journal).len(), books.acknowledged.len());
            // Nothing is done aside that would open a file.
            disk.clear_trace();
            while workers.run_one() {}
            let calls = disk.trace();
            assert!(calls.is_empty(), "{calls:?}");
            journal.witness().unwrap();
            assert!(disk.trace().is_empty());
        }
        assert!(follower.try_next().unwrap().is_some());
        assert!(follower.try_next().unwrap().is_none());
    }
    assert_eq!(all(&journal), books.acknowledged);
    journal.park().unwrap();
    journal.close().unwrap();
    assert!(journal.park().is_err());
    let opening = open(&disk.new_process(), &options(0));
    books.judge(&records(opening.unwrap().read(Lsn::ZERO)));
}

/// What was appended last is proven when it is parked: a flipped byte in it is damage, not a tail.
#[test]
fn what_was_appended_last_is_vouched_for() {
    let disk = disk();
    let journal = journal(&disk, &Workers::manual()).unwrap();
    let mut books = Books::default();
    assert!(books.append(&journal, 2, 100));
    journal.park().unwrap();
    let last = journal.read(Lsn::ZERO).last().unwrap().unwrap().position;
    disk.power_loss(PowerLoss::DropAll);
    let file = dir().join(last.segment.to_string());
    disk.flip_byte(file, last.offset + 90).unwrap();
    let opened = open(&disk, &options(0));
    assert!(
        matches!(opened, Err(OpenError::Damaged { .. })),
        "{opened:?}"
    );
}

/// While it is parked, another process takes over (with a lock file that was put back), or the files
/// are replaced by an older copy: it writes nothing more, for certain.
#[test]
fn one_that_lost_its_right_meanwhile_writes_nothing() {
    for manner in 0..3 {
        let disk = disk();
        let workers = Workers::manual();
        let journal = journal(&disk, &workers).unwrap();
        let mut books = Books::default();
        for _ in 0..20 {
            assert!(books.append(&journal, 1, 900));
            workers.run_one();
        }
        let new = disk.new_process();
        let copy = |disk: &SimVfs| -> Vec<_> {
            let files = disk.files().into_iter().map(|(path, _)| path);
            let files = files.filter(|path| !path.ends_with("LOCK"));
            files
                .map(|path| (path.clone(), disk.read_file(&path).unwrap()))
                .collect()
        };
        let before = copy(&disk);
        assert!(books.append(&journal, 1, 100));
        journal.park().unwrap();
        match manner {
            0 => {
                new.break_lock(dir().join("LOCK")).unwrap();
                let owner = begin(open(&new, &options(0)).unwrap()).unwrap();
                let _ = append(&owner, &[payload(9_000, 10)]).unwrap();
            }
            // Its segment as it was.
            1 => {
                for (path, bytes) in &before {
                    new.put_file(path, bytes).unwrap();
                }
            }
            // Its manifest gone.
            _ => {
                for (path, _) in copy(&disk) {
                    if path.to_str().unwrap().contains("MANIFEST") {
                        new.remove(path).unwrap();
                    }
                }
            }
        }
        disk.clear_trace();
        let refused = append(&journal, &[payload(9_001, 10)]).unwrap_err();
        let AppendError::NotCommitted(NotCommitted::Faulted(fault)) = &refused else {
            panic!("{manner}: {refused}");
        };
        assert!(matches!(fault.cause(), FaultCause::Overtaken { .. }));
        let calls = disk.trace();
        assert!(
            calls.iter().all(|call| !call.op.changes_disk()),
            "{calls:?}"
        );
    }
}

/// No handle is left when the files of a parked journal are opened again: refused for certain, and
/// it works when there are some.
#[test]
fn without_handles_an_append_is_refused_for_certain() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal(&disk, &workers).unwrap();
    let mut books = Books::default();
    for number in 0..40 {
        assert!(books.append(&journal, 1, 900));
        workers.run_one();
        journal.park().unwrap();
        let fired = disk.faults_fired();
        disk.fail_nth(|_| true, number % 5, FaultKind::Emfile);
        let outcome = append(&journal, &[payload(5_000 + number, 700)]);
        disk.clear_faults();
        match outcome {
            Ok(_) if disk.faults_fired() > fired => {
                // Something made ahead of its need.
                books.acknowledged.push(payload(5_000 + number, 700));
            }
            Ok(_) => books.acknowledged.push(payload(5_000 + number, 700)),
            Err(AppendError::NotCommitted(NotCommitted::TooManyHandles { limit })) => {
                assert_eq!(limit.is_some(), cfg!(unix));
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(journal.fault(), None);
    }
    assert_eq!(all(&journal), books.acknowledged);
}

/// The same at every call that takes a handle, over rolls and preparing, and while opening. The
/// listing behind the link of a manifest has a test of its own.
#[test]
fn no_call_for_a_handle_leaves_an_outcome_unknown() {
    let takes = |op: &Op| !matches!(op, Op::List { .. });
    let mut refused = 0;
    for skip in 0..200 {
        let disk = disk();
        let mut books = Books::default();
        disk.fail_nth(takes, skip, FaultKind::Emfile);
        let workers = Workers::manual();
        let opened = journal(&disk, &workers);
        let journal = match opened {
            Ok(journal) => journal,
            Err(OpenError::TooManyHandles { .. }) => journal(&disk, &workers).unwrap(),
            Err(error) => panic!("{skip}: {error}"),
        };
        for number in 0..40 {
            assert!(
                books.append(&journal, 1, 900),
                "{skip}: {:?}",
                journal.fault()
            );
            if number % 4 == 0 {
                workers.run_one();
            }
        }
        refused += books.refused.len();
        disk.clear_faults();
        assert_eq!(all(&journal), books.acknowledged);
        assert_eq!(journal.fault(), None);
        if disk.faults_fired() == 0 {
            assert!(skip > 12, "{skip}");
            assert!(refused > 1, "{refused}");
            return;
        }
    }
    panic!("it never ended");
}

/// What is appended after a park is vouched for when it is quiet again, as ever.
#[test]
fn the_witness_goes_on_after_a_park() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal(&disk, &workers).unwrap();
    let mut books = Books::default();
    let other = Arc::new(disk.new_process());
    let mut follower = JournalFollower::open(other, &dir(), Lsn::new(2)).unwrap();
    for _ in 0..3 {
        assert!(books.append(&journal, 1, 100));
        journal.park().unwrap();
        while workers.run_one() {}
        assert!(books.append(&journal, 1, 100));
        while workers.run_one() {}
        assert_eq!(follower.poll().unwrap().len(), 2);
    }
}

/// A look of the witness that waits for the park to end does not touch the closed files.
#[test]
fn a_witness_that_comes_late_finds_it_parked() {
    let disk = disk();
    let workers = Workers::manual();
    let journal = journal(&disk, &workers).unwrap();
    let mut books = Books::default();
    assert!(books.append(&journal, 1, 100));
    // It has seen the last record, so the next look takes the token.
    assert!(workers.run_one());
    let (late, looks) = (workers.clone(), Arc::new(Mutex::new(None)));
    let look = looks.clone();
    disk.set_hook(move |op| {
        let mut look = look.lock().unwrap();
        if op.is_sync() && look.is_none() {
            let workers = late.clone();
            *look = Some(std::thread::spawn(move || workers.run_one()));
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    journal.park().unwrap();
    let look = looks.lock().unwrap().take().unwrap();
    assert!(look.join().unwrap());
    disk.clear_hook();
    assert_eq!(journal.fault(), None);
    assert!(books.append(&journal, 1, 100));
    assert_eq!(all(&journal), books.acknowledged);
}

/// Between the link of a manifest and the listing behind it another thread may take the handle that
/// was kept for the listing. That is waited for: it faulted the journal before, although nothing had
/// failed but that.
#[test]
fn a_listing_without_a_handle_behind_a_manifest_is_tried_again() {
    for skip in 0..3 {
        let disk = disk();
        let workers = Workers::manual();
        let journal = journal(&disk, &workers).unwrap();
        let mut books = Books::default();
        disk.fail_nth(|op| matches!(op, Op::List { .. }), skip, FaultKind::Emfile);
        let before = disk.faults_fired();
        for _ in 0..40 {
            assert!(books.append(&journal, 1, 900));
        }
        assert_eq!(disk.faults_fired(), before + 1, "the skip {skip}");
        assert_eq!(journal.fault(), None);
        assert_eq!(all(&journal), books.acknowledged);
    }
}
