//! Restored history equals live history (P4): after random runs, and after a kill and a power loss
//! at every call to the disk, also inside recovery.
//!
//! The oracle is the test's own book: every event that was committed, with its sequence. After a
//! crash the log must begin with exactly these; behind them may stand the one batch whose outcome
//! nobody knows, whole, and what opening itself wrote. The history must be what those events say.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::sync::Arc;

use proptest::prelude::*;
use stepwell::content::{AssistantMessage, Message, RawJson, ToolResultMessage, UserMessage};
use stepwell::event::{Body, ErrorKind, ErrorProjection, Event, Kind};
use stepwell::identity::SessionId;
use stepwell::journal::{JournalOptions, OpenError, Seq};
use stepwell::store::{
    CommitError, Committed, HistoryItem, Layout, Loop, LoopSpec, Mode, Session, SessionError,
    SessionSpec, StepDraft, Store, StoreError, StoreOptions,
};
use stepwell::vfs::sim::{PowerLoss, SimVfs};

fn store(disk: &SimVfs) -> Store {
    try_store(disk).unwrap()
}

/// For who only looks, as another process.
fn look(disk: &SimVfs) -> Store {
    let other = Arc::new(disk.new_process());
    Store::on_existing(other, "/store", StoreOptions::default()).unwrap()
}

/// For disks that crash.
fn try_store(disk: &SimVfs) -> Result<Store, StoreError> {
    let options = StoreOptions {
        layout: match env!("CARGO_CRATE_NAME").starts_with("shared") {
            true => Layout::Shared,
            false => Layout::PerSession,
        },
        journal: JournalOptions {
            first_capacity: 16 * 1024,
            max_capacity: 16 * 1024,
            supersede_limit: 4096,
            ..JournalOptions::default()
        },
        workers: stepwell::journal::Workers::manual(),
        // Some of the bodies stand in files of their own.
        blob_threshold: 400,
        ..StoreOptions::default()
    };
    Store::on(Arc::new(disk.clone()), "/store", options)
}

/// One turn of a script: how many steps, with how many calls each, how long, and how it ends.
#[derive(Debug, Clone)]
struct Script {
    looped: usize,
    steps: Vec<(u8, u16)>,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    LastStep,
    Finish,
    Fail,
    Interrupt,
    Drop,
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    let end = prop_oneof![
        Just(End::LastStep),
        Just(End::Finish),
        Just(End::Fail),
        Just(End::Interrupt),
        Just(End::Drop),
    ];
    let steps = prop::collection::vec((0..3u8, 0..900u16), 0..4);
    let script =
        (0..2usize, steps, end).prop_map(|(looped, steps, end)| Script { looped, steps, end });
    prop::collection::vec(script, 0..8)
}

fn step(calls: u8, length: u16) -> StepDraft {
    let mut message =
        AssistantMessage::text(format!("{} calls {}", calls, "t".repeat(length.into())));
    let mut results = Vec::new();
    for number in 0..calls {
        let id = format!("call-{number}");
        let input = RawJson::parse(br#"{ "k" : 1.50, "k":"\ud83d" }"#).unwrap();
        message = message.with_tool_use(&id, "tool", input);
        results.push(match number % 2 {
            0 => ToolResultMessage::text(id, "fine"),
            _ => ToolResultMessage::error(id, "failed"),
        });
    }
    StepDraft::new(message).results(results)
}

/// Runs a turn; gives up at the first error.
fn run(loop_: &mut Loop, script: &Script, number: usize) -> Result<(), CommitError> {
    let mut turn = loop_.begin_turn(UserMessage::text(format!("turn {number}")))?;
    for (calls, length) in &script.steps {
        turn.commit_step(step(*calls, *length))?;
    }
    match script.end {
        End::LastStep => drop(turn.commit_last_step(step(0, 10))?),
        End::Finish => drop(turn.finish()?),
        End::Fail => drop(turn.fail(ErrorProjection::new(ErrorKind::Unknown, "503"))?),
        End::Interrupt => drop(turn.interrupt()?),
        End::Drop => drop(turn),
    }
    Ok(())
}

fn loops(session: &Session) -> Result<[Loop; 2], CommitError> {
    let named = |name: &str| match session.loop_by_name(name) {
        Ok(Some(found)) => Ok(found),
        _ => session.create_loop(LoopSpec::new(name)),
    };
    Ok([named("one")?, named("two")?])
}

/// What the models of all loops see.
fn contexts(session: &Session) -> Vec<Vec<Arc<Message>>> {
    let loops = session.loops().into_iter();
    loops
        .map(|(id, _)| session.loop_context(id).unwrap())
        .collect()
}

fn events(session: &Session) -> Vec<(Seq, Event)> {
    session
        .replay(Seq::new(1))
        .map(|committed| committed.unwrap())
        .map(|committed: Committed| (committed.seq(), committed.event().clone()))
        .collect()
}

/// The history that events say, written here a second time, from the rules and not from the code.
fn said(events: &[(Seq, Event)]) -> Vec<(Seq, Message)> {
    let mut history = Vec::new();
    for (seq, event) in events {
        match &event.body {
            Body::TurnStarted(body) => history.push((*seq, Message::User(body.message.clone()))),
            Body::TurnFoldedInto(body) => history.push((*seq, Message::User(body.message.clone()))),
            Body::StepDone(body) => {
                history.extend(body.messages.iter().map(|message| (*seq, message.clone())));
            }
            _ => {}
        }
    }
    history
}

fn flat(history: &[HistoryItem]) -> Vec<(Seq, Message)> {
    history
        .iter()
        .map(|item| (item.seq, (*item.message).clone()))
        .collect()
}

/// What may stand behind the committed events: one batch of the script, and a restore.
fn check_after_crash(session: &Session, book: &[(Seq, Event)], what: &str) {
    let after = events(session);
    assert!(
        after.len() >= book.len(),
        "{what}: committed events are lost"
    );
    assert!(
        after[..book.len()] == *book,
        "{what}: committed events changed"
    );
    let rest: Vec<Kind> = after[book.len()..]
        .iter()
        .map(|(_, event)| event.kind())
        .filter(|kind| !matches!(kind, Kind::RestoreStarted | Kind::RestoreDone))
        .collect();
    // At most one batch (up to two records here), and the interruption of what was open.
    assert!(rest.len() <= 3, "{what}: {rest:?}");
    for (number, (seq, _)) in after.iter().enumerate() {
        assert_eq!(seq.get(), number as u64 + 1, "{what}");
    }
    assert!(
        flat(&session.history().unwrap()) == said(&after),
        "{what}: the history is another"
    );
    assert_eq!(session.open_turns(), [], "{what}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Live history equals what is restored, read-only and for writing, after a close, a kill and a
    /// power loss.
    #[test]
    fn restored_history_equals_live_history(scripts in scripts(), rounds in 1..4usize) {
        let disk = SimVfs::new();
        let mut session = store(&disk).create_session(SessionSpec::new()).unwrap();
        for round in 0..rounds {
            let mut loops = loops(&session).unwrap();
            // In memory from here on: commits extend them, and the log is not asked again.
            contexts(&session);
            for (number, script) in scripts.iter().enumerate() {
                run(&mut loops[script.looped], script, number).unwrap();
            }
            drop(loops);
            let warm = contexts(&session);
            let live = session.history().unwrap();
            prop_assert!(flat(&live) == said(&events(&session)));
            prop_assert_eq!(&session.history_at(session.last_seq()).unwrap(), &live);
            let id = session.id();
            let (view, _) = look(&disk).open_session(id, Mode::Read).unwrap();
            prop_assert_eq!(&view.history().unwrap(), &live);
            prop_assert_eq!(&contexts(&view), &warm);
            if round % 3 == 0 {
                session.close().unwrap();
            }
            drop((session, view));
            match round % 3 {
                1 => disk.kill(),
                2 => disk.power_loss(PowerLoss::DropAll),
                _ => {}
            }
            let (restored, report) = store(&disk).open_session(id, Mode::Write).unwrap();
            prop_assert_eq!(&restored.history().unwrap(), &live);
            prop_assert_eq!(&contexts(&restored), &warm);
            prop_assert_eq!(report.journal.cut, None);
            session = restored;
        }
    }

    /// A history at an earlier point is the history as it was then.
    #[test]
    fn history_at_a_sequence_is_what_it_was_then(scripts in scripts()) {
        let session = Store::in_memory().unwrap().create_session(SessionSpec::new()).unwrap();
        let mut loops = loops(&session).unwrap();
        let mut snapshots = Vec::new();
        for (number, script) in scripts.iter().enumerate() {
            run(&mut loops[script.looped], script, number).unwrap();
            snapshots.push((session.last_seq(), session.history().unwrap()));
        }
        for (at, history) in snapshots {
            prop_assert_eq!(session.history_at(at).unwrap(), history);
        }
    }
}

fn fixed_scripts() -> Vec<Script> {
    let script = |looped, steps: &[(u8, u16)], end| Script {
        looped,
        steps: steps.to_vec(),
        end,
    };
    vec![
        script(0, &[(2, 700), (0, 100)], End::LastStep),
        script(1, &[(1, 800)], End::Drop),
        script(1, &[(0, 900), (2, 900)], End::Fail),
        script(0, &[], End::Interrupt),
    ]
}

/// The committed events, unless the disk has crashed and cannot be read.
fn replayed(session: &Session) -> Option<Vec<(Seq, Event)>> {
    session
        .replay(Seq::new(1))
        .map(|committed| {
            Some((
                committed.as_ref().ok()?.seq(),
                committed.ok()?.event().clone(),
            ))
        })
        .collect()
}

fn prepared() -> (SimVfs, SessionId) {
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let id = session.id();
    drop(session);
    disk.kill();
    (disk, id)
}

#[test]
fn a_crash_at_every_call_restores_what_was_committed() {
    let (start, id) = prepared();
    let kinds = [
        None,
        Some(PowerLoss::DropAll),
        Some(PowerLoss::Seeded(1)),
        Some(PowerLoss::Seeded(2)),
    ];
    for calls in 0.. {
        let mut finished = false;
        for kind in kinds {
            let disk = start.snapshot();
            // The book is kept by an observer, which is told of each commit as it happens.
            let (book, done) = watched_life(&disk, id, calls);
            finished = done;
            match kind {
                None => disk.kill(),
                Some(loss) => disk.power_loss(loss),
            }
            let what = format!("call {calls}, {kind:?}");
            let (session, _) = store(&disk)
                .open_session(id, Mode::Write)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            check_after_crash(&session, &book, &what);
            // And once more: opening again changes nothing of it.
            let before = events(&session);
            drop(session);
            disk.power_loss(PowerLoss::DropAll);
            let (session, _) = store(&disk).open_session(id, Mode::Write).unwrap();
            assert!(events(&session)[..before.len()] == before[..], "{what}");
        }
        if finished {
            assert!(calls > 30);
            break;
        }
    }
}

/// Keeps the book of a life that crashes after some calls.
fn watched_life(disk: &SimVfs, id: SessionId, calls: u64) -> (Vec<(Seq, Event)>, bool) {
    use std::sync::Mutex;
    #[derive(Default)]
    struct Book(Mutex<Vec<(Seq, Event)>>);
    impl stepwell::store::Observer for Book {
        fn committed(&self, batch: &[Committed]) {
            let entries = batch.iter().map(|one| (one.seq(), one.event().clone()));
            self.0.lock().unwrap().extend(entries);
        }
        fn faulted(&self, _fault: &stepwell::journal::Fault) {}
    }
    disk.crash_after(calls);
    let Ok(store) = try_store(disk) else {
        return (Vec::new(), false);
    };
    let Ok((session, _)) = store.open_session(id, Mode::Write) else {
        return (Vec::new(), false);
    };
    let Some(served) = replayed(&session) else {
        return (Vec::new(), false);
    };
    let book = Arc::new(Book(Mutex::new(served)));
    let observer: Arc<dyn stepwell::store::Observer> = book.clone();
    session.observe(&observer);
    let done = (|| {
        let mut loops = loops(&session)?;
        for (number, script) in fixed_scripts().iter().enumerate() {
            run(&mut loops[script.looped], script, number)?;
        }
        Ok::<(), CommitError>(())
    })();
    let book = book.0.lock().unwrap().clone();
    (book, done.is_ok())
}

#[test]
fn a_crash_while_creating_a_session_leaves_none_or_one() {
    for calls in 0.. {
        let disk = SimVfs::new();
        disk.crash_after(calls);
        let created = try_store(&disk).is_ok_and(|store| {
            let id = SessionId::from_bytes([7; 16]);
            store.create_session(SessionSpec::new().id(id)).is_ok()
        });
        disk.power_loss(PowerLoss::Seeded(calls));
        let store = store(&disk);
        let listed = store.sessions().unwrap();
        let id = SessionId::from_bytes([7; 16]);
        match store.open_session(id, Mode::Write) {
            Ok((session, _)) => assert!(flat(&session.history().unwrap()).is_empty()),
            Err(SessionError::NotFound(_)) => {
                assert!(!created, "call {calls}: a created session is gone");
                assert!(listed.is_empty(), "call {calls}");
                store.create_session(SessionSpec::new().id(id)).unwrap();
            }
            Err(SessionError::Journal(OpenError::Locked { .. })) => panic!("locked"),
            Err(error) => panic!("call {calls}: {error}"),
        }
        if created {
            break;
        }
    }
}

/// Robustness 39: restoring again and again costs less than a kilobyte each, and the bytes of a step
/// do not depend on the history before it.
#[test]
fn restoring_is_cheap_and_steps_do_not_grow() {
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let id = session.id();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let mut sizes = Vec::new();
    for _ in 0..400 {
        let before = session.last_seq();
        turn.commit_step(step(1, 500)).unwrap();
        assert_eq!(session.last_seq(), before.next());
        let view = look(&disk).journal_view(id).unwrap();
        if sizes.len() < 2 || before.get() > 395 {
            let last = view
                .read(stepwell::journal::Lsn::new(before.get() + 1))
                .last();
            sizes.push(last.unwrap().unwrap().payload.len());
        }
    }
    assert_eq!(sizes.first(), sizes.last());
    turn.finish().unwrap();
    drop((main, session));
    disk.kill();
    let payload = |disk: &SimVfs| -> u64 {
        let view = look(disk).journal_view(id).unwrap();
        view.read(stepwell::journal::Lsn::ZERO)
            .map(|entry| entry.unwrap().payload.len() as u64 + 80)
            .sum()
    };
    let before = payload(&disk);
    for _ in 0..100 {
        store(&disk).open_session(id, Mode::Write).unwrap();
        disk.kill();
    }
    let grown = (payload(&disk) - before) / 100;
    assert!(grown < 1024, "{grown} bytes each");
}

/// The footer of each sealed segment carries the state as of its last record, and `verify` holds it
/// against the events.
#[test]
fn sealed_segments_carry_the_state_and_it_is_what_the_events_say() {
    // There a footer has the state of each session apart: `store_shared`.
    if env!("CARGO_CRATE_NAME").starts_with("shared") {
        return;
    }
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let id = session.id();
    for round in 0..4 {
        let session = match round {
            0 => session.clone(),
            _ => store(&disk).open_session(id, Mode::Write).unwrap().0,
        };
        let mut loops = loops(&session).unwrap();
        for (number, script) in fixed_scripts().iter().cycle().take(12).enumerate() {
            run(&mut loops[script.looped], script, number).unwrap();
        }
        drop(loops);
        session.close().unwrap();
    }
    let carries = store(&disk).journal_view(id).unwrap().carries().unwrap();
    assert!(carries.len() >= 3, "{} carry records", carries.len());
    let last: serde_json::Value = serde_json::from_slice(&carries.last().unwrap().1).unwrap();
    assert_eq!(last["loops"].as_array().unwrap().len(), 2);
    assert!(last["seq"].as_u64().unwrap() > 100);
    let report = store(&disk).verify(id).unwrap();
    assert!(report.is_intact(), "{:?}", report.unreadable);
}

/// A store deep in directories that did not exist: all their names are durable before anything is
/// acknowledged.
#[test]
fn the_directories_of_a_new_store_survive_a_power_loss() {
    let disk = SimVfs::new();
    let at = "/home/user/agent-data";
    let open = |disk: &SimVfs| Store::on(Arc::new(disk.clone()), at, StoreOptions::default());
    let session = open(&disk)
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let id = session.id();
    drop(session);
    disk.power_loss(PowerLoss::DropAll);
    let (session, _) = open(&disk).unwrap().open_session(id, Mode::Write).unwrap();
    assert_eq!(session.last_seq(), Seq::new(3));
}
