//! Real processes on a real disk, killed at the moments that matter. A test starts itself again as a
//! child, which runs a turn up to a moment, stops there for good and says so; it is killed, and what
//! it has left is the documented state.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(all(unix, feature = "runtime"))]

mod runtime_support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runtime_support::*;
use stepwell::event::{GateOpened, InterruptReason, Kind, PermissionDecided, TurnInterrupted};
use stepwell::journal::Seq;
use stepwell::runtime::{
    APPROVE, AgentSpec, Decision, Filter, ModelRequest, ModelStream, Question, StartAt, Tool,
    ToolCall, ToolOutput, ToolSpec,
};
use stepwell::store::{
    Answer, AnswerError, Committed, LoopSpec, Mode, Observer, OpenReport, Session, SessionSpec,
    Store,
};
use tempfile::TempDir;

/// Where the child stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// A part of the answer was shown, the rest does not come.
    Streaming,
    ToolRuns,
    ToolRunsWithIntent,
    GateOpen,
    /// The answer is durable; who waits for it has not heard of it.
    AnsweredNotDelivered,
    /// A step is durable; nobody has heard of it.
    AppendedNotPublished,
    /// The same with the last step of a turn.
    LastAppendedNotPublished,
    /// A subscriber has the step; who committed it has no answer.
    PublishedNotAnswered,
    LastPublishedNotAnswered,
    /// The turn has ended; who asked for it never looked.
    EndedAndNobodyLooked,
}

use Moment::*;

const ALL: [Moment; 10] = [
    Streaming,
    ToolRuns,
    ToolRunsWithIntent,
    GateOpen,
    AnsweredNotDelivered,
    AppendedNotPublished,
    LastAppendedNotPublished,
    PublishedNotAnswered,
    LastPublishedNotAnswered,
    EndedAndNobodyLooked,
];

const MOMENT: &str = "STEPWELL_TEST_MOMENT";
const DIR: &str = "STEPWELL_TEST_DIR";
/// What the child says when it stands at its moment.
const HERE: &str = "it stands at its moment";
/// A child that does not come to its moment fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

fn one_call() -> runtime_support::Answer {
    calls(&[("1", "act", b"{\"n\":1}")])
}

fn asks(_: &ToolCall) -> Decision {
    Decision::Ask(Question::permission("may I?").without_timeout())
}

fn counted(runs: &Arc<AtomicUsize>) -> impl Tool + use<> {
    let runs = runs.clone();
    act("act", move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { ToolOutput::text("ran") }
    })
}

// ---- the child

/// Not a test of its own: what the others start.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Ok(name) = std::env::var(MOMENT) else {
        return;
    };
    // If the parent is gone nobody kills us.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
    let moment = ALL.into_iter().find(|it| format!("{it:?}") == name);
    let dir = std::env::var(DIR).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(live_until(moment.unwrap(), &dir));
}

async fn here() -> ! {
    let mut out = std::io::stdout();
    writeln!(out, "{HERE}").unwrap();
    out.flush().unwrap();
    std::future::pending().await
}

/// Stops the thread that commits, behind those who were told before it.
struct Stops {
    at: Kind,
    stands: Mutex<Sender<()>>,
}

impl Observer for Stops {
    fn committed(&self, batch: &[Committed]) {
        if batch.iter().any(|it| it.event().kind() == self.at) {
            self.stands.lock().unwrap().send(()).unwrap();
            loop {
                std::thread::park();
            }
        }
    }

    fn faulted(&self, _: &stepwell::journal::Fault) {}
}

async fn live_until(moment: Moment, dir: &str) {
    let store = Store::open(dir).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let main = session.create_loop(LoopSpec::new("main")).unwrap();
    let (stands, stopped) = channel();
    let stop = |at| -> Arc<dyn Observer> {
        let stands = Mutex::new(stands.clone());
        Arc::new(Stops { at, stands })
    };
    // Those who come before the hub are told before anybody who subscribes.
    let before = match moment {
        AnsweredNotDelivered => Some(stop(Kind::GateResolved)),
        AppendedNotPublished => Some(stop(Kind::StepDone)),
        LastAppendedNotPublished => Some(stop(Kind::TurnDone)),
        _ => None,
    };
    before.iter().for_each(|it| drop(session.observe(it)));
    let mut events = session.subscribe(StartAt::now(), Filter::all());
    let after = match moment {
        PublishedNotAnswered => Some(stop(Kind::StepDone)),
        LastPublishedNotAnswered => Some(stop(Kind::TurnDone)),
        _ => None,
    };
    after.iter().for_each(|it| drop(session.observe(it)));

    let runs = Arc::new(AtomicUsize::new(0));
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let hangs = move |spec: ToolSpec| {
        let begun = begun.clone();
        act_as(spec, move |_| {
            begun.send(()).unwrap();
            std::future::pending()
        })
    };
    let act = ToolSpec::new("act", "for a test");
    let spec = match moment {
        Streaming => AgentSpec::new(|_: ModelRequest| {
            let (sender, stream) = ModelStream::channel(8);
            tokio::spawn(async move {
                sender.send(says("half").remove(0)).await;
                std::future::pending::<()>().await;
            });
            stream
        }),
        ToolRuns => AgentSpec::new(script([one_call()])).tool(hangs(act)),
        ToolRunsWithIntent => AgentSpec::new(script([one_call()])).tool(hangs(act.intent())),
        GateOpen | AnsweredNotDelivered => AgentSpec::new(script([one_call()]))
            .tool(counted(&runs))
            .policy(asks),
        AppendedNotPublished | PublishedNotAnswered => {
            AgentSpec::new(script([one_call(), says("never")])).tool(counted(&runs))
        }
        LastAppendedNotPublished | LastPublishedNotAnswered | EndedAndNobodyLooked => {
            AgentSpec::new(script([says("whole")]))
        }
    };
    let agent = session.spawn_loop(main, spec).unwrap();
    let mut turn = agent.submit("go").await.unwrap();
    let stands_still = async {
        tokio::task::spawn_blocking(move || stopped.recv().unwrap())
            .await
            .unwrap();
    };
    match moment {
        Streaming => drop(until(&mut events, Kind::TokenDelta).await),
        ToolRuns | ToolRunsWithIntent => begins.recv().await.unwrap(),
        GateOpen => drop(until(&mut events, Kind::GateOpened).await),
        AnsweredNotDelivered => {
            let opened = until(&mut events, Kind::GateOpened).await;
            let gate = opened.last().unwrap().event().body_as::<GateOpened>();
            let (gate, session) = (gate.unwrap().gate.id, session.clone());
            std::thread::spawn(move || session.answer_gate(gate, Answer::choose(APPROVE)));
            stands_still.await;
            assert_eq!(runs.load(Ordering::SeqCst), 0);
        }
        AppendedNotPublished | LastAppendedNotPublished => {
            stands_still.await;
            while let Some(delivery) = ready(&mut events).await {
                assert_ne!(delivery.unwrap().event().kind(), Kind::StepDone);
            }
        }
        PublishedNotAnswered | LastPublishedNotAnswered => {
            stands_still.await;
            until(&mut events, Kind::StepDone).await;
            let answered = std::future::poll_fn(|context| {
                let polled = std::pin::Pin::new(&mut turn).poll(context);
                std::task::Poll::Ready(polled.is_ready())
            });
            assert!(!answered.await);
        }
        EndedAndNobodyLooked => drop(until(&mut events, Kind::TurnDone).await),
    }
    here().await
}

// ---- the parent

/// Killed when it is dropped, so that a test that fails leaves none behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a child up to a moment and kills it there.
fn killed_at(moment: Moment) -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(MOMENT, format!("{moment:?}"))
        .env(DIR, dir.path().join("store"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let out = BufReader::new(running.0.stdout.take().unwrap());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut lines = out.lines().map_while(Result::ok);
        let _ = tell.send(lines.any(|line| line.contains(HERE)));
    });
    let stands = told.recv_timeout(PATIENCE);
    assert_eq!(stands, Ok(true), "the child did not come to {moment:?}");
    running.0.kill().unwrap();
    let status = running.0.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it was killed and did not end");
    dir
}

struct Opened {
    store: Store,
    session: Session,
    report: OpenReport,
    /// Its records before it was opened again.
    before: Vec<Kind>,
    _dir: TempDir,
}

/// Opens what a killed child has left.
fn left_at(moment: Moment) -> Opened {
    let dir = killed_at(moment);
    let store = Store::open(dir.path().join("store")).unwrap();
    let id = store.sessions().unwrap()[0].id;
    let (looked, _) = store.open_session(id, Mode::Read).unwrap();
    let before = kinds(&looked);
    drop(looked);
    let (session, report) = store.open_session(id, Mode::Write).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.session, id);
    Opened {
        store,
        session,
        report,
        before,
        _dir: dir,
    }
}

const BEGUN: [Kind; 3] = [Kind::SessionStarted, Kind::LoopStarted, Kind::TurnStarted];

impl Opened {
    /// The turn that ran was closed durably by the opening, as cut off by a restart.
    fn assert_interrupted(&self) {
        assert_eq!(self.report.open_turns.len(), 1);
        assert_eq!(self.session.open_turns(), []);
        let events = self.session.replay(self.report.committed.next());
        let closed: Vec<_> = events
            .map(|event| event.unwrap())
            .filter_map(|event| event.typed::<TurnInterrupted>())
            .collect();
        assert_eq!(closed.len(), 1);
        let at = closed[0].event().header.coordinates;
        assert_eq!(at.turn, self.report.open_turns[0].turn);
        assert_eq!(closed[0].body.reason, Some(InterruptReason::Restart));
    }

    /// The step of this text is there once, for the history, for the log and for subscribers, and the
    /// opening says of it that it is proven or that nobody can know.
    fn assert_step_once(&self, text: &str) {
        assert_eq!(self.session.steps(), 1);
        let once = texts(&self.session);
        assert_eq!(once.iter().filter(|it| *it == text).count(), 1, "{once:?}");
        let steps = self.session.replay(Seq::new(1));
        let steps: Vec<Seq> = steps
            .map(|event| event.unwrap())
            .filter(|event| event.event().kind() == Kind::StepDone)
            .map(|event| event.seq())
            .collect();
        assert_eq!(steps.len(), 1);
        let proven = steps[0] <= self.report.proven;
        let recovered = self.report.recovered.iter();
        let recovered = recovered.filter(|it| it.seq() == steps[0]).count();
        assert_eq!(recovered, usize::from(!proven), "{:?}", self.report);
        // Who subscribes from now on gets it once if nobody can know whether it was published.
        let mut now = self.session.subscribe(StartAt::now(), Filter::committed());
        let mut all = self.session.subscribe(StartAt::seq(1), Filter::committed());
        let runtime = runtime();
        let mut marked = 0;
        while let Some(delivery) = runtime.block_on(ready(&mut now)) {
            let delivery = delivery.unwrap();
            marked += usize::from(delivery.event().kind() == Kind::StepDone);
        }
        assert_eq!(marked, recovered);
        let last = self.session.last_seq();
        let mut seen = Vec::new();
        while all.next_seq() <= last {
            let delivery = runtime.block_on(all.recv()).unwrap().unwrap();
            seen.push(delivery.event().kind());
        }
        let steps = seen.iter().filter(|kind| **kind == Kind::StepDone);
        assert_eq!(steps.count(), 1, "{seen:?}");
    }

    /// Runs a turn with the call of the killed one; gives how often the tool ran.
    fn run_again(&self) -> usize {
        let main = self.session.loop_by_name("main").unwrap().unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let spec = AgentSpec::new(script([one_call(), says("done")]));
        let spec = spec.tool(counted(&runs)).policy(asks);
        runtime().block_on(async {
            let agent = self.session.spawn_loop(main, spec).unwrap();
            let turn = tokio::time::timeout(PATIENCE, agent.run_turn("again")).await;
            assert!(turn.expect("it does not wait").unwrap().is_done());
            agent.shutdown().await.unwrap();
        });
        runs.load(Ordering::SeqCst)
    }

    /// The loop goes on, and what is live is what the log restores.
    fn goes_on(self) {
        let main = self.session.loop_by_name("main").unwrap().unwrap();
        runtime().block_on(async {
            let spec = AgentSpec::new(script([says("on")]));
            let agent = self.session.spawn_loop(main, spec).unwrap();
            let turn = tokio::time::timeout(PATIENCE, agent.run_turn("and on")).await;
            assert!(turn.expect("it goes on").unwrap().is_done());
            agent.shutdown().await.unwrap();
        });
        let kinds = kinds(&self.session);
        let begun = kinds.iter().filter(|kind| **kind == Kind::TurnStarted);
        let ended = kinds.iter().filter(|kind| kind.ends_turn());
        assert_eq!(begun.count(), ended.count(), "one terminal per turn");
        let history = self.session.history().unwrap();
        let id = self.session.id();
        self.session.close().unwrap();
        let (restored, report) = self.store.open_session(id, Mode::Read).unwrap();
        assert_eq!((report.damage, report.unreadable), (None, None));
        assert_eq!(restored.history().unwrap(), history);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn killed_while_the_model_speaks_the_step_is_absent() {
    let left = left_at(Streaming);
    assert_eq!(left.before, BEGUN);
    left.assert_interrupted();
    assert_eq!(texts(&left.session), ["go"]);
    assert_eq!(left.session.steps(), 0);
    left.goes_on();
}

#[test]
fn killed_while_a_tool_runs_the_step_is_absent_and_nothing_is_listed() {
    let left = left_at(ToolRuns);
    assert_eq!(left.before, BEGUN);
    left.assert_interrupted();
    assert_eq!(texts(&left.session), ["go"]);
    assert_eq!(left.report.unknown_effects, []);
    assert_eq!(left.report.pending_gates, []);
    left.goes_on();
}

#[test]
fn killed_while_a_tool_with_intents_runs_its_effect_is_listed_as_unknown() {
    let left = left_at(ToolRunsWithIntent);
    assert_eq!(left.before[3..], [Kind::ToolIntent]);
    left.assert_interrupted();
    assert_eq!(texts(&left.session), ["go"]);
    let [effect] = &left.report.unknown_effects[..] else {
        panic!("{:?}", left.report);
    };
    let turn = left.report.open_turns[0].turn;
    assert_eq!((effect.turn, effect.tool.as_str()), (turn, "act"));
    assert_eq!(effect.input_preview, "{\"n\":1}");
    assert_eq!(left.session.unknown_effects(), left.report.unknown_effects);
    // It stays until somebody has looked.
    left.session.close().unwrap();
    let id = left.session.id();
    let (session, report) = left.store.open_session(id, Mode::Write).unwrap();
    assert_eq!(report.unknown_effects, left.report.unknown_effects);
    session.settle_effect(effect.execution, "it ran").unwrap();
    assert_eq!(session.unknown_effects(), []);
    let left = Opened { session, ..left };
    left.goes_on();
}

#[test]
fn killed_at_an_open_gate_it_is_answered_once_and_the_answer_is_used() {
    let left = left_at(GateOpen);
    assert_eq!(
        left.before[3..],
        [Kind::GateOpened, Kind::PermissionRequested]
    );
    left.assert_interrupted();
    let [pending] = &left.report.pending_gates[..] else {
        panic!("{:?}", left.report);
    };
    assert_eq!(left.session.pending_gates(), left.report.pending_gates);
    assert_eq!(pending.call().unwrap().input.get(), "{\"n\":1}");
    let gate = pending.gate.id;
    let answer = || Answer::choose(APPROVE);
    let at = left.session.answer_gate(gate, answer()).unwrap().seq();
    let again = left.session.answer_gate(gate, answer()).unwrap_err();
    assert_eq!(again, AnswerError::AlreadyAnswered { gate, at });
    assert_answer_is_used(left, gate);
}

#[test]
fn killed_between_answer_and_delivery_the_answer_is_kept_and_used() {
    let left = left_at(AnsweredNotDelivered);
    assert_eq!(left.before.last(), Some(&Kind::GateResolved));
    left.assert_interrupted();
    assert_eq!(left.report.pending_gates, []);
    let [kept] = &left.session.gate_answers()[..] else {
        panic!("{:?}", left.report);
    };
    let (gate, at) = (kept.resolved.gate_id, kept.seq);
    assert_eq!(kept.resolved.action, APPROVE);
    let again = left.session.answer_gate(gate, Answer::choose(APPROVE));
    let again = again.unwrap_err();
    assert_eq!(again, AnswerError::AlreadyAnswered { gate, at });
    assert_answer_is_used(left, gate);
}

/// A turn that asks the same is not asked again; the answer is used with its step, and with it only.
fn assert_answer_is_used(left: Opened, gate: stepwell::identity::GateId) {
    assert_eq!(left.session.steps(), 0);
    assert_eq!(left.run_again(), 1);
    let all = || left.session.replay(Seq::new(1)).map(|it| it.unwrap());
    let opened = all().filter(|it| it.event().kind() == Kind::GateOpened);
    assert_eq!(opened.count(), 1, "nobody was asked again");
    let used: Vec<_> = all()
        .filter_map(|it| it.typed::<PermissionDecided>())
        .map(|it| it.body.gate_id)
        .collect();
    assert_eq!(used, [gate]);
    assert_eq!(left.session.gate_answers(), []);
    left.goes_on();
}

#[test]
fn killed_between_append_and_publication_the_step_is_there() {
    let left = left_at(AppendedNotPublished);
    assert_eq!(left.before[3..], [Kind::StepDone]);
    left.assert_interrupted();
    assert_eq!(texts(&left.session), ["go", "", "ran"]);
    left.assert_step_once("ran");
    left.goes_on();
}

#[test]
fn killed_between_append_and_publication_of_its_end_the_turn_is_done() {
    let left = left_at(LastAppendedNotPublished);
    assert_eq!(left.before[3..], [Kind::StepDone, Kind::TurnDone]);
    assert_eq!(left.report.open_turns, []);
    left.assert_step_once("whole");
    left.goes_on();
}

#[test]
fn killed_between_publication_and_answer_the_step_is_there_once() {
    let left = left_at(PublishedNotAnswered);
    assert_eq!(left.before[3..], [Kind::StepDone]);
    left.assert_interrupted();
    left.assert_step_once("ran");
    left.goes_on();
}

#[test]
fn killed_between_publication_and_answer_of_its_end_the_turn_is_done() {
    let left = left_at(LastPublishedNotAnswered);
    assert_eq!(left.before[3..], [Kind::StepDone, Kind::TurnDone]);
    assert_eq!(left.report.open_turns, []);
    left.assert_step_once("whole");
    left.goes_on();
}

#[test]
fn killed_before_anybody_looked_the_turn_is_done_once() {
    let left = left_at(EndedAndNobodyLooked);
    assert_eq!(left.before[3..], [Kind::StepDone, Kind::TurnDone]);
    assert_eq!(left.report.open_turns, []);
    left.assert_step_once("whole");
    left.goes_on();
}
