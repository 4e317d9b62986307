//! The queue of a loop: what folds, what stays, what is returned; every input is resolved once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use std::collections::HashMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runtime_support::watchdog::patient;
use runtime_support::*;
use stepwell::event::{Body, CancelReason, Kind, RejectReason};
use stepwell::journal::Seq;
use stepwell::runtime::{
    AgentSpec, Filter, Input, InputId, InputOutcome, LoopHandle, ModelRequest, ModelSender,
    ModelStream, RunError, ShutdownLimits, ShutdownPhase, StartAt, Submitted, ToolOutput, TurnEnd,
    TurnLimits, shutdown_all,
};
use stepwell::store::{LoopSpec, Mode, Session};
use stepwell::vfs::sim::{FaultKind, PowerLoss};

/// A model whose answers are sent by hand, and what it was asked.
#[derive(Clone, Default)]
struct Held {
    senders: Arc<Mutex<Vec<ModelSender>>>,
    seen: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Held {
    fn spec(&self) -> AgentSpec {
        let held = self.clone();
        AgentSpec::new(move |request: ModelRequest| {
            let (sender, stream) = ModelStream::channel(8);
            let texts = request.messages.iter().map(|message| message.to_text());
            held.seen.lock().unwrap().push(texts.collect());
            held.senders.lock().unwrap().push(sender);
            stream
        })
        .tool(echo())
    }

    /// The answer to the request at this number, from 0.
    async fn answer(&self, at: usize, answer: Answer) {
        self.asked(at + 1).await;
        let sender = self.senders.lock().unwrap()[at].clone();
        for item in answer {
            sender.send(item).await;
        }
        sender.finish().await;
    }

    async fn asked(&self, count: usize) {
        patient(async {
            while self.senders.lock().unwrap().len() < count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

/// An input whose outcome must come.
struct Handed(Submitted);

impl Handed {
    fn id(&self) -> InputId {
        self.0.id()
    }
}

impl IntoFuture for Handed {
    type Output = Result<InputOutcome, RunError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(patient(self.0))
    }
}

async fn submit(agent: &LoopHandle, input: impl Into<Input>) -> Handed {
    Handed(agent.submit(input).await.unwrap())
}

async fn queued(agent: &LoopHandle, count: usize) {
    patient(async {
        while agent.snapshot().await.unwrap().queued != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// What the log says about inputs: the text (or nothing) and the kind.
fn inputs(session: &Session) -> Vec<(Kind, String)> {
    let events = session.replay(Seq::new(1));
    let inputs = events.filter_map(|committed| {
        let committed = committed.unwrap();
        let text = match &committed.event().body {
            Body::TurnStarted(body) => body.message.to_text(),
            Body::TurnFoldedInto(body) => body.message.to_text(),
            Body::InputCancelled(body) => body.message.as_ref().unwrap().to_text(),
            Body::TurnRejected(body) => format!("{:?}", body.reason),
            _ => return None,
        };
        Some((committed.event().kind(), text))
    });
    inputs.collect()
}

fn text(kind: Kind, text: &str) -> (Kind, String) {
    (kind, text.to_owned())
}

fn cancelled(outcome: &Result<InputOutcome, RunError>) -> (CancelReason, Option<Seq>) {
    match outcome {
        Ok(InputOutcome::Cancelled { reason, recorded }) => (*reason, *recorded),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_leading_run_folds_at_a_tool_continuation_before_the_next_request() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let one = submit(&agent, "one").await;
    let two = submit(&agent, "two").await;
    let own = submit(&agent, Input::new("own turn").no_fold()).await;
    let behind = submit(&agent, "behind").await;
    queued(&agent, 4).await;
    held.answer(0, calls(&[("c1", "echo", b"{}")])).await;
    let Ok(InputOutcome::Folded { turn, seq }) = one.await else {
        panic!("the first did not fold");
    };
    let Ok(InputOutcome::Folded { seq: next, .. }) = two.await else {
        panic!("the second did not fold");
    };
    assert_eq!(next, seq.next(), "one batch, in order");
    // It is durable before the model is asked with it.
    held.asked(2).await;
    assert_eq!(
        held.seen.lock().unwrap()[1],
        ["first", "", "{}", "one", "two"]
    );
    let restored = restored(&world.disk, world.session.id());
    assert_eq!(restored.last().unwrap().message.to_text(), "two");
    assert_eq!(restored.last().unwrap().turn, turn);
    // A last answer folds nothing.
    held.answer(1, says("done")).await;
    let Ok(InputOutcome::Turn(outcome)) = first.await else {
        panic!("the first had no turn");
    };
    assert!(outcome.is_done());
    assert_eq!(outcome.turn, turn);
    held.answer(2, says("own done")).await;
    assert!(matches!(own.await, Ok(InputOutcome::Turn(_))));
    held.answer(3, says("behind done")).await;
    assert!(matches!(behind.await, Ok(InputOutcome::Turn(_))));
    assert_eq!(
        inputs(&world.session),
        [
            text(Kind::TurnStarted, "first"),
            text(Kind::TurnFoldedInto, "one"),
            text(Kind::TurnFoldedInto, "two"),
            text(Kind::TurnStarted, "own turn"),
            text(Kind::TurnStarted, "behind"),
        ]
    );
}

#[tokio::test]
async fn a_last_answer_folds_nothing_and_the_next_turn_begins_without_idling() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let second = submit(&agent, "second").await;
    queued(&agent, 1).await;
    held.answer(0, says("done")).await;
    held.answer(1, says("done too")).await;
    assert!(matches!(first.await, Ok(InputOutcome::Turn(_))));
    assert!(matches!(second.await, Ok(InputOutcome::Turn(_))));
    let seen = until(&mut events, Kind::SessionIdle).await;
    let of = |kind| {
        let kinds = seen.iter().filter(|seen| seen.event().kind() == kind);
        kinds.count()
    };
    assert_eq!((of(Kind::TurnStarted), of(Kind::TurnDone)), (2, 2));
    assert_eq!((of(Kind::LoopIdle), of(Kind::SessionActive)), (1, 1));
    assert_eq!(of(Kind::TurnFoldedInto), 0);
    assert_eq!(agent.hub().wait_idle().await, Ok(()));
}

#[tokio::test]
async fn an_input_is_taken_back_while_it_waits_and_only_then() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    let begun = first.id();
    held.asked(1).await;
    let waits = submit(&agent, "waits").await;
    let id = waits.id();
    assert!(agent.cancel_queued(id).await.unwrap());
    // Recorded before anybody hears of it.
    let last = world.session.last_seq();
    assert_eq!(
        cancelled(&waits.await),
        (CancelReason::Retracted, Some(last))
    );
    assert!(!agent.cancel_queued(id).await.unwrap(), "once");
    assert!(!agent.cancel_queued(begun).await.unwrap(), "it has begun");
    held.answer(0, calls(&[("c1", "echo", b"{}")])).await;
    held.answer(1, says("done")).await;
    assert!(matches!(first.await, Ok(InputOutcome::Turn(_))));
    assert_eq!(
        inputs(&world.session),
        [
            text(Kind::TurnStarted, "first"),
            text(Kind::InputCancelled, "waits")
        ]
    );
}

#[tokio::test]
async fn a_failed_turn_returns_all_that_waits() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let one = submit(&agent, "one").await;
    let two = submit(&agent, Input::new("two").no_fold().machine()).await;
    queued(&agent, 2).await;
    held.answer(0, vec![breaks()]).await;
    let Ok(InputOutcome::Turn(outcome)) = first.await else {
        panic!("no turn");
    };
    assert!(matches!(outcome.end, TurnEnd::Failed { .. }));
    let terminal = outcome.terminal.unwrap();
    let one = cancelled(&one.await);
    assert_eq!(one, (CancelReason::Failed, Some(terminal.next())));
    let two = cancelled(&two.await);
    assert_eq!(two, (CancelReason::Failed, Some(terminal.next().next())));
    // The loop goes on.
    let next = submit(&agent, "next").await;
    held.answer(1, says("ok")).await;
    assert!(matches!(next.await, Ok(InputOutcome::Turn(outcome)) if outcome.is_done()));
}

#[tokio::test]
async fn an_interrupt_keeps_what_persons_said_and_cancels_what_machines_sent() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let person = submit(&agent, "person").await;
    let machine = submit(&agent, Input::new("machine").machine()).await;
    let another = submit(&agent, "another").await;
    queued(&agent, 3).await;
    assert!(agent.interrupt().await.unwrap());
    let Ok(InputOutcome::Turn(outcome)) = first.await else {
        panic!("no turn");
    };
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    assert_eq!(cancelled(&machine.await).0, CancelReason::Interrupted);
    held.answer(1, says("ok")).await;
    assert!(matches!(person.await, Ok(InputOutcome::Turn(_))));
    held.answer(2, says("ok")).await;
    assert!(matches!(another.await, Ok(InputOutcome::Turn(_))));
    let inputs = inputs(&world.session);
    assert_eq!(inputs.len(), 4);
    assert!(inputs.contains(&text(Kind::InputCancelled, "machine")));
}

/// Interrupted between the draining and the fold's append, what was drained waits again.
#[tokio::test]
async fn a_fold_that_cannot_be_committed_returns_its_inputs_once() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    // Larger than a record may be.
    let large = submit(&agent, "x".repeat(20 << 20)).await;
    let small = submit(&agent, "small").await;
    queued(&agent, 2).await;
    held.answer(0, calls(&[("c1", "echo", b"{}")])).await;
    let Ok(InputOutcome::Turn(outcome)) = first.await else {
        panic!("no turn");
    };
    assert!(matches!(outcome.end, TurnEnd::Failed { .. }), "{outcome:?}");
    assert_eq!(outcome.steps.len(), 1, "the step before it stays");
    assert_eq!(cancelled(&large.await), (CancelReason::Failed, None));
    let (reason, recorded) = cancelled(&small.await);
    assert_eq!(reason, CancelReason::Failed);
    // One that cannot be recorded takes no other with it.
    assert!(recorded.is_some());
    assert_eq!(
        restored(&world.disk, world.session.id()),
        world.session.history().unwrap()
    );
}

#[tokio::test]
async fn a_full_queue_refuses_and_that_is_recorded_first() {
    let mut world = world();
    let held = Held::default();
    let limits = TurnLimits {
        queue: 1,
        ..TurnLimits::default()
    };
    let agent = spawn(&mut world, held.spec().limits(limits));
    let _first = submit(&agent, "first").await;
    held.asked(1).await;
    let waits = submit(&agent, "waits").await;
    queued(&agent, 1).await;
    let before = world.session.last_seq();
    let refused = submit(&agent, "too many").await.await;
    assert_eq!(refused, Err(RunError::QueueFull { limit: 1 }));
    assert_eq!(world.session.last_seq(), before.next());
    let rejected = text(
        Kind::TurnRejected,
        &format!("{:?}", RejectReason::QueueFull),
    );
    assert_eq!(inputs(&world.session).last(), Some(&rejected));
    let report = patient(agent.shutdown()).await.unwrap();
    assert_eq!((report.interrupted, report.returned), (true, 1));
    assert_eq!(cancelled(&waits.await).0, CancelReason::Interrupted);
}

#[tokio::test]
async fn a_shutdown_returns_all_and_a_second_waits_for_the_first() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let one = submit(&agent, "one").await;
    let two = submit(&agent, Input::new("two").machine()).await;
    queued(&agent, 2).await;
    let (report, again) = tokio::join!(
        patient(agent.shutdown_within(ShutdownLimits::each(Duration::from_secs(60)))),
        patient(agent.shutdown())
    );
    let (report, again) = (report.unwrap(), again.unwrap());
    assert!(report.is_complete());
    assert_eq!((report.interrupted, report.returned), (true, 2));
    assert_eq!(again, report);
    assert_eq!(
        patient(agent.shutdown()).await.unwrap(),
        report,
        "also when it is over"
    );
    let Ok(InputOutcome::Turn(outcome)) = first.await else {
        panic!("no turn");
    };
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    for waited in [one.await, two.await] {
        let (reason, recorded) = cancelled(&waited);
        assert_eq!(reason, CancelReason::Interrupted);
        assert!(recorded.is_some());
    }
    assert_eq!(agent.run_turn("late").await, Err(RunError::Ended));
    assert!(world.session.loop_by_name("main").unwrap().is_some());
    assert_eq!(world.session.open_turns(), []);
}

#[tokio::test]
async fn several_loops_are_shut_down_at_once() {
    let mut world = world();
    let held = Held::default();
    let other = world.session.create_loop_async(LoopSpec::new("other"));
    let other = other.await.unwrap();
    let other = world.session.spawn_loop(other, held.spec()).unwrap();
    let agent = spawn(&mut world, held.spec());
    let turns = [submit(&agent, "a").await, submit(&other, "b").await];
    held.asked(2).await;
    let reports = shutdown_all([&agent, &other], ShutdownLimits::default()).await;
    let reports: Vec<_> = reports.into_iter().map(Result::unwrap).collect();
    assert!(
        reports
            .iter()
            .all(|report| report.interrupted && report.is_complete())
    );
    for turn in turns {
        assert!(matches!(turn.await, Ok(InputOutcome::Turn(_))));
    }
    assert_eq!(world.session.open_turns(), []);
}

/// The disk does not answer: each phase is given up when its time has come, and the next one runs.
/// What was submitted is whole on the disk later.
#[tokio::test]
async fn each_phase_of_a_shutdown_has_its_own_time() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let mut door = Door::at_syncs(&world.disk);
    held.answer(0, calls(&[("c1", "echo", b"{}")])).await;
    door.knock().await;
    let waits = submit(&agent, "waits").await;
    queued(&agent, 1).await;
    let report = patient(agent.shutdown_within(ShutdownLimits::each(Duration::from_millis(30))))
        .await
        .unwrap();
    assert_eq!(report.overdue, [ShutdownPhase::Turn, ShutdownPhase::Queue]);
    assert_eq!(first.await, Err(RunError::Ended));
    let waited = cancelled(&waits.await);
    assert_eq!(waited, (CancelReason::Interrupted, None));
    door.pass();
    drop(door);
    let mut main = world.session.loop_by_name("main").unwrap().unwrap();
    // The append that had begun runs to its end, and the next turn closes the one given up.
    let turn = main.begin_turn_async("next".into()).await.unwrap();
    drop(turn);
    let kinds = kinds(&world.session);
    let ends = kinds.iter().filter(|kind| kind.ends_turn()).count();
    assert_eq!(ends, 1, "{kinds:?}");
    assert_eq!(world.session.steps(), 1);
}

/// An input whose fold was on its way to the disk when a shutdown gave its turn up has joined it: it
/// must not be cancelled besides.
#[tokio::test]
async fn an_input_whose_fold_has_begun_is_not_cancelled_besides() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let folds = submit(&agent, "folds").await;
    let stays = submit(&agent, Input::new("stays").no_fold()).await;
    queued(&agent, 2).await;
    let mut door = Door::at_syncs(&world.disk);
    held.answer(0, calls(&[("c1", "echo", b"{}")])).await;
    // The step passes, the fold stands at the door.
    door.knock().await;
    door.pass();
    door.knock().await;
    let report = agent
        .shutdown_within(ShutdownLimits::each(Duration::from_millis(30)))
        .await
        .unwrap();
    assert_eq!(report.overdue, [ShutdownPhase::Turn, ShutdownPhase::Queue]);
    assert_eq!(first.await, Err(RunError::Ended));
    assert_eq!(folds.await, Err(RunError::Ended));
    assert_eq!(cancelled(&stays.await).0, CancelReason::Interrupted);
    drop(door);
    let mut main = world.session.loop_by_name("main").unwrap().unwrap();
    // Behind all that was submitted.
    drop(main.begin_turn_async("next".into()).await.unwrap());
    let of = |said: &str| {
        let inputs = inputs(&world.session).into_iter();
        let kinds = inputs
            .filter(|(_, text)| text == said)
            .map(|(kind, _)| kind);
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(of("folds"), [Kind::TurnFoldedInto]);
    assert_eq!(of("stays"), [Kind::InputCancelled]);
}

/// The terminal has a time of its own, counted from when the turn has stopped.
#[tokio::test]
async fn the_terminal_is_a_phase_of_its_own() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let door = Door::at_syncs(&world.disk);
    let limits = ShutdownLimits {
        turn: Some(Duration::from_secs(600)),
        terminal: Some(Duration::from_millis(30)),
        queue: None,
    };
    let report = patient(agent.shutdown_within(limits)).await.unwrap();
    assert_eq!(report.overdue, [ShutdownPhase::Terminal]);
    assert_eq!(first.await, Err(RunError::Ended));
    drop(door);
}

#[tokio::test]
async fn a_fault_refuses_all_that_waits_also_what_is_being_folded() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let first = submit(&agent, "first").await;
    held.asked(1).await;
    let folds = submit(&agent, "folds").await;
    let own = submit(&agent, Input::new("own").no_fold()).await;
    queued(&agent, 2).await;
    // The step's sync is the first, the fold's the second.
    world
        .disk
        .fail_nth(is_sync, 1, FaultKind::SyncReverted(PowerLoss::DropAll));
    held.answer(0, calls(&[("c1", "echo", b"{}")])).await;
    let Ok(InputOutcome::Turn(outcome)) = first.await else {
        panic!("no turn");
    };
    let TurnEnd::Faulted(fault) = outcome.end else {
        panic!("{outcome:?}");
    };
    assert_eq!(outcome.steps.len(), 1);
    assert_eq!(folds.await, Err(RunError::Faulted(fault.clone())));
    assert_eq!(own.await, Err(RunError::Faulted(fault.clone())));
    let late = submit(&agent, "late").await.await;
    assert_eq!(late, Err(RunError::Faulted(fault.clone())));
    // Reopened in the process, while the old handle is there.
    let (session, report) = world.store.reopen(&world.session).unwrap();
    assert_eq!(report.open_turns.len(), 1);
    let main = session.loop_by_name("main").unwrap().unwrap();
    let revived = session.spawn_loop(main, held.spec()).unwrap();
    let turn = submit(&revived, "again").await;
    held.answer(1, says("here")).await;
    assert!(matches!(turn.await, Ok(InputOutcome::Turn(outcome)) if outcome.is_done()));
    let old = submit(&agent, "old").await.await;
    assert_eq!(old, Err(RunError::Faulted(fault)));
    assert!(patient(agent.shutdown()).await.unwrap().is_complete());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn loops_of_a_session_share_one_journal() {
    let world = world();
    let mut tasks = Vec::new();
    for number in 0..6 {
        let own = world
            .session
            .create_loop_async(LoopSpec::new(format!("loop {number}")));
        let own = own.await.unwrap();
        let id = own.id();
        let asked = AtomicUsize::new(0);
        let spec = AgentSpec::new(move |_: ModelRequest| {
            let answer = match asked.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => calls(&[("c", "echo", b"{}")]),
                _ => says(&format!("answer of {number}")),
            };
            ModelStream::ready(answer)
        });
        let agent = world.session.spawn_loop(own, spec.tool(echo())).unwrap();
        tasks.push(tokio::spawn(async move {
            for turn in 0..8 {
                let outcome = agent.run_turn(format!("{number}.{turn}")).await.unwrap();
                assert!(outcome.is_done());
            }
            (id, agent)
        }));
    }
    for (number, task) in tasks.into_iter().enumerate() {
        let (id, _agent) = task.await.unwrap();
        let texts = world.session.loop_history(id).unwrap();
        let texts: Vec<String> = texts.iter().map(|message| message.to_text()).collect();
        let expected = (0..8).flat_map(|turn| {
            let said = format!("{number}.{turn}");
            [
                said,
                String::new(),
                "{}".into(),
                format!("answer of {number}"),
            ]
        });
        assert_eq!(texts, expected.collect::<Vec<_>>());
    }
    assert_eq!(world.session.steps(), 6 * 8 * 2);
    assert_eq!(
        restored(&world.disk, world.session.id()),
        world.session.history().unwrap()
    );
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Whatever happens: each input gets one outcome, and the log says the same of it, once.
#[tokio::test]
async fn every_input_is_resolved_exactly_once() {
    let mut all = [0; 6];
    for seed in 1..=150 {
        let counts = one_life(seed).await;
        for (sum, count) in all.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    // Every way out was taken.
    assert!(all.iter().all(|count| *count > 0), "{all:?}");
}

async fn one_life(seed: u64) -> [usize; 6] {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut world = world();
    let asked = Mutex::new(Rng(seed | 1 << 40));
    let spec = AgentSpec::new(move |_: ModelRequest| {
        let answer = match asked.lock().unwrap().below(8) {
            0 => vec![breaks()],
            1..4 => says("done"),
            _ => calls(&[("c", "slow", b"{}")]),
        };
        ModelStream::ready(answer)
    });
    let slow = act("slow", |_| async {
        tokio::task::yield_now().await;
        ToolOutput::text("ok")
    });
    let limits = TurnLimits {
        queue: 3,
        ..TurnLimits::default()
    };
    let agent = spawn(&mut world, spec.tool(slow).limits(limits));
    let mut submitted = Vec::new();
    let mut ids = Vec::new();
    for number in 0..12 {
        for _ in 0..rng.below(12) {
            tokio::task::yield_now().await;
        }
        match rng.below(12) {
            0 => drop(agent.interrupt().await),
            1 if !ids.is_empty() => {
                let at = rng.below(ids.len() as u64) as usize;
                agent.cancel_queued(ids[at]).await.unwrap();
            }
            _ => {}
        }
        let mut input = Input::new(format!("input {number}"));
        if rng.below(3) == 0 {
            input = input.no_fold();
        }
        if rng.below(3) == 0 {
            input = input.machine();
        }
        let handed = submit(&agent, input).await;
        ids.push(handed.id());
        submitted.push((format!("input {number}"), handed));
    }
    if rng.below(2) == 0 {
        patient(agent.shutdown()).await.unwrap();
    }
    let mut expected: HashMap<String, Kind> = HashMap::new();
    let mut rejected = 0;
    let mut counts = [0; 6];
    for (text, submitted) in submitted {
        let (at, kind) = match submitted.await {
            Ok(InputOutcome::Turn(_)) => (0, Kind::TurnStarted),
            Ok(InputOutcome::Folded { .. }) => (1, Kind::TurnFoldedInto),
            Ok(InputOutcome::Cancelled { reason, recorded }) => {
                assert!(recorded.is_some());
                let at = match reason {
                    CancelReason::Retracted => 2,
                    CancelReason::Interrupted => 3,
                    _ => 4,
                };
                (at, Kind::InputCancelled)
            }
            Err(RunError::QueueFull { .. }) => {
                counts[5] += 1;
                rejected += 1;
                continue;
            }
            other => panic!("{other:?}"),
        };
        counts[at] += 1;
        expected.insert(text, kind);
    }
    agent.hub().wait_idle().await.unwrap();
    let mut found = HashMap::new();
    for (kind, text) in inputs(&world.session) {
        if kind == Kind::TurnRejected {
            rejected -= 1;
        } else {
            assert_eq!(found.insert(text.clone(), kind), None, "{text} twice");
        }
    }
    assert_eq!(found, expected, "seed {seed}");
    assert_eq!(rejected, 0);
    let kinds = kinds(&world.session);
    let ends = kinds.iter().filter(|kind| kind.ends_turn()).count();
    let begun = kinds.iter().filter(|kind| **kind == Kind::TurnStarted);
    assert_eq!(ends, begun.count(), "one terminal per turn");
    assert_eq!(
        restored(&world.disk, world.session.id()),
        world.session.history().unwrap()
    );
    counts
}

/// What waits is not stored: after a crash it is gone, and the log is in order.
#[tokio::test]
async fn what_waited_at_a_crash_is_gone_and_nothing_else() {
    let mut world = world();
    let held = Held::default();
    let agent = spawn(&mut world, held.spec());
    let _first = submit(&agent, "first").await;
    held.asked(1).await;
    let _waits = submit(&agent, "waits").await;
    queued(&agent, 1).await;
    let id = world.session.id();
    let store = open_store(&world.disk.new_process(), options());
    let (session, _) = store.open_session(id, Mode::Read).unwrap();
    assert_eq!(inputs(&session), [text(Kind::TurnStarted, "first")]);
}
