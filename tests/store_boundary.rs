//! The commit boundary of a session: order, three outcomes, turns.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use store_support::*;

/// P2: at the moment of each sync nobody has been told of what it makes durable; when they are told,
/// the sync has returned.
#[test]
fn nobody_is_told_of_a_step_before_its_sync_returned() {
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let watcher = Watcher::on(&disk, &session);
    let at_sync: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (seen, counts) = (watcher.clone(), at_sync.clone());
    disk.set_hook(move |op| {
        if matches!(op, Op::SyncData { path } if path.to_string_lossy().contains("seg-")) {
            counts.lock().unwrap().push(seen.seen().len());
        }
    });
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let before = disk.sync_count("seg-");
    let step = turn.commit_step(tool_step()).unwrap();
    disk.clear_hook();
    assert_eq!(step.seq(), Seq::new(4));
    // LoopStarted, TurnStarted and StepDone, each told after its own sync.
    assert_eq!(*at_sync.lock().unwrap(), [0, 1, 2]);
    let (seq, kind, syncs) = watcher.seen()[2];
    assert_eq!((seq, kind), (Seq::new(4), Kind::StepDone));
    assert_eq!(syncs, before + 1);
}

#[test]
fn a_last_step_and_its_turn_done_are_one_batch_and_one_sync() {
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let before = disk.sync_count("seg-");
    let event = HostEvent {
        name: "cost".into(),
        version: 1,
        data: RawJson::parse(b"{\"cents\":3}").unwrap(),
        optional: true,
    };
    turn.commit_last_step(text_step("done").host_event(event))
        .unwrap();
    assert_eq!(disk.sync_count("seg-"), before + 1);
    let kinds: Vec<Kind> = session
        .replay(Seq::new(4))
        .map(|committed| committed.unwrap().event().kind())
        .collect();
    assert_eq!(kinds, [Kind::StepDone, Kind::HostEvent, Kind::TurnDone]);
}

/// P7, P8: the outcome of a failed sync or of a write that failed half-way is unknown; history is
/// unchanged, everybody learns of the fault, the next commit is refused with it, and after reopening
/// the step is there whole or not at all.
#[test]
fn a_failed_sync_or_write_is_unknown_until_reopened() {
    let is_sync = |op: &Op| matches!(op, Op::SyncData { .. });
    let is_write = |op: &Op| matches!(op, Op::Write { .. });
    type Filter = fn(&Op) -> bool;
    let cases: [(Filter, FaultKind); 5] = [
        (is_sync, FaultKind::SyncKept(PowerLoss::DropAll)),
        (is_sync, FaultKind::SyncKept(PowerLoss::KeepAll)),
        (is_sync, FaultKind::SyncReverted(PowerLoss::DropAll)),
        (is_write, FaultKind::FailedWrite(90)),
        (is_write, FaultKind::FailedWrite(100_000)),
    ];
    let (mut kept, mut gone) = (0, 0);
    for (filter, kind) in cases {
        for lose_power in [false, true] {
            let disk = SimVfs::new();
            let store = store(&disk);
            let session = store.create_session(SessionSpec::new()).unwrap();
            let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
            let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
            turn.commit_step(text_step("first")).unwrap();
            let watcher = Watcher::on(&disk, &session);
            let before = session.history().unwrap();
            disk.fail_nth(filter, 0, kind);
            let error = turn.commit_step(tool_step()).unwrap_err();
            let CommitError::Unknown { fault, events } = error else {
                panic!("{kind:?}: {error}");
            };
            assert_eq!(events.len(), 1, "the prepared step is handed back");
            assert_eq!(session.history().unwrap(), before);
            assert_eq!(watcher.seen(), []);
            assert_eq!(
                *watcher.faults.lock().unwrap(),
                std::slice::from_ref(&fault)
            );
            assert_eq!(session.fault(), Some(fault.clone()));
            assert_eq!(
                turn.commit_step(text_step("next")),
                Err(CommitError::NotCommitted(Refusal::Faulted(fault)))
            );
            drop(turn);
            drop(main);
            let (session, report) = if lose_power {
                let id = session.id();
                drop(session);
                drop(store);
                disk.power_loss(PowerLoss::DropAll);
                self::store(&disk).open_session(id, Mode::Write).unwrap()
            } else {
                store.reopen(&session).unwrap()
            };
            let after = session.history().unwrap();
            assert_eq!(after[..before.len()], before);
            match after.len() - before.len() {
                0 => gone += 1,
                // One assistant message and two results.
                3 => {
                    kept += 1;
                    let told: Vec<Kind> = report
                        .recovered
                        .iter()
                        .map(|committed| committed.event().kind())
                        .collect();
                    assert_eq!(told.last(), Some(&Kind::StepDone));
                }
                other => panic!("{kind:?}: {other} messages of a step"),
            }
            assert_eq!(report.open_turns.len(), 1);
        }
    }
    assert!(kept > 0 && gone > 0, "{kept} kept, {gone} gone");
}

/// What opening kept above the watermark is given out once, marked as replay.
#[test]
fn recovered_records_are_given_to_the_first_observer_only() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    turn.commit_step(text_step("last")).unwrap();
    let id = session.id();
    drop((main, session, store));
    disk.kill();
    let (session, report) = self::store(&disk).open_session(id, Mode::Write).unwrap();
    assert_eq!(
        report.recovered.len(),
        1,
        "only the last group is not proven"
    );
    assert!(report.recovered[0].is_replay());
    let watcher: Arc<dyn Observer> = Arc::new(Watcher::default());
    assert_eq!(session.observe(&watcher).1, report.recovered);
    assert_eq!(session.observe(&watcher).1, []);
}

#[test]
fn a_definite_failure_leaves_the_turn_open_and_the_session_going() {
    let disk = SimVfs::new();
    let limits = Limits {
        record_bytes: 4000,
        ..Limits::default()
    };
    let store = store_with(
        &disk,
        StoreOptions {
            limits,
            ..options()
        },
    );
    let session = store.create_session(SessionSpec::new()).unwrap();
    let watcher = Watcher::on(&disk, &session);
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let told = watcher.seen().len();
    let error = turn.commit_step(text_step(&"x".repeat(5000))).unwrap_err();
    assert!(error.is_definite(), "{error}");
    assert_eq!(watcher.seen().len(), told);
    assert_eq!(texts(&session), ["go"]);
    turn.commit_step(text_step("shorter")).unwrap();
    let failed = turn
        .fail(ErrorProjection::new(ErrorKind::NotCommitted, "too large"))
        .unwrap();
    assert_eq!(failed.event().body.turn_index, 1);
    let _turn = main.begin_turn(UserMessage::text("again")).unwrap();
    assert_eq!(texts(&session), ["go", "shorter", "again"]);
}

#[test]
fn a_full_disk_refuses_for_certain_and_the_terminal_follows_when_there_is_space() {
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    disk.set_capacity(Some(disk.used()));
    let refused = loop {
        match turn.commit_step(text_step(&"y".repeat(600))) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            refused,
            CommitError::NotCommitted(Refusal::Journal(NotCommitted::StorageFull(_)))
        ),
        "{refused}"
    );
    // Small enough terminals may still fit; a large one shows that the turn ends in memory.
    let error = ErrorProjection::new(ErrorKind::NotCommitted, "z".repeat(900));
    assert!(turn.fail(error).is_err());
    disk.set_capacity(None);
    let _turn = main.begin_turn(UserMessage::text("again")).unwrap();
    let kinds: Vec<Kind> = session
        .replay(Seq::new(1))
        .map(|committed| committed.unwrap().event().kind())
        .collect();
    assert_eq!(
        kinds[kinds.len() - 2..],
        [Kind::TurnFailed, Kind::TurnStarted],
        "closed as it ended, in the batch of the next turn"
    );
}

/// Robustness 29, 30: what every provider would refuse from then on is refused before it is written.
#[test]
fn calls_and_results_that_do_not_pair_are_refused() {
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let call =
        |id: &str| AssistantMessage::text("t").with_tool_use(id, "x", RawJson::empty_object());
    let result = |id: &str| ToolResultMessage::text(id, "r");
    let two = || call("a").with_tool_use("b", "x", RawJson::empty_object());
    let bad = [
        StepDraft::new(call("a")),
        StepDraft::new(call("")).results([result("")]),
        StepDraft::new(call("a")).results([result("a"), result("a")]),
        StepDraft::new(call("a")).results([result("b")]),
        StepDraft::new(two()).results([result("b"), result("a")]),
        StepDraft::new(call("a").with_tool_use("a", "x", RawJson::empty_object()))
            .results([result("a"), result("a")]),
        text_step("no calls").results([result("a")]),
    ];
    for step in bad {
        let error = turn.commit_step(step.clone()).unwrap_err();
        assert!(
            matches!(error, CommitError::NotCommitted(Refusal::Pairing(_))),
            "{step:?}: {error}"
        );
    }
    // Ids may repeat across steps.
    turn.commit_step(StepDraft::new(call("a")).results([result("a")]))
        .unwrap();
    turn.commit_step(StepDraft::new(call("a")).results([result("a")]))
        .unwrap();
    assert_eq!(session.steps(), 2);
}

#[test]
fn a_dropped_turn_does_no_io_and_is_closed_by_the_next() {
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("one")).unwrap();
    turn.commit_step(text_step("kept")).unwrap();
    disk.clear_trace();
    let first = turn.id();
    drop(turn);
    assert_eq!(disk.trace(), []);
    let before = disk.sync_count("seg-");
    let turn = main.begin_turn(UserMessage::text("two")).unwrap();
    assert_eq!(turn.index(), 2);
    assert_eq!(disk.sync_count("seg-"), before + 1, "in its own batch");
    let interrupted = session.replay(Seq::new(5)).next().unwrap().unwrap();
    assert_eq!(interrupted.event().header.coordinates.turn, first);
    assert!(matches!(
        &interrupted.event().body,
        Body::TurnInterrupted(body) if body.reason == Some(InterruptReason::Dropped)
    ));
    assert_eq!(texts(&session), ["one", "kept", "two"]);
}

#[test]
fn two_loops_keep_their_own_histories_and_the_session_merges_them() {
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let mut one = session.create_loop(LoopSpec::new("one")).unwrap();
    let mut two = session.create_loop(LoopSpec::new("two")).unwrap();
    let mut first = one.begin_turn(UserMessage::text("a")).unwrap();
    let mut second = two.begin_turn(UserMessage::text("b")).unwrap();
    first.commit_step(text_step("a1")).unwrap();
    second.commit_step(text_step("b1")).unwrap();
    first.commit_last_step(text_step("a2")).unwrap();
    second.finish().unwrap();
    assert_eq!(texts(&session), ["a", "b", "a1", "b1", "a2"]);
    assert_eq!(one.history().unwrap().len(), 3);
    assert_eq!(two.history().unwrap().len(), 2);
    assert!(matches!(
        session.loop_by_name("one"),
        Err(OrderError::LoopHeld(_))
    ));
    let id = one.id();
    drop(one);
    assert_eq!(session.loop_by_name("one").unwrap().unwrap().id(), id);
    assert!(session.loop_by_name("three").unwrap().is_none());
}

#[test]
fn events_that_do_not_fit_are_refused() {
    use stepwell::identity::{LoopId, StepId, TurnId};
    use stepwell::store::Draft;
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let main = session.create_loop(LoopSpec::new("main")).unwrap();
    let step = || StepDone::new(AssistantMessage::text("x"), Vec::new());
    let draft = |loop_id| {
        Draft::new(step())
            .in_loop(loop_id)
            .in_turn(TurnId::new())
            .in_step(StepId::new())
    };
    let refused = |draft| match session.commit(vec![draft]) {
        Err(CommitError::NotCommitted(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert!(matches!(
        refused(draft(main.id())),
        Refusal::Order(OrderError::TurnNotOpen(_))
    ));
    assert!(matches!(
        refused(draft(LoopId::new())),
        Refusal::Order(OrderError::UnknownLoop(_))
    ));
    assert!(matches!(refused(Draft::new(step())), Refusal::Encode(_)));
    assert!(matches!(
        session.commit(Vec::new()),
        Err(CommitError::NotCommitted(Refusal::Empty))
    ));
    assert_eq!(session.last_seq(), Seq::new(2));
}

/// The record of a turn's end repeats an answer of this turn, not of an earlier one.
#[test]
fn a_turn_that_ends_without_a_step_has_no_answer() {
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let turn = main.begin_turn(UserMessage::text("one")).unwrap();
    turn.commit_last_step(text_step("an answer")).unwrap();
    let turn = main.begin_turn(UserMessage::text("two")).unwrap();
    let done = turn.finish().unwrap();
    assert_eq!(done.event().body.message, AssistantMessage::default());
}
