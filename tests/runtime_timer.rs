//! A tokio runtime without a timer, and a loop whose task is lost: what cannot be done is said before
//! anything was done, and nothing is said to be whole that is not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use std::future::pending;
use std::time::Duration;

use runtime_support::watchdog::{ends, patient};
use runtime_support::*;
use stepwell::event::Kind;
use stepwell::runtime::{
    APPROVE, AgentSpec, Decision, InputOutcome, LoopHandle, Model, NoTimer, Question, RunError,
    ShutdownError, ShutdownLimits, SpawnError, Tool, ToolCall, ToolOutput, TurnEnd, TurnLimits,
    shutdown_all,
};
use stepwell::store::{Answer, Session};
use tokio::runtime::{Builder, Runtime};

fn without_timer() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap()
}

fn spawn(session: &Session, agent: AgentSpec) -> LoopHandle {
    let main = session.loop_by_name("main").unwrap().unwrap();
    session.spawn_loop(main, agent).unwrap()
}

fn one_call() -> impl Model + 'static {
    script([calls(&[("1", "act", b"{}")]), says("done")])
}

fn act_at_once() -> impl Tool {
    act("act", |_| async { ToolOutput::text("ran") })
}

fn free(world: World) -> World {
    World {
        main: None,
        ..world
    }
}

#[test]
fn a_shutdown_with_limits_is_refused_and_the_loop_goes_on() {
    ends(|| {
        without_timer().block_on(async {
            let world = free(world());
            let waits = act("act", |_| async {
                pending::<()>().await;
                ToolOutput::text("never")
            });
            let agent = spawn(&world.session, AgentSpec::new(one_call()).tool(waits));
            let first = agent.submit("first").await.unwrap();
            let limits = ShutdownLimits::each(Duration::from_secs(1));
            let refused = agent.shutdown_within(limits).await;
            assert_eq!(refused, Err(ShutdownError::NoTimer(NoTimer)));
            let all = shutdown_all([&agent], limits).await;
            assert_eq!(all, [Err(ShutdownError::NoTimer(NoTimer))]);
            assert!(refused.unwrap_err().to_string().contains("enable_time"));
            // Nothing was done: it runs, and takes more.
            assert!(agent.snapshot().await.unwrap().running);
            let second = agent.submit("second").await.unwrap();
            let report = agent.shutdown().await.unwrap();
            assert!(report.interrupted && report.is_complete());
            let first = first.await.unwrap();
            assert!(matches!(first, InputOutcome::Turn(it) if it.end == TurnEnd::Interrupted));
            assert!(matches!(
                second.await,
                Ok(InputOutcome::Cancelled {
                    recorded: Some(_),
                    ..
                })
            ));
            // Whose limits do not count need no timer.
            assert_eq!(agent.shutdown_within(limits).await, Ok(report));
            assert_eq!(world.session.open_turns(), []);
        });
    });
}

fn asks(_: &ToolCall) -> Decision {
    Decision::ask("may I?")
}

/// No gate is opened that a person could answer in vain; what a person has answered before is used.
#[test]
fn a_question_with_a_timeout_is_not_asked() {
    ends(|| {
        let world = free(world());
        let session = &world.session;
        let spec = || AgentSpec::new(one_call()).tool(act_at_once()).policy(asks);
        without_timer().block_on(async {
            let agent = spawn(session, spec());
            let outcome = agent.run_turn("go").await.unwrap();
            let TurnEnd::Failed { error } = outcome.end else {
                panic!("{outcome:?}");
            };
            assert!(error.message.contains("enable_time"), "{error:?}");
            assert!(outcome.terminal.is_some());
            agent.shutdown().await.unwrap();
        });
        assert!(!kinds(session).contains(&Kind::GateOpened));
        // Asked where there is a timer, interrupted, answered when its turn is gone.
        let runtime = Builder::new_multi_thread().enable_time().build().unwrap();
        let (gate, agent, asking) = runtime.block_on(async {
            let agent = spawn(session, spec());
            let asking = agent.submit("go").await.unwrap();
            patient(async {
                while session.pending_gates().is_empty() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            (session.pending_gates()[0].gate.id, agent, asking)
        });
        // As if the process had died: the turn is neither ended nor goes on.
        drop(runtime);
        drop((agent, asking));
        session.answer_gate(gate, Answer::choose(APPROVE)).unwrap();
        without_timer().block_on(async {
            let agent = spawn(session, spec());
            assert!(agent.run_turn("again").await.unwrap().is_done());
        });
        assert_eq!(session.gate_answers(), []);
    });
}

#[test]
fn a_tool_that_asks_with_a_timeout_is_told() {
    ends(|| {
        without_timer().block_on(async {
            let world = free(world());
            let asks = act("act", |input| async move {
                let asked = input.call.ask(Question::input("what?")).await;
                asked.map_err(|error| error.to_string()).into()
            });
            let agent = spawn(&world.session, AgentSpec::new(one_call()).tool(asks));
            assert!(agent.run_turn("go").await.unwrap().is_done());
            assert!(texts(&world.session)[2].contains("enable_time"));
            assert!(!kinds(&world.session).contains(&Kind::GateOpened));
        });
    });
}

#[test]
fn a_loop_whose_calls_have_a_limit_is_not_spawned() {
    ends(|| {
        let world = free(world());
        let spec = || {
            let limits = TurnLimits {
                tool_timeout: Some(Duration::from_secs(60)),
                ..TurnLimits::default()
            };
            let spec = AgentSpec::new(one_call()).tool(act_at_once());
            spec.limits(limits)
        };
        without_timer().block_on(async {
            let main = world.session.loop_by_name("main").unwrap().unwrap();
            let refused = world.session.spawn_loop(main, spec());
            assert_eq!(refused.unwrap_err(), SpawnError::NoTimer(NoTimer));
        });
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let agent = spawn(&world.session, spec());
            assert!(agent.run_turn("go").await.unwrap().is_done());
        });
    });
}

/// The report said that all was complete, by default.
#[test]
fn a_task_that_is_lost_is_not_reported_as_shut_down() {
    ends(|| {
        let world = free(world());
        let first = Builder::new_multi_thread().enable_all().build().unwrap();
        let waits = act("act", |_| async {
            pending::<()>().await;
            ToolOutput::text("never")
        });
        let agent = first.block_on(async {
            let agent = spawn(&world.session, AgentSpec::new(one_call()).tool(waits));
            let _running = agent.submit("go").await.unwrap();
            assert!(agent.snapshot().await.is_ok());
            agent
        });
        drop(first);
        let second = Builder::new_current_thread().build().unwrap();
        second.block_on(async {
            let limits = ShutdownLimits::each(Duration::from_secs(1));
            assert_eq!(agent.shutdown().await, Err(ShutdownError::TaskLost));
            assert_eq!(
                agent.shutdown_within(limits).await,
                Err(ShutdownError::TaskLost)
            );
            assert_eq!(agent.run_turn("late").await, Err(RunError::Ended));
            let agent = spawn(&world.session, AgentSpec::new(script([says("on")])));
            assert!(agent.run_turn("on").await.unwrap().is_done());
        });
        assert_eq!(world.session.open_turns(), []);
    });
}
