//! Model checking of the hub and of the hand-over of commits, over random schedules: every lock and
//! every wake-up of the store, the journal and the hub is a point at which another thread may go on.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --lib schedules`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner, thread};

use super::{Filter, HubOptions, IdleError, StartAt, StreamEnd, Subscription};
use crate::content::{AssistantMessage, RawJson};
use crate::event::{HostEvent, Kind};
use crate::journal::{JournalOptions, Seq, Workers};
use crate::store::{
    CommitError, Draft, LoopSpec, Mode, Refusal, Session, SessionSpec, StepDraft, Store,
    StoreOptions,
};
use crate::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};

const SCHEDULES: usize = 2000;
/// Far more than any schedule needs: one that has not ended by then never will, though the thread that
/// serves the queue keeps it from being a deadlock.
const STEPS: usize = 100_000;

/// Random schedules, and such as keep to one thread for long and change at few, well-chosen points.
fn check(life: impl Fn() + Send + Sync + Copy + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS);
    Runner::new(RandomScheduler::new(SCHEDULES), config.clone()).run(life);
    Runner::new(PctScheduler::new(3, SCHEDULES), config).run(life);
}

fn world() -> (SimVfs, Store, Session, Workers) {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let options = StoreOptions {
        journal: JournalOptions {
            first_capacity: 16 * 1024,
            max_capacity: 16 * 1024,
            ..JournalOptions::default()
        },
        workers: Workers::manual(),
        ..StoreOptions::default()
    };
    let workers = options.workers.clone();
    let store = Store::on(Arc::new(disk.clone()), "/store", options).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    // Small, so that most subscribers fall behind it.
    session.hub_with(HubOptions {
        recent_events: 2,
        recent_bytes: 4096,
        live_queue: 8,
        page: 2,
    });
    (disk, store, session, workers)
}

/// The thread for groups that a store has: serves what nobody waits for by itself.
struct Server {
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Server {
    fn of(workers: Workers) -> Server {
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                workers.run_one();
                thread::yield_now();
            }
            while workers.run_one() {}
        });
        Server { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

fn host_event() -> Draft {
    Draft::new(HostEvent {
        name: "test".into(),
        version: 1,
        data: RawJson::empty_object(),
        optional: false,
    })
}

/// Reads until the sequence is there; each committed event once and in order.
fn read_up_to(mut events: Subscription, from: u64, last: u64) {
    let mut next = from;
    while next <= last {
        let delivery = block_on(events.recv()).unwrap().unwrap();
        assert_eq!(delivery.seq(), Seq::new(next));
        next += 1;
    }
}

#[test]
fn whoever_joins_sees_each_event_once_and_in_order() {
    check(|| {
        let (_disk, _store, session, workers) = world();
        let server = Server::of(workers);
        // SessionStarted, and those of the committers.
        let last = 1 + 2 * 3;
        let mut threads = Vec::new();
        for _ in 0..2 {
            let session = session.clone();
            threads.push(thread::spawn(move || {
                session.commit(vec![host_event()]).unwrap();
                session.commit(vec![host_event(), host_event()]).unwrap();
            }));
        }
        for from in [1, 3] {
            let session = session.clone();
            threads.push(thread::spawn(move || {
                let events = session.subscribe(StartAt::seq(from), Filter::committed());
                read_up_to(events, from, last);
            }));
        }
        let joins = session.clone();
        threads.push(thread::spawn(move || {
            let events = joins.subscribe(StartAt::now(), Filter::committed());
            let from = events.next_seq().get();
            read_up_to(events, from, last);
        }));
        for thread in threads {
            thread.join().unwrap();
        }
        server.end();
        assert_eq!(session.last_seq(), Seq::new(last));
    });
}

/// Two loops commit as the runner does: a submission, awaited by its task, is settled by whoever
/// serves the queue. One task is gone before its answer. Nothing hangs, nothing is lost, and the
/// live fold is that of the log.
#[test]
fn a_submission_is_settled_whoever_serves_the_queue() {
    check(|| {
        let (disk, store, session, workers) = world();
        let mut threads = Vec::new();
        let mut loops = Vec::new();
        for name in ["a", "b"] {
            // Before the server runs: who waits serves itself.
            loops.push(session.create_loop(LoopSpec::new(name)).unwrap());
        }
        let server = Server::of(workers);
        for mut own in loops {
            threads.push(thread::spawn(move || {
                let session = own.session().clone();
                let mut turn = block_on(own.begin_turn_async("go".into())).unwrap();
                let step = || StepDraft::new(AssistantMessage::text("said"));
                let outcome = block_on(turn.commit_step_async(step())).unwrap();
                assert!(
                    session.last_seq() >= outcome.seq(),
                    "answered before it was folded"
                );
                // Nobody waits for it.
                drop(session.submit(vec![host_event()]));
                block_on(turn.commit_last_step_async(step())).unwrap();
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        server.end();
        assert_eq!(session.steps(), 4);
        assert_eq!(session.open_turns(), []);
        // 1 session, 2 loops, and of each loop a turn, two steps, an end and a host's event.
        assert_eq!(session.last_seq(), Seq::new(3 + 2 * 5));
        let history = session.history().unwrap();
        let id = session.id();
        drop((session, store));
        let options = StoreOptions {
            workers: Workers::manual(),
            ..StoreOptions::default()
        };
        let store = Store::on(Arc::new(disk.new_process()), "/store", options).unwrap();
        let (restored, _) = store.open_session(id, Mode::Read).unwrap();
        assert_eq!(restored.history().unwrap(), history);
    });
}

/// A sync fails under one of two committers: everybody gets the fault, streams end with it behind
/// the last event that was committed, and nothing is published behind it.
#[test]
fn a_fault_reaches_everybody_behind_the_last_committed_event() {
    check(|| {
        let (disk, _store, session, workers) = world();
        let server = Server::of(workers);
        let hub = session.hub();
        disk.fail_nth(
            |op| matches!(op, Op::SyncData { .. }),
            1,
            FaultKind::SyncKept(PowerLoss::DropAll),
        );
        let work = hub.work(crate::identity::LoopId::nil());
        let mut threads = Vec::new();
        for _ in 0..2 {
            let session = session.clone();
            threads.push(thread::spawn(move || {
                for _ in 0..2 {
                    match session.commit(vec![host_event()]) {
                        Ok(_) | Err(CommitError::Unknown { .. }) => {}
                        Err(CommitError::NotCommitted(Refusal::Faulted(_))) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            }));
        }
        let watcher = thread::spawn({
            let session = session.clone();
            move || {
                let mut events = session.subscribe(StartAt::seq(1), Filter::committed());
                let mut next = 1;
                loop {
                    match block_on(events.recv()) {
                        Some(Ok(delivery)) => {
                            assert_eq!(delivery.seq(), Seq::new(next));
                            next += 1;
                        }
                        Some(Err(StreamEnd::Fault(_))) => break,
                        other => panic!("{other:?}"),
                    }
                }
                assert!(block_on(events.recv()).is_none());
                assert_eq!(session.last_seq(), Seq::new(next - 1));
            }
        });
        let idle = thread::spawn({
            let hub = hub.clone();
            move || {
                let end = block_on(hub.wait_idle());
                assert!(matches!(end, Err(IdleError::Faulted(_))), "{end:?}");
            }
        });
        for thread in threads {
            thread.join().unwrap();
        }
        watcher.join().unwrap();
        idle.join().unwrap();
        server.end();
        drop(work);
        assert!(hub.fault().is_some());
    });
}

/// Live events stand where they were emitted, and idleness is told to who waits.
#[test]
fn live_events_keep_their_place_and_idle_wakes() {
    check(|| {
        let (_disk, _store, session, _) = world();
        let hub = session.hub();
        let mut events = hub.subscribe(StartAt::seq(1), Filter::all());
        let work = hub.work(crate::identity::LoopId::nil());
        let worker = thread::spawn({
            let session = session.clone();
            move || {
                session.commit(vec![host_event()]).unwrap();
                drop(work);
            }
        });
        let waits = thread::spawn({
            let (hub, session) = (hub.clone(), session.clone());
            move || {
                block_on(hub.wait_idle()).unwrap();
                assert_eq!(
                    session.last_seq(),
                    Seq::new(2),
                    "idle before its work was done"
                );
            }
        });
        let mut seen = Vec::new();
        while seen.last() != Some(&Kind::SessionIdle) {
            let delivery = block_on(events.recv()).unwrap().unwrap();
            seen.push(delivery.event().kind());
        }
        let at = |kind| seen.iter().position(|seen| *seen == kind).unwrap();
        assert!(at(Kind::HostEvent) < at(Kind::SessionIdle));
        worker.join().unwrap();
        waits.join().unwrap();
    });
}
