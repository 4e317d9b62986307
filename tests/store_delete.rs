//! Deletion and retention: what is deleted is gone for good, whoever is cut off where; what was not
//! asked for stays.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::io::ErrorKind;
use std::time::Duration;

use stepwell::event::{Clock, Factory, RandomIds};
use stepwell::identity::{SessionId, Timestamp};
use stepwell::journal::{OpenError, Operation};
use stepwell::store::{PassedOver, Reason, RepairError, RetentionPolicy};
use store_support::*;

fn id(byte: u8) -> SessionId {
    SessionId::from_bytes([byte; 16])
}

fn small() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            ..JournalOptions::default()
        },
        ..options()
    }
}

fn fill(store: &Store, id: SessionId, steps: usize) -> Session {
    let session = store.create_session(SessionSpec::new().id(id)).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("secret words")).unwrap();
    for number in 0..steps {
        turn.commit_step(text_step(&format!("{number} {}", "x".repeat(400))))
            .unwrap();
    }
    turn.finish().unwrap();
    drop(main);
    session
}

/// A disk with two sessions: one with several segments, a quarantined tail and a later opening.
fn disk() -> SimVfs {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(&disk, small());
    fill(&store, id(2), 3).close().unwrap();
    let session = fill(&store, id(1), 20);
    let view = store.journal_view(id(1)).unwrap();
    let last = view.read(view.tail()).map(Result::unwrap).last().unwrap();
    drop((session, view));
    disk.kill();
    // The last record is torn.
    let dir = store.session_dir(id(1));
    disk.flip_byte(
        dir.join(last.position.segment.to_string()),
        last.position.offset + 100,
    )
    .unwrap();
    let (session, report) = store_with(&disk, small())
        .open_session(id(1), Mode::Write)
        .unwrap();
    assert!(report.journal.cut.is_some());
    session.close().unwrap();
    disk
}

fn of(disk: &SimVfs, id: SessionId) -> Vec<(std::path::PathBuf, u64)> {
    let dir = Path::new("/store/sessions").join(id.to_string());
    let mut files = disk.files();
    files.retain(|(path, _)| path.starts_with(&dir));
    files
}

fn ids(store: &Store) -> Vec<SessionId> {
    store
        .sessions()
        .unwrap()
        .into_iter()
        .map(|entry| entry.id)
        .collect()
}

/// That the id is refused by all that could bring it back or look at it.
fn is_refused(store: &Store, id: SessionId) {
    let deleted =
        |error: &SessionError| matches!(error, SessionError::Deleted(found) if *found == id);
    assert!(deleted(
        &store.create_session(SessionSpec::new().id(id)).unwrap_err()
    ));
    for mode in [Mode::Read, Mode::Write] {
        assert!(deleted(&store.open_session(id, mode).unwrap_err()));
    }
    assert!(deleted(&store.delete_session(id).unwrap_err()));
    assert!(matches!(store.verify(id), Err(OpenError::NotFound { .. })));
    assert!(matches!(
        store.journal_view(id),
        Err(OpenError::NotFound { .. })
    ));
    assert!(matches!(
        store.repair(id, "/new", true),
        Err(RepairError::NotFound(_))
    ));
    assert!(!ids(store).contains(&id));
}

#[test]
fn every_byte_of_a_deleted_session_goes_and_its_id_with_it() {
    let disk = disk();
    let store = store_with(&disk, small());
    let before = of(&disk, id(1));
    assert!(
        before
            .iter()
            .any(|(path, _)| path.to_str().unwrap().contains("quarantine"))
    );
    let last = store.open_session(id(1), Mode::Read).unwrap().0.last_seq();
    let receipt = store.delete_session(id(1)).unwrap();
    assert_eq!(
        (receipt.session, receipt.last_seq, receipt.resumed),
        (id(1), Some(last), false)
    );
    assert_eq!(receipt.files, before.len() as u64);
    assert_eq!(
        receipt.bytes,
        before.iter().map(|(_, bytes)| bytes).sum::<u64>()
    );
    // Also after a power loss.
    disk.power_loss(PowerLoss::DropAll);
    assert!(of(&disk, id(1)).is_empty());
    assert!(
        disk.list(&store.session_dir(id(1)))
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    );
    // Neither words nor id are anywhere.
    for (path, _) in disk.files() {
        assert!(
            !path.to_str().unwrap().contains(&id(1).to_string()),
            "{path:?}"
        );
    }
    let store = store_with(&disk, small());
    is_refused(&store, id(1));
    assert_eq!(ids(&store), [id(2)]);
    assert!(store.verify(id(2)).unwrap().is_intact());
}

#[test]
fn an_open_session_is_locked_and_a_closed_one_is_not() {
    let disk = SimVfs::new();
    let store = store_with(&disk, small());
    let session = fill(&store, id(1), 1);
    let locked = |result: Result<_, SessionError>| {
        matches!(result, Err(SessionError::Journal(OpenError::Locked { .. })))
    };
    assert!(locked(store.delete_session(id(1))));
    session.park().unwrap();
    assert!(locked(
        store_with(&disk.new_process(), small()).delete_session(id(1))
    ));
    // Nothing happened to it.
    session.create_loop(LoopSpec::new("goes on")).unwrap();
    session.close().unwrap();
    store.delete_session(id(1)).unwrap();
    assert!(matches!(
        store.delete_session(id(3)),
        Err(SessionError::NotFound(_))
    ));
    assert!(matches!(
        session.create_loop(LoopSpec::new("x")),
        Err(CommitError::NotCommitted(_))
    ));
}

#[test]
fn damaged_and_newer_sessions_can_be_deleted_too() {
    for harm in ["damaged", "newer", "no manifest"] {
        let disk = disk();
        let dir = Path::new("/store/sessions").join(id(1).to_string());
        let names: Vec<String> = disk
            .list(&dir)
            .unwrap()
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        let manifest = dir.join(
            names
                .iter()
                .find(|name| name.starts_with("MANIFEST"))
                .unwrap(),
        );
        match harm {
            "damaged" => disk.flip_byte(&manifest, 40).unwrap(),
            "newer" => {
                let mut bytes = disk.read_file(&manifest).unwrap();
                bytes[12] = 9;
                let crc = crc32fast::hash(&bytes[12..]);
                bytes[8..12].copy_from_slice(&crc.to_le_bytes());
                disk.remove(&manifest).unwrap();
                disk.put_file(&manifest, &bytes).unwrap();
            }
            _ => disk.remove(&manifest).unwrap(),
        }
        let store = store_with(&disk, small());
        let state = store.sessions().unwrap()[0].state.clone();
        assert_eq!(
            matches!(state, Err(OpenError::NewerFormat { .. })),
            harm == "newer",
            "{harm}: {state:?}"
        );
        store.delete_session(id(1)).unwrap();
        is_refused(&store, id(1));
        assert!(of(&disk, id(1)).is_empty());
    }
}

#[test]
fn half_a_creation_is_no_session_to_delete() {
    let disk = SimVfs::new();
    let mut half = 0;
    for calls in 0..40 {
        let image = disk.snapshot();
        let store = store_with(&image, small());
        image.crash_after(calls);
        if store.create_session(SessionSpec::new().id(id(1))).is_ok() {
            break;
        }
        drop(store);
        image.kill();
        let store = store_with(&image, small());
        if ids(&store).is_empty() {
            half += 1;
            assert!(
                matches!(store.delete_session(id(1)), Err(SessionError::NotFound(_))),
                "{calls}"
            );
            store.create_session(SessionSpec::new().id(id(1))).unwrap();
        }
    }
    assert!(half > 5, "{half}");
}

/// A crash before every call of a deletion that changes the disk, and every kind of power loss behind
/// it: the session is untouched, or deleted for good. What was cut off is finished by the next opening
/// of the store, a listing, or an opening of the session.
#[test]
fn a_deletion_that_is_cut_off_has_changed_nothing_or_is_finished() {
    let original = disk();
    let whole = {
        let image = original.snapshot();
        let store = store_with(&image, small());
        image.set_tracing(true);
        store.delete_session(id(1)).unwrap();
        image
            .trace()
            .iter()
            .filter(|call| call.op.changes_disk())
            .count() as u64
    };
    let before = store_with(&original, small())
        .open_session(id(1), Mode::Read)
        .unwrap()
        .0;
    let (history, report) = (before.history().unwrap(), before.last_seq());
    let (mut untouched, mut deleted, mut hidden) = (0, 0, 0);
    for calls in 0..whole {
        let disk = original.snapshot();
        let store = store_with(&disk, small());
        disk.crash_after(calls);
        store.delete_session(id(1)).unwrap_err();
        drop(store);
        let losses = [None, Some(PowerLoss::DropAll), Some(PowerLoss::KeepAll)];
        let seeded = (0..12).map(|seed| Some(PowerLoss::Seeded(seed)));
        for loss in losses.into_iter().chain(seeded) {
            let image = disk.snapshot();
            match loss {
                Some(loss) => image.power_loss(loss),
                None => image.kill(),
            }
            // Somebody who only looks sees it whole or not at all, and writes nothing.
            let files = image.files();
            let seen = looking(&image);
            assert_eq!(image.files(), files);
            if seen.contains(&id(1)) {
                untouched += 1;
                let store = store_with(&image, small());
                let (session, _) = store.open_session(id(1), Mode::Read).unwrap();
                assert_eq!(
                    (session.history().unwrap(), session.last_seq()),
                    (history.clone(), report)
                );
                let files = of(&image, id(1)).len();
                assert!(
                    files >= of(&original, id(1)).len(),
                    "call {calls}, {loss:?}"
                );
                store.open_session(id(1), Mode::Write).unwrap();
                continue;
            }
            deleted += 1;
            hidden += u64::from(!of(&image, id(1)).is_empty());
            let by_session = image.snapshot();
            // The next opening of the store finishes it.
            let store = store_with(&image, small());
            assert!(
                of(&image, id(1)).is_empty(),
                "call {calls}, {loss:?} {:?} {:?} {:#?}",
                of(&image, id(1)),
                store.delete_session(id(1)),
                &image.trace()[image.trace().len().saturating_sub(14)..]
            );
            is_refused(&store, id(1));
            // A removal that the killed one did not sync may come back, to be removed again.
            image.power_loss(PowerLoss::DropAll);
            assert_eq!(looking(&image), [id(2)]);
            let store = store_with(&image, small());
            assert!(of(&image, id(1)).is_empty(), "call {calls}, {loss:?}");
            is_refused(&store, id(1));
            assert_eq!(looking(&image), [id(2)]);
            drop(by_session);
        }
    }
    assert!(
        untouched > 10 && deleted > 50 && hidden > 50,
        "{untouched} {deleted} {hidden}"
    );
}

/// What a store shows that was opened only to look.
fn looking(disk: &SimVfs) -> Vec<SessionId> {
    let vfs = Arc::new(disk.clone());
    ids(&Store::on_existing(vfs, "/store", small()).unwrap())
}

#[test]
fn a_store_that_is_open_finishes_what_another_process_left() {
    let disk = disk();
    let store = store_with(&disk, small());
    let other = disk.new_process();
    let deleting = store_with(&other, small());
    other.crash_after(6);
    deleting.delete_session(id(1)).unwrap_err();
    assert!(!of(&disk, id(1)).is_empty());
    let opened = disk.snapshot();
    // By a listing, or by who wants to open it.
    assert_eq!(ids(&store), [id(2)]);
    assert!(of(&disk, id(1)).is_empty());
    let store = store_with(&opened, small());
    assert!(matches!(
        store.open_session(id(1), Mode::Write),
        Err(SessionError::Deleted(_))
    ));
    assert!(of(&opened, id(1)).is_empty());
}

/// A failing call at each place: the session is as it was, or it is refused and a repeat finishes it.
#[test]
fn a_deletion_that_fails_can_be_repeated() {
    let original = disk();
    let mut failures = 0;
    for nth in 0..60 {
        let disk = original.snapshot();
        let store = store_with(&disk, small());
        disk.fail_nth(|op| op.changes_disk() || op.is_sync(), nth, FaultKind::Eio);
        let result = store.delete_session(id(1));
        if disk.faults_fired() == 0 {
            result.unwrap();
            break;
        }
        disk.clear_faults();
        if result.is_ok() {
            continue;
        }
        failures += 1;
        match store.open_session(id(1), Mode::Read) {
            Ok((session, _)) => assert!(session.steps() > 0),
            Err(error) => assert!(matches!(error, SessionError::Deleted(_)), "{nth}: {error}"),
        }
        match store.delete_session(id(1)) {
            Ok(receipt) => assert!(receipt.files > 0),
            Err(error) => assert!(matches!(error, SessionError::Deleted(_)), "{nth}: {error}"),
        }
        disk.power_loss(PowerLoss::DropAll);
        let store = store_with(&disk, small());
        assert!(of(&disk, id(1)).is_empty(), "{nth}");
        is_refused(&store, id(1));
    }
    assert!(failures > 5, "{failures}");
}

/// Somebody creates the id again while it is deleted: the tombstone is seen behind the lock.
#[test]
fn a_creation_during_a_deletion_is_refused() {
    let disk = disk();
    let store = store_with(&disk, small());
    let other = store_with(&disk.new_process(), small());
    let made = Arc::new(Mutex::new(Vec::new()));
    let seen = made.clone();
    disk.set_hook(move |op| {
        if op.changes_disk()
            && let Ok(mut made) = seen.try_lock()
        {
            made.push(other.create_session(SessionSpec::new().id(id(1))).map(drop));
        }
    });
    store.delete_session(id(1)).unwrap();
    disk.clear_hook();
    let made = made.lock().unwrap();
    assert!(made.len() > 10);
    for result in made.iter() {
        assert!(
            matches!(
                result,
                Err(SessionError::AlreadyExists(_)
                    | SessionError::Deleted(_)
                    | SessionError::Disk(_)
                    | SessionError::Journal(_))
            ),
            "{result:?}"
        );
    }
    is_refused(&store, id(1));
    assert!(of(&disk, id(1)).is_empty());
}

/// And the other way round: the whole deletion happens within any call of a creation or an opening.
#[test]
fn a_deletion_during_a_creation_or_an_opening_counts() {
    let original = disk();
    let mut within = 0;
    for after in 0..60 {
        for creates in [true, false] {
            let disk = original.snapshot();
            let store = store_with(&disk, small());
            let other = store_with(&disk.new_process(), small());
            let calls = Mutex::new((0, None));
            let calls = Arc::new(calls);
            let seen = calls.clone();
            disk.set_hook(move |_| {
                let Ok(mut seen) = seen.try_lock() else {
                    return;
                };
                seen.0 += 1;
                if seen.0 == after + 1 {
                    seen.1 = Some(other.delete_session(id(1)));
                }
            });
            let opened = match creates {
                true => store.create_session(SessionSpec::new().id(id(1))),
                false => store
                    .open_session(id(1), Mode::Write)
                    .map(|(session, _)| session),
            };
            disk.clear_hook();
            let deleted = calls.lock().unwrap().1.take();
            if matches!(deleted, Some(Ok(_))) {
                within += 1;
                assert!(
                    opened.is_err(),
                    "{after}: {opened:?} has an id that was deleted"
                );
                let store = store_with(&disk, small());
                is_refused(&store, id(1));
                assert!(of(&disk, id(1)).is_empty(), "{after}");
            }
        }
    }
    assert!(within >= 5, "{within}");
}

/// A clock that the test sets.
#[derive(Clone)]
struct Hands(Arc<Mutex<i64>>);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp::new(*self.0.lock().unwrap(), 0).unwrap()
    }
}

const DAY: i64 = 86_400;

/// Five sessions, one a day, and then it is day 10.
fn days() -> (SimVfs, Store) {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let hands = Hands(Arc::default());
    let store = store_with(
        &disk,
        StoreOptions {
            factory: Factory::new(RandomIds, hands.clone()),
            ..small()
        },
    );
    for day in 1..=5 {
        *hands.0.lock().unwrap() = i64::from(day) * DAY;
        // The third one is large.
        fill(&store, id(day), if day == 3 { 100 } else { 2 })
            .close()
            .unwrap();
    }
    *hands.0.lock().unwrap() = 10 * DAY;
    (disk, store)
}

fn planned(store: &Store, policy: RetentionPolicy) -> Vec<(SessionId, Reason)> {
    let plan = store.retention(policy).unwrap();
    assert!(plan.passed_over.is_empty());
    assert_eq!(plan.kept + plan.remove.len(), 5);
    plan.remove
        .iter()
        .map(|expired| (expired.session, expired.reason))
        .collect()
}

#[test]
fn retention_plans_by_age_count_and_bytes_and_removes_nothing_by_itself() {
    let (disk, store) = days();
    let before = disk.files();
    let none = RetentionPolicy::default();
    assert_eq!(planned(&store, none), []);
    let days = |days: u64| Some(Duration::from_secs(days * 86_400));
    let old = RetentionPolicy {
        older_than: days(7),
        ..none
    };
    assert_eq!(
        planned(&store, old),
        [(id(1), Reason::Age), (id(2), Reason::Age)]
    );
    let last = RetentionPolicy {
        keep_last: Some(3),
        ..none
    };
    assert_eq!(
        planned(&store, last),
        [(id(1), Reason::Count), (id(2), Reason::Count)]
    );
    assert_eq!(
        planned(
            &store,
            RetentionPolicy {
                keep_last: Some(0),
                ..none
            }
        )
        .len(),
        5
    );
    // The last ones stay although they are old.
    let both = RetentionPolicy {
        older_than: days(1),
        keep_last: Some(4),
        ..none
    };
    assert_eq!(planned(&store, both), [(id(1), Reason::Age)]);
    let size = |id| of(&disk, id).iter().map(|(_, bytes)| bytes).sum::<u64>();
    let room = size(id(5)) + size(id(4)) + size(id(2));
    let bytes = RetentionPolicy {
        max_bytes: Some(room),
        ..none
    };
    assert_eq!(
        planned(&store, bytes),
        [(id(1), Reason::Bytes), (id(3), Reason::Bytes)]
    );
    let plan = store.retention(bytes).unwrap();
    assert_eq!((plan.kept, plan.kept_bytes), (3, room));
    assert_eq!(plan.remove[1].bytes, size(id(3)));
    assert_eq!(disk.files(), before, "a plan is only a plan");
}

#[test]
fn carrying_a_plan_out_deletes_and_passes_over_what_is_in_use() {
    let (disk, store) = days();
    let open = store.open_session(id(2), Mode::Write).unwrap().0;
    // Opening is an event, so it is the youngest now; the clock makes it old again for the plan.
    let all = RetentionPolicy {
        keep_last: Some(0),
        ..RetentionPolicy::default()
    };
    disk.flip_byte(manifest(&disk, id(4)), 40).unwrap();
    let plan = store.retention(all).unwrap();
    let expired: Vec<_> = plan.remove.iter().map(|expired| expired.session).collect();
    assert_eq!(expired, [id(1), id(3), id(5)]);
    assert_eq!(plan.passed_over.len(), 2);
    assert!(plan.passed_over.contains(&(id(2), PassedOver::Open)));
    assert!(
        plan.passed_over.contains(&(id(4), PassedOver::Damaged)),
        "{:?}",
        plan.passed_over
    );
    // Since the plan: one is used, one is open, one is deleted.
    let used = store.open_session(id(1), Mode::Write).unwrap().0;
    used.close().unwrap();
    let held = store.open_session(id(3), Mode::Write).unwrap().0;
    let report = store.prune(&plan);
    assert_eq!(
        report.passed_over,
        [(id(1), PassedOver::Used), (id(3), PassedOver::Open)]
    );
    assert_eq!(report.deleted.len(), 1);
    assert_eq!(report.deleted[0].session, id(5));
    let again = store.prune(&plan);
    assert!(again.passed_over.contains(&(id(5), PassedOver::Gone)));
    drop((open, held));
    assert_eq!(ids(&store), [id(1), id(2), id(3), id(4)]);
}

#[test]
fn a_session_whose_lock_cannot_be_taken_is_not_called_open() {
    let (disk, store) = days();
    let all = RetentionPolicy {
        keep_last: Some(0),
        ..RetentionPolicy::default()
    };
    let dir = store.session_dir(id(2));
    let of_lock = move |op: &Op| matches!(op, Op::TryLock { path } if path.starts_with(&dir));
    disk.fail_from(of_lock, 0, FaultKind::Erofs);
    let plan = store.retention(all).unwrap();
    assert_eq!(plan.remove.len(), 4);
    match &plan.passed_over[..] {
        [(session, PassedOver::Lock(error))] => {
            assert_eq!(*session, id(2));
            assert_eq!(error.operation, Operation::Lock);
            assert_eq!(error.kind, ErrorKind::ReadOnlyFilesystem);
        }
        other => panic!("{other:?}"),
    }
}

fn manifest(disk: &SimVfs, id: SessionId) -> std::path::PathBuf {
    let files = of(disk, id).into_iter().map(|(path, _)| path);
    let mut manifests = files.filter(|path| path.to_str().unwrap().contains("MANIFEST"));
    manifests.next().unwrap()
}
