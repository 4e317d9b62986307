//! Commits of one session from several loops at once: what shares a sync, what waits, and what
//! becomes of those that wait.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::thread;

use stepwell::event::Key;
use stepwell::identity::LoopId;
use stepwell::journal::{NotCommitted, Workers};
use stepwell::store::{CommitError, Draft, Outcome, Refusal, Ticket};
use store_support::*;

type Answer = Ticket<Result<Vec<Outcome>, CommitError>>;

struct World {
    disk: SimVfs,
    workers: Workers,
    session: Session,
    loops: Vec<LoopId>,
    watcher: Arc<Watcher>,
}

fn world() -> World {
    let workers = Workers::manual();
    let disk = SimVfs::new();
    let options = StoreOptions {
        workers: workers.clone(),
        ..options()
    };
    let session = store_with(&disk, options).create_session(SessionSpec::new());
    let session = session.unwrap();
    let loops = ["a", "b", "c"].map(|name| {
        let made = session.create_loop(LoopSpec::new(name)).unwrap();
        made.id()
    });
    while workers.run_one() {}
    let watcher = Watcher::on(&disk, &session);
    disk.clear_trace();
    World {
        loops: loops.to_vec(),
        watcher,
        disk,
        workers,
        session,
    }
}

impl World {
    fn note(&self, text: &str) -> Draft {
        Draft::new(HostEvent {
            name: "note".into(),
            version: 1,
            data: RawJson::parse(format!("{text:?}").as_bytes()).unwrap(),
            optional: true,
        })
    }

    fn submit(&self, of: usize, text: &str) -> Answer {
        let draft = self.note(text).in_loop(self.loops[of]);
        self.session.submit(vec![draft])
    }

    fn syncs(&self) -> u64 {
        self.disk.sync_count("seg-")
    }

    fn told(&self) -> Vec<u64> {
        let seen = self.watcher.seen();
        seen.iter().map(|(seq, _, _)| seq.get()).collect()
    }
}

fn seq(answer: Answer) -> u64 {
    answer.wait().unwrap().unwrap()[0].committed().seq().get()
}

#[test]
fn commits_of_two_loops_share_a_sync_and_one_loop_keeps_its_order() {
    let world = world();
    let first = world.submit(0, "a1");
    let second = world.submit(1, "b1");
    let third = world.submit(0, "a2");
    let fourth = world.submit(2, "c1");
    assert_eq!(world.syncs(), 0);
    assert!(world.workers.run_one());
    assert_eq!(world.syncs(), 1);
    // SessionStarted and three LoopStarted stand before them.
    assert_eq!(world.told(), [5, 6, 7]);
    assert!(world.workers.run_one());
    assert_eq!(world.syncs(), 2);
    assert_eq!(world.told(), [5, 6, 7, 8]);
    assert_eq!(
        [seq(first), seq(second), seq(fourth), seq(third)],
        [5, 6, 7, 8]
    );
}

#[test]
fn a_commit_of_the_session_itself_waits_for_all_and_all_for_it() {
    let world = world();
    let first = world.submit(0, "a1");
    let of_session = world.session.submit(vec![world.note("session")]);
    let behind = world.submit(1, "b1");
    for syncs in 1..=3 {
        assert!(world.workers.run_one());
        assert_eq!(world.syncs(), syncs);
    }
    assert_eq!([seq(first), seq(of_session), seq(behind)], [5, 6, 7]);
}

#[test]
fn one_key_in_two_loops_at_once_is_committed_once() {
    let world = world();
    let keyed = |of: usize| {
        let draft = world.note("same").in_loop(world.loops[of]);
        draft.key(Key::new("k").unwrap())
    };
    let first = world.session.submit(vec![keyed(0)]);
    let second = world.session.submit(vec![keyed(1)]);
    while world.workers.run_one() {}
    assert_eq!(seq(first), 5);
    let outcomes = second.wait().unwrap().unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Duplicate(first)] if first.seq().get() == 5));
    assert_eq!(world.told(), [5]);
}

#[test]
fn what_stands_behind_a_commit_that_has_no_space_is_refused_for_the_same_reason() {
    let world = world();
    world.disk.set_capacity(Some(world.disk.used()));
    let large = world.submit(0, &"x".repeat(16 * 1024));
    let small = world.submit(1, "fits");
    while world.workers.run_one() {}
    for answer in [large, small] {
        assert!(matches!(
            answer.wait().unwrap(),
            Err(CommitError::NotCommitted(Refusal::Journal(
                NotCommitted::StorageFull(_)
            )))
        ));
    }
    assert_eq!(world.told(), [0; 0]);
    let after = world.submit(1, "fits");
    while world.workers.run_one() {}
    assert_eq!(seq(after), 5);
}

#[test]
fn a_fault_reaches_all_that_fly_and_all_that_wait() {
    let world = world();
    let flying = [world.submit(0, "a1"), world.submit(1, "b1")];
    let waiting = world.submit(0, "a2");
    let syncs = |op: &Op| matches!(op, Op::SyncData { .. });
    world
        .disk
        .fail_nth(syncs, 0, FaultKind::SyncKept(PowerLoss::DropAll));
    while world.workers.run_one() {}
    for answer in flying {
        let Err(CommitError::Unknown { events, .. }) = answer.wait().unwrap() else {
            panic!()
        };
        assert_eq!(events.len(), 1);
    }
    assert!(matches!(
        waiting.wait().unwrap(),
        Err(CommitError::NotCommitted(Refusal::Faulted(_)))
    ));
    assert_eq!(world.told(), [0; 0]);
    assert_eq!(world.watcher.faults.lock().unwrap().len(), 1);
}

#[test]
fn closing_finishes_what_flies_and_refuses_what_waits() {
    let world = world();
    let flying = world.submit(0, "a1");
    let waiting = world.submit(0, "a2");
    world.session.close().unwrap();
    assert_eq!(seq(flying), 5);
    assert!(matches!(
        waiting.wait().unwrap(),
        Err(CommitError::NotCommitted(Refusal::Journal(
            NotCommitted::Closed
        )))
    ));
    assert_eq!(world.told(), [5]);
}

/// Loops on threads of their own, blocking: nothing is lost, each loop keeps its order, and what is
/// told is in the order of the log.
#[test]
fn loops_commit_from_threads_of_their_own() {
    let disk = SimVfs::new();
    let options = StoreOptions {
        workers: Workers::threads(),
        ..options()
    };
    let store = store_with(&disk, options);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let watcher = Watcher::on(&disk, &session);
    thread::scope(|scope| {
        for number in 0..6 {
            let session = &session;
            scope.spawn(move || {
                let name = format!("loop {number}");
                let mut own = session.create_loop(LoopSpec::new(name.as_str())).unwrap();
                for turn in 0..5 {
                    let mut begun = own.begin_turn(UserMessage::text("go")).unwrap();
                    assert_eq!(begun.index(), turn + 1);
                    begun.commit_step(tool_step()).unwrap();
                    begun.commit_last_step(text_step("done")).unwrap();
                }
            });
        }
    });
    let told: Vec<u64> = watcher.seen().iter().map(|(seq, _, _)| seq.get()).collect();
    assert_eq!(told, (2..2 + 6 * (1 + 5 * 4)).collect::<Vec<_>>());
    let live = session.history().unwrap();
    let id = session.id();
    session.close().unwrap();
    let (again, _) = store.open_session(id, Mode::Write).unwrap();
    assert_eq!(again.history().unwrap(), live);
}

/// A blocking commit waits for its turn at the disk, however much waits already: it was refused as
/// busy, although its caller could wait.
#[test]
fn a_blocking_commit_is_never_busy_and_one_that_is_submitted_may_be() {
    let disk = SimVfs::new();
    let options = StoreOptions {
        workers: Workers::threads(),
        journal: JournalOptions {
            queue_bytes: 4_000,
            ..options().journal
        },
        ..options()
    };
    let session = store_with(&disk, options).create_session(SessionSpec::new());
    let session = session.unwrap();
    let loops: Vec<_> = (0..8)
        .map(|number| {
            let made = session.create_loop(LoopSpec::new(format!("l{number}")));
            made.unwrap().id()
        })
        .collect();
    let note = |of: usize| {
        let event = HostEvent {
            name: "note".into(),
            version: 1,
            data: RawJson::parse(format!("\"{}\"", "x".repeat(2_000)).as_bytes()).unwrap(),
            optional: true,
        };
        vec![Draft::new(event).in_loop(loops[of])]
    };
    // Syncs stand still until the gate opens.
    let gate = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let stands = gate.clone();
    disk.set_hook(move |op| {
        if matches!(op, Op::SyncData { .. }) {
            let open = stands.0.lock().unwrap();
            drop(stands.1.wait_while(open, |open| !*open).unwrap());
        }
    });
    let outcomes: Vec<_> = thread::scope(|scope| {
        let commits: Vec<_> = (0..6)
            .map(|of| {
                let drafts = note(of);
                let session = &session;
                scope.spawn(move || session.commit(drafts))
            })
            .collect();
        // One is with the disk, the others wait, more than there is room for.
        while session.health().unwrap().queued < 5
            && !commits.iter().any(|commit| commit.is_finished())
        {
            thread::yield_now();
        }
        let submitted = session.submit(note(7));
        let busy = submitted.wait().unwrap();
        assert!(
            matches!(
                busy,
                Err(CommitError::NotCommitted(Refusal::Journal(
                    NotCommitted::Busy { .. }
                )))
            ),
            "{busy:?}"
        );
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        commits
            .into_iter()
            .map(|commit| commit.join().unwrap())
            .collect()
    });
    for outcome in outcomes {
        outcome.unwrap();
    }
}
