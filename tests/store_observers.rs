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

/// A hang is a failure, not a test that never ends.
fn soon<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    let limit = std::time::Duration::from_secs(20);
    receiver.recv_timeout(limit).expect("it hangs")
}

fn host_event() -> Vec<stepwell::store::Draft> {
    vec![stepwell::store::Draft::new(HostEvent {
        name: "x".into(),
        version: 1,
        data: RawJson::null(),
        optional: false,
    })]
}

/// What would wait for itself is refused: committing, closing, and the like.
fn assert_refused(session: &Session) {
    let reentrant = || CommitError::NotCommitted(Refusal::Reentrant);
    assert_eq!(session.commit(host_event()), Err(reentrant()));
    assert_eq!(
        session.submit(host_event()).wait().unwrap(),
        Err(reentrant())
    );
    let created = session.create_loop(LoopSpec::new("inner"));
    assert_eq!(created.unwrap_err(), reentrant());
    if let Ok(Some(mut main)) = session.loop_by_name("main") {
        let begun = main.begin_turn(UserMessage::text("go"));
        assert_eq!(begun.unwrap_err(), reentrant());
    }
    assert_eq!(session.witness(), Err(Refusal::Reentrant));
    assert_eq!(session.park(), Err(Refusal::Reentrant));
    let closed = session.close();
    assert_eq!(closed, Err(stepwell::store::SessionCloseError::Reentrant));
    // Reading is fine.
    let _ = (session.history(), session.pending_gates(), session.fault());
    let _ = (session.health(), session.replay(Seq::new(1)).count());
}

/// Finding of an attack: an observer that committed, closed or observed waited for itself.
#[test]
fn what_an_observer_must_not_do_is_refused() {
    #[derive(Default)]
    struct Seen(Mutex<Vec<u64>>);
    impl Observer for Seen {
        fn committed(&self, batch: &[Committed]) {
            let seqs = batch.iter().map(|it| it.seq().get());
            self.0.lock().unwrap().extend(seqs);
        }
        fn faulted(&self, _: &Fault) {}
    }
    struct Calls(Session, Mutex<u32>, Arc<dyn Observer>, Mutex<Vec<u64>>);
    impl Observer for Calls {
        fn committed(&self, _: &[Committed]) {
            if *self.1.lock().unwrap() == 0 {
                assert_refused(&self.0);
                let (last, recovered) = self.0.observe(&self.2);
                assert_eq!(recovered, []);
                self.3.lock().unwrap().push(last.get());
            }
            *self.1.lock().unwrap() += 1;
        }
        fn faulted(&self, _: &Fault) {}
        fn closed(&self) {
            let refused = self.0.commit(host_event());
            assert_eq!(refused, Err(CommitError::NotCommitted(Refusal::Reentrant)));
            let _ = self.0.observe(&self.2);
            *self.1.lock().unwrap() += 100;
        }
    }
    soon(|| {
        let disk = SimVfs::new();
        let session = store(&disk).create_session(SessionSpec::new()).unwrap();
        let other = store(&disk).create_session(SessionSpec::new()).unwrap();
        let joins = Arc::new(Seen::default());
        let calls = Arc::new(Calls(
            session.clone(),
            Mutex::default(),
            joins.clone(),
            Mutex::default(),
        ));
        let observer: Arc<dyn Observer> = calls.clone();
        session.observe(&observer);
        session.create_loop(LoopSpec::new("main")).unwrap();
        assert_eq!(*calls.1.lock().unwrap(), 1, "nothing panicked");
        // Who joined meanwhile is told of what came behind.
        assert_eq!(*calls.3.lock().unwrap(), [2]);
        session.commit(host_event()).unwrap();
        assert_eq!(*joins.0.lock().unwrap(), [3]);
        // Another session is not what tells.
        struct Forwards(Session);
        impl Observer for Forwards {
            fn committed(&self, _: &[Committed]) {
                self.0.commit(host_event()).unwrap();
            }
            fn faulted(&self, _: &Fault) {}
        }
        let forwards: Arc<dyn Observer> = Arc::new(Forwards(other.clone()));
        session.observe(&forwards);
        session.commit(host_event()).unwrap();
        assert_eq!(other.last_seq(), Seq::new(2));
        session.close().unwrap();
        assert_eq!(*calls.1.lock().unwrap(), 103, "nothing panicked");
    });
}

/// A collector of metrics is told under any lock of a store.
#[test]
fn what_a_collector_of_metrics_must_not_do_is_refused() {
    use stepwell::metrics::{Measure, Metrics};
    type Told = Arc<Mutex<(Option<Session>, u32)>>;
    struct Calls(Told);
    impl Metrics for Calls {
        fn record(&self, _: &Measure) {
            let session = self.0.lock().unwrap().0.clone();
            if let Some(session) = session {
                assert_refused(&session);
                self.0.lock().unwrap().1 += 1;
            }
        }
    }
    soon(|| {
        let told = Told::default();
        let options = options().metrics(Calls(told.clone()));
        let session = store_with(&SimVfs::new(), options)
            .create_session(SessionSpec::new())
            .unwrap();
        told.lock().unwrap().0 = Some(session.clone());
        drop(session.create_loop(LoopSpec::new("main")).unwrap());
        session.commit(host_event()).unwrap();
        // A group and a commit, each time; nothing panicked.
        assert_eq!(told.lock().unwrap().1, 4);
        told.lock().unwrap().0 = None;
        session.close().unwrap();
    });
}
