//! Gates in running turns: asked in call order, answered durably and then delivered, timed out,
//! given up; and what a kill leaves of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runtime_support::watchdog::patient;
use runtime_support::*;
use stepwell::content::Message;
use stepwell::event::{
    Effect, GateOpened, GateResolved, Kind, PermissionDecided, PermissionRequested, StepDone,
};
use stepwell::identity::GateId;
use stepwell::journal::Seq;
use stepwell::runtime::{
    APPROVE, APPROVE_ALWAYS, AgentSpec, DENY, Decision, Filter, LoopHandle, Policy, Question,
    Resolution, RunError, StartAt, Tool, ToolCall, ToolOutput, TurnEnd, TurnLimits, TurnOutcome,
};
use stepwell::store::{
    Answer, AnswerError, CommitError, Draft, LoopSpec, Mode, PendingGate, Refusal, Session,
};
use stepwell::vfs::sim::{FaultKind, SimVfs};

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

fn start(agent: &LoopHandle) -> tokio::task::JoinHandle<Result<TurnOutcome, RunError>> {
    let agent = agent.clone();
    tokio::spawn(async move { patient(agent.run_turn("go")).await })
}

/// Asks about every call, without a timeout.
fn asks(_: &ToolCall) -> Decision {
    Decision::Ask(Question::permission("may I?").without_timeout())
}

/// A tool that counts its runs.
fn counted(runs: &Arc<AtomicUsize>) -> impl Tool + use<> {
    let runs = runs.clone();
    act("act", move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { ToolOutput::text("ran") }
    })
}

fn one_call() -> Answer2 {
    calls(&[("1", "act", b"{\"n\":1}")])
}

type Answer2 = runtime_support::Answer;

/// Waits until the session has a gate.
async fn gate_of(session: &Session) -> PendingGate {
    patient(async {
        loop {
            if let Some(pending) = session.pending_gates().into_iter().next() {
                return pending;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

fn results(session: &Session) -> Vec<(String, bool)> {
    let history = session.history().unwrap();
    let results = history.iter().filter_map(|item| match &*item.message {
        Message::ToolResult(result) => Some((result.to_text(), result.is_error)),
        _ => None,
    });
    results.collect()
}

fn bodies<B: stepwell::event::EventBody + Clone>(session: &Session) -> Vec<B> {
    let events = session.replay(Seq::new(1));
    let bodies = events.filter_map(|event| event.unwrap().event().body_as::<B>().cloned());
    bodies.collect()
}

// ---- asking and answering

#[tokio::test]
async fn an_approved_call_runs_and_a_refused_one_is_an_error_result() {
    for (answer, result) in [
        (Answer::choose(APPROVE), ("ran", false)),
        (Answer::choose(APPROVE_ALWAYS), ("not offered", true)),
        (Answer::choose(DENY), ("the user refused it", true)),
        (Answer::choose(DENY).comment("not now"), ("not now", true)),
    ] {
        let runs = Arc::new(AtomicUsize::new(0));
        let mut world = world();
        let model = script([one_call(), says("done")]);
        let spec = AgentSpec::new(model).tool(counted(&runs)).policy(asks);
        let agent = spawn(&mut world, spec);
        let turn = start(&agent);
        let pending = gate_of(&world.session).await;
        assert_eq!(agent.pending_gates(), std::slice::from_ref(&pending));
        let gated = pending.call().unwrap();
        assert_eq!(
            (gated.tool.as_str(), gated.input.get()),
            ("act", "{\"n\":1}")
        );
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        let given = agent.answer_gate(pending.gate.id, answer).await;
        if result.0 == "not offered" {
            assert!(matches!(given, Err(AnswerError::NotOffered { .. })));
            agent.shutdown().await.unwrap();
            continue;
        }
        given.unwrap();
        assert!(turn.await.unwrap().unwrap().is_done());
        let (text, is_error) = results(&world.session).remove(0);
        assert!(text.contains(result.0) && is_error == result.1, "{text}");
        assert_eq!(runs.load(Ordering::SeqCst), usize::from(!result.1));
        // The step has used the answer.
        assert_eq!(world.session.gate_answers(), []);
        assert_eq!(world.session.pending_gates(), []);
        let expected = [
            Kind::GateOpened,
            Kind::PermissionRequested,
            Kind::GateResolved,
            Kind::StepDone,
        ];
        let kinds = kinds(&world.session);
        let from = kinds.iter().position(|kind| *kind == Kind::GateOpened);
        assert_eq!(kinds[from.unwrap()..][..4], expected);
        let request: Vec<PermissionRequested> = bodies(&world.session);
        let named = request[0]
            .request
            .get()
            .contains(&pending.gate.id.to_string());
        assert!(named, "the request names its gate");
    }
}

/// A rule that the answer about one call contains holds for the next call of the same step.
struct Rules(Mutex<Vec<String>>);

impl Policy for Rules {
    fn decide(&self, call: &ToolCall) -> Decision {
        if self.0.lock().unwrap().contains(&call.tool) {
            return Decision::Allow;
        }
        let question = Question::permission("may I?").choice(APPROVE_ALWAYS);
        Decision::Ask(question.without_timeout())
    }

    fn answered(&self, call: &ToolCall, resolution: &Resolution) -> Effect {
        match resolution.action.as_str() {
            APPROVE_ALWAYS => {
                self.0.lock().unwrap().push(call.tool.clone());
                Effect::Approve
            }
            APPROVE => Effect::Approve,
            _ => Effect::Deny,
        }
    }
}

#[tokio::test]
async fn calls_are_decided_in_call_order_before_any_runs_and_rules_hold_at_once() {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut world = world();
    let answer = calls(&[
        ("1", "act", b"{}"),
        ("2", "other", b"{}"),
        ("3", "act", b"{}"),
        ("4", "other", b"[]"),
        ("5", "missing", b"{}"),
    ]);
    let other = act("other", |_| async { ToolOutput::text("other") });
    let spec = AgentSpec::new(script([answer, says("done")]))
        .tool(counted(&runs))
        .tool(other)
        .policy(Rules(Mutex::default()));
    let agent = spawn(&mut world, spec);
    let turn = start(&agent);
    let mut asked = Vec::new();
    for action in [APPROVE_ALWAYS, DENY] {
        let pending = gate_of(&world.session).await;
        asked.push(pending.call().unwrap().call_id);
        assert_eq!(
            world.session.pending_gates().len(),
            1,
            "one after the other"
        );
        assert_eq!(
            runs.load(Ordering::SeqCst),
            0,
            "none runs before all are decided"
        );
        let answer = Answer::choose(action);
        agent.answer_gate(pending.gate.id, answer).await.unwrap();
    }
    assert!(turn.await.unwrap().unwrap().is_done());
    // The third was allowed by the rule of the first; of the last two nobody was asked.
    assert_eq!(asked, ["1", "2"]);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    let errors: Vec<bool> = results(&world.session).iter().map(|it| it.1).collect();
    assert_eq!(errors, [false, true, false, true, true]);
}

/// Who answers the very moment that the question can be seen is heard: the blocker stands before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_at_once_is_not_lost() {
    let mut world = world();
    let runs = Arc::new(AtomicUsize::new(0));
    let rounds = 60;
    let answers = (0..rounds).flat_map(|_| [one_call(), says("done")]);
    let spec = AgentSpec::new(script(answers))
        .tool(counted(&runs))
        .policy(asks);
    let agent = spawn(&mut world, spec);
    let mut events = agent.subscribe(StartAt::now(), Filter::committed());
    let session = world.session.clone();
    let answerer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for _ in 0..rounds {
            let seen = runtime.block_on(until(&mut events, Kind::GateOpened));
            let opened = seen.last().unwrap().event().body_as::<GateOpened>();
            let gate = opened.unwrap().gate.id;
            session.answer_gate(gate, Answer::choose(APPROVE)).unwrap();
        }
    });
    for _ in 0..rounds {
        let turn = tokio::time::timeout(Duration::from_secs(20), agent.run_turn("go"));
        assert!(turn.await.expect("heard").unwrap().is_done());
    }
    answerer.join().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), rounds);
}

#[tokio::test]
async fn whatever_resolves_a_gate_reaches_who_waits() {
    let mut world = world();
    let runs = Arc::new(AtomicUsize::new(0));
    let model = script([one_call(), says("done")]);
    let spec = AgentSpec::new(model).tool(counted(&runs)).policy(asks);
    let agent = spawn(&mut world, spec);
    let turn = start(&agent);
    let pending = gate_of(&world.session).await;
    let closed = Draft::new(GateResolved {
        gate_id: pending.gate.id,
        reason: "owner_closed".into(),
        ..GateResolved::default()
    });
    let closed = closed
        .in_loop(pending.loop_id)
        .in_turn(pending.turn)
        .in_step(pending.step);
    world.session.submit(vec![closed]).await.unwrap().unwrap();
    assert!(turn.await.unwrap().unwrap().is_done());
    assert_eq!(runs.load(Ordering::SeqCst), 0, "no answer is no permission");
    assert!(results(&world.session)[0].1);
}

// ---- timeouts

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_is_denied_by_its_policy() {
    let mut world = world();
    let runs = Arc::new(AtomicUsize::new(0));
    let model = script([one_call(), says("done")]);
    let policy = |_: &ToolCall| Decision::ask("may I?");
    let spec = AgentSpec::new(model).tool(counted(&runs)).policy(policy);
    let agent = spawn(&mut world, spec);
    let before = tokio::time::Instant::now();
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let waited = before.elapsed();
    let minutes = Duration::from_secs(5 * 60);
    assert!(waited >= minutes && waited < minutes * 2, "{waited:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(results(&world.session)[0].0.contains("in time"));
    let resolved: Vec<GateResolved> = bodies(&world.session);
    let source = resolved[0].source.as_ref().unwrap();
    assert_eq!(resolved[0].action, DENY);
    assert_eq!(
        (source.kind.as_str(), source.reason.as_str()),
        ("policy", "timeout")
    );
    let late = Answer::choose(APPROVE);
    let late = agent.answer_gate(resolved[0].gate_id, late).await;
    assert!(matches!(late, Err(AnswerError::AlreadyAnswered { .. })));
    assert_eq!(
        world.session.gate_answers(),
        [],
        "no person has said anything"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_answer_and_timeout_meet_the_durable_one_counts() {
    let (mut by_person, mut by_policy) = (0, 0);
    for round in 0..120_u64 {
        let mut world = world();
        let runs = Arc::new(AtomicUsize::new(0));
        let soon = Duration::from_micros(2000);
        let policy =
            move |_: &ToolCall| Decision::Ask(Question::permission("may I?").timeout(soon, DENY));
        let model = script([one_call(), says("done")]);
        let spec = AgentSpec::new(model).tool(counted(&runs)).policy(policy);
        let agent = spawn(&mut world, spec);
        let turn = start(&agent);
        let pending = gate_of_or(&world.session, &turn).await;
        let answered = match pending {
            Some(pending) => {
                let session = world.session.clone();
                let answer = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(round * 25));
                    session.answer_gate(pending.gate.id, Answer::choose(APPROVE))
                });
                answer.join().unwrap().is_ok()
            }
            None => false,
        };
        assert!(turn.await.unwrap().unwrap().is_done());
        let resolved: Vec<GateResolved> = bodies(&world.session);
        assert_eq!(resolved.len(), 1);
        let person = resolved[0].source.as_ref().unwrap().kind == "user";
        assert_eq!(answered, person, "who is told that it counts, counts");
        assert_eq!(runs.load(Ordering::SeqCst), usize::from(person));
        assert_eq!(results(&world.session)[0].1, !person);
        match person {
            true => by_person += 1,
            false => by_policy += 1,
        }
    }
    assert!(by_person > 0 && by_policy > 0, "{by_person} {by_policy}");
}

async fn gate_of_or<T>(
    session: &Session,
    turn: &tokio::task::JoinHandle<T>,
) -> Option<PendingGate> {
    while !turn.is_finished() {
        if let Some(pending) = session.pending_gates().into_iter().next() {
            return Some(pending);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn a_timeout_that_finds_no_room_leaves_the_gate_answerable_and_tries_again() {
    let mut world = world();
    let runs = Arc::new(AtomicUsize::new(0));
    let policy = |_: &ToolCall| {
        Decision::Ask(Question::permission("may I?").timeout(Duration::from_secs(10), DENY))
    };
    let model = script([one_call(), says("done")]);
    let spec = AgentSpec::new(model).tool(counted(&runs)).policy(policy);
    let agent = spawn(&mut world, spec);
    let turn = start(&agent);
    let pending = gate_of(&world.session).await;
    // Fill the segment up, so that the timeout needs a new one.
    world.disk.set_capacity(Some(world.disk.used()));
    let filler = |bytes: usize| {
        let data = stepwell::content::RawJson::from_serialize(&"x".repeat(bytes)).unwrap();
        Draft::new(stepwell::event::HostEvent {
            name: "filler".into(),
            version: 0,
            data,
            optional: true,
        })
    };
    let mut bytes = 8192;
    while bytes > 0 {
        let written = world.session.submit(vec![filler(bytes)]).await.unwrap();
        if matches!(written, Err(CommitError::NotCommitted(Refusal::Journal(_)))) {
            bytes /= 2;
        }
    }
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.session.pending_gates(), [pending], "still open");
    assert_eq!(world.session.fault(), None);
    world.disk.set_capacity(None);
    assert!(turn.await.unwrap().unwrap().is_done());
    assert!(results(&world.session)[0].0.contains("in time"));
}

// ---- cancellation, faults, the end of the session

#[tokio::test]
async fn an_interrupted_turn_gives_its_gates_up_in_the_batch_of_its_end() {
    let mut world = world();
    let runs = Arc::new(AtomicUsize::new(0));
    let spec = AgentSpec::new(script([one_call(), says("next")]));
    let agent = spawn(&mut world, spec.tool(counted(&runs)).policy(asks));
    let turn = start(&agent);
    let pending = gate_of(&world.session).await;
    assert_eq!(agent.interrupt().await, Ok(true));
    let outcome = turn.await.unwrap().unwrap();
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    let terminal = outcome.terminal.unwrap();
    let last: Vec<_> = world
        .session
        .replay(Seq::new(terminal.get() - 1))
        .map(|event| event.unwrap())
        .collect();
    let closed = last[0].event().body_as::<GateResolved>().unwrap();
    assert_eq!(
        (closed.gate_id, closed.reason.as_str()),
        (pending.gate.id, "abandoned")
    );
    assert_eq!(last[1].event().kind(), Kind::TurnInterrupted);
    let late = agent
        .answer_gate(pending.gate.id, Answer::choose(APPROVE))
        .await;
    let at = last[0].seq();
    let gate = pending.gate.id;
    assert_eq!(late, Err(AnswerError::Abandoned { gate, at }));
    assert!(agent.run_turn("on").await.unwrap().is_done());
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

/// The turn is interrupted at every call to the disk of its gate: held at the door, interrupted, let
/// through. Nothing hangs, nothing stays open, the log and live state agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_can_be_interrupted_at_every_write_of_its_gate() {
    let mut ends = std::collections::HashMap::new();
    for held in 0..40 {
        let mut world = world();
        let runs = Arc::new(AtomicUsize::new(0));
        let spec = AgentSpec::new(script([one_call(), says("done")]));
        let agent = spawn(&mut world, spec.tool(counted(&runs)).policy(asks));
        let mut door = Door::at(&world.disk, stepwell::vfs::sim::Op::changes_disk);
        let turn = start(&agent);
        let session = world.session.clone();
        let answerer = tokio::spawn(async move {
            let pending = gate_of(&session).await;
            let answer = Answer::choose(APPROVE);
            session.answer_gate_async(pending.gate.id, answer).await
        });
        let mut interrupted = false;
        let mut passed = 0;
        while !turn.is_finished() {
            let knock = tokio::time::timeout(Duration::from_millis(200), door.knock());
            let Ok(_) = knock.await else { continue };
            if passed == held {
                interrupted = agent.interrupt().await.unwrap();
            }
            passed += 1;
            door.pass();
        }
        let outcome = turn.await.unwrap().unwrap();
        world.disk.clear_hook();
        drop(door);
        answerer.abort();
        let end = match outcome.end {
            TurnEnd::Interrupted => "interrupted",
            TurnEnd::Done { .. } => "done",
            other => panic!("{other:?}"),
        };
        *ends.entry(end).or_insert(0) += 1;
        agent.shutdown().await.unwrap();
        assert_eq!(world.session.pending_gates(), [], "{held}");
        let opened: Vec<GateOpened> = bodies(&world.session);
        let resolved: Vec<GateResolved> = bodies(&world.session);
        assert_eq!(opened.len(), resolved.len(), "{held}: closed once each");
        let steps: Vec<StepDone> = bodies(&world.session);
        assert!(runs.load(Ordering::SeqCst) <= 1);
        assert!(!steps.is_empty() || interrupted);
        let history = world.session.history().unwrap();
        assert_eq!(restored(&world.disk, world.session.id()), history);
        if !interrupted {
            break;
        }
    }
    assert!(ends["interrupted"] > 3 && ends["done"] > 0, "{ends:?}");
}

#[tokio::test]
async fn a_fault_and_a_close_end_the_waiting() {
    for faulted in [true, false] {
        let mut world = world();
        let runs = Arc::new(AtomicUsize::new(0));
        let spec = AgentSpec::new(script([one_call()]));
        let agent = spawn(&mut world, spec.tool(counted(&runs)).policy(asks));
        let turn = start(&agent);
        let pending = gate_of(&world.session).await;
        if faulted {
            world.disk.fail_nth(is_sync, 0, FaultKind::Eio);
            let answer = Answer::choose(APPROVE);
            let error = agent
                .answer_gate(pending.gate.id, answer)
                .await
                .unwrap_err();
            assert!(
                matches!(error, AnswerError::Commit(CommitError::Unknown { .. })),
                "{error}"
            );
        } else {
            world.session.close().unwrap();
        }
        let outcome = tokio::time::timeout(Duration::from_secs(10), turn).await;
        let outcome = outcome.expect("it does not hang").unwrap().unwrap();
        match faulted {
            true => assert!(matches!(outcome.end, TurnEnd::Faulted(_)), "{outcome:?}"),
            false => assert!(matches!(outcome.end, TurnEnd::Failed { .. }), "{outcome:?}"),
        }
        assert_eq!(runs.load(Ordering::SeqCst), 0, "an unknown answer is none");
    }
}

#[tokio::test]
async fn a_question_that_cannot_be_committed_fails_the_turn_and_is_seen_by_nobody() {
    let mut world = world_with(stepwell::store::StoreOptions {
        limits: stepwell::event::Limits {
            record_bytes: 3000,
            ..stepwell::event::Limits::default()
        },
        ..options()
    });
    let policy = |_: &ToolCall| Decision::ask("x".repeat(4000));
    let runs = Arc::new(AtomicUsize::new(0));
    let spec = AgentSpec::new(script([one_call(), says("on")]));
    let agent = spawn(&mut world, spec.tool(counted(&runs)).policy(policy));
    let outcome = agent.run_turn("go").await.unwrap();
    assert!(matches!(outcome.end, TurnEnd::Failed { .. }), "{outcome:?}");
    assert_eq!(world.session.pending_gates(), []);
    assert_eq!(bodies::<GateOpened>(&world.session), []);
    assert!(agent.run_turn("on").await.unwrap().is_done());
}

// ---- tools that ask

/// Asks for a color and gives it back.
fn painter(question: fn() -> Question) -> impl Tool {
    act("paint", move |input: ToolInput| async move {
        ToolOutput::from(input.call.ask(question()).await)
    })
}

fn paint() -> Answer2 {
    calls(&[("1", "paint", b"{}"), ("2", "echo", b"{}")])
}

#[tokio::test]
async fn a_running_tool_asks_the_user() {
    type Asked = (fn() -> Question, Answer, &'static str);
    let questions: [Asked; 3] = [
        (
            || Question::input("which color?").without_timeout(),
            Answer::text("mauve"),
            "mauve",
        ),
        (
            || Question::input("which color?").choice("red").choice("blue"),
            Answer::choose("blue"),
            "blue",
        ),
        (
            || Question::input("which color?").without_timeout(),
            Answer::text(""),
            "[the tool gave no output]",
        ),
    ];
    for (question, answer, text) in questions {
        let mut world = world();
        let spec = AgentSpec::new(script([paint(), says("done")]));
        let agent = spawn(&mut world, spec.tool(painter(question)).tool(echo()));
        let turn = start(&agent);
        let pending = gate_of(&world.session).await;
        assert_eq!(pending.gate.kind, "user_input");
        agent.answer_gate(pending.gate.id, answer).await.unwrap();
        assert!(turn.await.unwrap().unwrap().is_done());
        assert_eq!(results(&world.session)[0], (text.to_owned(), false));
        assert_eq!(world.session.gate_answers(), []);
        assert!(kinds(&world.session).contains(&Kind::UserInputRequested));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_whose_question_is_not_answered_goes_on_and_leaves_no_gate() {
    // By the question's own timeout.
    let mut one = world();
    let spec = AgentSpec::new(script([paint(), says("done")]));
    let ask = || Question::input("which color?");
    let agent = spawn(&mut one, spec.tool(painter(ask)).tool(echo()));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let timed_out = ("nobody answered in time".to_owned(), true);
    assert_eq!(results(&one.session)[0], timed_out);
    assert_eq!(one.session.pending_gates(), []);

    // By the time that a call may take: the gate is closed in the batch of the step.
    let mut two = world();
    let limits = TurnLimits {
        tool_timeout: Some(Duration::from_secs(7)),
        ..TurnLimits::default()
    };
    let spec = AgentSpec::new(script([paint(), says("done")])).limits(limits);
    let ask = || Question::input("which color?").without_timeout();
    let agent = spawn(&mut two, spec.tool(painter(ask)).tool(echo()));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert!(results(&two.session)[0].0.contains("longer than 7s"));
    assert_eq!(two.session.pending_gates(), []);
    let resolved: Vec<GateResolved> = bodies(&two.session);
    assert_eq!(resolved[0].reason, "abandoned");
    let kinds = kinds(&two.session);
    let at = kinds.iter().position(|kind| *kind == Kind::GateResolved);
    assert_eq!(kinds[at.unwrap() + 1], Kind::StepDone);
}

#[tokio::test]
async fn a_tool_by_itself_has_nobody_to_ask() {
    let call = stepwell::runtime::ToolCallContext::new("x", stepwell::content::RawJson::null());
    let asked = call.ask(Question::input("?")).await;
    assert_eq!(asked, Err(stepwell::runtime::AskError::NobodyToAsk));
}

/// What a tool does beside its future asks too late: it gets an error, and no gate is left behind.
#[tokio::test]
async fn who_asks_when_the_step_is_over_is_refused() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let beside = act("beside", move |input: ToolInput| {
        let tell = tell.clone();
        async move {
            tokio::spawn(async move {
                while tell.send(None).is_ok() {
                    let question = Question::input("late?").without_timeout();
                    let asked = input.call.ask(question).await;
                    if asked == Err(stepwell::runtime::AskError::Abandoned) {
                        let _ = tell.send(Some(()));
                        return;
                    }
                }
            });
            tokio::task::yield_now().await;
            ToolOutput::text("done")
        }
    });
    let mut world = world();
    let answers = [calls(&[("1", "beside", b"{}")]), one_call(), says("done")];
    let ok = act("act", |_| async { ToolOutput::text("ran") });
    let spec = AgentSpec::new(script(answers)).tool(beside).tool(ok);
    let agent = spawn(&mut world, spec);
    let turn = start(&agent);
    // A question that came in time is answered or given up with the step.
    let outcome = tokio::time::timeout(Duration::from_secs(10), turn).await;
    assert!(outcome.unwrap().unwrap().unwrap().is_done());
    while told.recv().await.unwrap().is_none() {
        if let Some(pending) = world.session.pending_gates().first() {
            panic!("{pending:?}");
        }
    }
    assert_eq!(world.session.pending_gates(), []);
}

// ---- restarts

struct Restarted {
    session: Session,
    agent: LoopHandle,
    runs: Arc<AtomicUsize>,
}

/// Opens the session again and runs its loop, with a model that calls `answers`.
fn restart(disk: &SimVfs, id: stepwell::identity::SessionId, answers: Vec<Answer2>) -> Restarted {
    let store = open_store(disk, options());
    let (session, _) = store.open_session(id, Mode::Write).unwrap();
    let main = session.loop_by_name("main").unwrap();
    let main = main.unwrap_or_else(|| session.create_loop(LoopSpec::new("main")).unwrap());
    let runs = Arc::new(AtomicUsize::new(0));
    let spec = AgentSpec::new(script(answers)).tool(counted(&runs));
    let spec = spec
        .tool(painter(|| {
            Question::input("which color?").without_timeout()
        }))
        .tool(echo())
        .policy(|call: &ToolCall| match call.tool.as_str() {
            "act" => asks(call),
            _ => Decision::Allow,
        });
    let agent = session.spawn_loop(main, spec).unwrap();
    Restarted {
        session,
        agent,
        runs,
    }
}

/// A kill at every call to the disk from the question to the end of the turn. Afterwards the gate is
/// answered if it waits, and the turn is run again: an answer that was given is used and not asked
/// for again, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_anywhere_in_a_gated_turn_loses_nothing_and_asks_nothing_twice() {
    let mut seen = [0_u32; 3];
    for cut in 0.. {
        let disk = SimVfs::new();
        let store = open_store(&disk, options());
        let session = store
            .create_session(stepwell::store::SessionSpec::new())
            .unwrap();
        let id = session.id();
        drop(session.create_loop(LoopSpec::new("main")).unwrap());
        drop((session, store));
        let first = restart(&disk, id, vec![one_call(), says("done")]);
        disk.crash_after(cut);
        let turn = start(&first.agent);
        let answered = match gate_of_or(&first.session, &turn).await {
            Some(pending) => {
                let answer = Answer::choose(APPROVE);
                let answered = first.agent.answer_gate(pending.gate.id, answer).await;
                answered.is_ok().then_some(pending.gate.id)
            }
            None => None,
        };
        let outcome = tokio::time::timeout(Duration::from_secs(20), turn).await;
        let outcome = outcome.expect("it does not hang").unwrap();
        let done = outcome.as_ref().is_ok_and(TurnOutcome::is_done);
        let crashed = disk.has_crashed();
        first.agent.shutdown().await.unwrap();
        let ran_before = first.runs.load(Ordering::SeqCst);
        drop(first);
        disk.kill();

        let what = format!("cut {cut}, answered {answered:?}, done {done}");
        let answers = vec![one_call(), says("again"), one_call(), says("third")];
        let second = restart(&disk, id, answers);
        let steps = second.session.steps();
        let listed = second.session.gate_answers();
        let waiting = second.session.pending_gates();
        if let Some(gate) = answered {
            assert_eq!(waiting, [], "{what}");
            let kept = listed.iter().any(|answer| answer.resolved.gate_id == gate);
            assert!(kept || steps > 0, "{what}: the answer is lost");
        }
        assert!(ran_before == 0 || answered.is_some() || !listed.is_empty() || steps > 0);
        if let [gate] = &waiting[..] {
            seen[0] += 1;
            let answer = Answer::choose(APPROVE);
            second.session.answer_gate(gate.gate.id, answer).unwrap();
        }
        let recorded = second.session.gate_answers();
        let opened = bodies::<GateOpened>(&second.session).len();
        let turn = start(&second.agent);
        if let [recorded] = &recorded[..] {
            seen[1] += 1;
            // Nobody is asked again, and the use is durable with the step.
            assert!(turn.await.unwrap().unwrap().is_done());
            assert_eq!(
                bodies::<GateOpened>(&second.session).len(),
                opened,
                "{what}"
            );
            let decided: Vec<PermissionDecided> = bodies(&second.session);
            let uses: Vec<GateId> = decided.iter().map(|it| it.gate_id).collect();
            assert_eq!(uses, [recorded.resolved.gate_id], "{what}");
        } else {
            seen[2] += 1;
            let pending = gate_of(&second.session).await;
            let answer = Answer::choose(APPROVE);
            second
                .agent
                .answer_gate(pending.gate.id, answer)
                .await
                .unwrap();
            assert!(turn.await.unwrap().unwrap().is_done());
        }
        assert_eq!(second.runs.load(Ordering::SeqCst), 1, "{what}");
        assert_eq!(second.session.gate_answers(), [], "used once");
        // The third time it is asked for anew.
        let turn = start(&second.agent);
        let pending = gate_of(&second.session).await;
        let answer = Answer::choose(DENY);
        second
            .agent
            .answer_gate(pending.gate.id, answer)
            .await
            .unwrap();
        assert!(turn.await.unwrap().unwrap().is_done());
        assert_eq!(second.runs.load(Ordering::SeqCst), 1, "{what}");
        second.agent.shutdown().await.unwrap();
        if !crashed {
            break;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[tokio::test]
async fn a_recorded_answer_is_for_the_same_call_only_and_for_one_of_two() {
    let disk = SimVfs::new();
    let store = open_store(&disk, options());
    let session = store
        .create_session(stepwell::store::SessionSpec::new())
        .unwrap();
    let id = session.id();
    drop(session.create_loop(LoopSpec::new("main")).unwrap());
    drop((session, store));
    let first = restart(&disk, id, vec![one_call()]);
    let turn = start(&first.agent);
    let asked = gate_of(&first.session).await;
    disk.kill();
    turn.abort();
    drop(first);

    let other = calls(&[("1", "act", b"{\"n\": 1}")]);
    let twice = calls(&[("1", "act", b"{\"n\":1}"), ("2", "act", b"{\"n\":1}")]);
    let answers = vec![
        other,
        says("one"),
        twice.clone(),
        says("two"),
        twice,
        says("three"),
    ];
    let second = restart(&disk, id, answers);
    assert_eq!(second.session.pending_gates(), std::slice::from_ref(&asked));
    let answer = Answer::choose(APPROVE);
    second.session.answer_gate(asked.gate.id, answer).unwrap();
    // Not the same bytes: a person is asked.
    let turn = start(&second.agent);
    let pending = gate_of(&second.session).await;
    let answer = Answer::choose(DENY);
    second
        .agent
        .answer_gate(pending.gate.id, answer)
        .await
        .unwrap();
    assert!(turn.await.unwrap().unwrap().is_done());
    assert_eq!(second.session.gate_answers().len(), 1);
    // Twice the same call: the answer is for the first.
    let turn = start(&second.agent);
    let pending = gate_of(&second.session).await;
    assert_eq!(pending.call().unwrap().call_id, "2");
    let answer = Answer::choose(DENY);
    second
        .agent
        .answer_gate(pending.gate.id, answer)
        .await
        .unwrap();
    assert!(turn.await.unwrap().unwrap().is_done());
    assert_eq!(second.runs.load(Ordering::SeqCst), 1);
    assert_eq!(second.session.gate_answers(), []);
    let errors: Vec<bool> = results(&second.session).iter().map(|it| it.1).collect();
    assert_eq!(errors, [true, false, true]);
    // Within one turn every call is asked about by itself.
    let turn = start(&second.agent);
    for call in ["1", "2"] {
        let pending = gate_of(&second.session).await;
        assert_eq!(pending.call().unwrap().call_id, call);
        let answer = Answer::choose(DENY);
        second
            .agent
            .answer_gate(pending.gate.id, answer)
            .await
            .unwrap();
    }
    assert!(turn.await.unwrap().unwrap().is_done());
}

#[tokio::test]
async fn what_the_user_told_a_tool_before_a_kill_is_told_to_it_again() {
    let disk = SimVfs::new();
    let store = open_store(&disk, options());
    let session = store
        .create_session(stepwell::store::SessionSpec::new())
        .unwrap();
    let id = session.id();
    drop(session.create_loop(LoopSpec::new("main")).unwrap());
    drop((session, store));
    let first = restart(&disk, id, vec![paint()]);
    let turn = start(&first.agent);
    let asked = gate_of(&first.session).await;
    disk.kill();
    turn.abort();
    drop(first);
    let second = restart(&disk, id, vec![paint(), says("done")]);
    let answer = Answer::text("mauve");
    second.session.answer_gate(asked.gate.id, answer).unwrap();
    let outcome = second.agent.run_turn("again").await.unwrap();
    assert!(outcome.is_done());
    assert_eq!(results(&second.session)[0], ("mauve".to_owned(), false));
    assert_eq!(second.session.gate_answers(), []);
    let decided: Vec<PermissionDecided> = bodies(&second.session);
    assert_eq!(decided[0].gate_id, asked.gate.id);
}
