//! The spans of a runner. Alone in its program: what a dispatcher is told of depends on whether other
//! threads came first.
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use runtime_support::*;
use stepwell::runtime::AgentSpec;

/// A span: name, fields, and the parent.
type Made = (String, String, Option<u64>);

/// Keeps the spans that were made.
#[derive(Default)]
struct Spans {
    next: AtomicU64,
    made: Mutex<HashMap<u64, Made>>,
    entered: Mutex<HashMap<std::thread::ThreadId, Vec<u64>>>,
}

struct Fields<'a>(&'a mut String);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        *self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("stepwell")
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fields = String::new();
        span.record(&mut Fields(&mut fields));
        let entered = self.entered.lock().unwrap();
        let current = entered
            .get(&std::thread::current().id())
            .and_then(|stack| stack.last().copied());
        let parent = match span.parent() {
            Some(parent) => Some(parent.into_u64()),
            None if span.is_contextual() => current,
            None => None,
        };
        let name = span.metadata().name().to_owned();
        self.made.lock().unwrap().insert(id, (name, fields, parent));
        tracing::span::Id::from_u64(id)
    }

    fn record(&self, span: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        let mut made = self.made.lock().unwrap();
        let made = made.get_mut(&span.into_u64()).unwrap();
        values.record(&mut Fields(&mut made.1));
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, span: &tracing::span::Id) {
        let mut entered = self.entered.lock().unwrap();
        let stack = entered.entry(std::thread::current().id()).or_default();
        stack.push(span.into_u64());
    }

    fn exit(&self, _: &tracing::span::Id) {
        let mut entered = self.entered.lock().unwrap();
        entered
            .entry(std::thread::current().id())
            .or_default()
            .pop();
    }
}

#[test]
fn spans_nest_and_carry_ids() {
    let spans = Arc::new(Spans::default());
    let outcome = tracing::subscriber::with_default(spans.clone(), || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world = world();
            let answers = [calls(&[("c1", "echo", b"{}")]), says("done")];
            let spec = AgentSpec::new(script(answers)).tool(echo());
            let main = world.main.take().unwrap();
            let agent = world.session.spawn_loop(main, spec).unwrap();
            let outcome = agent.run_turn("go").await.unwrap();
            (world.session.id(), agent.loop_id(), outcome)
        })
    });
    let (session, loop_id, outcome) = outcome;
    let made = spans.made.lock().unwrap().clone();
    let path = |mut id: u64| {
        let mut path = Vec::new();
        loop {
            let (name, _, parent) = &made[&id];
            path.insert(0, name.as_str());
            match parent {
                Some(parent) => id = *parent,
                None => return path.join("/"),
            }
        }
    };
    let mut paths: Vec<String> = made.keys().map(|id| path(*id)).collect();
    paths.sort();
    assert_eq!(
        paths,
        [
            // That of the loop's creation: blocking, and in no loop.
            "commit",
            "session",
            "session/loop",
            "session/loop/turn",
            "session/loop/turn/commit",
            "session/loop/turn/step",
            "session/loop/turn/step",
            "session/loop/turn/step/commit",
            "session/loop/turn/step/commit",
            "session/loop/turn/step/tool",
        ]
    );
    let fields = |name: &str| {
        let found = made.values().find(|made| made.0 == name).unwrap();
        found.1.clone()
    };
    assert!(fields("session").contains(&session.to_string()));
    assert!(fields("loop").contains(&loop_id.to_string()));
    let turn = fields("turn");
    assert!(turn.contains(&outcome.turn.to_string()), "{turn}");
    assert!(turn.contains("index=1"), "{turn}");
    assert!(fields("step").contains("step="));
    assert!(fields("tool").contains("execution="));
}
