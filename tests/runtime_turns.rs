//! How turns end: the table of rollback causes, tool calls, limits, panics.
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

use runtime_support::*;
use stepwell::content::{Message, Usage};
use stepwell::event::{Effect, ErrorKind, Kind, PermissionDecided};
use stepwell::runtime::{
    AgentSpec, DENY, Decision, Filter, LoopHandle, Model, ModelEvent, ModelRequest, ModelStream,
    Question, StartAt, ToolCall, ToolOutput, TurnEnd, TurnLimits, TurnOutcome,
};

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

fn failed(outcome: &TurnOutcome) -> ErrorKind {
    match &outcome.end {
        TurnEnd::Failed { error } => error.kind,
        other => panic!("{other:?}"),
    }
}

/// One step with a tool is committed, then `second` happens: the first step stays, the second is
/// gone with all that had come of it, and the terminal is the only one.
async fn rolled_back(second: impl Model + 'static, limits: TurnLimits) -> TurnOutcome {
    let mut world = world();
    let first = script([calls(&[("c1", "echo", b"{}")])]);
    let model = move |request: ModelRequest| match request.step_index {
        0 => first.stream(request),
        _ => second.stream(request),
    };
    let agent = spawn(
        &mut world,
        AgentSpec::new(model).tool(echo()).limits(limits),
    );
    let outcome = agent.run_turn("go").await.unwrap();
    assert_eq!(outcome.steps.len(), 1);
    let kinds = kinds(&world.session);
    assert_eq!(kinds[2..4], [Kind::TurnStarted, Kind::StepDone]);
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    assert!(kinds[4].ends_turn());
    assert_eq!(outcome.terminal, Some(world.session.last_seq()));
    assert_eq!(texts(&world.session), ["go", "", "{}"]);
    assert_eq!(world.session.open_turns(), []);
    // The next turn finds the loop in order.
    let history = agent.snapshot().await.unwrap().history;
    assert_eq!(history.len(), 3);
    outcome
}

#[tokio::test]
async fn a_provider_failure_discards_the_step_and_its_text() {
    let mut partial = says("half of an ans");
    partial.push(breaks());
    let outcome = rolled_back(script([partial]), TurnLimits::default()).await;
    assert_eq!(failed(&outcome), ErrorKind::Unknown);
    let outcome = rolled_back(script([vec![breaks()]]), TurnLimits::default()).await;
    assert_eq!(failed(&outcome), ErrorKind::Unknown);
}

#[tokio::test]
async fn an_empty_answer_fails_the_turn() {
    for empty in [
        vec![],
        says(""),
        vec![Ok(ModelEvent::Usage(Usage::default()))],
    ] {
        let outcome = rolled_back(script([empty]), TurnLimits::default()).await;
        assert_eq!(failed(&outcome), ErrorKind::EmptyResponse);
    }
}

#[tokio::test]
async fn the_limits_fail_the_turn_before_the_batch_runs() {
    let one = TurnLimits {
        iterations: 1,
        ..TurnLimits::default()
    };
    let outcome = rolled_back(script([calls(&[("c1", "echo", b"{}")])]), one).await;
    assert_eq!(failed(&outcome), ErrorKind::ToolLimit);
    let three = TurnLimits {
        calls: 3,
        ..TurnLimits::default()
    };
    let many = calls(&[
        ("a", "echo", b"{}"),
        ("b", "echo", b"{}"),
        ("c", "echo", b"{}"),
    ]);
    let outcome = rolled_back(script([many]), three).await;
    assert_eq!(failed(&outcome), ErrorKind::ToolLimit);
}

#[tokio::test]
async fn a_panic_of_the_model_fails_the_turn_and_nothing_else() {
    let at_once = |_: ModelRequest| -> ModelStream { panic!("at once") };
    let outcome = rolled_back(at_once, TurnLimits::default()).await;
    assert_eq!(failed(&outcome), ErrorKind::TurnPanic);
    let on_the_way = |_: ModelRequest| {
        let mut items = 0;
        ModelStream::ready(std::iter::from_fn(move || {
            items += 1;
            assert!(items < 3, "on the way");
            Some(Ok(ModelEvent::text(0, "words")))
        }))
    };
    let outcome = rolled_back(on_the_way, TurnLimits::default()).await;
    assert_eq!(failed(&outcome), ErrorKind::TurnPanic);
    let TurnEnd::Failed { error } = outcome.end else {
        unreachable!()
    };
    assert!(error.message.contains("on the way"), "{error:?}");
}

#[tokio::test]
async fn usage_that_overflows_fails_the_turn() {
    let spent = |output_tokens| {
        let usage = Usage {
            output_tokens,
            ..Usage::default()
        };
        Ok(ModelEvent::Usage(usage))
    };
    let mut world = world();
    let mut first = calls(&[("c1", "echo", b"{}")]);
    first.push(spent(u64::MAX));
    let mut second = says("one too many");
    second.push(spent(1));
    let agent = AgentSpec::new(script([first, second])).tool(echo());
    let outcome = spawn(&mut world, agent).run_turn("go").await.unwrap();
    assert_eq!(failed(&outcome), ErrorKind::Unknown);
    assert_eq!(world.session.steps(), 1);
}

#[tokio::test]
async fn an_answer_that_is_too_large_fails_the_turn() {
    let limits = TurnLimits {
        reply_bytes: 1000,
        ..TurnLimits::default()
    };
    let endless = |_: ModelRequest| {
        ModelStream::ready(std::iter::repeat_with(|| Ok(ModelEvent::text(0, "more"))))
    };
    let outcome = rolled_back(endless, limits).await;
    assert_eq!(failed(&outcome), ErrorKind::Unknown);
}

#[tokio::test]
async fn calls_that_cannot_be_told_apart_fail_the_turn_before_they_run() {
    for ids in [["", "b"], ["same", "same"]] {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = ran.clone();
        let tool = act("count", move |_: ToolInput| -> ToolFuture<'static> {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { ToolOutput::text("ran") })
        });
        let mut world = world();
        let answer = calls(&[(ids[0], "count", b"{}"), (ids[1], "count", b"{}")]);
        let agent = spawn(&mut world, AgentSpec::new(script([answer])).tool(tool));
        let outcome = agent.run_turn("go").await.unwrap();
        assert_eq!(failed(&outcome), ErrorKind::NotCommitted);
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        assert_eq!(world.session.steps(), 0);
    }
}

#[tokio::test]
async fn malformed_input_is_an_error_result_and_the_turn_goes_on() {
    // (what the model wrote, what is stored)
    let inputs: &[(&[u8], &str)] = &[
        (b"{\"a\":\"b", "{}"),
        (b"", "{}"),
        (b" \n\t ", "{}"),
        (b"{\"a\":1}}", "{}"),
        (b"\xff", "{}"),
        (b"[]", "[]"),
        (b"1", "1"),
        (b"null", "null"),
        (b"\"s\"", "\"s\""),
    ];
    let ran = Arc::new(Mutex::new(Vec::new()));
    let seen = ran.clone();
    let tool = act("act", move |input: ToolInput| -> ToolFuture<'static> {
        seen.lock().unwrap().push(input.json.get().to_owned());
        Box::pin(async { ToolOutput::text("ran") })
    });
    let ids: Vec<String> = (0..inputs.len()).map(|at| format!("c{at}")).collect();
    let mut batch: Vec<(&str, &str, &[u8])> = Vec::new();
    for (id, (input, _)) in ids.iter().zip(inputs) {
        batch.push((id, "act", input));
    }
    let exact = b" { \"b\" : 1e400,\"a\":\"\\ud83d\" } ";
    batch.push(("good", "act", exact));
    let mut world = world();
    let model = script([calls(&batch), says("I see")]);
    let agent = spawn(&mut world, AgentSpec::new(model).tool(tool));
    let outcome = agent.run_turn("go").await.unwrap();
    assert_eq!(outcome.text().as_deref(), Some("I see"));
    let trimmed = std::str::from_utf8(exact).unwrap().trim();
    assert_eq!(*ran.lock().unwrap(), [trimmed]);

    let history = world.session.history().unwrap();
    let Message::Assistant(assistant) = &*history[1].message else {
        panic!("{history:?}");
    };
    for (call, (_, stored)) in assistant.tool_uses().zip(inputs) {
        assert_eq!(call.input.get(), *stored);
    }
    assert_eq!(assistant.tool_uses().last().unwrap().input.get(), trimmed);
    for (at, item) in history[2..2 + batch.len()].iter().enumerate() {
        let Message::ToolResult(result) = &*item.message else {
            panic!("{item:?}");
        };
        assert_eq!(result.tool_use_id, batch[at].0);
        assert_eq!(result.is_error, at < inputs.len(), "{result:?}");
        assert!(!result.to_text().is_empty());
    }
}

#[tokio::test]
async fn what_goes_wrong_with_a_call_is_its_result() {
    let fails = act("fails", |_| async {
        ToolOutput::from(Err::<String, _>("no such file"))
    });
    let panics = act("panics", |_| async { panic!("the tool's own fault") });
    let early = act("early", |_| -> ToolFuture<'static> {
        panic!("before it began")
    });
    let silent = act("silent", |_| async { ToolOutput::text("") });
    let answer = calls(&[
        ("1", "fails", b"{}"),
        ("2", "panics", b"{}"),
        ("3", "early", b"{}"),
        ("4", "missing", b"{}"),
        ("5", "echo", b"{\"secret\":1}"),
        ("6", "echo", b"{\"question\":1}"),
        ("7", "silent", b"{}"),
        ("8", "echo", b"{\"fine\":1}"),
    ]);
    let policy = |call: &ToolCall| match call.input.get() {
        text if text.contains("secret") => Decision::deny("it is a secret"),
        text if text.contains("question") => {
            let soon = Duration::from_millis(1);
            Decision::Ask(Question::permission("may I?").timeout(soon, DENY))
        }
        _ => Decision::Allow,
    };
    let mut world = world();
    let spec = AgentSpec::new(script([answer, says("on we go")]))
        .tool(fails)
        .tool(panics)
        .tool(early)
        .tool(silent)
        .tool(echo())
        .policy(policy);
    let agent = spawn(&mut world, spec);
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    let outcome = agent.run_turn("go").await.unwrap();
    assert!(outcome.is_done(), "{outcome:?}");
    let history = world.session.history().unwrap();
    let results: Vec<(String, bool)> = history[2..10]
        .iter()
        .map(|item| match &*item.message {
            Message::ToolResult(result) => (result.to_text(), result.is_error),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        ("no such file", true),
        ("the tool's own fault", true),
        ("before it began", true),
        ("no tool \"missing\"", true),
        ("it is a secret", true),
        ("nobody allowed it in time", true),
        ("no output", false),
        ("{\"fine\":1}", false),
    ];
    for ((text, is_error), (part, error)) in results.iter().zip(expected) {
        assert!(text.contains(part), "{text}");
        assert_eq!(*is_error, error, "{text}");
    }

    // The denials are durable, in the batch of their step and before it.
    let seen = until(&mut events, Kind::TurnDone).await;
    let denials: Vec<&PermissionDecided> = seen
        .iter()
        .filter_map(|seen| seen.committed()?.event().body_as::<PermissionDecided>())
        .collect();
    assert_eq!(denials.len(), 1);
    assert!(denials.iter().all(|denial| denial.effect == Effect::Deny));
    assert_eq!(denials[0].reason, "it is a secret");

    // Every call has begun before any has ended, and each ends once.
    let of = |kind| {
        let places = seen.iter().enumerate();
        let places = places.filter(move |(_, seen)| seen.event().kind() == kind);
        places.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let (started, completed) = (of(Kind::ToolCallStarted), of(Kind::ToolCallCompleted));
    assert_eq!((started.len(), completed.len()), (8, 8));
    assert!(started.last() < completed.first());
    assert!(completed.last().unwrap() < &of(Kind::StepDone)[0]);
}

#[tokio::test]
async fn results_stand_in_call_order_and_no_more_run_than_may() {
    // The first eight go on when all of them run; of the others each even one ends behind the next,
    // so that they end out of order.
    const CALLS: usize = 20;
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let begun: Arc<Vec<_>> = Arc::new((0..CALLS).map(|_| tokio::sync::Semaphore::new(0)).collect());
    let eight = Arc::new(tokio::sync::Barrier::new(8));
    let (now, top) = (running.clone(), most.clone());
    let tool = act("act", move |input: ToolInput| -> ToolFuture<'static> {
        let (running, most) = (now.clone(), top.clone());
        let (begun, eight) = (begun.clone(), eight.clone());
        Box::pin(async move {
            let at: usize = input.call_id.parse().unwrap();
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            begun[at].add_permits(1);
            if at < 8 {
                eight.wait().await;
            } else if at.is_multiple_of(2) {
                let _permit = begun[at + 1].acquire().await.unwrap();
            }
            running.fetch_sub(1, Ordering::SeqCst);
            ToolOutput::text(format!("result {at}"))
        })
    });
    let ids: Vec<String> = (0..CALLS).map(|at| at.to_string()).collect();
    let batch: Vec<(&str, &str, &[u8])> = ids
        .iter()
        .map(|id| (id.as_str(), "act", &b"{}"[..]))
        .collect();
    let mut world = world();
    let spec = AgentSpec::new(script([calls(&batch), says("done")])).tool(tool);
    let agent = spawn(&mut world, spec);
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let texts = texts(&world.session);
    let expected: Vec<String> = (0..CALLS).map(|at| format!("result {at}")).collect();
    assert_eq!(texts[2..2 + CALLS], expected);
    assert_eq!(most.load(Ordering::SeqCst), 8);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_an_error_result() {
    let hangs = act("hangs", |_: ToolInput| -> ToolFuture<'static> {
        Box::pin(std::future::pending())
    });
    let limits = TurnLimits {
        tool_timeout: Some(Duration::from_secs(60)),
        ..TurnLimits::default()
    };
    let answer = calls(&[("1", "hangs", b"{}"), ("2", "echo", b"{}")]);
    let mut world = world();
    let model = script([answer, says("done")]);
    let spec = AgentSpec::new(model)
        .tool(hangs)
        .tool(echo())
        .limits(limits);
    let agent = spawn(&mut world, spec);
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert!(texts(&world.session)[2].contains("longer than 60s"));
}

#[tokio::test]
async fn a_long_result_is_shaped_to_the_limit() {
    let limits = TurnLimits {
        result_bytes: Some(500),
        ..TurnLimits::default()
    };
    let long = act("long", |_| async { ToolOutput::text("ä".repeat(100_000)) });
    let mut world = world();
    let model = script([calls(&[("1", "long", b"{}")]), says("done")]);
    let spec = AgentSpec::new(model).tool(long).limits(limits);
    assert!(
        spawn(&mut world, spec)
            .run_turn("go")
            .await
            .unwrap()
            .is_done()
    );
    let text = &texts(&world.session)[2];
    assert!(
        text.len() <= 500 && text.contains("of 200000 bytes"),
        "{text}"
    );
}

#[tokio::test]
async fn a_delta_is_shown_before_the_next_is_asked_for() {
    let mut world = world();
    let (sender, stream) = ModelStream::channel(1);
    let stream = Mutex::new(Some(stream));
    let model = move |_: ModelRequest| stream.lock().unwrap().take().unwrap();
    let agent = spawn(&mut world, AgentSpec::new(model));
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    let turn = tokio::spawn(async move { agent.run_turn("go").await });
    for text in ["one", " two", " three"] {
        assert!(sender.send(Ok(ModelEvent::text(0, text))).await);
        let seen = until(&mut events, Kind::TokenDelta).await;
        assert_eq!(seen.last().unwrap().seq().get(), 0);
    }
    sender.finish().await;
    let outcome = turn.await.unwrap().unwrap();
    assert_eq!(outcome.text().as_deref(), Some("one two three"));
}

/// A provider's task that returned early or panicked drops its sender: what had come is half an
/// answer, and half an answer is not stored.
#[tokio::test]
async fn an_answer_whose_sender_is_dropped_is_discarded() {
    let mut world = world();
    let model = |_: ModelRequest| {
        let (sender, stream) = ModelStream::channel(1);
        tokio::spawn(async move {
            sender
                .send(Ok(ModelEvent::text(0, "The answer is NOT")))
                .await;
            panic!("the connection broke");
        });
        stream
    };
    let agent = spawn(&mut world, AgentSpec::new(model));
    let outcome = agent.run_turn("go").await.unwrap();
    assert!(matches!(outcome.end, TurnEnd::Failed { .. }), "{outcome:?}");
    assert_eq!(texts(&world.session), ["go"]);
}
