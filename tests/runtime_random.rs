//! Random runs: live history equals what the log restores (P4), and no crash loses or halves a step
//! that was acknowledged (P1, P3, P5).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use proptest::prelude::*;
use runtime_support::*;
use stepwell::content::{Message, Usage};
use stepwell::event::{Body, Kind};
use stepwell::identity::SessionId;
use stepwell::runtime::{
    AgentSpec, Decision, Filter, LoopHandle, ModelEvent, ModelRequest, ModelStream, StartAt,
    ToolCall, ToolOutput, TurnEnd, TurnLimits,
};
use stepwell::store::{Committed, HistoryItem, LoopSpec, Mode, Observer, SessionSpec, Store};
use stepwell::vfs::sim::{PowerLoss, SimVfs};

/// Where long bodies stand in files of their own.
fn world() -> World {
    world_with(stepwell::store::StoreOptions {
        blob_threshold: 800,
        ..options()
    })
}

#[derive(Debug, Clone)]
enum Reply {
    Says(String),
    Calls(Vec<(u8, Vec<u8>)>),
    Breaks(String),
    Panics,
    Empty,
}

fn reply() -> impl Strategy<Value = Reply> {
    let input = prop_oneof![
        Just(b"{}".to_vec()),
        Just(b"{\"b\":1e400, \"a\":\"\\ud83d\"}".to_vec()),
        Just(b"{\"a\":\"b".to_vec()),
        Just(b"[]".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    prop_oneof![
        3 => "\\PC{0,200}".prop_map(Reply::Says),
        1 => "[a-z]{3000}".prop_map(Reply::Says),
        6 => proptest::collection::vec((0..5_u8, input), 1..6).prop_map(Reply::Calls),
        1 => "\\PC{0,20}".prop_map(Reply::Breaks),
        1 => Just(Reply::Panics),
        1 => Just(Reply::Empty),
    ]
}

impl Reply {
    fn stream(&self) -> ModelStream {
        let usage = Ok(ModelEvent::Usage(Usage {
            output_tokens: 7,
            ..Usage::default()
        }));
        let items = match self {
            Reply::Says(text) => [says(text), vec![usage]].concat(),
            Reply::Calls(list) => {
                let tools = ["echo", "panics", "missing", "denied", "long"];
                let ids: Vec<String> = (0..list.len()).map(|at| format!("c{at}")).collect();
                let list = ids.iter().zip(list);
                let list: Vec<_> = list
                    .map(|(id, (tool, input))| (&**id, tools[usize::from(*tool)], &**input))
                    .collect();
                calls(&list)
            }
            Reply::Breaks(text) => [says(text), vec![breaks()]].concat(),
            Reply::Panics => panic!("by script"),
            Reply::Empty => vec![],
        };
        ModelStream::ready(items)
    }
}

fn agent(replies: Vec<Reply>) -> AgentSpec {
    let replies = std::sync::Mutex::new(replies.into_iter());
    let model = move |_: ModelRequest| {
        let reply = replies
            .lock()
            .unwrap_or_else(|held| held.into_inner())
            .next();
        reply.unwrap_or(Reply::Says("the end".into())).stream()
    };
    let long = act("long", |_| async { ToolOutput::text("l".repeat(5000)) });
    let panics = act("panics", |_| async { panic!("by script") });
    let denied = act("denied", |_| async { unreachable!("it was denied") });
    let limits = TurnLimits {
        iterations: 4,
        calls: 12,
        result_bytes: Some(2000),
        ..TurnLimits::default()
    };
    let policy = |call: &ToolCall| match call.tool.as_str() {
        "denied" => Decision::deny("by script"),
        _ => Decision::Allow,
    };
    AgentSpec::new(model)
        .tool(echo())
        .tool(long)
        .tool(panics)
        .tool(denied)
        .policy(policy)
        .limits(limits)
}

fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let text = panic.payload().downcast_ref::<&str>();
            if text != Some(&"by script") {
                before(panic);
            }
        }));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn live_history_is_what_the_log_restores(
        turns in proptest::collection::vec(proptest::collection::vec(reply(), 1..6), 1..6)
    ) {
        quiet_panics();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut world = world();
            let id = world.session.id();
            for replies in turns {
                let main = match world.main.take() {
                    Some(main) => main,
                    None => world.session.loop_by_name("main").unwrap().unwrap(),
                };
                let agent = world.session.spawn_loop(main, agent(replies)).unwrap();
                let mut events = agent.subscribe(StartAt::now(), Filter::committed());
                let outcome = agent.run_turn("go on").await.unwrap();
                let kind = match &outcome.end {
                    TurnEnd::Done { .. } => Kind::TurnDone,
                    TurnEnd::Failed { .. } => Kind::TurnFailed,
                    other => panic!("{other:?}"),
                };
                // What was published is what was acknowledged, and it ends with one terminal.
                let seen = until(&mut events, kind).await;
                let steps = seen.iter().filter(|seen| step(seen).is_some());
                let steps: Vec<_> = steps.map(|seen| seen.seq()).collect();
                prop_assert_eq!(&steps, &outcome.steps);
                prop_assert_eq!(seen.iter().filter(|seen| seen.event().kind().ends_turn()).count(), 1);
                agent.shutdown().await.unwrap();
                let live = world.session.history().unwrap();
                prop_assert_eq!(&restored(&world.disk, id), &live);
                let at = world.session.history_at(world.session.last_seq()).unwrap();
                prop_assert_eq!(&at, &live);
                whole(&live);
            }
            let live = world.session.history().unwrap();
            world.session.close().unwrap();
            let (session, report) = world.store.open_session(id, Mode::Write).unwrap();
            prop_assert_eq!(session.history().unwrap(), live);
            prop_assert_eq!(report.open_turns.len(), 0);
            Ok(())
        })?;
    }
}

/// Every call has its result, in order, in the same record.
fn whole(history: &[HistoryItem]) {
    let mut items = history.iter().peekable();
    while let Some(item) = items.next() {
        if let Message::Assistant(message) = &*item.message {
            for call in message.tool_uses() {
                let next = items.next().expect("a result for each call");
                assert_eq!(next.seq, item.seq);
                let Message::ToolResult(result) = &*next.message else {
                    panic!("{next:?}");
                };
                assert_eq!(result.tool_use_id, call.id);
            }
        } else {
            assert!(matches!(&*item.message, Message::User(_)), "{item:?}");
        }
    }
}

/// The messages of the steps, as they were committed.
#[derive(Default)]
struct Steps(std::sync::Mutex<Vec<HistoryItem>>);

impl Observer for Steps {
    fn committed(&self, batch: &[Committed]) {
        let mut told = self.0.lock().unwrap();
        for committed in batch {
            let at = committed.header.coordinates;
            let Body::StepDone(step) = &committed.event().body else {
                continue;
            };
            told.extend(step.messages.iter().map(|message| HistoryItem {
                seq: committed.seq(),
                loop_id: at.loop_id,
                turn: at.turn,
                step: at.step,
                message: message.clone().into(),
            }));
        }
    }

    fn faulted(&self, _fault: &stepwell::journal::Fault) {}
}

/// Two turns of two steps each; gives what was acknowledged, as far as the disk let it come.
async fn run(disk: &SimVfs, id: SessionId) -> Vec<HistoryItem> {
    let mut acknowledged = Vec::new();
    let Ok(store) = Store::on(std::sync::Arc::new(disk.clone()), "/store", options()) else {
        return acknowledged;
    };
    let Ok(session) = store.create_session(SessionSpec::new().id(id)) else {
        return acknowledged;
    };
    let Ok(main) = session.create_loop_async(LoopSpec::new("main")).await else {
        return acknowledged;
    };
    let steps = std::sync::Arc::new(Steps::default());
    let observer: std::sync::Arc<dyn Observer> = steps.clone();
    session.observe(&observer);
    let first = script([
        calls(&[("a", "echo", b"{}"), ("b", "long", b"{}")]),
        says(&"x".repeat(4000)),
        calls(&[("c", "long", b"{}"), ("d", "long", b"{}")]),
        says(&"y".repeat(9000)),
    ]);
    let spec = agent(Vec::new()).model(first);
    let agent: LoopHandle = session.spawn_loop(main, spec).unwrap();
    for turn in ["one", "two"] {
        let Ok(outcome) = agent.run_turn(turn).await else {
            break;
        };
        // The disk may have crashed since: what was committed was told when it was.
        let told = steps.0.lock().unwrap();
        let steps = told.iter().filter(|item| outcome.steps.contains(&item.seq));
        acknowledged.extend(steps.cloned());
    }
    agent.shutdown().await.unwrap();
    acknowledged
}

#[test]
fn no_crash_loses_or_halves_an_acknowledged_step() {
    let id = SessionId::from_bytes([7; 16]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut crashes = 0;
    for calls in 0.. {
        let disk = SimVfs::new();
        disk.crash_after(calls);
        let acknowledged = runtime.block_on(run(&disk, id));
        let finished = !disk.has_crashed();
        let images = [None, Some(PowerLoss::DropAll), Some(PowerLoss::KeepAll)];
        let seeded = (0..4).map(|seed| Some(PowerLoss::Seeded(seed)));
        for image in images.into_iter().chain(seeded) {
            let after = disk.snapshot();
            match image {
                None => after.kill(),
                Some(loss) => after.power_loss(loss),
            }
            let store = open_store(&after, options());
            let Ok((session, _)) = store.open_session(id, Mode::Write) else {
                assert!(acknowledged.is_empty(), "lost after {calls} calls");
                continue;
            };
            let history = session.history().unwrap();
            for item in &acknowledged {
                assert!(history.contains(item), "lost after {calls} calls: {item:?}");
            }
            whole(&history);
            assert_eq!(session.open_turns(), []);
        }
        if finished {
            assert_eq!(acknowledged.len(), 8);
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 20, "{crashes}");
}
