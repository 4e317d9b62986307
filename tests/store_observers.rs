//! Dropped futures and observers: nobody can half-do a commit or keep others from it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use store_support::*;

/// Polls a future once and drops it.
fn poll_once<F: std::future::Future>(future: F) -> bool {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    future.as_mut().poll(&mut context).is_ready()
}

/// Waits for a future without a runtime.
fn wait<F: std::future::Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Finding of an attack: the turn after a dropped future failed, since what is open was looked up
/// while the dropped commit was still under way (robustness 32).
#[test]
fn a_dropped_future_is_whole_or_absent_and_the_next_turn_begins() {
    for round in 0..20 {
        let disk = SimVfs::new();
        let session = store(&disk).create_session(SessionSpec::new()).unwrap();
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        if round % 2 == 0 {
            poll_once(main.begin_turn_async(UserMessage::text("dropped")));
        } else {
            let turn = wait(main.begin_turn_async(UserMessage::text("first"))).unwrap();
            poll_once(turn.commit_last_step_async(text_step("dropped")));
        }
        let mut turn = wait(main.begin_turn_async(UserMessage::text("next"))).unwrap();
        poll_once(turn.commit_step_async(text_step("maybe")));
        wait(turn.commit_step_async(text_step("sure"))).unwrap();
        drop(turn);
        let kinds: Vec<Kind> = session
            .replay(Seq::new(3))
            .map(|one| one.unwrap().event().kind())
            .collect();
        let begun = kinds.iter().filter(|kind| **kind == Kind::TurnStarted);
        let ended = kinds.iter().filter(|kind| kind.ends_turn());
        assert_eq!(begun.count(), ended.count() + 1, "{kinds:?}");
        assert_eq!(texts(&session).last().map(String::as_str), Some("sure"));
    }
}

/// Finding of an attack: a panicking observer kept the next one from hearing of a committed step, and
/// made an async caller believe that the outcome was unknown.
#[test]
fn an_observer_that_panics_harms_nobody() {
    struct Panics;
    impl Observer for Panics {
        fn committed(&self, _: &[Committed]) {
            panic!("an observer's own fault");
        }
        fn faulted(&self, _: &Fault) {}
    }
    let disk = SimVfs::new();
    let session = store(&disk).create_session(SessionSpec::new()).unwrap();
    let bad: Arc<dyn Observer> = Arc::new(Panics);
    session.observe(&bad);
    let watcher = Watcher::on(&disk, &session);
    session.create_loop(LoopSpec::new("main")).unwrap();
    let ticket = session.submit(vec![stepwell::store::Draft::new(HostEvent {
        name: "x".into(),
        version: 1,
        data: RawJson::null(),
        optional: false,
    })]);
    assert!(ticket.wait().unwrap().is_ok());
    let seqs: Vec<u64> = watcher.seen().iter().map(|(seq, _, _)| seq.get()).collect();
    assert_eq!(seqs, [2, 3]);
}

/// A fault can be asked for while a commit runs: by an observer, and by other threads.
#[test]
fn a_fault_is_told_without_waiting_for_a_commit() {
    struct Asks(Session, Mutex<u32>);
    impl Observer for Asks {
        fn committed(&self, _: &[Committed]) {
            assert_eq!(self.0.fault(), None);
            *self.1.lock().unwrap() += 1;
        }
        fn faulted(&self, _: &Fault) {}
    }
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let asks = Arc::new(Asks(session.clone(), Mutex::new(0)));
    let observer: Arc<dyn Observer> = asks.clone();
    session.observe(&observer);
    session.create_loop(LoopSpec::new("main")).unwrap();
    assert_eq!(*asks.1.lock().unwrap(), 1);
}
