//! What others see of a runner: filters, joiners at any moment, metrics; and that what a host
//! brings may panic anywhere, also when it is dropped.
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
use stepwell::event::{Class, ErrorKind, Kind};
use stepwell::metrics::{Measure, Metrics};
use stepwell::runtime::{
    AgentSpec, Filter, HubOptions, LoopHandle, ModelEvent, ModelRequest, ModelStream, StartAt,
    ToolOutput, TurnEnd,
};
use stepwell::store::LoopSpec;
use stepwell::vfs::sim::{FaultKind, PowerLoss};

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

fn rounds(count: usize) -> AgentSpec {
    let mut answers = Vec::new();
    for _ in 0..count {
        answers.push(calls(&[("c1", "echo", b"{}")]));
        answers.push(says("done"));
    }
    AgentSpec::new(script(answers)).tool(echo())
}

// ---- filters

#[tokio::test]
async fn filters_pick_kinds_and_classes() {
    let mut world = world();
    let agent = spawn(&mut world, rounds(2));
    let steps = Filter::all().kinds([Kind::StepDone]);
    let mut steps = agent.subscribe(StartAt::seq(1), steps);
    let mut ends = agent.subscribe(StartAt::seq(1), Filter::all().class(Class::Terminal));
    let own = Filter::of_loop(agent.loop_id()).kinds([Kind::LoopStarted]);
    let mut own = agent.subscribe(StartAt::seq(1), own);
    let mut nothing = agent.subscribe(StartAt::seq(1), Filter::all().kinds([]));
    for _ in 0..2 {
        assert!(agent.run_turn("go").await.unwrap().is_done());
    }
    agent.shutdown().await.unwrap();
    world.session.close().unwrap();
    let mut kinds = Vec::new();
    for events in [&mut steps, &mut ends, &mut own, &mut nothing] {
        let (seen, end) = drain(events).await;
        assert_eq!(end, None);
        let seen = seen.iter().map(|seen| seen.event().kind());
        kinds.push(seen.collect::<Vec<_>>());
    }
    assert_eq!(kinds[0], [Kind::StepDone; 4]);
    assert_eq!(kinds[1], [Kind::TurnDone; 2]);
    assert_eq!(kinds[2], [Kind::LoopStarted]);
    assert_eq!(kinds[3], []);
}

// ---- joiners

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Some hundred watchers that join at any moment, slow and fast, while three loops run on real
/// threads: each sees every committed event once and in order, and the end after the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_joins_at_any_moment_sees_each_committed_event_once_and_in_order() {
    for round in 1..=6_u64 {
        let world = world();
        let hub = world.session.hub_with(HubOptions {
            recent_events: 5,
            recent_bytes: 4000,
            live_queue: 2,
            page: 3,
        });
        let mut turns = Vec::new();
        for name in ["a", "b", "c"] {
            let own = world.session.create_loop_async(LoopSpec::new(name));
            let agent = world.session.spawn_loop(own.await.unwrap(), rounds(10));
            let agent = agent.unwrap();
            turns.push(tokio::spawn(async move {
                for _ in 0..10 {
                    assert!(agent.run_turn("go").await.unwrap().is_done());
                }
                agent.shutdown().await.unwrap();
            }));
        }
        let mut watchers = Vec::new();
        for number in 0..40_u64 {
            let mut seed = (round << 32 | number << 8 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hub = hub.clone();
            watchers.push(tokio::spawn(async move {
                for _ in 0..next(&mut seed) % 200 {
                    tokio::task::yield_now().await;
                }
                let from = match next(&mut seed) % 3 {
                    0 => StartAt::now(),
                    _ => StartAt::seq(1 + next(&mut seed) % 60),
                };
                let mut events = hub.subscribe(from, Filter::all());
                let mut expected = events.next_seq();
                if from == StartAt::now() {
                    assert!(expected <= hub.session().last_seq().next(), "one is missed");
                }
                let pace = next(&mut seed) % 4;
                loop {
                    for _ in 0..pace * (next(&mut seed) % 8) {
                        tokio::task::yield_now().await;
                    }
                    match events.recv().await {
                        Some(Ok(delivery)) => {
                            if let Some(committed) = delivery.committed() {
                                assert_eq!(committed.seq(), expected);
                                expected = expected.next();
                            }
                        }
                        Some(Err(end)) => panic!("{end}"),
                        None => return expected,
                    }
                }
            }));
        }
        for turn in turns {
            turn.await.unwrap();
        }
        let end = world.session.last_seq().next();
        world.session.close().unwrap();
        for watcher in watchers {
            let seen = watcher.await.unwrap();
            // One that asked for what never came has seen nothing.
            assert!(seen >= end, "{seen} {end}");
        }
    }
}

// ---- metrics

#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Vec<Measure>>>);

impl Metrics for Counted {
    fn record(&self, measure: &Measure) {
        self.0.lock().unwrap().push(measure.clone());
    }
}

#[tokio::test]
async fn what_happens_is_measured() {
    let counted = Counted::default();
    let mut world = world_with(options().metrics(counted.clone()));
    counted.0.lock().unwrap().clear();
    let agent = spawn(&mut world, rounds(1));
    let mut slow = world
        .session
        .hub_with(HubOptions::default())
        .subscribe(StartAt::now(), Filter::all());
    let before = world.session.last_seq().get();
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let committed = (world.session.last_seq().get() - before) as usize;
    let all = counted.0.lock().unwrap().clone();
    let (mut commits, mut records, mut groups, mut synced) = (0, 0, 0, 0);
    for measure in &all {
        match measure {
            Measure::Commit {
                session,
                records: count,
                bytes,
            } => {
                assert_eq!(*session, world.session.id());
                assert!(*bytes > 0);
                commits += 1;
                records += count;
            }
            Measure::Group {
                batches,
                records,
                bytes,
                ..
            } => {
                assert!(*bytes > 0 && *batches == 1);
                groups += 1;
                synced += records;
            }
            Measure::Queue { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // TurnStarted; the first step; the last one with the end.
    assert_eq!((commits, records), (3, committed));
    assert_eq!((groups, synced), (3, committed));
    // Live events that find no room.
    for _ in 0..300 {
        let header = stepwell::event::Header::at(stepwell::identity::Coordinates::session(
            world.session.id(),
        ));
        let live = stepwell::runtime::Live::new(header, stepwell::event::SessionActive {});
        agent.hub().emit(live);
    }
    let all = counted.0.lock().unwrap().clone();
    let dropped = all
        .iter()
        .filter(|one| matches!(one, Measure::Dropped { .. }));
    assert_eq!(dropped.count() as u64, slow.dropped());
    assert!(slow.dropped() > 0);
    assert!(ready(&mut slow).await.is_some());
    // A refusal, and a fault.
    let twice = stepwell::store::Draft::new(stepwell::event::TurnInterrupted::default())
        .in_loop(agent.loop_id())
        .in_turn(stepwell::identity::TurnId::new());
    world.session.commit(vec![twice]).unwrap_err();
    world
        .disk
        .fail_nth(is_sync, 0, FaultKind::SyncKept(PowerLoss::DropAll));
    agent.run_turn("never").await.unwrap_err();
    let all = counted.0.lock().unwrap().clone();
    let of = |which: fn(&&Measure) -> bool| all.iter().filter(which).count();
    assert_eq!(of(|one| matches!(one, Measure::Refused { .. })), 1);
    assert_eq!(of(|one| matches!(one, Measure::Fault { .. })), 1);
}

#[tokio::test]
async fn the_depth_of_the_queue_is_measured() {
    let counted = Counted::default();
    let mut world = world_with(options().metrics(counted.clone()));
    let agent = spawn(&mut world, AgentSpec::new(script([])));
    let loop_id = agent.loop_id();
    let mut inputs = Vec::new();
    for text in ["a", "b", "c"] {
        inputs.push(agent.submit(text).await.unwrap());
    }
    for input in inputs {
        let _ = input.await.unwrap();
    }
    let all = counted.0.lock().unwrap().clone();
    let depths = all.iter().filter_map(|measure| match measure {
        Measure::Queue { loop_id: of, depth } => {
            assert_eq!(*of, loop_id);
            Some(*depth)
        }
        _ => None,
    });
    let depths: Vec<usize> = depths.collect();
    assert_eq!(depths.iter().max(), Some(&2), "{depths:?}");
    assert_eq!(depths.last(), Some(&0), "{depths:?}");
}

struct Bad;

impl Metrics for Bad {
    fn record(&self, _: &Measure) {
        std::panic::panic_any(Bomb);
    }
}

#[tokio::test]
async fn metrics_that_panic_harm_nobody() {
    let mut world = world_with(options().metrics(Bad));
    let agent = spawn(&mut world, rounds(1));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert_eq!(world.session.fault(), None);
}

// ---- panics in what a host brings, also in its drop

/// A panic's payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

struct BadStream {
    _bomb: Bomb,
    items: Vec<ModelEvent>,
    throws: bool,
}

impl stepwell::runtime::Stream for BadStream {
    type Item = Result<ModelEvent, stepwell::runtime::ModelError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        if self.throws {
            std::panic::panic_any(Bomb);
        }
        std::task::Poll::Ready(self.items.pop().map(Ok))
    }
}

#[tokio::test]
async fn what_a_panic_throws_may_panic_when_it_is_dropped() {
    for throws in [false, true] {
        let mut world = world();
        let model = move |request: ModelRequest| match request.turn_index {
            1 => ModelStream::new(BadStream {
                _bomb: Bomb,
                items: vec![ModelEvent::text(0, "words")],
                throws,
            }),
            _ => ModelStream::ready(says("on")),
        };
        let agent = spawn(&mut world, AgentSpec::new(model));
        let outcome = agent.run_turn("go").await.unwrap();
        match outcome.end {
            TurnEnd::Failed { error } if throws => assert_eq!(error.kind, ErrorKind::TurnPanic),
            // Its answer was whole before it was dropped.
            TurnEnd::Done { .. } if !throws => {}
            end => panic!("{end:?}"),
        }
        assert!(agent.run_turn("on").await.unwrap().is_done());
        assert_eq!(world.session.open_turns(), []);
    }
}

#[tokio::test]
async fn a_tool_that_panics_in_its_drop_leaves_the_turn_going() {
    let mut world = world();
    let tool = act("echo", |_| {
        let bomb = Bomb;
        async move {
            let _bomb = bomb;
            ToolOutput::text("ok")
        }
    });
    let answers = [calls(&[("c1", "echo", b"{}")]), says("done")];
    let agent = spawn(&mut world, AgentSpec::new(script(answers)).tool(tool));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert!(texts(&world.session)[2].contains("panicked"));
}

/// The model itself panics when its loop has ended: the loop is free, and who waited is answered.
#[tokio::test]
async fn an_agent_that_panics_in_its_drop_leaves_the_loop_free() {
    let mut world = world();
    let bomb = Bomb;
    let model = move |_: ModelRequest| {
        let _kept = &bomb;
        ModelStream::ready(says("ok"))
    };
    let agent = spawn(&mut world, AgentSpec::new(model));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert!(agent.shutdown().await.unwrap().is_complete());
    assert!(world.session.loop_by_name("main").unwrap().is_some());
}
