//! Typed tools: prepared in call order before anything is decided, raw input kept apart from what is
//! stored, diagnostics bounded, panics contained.
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
use stepwell::content::{Message, RawJson};
use stepwell::event::Kind;
use stepwell::runtime::{
    AgentSpec, Decision, Effects, Filter, FnTool, StartAt, Tool, ToolCall, ToolCallContext,
    ToolError, ToolOutput, ToolSpec,
};

type Log = Arc<Mutex<Vec<String>>>;

/// Notes what happens to it.
struct Noted(Log);

impl Tool for Noted {
    type Request = (String, u64);

    fn spec(&self) -> ToolSpec {
        ToolSpec::new("noted", "for a test").read_only()
    }

    fn prepare(&self, input: &RawJson) -> Result<(String, u64), ToolError> {
        self.0.lock().unwrap().push(format!("prepare {input}"));
        let fields: std::collections::BTreeMap<String, u64> = serde_json::from_str(input.get())?;
        match fields.into_iter().next() {
            Some((key, _)) if key == "panic" => panic!("in prepare"),
            Some((key, _)) if key == "long" => Err(ToolError::new("ä".repeat(5000))),
            Some(field) => Ok(field),
            None => Err(ToolError::new("one field is needed")),
        }
    }

    async fn run(&self, (key, value): (String, u64), call: ToolCallContext) -> ToolOutput {
        self.0
            .lock()
            .unwrap()
            .push(format!("run {key} {}", call.call_id));
        ToolOutput::text(format!("{key}={value} of {}", call.input))
    }

    fn summary(&self, (key, _): &(String, u64)) -> String {
        format!("takes {key}")
    }
}

#[tokio::test]
async fn all_calls_are_prepared_in_call_order_before_any_is_decided_or_run() {
    let log: Log = Arc::default();
    let noted = log.clone();
    let policy = move |call: &ToolCall| {
        assert_eq!(call.effects, Effects::ReadOnly);
        noted.lock().unwrap().push(format!("decide {}", call.input));
        Decision::Allow
    };
    let answer = calls(&[
        ("1", "noted", b"{\"a\": 1}"),
        ("2", "noted", b"{\"a\": \"text\"}"),
        ("3", "noted", b"{\"panic\":1}"),
        ("4", "missing", b"{}"),
        ("5", "noted", b"{\"long\":1}"),
        ("6", "noted", b"{\"b\":2"),
        ("7", "noted", b"{\"b\":3}"),
    ]);
    let mut world = world();
    let shared = Arc::new(Noted(log.clone()));
    let spec = AgentSpec::new(script([answer, says("done")]))
        .shared_tool(shared)
        .policy(policy);
    let main = world.main.take().unwrap();
    let agent = world.session.spawn_loop(main, spec).unwrap();
    let mut events = agent.subscribe(StartAt::now(), Filter::all());
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let log = log.lock().unwrap().clone();
    let decided = [
        "prepare {\"a\": 1}",
        "prepare {\"a\": \"text\"}",
        "prepare {\"panic\":1}",
        "prepare {\"long\":1}",
        "prepare {\"b\":3}",
        "decide {\"a\": 1}",
        "decide {\"b\":3}",
    ];
    assert_eq!(log[..7], decided);
    assert_eq!(log.len(), 9);
    let history = world.session.history().unwrap();
    let results: Vec<_> = history
        .iter()
        .filter_map(|item| match &*item.message {
            Message::ToolResult(result) => Some((result.is_error, result.to_text())),
            _ => None,
        })
        .collect();
    let expected = [
        (false, "a=1 of {\"a\": 1}"),
        (true, "invalid type: string"),
        (true, "in prepare"),
        (true, "there is no tool"),
        (true, "äää"),
        (true, "not valid JSON"),
        (false, "b=3 of {\"b\":3}"),
    ];
    for ((is_error, text), (error, part)) in results.iter().zip(expected) {
        assert!(text.contains(part) && *is_error == error, "{text}");
    }
    assert_eq!(
        results[4].1.len(),
        1024,
        "what a tool says of its input is bounded"
    );
    // Those that cannot run have no summary.
    let seen = until(&mut events, Kind::StepDone).await;
    let summaries: Vec<String> = seen
        .iter()
        .filter_map(|seen| {
            let started = seen.event().body_as::<stepwell::event::ToolCallStarted>()?;
            Some(started.summary.clone())
        })
        .collect();
    assert_eq!(summaries, ["takes a", "", "", "", "", "", "takes b"]);
}

#[tokio::test]
async fn a_closure_is_a_tool() {
    #[derive(serde::Deserialize)]
    struct Add {
        a: i64,
        b: i64,
    }
    let add = FnTool::new(ToolSpec::new("add", "adds"), |add: Add, _| async move {
        let sum = add.a.checked_add(add.b);
        sum.map(|sum| sum.to_string()).ok_or("too large")
    });
    let answer = calls(&[
        ("1", "add", b"{\"a\":1,\"b\":2}"),
        ("2", "add", b"{\"a\":9223372036854775807,\"b\":1}"),
        ("3", "add", b"{\"a\":1}"),
        ("4", "echo", b"{\"x\":1e400}"),
    ]);
    let mut world = world();
    let spec = AgentSpec::new(script([answer, says("done")]));
    let main = world.main.take().unwrap();
    let agent = world.session.spawn_loop(main, spec.tool(add).tool(echo()));
    assert!(agent.unwrap().run_turn("go").await.unwrap().is_done());
    let texts = texts(&world.session);
    assert_eq!((texts[2].as_str(), texts[3].as_str()), ("3", "too large"));
    assert!(texts[4].contains("missing field `b`"), "{}", texts[4]);
    assert_eq!(texts[5], "{\"x\":1e400}");
}
