//! Observers and guards: their order, once each, around the durable points; open and closed.
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runtime_support::watchdog::patient;
use runtime_support::*;
use stepwell::event::{ErrorKind, Kind, Limits};
use stepwell::journal::Seq;
use stepwell::runtime::{
    APPROVE, AgentSpec, DENY, Decision, Denial, Filter, HookCall, HookObserver, HookResult,
    HookWork, LoopHandle, ModelRequest, ModelStream, Question, RunError, StartAt, ToolCall,
    ToolOutput, ToolSpec, TurnEnd,
};
use stepwell::store::{Answer, Session, StoreOptions};

/// What was seen, by whom, and the last sequence at that moment.
#[derive(Debug, Clone)]
struct Seen {
    who: &'static str,
    begins: bool,
    call: HookCall,
    result: Option<HookResult>,
    last: Seq,
}

type Log = Arc<Mutex<Vec<Seen>>>;

struct Watcher {
    who: &'static str,
    log: Log,
    session: Session,
}

impl Watcher {
    fn note(&self, call: HookCall, result: Option<HookResult>) {
        self.log.lock().unwrap().push(Seen {
            who: self.who,
            begins: result.is_none(),
            call,
            result,
            last: self.session.last_seq(),
        });
    }
}

impl HookObserver for Watcher {
    fn begin(&self, call: HookCall) {
        self.note(call, None);
    }

    fn finish(&self, call: HookCall, result: HookResult) {
        self.note(call, Some(result));
    }
}

fn name(work: &HookWork) -> String {
    match work {
        HookWork::Turn { .. } => "turn".into(),
        HookWork::Step { index } => format!("step {index}"),
        HookWork::Inference { messages } => format!("inference {}", messages.len()),
        HookWork::ToolCall { tool, .. } => format!("tool {tool}"),
        HookWork::GateWait { .. } => "gate".into(),
        HookWork::JournalAppend { kinds } => format!("append {kinds:?}"),
        other => format!("{other:?}"),
    }
}

fn watcher(world: &World, log: &Log, who: &'static str) -> Watcher {
    Watcher {
        who,
        log: log.clone(),
        session: world.session.clone(),
    }
}

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

/// Each operation that somebody began, they finished once, and those who began last first.
fn paired(log: &Log) -> Vec<Seen> {
    let log = log.lock().unwrap().clone();
    let mut open: HashMap<u64, Vec<&'static str>> = HashMap::new();
    let mut over: HashMap<u64, usize> = HashMap::new();
    for seen in &log {
        let number = seen.call.number;
        if seen.begins {
            assert!(
                !over.contains_key(&number),
                "begun behind its end: {seen:?}"
            );
            open.entry(number).or_default().push(seen.who);
        } else {
            let last = open.get_mut(&number).and_then(Vec::pop);
            assert_eq!(last, Some(seen.who), "{seen:?}");
            *over.entry(number).or_default() += 1;
        }
    }
    assert!(open.values().all(Vec::is_empty), "not finished: {open:?}");
    log
}

fn one_round() -> impl stepwell::runtime::Model + 'static {
    script([calls(&[("c1", "echo", b"{}")]), says("done")])
}

#[tokio::test]
async fn operations_nest_around_the_durable_points() {
    let mut world = world();
    let log = Log::default();
    let spec = AgentSpec::new(one_round()).tool(echo());
    let spec = spec.observer(watcher(&world, &log, "a"));
    let agent = spawn(&mut world, spec);
    let before = world.session.last_seq();
    let outcome = agent.run_turn("go").await.unwrap();
    let log = paired(&log);
    let names: Vec<String> = log
        .iter()
        .map(|seen| {
            let side = if seen.begins { '+' } else { '-' };
            format!("{side}{}", name(&seen.call.work))
        })
        .collect();
    assert_eq!(
        names,
        [
            "+turn",
            "+append [TurnStarted]",
            "-append [TurnStarted]",
            "+step 0",
            "+inference 1",
            "-inference 1",
            "+tool echo",
            "-tool echo",
            "+append [StepDone]",
            "-append [StepDone]",
            "-step 0",
            "+step 1",
            "+inference 3",
            "-inference 3",
            "+append [StepDone, TurnDone]",
            "-append [StepDone, TurnDone]",
            "-step 1",
            "-turn",
        ]
    );
    // The turn's hook begins before its first record and ends behind its terminal.
    assert_eq!(log[0].last, before);
    assert_eq!(Some(log.last().unwrap().last), outcome.terminal);
    // A step's hook ends when its commit was answered.
    assert_eq!(log[10].last, outcome.steps[0]);
    let appended = |at: usize| log[at].result.clone().unwrap();
    let last = outcome.steps[0];
    assert_eq!(appended(9), HookResult::Appended { last });
    let last = outcome.terminal.unwrap();
    assert_eq!(appended(15), HookResult::Appended { last });
    assert_eq!(log[10].result, Some(HookResult::Done));
}

#[tokio::test]
async fn a_step_ends_before_what_waits_is_folded() {
    let mut world = world();
    let log = Log::default();
    let slow = Arc::new(tokio::sync::Notify::new());
    let wait = slow.clone();
    let tool = act("echo", move |_| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            ToolOutput::text("ok")
        }
    });
    let spec = AgentSpec::new(one_round()).tool(tool);
    let spec = spec.observer(watcher(&world, &log, "a"));
    let agent = spawn(&mut world, spec);
    let first = agent.submit("go").await.unwrap();
    let second = agent.submit("and").await.unwrap();
    while agent.snapshot().await.unwrap().queued == 0 {
        tokio::task::yield_now().await;
    }
    slow.notify_one();
    first.await.unwrap();
    second.await.unwrap();
    let log = paired(&log);
    let at = |begins, what: &str| {
        let mut seen = log.iter();
        seen.position(|seen| seen.begins == begins && name(&seen.call.work) == what)
            .unwrap_or_else(|| panic!("{what}"))
    };
    assert!(at(false, "step 0") < at(true, "append [TurnFoldedInto]"));
    assert!(at(false, "append [TurnFoldedInto]") < at(true, "step 1"));
}

/// Cancelled, failed, panicked, dropped: whoever began has finished.
#[tokio::test]
async fn whoever_began_finishes_once_whatever_happens() {
    type Make = fn() -> AgentSpec;
    let pends: Make = || AgentSpec::new(|_: ModelRequest| ModelStream::new(Pends));
    let panics: Make = || AgentSpec::new(|_: ModelRequest| -> ModelStream { panic!("model") });
    let breaks: Make = || AgentSpec::new(script([vec![breaks()]]));
    let tool_panics: Make = || {
        let tool = act("echo", |_| async { panic!("tool") });
        AgentSpec::new(one_round()).tool(tool)
    };
    let policy_panics: Make = || {
        let policy = |_: &ToolCall| -> Decision { panic!("policy") };
        AgentSpec::new(one_round()).tool(echo()).policy(policy)
    };
    let tool_pends: Make = || {
        let tool = act("echo", |_| std::future::pending());
        AgentSpec::new(one_round()).tool(tool)
    };
    for (interrupts, spec) in [
        (true, pends),
        (false, panics),
        (false, breaks),
        (false, tool_panics),
        (false, policy_panics),
        (true, tool_pends),
    ] {
        let mut world = world();
        let log = Log::default();
        let spec = spec()
            .observer(watcher(&world, &log, "a"))
            .observer(watcher(&world, &log, "b"));
        let agent = spawn(&mut world, spec);
        let mut live = agent.subscribe(StartAt::now(), Filter::all());
        let turn = agent.submit("go").await.unwrap();
        if interrupts {
            until(&mut live, Kind::TurnStarted).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            agent.interrupt().await.unwrap();
        }
        turn.await.unwrap();
        let log = paired(&log);
        let last = log.last().unwrap();
        assert_eq!((last.who, name(&last.call.work)), ("a", "turn".into()));
        assert_eq!(log.iter().filter(|seen| seen.begins).count() * 2, log.len());
        if interrupts {
            assert_eq!(last.result, Some(HookResult::Cancelled));
        }
    }
}

struct Pends;

impl stepwell::runtime::Stream for Pends {
    type Item = Result<stepwell::runtime::ModelEvent, stepwell::runtime::ModelError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

#[test]
fn a_runtime_that_ends_finishes_what_was_begun() {
    let mut world = world();
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let spec = AgentSpec::new(|_: ModelRequest| ModelStream::new(Pends));
        let spec = spec.observer(watcher(&world, &log, "a"));
        let agent = spawn(&mut world, spec);
        let _turn = agent.submit("go").await.unwrap();
        while log.lock().unwrap().len() < 5 {
            tokio::task::yield_now().await;
        }
    });
    drop(runtime);
    let log = paired(&log);
    let discarded = log
        .iter()
        .filter(|seen| seen.result == Some(HookResult::Discarded))
        .map(|seen| name(&seen.call.work));
    assert_eq!(
        discarded.collect::<Vec<_>>(),
        ["inference 1", "step 0", "turn"]
    );
}

// ---- gates and intents

/// One call of a tool with intents, about which a person is asked.
fn gated(timeout: Option<Duration>) -> AgentSpec {
    let tool = act_as(ToolSpec::new("echo", "for a test").intent(), |_| async {
        ToolOutput::text("ran")
    });
    let policy = move |_: &ToolCall| {
        let question = Question::permission("may I?");
        Decision::Ask(match timeout {
            Some(after) => question.timeout(after, DENY),
            None => question.without_timeout(),
        })
    };
    AgentSpec::new(one_round()).tool(tool).policy(policy)
}

fn places(session: &Session, wanted: Kind) -> Vec<Seq> {
    let events = session.replay(Seq::new(1)).map(|event| event.unwrap());
    let found = events.filter(|event| event.event().kind() == wanted);
    found.map(|event| event.seq()).collect()
}

/// From the first append of a gate on, in order, up to the end of the call.
fn around_the_gate(log: &[Seen]) -> Vec<(String, Option<HookResult>, Seq)> {
    let names = log.iter().map(|seen| {
        let side = if seen.begins { '+' } else { '-' };
        let name = format!("{side}{}", name(&seen.call.work));
        (name, seen.result.clone(), seen.last)
    });
    let from = names.skip_while(|(name, ..)| !name.contains("GateOpened"));
    let upto = from.take_while(|(name, ..)| name != "-tool echo");
    upto.collect()
}

fn only_names(seen: &[(String, Option<HookResult>, Seq)]) -> Vec<&str> {
    seen.iter().map(|(name, ..)| name.as_str()).collect()
}

/// The hook of a gate's waiting begins when the question is durable, and ends with the answer; the
/// appends of the question and of what is about to run are around it. Guards are not asked.
#[tokio::test]
async fn the_hook_of_a_gate_covers_the_waiting_and_nothing_else() {
    let mut world = world();
    let log = Log::default();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    let guard = move |call: HookCall| {
        notes.lock().unwrap().push(name(&call.work));
        Ok(())
    };
    let spec = gated(None)
        .observer(watcher(&world, &log, "a"))
        .guard(guard);
    let agent = spawn(&mut world, spec);
    let turn = agent.submit("go").await.unwrap();
    let waits = |log: &Log| {
        let log = log.lock().unwrap();
        let last = log.last().map(|seen| (seen.begins, name(&seen.call.work)));
        last == Some((true, "gate".into()))
    };
    patient(async {
        while !waits(&log) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let pending = world.session.pending_gates().remove(0);
    let begun = log.lock().unwrap().last().unwrap().call.clone();
    let gate = pending.gate.id;
    assert_eq!(begun.work, HookWork::GateWait { gate });
    assert_eq!(begun.at.step, pending.step);
    let answer = Answer::choose(APPROVE);
    let answered = agent.answer_gate(gate, answer).await.unwrap().seq();
    patient(turn).await.unwrap();
    let log = paired(&log);
    let seen = around_the_gate(&log);
    assert_eq!(
        only_names(&seen),
        [
            "+append [GateOpened, PermissionRequested]",
            "-append [GateOpened, PermissionRequested]",
            "+gate",
            "-gate",
            "+append [ToolIntent]",
            "-append [ToolIntent]",
        ]
    );
    let opened = places(&world.session, Kind::PermissionRequested)[0];
    assert!(seen[0].2 < opened, "before the submission");
    assert_eq!(seen[1].1, Some(HookResult::Appended { last: opened }));
    assert_eq!(seen[2].2, opened, "durable, and not answered");
    assert_eq!((&seen[3].1, seen[3].2), (&Some(HookResult::Done), answered));
    let intent = places(&world.session, Kind::ToolIntent)[0];
    assert_eq!((seen[4].2, seen[5].2), (answered, intent));
    assert_eq!(seen[5].1, Some(HookResult::Appended { last: intent }));
    assert_eq!(
        *asked.lock().unwrap(),
        ["turn", "inference 1", "tool echo", "inference 3"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_hook_of_a_gate_ends_with_its_timeout_whose_append_is_seen() {
    let mut world = world();
    let log = Log::default();
    let spec = gated(Some(Duration::from_secs(7)));
    let spec = spec.observer(watcher(&world, &log, "a"));
    let agent = spawn(&mut world, spec);
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let log = paired(&log);
    let seen = around_the_gate(&log);
    assert_eq!(
        only_names(&seen)[2..],
        [
            "+gate",
            "+append [GateResolved]",
            "-append [GateResolved]",
            "-gate"
        ]
    );
    let last = places(&world.session, Kind::GateResolved)[0];
    assert!(seen[3].2 < last);
    assert_eq!(seen[4].1, Some(HookResult::Appended { last }));
    assert_eq!((&seen[5].1, seen[5].2), (&Some(HookResult::Done), last));
    // What was denied has no intent.
    assert_eq!(places(&world.session, Kind::ToolIntent), []);
}

#[tokio::test]
async fn the_hook_of_a_gate_ends_with_the_interruption_and_with_the_session() {
    for interrupts in [true, false] {
        let mut world = world();
        let log = Log::default();
        let spec = gated(None).observer(watcher(&world, &log, "a"));
        let agent = spawn(&mut world, spec);
        let turn = agent.submit("go").await.unwrap();
        let begun = |log: &Log| {
            let log = log.lock().unwrap();
            log.iter().any(|seen| name(&seen.call.work) == "gate")
        };
        patient(async {
            while !begun(&log) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let before = world.session.last_seq();
        match interrupts {
            true => assert!(agent.interrupt().await.unwrap()),
            false => world.session.close().unwrap(),
        }
        patient(turn).await.unwrap();
        let log = paired(&log);
        let over = log.iter().filter(|seen| !seen.begins);
        let over: Vec<_> = over
            .filter(|seen| name(&seen.call.work) == "gate")
            .collect();
        assert_eq!(over.len(), 1);
        match &over[0].result {
            Some(HookResult::Cancelled) => assert!(interrupts),
            Some(HookResult::Failed { error }) => assert!(!interrupts, "{error}"),
            other => panic!("{other:?}"),
        }
        // Before the turn's end was written.
        assert_eq!(over[0].last, before);
    }
}

/// A question that is not durable is not waited for.
#[tokio::test]
async fn a_question_that_is_refused_has_no_waiting() {
    let mut world = world_with(StoreOptions {
        limits: Limits {
            record_bytes: 3000,
            ..Limits::default()
        },
        ..options()
    });
    let log = Log::default();
    let policy = |_: &ToolCall| Decision::ask("x".repeat(4000));
    let spec = AgentSpec::new(one_round()).tool(echo()).policy(policy);
    let spec = spec.observer(watcher(&world, &log, "a"));
    let agent = spawn(&mut world, spec);
    let outcome = agent.run_turn("go").await.unwrap();
    assert!(matches!(outcome.end, TurnEnd::Failed { .. }), "{outcome:?}");
    let log = paired(&log);
    let seen = around_the_gate(&log);
    assert_eq!(
        only_names(&seen),
        [
            "+append [GateOpened, PermissionRequested]",
            "-append [GateOpened, PermissionRequested]",
        ]
    );
    assert!(matches!(seen[1].1, Some(HookResult::Failed { .. })));
}

struct Bad {
    begins: bool,
    finished: Arc<AtomicUsize>,
}

impl HookObserver for Bad {
    fn begin(&self, _: HookCall) {
        assert!(!self.begins, "on purpose");
    }

    fn finish(&self, _: HookCall, _: HookResult) {
        self.finished.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    }
}

#[tokio::test]
async fn an_observer_that_panics_harms_nobody() {
    let mut world = world();
    let log = Log::default();
    let (never, always) = (Arc::default(), Arc::default());
    let bad = |begins, finished: &Arc<AtomicUsize>| Bad {
        begins,
        finished: finished.clone(),
    };
    let spec = AgentSpec::new(one_round()).tool(echo());
    let spec = spec
        .observer(watcher(&world, &log, "a"))
        .observer(bad(true, &never))
        .observer(bad(false, &always))
        .observer(watcher(&world, &log, "b"));
    let agent = spawn(&mut world, spec);
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let log = paired(&log);
    assert_eq!(log.len(), 2 * 18);
    // One whose beginning panicked has not begun, and is not told of the end.
    assert_eq!(never.load(Ordering::SeqCst), 0);
    assert_eq!(always.load(Ordering::SeqCst), 9);
}

/// Refuses what its name says.
fn guard(what: &'static str) -> impl Fn(HookCall) -> Result<(), Denial> {
    move |call| match name(&call.work).starts_with(what) {
        true => Err(Denial::new("policy.no", format!("no {what}"))),
        false => Ok(()),
    }
}

#[tokio::test]
async fn a_denied_turn_does_not_begin() {
    let mut world = world();
    let log = Log::default();
    let spec = AgentSpec::new(script([says("never")])).guard(guard("turn"));
    let spec = spec.observer(watcher(&world, &log, "a"));
    let agent = spawn(&mut world, spec);
    let Err(RunError::Denied(denial)) = agent.run_turn("go").await else {
        panic!("it began");
    };
    assert_eq!((denial.code(), denial.reason()), ("policy.no", "no turn"));
    let kinds = kinds(&world.session);
    assert_eq!(kinds[2..], [Kind::TurnRejected]);
    assert_eq!(world.session.history().unwrap(), []);
    let log = paired(&log);
    assert_eq!(log[1].result, Some(HookResult::Denied(denial)));
    // The loop goes on.
    assert!(matches!(
        agent.run_turn("again").await,
        Err(RunError::Denied(_))
    ));
}

#[tokio::test]
async fn a_denied_inference_fails_the_turn_and_asks_no_model() {
    let mut world = world();
    let model = |_: ModelRequest| -> ModelStream { panic!("it was asked") };
    let agent = spawn(&mut world, AgentSpec::new(model).guard(guard("inference")));
    let outcome = agent.run_turn("go").await.unwrap();
    let TurnEnd::Failed { error } = outcome.end else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert!(error.message.contains("policy.no"), "{error:?}");
    assert_eq!(outcome.steps, []);
}

#[tokio::test]
async fn a_denied_call_gets_an_error_result_and_asks_no_policy() {
    let mut world = world();
    let tool = act("echo", |_| async { panic!("it ran") });
    let policy = |_: &ToolCall| -> Decision { panic!("it was asked") };
    let spec = AgentSpec::new(one_round()).tool(tool).policy(policy);
    let agent = spawn(&mut world, spec.guard(guard("tool")));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let texts = texts(&world.session);
    assert_eq!(texts[2], "denied (policy.no): no tool");
}

#[tokio::test]
async fn a_guard_that_panics_refuses_and_the_first_denial_counts() {
    let mut world = world();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    let first = move |_: HookCall| {
        notes.lock().unwrap().push("first");
        Ok(())
    };
    let panics = |_: HookCall| -> Result<(), Denial> { panic!("guard") };
    let notes = asked.clone();
    let last = move |_: HookCall| {
        notes.lock().unwrap().push("last");
        Ok(())
    };
    let spec = AgentSpec::new(script([says("never")]));
    let agent = spawn(&mut world, spec.guard(first).guard(panics).guard(last));
    let Err(RunError::Denied(denial)) = agent.run_turn("go").await else {
        panic!("it began");
    };
    assert_eq!((denial.code(), denial.reason()), (Denial::PANIC, "guard"));
    assert_eq!(*asked.lock().unwrap(), ["first"]);
    // Guards are asked about turns, inferences and tool calls only.
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    let all = move |call: HookCall| {
        notes.lock().unwrap().push(name(&call.work));
        Ok(())
    };
    let mut world = runtime_support::world();
    let agent = spawn(
        &mut world,
        AgentSpec::new(one_round()).tool(echo()).guard(all),
    );
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert_eq!(
        *asked.lock().unwrap(),
        ["turn", "inference 1", "tool echo", "inference 3"]
    );
}
