//! Intents: what tools that opted in are about to do is durable before they do it; what was cut off
//! is listed until somebody settles it; who did not opt in pays nothing.
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
use stepwell::event::{Kind, ToolIntent, ToolIntentSettled};
use stepwell::identity::ToolExecutionId;
use stepwell::journal::Seq;
use stepwell::runtime::{AgentSpec, Decision, Tool, ToolCall, ToolOutput, ToolSpec, TurnEnd};
use stepwell::store::{Mode, Session, SettleError};
use stepwell::vfs::sim::{FaultKind, Op, SimVfs};

fn spec(name: &str) -> ToolSpec {
    ToolSpec::new(name, "for a test").intent()
}

/// A tool with intents that notes what the log says when it runs.
fn writes(session: &Session, seen: &Arc<Mutex<Vec<Vec<String>>>>) -> impl Tool + use<> {
    let (session, seen) = (session.clone(), seen.clone());
    act_as(spec("write"), move |_| {
        seen.lock().unwrap().push(intents(&session));
        async { ToolOutput::text("written") }
    })
}

fn intents(session: &Session) -> Vec<String> {
    let events = session.replay(Seq::new(1));
    let intents = events.filter_map(|event| {
        let event = event.unwrap();
        let intent = event.event().body_as::<ToolIntent>()?;
        Some(intent.call_id.clone())
    });
    intents.collect()
}

fn four() -> Answer {
    calls(&[
        ("1", "write", b"{\"a\":1}"),
        ("2", "echo", b"{}"),
        ("3", "write", b"[]"),
        ("4", "write", b"{\"denied\":1}"),
        ("5", "write", b"{\"b\":2}"),
    ])
}

fn policy(call: &ToolCall) -> Decision {
    match call.input.get().contains("denied") {
        true => Decision::deny("by script"),
        false => Decision::Allow,
    }
}

#[tokio::test]
async fn all_intents_of_a_step_are_durable_in_one_batch_before_any_call_runs() {
    let mut world = world();
    let seen = Arc::default();
    let tool = writes(&world.session, &seen);
    let spec = AgentSpec::new(script([four(), says("done")]))
        .tool(tool)
        .tool(echo())
        .policy(policy);
    let main = world.main.take().unwrap();
    let agent = world.session.spawn_loop(main, spec).unwrap();
    world.disk.clear_trace();
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let expected = vec!["1".to_owned(), "5".to_owned()];
    assert_eq!(*seen.lock().unwrap(), [expected.clone(), expected]);
    // TurnStarted, the intents, the step, the last step.
    assert_eq!(world.disk.sync_count(""), 4);
    assert_eq!(world.session.unknown_effects(), [], "the step settled them");
    let kinds = kinds(&world.session);
    let at = kinds.iter().position(|kind| *kind == Kind::ToolIntent);
    let expected = [
        Kind::ToolIntent,
        Kind::ToolIntent,
        Kind::PermissionDecided,
        Kind::StepDone,
    ];
    assert_eq!(kinds[at.unwrap()..][..4], expected);
}

/// Bytes written and syncs made by a turn of five calls.
async fn cost(spec: ToolSpec) -> (u64, u64) {
    let disk = SimVfs::new();
    let store = open_store(&disk, options());
    let created = stepwell::store::SessionSpec::new();
    let session = store.create_session(created).unwrap();
    let main = session
        .create_loop(stepwell::store::LoopSpec::new("main"))
        .unwrap();
    let written = Arc::new(Mutex::new((0, 0)));
    let count = written.clone();
    let tool = act_as(spec, |_| async { ToolOutput::text("written") });
    let agent = AgentSpec::new(script([four(), says("done")]))
        .tool(tool)
        .tool(echo());
    let agent = session.spawn_loop(main, agent).unwrap();
    disk.set_hook(move |op| {
        let mut count = count.lock().unwrap();
        match op {
            Op::Write { length, .. } => count.0 += *length as u64,
            op if op.is_sync() => count.1 += 1,
            _ => {}
        }
    });
    assert!(agent.run_turn("go").await.unwrap().is_done());
    agent.shutdown().await.unwrap();
    disk.clear_hook();
    *written.lock().unwrap()
}

#[tokio::test]
async fn without_the_opt_in_not_a_byte_and_not_a_sync_more() {
    let plain = cost(ToolSpec::new("write", "for a test")).await;
    let reads = cost(ToolSpec::new("write", "for a test").read_only()).await;
    let opted = cost(spec("write")).await;
    assert_eq!(plain, reads);
    // A turn's beginning, its step, its last step with its end: three commits, three syncs.
    assert_eq!(plain.1, 3);
    assert_eq!(opted.1, 4);
    assert!(opted.0 > plain.0 + 200, "{plain:?} {opted:?}");
}

#[tokio::test]
async fn intents_that_cannot_be_committed_stop_the_step_before_anything_runs() {
    for fault in [false, true] {
        let mut world = world();
        let seen = Arc::default();
        let tool = writes(&world.session, &seen);
        let spec = AgentSpec::new(script([four(), says("done")])).tool(tool);
        let main = world.main.take().unwrap();
        let agent = world.session.spawn_loop(main, spec.tool(echo())).unwrap();
        if fault {
            // The first sync is that of TurnStarted.
            world.disk.fail_nth(is_sync, 1, FaultKind::Eio);
        } else {
            world
                .disk
                .fail_nth(|op| matches!(op, Op::Write { .. }), 1, FaultKind::Enospc);
        }
        let outcome = agent.run_turn("go").await.unwrap();
        let failed = matches!(outcome.end, TurnEnd::Failed { .. } | TurnEnd::Faulted(_));
        assert!(failed, "{outcome:?}");
        assert!(seen.lock().unwrap().is_empty(), "{outcome:?}");
        assert_eq!(world.session.steps(), 0);
    }
}

#[tokio::test]
async fn a_cancelled_call_is_listed_until_it_is_settled() {
    let mut world = world();
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let hangs = act_as(spec("write"), move |_| {
        begun.send(()).unwrap();
        std::future::pending()
    });
    let answer = calls(&[("7", "write", "{\"ä\":\"x\"}".as_bytes())]);
    let main = world.main.take().unwrap();
    let spec = AgentSpec::new(script([answer, says("next")])).tool(hangs);
    let agent = world.session.spawn_loop(main, spec).unwrap();
    let running = agent.clone();
    let turn = tokio::spawn(async move { running.run_turn("go").await });
    begins.recv().await.unwrap();
    assert_eq!(world.session.unknown_effects(), [], "it still runs");
    agent.interrupt().await.unwrap();
    let outcome = turn.await.unwrap().unwrap();
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    let unknown = world.session.unknown_effects();
    assert_eq!(unknown.len(), 1);
    let effect = &unknown[0];
    assert_eq!(
        (effect.turn, effect.loop_id),
        (outcome.turn, agent.loop_id())
    );
    assert_eq!(
        (effect.tool.as_str(), effect.call_id.as_str()),
        ("write", "7")
    );
    assert_eq!(effect.input_preview, "{\"ä\":\"x\"}");
    // It stays over turns and restarts, and nothing runs it again.
    assert!(agent.run_turn("on").await.unwrap().is_done());
    assert_eq!(world.session.unknown_effects(), unknown);
    let nobody = ToolExecutionId::new();
    let session = &world.session;
    let missing = session.settle_effect(nobody, "").unwrap_err();
    assert_eq!(missing, SettleError::NotUnknown(nobody));
    let long = session.settle_effect(effect.execution, "x".repeat(5000));
    assert!(matches!(long, Err(SettleError::TooLong { got: 5000, .. })));
    assert_eq!(agent.unknown_effects(), unknown);
    let missing = agent.settle_effect(nobody, "").await.unwrap_err();
    assert_eq!(missing, SettleError::NotUnknown(nobody));
    let settled = agent.settle_effect(effect.execution, "it was not written");
    assert_eq!(
        settled.await.unwrap().event().body.note,
        "it was not written"
    );
    assert_eq!(session.unknown_effects(), []);
    assert_eq!(agent.unknown_effects(), []);
    let twice = session.settle_effect(effect.execution, "again");
    assert_eq!(
        twice.unwrap_err(),
        SettleError::NotUnknown(effect.execution)
    );
}

#[test]
fn of_settlements_that_race_one_is_taken() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut world = world();
    let fails = act_as(spec("write"), |_| async { ToolOutput::text("x") });
    let limits = stepwell::runtime::TurnLimits {
        result_bytes: None,
        ..stepwell::runtime::TurnLimits::default()
    };
    // The step cannot be committed: its call has run, and nobody can know from the log.
    let answer = calls(&[("1", "write", b"{}"), ("2", "large", b"{}")]);
    let large = act("large", |_| async {
        ToolOutput::text("y".repeat(17 << 20))
    });
    let main = world.main.take().unwrap();
    let spec = AgentSpec::new(script([answer])).limits(limits);
    let outcome = runtime.block_on(async {
        let agent = world.session.spawn_loop(main, spec.tool(fails).tool(large));
        agent.unwrap().run_turn("go").await.unwrap()
    });
    assert!(matches!(outcome.end, TurnEnd::Failed { .. }), "{outcome:?}");
    let unknown = world.session.unknown_effects();
    assert_eq!(unknown.len(), 1);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (session, execution) = (world.session.clone(), unknown[0].execution);
            std::thread::spawn(move || session.settle_effect(execution, "seen").is_ok())
        })
        .collect();
    let taken = threads.into_iter().map(|it| it.join().unwrap());
    assert_eq!(taken.filter(|taken| *taken).count(), 1);
    let settled = world.session.replay(Seq::new(1));
    let settled = settled.filter(|it| {
        let event = it.as_ref().unwrap().event();
        event.body_as::<ToolIntentSettled>().is_some()
    });
    assert_eq!(settled.count(), 1);
}

/// A kill at every call to the disk of a turn with intents: a call that has run is settled by its
/// step or listed, never neither; and nothing runs by itself afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_anywhere_lists_every_call_that_may_have_run() {
    let mut seen = [0_u32; 3];
    for cut in 0.. {
        let disk = SimVfs::new();
        let store = open_store(&disk, options());
        let created = stepwell::store::SessionSpec::new();
        let session = store.create_session(created).unwrap();
        let id = session.id();
        let main = session
            .create_loop(stepwell::store::LoopSpec::new("main"))
            .unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let note = ran.clone();
        let tool = act_as(spec("write"), move |input: ToolInput| {
            note.lock().unwrap().push(input.execution);
            async { ToolOutput::text("written") }
        });
        let spec = AgentSpec::new(script([four(), says("done")])).tool(tool);
        let agent = session.spawn_loop(main, spec.tool(echo())).unwrap();
        disk.crash_after(cut);
        let _ = agent.run_turn("go").await;
        let crashed = disk.has_crashed();
        agent.shutdown().await.unwrap();
        drop((agent, session, store));
        disk.kill();

        let store = open_store(&disk, options());
        let (session, report) = store.open_session(id, Mode::Write).unwrap();
        assert_eq!(report.unknown_effects, session.unknown_effects());
        let listed: Vec<_> = report
            .unknown_effects
            .iter()
            .map(|effect| effect.execution)
            .collect();
        let ran = ran.lock().unwrap().clone();
        let committed = session.steps() > 0;
        for execution in &ran {
            assert!(committed || listed.contains(execution), "cut {cut}");
        }
        assert!(!committed || listed.is_empty(), "cut {cut}");
        match (ran.is_empty(), listed.is_empty()) {
            (true, true) => seen[0] += 1,
            (_, false) => seen[1] += 1,
            (false, true) => seen[2] += 1,
        }
        let told = report
            .to_string()
            .contains("nobody knows what 3 tool calls did");
        assert_eq!(told, !listed.is_empty(), "{report}");
        for execution in listed {
            session.settle_effect(execution, "looked").unwrap();
        }
        assert_eq!(session.unknown_effects(), []);
        drop(session);
        let (session, report) = store.open_session(id, Mode::Write).unwrap();
        assert_eq!(report.unknown_effects, []);
        drop(session);
        assert!(store.verify(id).unwrap().is_intact());
        if !crashed {
            break;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
