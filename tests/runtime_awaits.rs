//! Every await of a loop's handle and of its task, on a runtime of one thread that is cranked by hand
//! over a disk that works by hand: what is dropped anywhere leaves a whole or nothing, the loop goes
//! on, nothing hangs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use runtime_support::watchdog::ends;
use runtime_support::*;
use stepwell::event::Kind;
use stepwell::journal::Workers;
use stepwell::runtime::{
    APPROVE, AgentSpec, Decision, LoopHandle, ModelRequest, ModelStream, Question, RunError,
    ToolCall, ToolOutput, ToolSpec,
};
use stepwell::store::{Mode, StoreOptions};
use tokio::runtime::{Builder, Runtime};

/// One task is polled between two polls of what is blocked on.
fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .event_interval(1)
        .build()
        .unwrap()
}

fn manual(workers: &Workers) -> World {
    world_with(StoreOptions {
        workers: workers.clone(),
        ..options()
    })
}

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets the tasks run, and then the disk.
async fn crank(workers: &Workers) {
    tokio::task::yield_now().await;
    workers.run_one();
}

/// Until something holds.
async fn crank_until(workers: &Workers, mut holds: impl FnMut() -> bool) {
    while !holds() {
        crank(workers).await;
    }
}

/// Awaits, and lets the disk work meanwhile.
async fn working<T>(workers: &Workers, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(value) = polled {
            return value;
        }
        crank(workers).await;
    }
}

// ---- the handle

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    RunTurn,
    Submit,
    Interrupt,
    Snapshot,
    Shutdown,
}

use Call::*;

type Calling = Pin<Box<dyn Future<Output = ()>>>;

impl Call {
    fn of(self, agent: &LoopHandle) -> Calling {
        let agent = agent.clone();
        match self {
            RunTurn => Box::pin(async move { drop(agent.run_turn("cut").await) }),
            Submit => Box::pin(async move { drop(agent.submit("cut").await.unwrap().await) }),
            Interrupt => Box::pin(async move { drop(agent.interrupt().await) }),
            Snapshot => Box::pin(async move { drop(agent.snapshot().await) }),
            Shutdown => Box::pin(async move { drop(agent.shutdown().await) }),
        }
    }
}

/// Where a call is cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    polls: usize,
    /// The loop has no room for a command when the call begins.
    full: bool,
    /// What the last poll waits for comes before the drop.
    woken: bool,
}

/// Pends at the first request of a turn that says so, answers all others.
fn model() -> impl stepwell::runtime::Model + 'static {
    move |request: ModelRequest| match request.messages.last().unwrap().to_text().as_str() {
        "pends" => {
            let (sender, stream) = ModelStream::channel(1);
            tokio::spawn(async move { sender.closed().await });
            stream
        }
        _ => ModelStream::ready(says("done")),
    }
}

fn count(world: &World, kind: Kind) -> usize {
    kinds(&world.session)
        .iter()
        .filter(|it| **it == kind)
        .count()
}

/// Whether the call came to its end before it was cut.
async fn cut_call(call: Call, cut: Cut) -> bool {
    let workers = Workers::manual();
    let mut world = manual(&workers);
    let main = world.main.take().unwrap();
    let agent = AgentSpec::new(model());
    let agent = world.session.spawn_loop(main, agent).unwrap();
    // What is interrupted or shut down runs.
    let runs = matches!(call, Interrupt | Shutdown);
    let mut before = None;
    if runs {
        before = Some(agent.submit("pends").await.unwrap());
        crank_until(&workers, || count(&world, Kind::TurnStarted) == 1).await;
    }
    let mut crowd: Vec<Calling> = Vec::new();
    if cut.full {
        let waker = Waker::from(Arc::new(Wakes::default()));
        for _ in 0..64 {
            let mut other = Snapshot.of(&agent);
            assert!(
                other
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            crowd.push(other);
        }
    }

    let mut calling = call.of(&agent);
    let mut ended = false;
    for polled in 0..cut.polls {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        ended = calling
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        if ended {
            break;
        }
        if polled + 1 < cut.polls || cut.woken {
            crank_until(&workers, || wakes.count() > 0).await;
        }
    }
    drop(calling);
    drop(crowd);

    // A command that had room was taken, whoever waits for what came of it. For a command that was
    // given room and not polled again there is none.
    let room = cut.polls > usize::from(cut.full);
    let what = format!("{call:?} {cut:?}");
    match call {
        RunTurn | Submit => {
            let session = world.session.clone();
            if room {
                crank_until(&workers, || count(&world, Kind::TurnDone) == 1).await;
            }
            working(&workers, session.hub().wait_idle()).await.unwrap();
            let begun = count(&world, Kind::TurnStarted);
            assert_eq!(
                (begun, begun),
                (usize::from(room), count(&world, Kind::TurnDone)),
                "{what}"
            );
        }
        Interrupt => {
            if room {
                crank_until(&workers, || count(&world, Kind::TurnInterrupted) == 1).await;
            } else {
                let snapshot = working(&workers, agent.snapshot()).await.unwrap();
                assert!(snapshot.running, "{what}");
                assert!(
                    working(&workers, agent.interrupt()).await.unwrap(),
                    "{what}"
                );
            }
            drop(working(&workers, before.take().unwrap()).await.unwrap());
            assert_eq!(count(&world, Kind::TurnInterrupted), 1, "{what}");
        }
        Snapshot => assert_eq!(kinds(&world.session).len(), 2, "{what}"),
        Shutdown => {
            if !room {
                let snapshot = working(&workers, agent.snapshot()).await.unwrap();
                assert!(snapshot.running, "{what}");
            }
            // Who asks again gets the report of the first.
            let report = working(&workers, agent.shutdown()).await.unwrap();
            assert!(
                report.is_complete() && report.interrupted,
                "{what}: {report:?}"
            );
            assert_eq!(count(&world, Kind::TurnInterrupted), 1, "{what}");
            let late = working(&workers, agent.run_turn("late")).await;
            assert_eq!(late, Err(RunError::Ended), "{what}");
        }
    }
    let agent = match call {
        Shutdown => {
            let main = world.session.loop_by_name("main").unwrap().unwrap();
            world
                .session
                .spawn_loop(main, AgentSpec::new(model()))
                .unwrap()
        }
        _ => agent,
    };
    let outcome = working(&workers, agent.run_turn("on")).await.unwrap();
    assert!(outcome.is_done(), "{what}: {outcome:?}");
    let report = working(&workers, agent.shutdown()).await.unwrap();
    assert!(report.is_complete());
    assert_eq!(world.session.open_turns(), []);
    assert_eq!(
        restored(&world.disk, world.session.id()),
        world.session.history().unwrap()
    );
    ended
}

#[test]
fn a_call_is_dropped_at_each_of_its_awaits() {
    ends(|| {
        for call in [RunTurn, Submit, Interrupt, Snapshot, Shutdown] {
            for full in [false, true] {
                for woken in [false, true] {
                    let cut = |polls| Cut { polls, full, woken };
                    let mut polls = 0;
                    while !runtime().block_on(cut_call(call, cut(polls))) {
                        polls += 1;
                    }
                    assert!(polls >= 2 + usize::from(full), "{call:?}: {polls} polls");
                }
            }
        }
    });
}

// ---- the task

fn asks(_: &ToolCall) -> Decision {
    Decision::Ask(Question::permission("may I?").without_timeout())
}

/// A turn with a gate, an intent, two calls at once, something that folds, and a last step.
fn whole_agent(runs: &Arc<AtomicUsize>) -> AgentSpec {
    let runs = runs.clone();
    let act = act_as(ToolSpec::new("act", "for a test").intent(), move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::task::yield_now().await;
            ToolOutput::text("ran")
        }
    });
    let both = calls(&[("1", "act", b"{}"), ("2", "echo", b"{}")]);
    AgentSpec::new(script([both, says("done"), says("more")]))
        .tool(act)
        .tool(echo())
        .policy(|call: &ToolCall| match call.tool.as_str() {
            "act" => asks(call),
            _ => Decision::Allow,
        })
}

/// Each batch of such a life, as far as it begins.
fn assert_whole_batches(kinds: &[Kind], what: &str) {
    for (at, kind) in kinds.iter().enumerate() {
        let next = kinds.get(at + 1);
        match kind {
            Kind::GateOpened => assert_eq!(next, Some(&Kind::PermissionRequested), "{what}"),
            Kind::PermissionRequested => assert_eq!(kinds[at - 1], Kind::GateOpened, "{what}"),
            Kind::TurnDone => assert_eq!(kinds[at - 1], Kind::StepDone, "{what}"),
            _ => {}
        }
    }
}

/// Drops the task of a loop, with its runtime, after so many cranks; whether its work was done.
fn drop_task_after(cranks: usize, seen: &mut [usize; 4]) -> bool {
    let workers = Workers::manual();
    let mut world = manual(&workers);
    let main = world.main.take().unwrap();
    let session = world.session.clone();
    let runs = Arc::new(AtomicUsize::new(0));
    let first = runtime();
    let done = first.block_on(async {
        let agent = session.spawn_loop(main, whole_agent(&runs)).unwrap();
        let mut one = agent.submit("go").await.unwrap();
        let mut two = agent.submit("and").await.unwrap();
        for at in 0..cranks {
            match at % 2 {
                0 => tokio::task::yield_now().await,
                _ => drop(workers.run_one()),
            }
            if let Some(pending) = session.pending_gates().first() {
                // Not at once, so that the waiting is cut, too.
                if at % 8 == 0 {
                    let answer = stepwell::store::Answer::choose(APPROVE);
                    session.answer_gate(pending.gate.id, answer).unwrap();
                }
            }
        }
        let waker = Waker::noop();
        let mut context = Context::from_waker(waker);
        let one = Pin::new(&mut one).poll(&mut context).is_ready();
        one && Pin::new(&mut two).poll(&mut context).is_ready()
    });
    drop(first);
    // What was submitted runs to its end behind its back.
    while workers.run_one() {}
    let what = format!("after {cranks}");
    let before = kinds(&session);
    assert_whole_batches(&before, &what);
    let history = session.history().unwrap();
    assert_eq!(restored(&world.disk, session.id()), history, "{what}");
    let of = |kind| before.iter().filter(|it| **it == kind).count();
    assert!(of(Kind::TurnStarted) >= of(Kind::TurnDone), "{what}");
    let intents = of(Kind::ToolIntent);
    let steps = of(Kind::StepDone);
    assert!(
        runs.load(Ordering::SeqCst) <= intents,
        "{what}: it ran without its intent"
    );
    let open = session.open_turns().len();
    let pending = session.pending_gates().len();
    for (count, now) in seen.iter_mut().zip([open, pending, intents, steps]) {
        *count += usize::from(now > 0);
    }

    // The loop is free, and goes on.
    let main = session.loop_by_name("main").unwrap().unwrap();
    runtime().block_on(async {
        working(&workers, session.hub().wait_idle()).await.unwrap();
        let spec = AgentSpec::new(script([says("on")]));
        let agent = session.spawn_loop(main, spec).unwrap();
        let outcome = working(&workers, agent.run_turn("on")).await.unwrap();
        assert!(outcome.is_done(), "{what}");
        working(&workers, agent.shutdown()).await.unwrap();
    });
    let after = kinds(&session);
    let of = |kind| after.iter().filter(|it| **it == kind).count();
    let ended = after.iter().filter(|kind| kind.ends_turn()).count();
    assert_eq!(
        of(Kind::TurnStarted),
        ended,
        "{what}: one terminal per turn"
    );
    assert_eq!(
        of(Kind::GateOpened),
        of(Kind::GateResolved),
        "{what}: closed once"
    );
    assert_eq!(session.pending_gates(), [], "{what}");
    // Nobody knows what the call did exactly when its step is not there.
    let unknown = session.unknown_effects().len();
    assert_eq!(unknown, usize::from(intents == 1 && steps == 0), "{what}");
    let history = session.history().unwrap();
    session.close().unwrap();
    let (again, _) = world.store.open_session(session.id(), Mode::Read).unwrap();
    assert_eq!(again.history().unwrap(), history, "{what}");
    done
}

#[test]
fn the_task_of_a_loop_is_dropped_at_each_of_its_awaits() {
    ends(|| {
        let mut seen = [0; 4];
        let mut cranks = 0;
        while !drop_task_after(cranks, &mut seen) {
            cranks += 1;
        }
        // It was cut with a turn open, with a gate open, behind its intent and behind its step.
        assert!(seen.iter().all(|count| *count > 1), "{seen:?} in {cranks}");
    });
}
