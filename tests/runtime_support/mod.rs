//! What the tests of the runner share: a store on a simulated disk, models and tools by script, and
//! a door at the disk at which a call can be held.

#![allow(dead_code, unreachable_pub)]

#[path = "../watchdog/mod.rs"]
pub mod watchdog;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_core::Stream;
use stepwell::content::RawJson;
use stepwell::event::{Kind, StepDone};
use stepwell::identity::{Coordinates, SessionId, ToolExecutionId};
use stepwell::journal::JournalOptions;
use stepwell::runtime::{
    CancellationToken, Delivery, FnTool, Model, ModelError, ModelEvent, ModelRequest, ModelStream,
    StreamEnd, Subscription, Tool, ToolCallContext, ToolOutput, ToolSpec,
};
use stepwell::store::{
    HistoryItem, Loop, LoopSpec, Mode, Session, SessionSpec, Store, StoreOptions,
};
use stepwell::vfs::sim::{Op, SimVfs};
use watchdog::patient;

/// A store with one session and one loop.
pub struct World {
    pub disk: SimVfs,
    pub store: Store,
    pub session: Session,
    pub main: Option<Loop>,
}

pub fn options() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 16 * 1024,
            max_capacity: 16 * 1024,
            ..JournalOptions::default()
        },
        workers: stepwell::journal::Workers::groups_only(),
        ..StoreOptions::default()
    }
}

pub fn open_store(disk: &SimVfs, options: StoreOptions) -> Store {
    Store::on(Arc::new(disk.clone()), "/store", options).unwrap()
}

pub fn world_with(options: StoreOptions) -> World {
    let disk = SimVfs::new();
    let store = open_store(&disk, options);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let main = Some(session.create_loop(LoopSpec::new("main")).unwrap());
    World {
        disk,
        store,
        session,
        main,
    }
}

pub fn world() -> World {
    world_with(options())
}

/// The history that a process restores which opens the session now.
pub fn restored(disk: &SimVfs, id: SessionId) -> Vec<HistoryItem> {
    let store = Store::on(Arc::new(disk.new_process()), "/store", options()).unwrap();
    let (session, report) = store.open_session(id, Mode::Read).unwrap();
    assert_eq!(report.damage, None);
    assert_eq!(report.unreadable, None);
    session.history().unwrap()
}

/// The kinds of the committed events, from the log.
pub fn kinds(session: &Session) -> Vec<Kind> {
    let events = session.replay(stepwell::journal::Seq::new(1));
    events.map(|event| event.unwrap().event().kind()).collect()
}

pub fn texts(session: &Session) -> Vec<String> {
    let history = session.history().unwrap();
    history.iter().map(|item| item.message.to_text()).collect()
}

// ---- models

pub type Answer = Vec<Result<ModelEvent, ModelError>>;

pub fn says(text: &str) -> Answer {
    vec![Ok(ModelEvent::text(0, text))]
}

pub fn calls(calls: &[(&str, &str, &[u8])]) -> Answer {
    let calls = calls
        .iter()
        .enumerate()
        .flat_map(|(at, (id, name, input))| {
            ModelEvent::tool_call(at as u32 + 1, *id, *name, *input)
        });
    calls.map(Ok).collect()
}

pub fn breaks() -> Result<ModelEvent, ModelError> {
    Err(ModelError::new("the line broke"))
}

/// Answers by script, one after the other; an empty one when the script is used up.
pub fn script(answers: impl IntoIterator<Item = Answer>) -> impl Model + 'static {
    let answers: Mutex<VecDeque<Answer>> = Mutex::new(answers.into_iter().collect());
    move |_: ModelRequest| {
        let answer = answers.lock().unwrap().pop_front();
        ModelStream::ready(answer.unwrap_or_default())
    }
}

// ---- tools

/// A call and its input, as the tools of tests see it.
pub struct ToolInput {
    pub json: RawJson,
    pub call_id: String,
    pub execution: ToolExecutionId,
    pub coordinates: Coordinates,
    pub cancel: CancellationToken,
    pub call: ToolCallContext,
}

pub type ToolFuture<'a> = Pin<Box<dyn Future<Output = ToolOutput> + Send + 'a>>;

/// A tool by function.
pub fn act<F, R>(name: &'static str, run: F) -> impl Tool
where
    F: Fn(ToolInput) -> R + Send + Sync + 'static,
    R: Future<Output = ToolOutput> + Send + 'static,
{
    act_as(ToolSpec::new(name, "for a test"), run)
}

pub fn act_as<F, R>(spec: ToolSpec, run: F) -> impl Tool
where
    F: Fn(ToolInput) -> R + Send + Sync + 'static,
    R: Future<Output = ToolOutput> + Send + 'static,
{
    FnTool::new(spec, move |json: RawJson, call: ToolCallContext| {
        run(ToolInput {
            json,
            call_id: call.call_id.clone(),
            execution: call.execution,
            coordinates: call.coordinates,
            cancel: call.cancel.clone(),
            call,
        })
    })
}

/// Gives its input back.
pub fn echo() -> impl Tool {
    act(
        "echo",
        |input| async move { ToolOutput::text(input.json.get()) },
    )
}

// ---- subscriptions

/// What is there already, without waiting.
pub async fn ready(subscription: &mut Subscription) -> Option<Result<Delivery, StreamEnd>> {
    poll_fn(
        |context| match Pin::new(&mut *subscription).poll_next(context) {
            Poll::Ready(item) => Poll::Ready(item),
            Poll::Pending => Poll::Ready(None),
        },
    )
    .await
}

/// The next delivery of a kind, and those before it.
pub async fn until(subscription: &mut Subscription, kind: Kind) -> Vec<Delivery> {
    let mut seen = Vec::new();
    loop {
        let delivery = patient(subscription.recv()).await.unwrap().unwrap();
        let found = delivery.event().kind() == kind;
        seen.push(delivery);
        if found {
            return seen;
        }
    }
}

/// All that comes, and how it ends.
pub async fn drain(subscription: &mut Subscription) -> (Vec<Delivery>, Option<StreamEnd>) {
    let mut seen = Vec::new();
    let end = loop {
        match subscription.recv().await {
            Some(Ok(delivery)) => seen.push(delivery),
            Some(Err(end)) => break Some(end),
            None => break None,
        }
    };
    assert!(subscription.recv().await.is_none(), "an end comes once");
    (seen, end)
}

pub fn step(delivery: &Delivery) -> Option<&StepDone> {
    delivery.event().body_as::<StepDone>()
}

// ---- the disk's door

/// Holds calls to the disk until they are let through.
pub struct Door {
    arrived: tokio::sync::mpsc::UnboundedReceiver<Op>,
    pass: std::sync::mpsc::Sender<()>,
}

impl Door {
    /// Holds the calls that `which` picks.
    pub fn at(disk: &SimVfs, which: impl Fn(&Op) -> bool + Send + Sync + 'static) -> Door {
        let (arrive, arrived) = tokio::sync::mpsc::unbounded_channel();
        let (pass, passes) = std::sync::mpsc::channel();
        let passes = Mutex::new(passes);
        disk.set_hook(move |op| {
            if which(op) {
                // When the test has dropped the door, everything passes.
                if arrive.send(op.clone()).is_ok() {
                    let _ = passes.lock().unwrap().recv();
                }
            }
        });
        Door { arrived, pass }
    }

    /// Holds the syncs of the log.
    pub fn at_syncs(disk: &SimVfs) -> Door {
        Door::at(disk, is_sync)
    }

    /// Waits until a call stands at the door.
    pub async fn knock(&mut self) -> Op {
        patient(self.arrived.recv()).await.unwrap()
    }

    /// Lets one call through.
    pub fn pass(&self) {
        self.pass.send(()).unwrap();
    }
}

pub fn is_sync(op: &Op) -> bool {
    matches!(op, Op::SyncData { .. })
}
