//! What a host brings panics when it is called and again when it is dropped, alone and beside others:
//! a turn ends, or a call, never the process. (A failure here is an abort of the test binary.)
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use runtime_support::watchdog::patient;
use runtime_support::*;
use stepwell::content::RawJson;
use stepwell::event::ErrorKind;
use stepwell::metrics::{Measure, Metrics};
use stepwell::runtime::{
    AgentSpec, Decision, Denial, FnTool, HookCall, HookGuard, HookObserver, InputOutcome,
    LoopHandle, Model, ModelError, ModelEvent, ModelRequest, ModelStream, Policy, Question, Stream,
    Tool, ToolCall, ToolCallContext, ToolError, ToolOutput, ToolSpec, TurnEnd, TurnLimits,
};
use stepwell::store::{Committed, Observer, Session};

static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Panics whenever it is dropped, also while another panic unwinds.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::SeqCst);
        panic!("the drop");
    }
}

fn spawn(world: &mut World, agent: AgentSpec) -> LoopHandle {
    let main = world.main.take().unwrap();
    world.session.spawn_loop(main, agent).unwrap()
}

struct BadStream {
    throws: bool,
    items: Vec<ModelEvent>,
    _bomb: Bomb,
}

impl Stream for BadStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.throws {
            panic!("the poll");
        }
        Poll::Ready(self.items.pop().map(Ok))
    }
}

#[tokio::test]
async fn a_stream_that_panics_in_its_poll_and_in_its_drop_fails_its_turn() {
    let mut world = world();
    let model = |request: ModelRequest| match request.turn_index {
        1 => ModelStream::new(BadStream {
            throws: true,
            items: Vec::new(),
            _bomb: Bomb,
        }),
        _ => ModelStream::ready(says("on")),
    };
    let agent = spawn(&mut world, AgentSpec::new(model));
    let outcome = agent.run_turn("go").await.unwrap();
    let TurnEnd::Failed { error } = outcome.end else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.kind, ErrorKind::TurnPanic);
    assert_eq!(error.message, "panic: the poll");
    assert!(outcome.terminal.is_some());
    assert!(agent.run_turn("on").await.unwrap().is_done());
    assert!(agent.shutdown().await.unwrap().is_complete());
}

/// The answer was whole: what its stream does in its drop changes nothing.
#[tokio::test]
async fn a_stream_that_panics_in_its_drop_only_has_answered() {
    let mut world = world();
    let model = |_: ModelRequest| {
        ModelStream::new(BadStream {
            throws: false,
            items: vec![ModelEvent::text(0, "words")],
            _bomb: Bomb,
        })
    };
    let agent = spawn(&mut world, AgentSpec::new(model));
    let outcome = agent.run_turn("go").await.unwrap();
    assert_eq!(outcome.text().as_deref(), Some("words"));
}

/// A future of its own making, which panics as it is told.
struct BadFuture {
    polls: usize,
    _bombs: Bomb,
}

impl Future for BadFuture {
    type Output = String;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<String> {
        if self.polls == 0 {
            panic!("the poll");
        }
        self.polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A tool whose future is no async block: it stands in the frames of the runner.
struct BadTool {
    spec: &'static str,
    summary: bool,
}

impl Tool for BadTool {
    type Request = Bomb;

    fn spec(&self) -> ToolSpec {
        ToolSpec::new(self.spec, "for a test")
    }

    fn prepare(&self, _: &RawJson) -> Result<Bomb, ToolError> {
        Ok(Bomb)
    }

    fn summary(&self, _: &Bomb) -> String {
        match self.summary {
            true => panic!("the summary"),
            false => String::new(),
        }
    }

    #[allow(
        clippy::manual_async_fn,
        reason = "the future itself is what is tested"
    )]
    fn run(&self, request: Bomb, _: ToolCallContext) -> impl Future<Output = ToolOutput> + Send {
        std::mem::forget(request);
        BadOutput(BadFuture {
            polls: 1,
            _bombs: Bomb,
        })
    }
}

struct BadOutput(BadFuture);

impl Future for BadOutput {
    type Output = ToolOutput;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ToolOutput> {
        Pin::new(&mut self.0).poll(context).map(ToolOutput::text)
    }
}

#[tokio::test]
async fn a_tool_that_panics_in_its_poll_and_in_its_drop_has_an_error_result() {
    for timeout in [None, Some(Duration::from_secs(60))] {
        let mut world = world();
        let answers = [
            calls(&[
                ("1", "own", b"{}"),
                ("2", "closure", b"{}"),
                ("3", "summary", b"{}"),
            ]),
            says("done"),
        ];
        let closure = |_: RawJson, _: ToolCallContext| BadFuture {
            polls: 1,
            _bombs: Bomb,
        };
        let bad = |spec, summary| BadTool { spec, summary };
        let spec = AgentSpec::new(script(answers))
            .tool(bad("own", false))
            .tool(bad("summary", true))
            .tool(FnTool::new(ToolSpec::new("closure", "for a test"), closure))
            .limits(TurnLimits {
                tool_timeout: timeout,
                ..TurnLimits::default()
            });
        let agent = spawn(&mut world, spec);
        let outcome = agent.run_turn("go").await.unwrap();
        assert_eq!(outcome.text().as_deref(), Some("done"));
        let texts = texts(&world.session);
        assert_eq!(texts[2], "the tool panicked: the poll");
        assert_eq!(texts[3], "the tool panicked: the poll");
        assert_eq!(texts[4], "the tool panicked before it ran: the summary");
    }
}

/// An error of a tool that panics while it is shown, and when it is dropped then.
#[tokio::test]
async fn an_error_that_cannot_be_shown_is_an_error_result() {
    struct BadError(#[allow(dead_code, reason = "dropped")] Bomb);
    impl std::fmt::Display for BadError {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("the words");
        }
    }
    let mut world = world();
    let answers = [calls(&[("1", "bad", b"{}")]), says("done")];
    let bad = |_: RawJson, _: ToolCallContext| async { Err::<String, _>(BadError(Bomb)) };
    let bad = FnTool::new(ToolSpec::new("bad", "for a test"), bad);
    let agent = spawn(&mut world, AgentSpec::new(script(answers)).tool(bad));
    assert!(agent.run_turn("go").await.unwrap().is_done());
    assert_eq!(texts(&world.session)[2], "the tool panicked: the words");
}

fn asks(_: &ToolCall) -> Decision {
    Decision::Ask(Question::permission("may I?").without_timeout())
}

async fn asked(session: &Session) {
    patient(async {
        while session.pending_gates().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Calls that were prepared and wait for a permission are dropped with their turn.
#[tokio::test]
async fn prepared_calls_that_panic_in_their_drop_leave_a_turn_interrupted() {
    for count in [1, 2, 3] {
        let mut world = world();
        let all = [
            ("1", "bad", b"{}".as_slice()),
            ("2", "bad", b"{}"),
            ("3", "bad", b"{}"),
        ];
        let tool = BadTool {
            spec: "bad",
            summary: false,
        };
        let spec = AgentSpec::new(script([calls(&all[..count])]));
        let agent = spawn(&mut world, spec.tool(tool).policy(asks));
        let submitted = agent.submit("go").await.unwrap();
        asked(&world.session).await;
        assert!(agent.interrupt().await.unwrap());
        let Ok(InputOutcome::Turn(outcome)) = patient(submitted).await else {
            panic!("no turn");
        };
        assert_eq!(outcome.end, TurnEnd::Interrupted);
        assert_eq!(world.session.pending_gates(), []);
        assert!(agent.shutdown().await.unwrap().is_complete());
    }
}

/// A policy that panics beside calls that panic when they are dropped for it.
#[tokio::test]
async fn a_policy_that_panics_beside_prepared_calls_fails_its_turn() {
    let mut world = world();
    let both = calls(&[("1", "bad", b"{}"), ("2", "bad", b"{}")]);
    let tool = BadTool {
        spec: "bad",
        summary: false,
    };
    let policy = |_: &ToolCall| -> Decision { panic!("the policy") };
    let spec = AgentSpec::new(script([both])).tool(tool).policy(policy);
    let agent = spawn(&mut world, spec);
    let outcome = agent.run_turn("go").await.unwrap();
    let TurnEnd::Failed { error } = outcome.end else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.message, "panic: the policy");
}

struct Everything(Bomb);

impl Model for Everything {
    fn stream(&self, _: ModelRequest) -> ModelStream {
        ModelStream::ready(says("ok"))
    }
}

impl Tool for Everything {
    type Request = ();

    fn spec(&self) -> ToolSpec {
        ToolSpec::new("everything", "for a test")
    }

    fn prepare(&self, _: &RawJson) -> Result<(), ToolError> {
        Ok(())
    }

    async fn run(&self, (): (), _: ToolCallContext) -> ToolOutput {
        ToolOutput::text("ran")
    }
}

impl Policy for Everything {
    fn decide(&self, _: &ToolCall) -> Decision {
        Decision::Allow
    }
}

impl HookObserver for Everything {}

impl HookGuard for Everything {
    fn check(&self, _: HookCall) -> Result<(), Denial> {
        Ok(())
    }
}

impl Metrics for Everything {
    fn record(&self, _: &Measure) {
        let _ = &self.0;
    }
}

fn everything() -> AgentSpec {
    AgentSpec::new(Everything(Bomb))
        .tool(Everything(Bomb))
        // In the place of the one before.
        .tool(Everything(Bomb))
        .policy(Everything(Bomb))
        .observer(Everything(Bomb))
        .observer(Everything(Bomb))
        .guard(Everything(Bomb))
        .guard(Everything(Bomb))
}

#[tokio::test]
async fn an_agent_of_which_all_panics_in_its_drop_ends() {
    drop(everything());
    let mut world = world_with(options().metrics(Everything(Bomb)));
    let agent = spawn(&mut world, everything());
    assert!(agent.run_turn("go").await.unwrap().is_done());
    let before = DROPPED.load(Ordering::SeqCst);
    assert!(agent.shutdown().await.unwrap().is_complete());
    patient(async {
        while DROPPED.load(Ordering::SeqCst) < before + 7 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(world.session.loop_by_name("main").unwrap().is_some());
    drop((agent, world));
}

/// An observer that its host gives up while it is told of a commit is dropped there.
#[tokio::test]
async fn an_observer_that_panics_in_its_drop_harms_no_commit() {
    struct Last(#[allow(dead_code, reason = "dropped")] Bomb, Own);
    type Own = Arc<std::sync::Mutex<Option<Arc<dyn Observer>>>>;
    impl Observer for Last {
        fn committed(&self, _: &[Committed]) {
            let own = self.1.lock().unwrap().take();
            drop(own);
        }
        fn faulted(&self, _: &stepwell::journal::Fault) {}
    }
    let world = world();
    let own = Own::default();
    let last: Arc<dyn Observer> = Arc::new(Last(Bomb, own.clone()));
    world.session.observe(&last);
    *own.lock().unwrap() = Some(last);
    for name in ["a", "b"] {
        let created = world
            .session
            .create_loop_async(stepwell::store::LoopSpec::new(name));
        assert!(created.await.is_ok());
    }
    assert!(own.lock().unwrap().is_none());
    assert_eq!(world.session.fault(), None);
}

/// What waits for a cancellation beside a tool is woken by the interruption, and panics.
#[tokio::test]
async fn a_waker_that_panics_at_a_cancellation_leaves_a_turn_interrupted() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("the waker");
        }
    }
    let mut world = world();
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let waits = {
        let kept = kept.clone();
        act("waits", move |input| {
            // With a child, whose parent is locked when it is woken.
            let child = input.cancel.child_token();
            let mut waiting = Box::pin(child.cancelled_owned());
            let waker = Arc::new(Panics).into();
            assert!(
                waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            kept.lock().unwrap().push(waiting);
            async {
                std::future::pending::<()>().await;
                ToolOutput::text("never")
            }
        })
    };
    let both = calls(&[("1", "waits", b"{}"), ("2", "waits", b"{}")]);
    let agent = spawn(&mut world, AgentSpec::new(script([both])).tool(waits));
    let submitted = agent.submit("go").await.unwrap();
    patient(async {
        while kept.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(agent.interrupt().await.unwrap());
    let Ok(InputOutcome::Turn(outcome)) = patient(submitted).await else {
        panic!("no turn");
    };
    assert_eq!(outcome.end, TurnEnd::Interrupted);
    assert!(agent.shutdown().await.unwrap().is_complete());
    // The host's own tree is poisoned by now.
    std::mem::forget(std::mem::take(&mut *kept.lock().unwrap()));
}
