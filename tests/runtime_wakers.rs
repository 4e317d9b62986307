//! Wakers are the host's code: one that panics, or calls back into its session, harms neither the
//! session nor the loops in it nor others that wait.
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use runtime_support::watchdog::{ends, patient};
use runtime_support::*;
use stepwell::event::HostEvent;
use stepwell::runtime::{
    AgentSpec, AskError, Filter, IdleError, LoopHandle, ModelRequest, ModelStream, Question,
    StartAt, ToolOutput,
};
use stepwell::store::{Answer, Draft, Session};
use tokio::runtime::Builder;

struct Does(Box<dyn Fn() + Send + Sync>, AtomicUsize);

impl Wake for Does {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        (self.0)();
    }
}

impl Does {
    fn times(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

fn does(work: impl Fn() + Send + Sync + 'static) -> Arc<Does> {
    Arc::new(Does(Box::new(work), AtomicUsize::new(0)))
}

fn panics() -> Arc<Does> {
    does(|| panic!("the host's waker"))
}

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send>>, waker: &Arc<Does>) -> Poll<T> {
    let waker = Waker::from(waker.clone());
    future.as_mut().poll(&mut Context::from_waker(&waker))
}

fn event() -> Vec<Draft> {
    vec![Draft::new(HostEvent {
        name: "test".into(),
        version: 1,
        data: stepwell::content::RawJson::empty_object(),
        optional: false,
    })]
}

/// What needs every lock of a session.
fn uses(session: &Session) -> bool {
    let _ = session.history();
    let _ = session.pending_gates();
    let _ = session.fault();
    let _ = session.hub().fault();
    drop(session.subscribe(StartAt::now(), Filter::all()));
    let submitted = session.submit(event()).wait().unwrap();
    submitted.is_ok() && session.commit(event()).is_ok()
}

fn spawn(session: &Session, agent: AgentSpec) -> LoopHandle {
    let main = session.loop_by_name("main").unwrap().unwrap();
    session.spawn_loop(main, agent).unwrap()
}

type Asking = Pin<Box<dyn Future<Output = Result<String, AskError>> + Send>>;

/// A tool asks and awaits the answer by a waker of its own. What it came to, and how often it woke.
fn asked_by(
    make: impl Fn(&Session) -> Arc<Does>,
    end: impl Fn(&Session),
) -> (Result<String, AskError>, usize, World) {
    let mut world = world();
    drop(world.main.take());
    let session = world.session.clone();
    let waker = make(&session);
    let kept: Arc<Mutex<Option<Asking>>> = Arc::default();
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let tool = {
        let (kept, waker, waits) = (kept.clone(), waker.clone(), session.clone());
        act("act", move |input| {
            let (kept, waker, waits) = (kept.clone(), waker.clone(), waits.clone());
            async move {
                let call = input.call;
                let mut asking: Asking =
                    Box::pin(
                        async move { call.ask(Question::input("what?").without_timeout()).await },
                    );
                // Until it is seen; then once more, so that it waits for the answer.
                while poll(&mut asking, &does(|| {})).is_pending()
                    && waits.pending_gates().is_empty()
                {
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                assert!(poll(&mut asking, &waker).is_pending());
                *kept.lock().unwrap() = Some(asking);
                std::future::pending::<()>().await;
                ToolOutput::text("never")
            }
        })
    };
    let answers = script([calls(&[("1", "act", b"{}")])]);
    let agent = runtime.block_on(async {
        let agent = spawn(&session, AgentSpec::new(answers).tool(tool));
        drop(agent.submit("go").await.unwrap());
        patient(async {
            while kept.lock().unwrap().is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        agent
    });
    end(&session);
    let mut asking = kept.lock().unwrap().take().unwrap();
    let Poll::Ready(asked) = poll(&mut asking, &does(|| {})) else {
        panic!("it was not told");
    };
    let times = waker.times();
    drop((runtime, agent));
    (asked, times, world)
}

fn answer(session: &Session) {
    let gate = session.pending_gates()[0].gate.id;
    session.answer_gate(gate, Answer::text("this")).unwrap();
}

#[test]
fn a_waker_at_a_gate_may_call_back() {
    let committed = Arc::new(AtomicUsize::new(0));
    let counted = committed.clone();
    let (asked, times, world) = ends(move || {
        let back = |session: &Session| {
            let (session, counted) = (session.clone(), counted.clone());
            does(move || {
                counted.fetch_add(usize::from(uses(&session)), Ordering::SeqCst);
            })
        };
        asked_by(back, answer)
    });
    assert_eq!((asked.as_deref(), times), (Ok("this"), 1));
    // It ran behind the lock, where it may commit.
    assert_eq!(committed.load(Ordering::SeqCst), 1);
    assert_eq!(world.session.fault(), None);
}

#[test]
fn a_waker_at_a_gate_may_panic() {
    let (asked, times, world) = ends(|| asked_by(|_| panics(), answer));
    assert_eq!((asked.as_deref(), times), (Ok("this"), 1));
    assert_eq!(world.session.fault(), None);
    // The hub, which told, is told of what comes.
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut events = world.session.subscribe(StartAt::now(), Filter::all());
    let next = events.next_seq();
    world.session.commit(event()).unwrap();
    let seen = runtime.block_on(patient(events.recv()));
    assert_eq!(seen.unwrap().unwrap().seq(), next);
}

/// Closing tells those who wait at gates.
#[test]
fn a_waker_at_a_gate_may_do_both_when_the_session_is_closed() {
    let close = |session: &Session| session.close().unwrap();
    let (asked, times, _world) = ends(move || {
        let both = |session: &Session| {
            let session = session.clone();
            does(move || {
                assert!(!uses(&session), "it is closed");
                panic!("the host's waker");
            })
        };
        asked_by(both, close)
    });
    assert_eq!((asked, times), (Err(AskError::Closed), 1));
}

type Idle = Pin<Box<dyn Future<Output = Result<(), IdleError>> + Send>>;

/// Idleness is told under the hub's lock, and when a session is closed under the boundary's, too.
#[test]
fn wakers_of_those_who_wait_for_idleness_may_call_back_and_panic() {
    for closes in [false, true] {
        ends(move || {
            let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
            let mut world = world();
            drop(world.main.take());
            let session = world.session.clone();
            let again = session.clone();
            let back = does(move || assert_eq!(uses(&again), !closes));
            let wakers = [panics(), back, does(|| {})];
            runtime.block_on(async {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let receiver = Mutex::new(Some(receiver));
                let waits = act("act", move |_| {
                    let receiver = receiver.lock().unwrap().take().unwrap();
                    async move {
                        let _ = receiver.await;
                        ToolOutput::text("ran")
                    }
                });
                let answers = script([calls(&[("1", "act", b"{}")]), says("done")]);
                let agent = spawn(&session, AgentSpec::new(answers).tool(waits));
                let submitted = agent.submit("go").await.unwrap();
                let hub = session.hub();
                let mut waiting: Vec<Idle> = Vec::new();
                for waker in &wakers {
                    let hub = hub.clone();
                    let mut idle: Idle = Box::pin(async move { hub.wait_idle().await });
                    assert!(poll(&mut idle, waker).is_pending());
                    waiting.push(idle);
                }
                // What is queued when a session is closed does not begin.
                patient(async {
                    while session.open_turns().is_empty() {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                if closes {
                    let session = session.clone();
                    tokio::task::spawn_blocking(move || session.close().unwrap())
                        .await
                        .unwrap();
                }
                sender.send(()).unwrap();
                let turn = patient(submitted).await;
                assert!(turn.is_ok(), "{turn:?}");
                patient(async {
                    while wakers.iter().any(|waker| waker.times() == 0) {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                for idle in waiting {
                    let expected = match closes {
                        true => Err(IdleError::Closed),
                        false => Ok(()),
                    };
                    assert_eq!(idle.await, expected);
                }
            });
        });
    }
}

/// Who awaits a handle is woken by the loop's task: it was torn down by a waker that panicked.
#[test]
fn a_waker_that_panics_leaves_the_loop_that_answers_it() {
    ends(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut world = world();
        drop(world.main.take());
        let session = world.session.clone();
        runtime.block_on(async {
            let model = |_: ModelRequest| ModelStream::ready(says("ok"));
            let agent = spawn(&session, AgentSpec::new(model));
            let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
            let submitted = agent.submit("go").await.unwrap();
            calls.push(Box::pin(async { drop(submitted.await) }));
            for call in 0..4 {
                let agent = agent.clone();
                calls.push(Box::pin(async move {
                    match call {
                        0 => drop(agent.snapshot().await),
                        1 => drop(agent.interrupt().await),
                        2 => drop(agent.run_turn("more").await),
                        _ => drop(agent.shutdown().await),
                    }
                }));
            }
            // More than have room, so that some wait for it.
            for _ in 0..70 {
                let agent = agent.clone();
                calls.insert(4, Box::pin(async move { drop(agent.snapshot().await) }));
            }
            let wakers: Vec<_> = calls.iter().map(|_| panics()).collect();
            let mut left: Vec<_> = calls.into_iter().zip(&wakers).collect();
            patient(async {
                let mut polled = vec![usize::MAX; left.len()];
                while !left.is_empty() {
                    let mut at = 0;
                    left.retain_mut(|(call, waker)| {
                        let woken = polled[at] != waker.times();
                        polled[at] = waker.times();
                        at += 1;
                        !woken || poll(call, waker).is_pending()
                    });
                    polled.fill(usize::MAX);
                    tokio::task::yield_now().await;
                }
            })
            .await;
            assert!(agent.shutdown().await.unwrap().is_complete());
        });
        assert!(session.loop_by_name("main").unwrap().is_some());
    });
}
