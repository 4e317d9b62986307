//! What subscribers see, and when: P2, the fault's typed end, recovered records.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use runtime_support::*;
use stepwell::event::Kind;
use stepwell::journal::FaultCause;
use stepwell::runtime::{
    AgentSpec, Filter, IdleError, ModelRequest, ModelStream, RunError, StartAt, StreamEnd, TurnEnd,
};
use stepwell::store::{CommitError, Draft, Mode, Refusal, Store};
use stepwell::vfs::sim::{FaultKind, Outcome, PowerLoss};

fn spec(answers: impl IntoIterator<Item = Answer>) -> AgentSpec {
    AgentSpec::new(script(answers)).tool(echo())
}

#[tokio::test]
async fn nothing_is_delivered_before_its_sync_returned() {
    let mut world = world();
    let agent = world
        .session
        .spawn_loop(
            world.main.take().unwrap(),
            spec([calls(&[("c1", "echo", b"{}")]), says("done")]),
        )
        .unwrap();
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let mut door = Door::at_syncs(&world.disk);
    let turn = tokio::spawn({
        let agent = agent.clone();
        async move { agent.run_turn("go").await }
    });
    for expected in [
        &[Kind::TurnStarted][..],
        &[Kind::StepDone],
        &[Kind::StepDone, Kind::TurnDone],
    ] {
        door.knock().await;
        let steps = world.session.steps();
        let early = ready(&mut events).await;
        assert!(early.is_none(), "published before the sync: {early:?}");
        door.pass();
        for kind in expected {
            let delivery = events.recv().await.unwrap().unwrap();
            assert_eq!(delivery.event().kind(), *kind);
            // The last of the calls to the disk is the sync, and it has returned.
            let trace = world.disk.trace();
            let last = trace.iter().rfind(|call| is_sync(&call.op)).unwrap();
            assert!(matches!(last.outcome, Outcome::Done(_)), "{last:?}");
            // Live history has grown before.
            let done = expected.iter().filter(|kind| **kind == Kind::StepDone);
            assert_eq!(world.session.steps(), steps + done.count() as u64);
        }
    }
    drop(door);
    assert!(turn.await.unwrap().unwrap().is_done());
}

#[tokio::test]
async fn what_is_delivered_survives_a_power_loss_at_that_moment() {
    let mut world = world();
    let answers = (0..12).flat_map(|turn| {
        let id = format!("c{turn}");
        [
            calls(&[(&id, "echo", b"{\"n\":1}")]),
            says(&"x".repeat(900)),
        ]
    });
    let agent = world
        .session
        .spawn_loop(world.main.take().unwrap(), spec(answers))
        .unwrap();
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    for turn in 0..12 {
        let running = agent.run_turn(format!("turn {turn}"));
        let watching = async {
            loop {
                let delivery = events.recv().await.unwrap().unwrap();
                let image = world.disk.snapshot();
                image.power_loss(PowerLoss::DropAll);
                let store = open_store(&image, options());
                let (session, report) =
                    store.open_session(world.session.id(), Mode::Write).unwrap();
                assert!(report.committed >= delivery.seq());
                if step(&delivery).is_some() {
                    let seq = delivery.seq();
                    assert!(
                        session
                            .history()
                            .unwrap()
                            .iter()
                            .any(|item| item.seq == seq)
                    );
                }
                if delivery.event().kind().ends_turn() {
                    return;
                }
            }
        };
        let (outcome, ()) = tokio::join!(running, watching);
        assert!(outcome.unwrap().is_done());
    }
}

/// A sync or a write that fails at the second step.
async fn unknown_outcome(kind: FaultKind, at: fn(&stepwell::vfs::sim::Op) -> bool) {
    let mut world = world();
    let agent = world
        .session
        .spawn_loop(
            world.main.take().unwrap(),
            spec([
                calls(&[("c1", "echo", b"{}")]),
                calls(&[("c2", "echo", b"{\"two\":2}")]),
                says("never"),
            ]),
        )
        .unwrap();
    let other = world
        .session
        .create_loop_async(stepwell::store::LoopSpec::new("other"))
        .await
        .unwrap();
    let other = world
        .session
        .spawn_loop(other, spec([says("other")]))
        .unwrap();
    let mut events = agent.subscribe(StartAt::seq(1), Filter::committed());
    let mut live = agent.subscribe(StartAt::now(), Filter::all());
    // Not the first step (the beginning of the turn is the first sync).
    world.disk.fail_nth(at, 2, kind);
    let waiting = agent.clone();
    let (outcome, queued) = tokio::join!(agent.run_turn("go"), waiting.run_turn("and then"));
    let outcome = outcome.unwrap();
    let TurnEnd::Faulted(fault) = outcome.end.clone() else {
        panic!("{outcome:?}");
    };
    assert!(matches!(
        fault.cause(),
        FaultCause::Sync(_) | FaultCause::Write(_)
    ));
    assert_eq!(outcome.terminal, None);
    assert_eq!(outcome.steps.len(), 1);
    assert_eq!(queued, Err(RunError::Faulted(fault.clone())));

    // History holds the first step, not the second.
    let before = world.session.history().unwrap();
    assert_eq!(world.session.steps(), 1);
    assert_eq!(before.last().unwrap().seq, outcome.steps[0]);

    // Everybody gets the same fault from now on.
    let again = other.run_turn("go").await;
    assert_eq!(again, Err(RunError::Faulted(fault.clone())));
    let direct = world
        .session
        .submit(vec![Draft::new(stepwell::event::SessionStopped {})]);
    let refused = direct.await.unwrap();
    assert_eq!(
        refused,
        Err(CommitError::NotCommitted(Refusal::Faulted(fault.clone())))
    );
    let idle = agent.hub().wait_idle().await;
    assert_eq!(idle, Err(IdleError::Faulted(fault.clone())));

    // Every subscription ends with it, behind the last committed event; new ones as well.
    let (seen, end) = drain(&mut events).await;
    assert_eq!(end, Some(StreamEnd::Fault(fault.clone())));
    assert_eq!(seen.last().unwrap().seq(), outcome.steps[0]);
    assert_eq!(seen.iter().filter(|seen| step(seen).is_some()).count(), 1);
    let (seen, end) = drain(&mut live).await;
    assert_eq!(end, Some(StreamEnd::Fault(fault.clone())));
    assert!(
        seen.iter()
            .any(|seen| seen.event().kind() == Kind::TokenDelta)
    );
    let mut late = agent.subscribe(StartAt::seq(1), Filter::committed());
    let (seen, end) = drain(&mut late).await;
    assert_eq!(end, Some(StreamEnd::Fault(fault.clone())));
    assert_eq!(seen.last().unwrap().seq(), outcome.steps[0]);

    // Reopening decides: whole or not at all, and if it is there it is published once, as replay.
    agent.shutdown().await.unwrap();
    world.disk.clear_faults();
    let (session, report) = world.store.reopen(&world.session).unwrap();
    let after = session.history().unwrap();
    assert_eq!(after[..before.len()], before[..]);
    let kept = &after[before.len()..];
    assert!(kept.is_empty() || kept.len() == 2, "{kept:?}");
    let mut events = session.subscribe(StartAt::now(), Filter::committed());
    let mut published = Vec::new();
    while let Some(item) = ready(&mut events).await {
        published.push(item.unwrap());
    }
    let recovered: Vec<_> = report.recovered.iter().map(|one| one.seq()).collect();
    let seqs: Vec<_> = published.iter().map(|one| one.seq()).collect();
    assert_eq!(seqs, recovered);
    assert!(
        published
            .iter()
            .all(|one| one.committed().unwrap().is_replay())
    );
    if let Some(kept) = kept.first() {
        assert!(recovered.contains(&kept.seq));
        let steps = published.iter().filter(|one| one.seq() == kept.seq);
        assert_eq!(steps.count(), 1);
    }
    // Not again.
    let mut second = session.subscribe(StartAt::now(), Filter::committed());
    assert!(ready(&mut second).await.is_none());

    // And the session goes on: the open turn was closed.
    assert!(session.open_turns().is_empty());
    let main = session.loop_by_name("main").unwrap().unwrap();
    let agent = session.spawn_loop(main, spec([says("again")])).unwrap();
    assert!(agent.run_turn("go on").await.unwrap().is_done());
}

fn is_write(op: &stepwell::vfs::sim::Op) -> bool {
    matches!(op, stepwell::vfs::sim::Op::Write { .. })
}

#[tokio::test]
async fn a_failed_sync_that_kept_the_pages_faults_the_session() {
    unknown_outcome(FaultKind::SyncKept(PowerLoss::KeepAll), is_sync).await;
}

#[tokio::test]
async fn a_failed_sync_that_dropped_the_pages_faults_the_session() {
    unknown_outcome(FaultKind::SyncReverted(PowerLoss::DropAll), is_sync).await;
}

#[tokio::test]
async fn a_write_that_failed_half_way_faults_the_session() {
    unknown_outcome(FaultKind::FailedWrite(100), is_write).await;
}

#[tokio::test]
async fn a_kept_step_is_published_once_to_whoever_comes_first() {
    // The page cache keeps what the failed sync had: reopening finds the step whole.
    let mut world = world();
    let agent = world
        .session
        .spawn_loop(world.main.take().unwrap(), spec([says("kept")]))
        .unwrap();
    world
        .disk
        .fail_nth(is_sync, 1, FaultKind::SyncKept(PowerLoss::KeepAll));
    let outcome = agent.run_turn("go").await.unwrap();
    assert!(matches!(outcome.end, TurnEnd::Faulted(_)));
    assert_eq!(world.session.steps(), 0);
    agent.shutdown().await.unwrap();
    let (session, report) = world.store.reopen(&world.session).unwrap();
    assert_eq!(session.steps(), 1);
    let recovered: Vec<_> = report
        .recovered
        .iter()
        .map(|one| one.event().kind())
        .collect();
    assert!(recovered.contains(&Kind::StepDone), "{recovered:?}");
    // From the beginning on they come once too, in their places.
    let mut all = session.subscribe(StartAt::seq(1), Filter::committed());
    let mut seqs = Vec::new();
    while seqs.last() != Some(&session.last_seq()) {
        let delivery = all.recv().await.unwrap().unwrap();
        assert!(delivery.committed().unwrap().is_replay());
        seqs.push(delivery.seq());
    }
    let expected: Vec<_> = (1..=session.last_seq().get()).collect();
    assert_eq!(
        seqs.iter().map(|seq| seq.get()).collect::<Vec<_>>(),
        expected
    );
    let mut second = session.subscribe(StartAt::now(), Filter::committed());
    assert!(ready(&mut second).await.is_none());
}

#[tokio::test]
async fn a_fault_elsewhere_wakes_who_waits_for_idle() {
    let mut world = world();
    let hold = |_: ModelRequest| ModelStream::channel(1);
    let senders = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = senders.clone();
    let model = move |request: ModelRequest| {
        let (sender, stream) = hold(request);
        kept.lock().unwrap().push(sender);
        stream
    };
    let agent = world
        .session
        .spawn_loop(world.main.take().unwrap(), AgentSpec::new(model))
        .unwrap();
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let running = tokio::spawn({
        let agent = agent.clone();
        async move { agent.run_turn("go").await }
    });
    until(&mut events, Kind::TurnStarted).await;
    let idle = tokio::spawn({
        let hub = agent.hub().clone();
        async move { hub.wait_idle().await }
    });
    // The host commits beside the runner, and its sync fails.
    world.disk.fail_nth(is_sync, 0, FaultKind::Eio);
    let draft = Draft::new(stepwell::event::SessionStopped {});
    let unknown = world.session.submit(vec![draft]).await.unwrap();
    assert!(matches!(unknown, Err(CommitError::Unknown { .. })));
    assert!(matches!(idle.await.unwrap(), Err(IdleError::Faulted(_))));
    let (_, end) = drain(&mut events).await;
    assert!(matches!(end, Some(StreamEnd::Fault(_))));
    // The turn that runs learns it at its next commit.
    senders.lock().unwrap().clear();
    let outcome = running.await.unwrap().unwrap();
    assert!(matches!(outcome.end, TurnEnd::Faulted(_)), "{outcome:?}");
}

#[tokio::test]
async fn closing_ends_streams_without_an_error() {
    let mut world = world();
    let agent = world
        .session
        .spawn_loop(world.main.take().unwrap(), spec([says("hello")]))
        .unwrap();
    let mut events = agent.subscribe(StartAt::seq(1), Filter::all());
    agent.run_turn("hi").await.unwrap();
    agent.shutdown().await.unwrap();
    world.session.close().unwrap();
    let (seen, end) = drain(&mut events).await;
    assert_eq!(end, None);
    assert_eq!(seen.iter().filter(|seen| step(seen).is_some()).count(), 1);
    assert_eq!(agent.hub().wait_idle().await, Err(IdleError::Closed));
    assert_eq!(agent.run_turn("late").await, Err(RunError::Ended));
    let again: Store = world.store.clone();
    let (session, _) = again.open_session(world.session.id(), Mode::Write).unwrap();
    assert_eq!(session.steps(), 1);
}
