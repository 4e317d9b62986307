//! The commit handshake: definite failures, and cancellation before, during and after the append.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use std::sync::{Arc, Mutex};

use runtime_support::*;
use stepwell::event::{ErrorKind, InterruptReason, Kind, Limits, TurnInterrupted};
use stepwell::runtime::{
    AgentSpec, Filter, LoopHandle, ModelEvent, ModelRequest, ModelSender, ModelStream, RunError,
    SpawnError, StartAt, ToolOutput, TurnEnd, TurnLimits, TurnOutcome,
};
use stepwell::store::{LoopSpec, Mode, SessionSpec, StoreOptions};

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

fn start(agent: &LoopHandle, text: &str) -> tokio::task::JoinHandle<Result<TurnOutcome, RunError>> {
    let (agent, text) = (agent.clone(), text.to_owned());
    tokio::spawn(async move { agent.run_turn(text).await })
}

fn error_of(outcome: &TurnOutcome) -> ErrorKind {
    match &outcome.end {
        TurnEnd::Failed { error } => error.kind,
        other => panic!("{other:?}"),
    }
}

/// Each answer waits for its sender.
fn held() -> (
    Arc<Mutex<Vec<ModelSender>>>,
    impl Fn(ModelRequest) -> ModelStream,
) {
    let senders = Arc::new(Mutex::new(Vec::new()));
    let kept = senders.clone();
    let model = move |_: ModelRequest| {
        let (sender, stream) = ModelStream::channel(8);
        kept.lock().unwrap().push(sender);
        stream
    };
    (senders, model)
}

// ---- definite failures

#[tokio::test]
async fn a_step_that_is_too_large_fails_its_turn_and_the_journal_goes_on() {
    let limits = Limits {
        record_bytes: 4000,
        ..Limits::default()
    };
    let mut world = world_with(StoreOptions {
        limits,
        ..options()
    });
    let large = act("large", |_| async { ToolOutput::text("x".repeat(5000)) });
    let model = script([
        calls(&[("1", "echo", b"{}")]),
        calls(&[("2", "large", b"{}")]),
        says("the next turn"),
    ]);
    let spec = AgentSpec::new(model).tool(large).tool(echo());
    let agent = spawn(&mut world, spec);
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let outcome = agent.run_turn("go").await.unwrap();
    assert_eq!(error_of(&outcome), ErrorKind::NotCommitted);
    let TurnEnd::Failed { error } = &outcome.end else {
        unreachable!()
    };
    assert!(error.message.contains("large"), "names the tool: {error:?}");
    assert_eq!(outcome.steps.len(), 1);
    assert_eq!(texts(&world.session), ["go", "", "{}"]);
    let seen = until(&mut events, Kind::TurnFailed).await;
    assert_eq!(seen.iter().filter(|seen| step(seen).is_some()).count(), 1);
    assert!(agent.run_turn("and on").await.unwrap().is_done());
}

#[tokio::test]
async fn a_full_disk_fails_the_turn_and_its_end_is_written_when_there_is_room() {
    let mut world = world();
    // The step does not fit the segment, and there is no room for the next one.
    let model = script([
        says(&"x".repeat(14 * 1024)),
        says(&"y".repeat(14 * 1024)),
        says("fits again"),
    ]);
    let agent = spawn(&mut world, AgentSpec::new(model));
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    world.disk.set_capacity(Some(world.disk.used()));
    let mut full = None;
    for _ in 0..2 {
        let outcome = agent.run_turn("go").await.unwrap();
        if !outcome.is_done() {
            full = Some(outcome);
            break;
        }
    }
    let outcome = full.expect("the disk is full");
    assert_eq!(error_of(&outcome), ErrorKind::NotCommitted);
    assert_eq!(world.session.fault(), None);
    assert_eq!(outcome.steps, []);
    let before = world.session.history().unwrap();
    // The turn has ended, durably or in memory; with room the loop goes on, and the end is there.
    world.disk.set_capacity(None);
    let outcome = agent.run_turn("on").await.unwrap();
    assert_eq!(world.session.history().unwrap()[..before.len()], before[..]);
    assert_eq!(world.session.open_turns(), []);
    let kinds = kinds(&world.session);
    let ends: Vec<Kind> = kinds
        .iter()
        .copied()
        .filter(|kind| kind.ends_turn())
        .collect();
    let begun = kinds
        .iter()
        .filter(|kind| **kind == Kind::TurnStarted)
        .count();
    assert_eq!(ends.len(), begun, "one terminal per turn: {kinds:?}");
    assert_eq!(
        ends.iter().filter(|end| **end == Kind::TurnFailed).count(),
        1
    );
    assert!(outcome.is_done(), "{outcome:?}");
    until(&mut events, Kind::TurnFailed).await;
    let history = world.session.history().unwrap();
    assert_eq!(restored(&world.disk, world.session.id()), history);
}

#[tokio::test]
async fn an_end_that_finds_no_room_goes_with_the_next_batch() {
    // Of all lengths of a message some fill the segment so that the turn's beginning fits in and its
    // end does not.
    let mut without_room = 0;
    for length in (14_000..16_400).step_by(50) {
        let mut world = world();
        let id = world.session.id();
        let agent = spawn(
            &mut world,
            AgentSpec::new(script([vec![breaks()], says("room")])),
        );
        let mut events = agent.subscribe(StartAt::now(), Filter::committed());
        world.disk.set_capacity(Some(world.disk.used()));
        let Ok(outcome) = agent.run_turn("x".repeat(length)).await else {
            break;
        };
        assert_eq!(error_of(&outcome), ErrorKind::Unknown);
        if outcome.terminal.is_none() {
            without_room += 1;
            assert_eq!(world.session.open_turns().len(), 1);
            assert_eq!(restored(&world.disk, id), world.session.history().unwrap());
        }
        world.disk.set_capacity(None);
        assert!(agent.run_turn("again").await.unwrap().is_done());
        let seen = until(&mut events, Kind::TurnDone).await;
        let kinds: Vec<Kind> = seen.iter().map(|seen| seen.event().kind()).collect();
        assert_eq!(
            kinds,
            [
                Kind::TurnStarted,
                Kind::TurnFailed,
                Kind::TurnStarted,
                Kind::StepDone,
                Kind::TurnDone
            ]
        );
        assert_eq!(restored(&world.disk, id), world.session.history().unwrap());
    }
    assert!(without_room > 0);
}

// ---- cancellation

/// What a cancelled turn leaves: its terminal, once, and the step or nothing of it.
fn assert_interrupted(world: &World, outcome: &TurnOutcome, steps: u64) {
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    assert_eq!(world.session.steps(), steps);
    assert_eq!(outcome.steps.len() as u64, steps);
    let last = world
        .session
        .replay(outcome.terminal.unwrap())
        .next()
        .unwrap()
        .unwrap();
    let interrupted = last.event().body_as::<TurnInterrupted>().unwrap();
    assert_eq!(interrupted.reason, Some(InterruptReason::Cancelled));
    assert_eq!(outcome.terminal, Some(world.session.last_seq()));
    let ends = kinds(&world.session)
        .into_iter()
        .filter(|kind| kind.ends_turn());
    assert_eq!(ends.count(), 1);
    assert_eq!(
        restored(&world.disk, world.session.id()),
        world.session.history().unwrap()
    );
}

#[tokio::test]
async fn cancelled_while_the_model_speaks_the_step_is_absent() {
    let mut world = world();
    let (senders, model) = held();
    let agent = spawn(&mut world, AgentSpec::new(model));
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    let turn = start(&agent, "go");
    until(&mut events, Kind::TurnStarted).await;
    while senders.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let sender = senders.lock().unwrap()[0].clone();
    sender.send(Ok(ModelEvent::text(0, "half"))).await;
    until(&mut events, Kind::TokenDelta).await;
    assert_eq!(agent.interrupt().await, Ok(true));
    let outcome = turn.await.unwrap().unwrap();
    assert_interrupted(&world, &outcome, 0);
    // The model is told.
    sender.closed().await;
    assert_eq!(agent.interrupt().await, Ok(false));
}

#[tokio::test]
async fn a_model_that_answers_a_cancellation_with_its_end_or_an_error_changes_nothing() {
    for item in [None, Some(breaks()), Some(Ok(ModelEvent::text(0, "bye")))] {
        let mut world = world();
        let model = move |request: ModelRequest| {
            let (sender, stream) = ModelStream::channel(1);
            let item = item.clone();
            tokio::spawn(async move {
                request.cancel.cancelled().await;
                match item {
                    Some(item) => drop(sender.send(item).await),
                    None => drop(sender.finish().await),
                }
            });
            stream
        };
        let agent = spawn(&mut world, AgentSpec::new(model));
        let mut events = agent.subscribe(StartAt::now(), Filter::all());
        let turn = start(&agent, "go");
        until(&mut events, Kind::TurnStarted).await;
        assert_eq!(agent.interrupt().await, Ok(true));
        assert_interrupted(&world, &turn.await.unwrap().unwrap(), 0);
    }
}

#[tokio::test]
async fn an_answer_without_end_or_pause_can_be_cancelled() {
    let mut world = world();
    let model = |_: ModelRequest| {
        ModelStream::ready(std::iter::repeat_with(|| Ok(ModelEvent::text(0, ""))))
    };
    let agent = spawn(&mut world, AgentSpec::new(model));
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    let turn = start(&agent, "go");
    until(&mut events, Kind::TokenDelta).await;
    assert_eq!(agent.interrupt().await, Ok(true));
    assert_interrupted(&world, &turn.await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn what_goes_on_beside_a_step_is_told_when_the_step_is_discarded() {
    // The model's work, when its answer is refused.
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let model = move |request: ModelRequest| {
        tell.lock().unwrap().push(request.cancel);
        let large = request.step_index == 1;
        ModelStream::ready(match large {
            true => says(&"x".repeat(2000)),
            false => calls(&[("1", "watch", b"{}")]),
        })
    };
    let tell = told.clone();
    let watch = act("watch", move |input: ToolInput| {
        tell.lock().unwrap().push(input.cancel);
        async { ToolOutput::text("seen") }
    });
    let limits = TurnLimits {
        reply_bytes: 1000,
        ..TurnLimits::default()
    };
    let mut world = world();
    let agent = spawn(&mut world, AgentSpec::new(model).tool(watch).limits(limits));
    let outcome = agent.run_turn("go").await.unwrap();
    assert_eq!(error_of(&outcome), ErrorKind::Unknown);
    let told: Vec<bool> = told
        .lock()
        .unwrap()
        .iter()
        .map(|cancel| cancel.is_cancelled())
        .collect();
    assert_eq!(told, [false, false, true]);
}

#[tokio::test]
async fn cancelled_while_tools_run_the_whole_batch_is_absent() {
    let mut world = world();
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let ended = Arc::new(());
    let alive = Arc::downgrade(&ended);
    let hangs = act("hangs", move |_: ToolInput| -> ToolFuture<'static> {
        let (begun, held) = (begun.clone(), ended.clone());
        Box::pin(async move {
            let _held = held;
            begun.send(()).unwrap();
            std::future::pending().await
        })
    });
    let answer = calls(&[("1", "echo", b"{}"), ("2", "hangs", b"{}")]);
    let spec = AgentSpec::new(script([answer])).tool(echo()).tool(hangs);
    let agent = spawn(&mut world, spec);
    let turn = start(&agent, "go");
    begins.recv().await.unwrap();
    assert_eq!(agent.interrupt().await, Ok(true));
    assert_interrupted(&world, &turn.await.unwrap().unwrap(), 0);
    assert_eq!(texts(&world.session), ["go"]);
    // The tool itself and its future are gone.
    agent.shutdown().await.unwrap();
    drop(begins);
    while alive.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn cancelled_during_the_append_the_step_is_whole_and_published() {
    let mut world = world();
    let spec = AgentSpec::new(script([calls(&[("1", "echo", b"{}")]), says("never")]));
    let agent = spawn(&mut world, spec.tool(echo()));
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let mut door = Door::at_syncs(&world.disk);
    let turn = start(&agent, "go");
    door.knock().await; // TurnStarted
    door.pass();
    door.knock().await; // the step stands at its sync
    assert_eq!(agent.interrupt().await, Ok(true));
    assert_eq!(world.session.steps(), 0);
    door.pass();
    drop(door);
    let outcome = turn.await.unwrap().unwrap();
    assert_interrupted(&world, &outcome, 1);
    let seen = until(&mut events, Kind::TurnInterrupted).await;
    let kinds: Vec<Kind> = seen.iter().map(|seen| seen.event().kind()).collect();
    assert_eq!(
        kinds,
        [Kind::TurnStarted, Kind::StepDone, Kind::TurnInterrupted]
    );
}

#[tokio::test]
async fn cancelled_during_the_last_append_the_turn_is_done() {
    let mut world = world();
    let agent = spawn(&mut world, AgentSpec::new(script([says("whole")])));
    let mut door = Door::at_syncs(&world.disk);
    let turn = start(&agent, "go");
    door.knock().await;
    door.pass();
    door.knock().await;
    assert_eq!(agent.interrupt().await, Ok(true));
    door.pass();
    drop(door);
    let outcome = turn.await.unwrap().unwrap();
    assert_eq!(outcome.text().as_deref(), Some("whole"));
    let kinds = kinds(&world.session);
    assert_eq!(
        kinds[2..],
        [Kind::TurnStarted, Kind::StepDone, Kind::TurnDone]
    );
}

#[tokio::test]
async fn cancelled_before_its_beginning_is_durable_the_turn_is_interrupted() {
    let mut world = world();
    let agent = spawn(&mut world, AgentSpec::new(script([says("never")])));
    let mut door = Door::at_syncs(&world.disk);
    let turn = start(&agent, "go");
    door.knock().await;
    assert_eq!(agent.interrupt().await, Ok(true));
    door.pass();
    drop(door);
    assert_interrupted(&world, &turn.await.unwrap().unwrap(), 0);
}

// ---- who goes away

#[tokio::test]
async fn a_turn_whose_caller_is_gone_runs_on() {
    let mut world = world();
    let agent = spawn(&mut world, AgentSpec::new(script([says("all the same")])));
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let mut door = Door::at_syncs(&world.disk);
    let turn = start(&agent, "go");
    door.knock().await;
    turn.abort();
    assert!(turn.await.is_err());
    drop(door);
    until(&mut events, Kind::TurnDone).await;
    assert!(agent.hub().wait_idle().await.is_ok());
}

#[tokio::test]
async fn without_handles_the_turn_is_interrupted_and_the_loop_is_free() {
    let mut world = world();
    let (_senders, model) = held();
    let agent = spawn(&mut world, AgentSpec::new(model));
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let turn = start(&agent, "go");
    until(&mut events, Kind::TurnStarted).await;
    turn.abort();
    assert!(turn.await.is_err());
    drop(agent);
    until(&mut events, Kind::TurnInterrupted).await;
    let main = loop {
        match world.session.loop_by_name("main") {
            Ok(main) => break main.unwrap(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let agent = AgentSpec::new(script([says("free")]));
    let agent = world.session.spawn_loop(main, agent).unwrap();
    assert!(agent.run_turn("again").await.unwrap().is_done());
}

#[tokio::test]
async fn a_runtime_that_ends_in_the_middle_leaves_a_log_that_reopens() {
    let world = world();
    let (session, disk) = (world.session.clone(), world.disk.clone());
    let id = session.id();
    let (begun, begins) = std::sync::mpsc::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let main = world.main.unwrap();
    runtime.spawn(async move {
        let (_senders, model) = held();
        let first = script([calls(&[("1", "echo", b"{}")])]);
        let model = move |request: ModelRequest| match request.step_index {
            0 => stepwell::runtime::Model::stream(&first, request),
            _ => {
                begun.send(()).unwrap();
                model(request)
            }
        };
        let spec = AgentSpec::new(model).tool(echo());
        let agent = session.spawn_loop(main, spec).unwrap();
        agent.run_turn("go").await
    });
    begins.recv().unwrap();
    runtime.shutdown_background();
    disk.kill();
    let store = open_store(&disk, options());
    let (session, report) = store.open_session(id, Mode::Write).unwrap();
    assert_eq!(report.open_turns.len(), 1);
    assert_eq!(texts(&session), ["go", "", "{}"]);
    assert_eq!(session.open_turns(), []);
}

#[tokio::test]
async fn turns_wait_in_order_and_no_more_than_may() {
    let mut world = world();
    let (senders, model) = held();
    let limits = TurnLimits {
        queue: 2,
        ..TurnLimits::default()
    };
    let agent = spawn(&mut world, AgentSpec::new(model).limits(limits));
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    let mut turns = vec![start(&agent, "first")];
    until(&mut events, Kind::TurnStarted).await;
    for text in ["second", "third"] {
        turns.push(start(&agent, text));
        until(&mut events, Kind::InputQueued).await;
    }
    let snapshot = agent.snapshot().await.unwrap();
    assert_eq!((snapshot.running, snapshot.queued), (true, 2));
    let refused = agent.run_turn("fourth").await;
    assert_eq!(refused, Err(RunError::QueueFull { limit: 2 }));
    for (at, turn) in turns.into_iter().enumerate() {
        while senders.lock().unwrap().len() <= at {
            tokio::task::yield_now().await;
        }
        let sender = senders.lock().unwrap()[at].clone();
        sender.send(Ok(ModelEvent::text(0, "ok"))).await;
        sender.finish().await;
        assert!(turn.await.unwrap().unwrap().is_done());
    }
    let texts = texts(&world.session);
    assert_eq!(texts, ["first", "ok", "second", "ok", "third", "ok"]);
    let queued = start(&agent, "last");
    for _ in ["second", "third", "last"] {
        until(&mut events, Kind::TurnStarted).await;
    }
    agent.shutdown().await.unwrap();
    let outcome = queued.await.unwrap().unwrap();
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    assert!(world.session.loop_by_name("main").is_ok());
}

#[test]
fn a_loop_is_spawned_in_a_runtime_and_in_its_own_session() {
    let mut world = world();
    let spec = || AgentSpec::new(script([]));
    let refused = world.session.spawn_loop(world.main.take().unwrap(), spec());
    assert_eq!(refused.unwrap_err(), SpawnError::NoRuntime);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let other = world.store.create_session(SessionSpec::new()).unwrap();
    let foreign = other.create_loop(LoopSpec::new("main")).unwrap();
    let refused = world.session.spawn_loop(foreign, spec());
    assert_eq!(refused.unwrap_err(), SpawnError::ForeignLoop);
}
